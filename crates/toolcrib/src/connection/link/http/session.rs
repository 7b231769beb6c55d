//! Sessions, for servers old enough to have them: opened, kept, resumed after a break, replaced when the server has
//! forgotten them, ended.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use super::super::super::pending::Ended;
use super::body::{self, Kind, Stream, Unread};
use super::parcel::Parcel;
use super::post::{REVISION, Refusal, is_modern};
use super::{Carrier, Route};
use crate::spec::Transport;
use crate::wire::dialect::greeting;
use crate::wire::frame::Frame;
use crate::wire::message::{ServerMessage, code, notification};
use crate::wire::revision::Revision;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// How often a broken stream is taken up again before anything new came on it.
const RESUMES: u32 = 5;
/// How long to wait before that, unless the server says otherwise.
const WAIT: Duration = Duration::from_secs(1);
/// The longest wait for a server whose stream of news does not last.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long such a stream is open if all is well with it.
const LASTING: Duration = Duration::from_secs(10);

/// A session with the server.
#[derive(Debug, Clone)]
pub(super) struct Session {
    /// Its id; some servers do without.
    id: Option<HeaderValue>,
    /// The revision agreed on, for those that have a header for it.
    revision: Option<HeaderValue>,
    /// Which of the sessions of this connection it is.
    generation: u64,
    /// The words that opened it.
    hello: Bytes,
}

impl Session {
    /// Headers of a request that belongs to it.
    pub(super) fn headers(&self, base: &HeaderMap) -> HeaderMap {
        let mut headers = base.clone();
        if let Some(id) = &self.id {
            headers.insert(SESSION, id.clone());
        }
        if let Some(revision) = &self.revision {
            headers.insert(REVISION, revision.clone());
        }
        headers
    }

    /// Whether a response means that the server does not know it any more. The protocol has a status for that; some
    /// servers say "bad request" instead.
    pub(super) fn is_gone(&self, status: StatusCode, refusal: Option<&Refusal>) -> bool {
        let about_request = refusal.is_some_and(|refusal| {
            refusal.names_request && refusal.code == Some(code::METHOD_NOT_FOUND.into())
        });
        let complains = || {
            let error = refusal.map(|refusal| refusal.error.to_ascii_lowercase()).unwrap_or_default();
            refusal.is_some_and(|refusal| !refusal.names_request)
                && memchr::memmem::find(&error, b"session").is_some()
        };
        self.id.is_some()
            && match status {
                StatusCode::NOT_FOUND => !about_request,
                StatusCode::BAD_REQUEST => complains(),
                _ => false,
            }
    }
}

impl Carrier {
    /// Asks for a session on behalf of whoever waits. A server that does not know what to do with that may be one of
    /// those that send everything on one stream.
    pub(super) async fn hello(self: Arc<Self>, parcel: &Parcel) -> Result<(), Ended> {
        if self.transport == Transport::Events {
            return self.clone().hello_on_events(parcel).await;
        }
        match self.ask_for_session(parcel, 0).await {
            Ok(message) => {
                self.hand_over(message, parcel);
                match parcel.awaited() {
                    Some(id) if self.shared.pending().waits(id) => {
                        Err(Ended::BadReply("its response holds no answer".to_owned()))
                    }
                    _ => Ok(()),
                }
            }
            Err(Unopened { ended, elsewhere: true }) if self.transport == Transport::Auto => {
                match self.clone().hello_on_events(parcel).await {
                    // What it said first is what it is about.
                    Err(_) => Err(ended),
                    opened => opened,
                }
            }
            Err(unopened) => Err(unopened.ended),
        }
    }

    /// Opens a session and gives the message that it was opened with.
    async fn ask_for_session(&self, parcel: &Parcel, generation: u64) -> Result<Bytes, Unopened> {
        let sent = self.send(Method::POST, &self.address, self.headers.clone(), parcel.body.clone()).await;
        let response = sent.map_err(|trouble| Unopened::here(self.plaint.trouble(trouble, parcel)))?;
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() {
            let words = body::words(body).await;
            let refusal = Refusal::read(&words);
            let modern = refusal.as_ref().and_then(|refusal| refusal.code).is_some_and(is_modern);
            let elsewhere = !modern && matches!(parts.status.as_u16(), 400 | 404 | 405);
            let ended = self.plaint.status(parts.status, &parts.headers, &words, parcel);
            let ended = match refusal {
                Some(refusal) if parts.status.is_client_error() && !is_auth(parts.status) => {
                    Ended::Answered(crate::wire::message::Answer::Error(refusal.error))
                }
                _ => ended,
            };
            return Err(Unopened { ended, elsewhere });
        }
        let message = match Kind::of(&parts.headers) {
            Kind::Json => body::whole(body, self.limit).await.map_err(|why| self.unread(why)),
            Kind::Events => self.first_answer(Stream::new(body, self.limit)).await,
            Kind::Other => Err(Ended::BadReply("neither JSON nor events came back".to_owned())),
        };
        let message = message.map_err(Unopened::here)?;
        if let ServerMessage::Reply { answer, .. } = ServerMessage::parse(&message)
            && let Ok(welcome) = greeting::read_hello(&answer)
        {
            let named = welcome.revision >= Revision::V2025_06_18;
            let revision = named.then(|| HeaderValue::from_static(welcome.revision.as_str()));
            let (id, hello) = (parts.headers.get(SESSION).cloned(), parcel.body.clone());
            *self.route() = Route::Session(Session { id, revision, generation, hello });
        }
        Ok(message)
    }

    /// The first answer on a stream; what comes before it is nobody's yet.
    pub(super) async fn first_answer(&self, mut stream: Stream) -> Result<Bytes, Ended> {
        loop {
            match stream.next().await.map_err(|why| self.unread(why))? {
                None => return Err(self.plaint.broken_off("the stream ended")),
                Some(event) if matches!(ServerMessage::parse(&event.data), ServerMessage::Reply { .. }) => {
                    stream.finish().await;
                    return Ok(event.data);
                }
                Some(event) => drop(event),
            }
        }
    }

    /// Tells the server that its session is open, and listens to what it says on its own.
    pub(super) async fn open_session(self: &Arc<Self>, parcel: &Parcel) {
        self.note(parcel).await;
        self.listen_on();
    }

    fn listen_on(self: &Arc<Self>) {
        let Route::Session(session) = self.route().clone() else { return };
        let hearing = AbortOnDropHandle::new(self.spawn(self.clone().listen(session)));
        // Whoever hears for a session that was replaced ends here.
        *self.hearing.lock().unwrap_or_else(PoisonError::into_inner) = Some(hearing);
    }

    /// Replaces a session that the server has forgotten, once for all who find out. `false` if there is no use in asking
    /// again.
    pub(super) async fn renew(self: &Arc<Self>, forgotten: &Session, parcel: &Parcel) -> Result<bool, Ended> {
        let _turn = self.renewing.lock().await;
        if let Route::Session(now) = &*self.route()
            && now.generation != forgotten.generation
        {
            return Ok(true);
        }
        info!(server = %self.shared.server, "forgot its session; opening another one");
        let hello = Parcel::again(forgotten.hello.clone());
        match self.ask_for_session(&hello, forgotten.generation + 1).await {
            Ok(_) => {}
            Err(Unopened { ended: Ended::Answered(_), .. }) if self.is_settled() => {
                self.start_over(parcel, "it has no sessions any more");
                return Ok(false);
            }
            Err(unopened) => return Err(self.plaint.no_other_session(unopened.ended)),
        }
        self.note(&Parcel::again(notification(greeting::SESSION_OPEN, None).into())).await;
        let wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for wish in wishes.into_values() {
            self.note(&Parcel::again(wish)).await;
        }
        self.listen_on();
        self.shared.relist.notify_one(); // whatever made it forget may have changed its tools
        Ok(true)
    }

    /// Keeps what a session was told for all of its time, so that the next one can be told too.
    pub(super) fn remember(&self, parcel: &Parcel) {
        let key = match &*parcel.method {
            "logging/setLevel" => String::new(),
            "resources/subscribe" | "resources/unsubscribe" => {
                let params = parcel.params().unwrap_or_default();
                params.string("uri").unwrap_or_default().into_owned()
            }
            _ => return,
        };
        let mut wishes = self.wishes.lock().unwrap_or_else(PoisonError::into_inner);
        if parcel.method == "resources/unsubscribe" {
            wishes.remove(&key);
        } else {
            wishes.insert(key, parcel.body.clone());
        }
    }

    /// Ends the session, so that the server need not wait for us.
    pub(super) async fn end_session(&self) {
        let session = match &*self.route() {
            Route::Session(session) if session.id.is_some() => session.clone(),
            _ => return,
        };
        let mut headers = session.headers(&self.headers);
        headers.remove(CONTENT_TYPE);
        // Not every server lets clients do this.
        let _ = self.send(Method::DELETE, &self.address, headers, Bytes::new()).await;
    }

    /// Hears what the server says outside of any request, as long as it offers a stream for that and the session is
    /// the present one. A stream that ends is opened again, later and later if it never lasts.
    async fn listen(self: Arc<Self>, session: Session) {
        let (mut bookmark, mut offered) = ((None, None), false);
        let (mut refused, mut waits) = (0, 0_u32);
        while self.is_present(&session) {
            match self.reopen(&session, bookmark.0.as_deref()).await {
                Ok(mut stream) => {
                    if offered && (refused > 0 || bookmark.0.is_none()) {
                        self.shared.relist.notify_one(); // what it said meanwhile was not heard
                    }
                    (offered, refused) = (true, 0);
                    let opened = Instant::now();
                    while let Ok(Some(event)) = stream.next().await {
                        waits = 0;
                        if !event.data.is_empty() {
                            self.shared.receive(&Frame::Line(event.data), None);
                        }
                    }
                    if opened.elapsed() >= LASTING {
                        waits = 0;
                    }
                    let (id, retry) = stream.bookmark();
                    bookmark = (id.or(bookmark.0), retry.or(bookmark.1));
                }
                Err(_) if !offered => return, // it has no such stream
                // A server that is down may come back, one that says no is believed in the end.
                Err(status) if !status.is_server_error() && refused >= RESUMES => return,
                Err(_) => refused += 1,
            }
            waits = waits.saturating_add(1);
            sleep(bookmark.1.unwrap_or(WAIT).saturating_mul(waits).min(LONGEST_WAIT)).await;
        }
    }

    /// Whether a session has not been replaced.
    fn is_present(&self, session: &Session) -> bool {
        matches!(&*self.route(), Route::Session(now) if now.generation == session.generation)
    }

    /// A stream of events that does not belong to a request, or goes on with one that broke.
    async fn reopen(&self, session: &Session, after: Option<&str>) -> Result<Stream, StatusCode> {
        let mut headers = session.headers(&self.headers);
        headers.remove(CONTENT_TYPE);
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(after) = after.and_then(|after| HeaderValue::from_str(after).ok()) {
            headers.insert(LAST_EVENT, after);
        }
        let sent = self.send(Method::GET, &self.address, headers, Bytes::new()).await;
        let response = sent.map_err(|_| StatusCode::BAD_GATEWAY)?;
        let status = response.status();
        if !status.is_success() || Kind::of(response.headers()) != Kind::Events {
            return Err(status);
        }
        Ok(Stream::new(response.into_body(), self.limit))
    }

    /// Follows the stream of one request to its answer. In a session a stream that breaks can be taken up again where
    /// it broke, if the server numbers its events.
    pub(super) async fn follow(
        &self,
        mut stream: Stream,
        parcel: &Parcel,
        id: u64,
        session: Option<&Session>,
    ) -> Result<(), Ended> {
        let (mut bookmark, mut resumes) = ((None, None), 0);
        loop {
            let ended = loop {
                match stream.next().await {
                    Ok(None) => break "the stream ended".to_owned(),
                    Err(Unread::Broken(why)) => break why,
                    Err(too_large) => return Err(self.unread(too_large)),
                    Ok(Some(event)) => {
                        resumes = 0;
                        if event.name == "message" && !event.data.is_empty() {
                            self.hand_over(event.data, parcel);
                        }
                    }
                }
                if !self.shared.pending().waits(id) {
                    stream.finish().await;
                    return Ok(());
                }
            };
            let (last, retry) = stream.bookmark();
            bookmark = (last.or(bookmark.0), retry.or(bookmark.1));
            stream = loop {
                let (Some(session), Some(after)) = (session, bookmark.0.as_deref()) else {
                    return Err(self.plaint.broken_off(&ended));
                };
                if resumes >= RESUMES {
                    return Err(self.plaint.broken_off(&ended));
                }
                resumes += 1;
                sleep(bookmark.1.unwrap_or(WAIT)).await;
                match self.reopen(session, Some(after)).await {
                    Ok(stream) => break stream,
                    Err(status) if status.is_server_error() => {}
                    Err(_) => return Err(self.plaint.broken_off(&ended)),
                }
            };
        }
    }
}

/// Why there is no session.
struct Unopened {
    ended: Ended,
    /// It may be spoken to in another way.
    elsewhere: bool,
}

impl Unopened {
    fn here(ended: Ended) -> Self {
        Self { ended, elsewhere: false }
    }
}

pub(super) fn is_auth(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}
