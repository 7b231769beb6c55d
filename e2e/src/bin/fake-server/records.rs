//! Records of executed calls: one file per process, one line per call of the tool `record`.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::script::Script;
use crate::server::{GARBAGE, Request, Server};
use crate::{flood_stderr, tools};

/// The tool that records its calls.
pub(crate) const RECORD: &str = "record";

/// Returns the definition of the tool.
pub(crate) fn definition() -> Value {
    let properties = json!({"token": {"type": "string"}, "fault": {"type": "string"}});
    json!({"name": RECORD, "inputSchema": {"type": "object", "properties": properties}})
}

/// Appends a line to the file of this process, if calls are recorded.
pub(crate) fn append(script: &Script, line: &str) {
    if let Some(folder) = &script.record_dir {
        write(folder, &format!("{line}\n"));
    }
}

/// Records the token, then answers with it: immediately, late, after garbage, or never.
pub(crate) fn record(server: &Server, request: &Request) {
    let arguments = &request.params["arguments"];
    let token = arguments["token"].as_str().unwrap_or_default();
    append(&server.script, token);
    match arguments["fault"].as_str().unwrap_or_default() {
        "late" => std::thread::sleep(Duration::from_millis(20)),
        "flood" => flood_stderr(256 << 10),
        "byte_by_byte" => return write_byte_by_byte(server, request, token),
        "endless_line" => write_endless_line(),
        "many_items" => {
            let items = [r#"{"type":"text"}"#].repeat(100_000).join(",");
            return tools::answer_raw(server, request, &format!(r#"{{"content":[{items}]}}"#));
        }
        "garbage" => server.write(GARBAGE),
        "crash" => std::process::exit(101),
        "hang" => loop {
            std::thread::park();
        },
        _ => {}
    }
    tools::answer_text(server, request, token);
}

/// Answers one byte at a time.
fn write_byte_by_byte(server: &Server, request: &Request, token: &str) {
    let answer = json!({"jsonrpc": "2.0", "id": request.id, "result": tools::text_result(server, token)});
    let mut out = std::io::stdout().lock();
    for byte in format!("{answer}\n").bytes() {
        // A closed pipe is followed by the end of our input.
        let _ = out.write_all(&[byte]).and_then(|()| out.flush());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes 256 MiB without a line end, then a line end.
fn write_endless_line() {
    let mut out = std::io::stdout().lock();
    let chunk = vec![b'x'; 1 << 20];
    let written = (0..256).try_for_each(|_| out.write_all(&chunk)).and_then(|()| out.write_all(b"\n"));
    let _ = written.and_then(|()| out.flush());
}

fn write(folder: &Path, line: &str) {
    let file = OpenOptions::new().create(true).append(true).open(folder.join(std::process::id().to_string()));
    // A missing record is found when the records are compared with the answers.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}
