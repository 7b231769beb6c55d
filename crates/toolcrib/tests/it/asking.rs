//! A server that asks: of either era, for what the called tool's arguments say, and remembering what it heard.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, WriteHalf};
use tokio::time::sleep;
use toolcrib::InProcess;

/// A server whose tool asks `arguments.method` with `arguments.params`, `arguments.times` times, and then tells what
/// it was answered.
#[derive(Clone)]
pub(crate) struct Asking {
    stateless: bool,
    heard: Arc<Mutex<Vec<Value>>>,
}

impl Asking {
    /// Asks on the pipe while the call waits.
    pub(crate) fn in_session() -> Self {
        Self { stateless: false, heard: Arc::default() }
    }

    /// Ends the call with questions and wants it again with the answers.
    pub(crate) fn stateless() -> Self {
        Self { stateless: true, heard: Arc::default() }
    }

    /// Everything it was sent, in order.
    pub(crate) fn heard(&self) -> Vec<Value> {
        self.heard.lock().unwrap().clone()
    }

    /// Everything of this method it was sent.
    pub(crate) fn heard_of(&self, method: &str) -> Vec<Value> {
        self.heard().into_iter().filter(|message| message["method"] == method).collect()
    }

    async fn receive(&self, message: Value, out: &mut WriteHalf<DuplexStream>, asked: &mut Option<Value>) {
        self.heard.lock().unwrap().push(message.clone());
        let tools = json!([{"name": "ask", "inputSchema": {"type": "object"}}]);
        let result = match (message["method"].as_str(), self.stateless) {
            (Some("server/discover"), true) => {
                json!({"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}})
            }
            (Some("initialize"), false) => {
                json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "a", "version": "1"}})
            }
            (Some("tools/list"), _) => json!({"tools": tools, "resultType": "complete"}),
            (Some("tools/call"), true) => ask_by_result(&message["params"]),
            (Some("tools/call"), false) => return ask_on_the_pipe(message, out, asked).await,
            (None, _) => {
                let Some(mut call) = asked.take() else { return };
                if times(&call) > 1 {
                    call["params"]["arguments"]["times"] = json!(times(&call) - 1);
                    *asked = Some(call);
                    return;
                }
                let answer = message.get("result").or(message.get("error")).cloned().unwrap_or_default();
                return say(out, &json!({"jsonrpc": "2.0", "id": call["id"], "result": told(&answer)})).await;
            }
            (Some(_), _) if message.get("id").is_none() => return,
            _ => {
                let error = json!({"code": -32601, "message": "no"});
                return say(out, &json!({"jsonrpc": "2.0", "id": message["id"], "error": error})).await;
            }
        };
        say(out, &json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).await;
    }
}

fn ask_by_result(params: &Value) -> Value {
    let wanted = times(&json!({ "params": params }));
    let round = params["requestState"]
        .as_str()
        .map_or(0, |state| state.trim_start_matches("round ").parse().unwrap());
    if round == wanted {
        return told(&params["inputResponses"]["it"]);
    }
    let arguments = &params["arguments"];
    let question = json!({"method": arguments["method"], "params": arguments["params"]});
    json!({"resultType": "input_required", "inputRequests": {"it": question}, "requestState": format!("round {}", round + 1)})
}

fn times(call: &Value) -> u64 {
    call["params"]["arguments"]["times"].as_u64().unwrap_or(1)
}

/// All that it asks without waiting for an answer, but not in one breath.
async fn ask_on_the_pipe(message: Value, out: &mut WriteHalf<DuplexStream>, asked: &mut Option<Value>) {
    let arguments = &message["params"]["arguments"];
    let mut question =
        json!({"jsonrpc": "2.0", "id": "q", "method": arguments["method"], "params": arguments["params"]});
    if arguments["method"].is_string() {
        say(out, &question).await;
        for number in 1..times(&message) {
            sleep(Duration::from_millis(5)).await;
            question["id"] = json!(number);
            say(out, &question).await;
        }
    }
    *asked = Some(message);
}

fn told(answer: &Value) -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": answer.to_string()}]})
}

async fn say(out: &mut WriteHalf<DuplexStream>, message: &Value) {
    let _ = out.write_all(format!("{message}\n").as_bytes()).await;
}

impl InProcess for Asking {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let server = self.clone();
        Box::pin(async move {
            let (reader, mut out) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reader).lines();
            let mut asked = None;
            while let Ok(Some(line)) = lines.next_line().await {
                server.receive(serde_json::from_str(&line).unwrap(), &mut out, &mut asked).await;
            }
        })
    }
}
