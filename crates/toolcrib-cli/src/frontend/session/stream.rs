//! The answer to one request of a session as a stream of events, which goes on when its connection ends and can be read
//! again.

use std::collections::VecDeque;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use toolcrib::wire::message::{Answer, Id, reply};
use toolcrib::wire::sse::write_event;

use crate::frontend::body::Messages;
use crate::frontend::face::told::Outlet;

/// Events and bytes that are kept of one stream; the newest event is kept whatever its size.
const MOST_EVENTS: usize = 256;
const MOST_BYTES: usize = 1 << 20;
/// Streams that are kept of one session, and their bytes before another one begins.
const MOST_STREAMS: usize = 16;
const MOST_IN_ALL: usize = 4 << 20;
/// How long a stream is kept after its end.
const KEPT: Duration = Duration::from_secs(300);
/// How long an answer may take before its client gets a stream to hold on to.
const SOON: Duration = Duration::from_secs(2);
/// When a client whose connection broke is to come again, in milliseconds.
const RETRY: u64 = 1000;

/// The streams of one session that can be read again.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    last: AtomicU64,
    kept: Mutex<VecDeque<Arc<EventLog>>>,
}

/// One request's answer, and everything before it.
#[derive(Debug)]
pub(crate) struct EventLog {
    number: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The messages that are kept; the first of them has the number `first`.
    kept: VecDeque<Bytes>,
    first: u64,
    bytes: usize,
    /// The numbers of questions that nobody has read: they stay, and everything after them.
    unread: VecDeque<u64>,
    /// Whether the client gets a stream; until then it may still get a plain answer.
    open: bool,
    /// A plain answer.
    answer: Option<Answer>,
    ended: Option<Instant>,
    /// Who reads; a newer reader ends an older one.
    reader: u64,
    waker: Option<Waker>,
}

/// How an answer begins.
pub(crate) enum Opening {
    /// It is there, and nothing came before it.
    Whole(Answer),
    /// It is a stream.
    Stream,
    /// It was taken back.
    Gone,
}

impl Streams {
    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<EventLog>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A log for the answer to one request.
    pub(crate) fn begin(&self) -> Arc<EventLog> {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(EventLog { number, state: Mutex::new(State { first: 1, ..State::default() }) })
    }

    /// Keeps a stream that its client knows of; the oldest makes room.
    pub(crate) fn keep(&self, log: Arc<EventLog>) {
        let mut kept = self.kept();
        let mut bytes: usize = kept.iter().map(|log| log.state().bytes).sum();
        while kept.len() >= MOST_STREAMS || bytes > MOST_IN_ALL && !kept.is_empty() {
            let over = kept.iter().position(|log| log.state().ended.is_some()).unwrap_or(0);
            // A log may have grown since it was counted.
            bytes = bytes.saturating_sub(kept.remove(over).map_or(0, |log| log.state().bytes));
        }
        kept.push_back(log);
    }

    /// A reader of what follows the event of this id, if all of that is still there.
    pub(crate) fn after(&self, id: &str) -> Option<Reader> {
        let (number, event) = id.split_once('-')?;
        let (number, event): (u64, u64) = (number.parse().ok()?, event.parse().ok()?);
        let log = self.kept().iter().find(|log| log.number == number).cloned()?;
        let next = event.saturating_add(1);
        let whole = {
            let state = log.state();
            (state.first..=state.first + state.kept.len() as u64).contains(&next)
        };
        whole.then(|| Reader::new(log, next))
    }

    /// Forgets streams that ended long ago.
    pub(crate) fn tidy(&self, now: Instant) {
        let mut kept = self.kept();
        kept.retain(|log| log.state().ended.is_none_or(|ended| ended + KEPT > now));
        if kept.is_empty() {
            kept.shrink_to_fit();
        }
    }

    /// Whether any are kept.
    pub(crate) fn any(&self) -> bool {
        !self.kept().is_empty()
    }
}

impl EventLog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is known how the answer begins.
    pub(crate) async fn opening(&self, streams: bool) -> Opening {
        let begun = std::future::poll_fn(|context| {
            let mut state = self.state();
            match (state.answer.take(), state.open && streams, state.ended) {
                (Some(answer), ..) => Poll::Ready(Opening::Whole(answer)),
                (None, true, _) => Poll::Ready(Opening::Stream),
                (None, false, Some(_)) => Poll::Ready(Opening::Gone),
                (None, false, None) => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        tokio::select! {
            biased;
            begun = begun => begun,
            () = sleep(SOON), if streams => {
                let mut state = self.state();
                state.open = true;
                state.answer.take().map_or(Opening::Stream, Opening::Whole)
            }
        }
    }

    /// The end: the answer, in whichever way the client gets it.
    pub(crate) fn finish(&self, id: &Id, answer: Answer) {
        let mut state = self.state();
        if state.open {
            state.make_room(0);
            state.push(reply(id, &answer).into());
        } else {
            state.answer = Some(answer);
        }
        state.end();
    }

    /// The end without an answer, unless there is one.
    pub(crate) fn end(&self) {
        self.state().end();
    }
}

impl State {
    /// Drops the oldest messages until one of this size fits; `false` if a question that nobody has read is in the way.
    fn make_room(&mut self, size: usize) -> bool {
        let full = |state: &Self| state.kept.len() >= MOST_EVENTS || state.bytes + size > MOST_BYTES;
        while !self.kept.is_empty() && full(self) {
            if self.unread.front() == Some(&self.first) {
                return false;
            }
            self.bytes -= self.kept.pop_front().map_or(0, |oldest| oldest.len());
            self.first += 1;
        }
        true
    }

    /// Adds a message; its number.
    fn push(&mut self, message: Bytes) -> u64 {
        self.bytes += message.len();
        self.kept.push_back(message);
        self.wake();
        self.first + self.kept.len() as u64 - 1
    }

    /// Notes that somebody has read everything up to here.
    fn was_read(&mut self, number: u64) {
        while self.unread.front().is_some_and(|unread| *unread <= number) {
            self.unread.pop_front();
        }
    }

    fn end(&mut self) {
        self.ended.get_or_insert_with(Instant::now);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Outlet for Arc<EventLog> {
    fn say(&self, message: Vec<u8>) -> bool {
        let mut state = self.state();
        state.open = true;
        let fits = state.make_room(message.len());
        if fits {
            state.push(message.into());
        }
        fits
    }

    fn ask(&self, question: Vec<u8>) -> bool {
        let mut state = self.state();
        state.open = true;
        let fits = state.make_room(question.len());
        if fits {
            let number = state.push(question.into());
            state.unread.push_back(number);
        }
        fits
    }
}

/// Reads a log from some event on, to its end.
pub(crate) struct Reader {
    log: Arc<EventLog>,
    next: u64,
    ticket: u64,
    /// Whether the stream begins with an event that only gives the client something to hold on to.
    primes: bool,
}

impl Reader {
    fn new(log: Arc<EventLog>, next: u64) -> Self {
        let ticket = {
            let mut state = log.state();
            state.reader += 1;
            state.wake();
            state.reader
        };
        Self { log, next, ticket, primes: false }
    }

    /// A reader from the beginning.
    pub(crate) fn first(log: Arc<EventLog>, primes: bool) -> Self {
        Self { primes, ..Self::new(log, 1) }
    }
}

impl Messages for Reader {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let reader = &mut *self;
        let mut out = Vec::new();
        if std::mem::take(&mut reader.primes) {
            let _ = write!(out, "id: {}-0\nretry: {RETRY}\n", reader.log.number);
            write_event(&mut out, b"");
            return Poll::Ready(Some(out));
        }
        let mut state = reader.log.state();
        if state.reader != reader.ticket {
            return Poll::Ready(None);
        }
        reader.next = reader.next.max(state.first);
        let place = usize::try_from(reader.next - state.first).unwrap_or(usize::MAX);
        match state.kept.get(place) {
            Some(message) => {
                out.reserve(message.len() + 48);
                let _ = writeln!(out, "id: {}-{}", reader.log.number, reader.next);
                write_event(&mut out, message);
                state.was_read(reader.next);
                reader.next += 1;
                Poll::Ready(Some(out))
            }
            None if state.ended.is_some() => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests;
