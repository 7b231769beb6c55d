//! What the server can be asked to do.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Request, Server};
use crate::{answers, ledger, offers, script};

/// Every tool: its name and the names of its arguments.
const TOOLS: [(&str, &[&str]); 30] = [
    ("echo", &["text"]),
    ("sleep", &["ms"]),
    ("crash", &[]),
    ("hang", &[]),
    ("exit", &["code"]),
    ("env", &["name"]),
    ("pid", &[]),
    ("grandchild", &[]),
    ("progress", &["steps", "ms"]),
    ("reply", &["how", "bytes"]),
    ("raw", &["json"]),
    ("deep", &["levels"]),
    ("received", &[]),
    ("ping", &[]),
    ("count", &["file", "then", "ms", "ttlMs", "cacheScope"]),
    ("peak", &[]),
    ("notify_list_changed", &[]),
    ("flood_notifications", &["n"]),
    ("log", &["text"]),
    ("cancelled", &[]),
    ("fail", &["text"]),
    ("deaf", &[]),
    ("ask", &["method", "message"]),
    ("update", &["uri"]),
    ("say", &["level", "text"]),
    ("mirror", &["region"]),
    ("keep", &["text"]),
    ("cwd", &[]),
    ("declared", &[]),
    ("eat", &["bytes", "then"]),
];

/// The tools as a list shows them: the useful ones, `extra` fillers, and what was `added` since.
pub(crate) fn definitions(extra: usize, added: usize) -> Vec<Value> {
    let useful = TOOLS.iter().map(|(name, arguments)| definition(name, arguments));
    let fillers = (1..=extra).map(|number| definition(&format!("extra_{number}"), &[]));
    let new = (1..=added).map(|number| definition(&format!("added_{number}"), &[]));
    useful.chain(fillers).chain(new).collect()
}

fn definition(name: &str, arguments: &[&str]) -> Value {
    let typed = |argument: &&str| {
        let kind = if matches!(*argument, "ms" | "steps" | "n" | "code" | "bytes" | "levels" | "ttlMs") {
            "integer"
        } else {
            "string"
        };
        ((*argument).to_owned(), json!({"type": kind}))
    };
    let mut properties: serde_json::Map<String, Value> = arguments.iter().map(typed).collect();
    if name == "mirror" {
        properties["region"]["x-mcp-header"] = "Region".into();
    }
    json!({
        "name": name,
        "description": format!("The fake server's `{name}`"),
        "inputSchema": {"type": "object", "properties": properties},
    })
}

/// The arguments of a call.
struct Arguments<'a>(&'a Value);

impl Arguments<'_> {
    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }

    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    fn size(&self, name: &str) -> usize {
        usize::try_from(self.number(name)).unwrap_or_default()
    }
}

/// Does what was asked and answers, or not.
pub(crate) fn run(server: &Server, request: &Request) {
    let arguments = Arguments(&request.params["arguments"]);
    let name = request.params["name"].as_str().unwrap_or_default();
    match name {
        "echo" => say(server, request, arguments.text("text")),
        "env" => say(
            server,
            request,
            &std::env::var(arguments.text("name")).unwrap_or_else(|_| "(unset)".to_owned()),
        ),
        "pid" => say(server, request, &std::process::id().to_string()),
        "grandchild" => say(server, request, &server.grandchild.unwrap_or(0).to_string()),
        "received" => say(server, request, &String::from_utf8_lossy(&request.line)),
        "peak" => say(server, request, &server.state().peak.to_string()),
        "cancelled" => say(server, request, &json!(server.state().cancelled).to_string()),
        "sleep" => {
            std::thread::sleep(Duration::from_millis(arguments.number("ms")));
            say(server, request, "slept");
        }
        "log" => {
            let _ = writeln!(std::io::stderr(), "{}", arguments.text("text"));
            say(server, request, "logged");
        }
        "fail" => {
            let result =
                json!({"content": [{"type": "text", "text": arguments.text("text")}], "isError": true});
            server.answer(&request.id, &complete(server, result));
        }
        "count" => {
            let count = script::append(&PathBuf::from(arguments.text("file")));
            match arguments.text("then") {
                "crash" => end(request),
                "hang" => loop {
                    std::thread::park();
                },
                _ => std::thread::sleep(Duration::from_millis(arguments.number("ms"))),
            }
            let mut result = said(server, &count.to_string());
            for member in ["ttlMs", "cacheScope"] {
                if !arguments.0[member].is_null() {
                    result[member] = arguments.0[member].clone();
                }
            }
            server.answer(&request.id, &result);
        }
        "hang" => loop {
            std::thread::park();
        },
        "crash" | "exit" => end(request),
        ledger::STAMP => ledger::stamp(server, request),
        "eat" => eat(server, request, &arguments),
        _ => misbehave(server, request, name, &arguments),
    }
}

/// The tools that are about the wire itself.
fn misbehave(server: &Server, request: &Request, name: &str, arguments: &Arguments<'_>) {
    match name {
        "progress" => progress(server, request, arguments.number("steps"), arguments.number("ms")),
        "reply" => match answers::broken(&request.id, arguments.text("how"), arguments.size("bytes")) {
            Some(line) => server.write(&line),
            None => server.refuse(&request.id, -32602, "no such way to answer"),
        },
        "raw" => raw(server, request, arguments.text("json")),
        "deep" => {
            let (open, close) = ("[".repeat(arguments.size("levels")), "]".repeat(arguments.size("levels")));
            raw(server, request, &format!(r#"{{"content":[],"deep":{open}{close}}}"#));
        }
        "ping" => ask_back(server, request),
        "ask" => ask_client(server, request, arguments),
        "update" => say(server, request, &offers::update(server, arguments.text("uri")).to_string()),
        "say" => {
            let params = json!({"level": arguments.text("level"), "data": arguments.text("text")});
            server.notify("notifications/message", &params);
            say(server, request, "said");
        }
        "keep" => {
            let kept = {
                let mut state = server.state();
                state.kept.push(arguments.text("text").to_owned());
                state.kept.join(" ")
            };
            say(server, request, &kept);
        }
        "cwd" => {
            let folder = std::env::current_dir().unwrap_or_default();
            say(server, request, &folder.display().to_string());
        }
        "declared" => {
            let declared = server.state().declared.to_string();
            say(server, request, &declared);
        }
        "mirror" => say(server, request, arguments.text("region")),
        "deaf" => {
            // The read under way keeps the old input alive, so one more line is heard.
            let replaced = File::open("/dev/null").is_ok_and(|null| rustix::stdio::dup2_stdin(null).is_ok());
            say(server, request, if replaced { "deaf" } else { "still hearing" });
        }
        "notify_list_changed" => {
            server.state().added += 1;
            server.notify("notifications/tools/list_changed", &json!({}));
            say(server, request, "changed");
        }
        "flood_notifications" => {
            for count in 0..arguments.number("n") {
                server.notify("notifications/message", &json!({"level": "info", "data": count}));
            }
            say(server, request, "flooded");
        }
        _ if name.starts_with("extra_") || name.starts_with("added_") => say(server, request, name),
        _ => server.refuse(&request.id, -32602, &format!("Unknown tool: {name}")),
    }
}

pub(crate) fn say(server: &Server, request: &Request, text: &str) {
    server.answer(&request.id, &said(server, text));
}

/// The result that says this.
pub(crate) fn said(server: &Server, text: &str) -> Value {
    complete(server, json!({"content": [{"type": "text", "text": text}]}))
}

fn complete(server: &Server, mut result: Value) -> Value {
    if server.script.era.is_stateless() {
        result["resultType"] = "complete".into();
    }
    result
}

/// The text as the result, byte for byte.
pub(crate) fn raw(server: &Server, request: &Request, result: &str) {
    server.write(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request.id).as_bytes());
}

/// Ends in the middle of the call: with words, or as told.
fn end(request: &Request) -> ! {
    let code = request.params["arguments"]["code"].as_i64().and_then(|code| i32::try_from(code).ok());
    if request.params["name"] == "crash" {
        let _ = writeln!(std::io::stderr(), "thread panicked\nthe disk is on fire");
    }
    std::process::exit(code.unwrap_or(101))
}

/// Uses so much memory from now on; then answers, or never does.
fn eat(server: &Server, request: &Request, arguments: &Arguments<'_>) {
    let eaten = vec![1u8; arguments.size("bytes")];
    std::mem::forget(eaten);
    while arguments.text("then") == "hang" {
        std::thread::park();
    }
    say(server, request, "eaten");
}

fn progress(server: &Server, request: &Request, steps: u64, ms: u64) {
    let token = &request.params["_meta"]["progressToken"];
    for step in 1..=steps {
        if !token.is_null() {
            let params =
                json!({"progressToken": token, "progress": step, "total": steps, "message": "on it"});
            server.notify("notifications/progress", &params);
        }
        std::thread::sleep(Duration::from_millis(ms));
    }
    // Too late, and for nobody: both are to be dropped.
    server.notify("notifications/progress", &json!({"progressToken": 999_999, "progress": 1}));
    say(server, request, &format!("{steps} steps"));
    server.notify("notifications/progress", &json!({"progressToken": token, "progress": steps + 1}));
}

/// Asks the client something in the middle of the call, in the way of the call's era, and answers with what it said.
/// In a session "never mind" is taken back at once.
fn ask_client(server: &Server, request: &Request, arguments: &Arguments<'_>) {
    let (method, message) = (arguments.text("method"), arguments.text("message"));
    let params = match method {
        "elicitation/create" => {
            json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}})
        }
        _ => json!({}),
    };
    let stateless = request.params["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string();
    if stateless {
        let answered = &request.params["inputResponses"]["q"];
        if answered.is_null() {
            let questions = json!({"q": {"method": method, "params": params}});
            let result =
                json!({"resultType": "input_required", "inputRequests": questions, "requestState": "s"});
            return server.answer(&request.id, &result);
        }
        return say(server, request, &answered.to_string());
    }
    let id = json!(format!("ask-{}", request.id));
    let question = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    server.write(question.to_string().as_bytes());
    if message == "never mind" {
        server.notify("notifications/cancelled", &json!({"requestId": id}));
        return say(server, request, message);
    }
    let reply = server.replies(&id, 1).pop().unwrap_or_default();
    let said = if reply["error"].is_object() { &reply["error"] } else { &reply["result"] };
    say(server, request, &said.to_string());
}

/// Asks the other side two things under the very id it waits for, and answers with what it got.
fn ask_back(server: &Server, request: &Request) {
    for method in ["ping", "no/such/method"] {
        server.write(json!({"jsonrpc": "2.0", "id": request.id, "method": method}).to_string().as_bytes());
    }
    let replies = server.replies(&request.id, 2);
    say(server, request, &json!(replies).to_string());
}
