//! `Far`: a scripted remote server on a real socket, which remembers every request.

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

/// One request as it arrived.
#[derive(Debug, Clone)]
pub(in super::super) struct Seen {
    pub(in super::super) http: String,
    pub(in super::super) path: String,
    pub(in super::super) headers: HeaderMap,
    pub(in super::super) body: Value,
}

impl Seen {
    /// The method of its message, or of the request if it holds none.
    pub(in super::super) fn what(&self) -> &str {
        self.body["method"].as_str().unwrap_or(&self.http)
    }

    pub(in super::super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(in super::super) fn tool(&self) -> &str {
        self.body["params"]["name"].as_str().unwrap_or_default()
    }
}

/// A piece of a response's body.
#[derive(Debug, Clone)]
pub(in super::super) enum Step {
    Say(String),
    Pause(Duration),
    /// Says nothing more until the client leaves.
    Hang,
    /// Breaks the connection.
    Cut,
    /// Sends what others want said, until they say nothing.
    Forward(Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Value>>>),
}

/// An event with a message in it.
pub(in super::super) fn event(message: &Value) -> Step {
    Step::Say(format!("data: {message}\n\n"))
}

pub(in super::super) fn numbered(id: &str, message: &Value) -> Step {
    Step::Say(format!("id: {id}\ndata: {message}\n\n"))
}

/// How a request is answered.
#[derive(Debug, Clone)]
pub(in super::super) struct Reply {
    pub(in super::super) status: u16,
    pub(in super::super) headers: Vec<(&'static str, String)>,
    pub(in super::super) steps: Vec<Step>,
}

impl Reply {
    pub(in super::super) fn text(status: u16, kind: &str, text: impl Into<String>) -> Self {
        let headers = vec![("content-type", kind.to_owned())];
        Self { status, headers, steps: vec![Step::Say(text.into())] }
    }

    pub(in super::super) fn json(status: u16, value: &Value) -> Self {
        Self::text(status, "application/json", value.to_string())
    }

    pub(in super::super) fn events(steps: impl IntoIterator<Item = Step>) -> Self {
        let headers = vec![("content-type", "text/event-stream".to_owned())];
        Self { status: 200, headers, steps: steps.into_iter().collect() }
    }

    pub(in super::super) fn empty(status: u16) -> Self {
        Self { status, headers: Vec::new(), steps: Vec::new() }
    }

    pub(in super::super) fn result(seen: &Seen, result: &Value) -> Self {
        Self::json(200, &answer(seen, result))
    }

    pub(in super::super) fn error(status: u16, seen: &Seen, code: i64) -> Self {
        let error = json!({"code": code, "message": "no"});
        Self::json(status, &json!({"jsonrpc": "2.0", "id": seen.body["id"], "error": error}))
    }

    /// Goes on with what is heard there.
    pub(in super::super) fn forwarding(mut self, heard: mpsc::UnboundedReceiver<Value>) -> Self {
        self.steps.push(Step::Forward(Arc::new(tokio::sync::Mutex::new(heard))));
        self
    }

    pub(in super::super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

pub(in super::super) fn answer(seen: &Seen, result: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": seen.body["id"], "result": result})
}

/// A tool's answer: its own name.
pub(in super::super) fn said(seen: &Seen) -> Value {
    answer(seen, &json!({"content": [{"type": "text", "text": seen.tool()}]}))
}

/// A server of the stateless era with one tool.
pub(in super::super) fn stateless(seen: &Seen) -> Reply {
    match seen.what() {
        "server/discover" => {
            let welcome = json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}});
            Reply::result(seen, &welcome)
        }
        "tools/list" => Reply::result(seen, &json!({"tools": [{"name": "echo"}]})),
        "tools/call" => Reply::json(200, &said(seen)),
        _ => Reply::error(404, seen, -32601),
    }
}

/// A server of the session era with one tool, and a session that it calls `id`.
pub(in super::super) fn session(seen: &Seen, id: &str) -> Reply {
    match seen.what() {
        "initialize" => {
            let welcome = json!({"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}});
            Reply::result(seen, &welcome).with("mcp-session-id", id)
        }
        "tools/list" | "tools/call" if seen.header("mcp-session-id") != Some(id) => Reply::empty(404),
        "tools/list" => Reply::result(seen, &json!({"tools": [{"name": "echo"}]})),
        "tools/call" => Reply::json(200, &said(seen)),
        "GET" => Reply::empty(405),
        "server/discover" => Reply::text(400, "text/html", "<p>no</p>"),
        _ => Reply::empty(202),
    }
}

/// A scripted remote server.
pub(in super::super) struct Far {
    pub(in super::super) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    /// Clients that left before their response had ended.
    left: Arc<AtomicUsize>,
    pub(in super::super) connections: Arc<AtomicUsize>,
    _serving: JoinSet<()>,
}

impl Far {
    pub(in super::super) async fn start(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let (seen, left, connections) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::default(), Arc::default());
        let mut serving = JoinSet::new();
        serving.spawn(accept(
            listener,
            Arc::new(script),
            seen.clone(),
            Arc::clone(&left),
            Arc::clone(&connections),
        ));
        Self { url, seen, left, connections, _serving: serving }
    }

    /// The requests so far for this method.
    pub(in super::super) fn seen(&self, what: &str) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.what() == what).cloned().collect()
    }

    /// All methods so far, in order.
    pub(in super::super) fn story(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|seen| seen.what().to_owned()).collect()
    }

    /// Waits until something has come true.
    pub(in super::super) async fn until(&self, what: impl Fn(&Self) -> bool) {
        for _ in 0..500 {
            if what(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it did not happen: {:?}", self.story());
    }

    pub(in super::super) fn left(&self) -> usize {
        self.left.load(Ordering::SeqCst)
    }
}

type Script = dyn Fn(&Seen) -> Reply + Send + Sync;

async fn accept(
    listener: TcpListener,
    script: Arc<Script>,
    seen: Arc<Mutex<Vec<Seen>>>,
    left: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
) {
    let mut serving = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        connections.fetch_add(1, Ordering::SeqCst);
        let (script, seen, left) = (script.clone(), seen.clone(), left.clone());
        let service = service_fn(move |request| {
            let (script, seen, left) = (script.clone(), seen.clone(), left.clone());
            async move { Ok::<_, Infallible>(serve(request, &script, &seen, left).await) }
        });
        serving.spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            // A client that leaves is what some tests are about.
            let _ = connection.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

async fn serve(
    request: Request<Incoming>,
    script: &Arc<Script>,
    all: &Mutex<Vec<Seen>>,
    left: Arc<AtomicUsize>,
) -> Response<Piped> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let seen = Seen {
        http: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    all.lock().unwrap().push(seen.clone());
    let reply = script(&seen);
    let mut response = Response::builder().status(reply.status);
    for (name, value) in &reply.headers {
        response = response.header(*name, value);
    }
    let (pieces, body) = mpsc::channel(1);
    let mut playing = JoinSet::new();
    playing.spawn(play(reply.steps, pieces, left));
    response.body(Piped { body, _playing: playing }).unwrap()
}

async fn play(steps: Vec<Step>, pieces: mpsc::Sender<io::Result<Bytes>>, left: Arc<AtomicUsize>) {
    let mut leaving = Leaving { left, over: false };
    for step in steps {
        let piece = match step {
            Step::Say(text) => Ok(text.into()),
            Step::Cut => Err(io::Error::other("cut")),
            Step::Pause(time) => {
                tokio::time::sleep(time).await;
                continue;
            }
            Step::Forward(heard) => {
                while let Some(message) = heard.lock().await.recv().await.filter(|message| !message.is_null())
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
    leaving.over = true;
}

/// Counts a client that left while the response was played.
struct Leaving {
    left: Arc<AtomicUsize>,
    over: bool,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.left.fetch_add(usize::from(!self.over), Ordering::SeqCst);
    }
}

struct Piped {
    body: mpsc::Receiver<io::Result<Bytes>>,
    _playing: JoinSet<()>,
}

impl Body for Piped {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.body.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
