//! Servers in this process: the embedder's own tools, and fakes for tests.

mod tool_context;

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_core::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::model::exit_report::ExitReport;
use crate::protocol::era::IMPLEMENTATION;
use crate::protocol::era::client::{
    CANCELLED, DISCOVER, ListCaching, ServerIntroduction, discover_result, list_result,
};
use crate::protocol::framing::{Frame, FrameDecoder};
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc::{
    ClientMessage, RequestId, ResponsePayload, code, encode_response, error_object,
};
use crate::protocol::versions::Era;
use crate::spec::InProcess;
use crate::upstream::transport::stdio::StdioTransport;
use crate::upstream::transport::{MessageLimit, OutgoingQueue, Transport, TransportFuture, TransportLink};
pub use tool_context::{ToolContext, ToolOutput};

/// The largest message a toolbox reads.
const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// The number of progress reports and log messages that wait to be sent.
const MAX_UNREAD_UPDATES: usize = 256;

/// The time that a cancelled tool has to end.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

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
            direct_input: None,
            message_limit: self.message_limit,
            exited: std::future::pending(),
            exit_report: std::future::ready(ExitReport::default()),
        };
        Box::new(pipes).run(link, outgoing)
    }
}

/// The function of a tool.
type ToolFunction = Arc<dyn Fn(Value, ToolContext) -> ToolFuture + Send + Sync>;

/// The future of a tool: its output or the text of its failure.
type ToolFuture = Pin<Box<dyn Future<Output = Result<ToolOutput, String>> + Send>>;

/// A server made of the embedder's own tools: async functions of their arguments. A tool that panics fails only its own
/// call.
///
/// ```
/// use toolcrib::{Call, Crib, LogLevel, ServerSpec, ToolContext, Toolbox};
///
/// #[derive(serde::Deserialize)]
/// struct Greeting {
///     name: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let schema = serde_json::json!({
///     "type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"],
/// });
/// let greet = |greeting: Greeting, context: ToolContext| async move {
///     context.log(LogLevel::Info, format!("greets {}", greeting.name));
///     Ok(format!("hello, {}, from {}", greeting.name, context.caller().as_str()))
/// };
/// let tools = Toolbox::new().typed_tool("greet", "Greets a person", &schema, greet);
/// let crib = Crib::builder().server(ServerSpec::in_process("house".parse()?, tools)).build()?;
/// let outcome = crib.call(Call::tool("greet").arguments(&serde_json::json!({"name": "Ada"}))).await?;
/// assert_eq!(outcome.text(), "hello, Ada, from local");
/// let outcome = crib.call(Call::tool("greet")).await?;
/// assert_eq!(outcome.text(), "the arguments of `greet` are invalid: missing field `name`");
/// # Ok(())
/// # }
/// ```
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

    /// Adds a tool that returns a text; `schema` is the JSON Schema of its arguments. When the call is cancelled, the
    /// future of the tool is dropped.
    #[must_use]
    pub fn tool<F, A>(self, name: &str, description: &str, schema: &Value, run: F) -> Self
    where
        F: Fn(Value) -> A + Send + Sync + 'static,
        A: Future<Output = Result<String, String>> + Send + 'static,
    {
        self.add(name, description, schema, move |arguments, context| {
            let running = run(arguments);
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = context.cancelled() => Err("the call was cancelled".to_owned()),
                    output = running => output.map(ToolOutput::from),
                }
            })
        })
    }

    /// Adds a tool with typed arguments and a [`ToolContext`]; `schema` is the JSON Schema of the arguments. It returns
    /// anything that becomes a [`ToolOutput`]: a text or a JSON object. Arguments that do not fit the type are a failed tool
    /// result with the reason. When the call is cancelled, the tool has five seconds to end before its future is dropped.
    #[must_use]
    pub fn typed_tool<T, F, A, R>(self, name: &str, description: &str, schema: &Value, run: F) -> Self
    where
        T: DeserializeOwned,
        F: Fn(T, ToolContext) -> A + Send + Sync + 'static,
        A: Future<Output = Result<R, String>> + Send + 'static,
        R: Into<ToolOutput>,
    {
        let tool = name.to_owned();
        self.add(name, description, schema, move |arguments, context| {
            let arguments = if arguments.is_null() { json!({}) } else { arguments };
            match serde_json::from_value(arguments) {
                Ok(arguments) => {
                    let running = run(arguments, context);
                    Box::pin(async move { running.await.map(Into::into) })
                }
                Err(error) => {
                    let reason = format!("the arguments of `{tool}` are invalid: {error}");
                    Box::pin(std::future::ready(Err(reason)))
                }
            }
        })
    }

    fn add(
        mut self,
        name: &str,
        description: &str,
        schema: &Value,
        run: impl Fn(Value, ToolContext) -> ToolFuture + Send + Sync + 'static,
    ) -> Self {
        self.definitions.retain(|definition| definition["name"] != name);
        self.definitions.push(json!({"name": name, "description": description, "inputSchema": schema}));
        self.tools.insert(name.to_owned(), Arc::new(run));
        self
    }

    /// Answers a request.
    async fn handle(self, request: ToolboxRequest) -> ResponsePayload {
        let params =
            request.params.as_ref().and_then(|params| Object::parse(params).ok()).unwrap_or_default();
        match &*request.method {
            DISCOVER => {
                let capabilities = json!({"tools": {}, "logging": {}});
                ResponsePayload::Result(discover_result(&ServerIntroduction::new(capabilities)))
            }
            "tools/list" => {
                let tools = Value::from(self.definitions).to_string();
                let caching = ListCaching::default();
                let info = IMPLEMENTATION.as_bytes();
                let result = list_result("tools", tools.as_bytes(), None, Era::Stateless, caching, info);
                ResponsePayload::Result(result)
            }
            "tools/call" => self.call(&params, &request).await,
            _ => ResponsePayload::Error(error_object(code::METHOD_NOT_FOUND, "unknown method", None)),
        }
    }

    async fn call(&self, params: &Object, request: &ToolboxRequest) -> ResponsePayload {
        let name = params.get_string("name").unwrap_or_default();
        let Some(run) = self.tools.get(&*name) else {
            let message = format!("Unknown tool: {name}");
            return ResponsePayload::Error(error_object(code::INVALID_PARAMS, &message, None));
        };
        let arguments = params.get("arguments").and_then(|raw| serde_json::from_slice(raw).ok());
        let cancellation = &request.cancellation;
        let context = ToolContext::new(&request.id, params, cancellation.clone(), request.updates.clone());
        let cancelled_too_long = async {
            cancellation.cancelled().await;
            sleep(CANCEL_GRACE).await;
        };
        let output = tokio::select! {
            output = run(arguments.unwrap_or_default(), context) => output,
            () = cancelled_too_long => Err("the call was cancelled".to_owned()),
        };
        ResponsePayload::Result(tool_result(output))
    }
}

/// A request to a toolbox.
struct ToolboxRequest {
    id: RequestId,
    method: String,
    params: Option<Bytes>,
    cancellation: CancellationToken,
    /// Lines that are sent before the response.
    updates: mpsc::Sender<Vec<u8>>,
}

fn tool_result(output: Result<ToolOutput, String>) -> Bytes {
    let is_error = output.is_err();
    let ToolOutput { text, structured, .. } = output.unwrap_or_else(ToolOutput::from);
    let mut result = json!({
        "resultType": "complete",
        "content": [{"type": "text", "text": text}],
        "isError": is_error,
    });
    if let Some(structured) = structured {
        result["structuredContent"] = structured.into();
    }
    result.to_string().into()
}

/// A request that is being handled.
struct RunningRequest {
    id: RequestId,
    cancellation: CancellationToken,
}

/// One connection to a toolbox.
struct ToolboxConnection {
    toolbox: Toolbox,
    pipe: DuplexStream,
    calls: JoinSet<ResponsePayload>,
    requests: HashMap<task::Id, RunningRequest>,
    update_sender: mpsc::Sender<Vec<u8>>,
    updates: mpsc::Receiver<Vec<u8>>,
}

impl ToolboxConnection {
    fn new(toolbox: Toolbox, pipe: DuplexStream) -> Self {
        let (update_sender, updates) = mpsc::channel(MAX_UNREAD_UPDATES);
        let requests = HashMap::new();
        Self { toolbox, pipe, calls: JoinSet::new(), requests, update_sender, updates }
    }

    /// Serves until the pipe is closed.
    async fn run(mut self) -> std::io::Result<()> {
        let mut frames = FrameDecoder::new(MAX_MESSAGE_BYTES);
        loop {
            tokio::select! {
                count = self.pipe.read_buf(frames.read_buffer()) => if count? == 0 { return Ok(()) },
                Some(line) = self.updates.recv() => self.pipe.write_all(&line).await?,
                Some(ended) = self.calls.join_next_with_id() => self.respond(ended).await?,
            }
            while let Some(frame) = frames.next_frame() {
                if let Frame::Line(line) = frame
                    && let Ok(message) = ClientMessage::parse(&line)
                {
                    self.receive(message);
                }
            }
        }
    }

    fn receive(&mut self, message: ClientMessage) {
        match message {
            ClientMessage::Request { id, method, params } => {
                let cancellation = CancellationToken::new();
                let request = ToolboxRequest {
                    id: id.clone(),
                    method,
                    params,
                    cancellation: cancellation.clone(),
                    updates: self.update_sender.clone(),
                };
                // Runs in its own task, so that a panic fails only this call.
                let task = self.calls.spawn(self.toolbox.clone().handle(request)).id();
                self.requests.insert(task, RunningRequest { id, cancellation });
            }
            ClientMessage::Notification { method, params: Some(params) } if method == CANCELLED => {
                let params = Object::parse(&params).ok();
                let id = params.and_then(|params| RequestId::parse(params.get("requestId")?.clone()));
                let cancelled = self.requests.values().filter(|request| Some(&request.id) == id.as_ref());
                cancelled.for_each(|request| request.cancellation.cancel());
            }
            ClientMessage::Notification { .. } | ClientMessage::Response { .. } => {}
        }
    }

    /// Sends the updates of a request that has ended, then its response, unless it was cancelled.
    async fn respond(
        &mut self,
        ended: Result<(task::Id, ResponsePayload), JoinError>,
    ) -> std::io::Result<()> {
        let (task, response) = ended.unwrap_or_else(|panic| {
            (panic.id(), ResponsePayload::Result(tool_result(Err("the tool panicked".to_owned()))))
        });
        let Some(request) = self.requests.remove(&task) else { return Ok(()) };
        while let Ok(line) = self.updates.try_recv() {
            self.pipe.write_all(&line).await?;
        }
        if request.cancellation.is_cancelled() {
            return Ok(());
        }
        let mut line = encode_response(&request.id, &response);
        line.push(b'\n');
        self.pipe.write_all(&line).await
    }
}

/// Cancels the calls that work outside of their futures may still belong to.
impl Drop for ToolboxConnection {
    fn drop(&mut self) {
        self.requests.values().for_each(|request| request.cancellation.cancel());
    }
}

impl InProcess for Toolbox {
    /// Runs calls concurrently; dropping the connection drops them.
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let connection = ToolboxConnection::new(self.clone(), pipe);
        Box::pin(async move {
            // An error means that the other end of the pipe is gone.
            let _ = connection.run().await;
        })
    }

    fn wants_call_context(&self) -> bool {
        true
    }
}
