//! HTTP+SSE, as of 2024-11-05: one stream of events back, which begins with the address that messages go to.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Uri};
use tokio::time::timeout;

use super::super::super::pending::Ended;
use super::body::{self, Kind, Stream, Unread};
use super::parcel::Parcel;
use super::{Carrier, Route, address};
use crate::wire::frame::Frame;

/// How long a server may take to say where messages go.
const ENDPOINT: Duration = Duration::from_secs(10);

impl Carrier {
    /// Opens the stream, then says hello where it says.
    pub(super) async fn hello_on_events(self: Arc<Self>, parcel: &Parcel) -> Result<(), Ended> {
        let mut headers = self.headers.clone();
        headers.remove(CONTENT_TYPE);
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let sent = self.send(Method::GET, &self.address, headers, Bytes::new()).await;
        let response = sent.map_err(|trouble| self.plaint.trouble(trouble, parcel))?;
        if !response.status().is_success() {
            let (parts, body) = response.into_parts();
            let words = body::words(body).await;
            return Err(self.plaint.status(parts.status, &parts.headers, &words, parcel));
        }
        if Kind::of(response.headers()) != Kind::Events {
            return Err(Ended::BadReply("it offers no stream of events".to_owned()));
        }
        let mut stream = Stream::new(response.into_body(), self.limit);
        let endpoint = timeout(ENDPOINT, self.endpoint(&mut stream)).await;
        let endpoint =
            endpoint.map_err(|_| Ended::BadReply("it does not say where messages go".to_owned()))??;
        *self.route() = Route::Events(endpoint.clone());
        self.spawn(self.clone().hear(stream));
        self.post_event(&endpoint, parcel).await
    }

    async fn endpoint(&self, stream: &mut Stream) -> Result<Uri, Ended> {
        loop {
            match stream.next().await.map_err(|why| self.unread(why))? {
                None => return Err(self.plaint.broken_off("the stream of events ended")),
                Some(event) if event.name == "endpoint" => {
                    let reference = String::from_utf8_lossy(&event.data).into_owned();
                    let why = "it wants messages sent to another server, which is not done";
                    return address::follow(&self.address, &reference)
                        .ok_or_else(|| Ended::BadReply(why.to_owned()));
                }
                Some(_) => {}
            }
        }
    }

    /// Hears everything the server says; when the stream ends, the server is gone.
    async fn hear(self: Arc<Self>, mut stream: Stream) {
        let why = loop {
            match stream.next().await {
                Ok(Some(event)) if event.name == "message" => {
                    self.shared.receive(&Frame::Line(event.data), None);
                }
                Ok(Some(_)) => {}
                Ok(None) => break "its stream of events ended".to_owned(),
                Err(Unread::TooLarge) => break "it sent an event larger than `limits.message`".to_owned(),
                Err(Unread::Broken(why)) => break format!("its stream of events broke: {why}"),
            }
        };
        self.lose(why);
    }

    /// Sends one message; its answer comes on the stream.
    pub(super) async fn post_event(&self, endpoint: &Uri, parcel: &Parcel) -> Result<(), Ended> {
        let sent = self.send(Method::POST, endpoint, self.headers.clone(), parcel.body.clone()).await;
        let response = sent.map_err(|trouble| self.plaint.trouble(trouble, parcel))?;
        let (parts, body) = response.into_parts();
        let words = body::words(body).await;
        match parts.status.is_success() {
            true => Ok(()),
            false => Err(self.plaint.status(parts.status, &parts.headers, &words, parcel)),
        }
    }
}
