//! The MCP servers that `demo` runs as child processes. They speak the session era over stdio with blocking reads.

use std::io::{self, BufRead as _, Write as _};

use serde_json::{Value, json};
use toolcrib::protocol::era::client::{INITIALIZE, PING};
use toolcrib::protocol::jsonrpc::code;
use toolcrib::protocol::versions::{Era, Revision};

use crate::cli::DemoRole;
use crate::exit::ExitStatus;

/// Serves until stdin ends. The crashing server exits immediately.
pub(crate) fn run(role: DemoRole) -> io::Result<ExitStatus> {
    let mut server = DemoServer { role, count: 0 };
    writeln!(io::stderr(), "demo server `{}` is up, pid {}", server.name(), std::process::id())?;
    if role == DemoRole::Crashing {
        writeln!(io::stderr(), "crashing on purpose")?;
        return Ok(ExitStatus::Failure);
    }
    let mut input = io::stdin().lock();
    let mut output = io::stdout().lock();
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        if let Some(reply) =
            serde_json::from_str(&line).ok().and_then(|message: Value| server.reply(&message))
        {
            writeln!(output, "{reply}")?;
            output.flush()?;
        }
        line.clear();
    }
    Ok(ExitStatus::Success)
}

struct DemoServer {
    role: DemoRole,
    count: i64,
}

/// The reply to a request.
enum DemoReply {
    Result(Value),
    Error(i32, String),
    /// No reply; the caller waits until it gives up.
    Nothing,
}

impl DemoServer {
    fn name(&self) -> &'static str {
        match self.role {
            DemoRole::Echo => "echo",
            DemoRole::Counter => "counter",
            DemoRole::Crashing => "crashing",
        }
    }

    fn reply(&mut self, message: &Value) -> Option<Value> {
        let id = message.get("id")?;
        let method = message["method"].as_str()?;
        let reply = match method {
            INITIALIZE => DemoReply::Result(self.initialize_result()),
            PING => DemoReply::Result(json!({})),
            "tools/list" => DemoReply::Result(json!({"tools": self.tools()})),
            "tools/call" => self.call(&message["params"]),
            _ => DemoReply::Error(code::METHOD_NOT_FOUND, format!("Method not found: {method}")),
        };
        match reply {
            DemoReply::Result(result) => Some(json!({"jsonrpc": "2.0", "id": id, "result": result})),
            DemoReply::Error(code, message) => {
                Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
            }
            DemoReply::Nothing => None,
        }
    }

    fn initialize_result(&self) -> Value {
        json!({
            "protocolVersion": Revision::newest(Era::Session).as_str(),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": format!("demo-{}", self.name()), "version": env!("CARGO_PKG_VERSION")},
        })
    }

    fn tools(&self) -> Value {
        let tool = |name: &str, description: &str, properties: Value| {
            let schema = json!({"type": "object", "properties": properties});
            json!({"name": name, "description": description, "inputSchema": schema})
        };
        match self.role {
            DemoRole::Echo => json!([
                tool("say", "Returns the text.", json!({"text": {"type": "string"}})),
                tool("fail", "Returns the text as a tool error.", json!({"text": {"type": "string"}})),
            ]),
            DemoRole::Counter => json!([
                tool("add", "Adds to a number that it keeps in memory.", json!({"n": {"type": "integer"}})),
                tool("ponder", "Never returns.", json!({})),
            ]),
            DemoRole::Crashing => json!([]),
        }
    }

    fn call(&mut self, params: &Value) -> DemoReply {
        let name = params["name"].as_str().unwrap_or_default();
        let arguments = &params["arguments"];
        let text = |text: &str, is_error: bool| {
            DemoReply::Result(json!({"content": [{"type": "text", "text": text}], "isError": is_error}))
        };
        match (self.role, name) {
            (DemoRole::Echo, "say" | "fail") => match arguments["text"].as_str() {
                Some(input) => text(input, name == "fail"),
                None => text("`text` must be a string", true),
            },
            (DemoRole::Counter, "add") => {
                self.count += arguments["n"].as_i64().unwrap_or(1);
                text(&self.count.to_string(), false)
            }
            (DemoRole::Counter, "ponder") => DemoReply::Nothing,
            _ => DemoReply::Error(code::INVALID_PARAMS, format!("Unknown tool: {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(server: &mut DemoServer, method: &str, params: &Value) -> Option<Value> {
        server.reply(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
    }

    #[test]
    fn demo_servers_speak_session_era_only() {
        let mut echo = DemoServer { role: DemoRole::Echo, count: 0 };
        let initialized = request(&mut echo, INITIALIZE, &json!({})).unwrap();
        assert_eq!(initialized["result"]["protocolVersion"], "2025-11-25");
        let probe = request(&mut echo, "server/discover", &json!({})).unwrap();
        assert_eq!(probe["error"]["code"], -32601);
        assert!(echo.reply(&json!({"jsonrpc": "2.0", "method": "notifications/x"})).is_none());
    }

    #[test]
    fn demo_tools_return_documented_results() {
        let mut echo = DemoServer { role: DemoRole::Echo, count: 0 };
        let echoed =
            request(&mut echo, "tools/call", &json!({"name": "say", "arguments": {"text": "hi"}})).unwrap();
        assert_eq!(echoed["result"]["content"][0]["text"], "hi");
        let mut counter = DemoServer { role: DemoRole::Counter, count: 2 };
        let added =
            request(&mut counter, "tools/call", &json!({"name": "add", "arguments": {"n": 3}})).unwrap();
        assert_eq!(added["result"]["content"][0]["text"], "5");
        assert!(request(&mut counter, "tools/call", &json!({"name": "ponder"})).is_none());
    }
}
