//! MCP clients of both eras, over HTTP and over pipes.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};
pub use toolcrib::Era;

use crate::deadline::{self, HANG_TIMEOUT, Lines};
use crate::http::{self, Response, Stream};

/// Returns the protocol revision that clients of an era use.
pub const fn revision(era: Era) -> &'static str {
    match era {
        Era::Stateless => "2026-07-28",
        _ => "2025-11-25",
    }
}

/// Returns a request as a client of this era writes it.
pub fn message(era: Era, id: &Value, method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    if era == Era::Stateless {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = revision(era).into();
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({"name": "e2e", "version": "1"});
    }
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn session_capabilities() -> Value {
    json!({"elicitation": {}, "sampling": {}, "roots": {}})
}

fn initialize_params(revision: &str, capabilities: &Value) -> Value {
    let client = json!({"name": "e2e", "version": "1"});
    json!({"protocolVersion": revision, "capabilities": capabilities, "clientInfo": client})
}

/// A client over HTTP.
#[derive(Debug)]
pub struct HttpClient {
    address: SocketAddr,
    path: String,
    era: Era,
    /// Its session id, if it has a session.
    pub session: Option<String>,
    /// The result of `initialize`, if it has a session.
    pub initialize_result: Value,
    /// The capabilities that it declares with stateless requests.
    capabilities: Value,
    next: u64,
}

impl HttpClient {
    /// Creates a client of this era at `path` and opens its session, if the era has sessions.
    pub fn new(address: SocketAddr, path: &str, era: Era) -> Self {
        let capabilities = if era == Era::Session { session_capabilities() } else { json!({}) };
        Self::with_capabilities(address, path, era, &capabilities)
    }

    /// Like [`HttpClient::new`], with these capabilities.
    pub fn with_capabilities(address: SocketAddr, path: &str, era: Era, capabilities: &Value) -> Self {
        let client = Self {
            address,
            path: path.to_owned(),
            era,
            session: None,
            initialize_result: Value::Null,
            capabilities: capabilities.clone(),
            next: 0,
        };
        match era {
            Era::Session => client.initialize(revision(era)),
            _ => client,
        }
    }

    /// Opens a session of this revision.
    pub fn session(address: SocketAddr, path: &str, revision: &str) -> Self {
        let client = Self {
            address,
            path: path.to_owned(),
            era: Era::Session,
            session: None,
            initialize_result: Value::Null,
            capabilities: session_capabilities(),
            next: 0,
        };
        client.initialize(revision)
    }

    fn initialize(mut self, revision: &str) -> Self {
        let response = self.request("initialize", &initialize_params(revision, &self.capabilities));
        assert_eq!(response.status, 200, "{}", response.text());
        self.session = Some(response.header("mcp-session-id").expect("a session id").to_owned());
        self.initialize_result = response.message()["result"].clone();
        let accepted = self.notify("notifications/initialized", &json!({}));
        assert_eq!(accepted.status, 202, "{}", accepted.text());
        self
    }

    /// Returns the headers of a request.
    pub fn headers(&self, method: &str, name: Option<&str>) -> Vec<(String, String)> {
        let mut headers = vec![
            ("Content-Type".to_owned(), "application/json".to_owned()),
            ("Accept".to_owned(), "application/json, text/event-stream".to_owned()),
        ];
        if self.era == Era::Stateless {
            headers.push(("Mcp-Method".to_owned(), method.to_owned()));
            headers.extend(name.map(|name| ("Mcp-Name".to_owned(), name.to_owned())));
        }
        if self.era == Era::Stateless || self.session.is_some() {
            headers.push(("MCP-Protocol-Version".to_owned(), revision(self.era).to_owned()));
        }
        headers.extend(self.session.iter().map(|session| ("Mcp-Session-Id".to_owned(), session.clone())));
        headers
    }

    fn post(&self, method: &str, name: Option<&str>, body: &[u8]) -> Stream {
        let headers = self.headers(method, name);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        http::open(self.address, "POST", &self.path, &headers, body)
    }

    /// Sends a request and returns before the response is read.
    pub fn open(&mut self, method: &str, params: &Value) -> Stream {
        self.next += 1;
        let mut body = message(self.era, &self.next.into(), method, params);
        if self.era == Era::Stateless {
            body["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        let body = body.to_string();
        let named = ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str());
        self.post(method, named, body.as_bytes())
    }

    /// Returns the id of the last request.
    pub fn last_id(&self) -> u64 {
        self.next
    }

    /// Sends a request and reads the response.
    pub fn request(&mut self, method: &str, params: &Value) -> Response {
        self.open(method, params).finish()
    }

    /// Posts a body as it is, with the headers of the era.
    pub fn post_raw(&self, method: &str, name: Option<&str>, body: &str) -> Response {
        self.post(method, name, body.as_bytes()).finish()
    }

    /// Sends a request with the given `_meta`, to which only the revision is added.
    pub fn request_with_meta(&mut self, method: &str, params: &Value) -> Response {
        self.next += 1;
        let mut params = params.clone();
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = revision(self.era).into();
        let body = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        self.post(method, params["name"].as_str(), body.to_string().as_bytes()).finish()
    }

    /// Posts a body as it is in a session, with another revision in the header.
    pub fn post_raw_with_revision(&self, revision: &str, body: &str) -> Response {
        let mut headers = self.headers("", None);
        headers.retain(|(name, _)| name != "MCP-Protocol-Version");
        headers.push(("MCP-Protocol-Version".to_owned(), revision.to_owned()));
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        http::request(self.address, "POST", &self.path, &headers, body.as_bytes())
    }

    /// Sends a notification.
    pub fn notify(&self, method: &str, params: &Value) -> Response {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        self.post(method, None, body.as_bytes()).finish()
    }

    /// Sends a GET or DELETE to the endpoint, with the headers of the era.
    pub fn send_without_body(&self, method: &str) -> Stream {
        let headers = self.headers("", None);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        http::open(self.address, method, &self.path, &headers, b"")
    }

    /// Calls a tool and returns the response message.
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let response = self.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        let message = response.message();
        assert_eq!(message["id"], self.next, "{} {}", response.status, response.text());
        message
    }

    /// Calls a tool and returns the text of its result.
    pub fn text(&mut self, tool: &str, arguments: &Value) -> String {
        let answer = self.call(tool, arguments);
        answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text in {answer}"))
            .to_owned()
    }

    /// Returns the names of all tools, on all pages.
    pub fn tools(&mut self) -> Vec<String> {
        let mut names = Vec::new();
        let mut params = json!({});
        loop {
            let answer = self.request("tools/list", &params).message();
            names.extend(tool_names(&answer));
            match &answer["result"]["nextCursor"] {
                Value::Null => return names,
                cursor => params = json!({"cursor": cursor}),
            }
        }
    }
}

/// Returns the total number of tools at the endpoints of these servers.
pub fn count_tools(address: SocketAddr, servers: [&str; 2]) -> usize {
    let count = |server| HttpClient::new(address, &format!("/mcp/s/{server}"), Era::Stateless).tools().len();
    servers.map(count).iter().sum()
}

/// Returns the tool names in a response to `tools/list`.
pub fn tool_names(answer: &Value) -> Vec<String> {
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("no tools in {answer}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// A client that starts a command and communicates over its pipes.
#[derive(Debug)]
pub struct StdioClient {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines,
    era: Era,
    next: u64,
}

impl StdioClient {
    /// Starts the command and opens a session, if the era has sessions.
    pub fn new(command: Command, era: Era) -> Self {
        match era {
            Era::Session => Self::session(command, revision(era)),
            _ => Self::start(command, era),
        }
    }

    /// Starts the command and opens a session of this revision.
    pub fn session(command: Command, revision: &str) -> Self {
        Self::session_with_capabilities(command, revision, &session_capabilities())
    }

    /// Starts the command and opens a session of this revision with these capabilities.
    pub fn session_with_capabilities(command: Command, revision: &str, capabilities: &Value) -> Self {
        let mut client = Self::start(command, Era::Session);
        let answer = client.request("initialize", &initialize_params(revision, capabilities));
        assert_eq!(answer["result"]["protocolVersion"], revision, "{answer}");
        client.write(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string());
        client
    }

    fn start(mut command: Command, era: Era) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take();
        let output = Lines::new(child.stdout.take().unwrap());
        Self { child, input, output, era, next: 0 }
    }

    /// Returns the process id of the command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one line.
    pub fn write(&mut self, line: &str) {
        let input = self.input.as_mut().expect("an open pipe");
        input.write_all(line.as_bytes()).unwrap();
        input.write_all(b"\n").unwrap();
        input.flush().unwrap();
    }

    /// Sends a request without waiting for the response; returns its id.
    pub fn send(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        self.write(&message(self.era, &self.next.into(), method, params).to_string());
        self.next
    }

    /// Reads the next message; `None` at the end.
    pub fn read(&mut self) -> Option<Value> {
        let line = self.output.next_line()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line:?}")))
    }

    /// Sends a request and reads messages up to its response.
    pub fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        loop {
            let message = self.read().expect("an answer before the end");
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
        }
    }

    /// Calls a tool and returns the text of its result.
    pub fn text(&mut self, tool: &str, arguments: &Value) -> String {
        let answer = self.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text in {answer}"))
            .to_owned()
    }

    /// Closes the input of the command.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Returns whether the command has exited.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for StdioClient {
    fn drop(&mut self) {
        self.close_input();
        if deadline::try_wait_for(&mut self.child, HANG_TIMEOUT).is_none() {
            let _ = self.child.kill();
            assert!(std::thread::panicking(), "the command did not exit after its input was closed");
        }
    }
}
