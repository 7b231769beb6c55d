//! Talks to a running gateway: its admin API as JSON, its MCP endpoint in the stateless form.

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
use toolcrib::wire::dialect::{IMPLEMENTATION, meta};
use toolcrib::wire::message::Answer;
use toolcrib::wire::mirror;
use toolcrib::wire::object::{self, Object};
use toolcrib::wire::revision::{Era, Revision};
use toolcrib::wire::sse::SseEvents;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::place::Place;

/// A running gateway.
#[derive(Debug, Clone)]
pub(crate) enum Client {
    /// The daemon of a config, at its own socket.
    Socket(PathBuf),
    /// Any gateway, at its address.
    Tcp(SocketAddr),
}

/// What came back over HTTP.
struct Response {
    status: StatusCode,
    is_stream: bool,
    body: Bytes,
}

/// Connects to the daemon of this config; `None` if there is none.
pub(crate) async fn connect(place: &Place) -> Result<Option<UnixStream>, Failure> {
    place.check_run()?;
    let socket = place.socket();
    match UnixStream::connect(&socket).await {
        Ok(stream) => Ok(Some(stream)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            Ok(None)
        }
        Err(error) => Err(lost(&format!("cannot connect to `{}`: {error}", socket.display()))),
    }
}

impl Client {
    /// The daemon of this config, if one is running.
    pub(crate) async fn find(place: &Place) -> Result<Option<Self>, Failure> {
        Ok(connect(place).await?.map(|_| Self::Socket(place.socket())))
    }

    /// The daemon of this config.
    pub(crate) async fn demand(place: &Place) -> Result<Self, Failure> {
        Self::find(place).await?.ok_or_else(Failure::no_daemon)
    }

    /// Reads from the admin API.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.admin(Method::GET, path).await
    }

    /// Does something through the admin API.
    pub(crate) async fn post(&self, path: &str) -> Result<Value, Failure> {
        self.admin(Method::POST, path).await
    }

    async fn admin(&self, method: Method, path: &str) -> Result<Value, Failure> {
        let response = self.send(method, path, &[], Bytes::new()).await?;
        let value: Value = serde_json::from_slice(&response.body)
            .map_err(|error| lost(&format!("its answer is not JSON ({}): {error}", response.status)))?;
        if response.status.is_success() { Ok(value) } else { Err(Failure::from_wire(&value["error"])) }
    }

    /// Asks the MCP endpoint at `path`. `params` need not hold `_meta`; the client's own is added.
    pub(crate) async fn ask(&self, path: &str, method: &str, mut params: Object) -> Result<Answer, Failure> {
        let revision = Revision::newest(Era::Stateless).as_str();
        let name = mirror::name(method, &params).map(|name| mirror::encoded(&name).into_owned());
        params.set("_meta", client_meta(revision));
        let mut request = Object::default();
        request.set("jsonrpc", Bytes::from_static(b"\"2.0\""));
        request.set("id", Bytes::from_static(b"1"));
        request.set("method", object::string(method));
        request.set("params", params.to_bytes());
        let mut headers =
            vec![("mcp-protocol-version", revision.to_owned()), ("mcp-method", method.to_owned())];
        headers.extend(name.map(|name| ("mcp-name", name)));
        let response = self.send(Method::POST, path, &headers, request.to_bytes()).await?;
        read_answer(&response)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<Response, Failure> {
        let mut request = Request::builder().method(method).uri(path).header(HOST, self.host());
        request = request.header(ACCEPT, "application/json, text/event-stream");
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|error| Failure::usage(error.to_string()))?;
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| Failure::usage(error.to_string()))?;
        let sent = match self {
            Self::Socket(path) => exchange(reach(UnixStream::connect(path).await, path)?, request).await,
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address).await.map_err(|error| lost(&error.to_string()))?;
                let _ = stream.set_nodelay(true);
                exchange(stream, request).await
            }
        };
        sent.map_err(|error| lost(&error.to_string()))
    }

    fn host(&self) -> String {
        match self {
            Self::Socket(_) => "localhost".to_owned(),
            Self::Tcp(address) => address.to_string(),
        }
    }
}

fn reach(connected: io::Result<UnixStream>, path: &Path) -> Result<UnixStream, Failure> {
    connected.map_err(|error| lost(&format!("cannot connect to `{}`: {error}", path.display())))
}

fn lost(why: &str) -> Failure {
    Failure::new(Exit::Unreachable, "gateway_lost", format!("the gateway did not answer: {why}"))
        .hint("toolcrib status")
}

/// One request on a connection of its own. Dropping the future closes it, which cancels the request.
async fn exchange<I>(io: I, request: Request<Full<Bytes>>) -> Result<Response, hyper::Error>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let work = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_stream = kind.starts_with(b"text/event-stream");
        Ok(Response { status: head.status, is_stream, body: body.collect().await?.to_bytes() })
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
    meta.set(meta::REVISION, object::string(revision));
    meta.set(meta::CAPABILITIES, Bytes::from_static(b"{}"));
    meta.set(meta::CLIENT, IMPLEMENTATION);
    meta.to_bytes()
}

fn read_answer(response: &Response) -> Result<Answer, Failure> {
    let messages = if response.is_stream { events(&response.body) } else { vec![response.body.clone()] };
    for message in messages {
        let Ok(message) = Object::parse(&message) else { continue };
        if let Some(result) = message.get("result") {
            return Ok(Answer::Result(result.clone()));
        }
        if let Some(error) = message.get("error").filter(|raw| raw.first() == Some(&b'{')) {
            return Ok(Answer::Error(error.clone()));
        }
    }
    let text = String::from_utf8_lossy(&response.body[..response.body.len().min(200)]);
    Err(lost(&format!("{} instead of an answer: {}", response.status, text.trim())))
}

fn events(body: &Bytes) -> Vec<Bytes> {
    let mut events = SseEvents::new(body.len());
    events.push(body);
    let next = || events.next_event().ok().flatten().map(|event| event.data);
    std::iter::from_fn(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_found_in_a_stream_too() {
        let answer = |body: &'static str, is_stream| {
            read_answer(&Response {
                status: StatusCode::OK,
                is_stream,
                body: Bytes::from_static(body.as_bytes()),
            })
        };
        let plain = answer(r#"{"jsonrpc":"2.0","id":1,"result":{"a":1.0}}"#, false).unwrap();
        assert_eq!(plain, Answer::Result(Bytes::from_static(br#"{"a":1.0}"#)));
        let stream =
            "data: {\"method\":\"notifications/progress\"}\n\ndata: {\"id\":1,\"error\":{\"code\":1}}\n\n";
        assert_eq!(answer(stream, true).unwrap(), Answer::Error(Bytes::from_static(br#"{"code":1}"#)));
        assert!(answer("<html>", false).is_err());
    }
}
