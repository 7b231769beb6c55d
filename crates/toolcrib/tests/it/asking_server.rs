//! A server of either era that sends a request to the client during a call, and records what it receives.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, WriteHalf};
use tokio::time::sleep;
use toolcrib::InProcess;

/// A server whose tool sends the request `arguments.method` with `arguments.params`, `arguments.times` times, and then
/// returns the answer.
#[derive(Clone)]
pub(crate) struct AskingServer {
    stateless: bool,
    received: Arc<Mutex<Vec<Value>>>,
    /// Ends the connection at the next call.
    ends_next_call: Arc<AtomicBool>,
    /// Changes the definition of its tool at the next call, and announces it.
    changes_definition: Arc<AtomicBool>,
    has_changed: Arc<AtomicBool>,
}

impl AskingServer {
    /// Sends the requests on the pipe while the call waits.
    pub(crate) fn in_session() -> Self {
        Self::new(false)
    }

    /// Ends the call with the requests and expects it again with the answers.
    pub(crate) fn stateless() -> Self {
        Self::new(true)
    }

    fn new(stateless: bool) -> Self {
        Self {
            stateless,
            received: Arc::default(),
            ends_next_call: Arc::default(),
            changes_definition: Arc::default(),
            has_changed: Arc::default(),
        }
    }

    /// Ends its connection at the next call, without an answer.
    pub(crate) fn end_next_call(&self) {
        self.ends_next_call.store(true, Ordering::Relaxed);
    }

    /// Changes the definition of its tool during the next call.
    pub(crate) fn change_definition_in_next_call(&self) {
        self.changes_definition.store(true, Ordering::Relaxed);
    }

    /// Every message that it received, in order.
    pub(crate) fn received(&self) -> Vec<Value> {
        self.received.lock().unwrap().clone()
    }

    /// Every message of this method that it received.
    pub(crate) fn received_of(&self, method: &str) -> Vec<Value> {
        self.received().into_iter().filter(|message| message["method"] == method).collect()
    }

    async fn receive(
        &self,
        message: Value,
        out: &mut WriteHalf<DuplexStream>,
        waiting_call: &mut Option<Value>,
    ) {
        self.received.lock().unwrap().push(message.clone());
        let is_call = message["method"] == "tools/call";
        if is_call && self.changes_definition.swap(false, Ordering::Relaxed) {
            self.has_changed.store(true, Ordering::Relaxed);
            send(out, &json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})).await;
        }
        let description = if self.has_changed.load(Ordering::Relaxed) { "Asks more" } else { "Asks" };
        let tools = json!([{"name": "ask", "description": description, "inputSchema": {"type": "object"}}]);
        let result = match (message["method"].as_str(), self.stateless) {
            (Some("server/discover"), true) => {
                json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
            }
            (Some("initialize"), false) => {
                json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}})
            }
            (Some("tools/list"), _) => json!({"tools": tools, "resultType": "complete"}),
            (Some("tools/call"), true) => ask_in_result(&message["params"]),
            (Some("tools/call"), false) => return ask_on_pipe(message, out, waiting_call).await,
            (None, _) => {
                let Some(mut call) = waiting_call.take() else { return };
                if request_count(&call) > 1 {
                    call["params"]["arguments"]["times"] = json!(request_count(&call) - 1);
                    *waiting_call = Some(call);
                    return;
                }
                let answer = message.get("result").or(message.get("error")).cloned().unwrap_or_default();
                return send(
                    out,
                    &json!({"jsonrpc": "2.0", "id": call["id"], "result": tool_result(&answer)}),
                )
                .await;
            }
            (Some(_), _) if message.get("id").is_none() => return,
            _ => {
                let error = json!({"code": -32601, "message": "no"});
                return send(out, &json!({"jsonrpc": "2.0", "id": message["id"], "error": error})).await;
            }
        };
        send(out, &json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).await;
    }
}

fn ask_in_result(params: &Value) -> Value {
    let rounds = request_count(&json!({ "params": params }));
    let round = params["requestState"]
        .as_str()
        .map_or(0, |state| state.trim_start_matches("round ").parse().unwrap());
    if round == rounds {
        return tool_result(&params["inputResponses"]["it"]);
    }
    let arguments = &params["arguments"];
    let request = json!({"method": arguments["method"], "params": arguments["params"]});
    json!({"resultType": "input_required", "inputRequests": {"it": request}, "requestState": format!("round {}", round + 1)})
}

fn request_count(call: &Value) -> u64 {
    call["params"]["arguments"]["times"].as_u64().unwrap_or(1)
}

/// Sends all requests without waiting for answers, with a pause between them.
async fn ask_on_pipe(message: Value, out: &mut WriteHalf<DuplexStream>, waiting_call: &mut Option<Value>) {
    let arguments = &message["params"]["arguments"];
    let mut request =
        json!({"jsonrpc": "2.0", "id": "q", "method": arguments["method"], "params": arguments["params"]});
    if arguments["method"].is_string() {
        send(out, &request).await;
        for number in 1..request_count(&message) {
            sleep(Duration::from_millis(5)).await;
            request["id"] = json!(number);
            send(out, &request).await;
        }
    }
    *waiting_call = Some(message);
}

fn tool_result(answer: &Value) -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": answer.to_string()}]})
}

async fn send(out: &mut WriteHalf<DuplexStream>, message: &Value) {
    let _ = out.write_all(format!("{message}\n").as_bytes()).await;
}

impl InProcess for AskingServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let server = self.clone();
        Box::pin(async move {
            let (reader, mut out) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reader).lines();
            let mut waiting_call = None;
            while let Ok(Some(line)) = lines.next_line().await {
                let message: Value = serde_json::from_str(&line).unwrap();
                if message["method"] == "tools/call" && server.ends_next_call.swap(false, Ordering::Relaxed) {
                    return;
                }
                server.receive(message, &mut out, &mut waiting_call).await;
            }
        })
    }
}
