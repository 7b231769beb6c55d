//! A server whose answers are fixed, in either era.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use toolcrib::InProcess;

/// The key of the name and version of a server in `_meta`.
pub(crate) const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";

/// From a message of the client to the messages of the server.
type Respond = dyn Fn(&Value) -> Vec<Value> + Send + Sync;

/// A server that is one function: from a message of the client to the messages of the server.
pub(crate) struct RawServer {
    respond: Arc<Respond>,
    pub(crate) received: Arc<Mutex<Vec<Value>>>,
}

impl RawServer {
    pub(crate) fn new(respond: impl Fn(&Value) -> Vec<Value> + Send + Sync + 'static) -> Self {
        Self { respond: Arc::new(respond), received: Arc::default() }
    }
}

impl InProcess for RawServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let respond = self.respond.clone();
        let received = self.received.clone();
        Box::pin(async move {
            let (reads, mut writes) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reads).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let message: Value = serde_json::from_str(&line).unwrap();
                received.lock().unwrap().push(message.clone());
                for message in respond(&message) {
                    if writes.write_all(format!("{message}\n").as_bytes()).await.is_err() {
                        return;
                    }
                }
            }
        })
    }
}

pub(crate) fn response(request: &Value, member: &str, value: Value) -> Vec<Value> {
    let mut message = json!({"jsonrpc": "2.0", "id": request["id"]});
    message[member] = value;
    vec![message]
}

pub(crate) fn result(request: &Value, result: Value) -> Vec<Value> {
    response(request, "result", result)
}

pub(crate) fn error(request: &Value, error: Value) -> Vec<Value> {
    response(request, "error", error)
}

pub(crate) fn notification(method: &str, params: Value) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "method": method});
    message["params"] = params;
    message
}

pub(crate) fn text(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

pub(crate) fn info() -> Value {
    json!({"name": "greeter", "version": "1.2.3", "title": "Greeter", "websiteUrl": "https://example.com"})
}

/// A session server with pages, a log tool, a resource and questions.
pub(crate) fn respond_in_session(message: &Value) -> Vec<Value> {
    let params = &message["params"];
    match message["method"].as_str().unwrap_or_default() {
        "initialize" => result(
            message,
            json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {"listChanged": false}, "resources": {"subscribe": true}, "experimental": {}},
                "serverInfo": info(),
                "instructions": "Be kind.",
            }),
        ),
        "tools/list" => list_tools(message),
        "resources/list" => result(message, json!({"resources": [{"uri": "note://a", "name": "a"}]})),
        "resources/templates/list" => error(message, json!({"code": -32601, "message": "Method not found"})),
        "resources/subscribe" if params["uri"] == "note://a" => result(message, json!({})),
        "tools/call" => call_tool(message),
        _ if message["id"].is_null() => Vec::new(),
        "" => answer_question(message),
        "prompts/list" => {
            error(message, json!({"code": -32601, "message": "No prompts here", "data": [1.0]}))
        }
        method => error(message, json!({"code": -32601, "message": method, "data": {"x": 1.50}})),
    }
}

pub(crate) fn list_tools(message: &Value) -> Vec<Value> {
    let tool = |name: &str| {
        let header = json!({"type": "string", "x-mcp-header": "Region"});
        json!({"name": name, "inputSchema": {"type": "object", "properties": {"region": header}}})
    };
    let names: &[&str] = &["log", "ask", "update", "meta", "hang", "cancelled", "one", "two"];
    match message["params"]["cursor"].as_str() {
        None => {
            let tools: Vec<Value> = names.iter().map(|name| tool(name)).collect();
            result(message, json!({"tools": tools, "nextCursor": "page+2=="}))
        }
        Some("page+2==") => result(message, json!({"tools": [tool("three")]})),
        Some("unlisted") => {
            result(message, json!({"tools": [tool("four"), tool("secret")], "nextCursor": "x"}))
        }
        Some(_) => error(message, json!({"code": -32602, "message": "Unknown cursor", "data": "d"})),
    }
}

pub(crate) fn call_tool(message: &Value) -> Vec<Value> {
    let params = &message["params"];
    match params["name"].as_str().unwrap() {
        "log" => {
            let line =
                |level: &str| notification("notifications/message", json!({"level": level, "data": level}));
            let mut messages = vec![line("debug"), line("error")];
            messages.extend(result(message, text("logged")));
            messages
        }
        "update" => {
            let mut messages = vec![notification(
                "notifications/resources/updated",
                json!({"uri": params["arguments"]["uri"], "title": "new", "_meta": {"k": 1}}),
            )];
            messages.extend(result(message, text("updated")));
            messages
        }
        "ask" => {
            let arguments = &params["arguments"];
            let asked = json!({"jsonrpc": "2.0", "id": format!("q{}", message["id"]), "method": arguments["method"], "params": arguments["params"]});
            vec![asked]
        }
        "meta" => result(message, text(&params.get("_meta").map_or("none".to_owned(), Value::to_string))),
        "hang" => Vec::new(),
        name => result(message, text(name)),
    }
}

/// Answers the call that asked with the answer of the client.
pub(crate) fn answer_question(message: &Value) -> Vec<Value> {
    let call: u64 = message["id"].as_str().unwrap()[1..].parse().unwrap();
    let answer = if message["error"].is_null() { &message["result"] } else { &message["error"] };
    result(&json!({"id": call}), text(&answer.to_string()))
}

/// A stateless server with one tool, which logs if it is asked to.
pub(crate) fn respond_stateless(message: &Value) -> Vec<Value> {
    let done = |mut members: Value| {
        members["resultType"] = "complete".into();
        members["ttlMs"] = 0.into();
        members["cacheScope"] = "private".into();
        result(message, members)
    };
    match message["method"].as_str().unwrap_or_default() {
        "server/discover" => done(json!({
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, "logging": {}},
            "_meta": {SERVER_INFO: info()},
        })),
        "tools/list" => {
            let header = json!({"type": "string", "x-mcp-header": "Region"});
            let schema = json!({"type": "object", "properties": {"region": header}});
            done(json!({"tools": [{"name": "one", "inputSchema": schema}], "x": [1.50]}))
        }
        "tools/call" => {
            let level = &message["params"]["_meta"]["io.modelcontextprotocol/logLevel"];
            let mut messages = Vec::new();
            if !level.is_null() {
                messages
                    .push(notification("notifications/message", json!({"level": "debug", "data": level})));
            }
            messages.extend(done(text("called")));
            messages
        }
        _ if message["id"].is_null() => Vec::new(),
        _ => error(message, json!({"code": -32601, "message": "Method not found"})),
    }
}
