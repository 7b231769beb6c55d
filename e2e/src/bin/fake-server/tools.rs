//! The tools.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{Request, Server};
use crate::{answers, extensions, offers, records, script};

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
    ("reply", &["form", "bytes"]),
    ("raw", &["json"]),
    ("deep", &["levels"]),
    ("received", &[]),
    ("ping", &[]),
    ("count", &["file", "then", "ms", "ttlMs", "cacheScope"]),
    ("peak", &[]),
    ("notify_list_changed", &["unchanged"]),
    ("flood_notifications", &["n"]),
    ("log", &["text"]),
    ("cancelled", &[]),
    ("fail", &["text"]),
    ("close_stdin", &[]),
    ("ask", &["method", "message"]),
    ("update", &["uri"]),
    ("send_log", &["level", "text"]),
    ("mirror", &["region"]),
    ("remember", &["text"]),
    ("cwd", &[]),
    ("client_capabilities", &[]),
    ("allocate", &["bytes", "then"]),
];

/// Returns the definitions of all tools: the useful ones, `extra` fillers, and those `added` since the start.
pub(crate) fn definitions(extra: usize, added: usize) -> Vec<Value> {
    let useful = TOOLS.iter().map(|(name, arguments)| definition(name, arguments));
    let fillers = (1..=extra).map(|number| definition(&format!("extra_{number}"), &[]));
    let new = (1..=added).map(|number| definition(&format!("added_{number}"), &[]));
    useful.chain(fillers).chain(new).collect()
}

/// Returns the definitions of a tool for each capability of the client.
pub(crate) fn definitions_for(client_capabilities: &Value) -> Vec<Value> {
    let names = client_capabilities.as_object().into_iter().flat_map(|object| object.keys());
    names.map(|name| definition(&format!("use_{name}"), &[])).collect()
}

fn definition(name: &str, arguments: &[&str]) -> Value {
    let property = |argument: &&str| {
        let kind = if matches!(*argument, "ms" | "steps" | "n" | "code" | "bytes" | "levels" | "ttlMs") {
            "integer"
        } else {
            "string"
        };
        ((*argument).to_owned(), json!({"type": kind}))
    };
    let mut properties: serde_json::Map<String, Value> = arguments.iter().map(property).collect();
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

/// Runs the requested tool.
pub(crate) fn run(server: &Server, request: &Request) {
    let arguments = Arguments(&request.params["arguments"]);
    let name = request.params["name"].as_str().unwrap_or_default();
    match name {
        "echo" => answer_text(server, request, arguments.text("text")),
        "env" => answer_text(
            server,
            request,
            &std::env::var(arguments.text("name")).unwrap_or_else(|_| "(unset)".to_owned()),
        ),
        "pid" => answer_text(server, request, &std::process::id().to_string()),
        "grandchild" => answer_text(server, request, &server.grandchild.unwrap_or(0).to_string()),
        "received" => answer_text(server, request, &String::from_utf8_lossy(&request.line)),
        "peak" => answer_text(server, request, &server.state().peak.to_string()),
        "cancelled" => answer_text(server, request, &json!(server.state().cancelled).to_string()),
        "sleep" => {
            std::thread::sleep(Duration::from_millis(arguments.number("ms")));
            answer_text(server, request, "slept");
        }
        "log" => {
            let _ = writeln!(std::io::stderr(), "{}", arguments.text("text"));
            answer_text(server, request, "logged");
        }
        "fail" => {
            let result =
                json!({"content": [{"type": "text", "text": arguments.text("text")}], "isError": true});
            server.answer(&request.id, &complete(server, result));
        }
        "count" => {
            let count = script::increment(&PathBuf::from(arguments.text("file")));
            match arguments.text("then") {
                "crash" => exit(request),
                "hang" => loop {
                    std::thread::park();
                },
                _ => std::thread::sleep(Duration::from_millis(arguments.number("ms"))),
            }
            let mut result = text_result(server, &count.to_string());
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
        "crash" | "exit" => exit(request),
        records::RECORD => records::record(server, request),
        "allocate" => allocate(server, request, &arguments),
        _ if extensions::run(server, request, name) => {}
        _ => run_protocol_tool(server, request, name, &arguments),
    }
}

/// Runs a tool that is about the protocol itself.
fn run_protocol_tool(server: &Server, request: &Request, name: &str, arguments: &Arguments<'_>) {
    match name {
        "progress" => progress(server, request, arguments.number("steps"), arguments.number("ms")),
        "reply" => {
            match answers::malformed_answer(&request.id, arguments.text("form"), arguments.size("bytes")) {
                Some(line) => server.write(&line),
                None => server.refuse(&request.id, -32602, "unknown form"),
            }
        }
        "raw" => answer_raw(server, request, arguments.text("json")),
        "deep" => {
            let open = "[".repeat(arguments.size("levels"));
            let close = "]".repeat(arguments.size("levels"));
            answer_raw(server, request, &format!(r#"{{"content":[],"deep":{open}{close}}}"#));
        }
        "ping" => request_with_same_id(server, request),
        "ask" => ask_client(server, request, arguments),
        "update" => answer_text(server, request, &offers::update(server, arguments.text("uri")).to_string()),
        "send_log" => {
            let params = json!({"level": arguments.text("level"), "data": arguments.text("text")});
            server.notify("notifications/message", &params);
            answer_text(server, request, "sent");
        }
        "remember" => {
            let remembered = {
                let mut state = server.state();
                state.remembered.push(arguments.text("text").to_owned());
                state.remembered.join(" ")
            };
            answer_text(server, request, &remembered);
        }
        "cwd" => {
            let folder = std::env::current_dir().unwrap_or_default();
            answer_text(server, request, &folder.display().to_string());
        }
        "client_capabilities" => {
            let capabilities = server.state().client_capabilities.to_string();
            answer_text(server, request, &capabilities);
        }
        "mirror" => answer_text(server, request, arguments.text("region")),
        "close_stdin" => {
            // The read in progress keeps the old input open, so one more line is received.
            let replaced = File::open("/dev/null").is_ok_and(|null| rustix::stdio::dup2_stdin(null).is_ok());
            answer_text(server, request, if replaced { "closed" } else { "still open" });
        }
        "notify_list_changed" => {
            server.state().added += usize::from(request.params["arguments"]["unchanged"] != true);
            server.notify("notifications/tools/list_changed", &json!({}));
            answer_text(server, request, "changed");
        }
        "flood_notifications" => {
            for count in 0..arguments.number("n") {
                server.notify("notifications/message", &json!({"level": "info", "data": count}));
            }
            answer_text(server, request, "flooded");
        }
        _ if name.starts_with("extra_") || name.starts_with("added_") => answer_text(server, request, name),
        _ => server.refuse(&request.id, -32602, &format!("Unknown tool: {name}")),
    }
}

pub(crate) fn answer_text(server: &Server, request: &Request, text: &str) {
    server.answer(&request.id, &text_result(server, text));
}

/// Returns a result with this text.
pub(crate) fn text_result(server: &Server, text: &str) -> Value {
    complete(server, json!({"content": [{"type": "text", "text": text}]}))
}

fn complete(server: &Server, mut result: Value) -> Value {
    if server.script.era.is_stateless() {
        result["resultType"] = "complete".into();
    }
    result
}

/// Answers with `result`, byte for byte.
pub(crate) fn answer_raw(server: &Server, request: &Request, result: &str) {
    server.write(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, request.id).as_bytes());
}

/// Exits during the call; `crash` writes to stderr first.
fn exit(request: &Request) -> ! {
    let code = request.params["arguments"]["code"].as_i64().and_then(|code| i32::try_from(code).ok());
    if request.params["name"] == "crash" {
        let _ = writeln!(std::io::stderr(), "thread panicked\ncrashing on purpose");
    }
    std::process::exit(code.unwrap_or(101))
}

/// Allocates memory and keeps it; then answers, or hangs.
fn allocate(server: &Server, request: &Request, arguments: &Arguments<'_>) {
    let memory = vec![1u8; arguments.size("bytes")];
    std::mem::forget(memory);
    while arguments.text("then") == "hang" {
        std::thread::park();
    }
    answer_text(server, request, "allocated");
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
    // Unknown and late tokens: the gateway must drop both notifications.
    server.notify("notifications/progress", &json!({"progressToken": 999_999, "progress": 1}));
    answer_text(server, request, &format!("{steps} steps"));
    server.notify("notifications/progress", &json!({"progressToken": token, "progress": steps + 1}));
}

/// Sends a request to the client during the call, in the call's era, and answers with its response. In a session the
/// message "never mind" is cancelled immediately.
fn ask_client(server: &Server, request: &Request, arguments: &Arguments<'_>) {
    let method = arguments.text("method");
    let message = arguments.text("message");
    let params = match method {
        "elicitation/create" => {
            json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}})
        }
        _ => json!({}),
    };
    let stateless = request.params["_meta"]["io.modelcontextprotocol/protocolVersion"].is_string();
    // Servers of either SDK can ask in one way only.
    match arguments.text("via") {
        "request" if stateless => return server.refuse(&request.id, -32603, "no back-channel"),
        "result" if !stateless => return server.refuse(&request.id, -32603, "no input_required results"),
        _ => {}
    }
    if stateless {
        let response = &request.params["inputResponses"]["q"];
        let own_state = std::process::id().to_string();
        if response.is_null() {
            let requests = json!({"q": {"method": method, "params": params}});
            let result =
                json!({"resultType": "input_required", "inputRequests": requests, "requestState": own_state});
            return server.answer(&request.id, &result);
        }
        if request.params["requestState"] != own_state {
            return server.refuse(&request.id, -32602, "Invalid or expired requestState");
        }
        return answer_text(server, request, &response.to_string());
    }
    let id = json!(format!("ask-{}", request.id));
    let question = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
    server.write(question.to_string().as_bytes());
    if message == "never mind" {
        server.notify("notifications/cancelled", &json!({"requestId": id}));
        return answer_text(server, request, message);
    }
    let answer = server.wait_for_client(&id, 1).pop().unwrap_or_default();
    let outcome = if answer["error"].is_object() { &answer["error"] } else { &answer["result"] };
    answer_text(server, request, &outcome.to_string());
}

/// Sends two requests under the id of the call and answers with the client's responses.
fn request_with_same_id(server: &Server, request: &Request) {
    for method in ["ping", "no/such/method"] {
        server.write(json!({"jsonrpc": "2.0", "id": request.id, "method": method}).to_string().as_bytes());
    }
    let responses = server.wait_for_client(&request.id, 2);
    answer_text(server, request, &json!(responses).to_string());
}
