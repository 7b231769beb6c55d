//! Servers that live in this process: an embedder's own tools, and the servers that tests talk to.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinSet;

use crate::spec::InProcess;
use crate::wire::dialect::client::{DISCOVER, discover_result, list_result};
use crate::wire::frame::{Frame, Frames};
use crate::wire::message::{Answer, ClientMessage, code, error_object, reply};
use crate::wire::object::Object;
use crate::wire::revision::Era;

/// The largest message a toolbox reads.
const MESSAGE: usize = 32 << 20;

/// What a tool of a [`Toolbox`] does: arguments in, a text or an error text out.
type Run = Arc<dyn Fn(Value) -> Pin<Box<dyn Future<Output = Result<String, String>> + Send>> + Send + Sync>;

/// An embedder's own tools as a server: each is an async function from arguments to a text.
#[derive(Clone, Default)]
pub struct Toolbox {
    definitions: Vec<Value>,
    tools: BTreeMap<String, Run>,
}

impl std::fmt::Debug for Toolbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Toolbox").field("tools", &self.tools.keys()).finish()
    }
}

impl Toolbox {
    /// An empty one.
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

    fn answer(&self, method: &str, params: Option<&Bytes>) -> Pin<Box<dyn Future<Output = Answer> + Send>> {
        let done =
            |answer| -> Pin<Box<dyn Future<Output = Answer> + Send>> { Box::pin(std::future::ready(answer)) };
        match method {
            DISCOVER => done(Answer::Result(discover_result(&json!({"tools": {}}), None))),
            "tools/list" => {
                let tools = Value::from(self.definitions.clone()).to_string();
                done(Answer::Result(list_result(
                    "tools",
                    tools.as_bytes(),
                    None,
                    Era::Stateless,
                    (Duration::ZERO, false),
                )))
            }
            "tools/call" => {
                let params = params.and_then(|params| Object::parse(params).ok()).unwrap_or_default();
                let name = params.string("name").unwrap_or_default();
                let Some(run) = self.tools.get(&*name).cloned() else {
                    return done(Answer::Error(error_object(
                        code::INVALID_PARAMS,
                        &format!("Unknown tool: {name}"),
                        None,
                    )));
                };
                let arguments = params.get("arguments").and_then(|raw| serde_json::from_slice(raw).ok());
                Box::pin(async move { Answer::Result(tool_result(run(arguments.unwrap_or_default()).await)) })
            }
            _ => done(Answer::Error(error_object(code::METHOD_NOT_FOUND, "no such method", None))),
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
    /// Calls run at the same time; dropping the connection drops them.
    fn serve(&self, mut pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let toolbox = self.clone();
        Box::pin(async move {
            let mut frames = Frames::new(MESSAGE);
            let mut calls = JoinSet::new();
            let mut asked = HashMap::new();
            loop {
                tokio::select! {
                    count = pipe.read_buf(frames.room()) => if !matches!(count, Ok(1..)) { return },
                    Some(ended) = calls.join_next_with_id() => {
                        let (task, answer) = match ended {
                            Ok(answered) => answered,
                            Err(panic) => (panic.id(), Answer::Result(tool_result(Err("the tool panicked".to_owned())))),
                        };
                        let Some(id) = asked.remove(&task) else { continue };
                        let mut line = reply(&id, &answer);
                        line.push(b'\n');
                        if pipe.write_all(&line).await.is_err() { return }
                    }
                }
                while let Some(frame) = frames.next_frame() {
                    let Frame::Line(line) = frame else { continue };
                    if let Ok(ClientMessage::Request { id, method, params }) = ClientMessage::parse(&line) {
                        let toolbox = toolbox.clone();
                        // Called in the task, so that a tool that panics is a tool that failed.
                        let work = async move { toolbox.answer(&method, params.as_ref()).await };
                        asked.insert(calls.spawn(work).id(), id);
                    }
                }
            }
        })
    }
}
