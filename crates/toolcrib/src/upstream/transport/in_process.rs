//! Servers in this process: the embedder's own tools, and fakes for tests.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinSet;

use crate::model::exit_report::ExitReport;
use crate::protocol::era::client::{DISCOVER, ListCaching, discover_result, list_result};
use crate::protocol::framing::{Frame, FrameDecoder};
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc::{ClientMessage, ResponsePayload, code, encode_response, error_object};
use crate::protocol::versions::Era;
use crate::spec::InProcess;
use crate::upstream::transport::stdio::StdioTransport;
use crate::upstream::transport::{MessageLimit, OutgoingQueue, Transport, TransportFuture, TransportLink};

/// The largest message a toolbox reads.
const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// The transport to a server in this process: an in-memory pipe with the framing of stdio.
pub(in crate::upstream) struct InProcessTransport {
    pub(in crate::upstream) pipe: DuplexStream,
    pub(in crate::upstream) message_limit: MessageLimit,
}

impl Transport for InProcessTransport {
    fn run(self: Box<Self>, link: TransportLink, outgoing: OutgoingQueue) -> TransportFuture {
        let (reader, writer) = tokio::io::split(self.pipe);
        let pipes = StdioTransport {
            reader,
            writer,
            message_limit: self.message_limit,
            exited: std::future::pending(),
            exit_report: std::future::ready(ExitReport::default()),
        };
        Box::new(pipes).run(link, outgoing)
    }
}

/// The function of a tool: takes arguments, returns a text or an error text.
type ToolFunction =
    Arc<dyn Fn(Value) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>> + Send + Sync>;

/// A server made of the embedder's own tools: async functions from arguments to a text.
#[derive(Clone, Default)]
pub struct Toolbox {
    definitions: Vec<Value>,
    tools: BTreeMap<String, ToolFunction>,
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Toolbox").field("tools", &self.tools.keys()).finish()
    }
}

impl Toolbox {
    /// Creates an empty toolbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool; `schema` is the JSON Schema of its arguments.
    #[must_use]
    pub fn tool<F, A>(mut self, name: &str, description: &str, schema: &Value, run: F) -> Self
    where
        F: Fn(Value) -> A + Send + Sync + 'static,
        A: Future<Output = Result<String, String>> + Send + 'static,
    {
        self.definitions.push(json!({"name": name, "description": description, "inputSchema": schema}));
        self.tools.insert(name.to_owned(), Arc::new(move |arguments| Box::pin(run(arguments))));
        self
    }

    fn handle(
        &self,
        method: &str,
        params: Option<&Bytes>,
    ) -> Pin<Box<dyn Future<Output = ResponsePayload> + Send>> {
        let done = |answer| -> Pin<Box<dyn Future<Output = ResponsePayload> + Send>> {
            Box::pin(std::future::ready(answer))
        };
        match method {
            DISCOVER => done(ResponsePayload::Result(discover_result(&json!({"tools": {}}), None))),
            "tools/list" => {
                let tools = Value::from(self.definitions.clone()).to_string();
                done(ResponsePayload::Result(list_result(
                    "tools",
                    tools.as_bytes(),
                    None,
                    Era::Stateless,
                    ListCaching::default(),
                )))
            }
            "tools/call" => {
                let params = params.and_then(|params| Object::parse(params).ok()).unwrap_or_default();
                let name = params.get_string("name").unwrap_or_default();
                let Some(run) = self.tools.get(&*name).cloned() else {
                    return done(ResponsePayload::Error(error_object(
                        code::INVALID_PARAMS,
                        &format!("Unknown tool: {name}"),
                        None,
                    )));
                };
                let arguments = params.get("arguments").and_then(|raw| serde_json::from_slice(raw).ok());
                Box::pin(async move {
                    ResponsePayload::Result(tool_result(run(arguments.unwrap_or_default()).await))
                })
            }
            _ => done(ResponsePayload::Error(error_object(code::METHOD_NOT_FOUND, "unknown method", None))),
        }
    }
}

fn tool_result(outcome: Result<String, String>) -> Bytes {
    let is_error = outcome.is_err();
    let text = outcome.unwrap_or_else(|error| error);
    let result = json!({
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "isError": is_error,
    });
    result.to_string().into()
}

impl InProcess for Toolbox {
    /// Runs calls concurrently; dropping the connection drops them.
    fn serve(&self, mut pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let toolbox = self.clone();
        Box::pin(async move {
            let mut frames = FrameDecoder::new(MAX_MESSAGE_BYTES);
            let mut calls = JoinSet::new();
            let mut requests = HashMap::new();
            loop {
                tokio::select! {
                    count = pipe.read_buf(frames.read_buffer()) => if !matches!(count, Ok(1..)) { return },
                    Some(ended) = calls.join_next_with_id() => {
                        let (task, answer) = match ended {
                            Ok(answered) => answered,
                            Err(panic) => (panic.id(), ResponsePayload::Result(tool_result(Err("the tool panicked".to_owned())))),
                        };
                        let Some(id) = requests.remove(&task) else { continue };
                        let mut line = encode_response(&id, &answer);
                        line.push(b'\n');
                        if pipe.write_all(&line).await.is_err() { return }
                    }
                }
                while let Some(frame) = frames.next_frame() {
                    let Frame::Line(line) = frame else { continue };
                    if let Ok(ClientMessage::Request { id, method, params }) = ClientMessage::parse(&line) {
                        let toolbox = toolbox.clone();
                        // Runs in its own task, so that a panic fails only this call.
                        let work = async move { toolbox.handle(&method, params.as_ref()).await };
                        requests.insert(calls.spawn(work).id(), id);
                    }
                }
            }
        })
    }
}
