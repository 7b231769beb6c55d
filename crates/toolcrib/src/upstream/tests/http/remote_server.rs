//! A scripted remote server on a real socket, which records every request.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// One recorded request.
#[derive(Debug, Clone)]
pub(in super::super) struct RecordedRequest {
    pub(in super::super) http_method: String,
    pub(in super::super) path: String,
    pub(in super::super) headers: HeaderMap,
    pub(in super::super) body: Value,
}

impl RecordedRequest {
    /// Returns the JSON-RPC method, or the HTTP method if the body has none.
    pub(in super::super) fn method(&self) -> &str {
        self.body["method"].as_str().unwrap_or(&self.http_method)
    }

    pub(in super::super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(in super::super) fn tool(&self) -> &str {
        self.body["params"]["name"].as_str().unwrap_or_default()
    }
}

/// One step of sending a response body.
#[derive(Debug, Clone)]
pub(in super::super) enum Step {
    Send(String),
    Pause(Duration),
    /// Sends nothing until the client disconnects.
    Hang,
    Disconnect,
    /// Sends messages from a channel as events, until a null arrives.
    Forward(Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Value>>>),
}

/// Returns a step that sends a message as an event.
pub(in super::super) fn event(message: &Value) -> Step {
    Step::Send(format!("data: {message}\n\n"))
}

pub(in super::super) fn numbered_event(id: &str, message: &Value) -> Step {
    Step::Send(format!("id: {id}\ndata: {message}\n\n"))
}

/// A scripted HTTP response.
#[derive(Debug, Clone)]
pub(in super::super) struct Reply {
    pub(in super::super) status: u16,
    pub(in super::super) headers: Vec<(&'static str, String)>,
    pub(in super::super) steps: Vec<Step>,
    /// Time before the head of the response is sent.
    pub(in super::super) delay: Duration,
}

impl Reply {
    pub(in super::super) fn text(status: u16, kind: &str, text: impl Into<String>) -> Self {
        let headers = vec![("content-type", kind.to_owned())];
        Self { status, headers, steps: vec![Step::Send(text.into())], delay: Duration::ZERO }
    }

    pub(in super::super) fn json(status: u16, value: &Value) -> Self {
        Self::text(status, "application/json", value.to_string())
    }

    pub(in super::super) fn events(steps: impl IntoIterator<Item = Step>) -> Self {
        let headers = vec![("content-type", "text/event-stream".to_owned())];
        Self { status: 200, headers, steps: steps.into_iter().collect(), delay: Duration::ZERO }
    }

    pub(in super::super) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), steps: Vec::new(), delay: Duration::ZERO }
    }

    pub(in super::super) fn result(request: &RecordedRequest, result: &Value) -> Self {
        Self::json(200, &response(request, result))
    }

    pub(in super::super) fn error(status: u16, request: &RecordedRequest, code: i64) -> Self {
        let error = json!({"code": code, "message": "no"});
        Self::json(status, &json!({"jsonrpc": "2.0", "id": request.body["id"], "error": error}))
    }

    /// Adds events with the messages of a channel.
    pub(in super::super) fn forwarding(mut self, messages: mpsc::UnboundedReceiver<Value>) -> Self {
        self.steps.push(Step::Forward(Arc::new(tokio::sync::Mutex::new(messages))));
        self
    }

    /// Sends the head of the response later.
    pub(in super::super) fn delayed(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    pub(in super::super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

pub(in super::super) fn response(request: &RecordedRequest, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": request.body["id"], "result": result})
}

/// Returns the response of a tool call: the tool's own name as text.
pub(in super::super) fn tool_response(request: &RecordedRequest) -> Value {
    response(request, &json!({"content": [{"type": "text", "text": request.tool()}]}))
}

/// Responds as a stateless server with one tool.
pub(in super::super) fn stateless(request: &RecordedRequest) -> Reply {
    match request.method() {
        "server/discover" => {
            let result = json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}});
            Reply::result(request, &result)
        }
        "tools/list" => Reply::result(request, &json!({"tools": [{"name": "echo"}]})),
        "tools/call" => Reply::json(200, &tool_response(request)),
        _ => Reply::error(404, request, -32601),
    }
}

/// Responds as a session-era server with one tool and the session `id`.
pub(in super::super) fn session(request: &RecordedRequest, id: &str) -> Reply {
    match request.method() {
        "initialize" => {
            let result = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}});
            Reply::result(request, &result).with("mcp-session-id", id)
        }
        "tools/list" | "tools/call" if request.header("mcp-session-id") != Some(id) => Reply::empty(404),
        "tools/list" => Reply::result(request, &json!({"tools": [{"name": "echo"}]})),
        "tools/call" => Reply::json(200, &tool_response(request)),
        "GET" => Reply::empty(405),
        "server/discover" => Reply::text(400, "text/html", "<p>no</p>"),
        _ => Reply::empty(202),
    }
}

/// A scripted remote server.
pub(in super::super) struct RemoteServer {
    pub(in super::super) url: String,
    recorded: Arc<Mutex<Vec<RecordedRequest>>>,
    /// Responses that the client closed before they were complete.
    aborted: Arc<AtomicUsize>,
    pub(in super::super) connections: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl RemoteServer {
    pub(in super::super) async fn start(
        script: impl Fn(&RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let recorded = Arc::<Mutex<Vec<RecordedRequest>>>::default();
        let aborted = Arc::<AtomicUsize>::default();
        let connections = Arc::<AtomicUsize>::default();
        let mut serving = JoinSet::new();
        serving.spawn(accept(
            listener,
            Arc::new(script),
            recorded.clone(),
            Arc::clone(&aborted),
            Arc::clone(&connections),
        ));
        Self { url, recorded, aborted, connections, _serving: serving }
    }

    /// Returns the requests so far with this method.
    pub(in super::super) fn requests(&self, method: &str) -> Vec<RecordedRequest> {
        self.recorded.lock().unwrap().iter().filter(|request| request.method() == method).cloned().collect()
    }

    /// Returns all methods so far, in order.
    pub(in super::super) fn methods(&self) -> Vec<String> {
        self.recorded.lock().unwrap().iter().map(|request| request.method().to_owned()).collect()
    }

    /// Polls until the condition holds.
    pub(in super::super) async fn wait_until(&self, condition: impl Fn(&Self) -> bool) {
        for _ in 0..500 {
            if condition(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the condition was not met; requests: {:?}", self.methods());
    }

    pub(in super::super) fn aborted_responses(&self) -> usize {
        self.aborted.load(Ordering::SeqCst)
    }
}

type Script = dyn Fn(&RecordedRequest) -> Reply + Send + Sync;

async fn accept(
    listener: TcpListener,
    script: Arc<Script>,
    recorded: Arc<Mutex<Vec<RecordedRequest>>>,
    aborted: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
) {
    let mut serving = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        connections.fetch_add(1, Ordering::SeqCst);
        let (script, recorded, aborted) = (script.clone(), recorded.clone(), aborted.clone());
        let service = service_fn(move |request| {
            let (script, recorded, aborted) = (script.clone(), recorded.clone(), aborted.clone());
            async move { Ok::<_, Infallible>(serve(request, &script, &recorded, aborted).await) }
        });
        serving.spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            // Some tests disconnect on purpose.
            let _ = connection.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

async fn serve(
    request: Request<Incoming>,
    script: &Arc<Script>,
    recorded: &Mutex<Vec<RecordedRequest>>,
    aborted: Arc<AtomicUsize>,
) -> Response<SteppedBody> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let request = RecordedRequest {
        http_method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    recorded.lock().unwrap().push(request.clone());
    let reply = script(&request);
    tokio::time::sleep(reply.delay).await;
    let mut response = Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        response = response.header(*name, value);
    }
    let (pieces, body) = mpsc::channel(1);
    let mut playing = JoinSet::new();
    playing.spawn(play_steps(reply.steps, pieces, aborted));
    response.body(SteppedBody { body, _playing: playing }).unwrap()
}

async fn play_steps(steps: Vec<Step>, pieces: mpsc::Sender<io::Result<Bytes>>, aborted: Arc<AtomicUsize>) {
    let mut counter = AbortCounter { aborted, completed: false };
    for step in steps {
        let piece = match step {
            Step::Send(text) => Ok(text.into()),
            Step::Disconnect => Err(io::Error::other("disconnected on purpose")),
            Step::Pause(time) => {
                tokio::time::sleep(time).await;
                continue;
            }
            Step::Forward(messages) => {
                while let Some(message) =
                    messages.lock().await.recv().await.filter(|message| !message.is_null())
                {
                    let _ = pieces.send(Ok(format!("data: {message}\n\n").into())).await;
                }
                continue;
            }
            Step::Hang => return std::future::pending().await,
        };
        if pieces.send(piece).await.is_err() {
            return;
        }
    }
    counter.completed = true;
}

/// Counts a response that is dropped before it is complete.
struct AbortCounter {
    aborted: Arc<AtomicUsize>,
    completed: bool,
}

impl Drop for AbortCounter {
    fn drop(&mut self) {
        self.aborted.fetch_add(usize::from(!self.completed), Ordering::SeqCst);
    }
}

struct SteppedBody {
    body: mpsc::Receiver<io::Result<Bytes>>,
    _playing: JoinSet<()>,
}

impl Body for SteppedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.body.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
