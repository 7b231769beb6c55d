//! The context of a call of an in-process tool, and the output of the tool.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::model::caller::Caller;
use crate::protocol::era::capabilities::LogLevel;
use crate::protocol::era::client::{LOG_MESSAGE, PROGRESS};
use crate::protocol::era::meta;
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc::{RequestId, encode_notification};
use crate::upstream::call_context;

/// A call of an in-process tool: its caller and deadline, its cancellation, and the way to report progress and log
/// messages. Clones belong to the same call.
///
/// ```
/// use serde_json::{Value, json};
/// use tokio::sync::mpsc;
/// use toolcrib::{Call, CallUpdate, Crib, Object, ServerSpec, ToolContext, Toolbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let index = |_: Value, context: ToolContext| async move {
///     for done in [1.0, 2.0] {
///         if context.is_cancelled() {
///             return Err("stopped".to_owned());
///         }
///         context.progress(done, Some(2.0), None);
///     }
///     Ok(format!("indexed for {}", context.caller().as_str()))
/// };
/// let tools = Toolbox::new().typed_tool("index", "Indexes the project", &json!({"type": "object"}), index);
/// let crib = Crib::builder().server(ServerSpec::in_process("house".parse()?, tools)).build()?;
///
/// let mut params = Object::default();
/// params.set("_meta", r#"{"progressToken": 1}"#)?;
/// let (sender, mut updates) = mpsc::channel(16);
/// let outcome = crib.call(Call::tool("index").params(params).updates(sender)).await?;
/// assert_eq!(outcome.text(), "indexed for local");
/// let Some(CallUpdate::Progress(progress)) = updates.recv().await else { panic!("no progress") };
/// assert_eq!(progress.get("total").map(|total| &**total), Some(&b"2.0"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ToolContext(Arc<ContextInner>);

#[derive(Debug)]
struct ContextInner {
    caller: Caller,
    id: Option<String>,
    deadline: Option<Instant>,
    cancellation: CancellationToken,
    /// The id of the request, as JSON.
    request: Value,
    /// The token that the client wants progress under.
    progress_token: Option<Value>,
    /// Lines that are sent to the client before the result.
    updates: mpsc::Sender<Vec<u8>>,
}

impl ToolContext {
    /// Reads the context of a request from the `_meta` of its parameters.
    pub(super) fn new(
        request: &RequestId,
        params: &Object,
        cancellation: CancellationToken,
        updates: mpsc::Sender<Vec<u8>>,
    ) -> Self {
        let request_meta = params.get("_meta").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
        let decode = |raw: &Bytes| serde_json::from_slice::<Value>(raw).ok();
        let context = request_meta.get(call_context::META_KEY).and_then(decode).unwrap_or_default();
        Self(Arc::new(ContextInner {
            caller: call_context::read_caller(&context),
            id: call_context::read_id(&context),
            deadline: call_context::read_deadline(&context, Instant::now()),
            cancellation,
            request: serde_json::from_slice(request.as_bytes()).unwrap_or_default(),
            progress_token: request_meta.get(meta::PROGRESS_TOKEN).and_then(decode),
            updates,
        }))
    }

    /// Returns the caller.
    pub fn caller(&self) -> &Caller {
        &self.0.caller
    }

    /// Returns the id that the embedder gave the call with [`Call::id`](crate::Call::id).
    pub fn id(&self) -> Option<&str> {
        self.0.id.as_deref()
    }

    /// Returns the time at which the call times out. Progress may extend it, up to the server's limits.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.deadline
    }

    /// Returns whether the call was cancelled or has timed out.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancellation.is_cancelled()
    }

    /// Waits until the call is cancelled or has timed out. The tool then has five seconds to end; after that its future
    /// is dropped.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.0.cancellation.cancelled().await;
    }

    /// Reports progress, if the client asked for it. `progress` must grow with every report. A report is dropped while the
    /// client has too many unread ones.
    pub fn progress(&self, progress: f64, total: Option<f64>, message: Option<&str>) {
        let Some(token) = &self.0.progress_token else { return };
        let mut params = json!({"progressToken": token, "progress": progress});
        if let Some(total) = total {
            params["total"] = total.into();
        }
        if let Some(message) = message {
            params["message"] = message.into();
        }
        self.send(PROGRESS, &params);
    }

    /// Sends a log message to the client, which gets it if it wants messages of this level. A message is dropped while the
    /// client has too many unread ones.
    pub fn log(&self, level: LogLevel, data: impl Into<Value>) {
        let request_meta = json!({call_context::REQUEST_META_KEY: self.0.request});
        let params = json!({"level": level.as_str(), "data": data.into(), "_meta": request_meta});
        self.send(LOG_MESSAGE, &params);
    }

    fn send(&self, method: &str, params: &Value) {
        let mut line = encode_notification(method, Some(params.to_string().as_bytes()));
        line.push(b'\n');
        // A client that does not keep up misses updates.
        let _ = self.0.updates.try_send(line);
    }
}

/// The output of an in-process tool: a text, structured content, or both.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolOutput {
    /// The text.
    pub text: String,
    /// The `structuredContent`.
    pub structured: Option<Map<String, Value>>,
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self { text, structured: None }
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// An object becomes structured content, with its JSON as the text for clients that read only text. Any other value
/// becomes a text.
impl From<Value> for ToolOutput {
    fn from(value: Value) -> Self {
        let text = value.to_string();
        match value {
            Value::Object(structured) => Self { text, structured: Some(structured) },
            Value::String(text) => text.into(),
            _ => text.into(),
        }
    }
}
