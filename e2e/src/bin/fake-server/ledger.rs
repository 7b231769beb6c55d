//! Books of what was really done: one file for each process, one line for each call of `stamp` that it worked on.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::script::Script;
use crate::server::{NOISE, Request, Server};
use crate::{flood_stderr, tools};

/// The tool that writes the books.
pub(crate) const STAMP: &str = "stamp";

/// What a list says of the tool.
pub(crate) fn definition() -> Value {
    let properties = json!({"token": {"type": "string"}, "how": {"type": "string"}});
    json!({"name": STAMP, "inputSchema": {"type": "object", "properties": properties}})
}

/// Begins the books of this process, so that its start is in them whatever comes.
pub(crate) fn open(script: &Script) {
    if let Some(folder) = &script.ledger {
        write(folder, "start\n");
    }
}

/// Writes the token down, then answers with it: at once, late, after other words, or never.
pub(crate) fn stamp(server: &Server, request: &Request) {
    let arguments = &request.params["arguments"];
    let token = arguments["token"].as_str().unwrap_or_default();
    if let Some(folder) = &server.script.ledger {
        write(folder, &format!("{token}\n"));
    }
    match arguments["how"].as_str().unwrap_or_default() {
        "late" => std::thread::sleep(Duration::from_millis(20)),
        "flood" => flood_stderr(256 << 10),
        "garbage" => server.write(NOISE),
        "crash" => std::process::exit(101),
        "hang" => loop {
            std::thread::park();
        },
        _ => {}
    }
    tools::say(server, request, token);
}

fn write(folder: &Path, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(folder.join(std::process::id().to_string()));
    // Books that cannot be kept are noticed by whoever compares them with the answers.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
