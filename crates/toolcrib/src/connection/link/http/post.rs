//! One message to the server, and what comes back on its response.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use tokio::time::timeout;
use tracing::debug;

use super::super::super::pending::Ended;
use super::body::{self, Kind, Stream, Unread};
use super::parcel::Parcel;
use super::session::{Session, is_auth};
use super::{Carrier, NOTE, Route};
use crate::wire::dialect::client::{DISCOVER, HELLO};
use crate::wire::dialect::greeting::{self, Probed};
use crate::wire::dialect::meta;
use crate::wire::frame::Frame;
use crate::wire::message::{Answer, ServerMessage, code};
use crate::wire::mirror;
use crate::wire::object::{self, Object};

pub(super) const REVISION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// What a response means for its request.
pub(super) enum Verdict {
    /// It was answered, or its failure was told.
    Done,
    /// The session that it was part of is gone; it was not looked at.
    SessionGone(Session),
    /// The headers do not suit the server's present idea of the tool; it was not looked at.
    HeadersDiffer,
}

impl Carrier {
    /// Carries one message; whoever waits for its answer is told how it went.
    pub(super) async fn deliver(self: Arc<Self>, parcel: Parcel) {
        let Some(id) = parcel.awaited() else { return self.note(&parcel).await };
        let route = self.route().clone();
        let carried = match &route {
            _ if parcel.method == HELLO => self.clone().hello(&parcel).await,
            Route::Events(endpoint) => self.post_event(endpoint, &parcel).await,
            _ => self.clone().ask(&parcel, id).await,
        };
        if let Err(ended) = carried {
            self.shared.end(id, ended);
        }
    }

    /// Carries what has no answer. The stateless era has no such messages: a cancel is the end of the response.
    pub(super) async fn note(&self, parcel: &Parcel) {
        let (address, headers) = match &*self.route() {
            Route::Alone => return,
            Route::Session(session) => (self.address.clone(), session.headers(&self.headers)),
            Route::Events(endpoint) => (endpoint.clone(), self.headers.clone()),
        };
        let sent = timeout(NOTE, async {
            let response = self.send(Method::POST, &address, headers, parcel.body.clone()).await;
            if let Ok(response) = response {
                let status = response.status();
                body::words(response.into_body()).await;
                return Some(status);
            }
            None
        });
        match sent.await {
            Ok(Some(status)) if status.is_success() => {}
            other => {
                debug!(server = %self.shared.server, method = parcel.method, ?other, "was not taken");
            }
        }
    }

    /// Asks, and asks once more if the server had no look at the request: its session was gone, or its headers were
    /// out of date.
    async fn ask(self: Arc<Self>, parcel: &Parcel, id: u64) -> Result<(), Ended> {
        if parcel.method == DISCOVER {
            let _ = self.probe.set(parcel.body.clone()); // the first ones are ours
        }
        for again in [false, true] {
            let route = self.route().clone();
            let headers = match &route {
                Route::Session(session) => {
                    self.remember(parcel);
                    session.headers(&self.headers)
                }
                _ => self.alone(parcel),
            };
            let sent = self.send(Method::POST, &self.address, headers, parcel.body.clone()).await;
            let response = sent.map_err(|trouble| self.plaint.trouble(trouble, parcel))?;
            match self.judge(response, parcel, id, &route).await? {
                Verdict::Done => return Ok(()),
                Verdict::SessionGone(session) if !again => {
                    if !self.renew(&session, parcel).await? {
                        return Ok(());
                    }
                }
                Verdict::HeadersDiffer if !again => {
                    self.tools.relisted(|| self.shared.relist.notify_one()).await;
                }
                Verdict::SessionGone(_) => {
                    return Err(Ended::BadReply("it forgets its sessions at once".to_owned()));
                }
                Verdict::HeadersDiffer => {
                    return Err(Ended::BadReply(
                        "it insists that our headers do not suit the request".to_owned(),
                    ));
                }
            }
        }
        Ok(())
    }

    /// The headers of a request that stands alone.
    fn alone(&self, parcel: &Parcel) -> HeaderMap {
        let mut headers = self.headers.clone();
        let Some(params) = parcel.params() else { return headers };
        let mut put = |name: HeaderName, text: &str| {
            if let Ok(value) = HeaderValue::from_str(text) {
                headers.insert(name, value);
            }
        };
        let revision = params.get("_meta").and_then(|raw| Object::parse(raw).ok());
        if let Some(revision) = revision.as_ref().and_then(|meta| meta.string(meta::REVISION)) {
            put(REVISION, &revision);
        }
        put(METHOD, &parcel.method);
        let Some(name) = mirror::name(&parcel.method, &params) else { return headers };
        put(NAME, &mirror::encoded(&name));
        let marks = self.tools.marked(&name).filter(|_| parcel.method == "tools/call");
        if let (Some(marks), Some(arguments)) = (marks, params.get("arguments")) {
            for mark in marks.iter() {
                if let (Some(value), Ok(name)) =
                    (mark.value(arguments), HeaderName::from_bytes(mark.header.as_bytes()))
                {
                    put(name, &value);
                }
            }
        }
        headers
    }

    async fn judge(
        &self,
        response: Response<Incoming>,
        parcel: &Parcel,
        id: u64,
        route: &Route,
    ) -> Result<Verdict, Ended> {
        let status = response.status();
        if !status.is_success() {
            let (parts, body) = response.into_parts();
            let words = body::words(body).await;
            return self.refused(status, &parts.headers, &words, parcel, route).await;
        }
        let kind = Kind::of(response.headers());
        match kind {
            Kind::Json => {
                let message =
                    body::whole(response.into_body(), self.limit).await.map_err(|why| self.unread(why))?;
                if matches!(route, Route::Alone) && mentions_mismatch(&message) {
                    return Ok(Verdict::HeadersDiffer);
                }
                self.hand_over(message, parcel);
            }
            Kind::Events => {
                let stream = Stream::new(response.into_body(), self.limit);
                let session = if let Route::Session(session) = route { Some(session) } else { None };
                self.follow(stream, parcel, id, session).await?;
            }
            Kind::Other => {
                let status = status.as_u16();
                return Err(Ended::BadReply(format!("HTTP {status} without JSON or events in it")));
            }
        }
        if self.shared.pending().waits(id) {
            return Err(Ended::BadReply("its response holds no answer".to_owned()));
        }
        if !parcel.opens() {
            self.settled.store(true, Ordering::Relaxed);
        }
        Ok(Verdict::Done)
    }

    /// A response that says no: the error in it is an answer, unless it is about our own way of asking.
    async fn refused(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        words: &Bytes,
        parcel: &Parcel,
        route: &Route,
    ) -> Result<Verdict, Ended> {
        let plain = || Err(self.plaint.status(status, headers, words, parcel));
        let refusal = Refusal::read(words);
        if is_auth(status) || status.is_server_error() {
            return plain();
        }
        if let Route::Session(session) = route
            && session.is_gone(status, refusal.as_ref())
        {
            return Ok(Verdict::SessionGone(session.clone()));
        }
        let suspect =
            matches!(route, Route::Alone) && self.is_settled() && has_changed_era(status, refusal.as_ref());
        // It may be about this one request.
        if suspect && !self.still_stateless().await {
            self.start_over(parcel, "it does not speak the stateless era any more");
            return Ok(Verdict::Done);
        }
        match refusal {
            Some(refusal) if refusal.code == Some(i64::from(code::HEADER_MISMATCH)) => {
                Ok(Verdict::HeadersDiffer)
            }
            Some(refusal) => Err(Ended::Answered(Answer::Error(refusal.error))),
            None => plain(),
        }
    }

    /// Asks once more for the era. Only a server that denies it has left it; one that cannot be asked has not.
    async fn still_stateless(&self) -> bool {
        let Some(body) = self.probe.get() else { return true };
        let probe = Parcel::again(body.clone());
        let answered = timeout(NOTE, async {
            let sent = self.send(Method::POST, &self.address, self.alone(&probe), probe.body.clone()).await;
            let (parts, body) = sent.ok()?.into_parts();
            if is_auth(parts.status) || parts.status.is_server_error() {
                return None;
            }
            match Kind::of(&parts.headers) {
                Kind::Json => body::whole(body, self.limit).await.ok(),
                Kind::Events => self.first_answer(Stream::new(body, self.limit)).await.ok(),
                Kind::Other => Some(Bytes::new()),
            }
        });
        let Ok(Some(message)) = answered.await else { return true };
        match ServerMessage::parse(&message) {
            ServerMessage::Reply { answer, .. } => {
                matches!(greeting::read_probe(&answer), Probed::Stateless(_))
            }
            _ => false,
        }
    }

    /// Whether the server has been what it said it was.
    pub(super) fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// The server is not what it was when we met. Nobody looked at this request; whoever waits for it is told so when
    /// the connection is closed, and may ask the next one.
    pub(super) fn start_over(&self, parcel: &Parcel, why: &str) {
        if let Some(id) = parcel.awaited() {
            self.shared.pending().mark_unsent(id);
        }
        self.lose(why);
    }

    /// Hands one message to whoever it is for.
    pub(super) fn hand_over(&self, message: Bytes, parcel: &Parcel) {
        let listing = parcel.method == "tools/list" && matches!(*self.route(), Route::Alone);
        let message = if listing { self.tools.read(&self.shared.server, message) } else { message };
        // One revision allowed servers to answer with a list.
        if message.trim_ascii_start().first() == Some(&b'[')
            && let Ok(messages) = object::elements(&message)
        {
            for message in messages {
                self.shared.receive(&Frame::Line(message), parcel.awaited());
            }
            return;
        }
        self.shared.receive(&Frame::Line(message), parcel.awaited());
    }

    pub(super) fn unread(&self, why: Unread) -> Ended {
        match why {
            Unread::TooLarge => Ended::BadReply("it is larger than `limits.message`".to_owned()),
            Unread::Broken(why) => self.plaint.broken_off(&why),
        }
    }
}

/// Whether a refusal is one that a server of the stateless era would not send: it does not know the revision, or the
/// page, or wants a session first.
fn has_changed_era(status: StatusCode, refusal: Option<&Refusal>) -> bool {
    match refusal {
        None => matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED),
        Some(refusal) if refusal.code == Some(code::UNSUPPORTED_REVISION.into()) => true,
        Some(refusal) => {
            matches!(status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
                && !refusal.names_request
                && !refusal.code.is_some_and(is_modern)
        }
    }
}

/// Whether an error is one that a server of today has.
pub(super) fn is_modern(code: i64) -> bool {
    matches!(code, -32602 | -32601 | -32022..=-32020)
}

/// Whether a whole answer is the error about headers, which some send as if all were well.
fn mentions_mismatch(message: &Bytes) -> bool {
    message.len() < 4096
        && memchr::memmem::find(message, b"-32020").is_some()
        && Refusal::read(message)
            .is_some_and(|refusal| refusal.code == Some(i64::from(code::HEADER_MISMATCH)))
}

/// The error in a body.
pub(super) struct Refusal {
    pub(super) code: Option<i64>,
    pub(super) error: Bytes,
    /// Whether it names the request that it is about.
    pub(super) names_request: bool,
}

impl Refusal {
    pub(super) fn read(body: &Bytes) -> Option<Self> {
        let message = Object::parse(body).ok()?;
        let error = message.get("error").filter(|raw| raw.first() == Some(&b'{'))?.clone();
        let code = Object::parse(&error).ok()?.get("code").cloned();
        let code = code.and_then(|raw| std::str::from_utf8(&raw).ok()?.parse().ok());
        let names_request = message.get("id").is_some_and(|id| &**id != b"null");
        Some(Self { code, error, names_request })
    }
}
