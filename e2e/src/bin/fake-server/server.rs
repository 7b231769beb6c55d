//! The server's messages: which ones are answered, in which era, and the state between them.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::script::{Era, Script};
use crate::{answers, extensions, offers, records, tools};

/// Lines on stdout that are not messages.
pub(crate) const GARBAGE: &[u8] =
    b"Welcome to fake-server!\n\n\x1b[32mready\x1b[0m\n42\n[1, 2]\n{\"half\": \n\xff\xfe\ntrue\n";

/// The server, shared by the threads that answer calls.
pub(crate) struct Server {
    pub(crate) script: Script,
    pub(crate) grandchild: Option<u32>,
    state: Mutex<State>,
    /// Notified when the client answered a request of the server.
    client_answered: Condvar,
}

/// State between messages.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) session_open: bool,
    /// Number of tools added since the start.
    pub(crate) added: usize,
    /// Ids of cancelled requests.
    pub(crate) cancelled: Vec<Value>,
    /// Number of calls in flight.
    pub(crate) in_flight: usize,
    /// Largest number of calls in flight so far.
    pub(crate) peak: usize,
    /// URIs with the id of the stream they were subscribed on; `Null` for a session.
    pub(crate) subscriptions: Vec<(String, Value)>,
    /// The client's answers to requests of the server, by request id.
    pub(crate) client_answers: HashMap<String, Vec<Value>>,
    /// Number of reads of cacheable resources.
    pub(crate) reads: u64,
    /// Notifications of the client that belong to extensions.
    pub(crate) notifications: Vec<Value>,
    /// Texts stored by the tool `remember`.
    pub(crate) remembered: Vec<String>,
    /// The client's capabilities from `initialize`.
    pub(crate) client_capabilities: Value,
}

/// A request.
pub(crate) struct Request {
    pub(crate) id: Value,
    pub(crate) params: Value,
    /// The line as it was received.
    pub(crate) line: Vec<u8>,
}

impl Server {
    pub(crate) fn new(script: Script, grandchild: Option<u32>) -> Arc<Self> {
        Arc::new(Self { script, grandchild, state: Mutex::default(), client_answered: Condvar::new() })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles one line from the client.
    pub(crate) fn receive(self: &Arc<Self>, line: Vec<u8>) {
        let Ok(message) = serde_json::from_slice::<Value>(&line) else { return };
        if self.script.never_answer_handshake {
            return;
        }
        let id = message["id"].clone();
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        match method.as_str() {
            "" => self.store_client_answer(&id, message),
            "notifications/initialized" => self.state().session_open = true,
            "notifications/cancelled" => self.state().cancelled.push(message["params"]["requestId"].clone()),
            _ if id.is_null() => {
                let received = json!({"method": method, "params": message["params"]});
                self.state().notifications.push(received);
            }
            _ => self.handle_request(&method, Request { id, params: message["params"].clone(), line }),
        }
    }

    fn store_client_answer(&self, id: &Value, message: Value) {
        self.state().client_answers.entry(id.to_string()).or_default().push(message);
        self.client_answered.notify_all();
    }

    /// Waits for `count` answers of the client to the request `id`; returns fewer after 5 seconds.
    pub(crate) fn wait_for_client(&self, id: &Value, count: usize) -> Vec<Value> {
        let too_few =
            |state: &mut State| state.client_answers.get(&id.to_string()).is_none_or(|got| got.len() < count);
        let timeout = Duration::from_secs(5);
        let waited = self.client_answered.wait_timeout_while(self.state(), timeout, too_few);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.client_answers.remove(&id.to_string()).unwrap_or_default()
    }

    fn handle_request(self: &Arc<Self>, method: &str, request: Request) {
        let era = self.script.era;
        if let Some(error) = self.list_error(method) {
            return self
                .write(json!({"jsonrpc": "2.0", "id": request.id, "error": error}).to_string().as_bytes());
        }
        match method {
            "server/discover" if era == Era::ExitsOnProbe => {
                let _ = writeln!(std::io::stderr(), "expected initialize, got server/discover");
                std::process::exit(1);
            }
            "initialize" if era == Era::ExitsOnInitialize => {
                let _ = writeln!(std::io::stderr(), "expected server/discover, got initialize");
                std::process::exit(1);
            }
            "server/discover" if era == Era::SilentOnProbe => {}
            "server/discover" if era.is_stateless() => {
                let mut result = answers::discover_result(&self.script.instructions());
                extensions::add_capabilities(&self.script, &mut result);
                self.answer(&request.id, &result);
            }
            "initialize" if era.has_sessions() => {
                self.state().client_capabilities = request.params["capabilities"].clone();
                let mut result = answers::initialize_result(&request.params, &self.script.instructions());
                extensions::add_capabilities(&self.script, &mut result);
                self.answer(&request.id, &result);
            }
            "ping" if era.has_sessions() => self.answer(&request.id, &json!({})),
            "tools/list" | "tools/call" => match self.check_era(&request.params) {
                Some(error) => self.refuse(&request.id, -32602, error),
                None if method == "tools/list" => self.list(&request),
                None => self.call(request),
            },
            "subscriptions/listen" if era.is_stateless() => offers::listen(self, &request),
            _ if offers::METHODS.contains(&method) => match self.check_era(&request.params) {
                Some(error) => self.refuse(&request.id, -32602, error),
                None => offers::answer(self, method, &request),
            },
            _ => match extensions::answer(self, method, &request.params) {
                Some(result) => self.answer(&request.id, &result),
                None => self.refuse(&request.id, -32601, "Method not found"),
            },
        }
    }

    /// Returns the error object that is scripted for a list.
    fn list_error(&self, method: &str) -> Option<Value> {
        let list = match method {
            "tools/list" => "tools",
            "prompts/list" => "prompts",
            "resources/list" => "resources",
            "resources/templates/list" => "resourceTemplates",
            _ => return None,
        };
        let file = self.script.list_errors.as_ref()?.join(list);
        serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()
    }

    /// Returns an error unless the request belongs to an era that the server speaks, and to an open session.
    fn check_era(&self, params: &Value) -> Option<&'static str> {
        let revision = &params["_meta"]["io.modelcontextprotocol/protocolVersion"];
        let capabilities = &params["_meta"]["io.modelcontextprotocol/clientCapabilities"];
        let is_stateless = revision == "2026-07-28" && capabilities.is_object();
        match self.script.era {
            era if is_stateless && era.is_stateless() => None,
            Era::Stateless | Era::ExitsOnInitialize => {
                Some("the request lacks the _meta members of the stateless era")
            }
            _ if !revision.is_null() => Some("a session-era server received stateless _meta"),
            _ if !self.state().session_open => Some("the session is not open"),
            _ => None,
        }
    }

    fn list(&self, request: &Request) {
        records::append(&self.script, "list");
        let mut all = tools::definitions(self.script.tools, self.state().added);
        all.extend(self.script.record_dir.is_some().then(records::definition));
        all.extend(extensions::definitions(self));
        if self.script.tool_per_capability {
            all.extend(tools::definitions_for(&self.state().client_capabilities));
        }
        let description =
            self.script.description_file.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        if let Some(text) = description {
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

    /// Writes one line with a single lock.
    pub(crate) fn write(&self, line: &[u8]) {
        let mut out = std::io::stdout().lock();
        let garbage = if self.script.stdout_garbage { GARBAGE } else { b"" };
        let written =
            out.write_all(garbage).and_then(|()| out.write_all(line)).and_then(|()| out.write_all(b"\n"));
        // A closed pipe is followed by the end of our input.
        let _ = written.and_then(|()| out.flush());
    }
}
