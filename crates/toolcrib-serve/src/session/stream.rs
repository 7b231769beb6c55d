//! Responses in a session as event streams, which continue without their connection and can be resumed.

use std::collections::VecDeque;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use toolcrib::protocol::jsonrpc::{RequestId, ResponsePayload, encode_response};
use toolcrib::protocol::sse::write_event;
use toolcrib::util::encoding;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Error, ErrorKind};

use crate::body::MessageSource;
use crate::client_memory::MemoryAccount;
use crate::service::error_payload;
use crate::service::in_flight::CancelRequest;
use crate::service::updates::MessageSink;

/// Events kept per stream.
const MAX_EVENTS: usize = 256;
/// Bytes kept per stream. A larger message is passed to a client that reads the stream, and not kept.
const MAX_BYTES: usize = 1 << 20;
/// Streams kept per session.
const MAX_STREAMS: usize = 16;
/// Bytes kept per session.
const MAX_SESSION_BYTES: usize = 4 << 20;
/// Time for which an ended stream is kept.
const RETENTION: Duration = Duration::from_secs(300);
/// Time after which a slow response becomes a stream.
const STREAM_AFTER: Duration = Duration::from_secs(2);
/// Reconnect delay for clients in milliseconds.
const RETRY_MS: u64 = 1000;

/// The streams of one session that can be resumed.
#[derive(Debug, Default)]
pub(crate) struct ReplayStreams {
    /// The memory that they count against, if it is limited.
    account: Option<Arc<MemoryAccount>>,
    last_number: AtomicU64,
    kept: Mutex<VecDeque<Arc<EventLog>>>,
}

/// The messages of one request: its response and what came before it.
#[derive(Debug)]
pub(crate) struct EventLog {
    number: u64,
    /// The end of its event ids: the id of the request, if another gateway may be asked to resume the stream.
    id_suffix: String,
    state: Mutex<EventLogState>,
}

#[derive(Debug, Default)]
struct EventLogState {
    /// The memory that the messages count against, if it is limited.
    account: Option<Arc<MemoryAccount>>,
    /// The kept messages.
    messages: VecDeque<Bytes>,
    /// Number of the first kept message.
    first: u64,
    bytes: usize,
    /// Numbers of unread questions. They, and all messages after them, are not dropped.
    unread_questions: VecDeque<u64>,
    /// True if the response is a stream.
    is_stream: bool,
    /// The response, unless it is a stream.
    response: Option<ResponsePayload>,
    ended: Option<Instant>,
    /// Replaces a response that is too large to be kept.
    substitute: Option<Bytes>,
    /// True if the client has stopped to read the stream.
    is_abandoned: bool,
    /// Number of the current reader; a newer reader ends an older one.
    reader: u64,
    waker: Option<Waker>,
    /// The task that handles the request, if it has one of its own.
    task: Option<AbortHandle>,
}

/// The start of a response.
pub(crate) enum ResponseStart {
    /// The complete response; nothing came before it.
    Complete(ResponsePayload),
    /// A stream.
    Stream,
    /// The request was cancelled.
    Cancelled,
}

impl ReplayStreams {
    /// Creates an empty set, whose messages count against `account`.
    pub(crate) fn new(account: Option<Arc<MemoryAccount>>) -> Self {
        Self { account, ..Self::default() }
    }

    /// Starts with a random number, so that event ids of another gateway do not name streams of this one.
    pub(crate) fn start_elsewhere(&mut self) {
        let random = encoding::random_hex().and_then(|digits| u64::from_str_radix(&digits[..10], 16).ok());
        self.last_number = AtomicU64::new(random.unwrap_or(1 << 32));
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<EventLog>>> {
        self.kept.lock().ignore_poison()
    }

    /// Creates the log of one request. Its event ids contain the id of `request`, if there is one.
    pub(crate) fn new_log(&self, request: Option<&RequestId>) -> Arc<EventLog> {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let account = self.account.clone();
        let state = EventLogState { account, first: 1, ..EventLogState::default() };
        let id_suffix = request.map(|id| format!("-{}", encoding::to_hex(id.as_bytes()))).unwrap_or_default();
        Arc::new(EventLog { number, id_suffix, state: Mutex::new(state) })
    }

    /// Keeps a stream so that it can be resumed. Others are dropped if there are too many.
    pub(crate) fn keep(&self, log: Arc<EventLog>) {
        self.kept().push_back(log);
        self.remove_excess();
    }

    /// Drops streams while there are too many, or have too many bytes: ended ones first, then the oldest.
    pub(crate) fn remove_excess(&self) {
        let mut kept = self.kept();
        let mut bytes: usize = kept.iter().map(|log| log.kept_bytes()).sum();
        while kept.len() > MAX_STREAMS || bytes > MAX_SESSION_BYTES {
            let oldest = kept.iter().position(|log| log.state().ended.is_some()).unwrap_or(0);
            let Some(removed) = kept.remove(oldest) else { return };
            // A log may have grown since it was counted.
            bytes = bytes.saturating_sub(removed.kept_bytes());
        }
    }

    /// Returns a reader of the messages after an event, if all of them are kept.
    pub(crate) fn resume_after(&self, id: &str) -> Option<EventLogReader> {
        let (number, event) = id.split_once('-')?;
        let event = event.split_once('-').map_or(event, |(event, _)| event);
        let number: u64 = number.parse().ok()?;
        let event: u64 = event.parse().ok()?;
        let log = self.kept().iter().find(|log| log.number == number).cloned()?;
        let next = event.saturating_add(1);
        let is_kept = {
            let state = log.state();
            (state.first..=state.first + state.messages.len() as u64).contains(&next)
        };
        is_kept.then(|| EventLogReader::new(log, next))
    }

    /// Drops streams whose retention has passed.
    pub(crate) fn remove_expired(&self, now: Instant) {
        let mut kept = self.kept();
        kept.retain(|log| log.state().ended.is_none_or(|ended| ended + RETENTION > now));
        if kept.is_empty() {
            kept.shrink_to_fit();
        }
    }

    /// Returns whether no streams are kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept().is_empty()
    }
}

/// Returns the request whose stream an event belongs to, if its id says so.
pub(crate) fn request_of_event(id: &str) -> Option<RequestId> {
    let suffix = id.splitn(3, '-').nth(2)?;
    RequestId::parse(encoding::parse_hex(suffix)?.into())
}

impl EventLog {
    fn state(&self) -> MutexGuard<'_, EventLogState> {
        self.state.lock().ignore_poison()
    }

    /// Returns the bytes that stay when a reader has read everything.
    fn kept_bytes(&self) -> usize {
        self.state().bytes.min(MAX_BYTES)
    }

    /// Waits until the response is complete, becomes a stream, or is cancelled. Calls `poll_handler` before each look at the
    /// state, so that it may handle the request.
    pub(crate) async fn wait_for_start(
        &self,
        accepts_events: bool,
        mut poll_handler: impl FnMut(&mut Context<'_>),
    ) -> ResponseStart {
        let start = std::future::poll_fn(|context| {
            // What the handler does is seen below, without another poll.
            self.state().waker = None;
            poll_handler(context);
            let mut state = self.state();
            match (state.response.take(), state.is_stream && accepts_events, state.ended) {
                (Some(response), ..) => Poll::Ready(ResponseStart::Complete(response)),
                (None, true, _) => Poll::Ready(ResponseStart::Stream),
                (None, false, Some(_)) => Poll::Ready(ResponseStart::Cancelled),
                (None, false, None) => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        });
        tokio::select! {
            biased;
            start = start => start,
            () = sleep(STREAM_AFTER), if accepts_events => {
                let mut state = self.state();
                state.is_stream = true;
                state.response.take().map_or(ResponseStart::Stream, ResponseStart::Complete)
            }
        }
    }

    /// Makes the response a stream, however soon it comes.
    pub(crate) fn start_stream(&self) {
        self.state().is_stream = true;
    }

    /// Adds the response and closes the log.
    pub(crate) fn finish(&self, id: &RequestId, response: ResponsePayload, now: Instant) {
        let mut state = self.state();
        if state.is_stream {
            state.make_room(0);
            state.push_response(id, encode_response(id, &response).into());
        } else {
            state.response = Some(response);
        }
        state.ended.get_or_insert(now);
        state.wake();
    }

    /// Closes the log, without a response if there is none yet.
    pub(crate) fn close(&self) {
        self.state().close();
    }

    /// Sets the task that handles the request from now on. It is aborted if the request was cancelled.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        let mut state = self.state();
        if state.ended.is_some() {
            task.abort();
        } else {
            state.task = Some(task);
        }
    }

    /// Returns whether the request has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.state().ended.is_some()
    }
}

impl CancelRequest for EventLog {
    fn cancel(&self) {
        let task = {
            let mut state = self.state();
            state.close();
            state.task.take()
        };
        if let Some(task) = task {
            task.abort();
        }
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        let state = self.state();
        if let Some(account) = &state.account {
            account.release(state.bytes);
        }
    }
}

impl EventLogState {
    /// Adds a message that may be dropped, and returns its number; `None` if it was dropped.
    fn try_push(&mut self, message: Bytes) -> Option<u64> {
        self.is_stream = true;
        let can_be_read = message.len() <= MAX_BYTES || !self.is_abandoned;
        let has_memory = |state: &Self| match &state.account {
            Some(account) => account.try_add(message.len()),
            None => true,
        };
        (can_be_read && self.make_room(message.len()) && has_memory(self)).then(|| self.push(message))
    }

    /// Adds the response, or an error if it cannot be kept: the client does not read, or clients use too much memory.
    fn push_response(&mut self, id: &RequestId, response: Bytes) {
        let substitute = |error: &Error| Bytes::from(encode_response(id, &error_payload(error)));
        if response.len() > MAX_BYTES {
            let message =
                "the result was discarded: it was too large to be kept for a client that did not read it";
            let error = Error::new(ErrorKind::Overloaded, message).mark_maybe_sent();
            self.substitute = Some(substitute(
                &error.with_hint("stay connected while the call runs, or request less data"),
            ));
        }
        let refusal = match &self.account {
            Some(account) if !account.try_add(response.len()) => {
                Some(account.refusal("the result was discarded").mark_maybe_sent())
            }
            _ => None,
        };
        match refusal {
            None => drop(self.push(response)),
            Some(error) => {
                let response = substitute(&error);
                self.account.iter().for_each(|account| account.add(response.len()));
                self.push(response);
            }
        }
        if self.is_abandoned {
            self.drop_large();
        }
    }

    /// Drops the oldest message.
    fn drop_oldest(&mut self) {
        let size = self.messages.pop_front().map_or(0, |oldest| oldest.len());
        self.first += 1;
        self.bytes -= size;
        self.account.iter().for_each(|account| account.release(size));
    }

    /// Drops a message that is too large to be kept, and those before it. An error takes the place of a response.
    fn drop_large(&mut self) {
        let Some(last) = self.messages.iter().rposition(|message| message.len() > MAX_BYTES) else { return };
        let is_newest = last + 1 == self.messages.len();
        if let Some(substitute) = self.substitute.take_if(|_| is_newest)
            && let Some(response) = self.messages.back_mut()
        {
            let added = substitute.len();
            let removed = std::mem::replace(response, substitute).len();
            self.bytes = self.bytes + added - removed;
            if let Some(account) = &self.account {
                account.add(added);
                account.release(removed);
            }
            return;
        }
        (0..=last).for_each(|_| self.drop_oldest());
        self.unread_questions.retain(|number| *number >= self.first);
    }

    /// Drops the oldest messages until one of this size fits; `false` if an unread question prevents that.
    fn make_room(&mut self, size: usize) -> bool {
        let is_full = |state: &Self| state.messages.len() >= MAX_EVENTS || state.bytes + size > MAX_BYTES;
        while !self.messages.is_empty() && is_full(self) {
            if self.unread_questions.front() == Some(&self.first) {
                return false;
            }
            self.drop_oldest();
        }
        true
    }

    /// Adds a message whose memory was counted, and returns its number.
    fn push(&mut self, message: Bytes) -> u64 {
        self.bytes += message.len();
        self.messages.push_back(message);
        self.wake();
        self.first + self.messages.len() as u64 - 1
    }

    /// Records that all messages up to this number have been read.
    fn mark_read(&mut self, number: u64) {
        while self.unread_questions.front().is_some_and(|unread| *unread <= number) {
            self.unread_questions.pop_front();
        }
    }

    fn close(&mut self) {
        self.ended.get_or_insert_with(Instant::now);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl MessageSink for Arc<EventLog> {
    fn try_send(&self, message: Vec<u8>) -> bool {
        self.state().try_push(message.into()).is_some()
    }

    fn try_send_question(&self, question: Vec<u8>) -> bool {
        let mut state = self.state();
        let number = state.try_push(question.into());
        state.unread_questions.extend(number);
        number.is_some()
    }
}

/// Reads a log from an event to its end.
pub(crate) struct EventLogReader {
    log: Arc<EventLog>,
    next: u64,
    /// Number of this reader.
    reader: u64,
    /// True if the stream starts with an empty event, which gives the client an event id to resume from.
    send_priming_event: bool,
}

impl EventLogReader {
    fn new(log: Arc<EventLog>, next: u64) -> Self {
        let reader = {
            let mut state = log.state();
            state.reader += 1;
            state.is_abandoned = false;
            state.wake();
            state.reader
        };
        Self { log, next, reader, send_priming_event: false }
    }

    /// Creates a reader from the start of the log.
    pub(crate) fn from_start(log: Arc<EventLog>, send_priming_event: bool) -> Self {
        let mut reader = Self::new(log, 1);
        reader.send_priming_event = send_priming_event;
        reader
    }
}

impl Drop for EventLogReader {
    fn drop(&mut self) {
        let mut state = self.log.state();
        if state.reader == self.reader {
            state.is_abandoned = true;
            state.drop_large();
        }
    }
}

impl MessageSource for EventLogReader {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let reader = &mut *self;
        let mut out = Vec::new();
        if std::mem::take(&mut reader.send_priming_event) {
            let EventLog { number, id_suffix, .. } = &*reader.log;
            let _ = write!(out, "id: {number}-0{id_suffix}\nretry: {RETRY_MS}\n");
            write_event(&mut out, b"");
            return Poll::Ready(Some(out));
        }
        let mut state = reader.log.state();
        if state.reader != reader.reader {
            return Poll::Ready(None);
        }
        reader.next = reader.next.max(state.first);
        let index = usize::try_from(reader.next - state.first).unwrap_or(usize::MAX);
        match state.messages.get(index) {
            Some(message) => {
                out.reserve(message.len() + 48);
                let EventLog { number, id_suffix, .. } = &*reader.log;
                let _ = writeln!(out, "id: {number}-{}{id_suffix}", reader.next);
                write_event(&mut out, message);
                state.mark_read(reader.next);
                reader.next += 1;
                if out.len() > MAX_BYTES {
                    state.drop_large();
                }
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
