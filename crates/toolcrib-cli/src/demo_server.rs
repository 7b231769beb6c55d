//! The small MCP servers that `demo` runs as real child processes: one message a line, session era.
//!
//! They are written the plain way, with blocking reads and nothing else, so that what the demo shows is the gateway's
//! doing.

use std::io::{self, BufRead as _, Write as _};

use serde_json::{Value, json};
use toolcrib::wire::dialect::client::{HELLO, PING};
use toolcrib::wire::message::code;
use toolcrib::wire::revision::{Era, Revision};

use crate::cli::Role;
use crate::exit::Exit;

/// Serves until stdin ends. The crashing one does not get that far.
pub(crate) fn run(role: Role) -> io::Result<Exit> {
    let mut server = Server { role, count: 0 };
    writeln!(io::stderr(), "demo server `{}` is up, pid {}", server.name(), std::process::id())?;
    if role == Role::Crashing {
        writeln!(io::stderr(), "crashing on purpose")?;
        return Ok(Exit::Unexpected);
    }
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
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
    Ok(Exit::Fine)
}

struct Server {
    role: Role,
    count: i64,
}

/// What a request is answered with.
enum Said {
    Result(Value),
    Error(i32, String),
    /// Nothing, ever: the caller waits.
    Nothing,
}

impl Server {
    fn name(&self) -> &'static str {
        match self.role {
            Role::Echo => "echo",
            Role::Counter => "counter",
            Role::Crashing => "crashing",
        }
    }

    fn reply(&mut self, message: &Value) -> Option<Value> {
        let (id, method) = (message.get("id")?, message["method"].as_str()?);
        let said = match method {
            HELLO => Said::Result(self.hello()),
            PING => Said::Result(json!({})),
            "tools/list" => Said::Result(json!({"tools": self.tools()})),
            "tools/call" => self.call(&message["params"]),
            _ => Said::Error(code::METHOD_NOT_FOUND, format!("Method not found: {method}")),
        };
        match said {
            Said::Result(result) => Some(json!({"jsonrpc": "2.0", "id": id, "result": result})),
            Said::Error(code, message) => {
                Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
            }
            Said::Nothing => None,
        }
    }

    fn hello(&self) -> Value {
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
            Role::Echo => json!([
                tool("say", "Says what it is told.", json!({"text": {"type": "string"}})),
                tool("fail", "Says error, as a tool does.", json!({"text": {"type": "string"}})),
            ]),
            Role::Counter => json!([
                tool("add", "Adds to a number it keeps in memory.", json!({"n": {"type": "integer"}})),
                tool("ponder", "Thinks about it, for ever.", json!({})),
            ]),
            Role::Crashing => json!([]),
        }
    }

    fn call(&mut self, params: &Value) -> Said {
        let (name, arguments) = (params["name"].as_str().unwrap_or_default(), &params["arguments"]);
        let text = |text: &str, failed: bool| {
            Said::Result(json!({"content": [{"type": "text", "text": text}], "isError": failed}))
        };
        match (self.role, name) {
            (Role::Echo, "say" | "fail") => match arguments["text"].as_str() {
                Some(told) => text(told, name == "fail"),
                None => text("`text` must be a string", true),
            },
            (Role::Counter, "add") => {
                self.count += arguments["n"].as_i64().unwrap_or(1);
                text(&self.count.to_string(), false)
            }
            (Role::Counter, "ponder") => Said::Nothing,
            _ => Said::Error(code::INVALID_PARAMS, format!("Unknown tool: {name}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(server: &mut Server, method: &str, params: &Value) -> Option<Value> {
        server.reply(&json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params}))
    }

    #[test]
    fn they_speak_the_session_era_only() {
        let mut echo = Server { role: Role::Echo, count: 0 };
        let hello = ask(&mut echo, HELLO, &json!({})).unwrap();
        assert_eq!(hello["result"]["protocolVersion"], "2025-11-25");
        let probe = ask(&mut echo, "server/discover", &json!({})).unwrap();
        assert_eq!(probe["error"]["code"], -32601);
        assert!(echo.reply(&json!({"jsonrpc": "2.0", "method": "notifications/x"})).is_none());
    }

    #[test]
    fn they_do_what_their_tools_say() {
        let mut echo = Server { role: Role::Echo, count: 0 };
        let said =
            ask(&mut echo, "tools/call", &json!({"name": "say", "arguments": {"text": "hi"}})).unwrap();
        assert_eq!(said["result"]["content"][0]["text"], "hi");
        let mut counter = Server { role: Role::Counter, count: 2 };
        let added = ask(&mut counter, "tools/call", &json!({"name": "add", "arguments": {"n": 3}})).unwrap();
        assert_eq!(added["result"]["content"][0]["text"], "5");
        assert!(ask(&mut counter, "tools/call", &json!({"name": "ponder"})).is_none());
    }
}
