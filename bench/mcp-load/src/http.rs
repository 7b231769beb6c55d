//! Streamable HTTP client: one keep-alive connection per worker, and sessions shared as configured.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::cli::ConnectArgs;
use crate::events::Events;
use crate::sse::SseStream;
use crate::{pending, rpc};

/// Limit on the time that an event stream may stay open after the answer before its connection is closed.
const STREAM_END_TIMEOUT: Duration = Duration::from_secs(2);

/// The address, and the headers of every request.
#[derive(Clone)]
pub(crate) struct Destination {
    pub(crate) uri: Uri,
    pub(crate) address: String,
    pub(crate) headers: HeaderMap,
    /// The requested protocol revision.
    version: String,
    pub(crate) timeout: Duration,
    /// Speak the HTTP+SSE transport of 2024-11-05 instead of Streamable HTTP.
    sse: bool,
}

impl Destination {
    pub(crate) fn new(url: &str, connect: &ConnectArgs) -> Result<Self> {
        let uri: Uri = url.parse().context("bad url")?;
        let host = uri.host().context("url without host")?;
        let address = format!("{host}:{}", uri.port_u16().unwrap_or(80));
        let authority = uri.authority().context("url without authority")?.as_str();
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_str(authority)?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        for header in &connect.header {
            let (name, value) = header.split_once(':').context("header must be `Name: value`")?;
            let name = HeaderName::from_bytes(name.trim().as_bytes())?;
            headers.insert(name, HeaderValue::from_str(value.trim())?);
        }
        let version = connect.protocol.clone();
        let timeout = connect.timeout();
        let sse = connect.sse;
        Ok(Self { uri, address, headers, version, timeout, sse })
    }
}

/// The result of a handshake.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    pub(crate) id: Option<String>,
    pub(crate) version: String,
    pub(crate) server: String,
}

impl Session {
    /// Creates the session from the answer to `initialize`, which is always request 0.
    pub(crate) fn from_initialize(answer: &[u8], id: Option<String>) -> Result<Self> {
        let response = rpc::Response::matching(answer, 0).context("no initialize response")?;
        let result: serde_json::Value = serde_json::from_str(response.into_result()?.get())?;
        let version = result["protocolVersion"].as_str().context("no protocolVersion")?.to_owned();
        let server = result["serverInfo"]["name"].as_str().unwrap_or("").to_owned();
        Ok(Self { id, version, server })
    }
}

/// The answer to a POST.
pub(crate) struct Answer {
    status: u16,
    pub(crate) body: Bytes,
    session: Option<String>,
    /// Time at which the matching message was complete; an SSE stream may end later.
    pub(crate) at: Instant,
}

impl Answer {
    fn accepted(self) -> Result<Self> {
        match self.status {
            ..400 => Ok(self),
            status => bail!("http {status} {}", rpc::shorten(&String::from_utf8_lossy(&self.body))),
        }
    }
}

pub(crate) struct Connection {
    destination: Arc<Destination>,
    sender: Option<SendRequest<Full<Bytes>>>,
    pub(crate) session: Session,
    pub(crate) reconnects: u64,
    pub(crate) sse_answers: u64,
    /// Set if the other side uses the older HTTP+SSE transport.
    pub(crate) stream: Option<SseStream>,
}

impl Connection {
    pub(crate) fn new(destination: Arc<Destination>, session: Session) -> Self {
        Self { destination, sender: None, session, reconnects: 0, sse_answers: 0, stream: None }
    }

    async fn sender(&mut self) -> Result<&mut SendRequest<Full<Bytes>>> {
        let usable = match &mut self.sender {
            Some(sender) => sender.ready().await.is_ok(),
            None => false,
        };
        if !usable {
            if self.sender.is_some() {
                self.disconnect();
            }
            let stream = TcpStream::connect(&self.destination.address).await.context("connect")?;
            stream.set_nodelay(true)?;
            let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            self.sender = Some(sender);
        }
        self.sender.as_mut().context("connected")
    }

    fn disconnect(&mut self) {
        self.sender = None;
        self.reconnects += 1;
    }

    fn headers(&self, method: Option<&str>, name: Option<&str>) -> Result<HeaderMap> {
        let mut headers = self.destination.headers.clone();
        let mut insert = |name: &'static str, value: &str| -> Result<()> {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value)?);
            Ok(())
        };
        if let Some(id) = &self.session.id {
            insert("mcp-session-id", id)?;
        }
        if !self.session.version.is_empty() {
            insert("mcp-protocol-version", &self.session.version)?;
        }
        if rpc::has_no_handshake(&self.destination.version) {
            if let Some(method) = method {
                insert("mcp-method", method)?;
            }
            if let Some(name) = name {
                insert("mcp-name", name)?;
            }
        }
        Ok(headers)
    }

    /// POSTs one message and reads the response to `id`, or any body if it is `None`.
    async fn post(&mut self, uri: &Uri, headers: HeaderMap, body: Bytes, id: Option<u64>) -> Result<Answer> {
        let timeout = self.destination.timeout;
        let exchange = async {
            let response = self.send(uri, &headers, &body).await?;
            self.read(response, id).await
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => {
                self.disconnect();
                Err(anyhow!("timeout after {} s", timeout.as_secs()))
            }
        }
    }

    async fn send(&mut self, uri: &Uri, headers: &HeaderMap, body: &Bytes) -> Result<Response<Incoming>> {
        let mut retried = false;
        loop {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
            *request.headers_mut() = headers.clone();
            match self.sender().await?.send_request(request).await {
                Ok(response) => return Ok(response),
                // The peer may close a keep-alive connection at the moment it is used.
                Err(error) if !retried && (error.is_canceled() || error.is_incomplete_message()) => {
                    self.disconnect();
                    retried = true;
                }
                Err(error) => {
                    self.sender = None;
                    return Err(error.into());
                }
            }
        }
    }

    async fn read(&mut self, response: Response<Incoming>, id: Option<u64>) -> Result<Answer> {
        let status = response.status().as_u16();
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
        };
        let session = header("mcp-session-id");
        let is_stream = header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream"));
        let mut incoming = response.into_body();
        let Some(id) = id.filter(|_| is_stream) else {
            let body = incoming.collect().await?.to_bytes();
            return Ok(Answer { status, body, session, at: Instant::now() });
        };
        self.sse_answers += 1;
        let mut events = Events::default();
        let body = loop {
            let data = events.next(&mut incoming).await?.data();
            if !data.is_empty() && rpc::Response::matching(&data, id).is_some() {
                break data;
            }
        };
        let at = Instant::now();
        // The connection can be used again after the stream has ended.
        let drained = async { while let Some(Ok(_)) = incoming.frame().await {} };
        if tokio::time::timeout(STREAM_END_TIMEOUT, drained).await.is_err() {
            self.disconnect();
        }
        Ok(Answer { status, body, session, at })
    }

    /// Sends a request and returns the raw response message.
    pub(crate) async fn request(
        &mut self,
        id: u64,
        method: &str,
        params: &str,
        name: Option<&str>,
    ) -> Result<Answer> {
        let message = rpc::request_for(&self.destination.version, id, method, params);
        let headers = self.headers(Some(method), name)?;
        if let Some(stream) = self.stream.clone() {
            let receiver = stream.pending.expect(id);
            let posted = self.post(&stream.endpoint, headers, message.into(), None).await?.accepted()?;
            let (body, at) = pending::wait(receiver, self.destination.timeout).await?;
            return Ok(Answer { body, at, ..posted });
        }
        let uri = self.destination.uri.clone();
        self.post(&uri, headers, message.into(), Some(id)).await?.accepted()
    }

    /// Sends `initialize` and `notifications/initialized`; nothing for revisions without them.
    pub(crate) async fn handshake(&mut self) -> Result<()> {
        let version = self.destination.version.clone();
        self.session = Session::default();
        if rpc::has_no_handshake(&version) {
            self.session.version = version;
            return Ok(());
        }
        if self.destination.sse {
            self.stream = Some(SseStream::open(&self.destination).await?);
        }
        let answer = self.request(0, "initialize", &rpc::initialize_params(&version), None).await?;
        self.session = Session::from_initialize(&answer.body, answer.session)?;
        let uri = self.stream.as_ref().map_or(&self.destination.uri, |stream| &stream.endpoint).clone();
        let headers = self.headers(None, None)?;
        let posted = self.post(&uri, headers, Bytes::from_static(rpc::INITIALIZED), None).await?;
        posted.accepted().context("notifications/initialized")?;
        Ok(())
    }

    /// POSTs `arguments` to `<url>/<tool>`, as OpenAPI bridges such as mcpo expect.
    pub(crate) async fn rest(&mut self, tool: &str, arguments: &str) -> Result<Answer> {
        let base = self.destination.uri.to_string();
        let uri: Uri = format!("{}/{tool}", base.trim_end_matches('/')).parse()?;
        let headers = self.destination.headers.clone();
        self.post(&uri, headers, Bytes::from(arguments.to_owned()), None).await?.accepted()
    }
}
