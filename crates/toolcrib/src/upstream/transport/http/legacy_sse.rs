//! The HTTP+SSE transport of 2024-11-05: one event stream carries all responses and starts with the URL for requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Uri};
use tokio::time::timeout;

use super::body::{self, BodyError, BodyKind, EventBody};
use super::outgoing_message::OutgoingMessage;
use super::{HttpConnection, HttpRoute, same_origin};
use crate::protocol::framing::Frame;
use crate::upstream::pending::RequestEnd;

/// Time limit for the endpoint event.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);

impl HttpConnection {
    /// Opens the event stream, then sends `initialize` to the endpoint that it announces.
    pub(super) async fn initialize_over_sse(
        self: Arc<Self>,
        message: &OutgoingMessage,
    ) -> Result<(), RequestEnd> {
        let customize = |headers: &mut HeaderMap| {
            headers.remove(CONTENT_TYPE);
            headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        };
        let sent = self.send(Method::GET, &self.url, customize, Bytes::new()).await;
        let response = sent.map_err(|error| self.request_error(error, message))?;
        if !response.status().is_success() {
            let (parts, body) = response.into_parts();
            let error_body = body::read_error_body(body).await;
            return Err(self.errors.status_error(parts.status, &parts.headers, &error_body, message));
        }
        if BodyKind::from_headers(response.headers()) != BodyKind::Events {
            return Err(RequestEnd::BadReply("it does not offer an event stream".to_owned()));
        }
        let mut stream = EventBody::new(response.into_body(), self.message_limit.get(), &self.link);
        let endpoint = timeout(ENDPOINT_TIMEOUT, self.read_endpoint(&mut stream)).await;
        let endpoint = endpoint.map_err(|_| {
            RequestEnd::BadReply("it does not announce an endpoint for messages".to_owned())
        })??;
        *self.route() = HttpRoute::Sse(endpoint.clone());
        self.link.mark_legacy_sse();
        self.spawn(self.clone().read_events(stream));
        self.post_sse(&endpoint, message).await
    }

    async fn read_endpoint(&self, stream: &mut EventBody) -> Result<Uri, RequestEnd> {
        loop {
            match stream.next().await.map_err(|reason| self.body_error(reason))? {
                None => return Err(self.errors.connection_broken("the event stream ended")),
                Some(event) if event.name == "endpoint" => {
                    let reference = String::from_utf8_lossy(&event.data).into_owned();
                    let reason = "it announces an endpoint on another server, which is not allowed";
                    return same_origin::resolve_same_origin(&self.url, &reference)
                        .ok_or_else(|| RequestEnd::BadReply(reason.to_owned()));
                }
                Some(_) => {}
            }
        }
    }

    /// Reads all messages of the server; when the stream ends, the server is lost.
    async fn read_events(self: Arc<Self>, mut stream: EventBody) {
        let reason = loop {
            match stream.next().await {
                Ok(Some(event)) if event.name == "message" => {
                    self.link.receive(&Frame::Line(event.data), None);
                }
                Ok(Some(_)) => {}
                Ok(None) => break "its event stream ended".to_owned(),
                Err(BodyError::TooLarge(oversize)) => {
                    self.link.receive(&Frame::Oversize(oversize), None);
                }
                Err(BodyError::Broken(reason)) => break format!("its event stream broke: {reason}"),
            }
        };
        self.mark_lost(reason);
    }

    /// Sends one message; its response arrives on the event stream.
    pub(super) async fn post_sse(&self, endpoint: &Uri, message: &OutgoingMessage) -> Result<(), RequestEnd> {
        let sent = self.send(Method::POST, endpoint, |_| {}, message.body.clone()).await;
        let response = sent.map_err(|error| self.request_error(error, message))?;
        let (parts, body) = response.into_parts();
        let error_body = body::read_error_body(body).await;
        match parts.status.is_success() {
            true => Ok(()),
            false => Err(self.errors.status_error(parts.status, &parts.headers, &error_body, message)),
        }
    }
}
