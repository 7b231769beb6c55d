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

/// Writes down that something happened which is no call, if books are kept.
pub(crate) fn note(script: &Script, what: &str) {
    if let Some(folder) = &script.ledger {
        write(folder, &format!("{what}\n"));
    }
}

/// Writes the token down, then answers with it: at once, late, after other words, or never.
pub(crate) fn stamp(server: &Server, request: &Request) {
    let arguments = &request.params["arguments"];
    let token = arguments["token"].as_str().unwrap_or_default();
    note(&server.script, token);
    match arguments["how"].as_str().unwrap_or_default() {
        "late" => std::thread::sleep(Duration::from_millis(20)),
        "flood" => flood_stderr(256 << 10),
        "drip" => return drip(server, request, token),
        "endless" => endless(),
        "many" => {
            let items = [r#"{"type":"text"}"#].repeat(100_000).join(",");
            return tools::raw(server, request, &format!(r#"{{"content":[{items}]}}"#));
        }
        "garbage" => server.write(NOISE),
        "crash" => std::process::exit(101),
        "hang" => loop {
            std::thread::park();
        },
        _ => {}
    }
    tools::say(server, request, token);
}

/// Answers one byte at a time.
fn drip(server: &Server, request: &Request, token: &str) {
    let answer = json!({"jsonrpc": "2.0", "id": request.id, "result": tools::said(server, token)});
    let mut out = std::io::stdout().lock();
    for byte in format!("{answer}\n").bytes() {
        // Nobody reads any more: the end of our input follows.
        let _ = out.write_all(&[byte]).and_then(|()| out.flush());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A quarter of a gigabyte without an end of line, then one.
fn endless() {
    let mut out = std::io::stdout().lock();
    let piece = vec![b'x'; 1 << 20];
    let written = (0..256).try_for_each(|_| out.write_all(&piece)).and_then(|()| out.write_all(b"\n"));
    let _ = written.and_then(|()| out.flush());
}

fn write(folder: &Path, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(folder.join(std::process::id().to_string()));
    // Books that cannot be kept are noticed by whoever compares them with the answers.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
