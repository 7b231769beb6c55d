//! The streams that a session reads with GET: its news, and answers whose connection broke.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use hyper::{HeaderMap, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use toolcrib::wire::message::code;

use super::super::body::{Body, Messages, event};
use super::super::face::Visit;
use super::super::face::told::WORDS_WAITING;
use super::super::face::watcher::{Hears, Watcher};
use super::super::http::Counter;
use super::super::session::Listening;
use super::headers::{last_event, takes_events};
use super::sessions::{find, no_session};
use super::{events, not_allowed, refuse};

/// Answers a GET: a stream in a session, nothing without one.
pub(super) fn get(counter: &Counter, visit: &Visit, headers: &HeaderMap) -> Response<Body> {
    let session = match find(counter, visit, headers) {
        Ok(session) => session,
        Err(true) => return no_session(None, true),
        Err(false) => return not_allowed(),
    };
    let refused = |status, why| refuse(status, None, code::INVALID_REQUEST, why);
    if !takes_events(headers) {
        return refused(StatusCode::NOT_ACCEPTABLE, "`Accept` must allow text/event-stream");
    }
    if let Some(id) = last_event(headers) {
        return match session.streams.after(id) {
            Some(reader) => events(Body::events(reader)),
            None => refused(StatusCode::BAD_REQUEST, "there is no stream with this event (any more)"),
        };
    }
    let Some(listening) = session.listen() else {
        return refused(StatusCode::CONFLICT, "the news of this session are being read already");
    };
    let watcher = Watcher::new(counter.desk.face.clone(), visit.clone());
    let ends = [session.ended.clone(), counter.stop.clone()];
    let (hears, spoken) = (session.talk.clone(), Arc::<Spoken>::default());
    let line = Arc::downgrade(&spoken);
    session.talk.line.over(move |message| line.upgrade().is_some_and(|line| line.say(message)));
    let stream = NewsStream::new(watcher, hears, Some(listening), ends, VecDeque::new(), None);
    events(Body::events(stream.with(spoken)))
}

/// What the client of a session is asked while none of its requests runs. Held as long as its stream is read. There
/// are as many as there are streams and hardly any is ever used: a channel would keep twenty times the room.
#[derive(Default)]
pub(super) struct Spoken(Mutex<Said>);

#[derive(Default)]
struct Said {
    waiting: VecDeque<Vec<u8>>,
    reader: Option<Waker>,
}

impl Spoken {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `false` if too much waits to be read already.
    fn say(&self, message: Vec<u8>) -> bool {
        let mut said = self.said();
        if said.waiting.len() >= WORDS_WAITING {
            return false;
        }
        said.waiting.push_back(message);
        let reader = said.reader.take();
        drop(said);
        reader.into_iter().for_each(Waker::wake);
        true
    }

    fn poll_next(&self, context: &Context<'_>) -> Poll<Vec<u8>> {
        let mut said = self.said();
        match said.waiting.pop_front() {
            Some(message) => Poll::Ready(message),
            None => {
                said.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Messages as they come up, between a few that come first and one that comes last.
pub(super) struct NewsStream<H> {
    waiting: VecDeque<Vec<u8>>,
    last: Option<Vec<u8>>,
    next: Option<Next<H>>,
    ends: [CancellationToken; 2],
    spoken: Option<Arc<Spoken>>,
    _listening: Option<Listening>,
}

type Next<H> = Pin<Box<dyn Future<Output = Option<(Vec<Vec<u8>>, Watcher, H)>> + Send>>;

impl<H: Hears + 'static> NewsStream<H> {
    pub(super) fn new(
        watcher: Watcher,
        hears: H,
        listening: Option<Listening>,
        ends: [CancellationToken; 2],
        first: VecDeque<Vec<u8>>,
        last: Option<Vec<u8>>,
    ) -> Self {
        let next = Some(next(watcher, hears, ends.clone()));
        Self { waiting: first, last, next, ends, spoken: None, _listening: listening }
    }

    /// With what is said on this stream besides.
    fn with(mut self, spoken: Arc<Spoken>) -> Self {
        self.spoken = Some(spoken);
        self
    }
}

fn next<H: Hears + 'static>(mut watcher: Watcher, mut hears: H, ends: [CancellationToken; 2]) -> Next<H> {
    Box::pin(async move {
        let messages = tokio::select! {
            biased;
            () = ends[0].cancelled() => None,
            () = ends[1].cancelled() => None,
            messages = watcher.next_messages(&mut hears) => messages,
        };
        messages.map(|messages| (messages, watcher, hears))
    })
}

impl<H: Hears + Unpin + 'static> Messages for NewsStream<H> {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let stream = &mut *self;
        loop {
            if let Some(message) = stream.waiting.pop_front() {
                return Poll::Ready(Some(event(&message)));
            }
            if let Some(spoken) = &stream.spoken
                && let Poll::Ready(message) = spoken.poll_next(context)
            {
                return Poll::Ready(Some(event(&message)));
            }
            let Some(waiting) = &mut stream.next else {
                return Poll::Ready(stream.last.take().map(|last| event(&last)));
            };
            match ready!(waiting.as_mut().poll(context)) {
                None => stream.next = None,
                Some((messages, watcher, hears)) => {
                    stream.waiting.extend(messages);
                    stream.next = Some(next(watcher, hears, stream.ends.clone()));
                }
            }
        }
    }
}
