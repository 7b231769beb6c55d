//! A remote server that speaks the eras that a test chooses. It asks in a session only by requests of its own, and
//! stateless clients only by results, and counts the handshakes.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use serde_json::{Value, json};
use test_support::WAIT_LIMIT;
use toolcrib::util::locks::IgnorePoison as _;

/// The eras that the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Speaks {
    Session,
    Stateless,
    Both,
}

/// A server on a port of its own. It runs until the test process ends.
pub(crate) struct RemoteServer {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    speaks: Speaks,
    initialized: AtomicUsize,
    discovered: AtomicUsize,
    /// Answers of clients to questions, by id.
    answers: Mutex<HashMap<String, Value>>,
    answered: Condvar,
}

/// One HTTP request.
struct Request {
    method: String,
    headers: HashMap<String, String>,
    message: Value,
}

impl RemoteServer {
    pub(crate) fn start(speaks: Speaks) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            speaks,
            initialized: AtomicUsize::new(0),
            discovered: AtomicUsize::new(0),
            answers: Mutex::default(),
            answered: Condvar::new(),
        });
        let server = Self { address, shared: shared.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = shared.clone();
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        server
    }

    /// Returns the config of a server `s` at this address.
    pub(crate) fn config(&self, more: &str) -> String {
        format!("[servers.s]\nurl = 'http://{}/mcp'\n{more}", self.address)
    }

    /// Returns how often `initialize` and `server/discover` were received.
    pub(crate) fn handshakes(&self) -> [usize; 2] {
        [&self.shared.initialized, &self.shared.discovered].map(|count| count.load(Ordering::SeqCst))
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        let Some(request) = read_request(&stream) else { return };
        let Request { method, headers, message } = request;
        match method.as_str() {
            "DELETE" => return write_response(&stream, 204, "", &Value::Null),
            "POST" => {}
            _ => return write_response(&stream, 405, "", &Value::Null),
        }
        if message["id"].is_null() {
            return write_response(&stream, 202, "", &Value::Null);
        }
        if message["method"].is_null() {
            self.answers.lock().ignore_poison().insert(message["id"].to_string(), message);
            self.answered.notify_all();
            return write_response(&stream, 202, "", &Value::Null);
        }
        let in_session = headers.contains_key("mcp-session-id");
        match message["method"].as_str().unwrap_or_default() {
            "initialize" => self.initialize(&stream, &message),
            "server/discover" => self.discover(&stream, &message),
            "tools/list" => {
                let tools = ["ask", "era", "refuse"]
                    .map(|name| json!({"name": name, "inputSchema": {"type": "object"}}));
                let result = json!({"resultType": "complete", "tools": tools, "ttlMs": 60000, "cacheScope": "private"});
                write_response(&stream, 200, "", &answer(&message, &result));
            }
            "tools/call" => self.call(&stream, &message, in_session),
            _ => write_response(&stream, 404, "", &refusal(&message, -32601, "no such method")),
        }
    }

    fn initialize(&self, stream: &TcpStream, message: &Value) {
        let number = self.initialized.fetch_add(1, Ordering::SeqCst);
        if self.speaks == Speaks::Stateless {
            return write_response(stream, 400, "", &refusal(message, -32601, "there are no sessions"));
        }
        let result = json!({
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "remote", "version": "1"},
        });
        write_response(stream, 200, &format!("Mcp-Session-Id: s-{number}\r\n"), &answer(message, &result));
    }

    fn discover(&self, stream: &TcpStream, message: &Value) {
        self.discovered.fetch_add(1, Ordering::SeqCst);
        if self.speaks == Speaks::Session {
            return write_response(stream, 400, "", &refusal(message, -32000, "no session id"));
        }
        let result = json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
            "ttlMs": 0, "cacheScope": "private",
        });
        write_response(stream, 200, "", &answer(message, &result));
    }

    fn call(&self, stream: &TcpStream, message: &Value, in_session: bool) {
        let text =
            |text: &str| json!({"resultType": "complete", "content": [{"type": "text", "text": text}]});
        match message["params"]["name"].as_str().unwrap_or_default() {
            "era" => {
                let era = if in_session { "session" } else { "stateless" };
                write_response(stream, 200, "", &answer(message, &text(era)));
            }
            "refuse" => {
                let refusal = refusal(message, 7, "Unknown prompt: nope");
                write_response(stream, 200, "", &refusal);
            }
            _ if in_session => {
                let question = json!({
                    "jsonrpc": "2.0", "id": format!("q-{}", message["id"]), "method": "elicitation/create",
                    "params": {"message": "sure?", "requestedSchema": {"type": "object", "properties": {}}},
                });
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
                write(stream, &format!("{head}data: {question}\n\n"));
                let given = self.wait_for_answer(&question["id"].to_string());
                write(stream, &format!("data: {}\n\n", answer(message, &text(&given))));
            }
            _ => {
                let given = &message["params"]["inputResponses"]["q"];
                let result = match given.is_null() {
                    true => json!({
                        "resultType": "input_required", "requestState": "mine",
                        "inputRequests": {"q": {"method": "elicitation/create", "params": {
                            "message": "sure?", "requestedSchema": {"type": "object", "properties": {}},
                        }}},
                    }),
                    false => text(&given.to_string()),
                };
                write_response(stream, 200, "", &answer(message, &result));
            }
        }
    }

    fn wait_for_answer(&self, id: &str) -> String {
        let answers = self.answers.lock().ignore_poison();
        let waited =
            self.answered.wait_timeout_while(answers, WAIT_LIMIT, |answers| !answers.contains_key(id));
        let (answers, _) = waited.ignore_poison();
        answers.get(id).map(|answer| answer["result"].to_string()).unwrap_or_default()
    }
}

fn answer(message: &Value, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": message["id"], "result": result})
}

fn refusal(message: &Value, code: i32, text: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": message["id"], "error": {"code": code, "message": text, "data": {"kept": [1.50]}}})
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let method = line.split(' ').next()?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let message = serde_json::from_slice(&body).unwrap_or_default();
    Some(Request { method, headers, message })
}

fn write_response(stream: &TcpStream, status: u16, headers: &str, message: &Value) {
    let body = if message.is_null() { String::new() } else { message.to_string() };
    let length = body.len();
    write(
        stream,
        &format!(
            "HTTP/1.1 {status} .\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        ),
    );
}

fn write(mut stream: &TcpStream, text: &str) {
    // A client that is gone notices nothing.
    let _ = stream.write_all(text.as_bytes());
}
