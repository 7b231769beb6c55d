//! The HTTP+SSE transport of 2024-11-05, the only one of some gateways: requests are POSTed to an endpoint, answers arrive
//! on one event stream.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::events::Events;
use crate::http::Destination;
use crate::pending::Pending;

/// The open event stream and the endpoint for POST. Clones share it.
#[derive(Clone)]
pub(crate) struct SseStream {
    pub(crate) endpoint: Uri,
    pub(crate) pending: Pending,
}

impl SseStream {
    pub(crate) async fn open(destination: &Destination) -> Result<Self> {
        let (sender, mut incoming) = subscribe(destination).await?;
        let mut events = Events::default();
        let first_endpoint = async {
            loop {
                let event = events.next(&mut incoming).await?;
                if event.is_of_type("endpoint") {
                    return anyhow::Ok(String::from_utf8_lossy(&event.data()).into_owned());
                }
            }
        };
        let endpoint = tokio::time::timeout(destination.timeout, first_endpoint)
            .await
            .context("no endpoint event")??;
        let pending = Pending::default();
        let waiting = pending.clone();
        tokio::spawn(async move {
            let _sender = sender; // keeps the connection open
            while let Ok(event) = events.next(&mut incoming).await {
                let _ = waiting.deliver(event.data());
            }
            waiting.close();
        });
        Ok(Self { endpoint: endpoint.parse().context("bad endpoint")?, pending })
    }
}

async fn subscribe(destination: &Destination) -> Result<(SendRequest<Empty<Bytes>>, Incoming)> {
    let stream = TcpStream::connect(&destination.address).await.context("connect")?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let path = destination.uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::get(path).body(Empty::<Bytes>::new())?;
    *request.headers_mut() = destination.headers.clone();
    request.headers_mut().remove(CONTENT_TYPE);
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        bail!("event stream: http {}", response.status());
    }
    Ok((sender, response.into_body()))
}
