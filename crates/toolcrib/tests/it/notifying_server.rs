//! A server of either era that sends notifications about one resource to its subscribers.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::sync::watch;
use toolcrib::InProcess;

/// A server that notifies its subscribers when a test changes its resource.
#[derive(Clone)]
pub(crate) struct NotifyingServer {
    stateless: bool,
    received: Arc<Mutex<Vec<Value>>>,
    /// Number of changes of its resource.
    changes: watch::Sender<u64>,
    /// Number of kills; each ends all running instances.
    killed: watch::Sender<u64>,
}

/// The state of one running instance.
#[derive(Default)]
struct InstanceState {
    subscribed: BTreeSet<String>,
    /// The id of the listen request, in the stateless era.
    listen_id: Option<Value>,
}

impl NotifyingServer {
    pub(crate) fn new(stateless: bool) -> Self {
        Self {
            stateless,
            received: Arc::default(),
            changes: watch::Sender::new(0),
            killed: watch::Sender::new(0),
        }
    }

    /// Changes its resource.
    pub(crate) fn change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Ends all running instances, like a crash.
    pub(crate) fn kill(&self) {
        self.killed.send_modify(|killed| *killed += 1);
    }

    /// Every message of this method that it received.
    pub(crate) fn received_of(&self, method: &str) -> Vec<Value> {
        let received = self.received.lock().unwrap();
        received.iter().filter(|message| message["method"] == method).cloned().collect()
    }

    fn answer(&self, state: &mut InstanceState, message: &Value) -> Vec<Value> {
        self.received.lock().unwrap().push(message.clone());
        let capabilities = json!({"resources": {"subscribe": true, "listChanged": true}, "logging": {}});
        let uri = message["params"]["uri"].as_str().unwrap_or_default().to_owned();
        let result = match (message["method"].as_str().unwrap_or_default(), self.stateless) {
            ("server/discover", true) => {
                json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities})
            }
            ("initialize", false) => {
                json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {"name": "t", "version": "1"}})
            }
            ("resources/list", _) => json!({"resources": [{"uri": "x:one", "name": "one"}]}),
            ("resources/templates/list", _) => json!({"resourceTemplates": []}),
            ("resources/read", _) => json!({"contents": []}),
            ("resources/subscribe", false) if uri == "x:one" => {
                state.subscribed.insert(uri);
                json!({})
            }
            ("resources/unsubscribe", false) => {
                state.subscribed.remove(&uri);
                json!({})
            }
            ("logging/setLevel", false) => json!({}),
            ("hang", _) => return Vec::new(),
            ("subscriptions/listen", true) => {
                let filter = message["params"]["notifications"].clone();
                let uris = filter["resourceSubscriptions"].as_array().cloned().unwrap_or_default();
                state.subscribed =
                    uris.iter().filter_map(|uri| uri.as_str().map(ToOwned::to_owned)).collect();
                state.listen_id = Some(message["id"].clone());
                return vec![self.notification(
                    state,
                    "notifications/subscriptions/acknowledged",
                    json!({"notifications": filter}),
                )];
            }
            _ if message.get("id").is_none() => return Vec::new(),
            _ => {
                let error = json!({"code": -32601, "message": "no such thing"});
                return vec![json!({"jsonrpc": "2.0", "id": message["id"], "error": error})];
            }
        };
        vec![json!({"jsonrpc": "2.0", "id": message["id"], "result": result})]
    }

    fn notification(&self, state: &InstanceState, method: &str, mut params: Value) -> Value {
        if self.stateless {
            params["_meta"] = json!({"io.modelcontextprotocol/subscriptionId": state.listen_id});
        }
        json!({"jsonrpc": "2.0", "method": method, "params": params})
    }
}

impl InProcess for NotifyingServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let server = self.clone();
        let mut changes = self.changes.subscribe();
        let mut killed = self.killed.subscribe();
        Box::pin(async move {
            let (reader, mut out) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reader).lines();
            let mut state = InstanceState::default();
            loop {
                let messages = tokio::select! {
                    biased;
                    _ = killed.changed() => return,
                    line = lines.next_line() => match line {
                        Ok(Some(line)) => server.answer(&mut state, &serde_json::from_str(&line).unwrap()),
                        _ => return,
                    },
                    _ = changes.changed() => state
                        .subscribed
                        .iter()
                        .map(|uri| server.notification(&state, "notifications/resources/updated", json!({"uri": uri})))
                        .collect(),
                };
                for message in messages {
                    if out.write_all(format!("{message}\n").as_bytes()).await.is_err() {
                        return;
                    }
                }
            }
        })
    }
}
