//! The conversation: which messages are answered, in which era, and what is remembered between them.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::script::{Era, Script};
use crate::{answers, ledger, offers, tools};

/// Lines on stdout that are no messages.
pub(crate) const NOISE: &[u8] =
    b"Welcome to fake-server!\n\n\x1b[32mready\x1b[0m\n42\n[1, 2]\n{\"half\": \n\xff\xfe\ntrue\n";

/// The server, shared by the threads that answer.
pub(crate) struct Server {
    pub(crate) script: Script,
    pub(crate) grandchild: Option<u32>,
    state: Mutex<State>,
    /// Rung when the other side answered something.
    replied: Condvar,
}

/// What is remembered between messages.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) session_open: bool,
    /// Tools that were added since the start.
    pub(crate) added: usize,
    /// Ids of requests that were taken back.
    pub(crate) cancelled: Vec<Value>,
    /// Calls being worked on now, and the most there ever were at a time.
    pub(crate) in_flight: usize,
    pub(crate) peak: usize,
    /// Addresses whose changes somebody wants to hear of, each with the stream it was asked for on, if it was.
    pub(crate) subscribed: Vec<(String, Value)>,
    /// What the other side answered to our own requests.
    pub(crate) replies: HashMap<String, Vec<Value>>,
    /// How often one of the resources was read that last.
    pub(crate) reads: u64,
    /// What clients had it keep in mind.
    pub(crate) kept: Vec<String>,
    /// What its client said it can, when it opened a session.
    pub(crate) declared: Value,
}

/// One request, as a thread answers it.
pub(crate) struct Request {
    pub(crate) id: Value,
    pub(crate) params: Value,
    /// The whole line as it came.
    pub(crate) line: Vec<u8>,
}

impl Server {
    pub(crate) fn new(script: Script, grandchild: Option<u32>) -> Arc<Self> {
        Arc::new(Self { script, grandchild, state: Mutex::default(), replied: Condvar::new() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one line from the client.
    pub(crate) fn receive(self: &Arc<Self>, line: Vec<u8>) {
        let Ok(message) = serde_json::from_slice::<Value>(&line) else { return };
        if self.script.never_answer_handshake {
            return;
        }
        let (id, method) = (message["id"].clone(), message["method"].as_str().unwrap_or_default().to_owned());
        match method.as_str() {
            "" => self.heard(&id, message),
            "notifications/initialized" => self.state().session_open = true,
            "notifications/cancelled" => self.state().cancelled.push(message["params"]["requestId"].clone()),
            _ if id.is_null() => {}
            _ => self.asked(&method, Request { id, params: message["params"].clone(), line }),
        }
    }

    fn heard(&self, id: &Value, message: Value) {
        self.state().replies.entry(id.to_string()).or_default().push(message);
        self.replied.notify_all();
    }

    /// Waits for `count` answers to what we asked under `id`.
    pub(crate) fn replies(&self, id: &Value, count: usize) -> Vec<Value> {
        let enough =
            |state: &mut State| state.replies.get(&id.to_string()).is_none_or(|got| got.len() < count);
        let patience = Duration::from_secs(5);
        let waited = self.replied.wait_timeout_while(self.state(), patience, enough);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.replies.remove(&id.to_string()).unwrap_or_default()
    }

    fn asked(self: &Arc<Self>, method: &str, request: Request) {
        let era = self.script.era;
        match method {
            "server/discover" if era == Era::DiesOnProbe => {
                let _ = writeln!(std::io::stderr(), "expected initialize, got server/discover");
                std::process::exit(1);
            }
            "server/discover" if era == Era::SilentOnProbe => {}
            "server/discover" if era.is_stateless() => self.answer(&request.id, &answers::discovered()),
            "initialize" if era.has_sessions() => {
                self.state().declared = request.params["capabilities"].clone();
                self.answer(&request.id, &answers::welcome(&request.params));
            }
            "ping" if era.has_sessions() => self.answer(&request.id, &json!({})),
            "tools/list" | "tools/call" => match self.refusal(&request.params) {
                Some(why) => self.refuse(&request.id, -32602, why),
                None if method == "tools/list" => self.list(&request),
                None => self.call(request),
            },
            "subscriptions/listen" if era.is_stateless() => offers::listen(self, &request),
            _ if offers::METHODS.contains(&method) => match self.refusal(&request.params) {
                Some(why) => self.refuse(&request.id, -32602, why),
                None => offers::answer(self, method, &request),
            },
            _ => self.refuse(&request.id, -32601, "Method not found"),
        }
    }

    /// A request must belong to an era that is spoken here, and to a session that is open.
    fn refusal(&self, params: &Value) -> Option<&'static str> {
        let revision = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
        let capabilities = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        let claims_stateless = revision == "2026-07-28" && capabilities.is_object();
        match self.script.era {
            era if claims_stateless && era.is_stateless() => None,
            Era::Stateless => Some("the request lacks what its era needs in _meta"),
            _ if !revision.is_null() => Some("a session-era server saw stateless _meta"),
            _ if !self.state().session_open => Some("the session is not open"),
            _ => None,
        }
    }

    fn list(&self, request: &Request) {
        ledger::note(&self.script, "list");
        let mut all = tools::definitions(self.script.tools, self.state().added);
        all.extend(self.script.ledger.is_some().then(ledger::definition));
        let described = self.script.describe.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        if let Some(text) = described {
            all[0]["description"] = text.into();
        }
        let from =
            request.params["cursor"].as_str().and_then(|cursor| cursor.parse().ok()).unwrap_or(0_usize);
        let size = if self.script.page_size == 0 { all.len() } else { self.script.page_size };
        let page: Vec<&Value> = all.iter().skip(from).take(size).collect();
        let mut result = json!({"tools": page});
        if from + size < all.len() {
            result["nextCursor"] = (from + size).to_string().into();
        }
        if self.script.era.is_stateless() {
            result["resultType"] = "complete".into();
            result["ttlMs"] = 0.into();
            result["cacheScope"] = "private".into();
        }
        self.answer(&request.id, &result);
    }

    fn call(self: &Arc<Self>, request: Request) {
        let server = self.clone();
        {
            let mut state = server.state();
            state.in_flight += 1;
            state.peak = state.peak.max(state.in_flight);
        }
        std::thread::spawn(move || {
            tools::run(&server, &request);
            server.state().in_flight -= 1;
        });
    }

    pub(crate) fn answer(&self, id: &Value, result: &Value) {
        self.write(json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string().as_bytes());
    }

    pub(crate) fn refuse(&self, id: &Value, code: i32, message: &str) {
        let error = json!({"code": code, "message": message});
        self.write(json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string().as_bytes());
    }

    pub(crate) fn notify(&self, method: &str, params: &Value) {
        self.write(json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string().as_bytes());
    }

    /// Writes one line, in one piece.
    pub(crate) fn write(&self, line: &[u8]) {
        let mut out = std::io::stdout().lock();
        let noise = if self.script.stdout_noise { NOISE } else { b"" };
        let written =
            out.write_all(noise).and_then(|()| out.write_all(line)).and_then(|()| out.write_all(b"\n"));
        // Nobody reads any more: the end of our input follows.
        let _ = written.and_then(|()| out.flush());
    }
}
