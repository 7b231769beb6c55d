//! A server that tells: of either era, about one resource and its list of tools, to whoever has asked it to.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::sync::watch;
use toolcrib::InProcess;

/// A server that tells when it is poked.
#[derive(Clone)]
pub(crate) struct Telling {
    stateless: bool,
    heard: Arc<Mutex<Vec<Value>>>,
    /// How often its resource has changed.
    changes: watch::Sender<u64>,
    /// Lives up to this one must end.
    killed: watch::Sender<u64>,
}

/// What one life of it knows.
#[derive(Default)]
struct Life {
    subscribed: BTreeSet<String>,
    /// The request that listens, in the stateless era.
    listening: Option<Value>,
}

impl Telling {
    pub(crate) fn new(stateless: bool) -> Self {
        Self {
            stateless,
            heard: Arc::default(),
            changes: watch::Sender::new(0),
            killed: watch::Sender::new(0),
        }
    }

    /// Changes its resource.
    pub(crate) fn change(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Ends every life there is, as a crash would.
    pub(crate) fn kill(&self) {
        self.killed.send_modify(|killed| *killed += 1);
    }

    /// Everything of this method it was sent.
    pub(crate) fn heard_of(&self, method: &str) -> Vec<Value> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|message| message["method"] == method).cloned().collect()
    }

    fn answer(&self, life: &mut Life, message: &Value) -> Vec<Value> {
        self.heard.lock().unwrap().push(message.clone());
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
                life.subscribed.insert(uri);
                json!({})
            }
            ("resources/unsubscribe", false) => {
                life.subscribed.remove(&uri);
                json!({})
            }
            ("logging/setLevel", false) => json!({}),
            ("hang", _) => return Vec::new(),
            ("subscriptions/listen", true) => {
                let wanted = message["params"]["notifications"].clone();
                let uris = wanted["resourceSubscriptions"].as_array().cloned().unwrap_or_default();
                life.subscribed = uris.iter().filter_map(|uri| uri.as_str().map(ToOwned::to_owned)).collect();
                life.listening = Some(message["id"].clone());
                return vec![self.tagged(
                    life,
                    "notifications/subscriptions/acknowledged",
                    json!({"notifications": wanted}),
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

    fn tagged(&self, life: &Life, method: &str, mut params: Value) -> Value {
        if self.stateless {
            params["_meta"] = json!({"io.modelcontextprotocol/subscriptionId": life.listening});
        }
        json!({"jsonrpc": "2.0", "method": method, "params": params})
    }
}

impl InProcess for Telling {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (server, mut changes, mut killed) =
            (self.clone(), self.changes.subscribe(), self.killed.subscribe());
        Box::pin(async move {
            let (reader, mut out) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reader).lines();
            let mut life = Life::default();
            loop {
                let said = tokio::select! {
                    biased;
                    _ = killed.changed() => return,
                    line = lines.next_line() => match line {
                        Ok(Some(line)) => server.answer(&mut life, &serde_json::from_str(&line).unwrap()),
                        _ => return,
                    },
                    _ = changes.changed() => life
                        .subscribed
                        .iter()
                        .map(|uri| server.tagged(&life, "notifications/resources/updated", json!({"uri": uri})))
                        .collect(),
                };
                for message in said {
                    if out.write_all(format!("{message}\n").as_bytes()).await.is_err() {
                        return;
                    }
                }
            }
        })
    }
}
