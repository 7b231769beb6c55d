//! Streams that a session opens with GET: notifications, and resumed responses.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker, ready};

use hyper::{HeaderMap, Response, StatusCode};
use tokio_util::sync::CancellationToken;
use toolcrib::protocol::jsonrpc::{RequestId, ResponsePayload, code, encode_response};
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Error, ErrorKind};

use super::headers::{accepts_events, last_event_id, session_id};
use super::sessions::{SessionError, find, session_error};
use super::{error_response, event_response, method_not_allowed};
use crate::body::{MessageSource, ResponseBody, encode_event};
use crate::gateway::{ConnectionContext, HttpGateway};
use crate::service::EndpointScope;
use crate::service::change_watcher::{ChangeSink, ChangeWatcher};
use crate::service::session_client::SessionClientState;
use crate::service::updates::MAX_QUEUED_UPDATES;
use crate::session::stream::request_of_event;
use crate::session::{SessionRef, StreamHold};

/// Handles a GET, which needs a session.
pub(super) async fn open(
    conn: &ConnectionContext,
    scope: &EndpointScope,
    headers: &HeaderMap,
) -> Response<ResponseBody> {
    let session = match find(conn, scope, session_id(headers)).await {
        Ok(session) => session,
        Err(SessionError::Missing) => return method_not_allowed(),
        Err(error) => return session_error(conn, None, error),
    };
    let refuse = |status, message| error_response(status, None, code::INVALID_REQUEST, message);
    if !accepts_events(headers) {
        return refuse(StatusCode::NOT_ACCEPTABLE, "`Accept` must allow text/event-stream");
    }
    if let Some(id) = last_event_id(headers) {
        return match session.streams.resume_after(id) {
            Some(reader) => event_response(ResponseBody::events(reader)),
            None => match request_of_event(id) {
                Some(request) => lost_response(conn, &request),
                None => refuse(StatusCode::BAD_REQUEST, "unknown or expired event id"),
            },
        };
    }
    let Some(hold) = session.hold_stream() else {
        return refuse(StatusCode::CONFLICT, "this session already has an open notification stream");
    };
    let stream = notifications(&conn.gateway, &session, hold, conn.stop.clone());
    event_response(ResponseBody::events(stream))
}

/// Returns the stream of what a session sends without a request: notifications, and questions while no request is in progress. It
/// ends with the session, when the gateway drains, and with `stop`.
pub(super) fn notifications(
    gateway: &HttpGateway,
    session: &SessionRef,
    hold: StreamHold,
    stop: CancellationToken,
) -> GetStream<Arc<SessionClientState>> {
    let watcher = ChangeWatcher::new(gateway.service.clone(), session.client.scope.clone());
    let ends = [session.ended.clone(), stop, gateway.draining.token()];
    let client = session.client.clone();
    let questions = Arc::<IdleQuestions>::default();
    let weak_questions = Arc::downgrade(&questions);
    client
        .idle_updates
        .connect(move |message| weak_questions.upgrade().is_some_and(|questions| questions.push(message)));
    GetStream::new(watcher, client, Some(hold), ends, VecDeque::new(), None).with_questions(questions)
}

/// Returns a stream that tells the client that the response to its request is lost: the gateway that made the call has ended, or
/// has dropped the stream.
fn lost_response(conn: &ConnectionContext, id: &RequestId) -> Response<ResponseBody> {
    let message = "lost the response: the gateway that made the call has ended, or no longer keeps the stream; \
                   the call may have run";
    let error = conn.gateway.service.error_object(&Error::new(ErrorKind::Lost, message).mark_maybe_sent());
    let response = encode_response(id, &ResponsePayload::Error(error));
    event_response(ResponseBody::full(encode_event(&response)))
}

/// Questions to a client that has no request in progress. There is one per stream and hardly any is ever used; a channel
/// would need twenty times the memory.
#[derive(Default)]
pub(super) struct IdleQuestions(Mutex<QuestionQueue>);

#[derive(Default)]
struct QuestionQueue {
    messages: VecDeque<Vec<u8>>,
    reader: Option<Waker>,
}

impl IdleQuestions {
    fn queue(&self) -> MutexGuard<'_, QuestionQueue> {
        self.0.lock().ignore_poison()
    }

    /// Queues a message; `false` if the queue is full.
    fn push(&self, message: Vec<u8>) -> bool {
        let mut queue = self.queue();
        if queue.messages.len() >= MAX_QUEUED_UPDATES {
            return false;
        }
        queue.messages.push_back(message);
        let reader = queue.reader.take();
        drop(queue);
        reader.into_iter().for_each(Waker::wake);
        true
    }

    fn poll_next(&self, context: &Context<'_>) -> Poll<Vec<u8>> {
        let mut queue = self.queue();
        match queue.messages.pop_front() {
            Some(message) => Poll::Ready(message),
            None => {
                queue.reader = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Change notifications as a stream, with optional first messages and a last one.
pub(super) struct GetStream<H> {
    ready: VecDeque<Vec<u8>>,
    last: Option<Vec<u8>>,
    next: Option<NextMessages<H>>,
    /// Each of them ends the stream.
    ends: [CancellationToken; 3],
    questions: Option<Arc<IdleQuestions>>,
    _hold: Option<StreamHold>,
}

/// Waits for the next messages and returns the watcher and sink with them.
type NextMessages<H> = Pin<Box<dyn Future<Output = Option<(Vec<Vec<u8>>, ChangeWatcher, H)>> + Send>>;

impl<H: ChangeSink + 'static> GetStream<H> {
    pub(super) fn new(
        watcher: ChangeWatcher,
        sink: H,
        hold: Option<StreamHold>,
        ends: [CancellationToken; 3],
        first: VecDeque<Vec<u8>>,
        last: Option<Vec<u8>>,
    ) -> Self {
        let next = Some(next_messages(watcher, sink, ends.clone()));
        Self { ready: first, last, next, ends, questions: None, _hold: hold }
    }

    /// Adds questions that are sent on this stream.
    fn with_questions(mut self, questions: Arc<IdleQuestions>) -> Self {
        self.questions = Some(questions);
        self
    }
}

fn next_messages<H: ChangeSink + 'static>(
    mut watcher: ChangeWatcher,
    mut sink: H,
    ends: [CancellationToken; 3],
) -> NextMessages<H> {
    Box::pin(async move {
        let messages = tokio::select! {
            biased;
            () = ends[0].cancelled() => None,
            () = ends[1].cancelled() => None,
            () = ends[2].cancelled() => None,
            messages = watcher.next_messages(&mut sink) => messages,
        };
        messages.map(|messages| (messages, watcher, sink))
    })
}

impl<H: ChangeSink + Unpin + 'static> MessageSource for GetStream<H> {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        let stream = &mut *self;
        loop {
            if let Some(message) = stream.ready.pop_front() {
                return Poll::Ready(Some(encode_event(&message)));
            }
            if let Some(questions) = &stream.questions
                && let Poll::Ready(message) = questions.poll_next(context)
            {
                return Poll::Ready(Some(encode_event(&message)));
            }
            let Some(next) = &mut stream.next else {
                return Poll::Ready(stream.last.take().map(|last| encode_event(&last)));
            };
            match ready!(next.as_mut().poll(context)) {
                None => stream.next = None,
                Some((messages, watcher, sink)) => {
                    stream.ready.extend(messages);
                    stream.next = Some(next_messages(watcher, sink, stream.ends.clone()));
                }
            }
        }
    }
}
