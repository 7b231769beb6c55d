//! MCP clients of both eras, over HTTP and over a pipe.

use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::{Value, json};

use crate::deadline::{self, HANG_TIMEOUT, Lines};
use crate::http::{self, Response, Stream};

/// Which rules a client follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// A handshake, then a session.
    Session,
    /// Everything in each request.
    Stateless,
}

/// The revision of each era that clients here speak.
pub const fn revision(era: Era) -> &'static str {
    match era {
        Era::Session => "2025-11-25",
        Era::Stateless => "2026-07-28",
    }
}

/// A request as a client of this era writes it.
pub fn message(era: Era, id: &Value, method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    if era == Era::Stateless {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = revision(era).into();
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({"name": "e2e", "version": "1"});
    }
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn hello(revision: &str) -> Value {
    let client = json!({"name": "e2e", "version": "1"});
    let able = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    json!({"protocolVersion": revision, "capabilities": able, "clientInfo": client})
}

/// A client over HTTP.
#[derive(Debug)]
pub struct HttpClient {
    address: SocketAddr,
    path: String,
    era: Era,
    /// Its session, if its era has them.
    pub session: Option<String>,
    next: u64,
}

impl HttpClient {
    /// A client of this era at `path`, its session opened.
    pub fn new(address: SocketAddr, path: &str, era: Era) -> Self {
        match era {
            Era::Session => Self::session(address, path, revision(era)),
            Era::Stateless => Self { address, path: path.to_owned(), era, session: None, next: 0 },
        }
    }

    /// A client in a session of this revision.
    pub fn session(address: SocketAddr, path: &str, revision: &str) -> Self {
        let mut client = Self { address, path: path.to_owned(), era: Era::Session, session: None, next: 0 };
        {
            let response = client.request("initialize", &hello(revision));
            assert_eq!(response.status, 200, "{}", response.text());
            client.session = Some(response.header("mcp-session-id").expect("a session id").to_owned());
            let told = client.notify("notifications/initialized", &json!({}));
            assert_eq!(told.status, 202, "{}", told.text());
        }
        client
    }

    /// The headers that go with a request.
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

    /// Sends a request and leaves the answer under way.
    pub fn open(&mut self, method: &str, params: &Value) -> Stream {
        self.next += 1;
        let body = message(self.era, &self.next.into(), method, params).to_string();
        let named = ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str());
        self.post(method, named, body.as_bytes())
    }

    /// The id of the last request.
    pub fn last_id(&self) -> u64 {
        self.next
    }

    /// Sends a request and reads the answer.
    pub fn request(&mut self, method: &str, params: &Value) -> Response {
        self.open(method, params).finish()
    }

    /// Sends a body that is written already, as the era's headers go with it.
    pub fn raw(&self, method: &str, name: Option<&str>, body: &str) -> Response {
        self.post(method, name, body.as_bytes()).finish()
    }

    /// As [`HttpClient::request`], with `_meta` as it is written, but for the revision.
    pub fn request_as_written(&mut self, method: &str, params: &Value) -> Response {
        self.next += 1;
        let mut params = params.clone();
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = revision(self.era).into();
        let body = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        self.post(method, params["name"].as_str(), body.to_string().as_bytes()).finish()
    }

    /// Sends a body in a session, under another revision than usual.
    pub fn raw_of(&self, revision: &str, body: &str) -> Response {
        let mut headers = self.headers("", None);
        headers.retain(|(name, _)| name != "MCP-Protocol-Version");
        headers.push(("MCP-Protocol-Version".to_owned(), revision.to_owned()));
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        http::request(self.address, "POST", &self.path, &headers, body.as_bytes())
    }

    /// Says something that wants no answer.
    pub fn notify(&self, method: &str, params: &Value) -> Response {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string();
        self.post(method, None, body.as_bytes()).finish()
    }

    /// A GET or DELETE on the endpoint with the era's headers.
    pub fn bare(&self, method: &str) -> Stream {
        let headers = self.headers("", None);
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        http::open(self.address, method, &self.path, &headers, b"")
    }

    /// Calls a tool; the whole answer.
    pub fn call(&mut self, tool: &str, arguments: &Value) -> Value {
        let response = self.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        let message = response.message();
        assert_eq!(message["id"], self.next, "{} {}", response.status, response.text());
        message
    }

    /// Calls a tool; the text of its result.
    pub fn text(&mut self, tool: &str, arguments: &Value) -> String {
        let answer = self.call(tool, arguments);
        answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text in {answer}"))
            .to_owned()
    }

    /// The names of all tools.
    pub fn tools(&mut self) -> Vec<String> {
        let answer = self.request("tools/list", &json!({})).message();
        names(&answer)
    }
}

/// How many tools these servers of a gateway list, each for itself.
pub fn tools_of(address: SocketAddr, servers: [&str; 2]) -> usize {
    let of = |server| HttpClient::new(address, &format!("/mcp/s/{server}"), Era::Stateless).tools().len();
    servers.map(of).iter().sum()
}

/// The names in an answer to `tools/list`.
pub fn names(answer: &Value) -> Vec<String> {
    let tools = answer["result"]["tools"].as_array().unwrap_or_else(|| panic!("no tools in {answer}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// A client that starts a command and speaks over its pipes.
#[derive(Debug)]
pub struct PipeClient {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines,
    era: Era,
    next: u64,
}

impl PipeClient {
    /// Starts the command and opens a session if the era has them.
    pub fn new(command: Command, era: Era) -> Self {
        match era {
            Era::Session => Self::session(command, revision(era)),
            Era::Stateless => Self::start(command, era),
        }
    }

    /// A client in a session of this revision.
    pub fn session(command: Command, revision: &str) -> Self {
        let mut client = Self::start(command, Era::Session);
        let answer = client.request("initialize", &hello(revision));
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

    /// The process it started.
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

    /// Sends a request and does not wait; its id.
    pub fn send(&mut self, method: &str, params: &Value) -> u64 {
        self.next += 1;
        self.write(&message(self.era, &self.next.into(), method, params).to_string());
        self.next
    }

    /// The next message; `None` at the end.
    pub fn read(&mut self) -> Option<Value> {
        let line = self.output.next_line()?;
        Some(serde_json::from_str(&line).unwrap_or_else(|_| panic!("not a message: {line:?}")))
    }

    /// Sends a request and reads up to its answer.
    pub fn request(&mut self, method: &str, params: &Value) -> Value {
        let id = self.send(method, params);
        loop {
            let message = self.read().expect("an answer before the end");
            if message["id"] == id && message["method"].is_null() {
                return message;
            }
        }
    }

    /// Calls a tool; the text of its result.
    pub fn text(&mut self, tool: &str, arguments: &Value) -> String {
        let answer = self.request("tools/call", &json!({"name": tool, "arguments": arguments}));
        answer["result"]["content"][0]["text"]
            .as_str()
            .unwrap_or_else(|| panic!("no text in {answer}"))
            .to_owned()
    }

    /// Closes the pipe.
    pub fn hang_up(&mut self) {
        self.input = None;
    }

    /// Whether the command has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for PipeClient {
    fn drop(&mut self) {
        self.hang_up();
        if deadline::try_wait_for(&mut self.child, HANG_TIMEOUT).is_none() {
            let _ = self.child.kill();
            assert!(std::thread::panicking(), "the command did not end after its input");
        }
    }
}
