//! Client of a running gateway: its admin API, and its MCP endpoint in the stateless era.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Once;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use toolcrib::protocol::era::meta;
use toolcrib::protocol::header_mirror;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::sse::SseDecoder;
use toolcrib::protocol::versions::{Era, Revision};

use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::paths::{Paths, check_socket_dir};
use crate::progress_line;
use crate::report::Report;

/// A running gateway.
#[derive(Debug, Clone)]
pub(crate) enum GatewayClient {
    /// The gateway of a config, at its Unix socket.
    Socket(PathBuf),
    /// A gateway at a TCP address.
    Tcp(SocketAddr),
}

/// An HTTP response of the gateway.
struct GatewayResponse {
    status: StatusCode,
    /// The body, or the data of the events of a stream.
    messages: Vec<Bytes>,
}

impl GatewayResponse {
    /// Returns the body, or the last event of a stream.
    fn body(&self) -> Bytes {
        self.messages.last().cloned().unwrap_or_default()
    }
}

/// Receives the data of an event, and returns whether more are wanted.
pub(crate) type EventHandler<'a> = dyn FnMut(Bytes) -> bool + Send + 'a;

/// A connection to the gateway of a config.
struct ConnectedSocket {
    stream: UnixStream,
    path: PathBuf,
}

/// Connects to the gateway of this config, or returns `None` if none is running.
pub(crate) async fn connect(paths: &Paths) -> Result<Option<UnixStream>, CommandError> {
    Ok(connect_socket(paths).await?.map(|connected| connected.stream))
}

async fn connect_socket(paths: &Paths) -> Result<Option<ConnectedSocket>, CommandError> {
    let own = paths.socket_path();
    for path in paths.socket_candidates() {
        match connect_at(&path).await {
            Ok(Some(stream)) => return Ok(Some(ConnectedSocket { stream, path })),
            Err(error) if path == own => return Err(error),
            // A recorded address may be outdated.
            Ok(None) | Err(_) => {}
        }
    }
    Ok(None)
}

/// Connects to the socket of a gateway. Returns `None` if nothing listens there, or only a process of another user.
pub(crate) async fn connect_at(path: &Path) -> Result<Option<UnixStream>, CommandError> {
    check_socket_dir(path.parent().unwrap_or(path))?;
    match UnixStream::connect(path).await {
        Ok(stream) if is_trusted_peer(&stream) => Ok(Some(stream)),
        Ok(_) => {
            warn_other_user(path);
            Ok(None)
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(connect_error(path, &error)),
    }
}

/// Returns whether the process at the other end of a socket belongs to this user or root. File permissions should ensure
/// that, but the folder of a socket may have been replaced since they were checked.
pub(crate) fn is_trusted_peer(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| is_trusted_user(peer.uid()))
}

/// Returns whether a user id is that of this user or root.
pub(crate) fn is_trusted_user(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() || uid == 0
}

/// Warns once about a socket of another user. Commands that hide warnings show it too.
fn warn_other_user(path: &Path) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        let path = path.display();
        tracing::error!("ignored a gateway at `{path}`: its process belongs to another user");
    });
}

/// Returns whether a gateway of this config is running.
pub(crate) async fn is_running(paths: &Paths) -> bool {
    connect(paths).await.is_ok_and(|stream| stream.is_some())
}

impl GatewayClient {
    /// Returns the gateway of this config, if one is running.
    pub(crate) async fn find(paths: &Paths) -> Result<Option<Self>, CommandError> {
        Ok(connect_socket(paths).await?.map(|connected| Self::Socket(connected.path)))
    }

    /// Returns the gateway of this config, or an error if none is running.
    pub(crate) async fn require(paths: &Paths) -> Result<Self, CommandError> {
        Self::find(paths).await?.ok_or_else(CommandError::no_gateway)
    }

    /// Sends a GET request to the admin API and reads the report.
    pub(crate) async fn fetch<R: Report>(&self, path: &str) -> Result<R, CommandError> {
        self.get(path).await.map(|value| R::from_json(&value))
    }

    /// Sends a POST request to the admin API and reads the report.
    pub(crate) async fn submit<R: Report>(&self, path: &str) -> Result<R, CommandError> {
        self.post(path).await.map(|value| R::from_json(&value))
    }

    /// Sends a GET request to the admin API.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, CommandError> {
        self.send_admin(Method::GET, path).await
    }

    /// Sends a POST request to the admin API.
    pub(crate) async fn post(&self, path: &str) -> Result<Value, CommandError> {
        self.send_admin(Method::POST, path).await
    }

    /// Sends a GET request for a stream of events, and passes the data of each event on until the stream ends or `receive` returns
    /// `false`.
    pub(crate) async fn follow(
        &self,
        path: &str,
        receive: &mut EventHandler<'_>,
    ) -> Result<(), CommandError> {
        let response = self.send_with(Method::GET, path, &[], Bytes::new(), receive).await?;
        match response.status.is_success() {
            true => Ok(()),
            false => {
                let value: Value = serde_json::from_slice(&response.body()).unwrap_or_default();
                Err(CommandError::from_admin_error(&value["error"]))
            }
        }
    }

    async fn send_admin(&self, method: Method, path: &str) -> Result<Value, CommandError> {
        let response = self.send(method, path, &[], Bytes::new()).await?;
        let value: Value = serde_json::from_slice(&response.body()).map_err(|error| {
            gateway_lost(&format!("its response is not JSON ({}): {error}", response.status))
        })?;
        if response.status.is_success() {
            Ok(value)
        } else {
            Err(CommandError::from_admin_error(&value["error"]))
        }
    }

    /// Sends a request to the MCP endpoint at `path`, from a client without capabilities.
    pub(crate) async fn request(
        &self,
        path: &str,
        method: &str,
        params: Object,
    ) -> Result<ResponsePayload, CommandError> {
        self.request_with(path, method, params, "{}").await
    }

    /// Sends a request to the MCP endpoint at `path`. The `_meta` of `params` is set to the client's own, with these
    /// capabilities.
    pub(crate) async fn request_with(
        &self,
        path: &str,
        method: &str,
        mut params: Object,
        capabilities: &'static str,
    ) -> Result<ResponsePayload, CommandError> {
        let revision = Revision::newest(Era::Stateless).as_str();
        let name = header_mirror::name_header(method, &params)
            .map(|name| header_mirror::encode_header(&name).into_owned());
        params.set_unchecked("_meta", client_meta(revision, capabilities));
        let mut request = Object::default();
        request.set_unchecked("jsonrpc", Bytes::from_static(b"\"2.0\""));
        request.set_unchecked("id", Bytes::from_static(b"1"));
        request.set_unchecked("method", object::to_json_string(method));
        request.set_unchecked("params", params.to_bytes());
        let mut headers =
            vec![("mcp-protocol-version", revision.to_owned()), ("mcp-method", method.to_owned())];
        headers.extend(name.map(|name| ("mcp-name", name)));
        let response = self.send(Method::POST, path, &headers, request.to_bytes()).await?;
        parse_response(&response)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<GatewayResponse, CommandError> {
        let mut events = Vec::new();
        let mut receive = |event: Bytes| {
            match progress_params(&event) {
                Some(params) => progress_line::record_progress(&params),
                None => events.push(event),
            }
            true
        };
        let mut response = self.send_with(method, path, headers, body, &mut receive).await?;
        response.messages.extend(events);
        Ok(response)
    }

    /// Sends a request. The events of a stream are passed on; another body is in the response.
    async fn send_with(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
        receive: &mut EventHandler<'_>,
    ) -> Result<GatewayResponse, CommandError> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.host());
        request = request.header(ACCEPT, "application/json, text/event-stream");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            let value =
                HeaderValue::from_str(value).map_err(|error| CommandError::usage(error.to_string()))?;
            request = request.header(*name, value);
        }
        let request =
            request.body(Full::new(body)).map_err(|error| CommandError::usage(error.to_string()))?;
        let sent = match self {
            Self::Socket(path) => {
                let stream = connect_at(path).await?.ok_or_else(|| gateway_lost("it has ended"))?;
                exchange(stream, request, receive).await
            }
            Self::Tcp(address) => {
                let stream =
                    TcpStream::connect(address).await.map_err(|error| gateway_lost(&error.to_string()))?;
                let _ = stream.set_nodelay(true);
                exchange(stream, request, receive).await
            }
        };
        sent.map_err(|error| gateway_lost(&error.to_string()))
    }

    fn host(&self) -> String {
        match self {
            Self::Socket(_) => "localhost".to_owned(),
            Self::Tcp(address) => address.to_string(),
        }
    }
}

fn connect_error(socket: &Path, error: &io::Error) -> CommandError {
    gateway_lost(&format!("cannot connect to `{}`: {error}", socket.display()))
}

fn gateway_lost(reason: &str) -> CommandError {
    CommandError::new(
        ExitStatus::Unreachable,
        "gateway_lost",
        format!("the gateway did not respond: {reason}"),
    )
    .hint("toolcrib status")
}

/// Sends one request on a new connection. Dropping the future closes the connection, which cancels the request.
async fn exchange<I>(
    io: I,
    request: Request<Full<Bytes>>,
    receive: &mut EventHandler<'_>,
) -> Result<GatewayResponse, hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let work = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let messages = match kind.starts_with(b"text/event-stream") {
            true => {
                read_events(body, receive).await?;
                Vec::new()
            }
            false => vec![body.collect().await?.to_bytes()],
        };
        Ok(GatewayResponse { status: head.status, messages })
    };
    tokio::pin!(work, connection);
    tokio::select! {
        done = &mut work => return done,
        _ = &mut connection => {}
    }
    work.await
}

/// Reads a stream, and passes the data of each event on until `receive` returns `false`.
async fn read_events<B>(mut body: B, receive: &mut EventHandler<'_>) -> Result<(), B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut decoder = SseDecoder::new(usize::MAX);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        decoder.push(&data);
        while let Ok(Some(event)) = decoder.next_event() {
            if !receive(event.data) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Returns the parameters of a progress notification.
fn progress_params(message: &Bytes) -> Option<Object> {
    let message = Object::parse(message).ok()?;
    let is_progress = message.get_string("method")? == "notifications/progress";
    Object::parse(message.get("params").filter(|_| is_progress)?).ok()
}

/// The name and version of the commands as a client. The gateway sends this name whole results.
const CLIENT_INFO: &str =
    concat!(r#"{"name":"toolcrib-cli","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

fn client_meta(revision: &str, capabilities: &'static str) -> Bytes {
    let mut meta = Object::default();
    meta.set_unchecked(meta::PROTOCOL_VERSION, object::to_json_string(revision));
    meta.set_unchecked(meta::CLIENT_CAPABILITIES, Bytes::from_static(capabilities.as_bytes()));
    meta.set_unchecked(meta::CLIENT_INFO, CLIENT_INFO);
    if progress_line::is_enabled() {
        meta.set_unchecked(meta::PROGRESS_TOKEN, Bytes::from_static(b"1"));
    }
    meta.to_bytes()
}

fn parse_response(response: &GatewayResponse) -> Result<ResponsePayload, CommandError> {
    for message in &response.messages {
        let Ok(message) = Object::parse(message) else { continue };
        if let Some(result) = message.get("result") {
            return Ok(ResponsePayload::Result(result.clone()));
        }
        if let Some(error) = message.get("error").filter(|raw| raw.first() == Some(&b'{')) {
            return Ok(ResponsePayload::Error(error.clone()));
        }
    }
    let body = response.body();
    let text = String::from_utf8_lossy(&body[..body.len().min(200)]);
    Err(gateway_lost(&format!("unexpected response ({}): {}", response.status, text.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn response_is_read_from_body_and_stream() {
        let parse =
            |messages: Vec<Bytes>| parse_response(&GatewayResponse { status: StatusCode::OK, messages });
        let plain =
            parse(vec![Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"result":{"a":1.0}}"#)]).unwrap();
        assert_eq!(plain, ResponsePayload::Result(Bytes::from_static(br#"{"a":1.0}"#)));
        let stream = "data: {\"method\":\"notifications/progress\",\"params\":{\"progress\":1}}\n\ndata: {\"method\":\"x\"}\n\ndata: {\"id\":1,\"error\":{\"code\":1}}\n\n";
        let mut messages = Vec::new();
        let mut receive = |event| {
            messages.push(event);
            true
        };
        read_events(Full::new(Bytes::from_static(stream.as_bytes())), &mut receive).await.unwrap();
        assert_eq!(messages.len(), 3);
        assert_eq!(parse(messages).unwrap(), ResponsePayload::Error(Bytes::from_static(br#"{"code":1}"#)));
        assert!(parse(vec![Bytes::from_static(b"<html>")]).is_err());
    }
}
