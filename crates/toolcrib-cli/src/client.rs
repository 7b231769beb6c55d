//! Client of a running gateway: its admin API, and its MCP endpoint in the stateless era.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use toolcrib::protocol::era::{IMPLEMENTATION, meta};
use toolcrib::protocol::header_mirror;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::sse::SseDecoder;
use toolcrib::protocol::versions::{Era, Revision};

use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::paths::{Paths, check_socket_dir};
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
    is_stream: bool,
    body: Bytes,
}

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

/// Connects to a socket. Returns `None` if nothing listens there.
async fn connect_at(path: &Path) -> Result<Option<UnixStream>, CommandError> {
    check_socket_dir(path.parent().unwrap_or(path))?;
    match UnixStream::connect(path).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(connect_error(path, &error)),
    }
}

/// Returns whether a gateway of this config is running. Blocks.
pub(crate) fn is_running(paths: &Paths) -> bool {
    let is_open = |path: &PathBuf| std::os::unix::net::UnixStream::connect(path).is_ok();
    paths.socket_candidates().iter().any(is_open)
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

    async fn send_admin(&self, method: Method, path: &str) -> Result<Value, CommandError> {
        let response = self.send(method, path, &[], Bytes::new()).await?;
        let value: Value = serde_json::from_slice(&response.body).map_err(|error| {
            gateway_lost(&format!("its response is not JSON ({}): {error}", response.status))
        })?;
        if response.status.is_success() {
            Ok(value)
        } else {
            Err(CommandError::from_error_object(&value["error"]))
        }
    }

    /// Sends a request to the MCP endpoint at `path`. The `_meta` of `params` is set to the client's own.
    pub(crate) async fn request(
        &self,
        path: &str,
        method: &str,
        mut params: Object,
    ) -> Result<ResponsePayload, CommandError> {
        let revision = Revision::newest(Era::Stateless).as_str();
        let name = header_mirror::name_header(method, &params)
            .map(|name| header_mirror::encode_header(&name).into_owned());
        params.set_unchecked("_meta", client_meta(revision));
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
                let stream = UnixStream::connect(path).await.map_err(|error| connect_error(path, &error))?;
                exchange(stream, request).await
            }
            Self::Tcp(address) => {
                let stream =
                    TcpStream::connect(address).await.map_err(|error| gateway_lost(&error.to_string()))?;
                let _ = stream.set_nodelay(true);
                exchange(stream, request).await
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
async fn exchange<I>(io: I, request: Request<Full<Bytes>>) -> Result<GatewayResponse, hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let work = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_stream = kind.starts_with(b"text/event-stream");
        Ok(GatewayResponse { status: head.status, is_stream, body: body.collect().await?.to_bytes() })
    };
    tokio::pin!(work, connection);
    tokio::select! {
        done = &mut work => return done,
        _ = &mut connection => {}
    }
    work.await
}

fn client_meta(revision: &str) -> Bytes {
    let mut meta = Object::default();
    meta.set_unchecked(meta::PROTOCOL_VERSION, object::to_json_string(revision));
    meta.set_unchecked(meta::CLIENT_CAPABILITIES, Bytes::from_static(b"{}"));
    meta.set_unchecked(meta::CLIENT_INFO, IMPLEMENTATION);
    meta.to_bytes()
}

fn parse_response(response: &GatewayResponse) -> Result<ResponsePayload, CommandError> {
    let messages =
        if response.is_stream { decode_events(&response.body) } else { vec![response.body.clone()] };
    for message in messages {
        let Ok(message) = Object::parse(&message) else { continue };
        if let Some(result) = message.get("result") {
            return Ok(ResponsePayload::Result(result.clone()));
        }
        if let Some(error) = message.get("error").filter(|raw| raw.first() == Some(&b'{')) {
            return Ok(ResponsePayload::Error(error.clone()));
        }
    }
    let text = String::from_utf8_lossy(&response.body[..response.body.len().min(200)]);
    Err(gateway_lost(&format!("unexpected response ({}): {}", response.status, text.trim())))
}

fn decode_events(body: &Bytes) -> Vec<Bytes> {
    let mut events = SseDecoder::new(body.len());
    events.push(body);
    let next = || events.next_event().ok().flatten().map(|event| event.data);
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_response_reads_plain_body_and_stream() {
        let parse = |body: &'static str, is_stream| {
            parse_response(&GatewayResponse {
                status: StatusCode::OK,
                is_stream,
                body: Bytes::from_static(body.as_bytes()),
            })
        };
        let plain = parse(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1.0}}"#, false).unwrap();
        assert_eq!(plain, ResponsePayload::Result(Bytes::from_static(br#"{"a":1.0}"#)));
        let stream =
            "data: {\"method\":\"notifications/progress\"}\n\ndata: {\"id\":1,\"error\":{\"code\":1}}\n\n";
        assert_eq!(
            parse(stream, true).unwrap(),
            ResponsePayload::Error(Bytes::from_static(br#"{"code":1}"#))
        );
        assert!(parse("<html>", false).is_err());
    }
}
