//! Sends what arrives before a response to the client: progress, log messages and questions of servers.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use toolcrib::protocol::era::capabilities::ELICIT;
use toolcrib::protocol::era::client::{CANCELLED, LOG_MESSAGE, PROGRESS};
use toolcrib::protocol::era::{input, meta};
use toolcrib::protocol::json::object::{Object, as_string, to_json_string};
use toolcrib::protocol::jsonrpc::{RequestId, ResponsePayload, encode_notification, encode_request};
use toolcrib::util::encoding;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{CallUpdate, ServerRequest, UpdateSink};

/// Queued updates for a slow reader.
pub(crate) const MAX_QUEUED_UPDATES: usize = 1024;
/// Open questions to a client that has no request in progress.
const MAX_IDLE_QUESTIONS: usize = 64;
/// Tasks and elicitations that are remembered per client.
const MAX_FOLLOW_UPS: usize = 256;
/// Reasons for cancellations that are kept per client.
const MAX_CANCEL_REASONS: usize = 64;
/// Characters of a reason that a server is told.
const MAX_REASON_CHARS: usize = 1000;
/// Prefix of the ids of the gateway's requests to clients, followed by a number.
const ID_PREFIX: &str = "tc-";
/// The number above which the questions of a session that was opened elsewhere are numbered.
const ELSEWHERE: u64 = 1 << 40;

/// Sends messages to a client.
pub(crate) trait MessageSink: std::fmt::Debug + Clone + Send + Sync + 'static {
    /// Sends a message without waiting; `false` if it was dropped.
    fn try_send(&self, message: Vec<u8>) -> bool;

    /// Sends a question, which must be kept until it is read; `false` if it was dropped.
    fn try_send_question(&self, question: Vec<u8>) -> bool {
        self.try_send(question)
    }
}

/// The questions of servers that wait for one client's answer.
#[derive(Debug, Default)]
pub(crate) struct PendingQuestions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last_number: u64,
    questions: HashMap<u64, SentQuestion>,
    /// Reasons for cancellations that the servers have not been told yet.
    cancel_reasons: VecDeque<CancelReason>,
    /// Ids of tasks and elicitations of this client, whose later notifications it receives.
    follow_ups: VecDeque<String>,
    /// True if the client can no longer be asked.
    closed: bool,
}

/// A question that was sent to a client.
#[derive(Debug)]
struct SentQuestion {
    request: ServerRequest,
    /// The server's own progress token, as JSON, if it asked for progress.
    progress_token: Option<Bytes>,
}

/// The reason that a client gave for the cancellation of its request.
#[derive(Debug)]
struct CancelReason {
    request: RequestId,
    text: String,
}

impl PendingQuestions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().ignore_poison()
    }

    /// Sets the number after which questions are numbered.
    pub(crate) fn set_last_number(&self, number: u64) {
        self.state().last_number = number;
    }

    /// Numbers questions from a random start, so that answers to questions of another gateway, which had the session open before, are not
    /// taken for answers to later ones.
    pub(crate) fn start_elsewhere(&self) {
        let random = encoding::random_hex().and_then(|digits| u64::from_str_radix(&digits[..10], 16).ok());
        self.set_last_number(ELSEWHERE + random.unwrap_or_default());
    }

    /// Returns the number of the last question.
    pub(crate) fn last_number(&self) -> u64 {
        self.state().last_number
    }

    /// Adds a question and returns its number and the request to send. `None` if the client can no longer be asked.
    fn add(&self, question: ServerRequest) -> Option<(u64, Vec<u8>)> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.last_number += 1;
        let number = state.last_number;
        let id = format!("{ID_PREFIX}{number}");
        let own_token = question.params.as_ref().and_then(|params| replace_progress_token(params, &id));
        let (params, progress_token) = match own_token {
            Some(replaced) => (Some(replaced.params), Some(replaced.own_token)),
            None => (question.params.clone(), None),
        };
        let message = encode_request(&id, &question.method, params.as_deref());
        let elicitation =
            question.params.as_ref().filter(|_| question.method == ELICIT).and_then(elicitation_id);
        state.remember(elicitation);
        state.questions.insert(number, SentQuestion { request: question, progress_token });
        Some((number, message))
    }

    /// Remembers the elicitations of a response, and its task if the request created one.
    pub(crate) fn remember_follow_ups(&self, response: &ResponsePayload, creates_task: bool) {
        match response.as_result() {
            Err(error) => {
                let elicitations = input::parse_url_elicitations(error).unwrap_or_default();
                let ids =
                    elicitations.iter().filter_map(|question| elicitation_id(question.params.as_ref()?));
                self.state().remember(ids);
            }
            Ok(result) if creates_task => {
                let task =
                    Object::parse(result).ok().and_then(|result| Object::parse(result.get("task")?).ok());
                self.state().remember(task.and_then(|task| task.get_string("taskId").map(Cow::into_owned)));
            }
            Ok(_) => {}
        }
    }

    /// Returns whether the client has a task or an elicitation with this id.
    pub(crate) fn has_follow_up(&self, id: &str) -> bool {
        self.state().follow_ups.iter().any(|follow_up| follow_up == id)
    }

    /// Passes the client's answer to the server; ignores an answer without a question.
    pub(crate) fn answer(&self, id: &RequestId, answer: ResponsePayload) {
        let question =
            question_number(id.as_bytes()).and_then(|number| self.state().questions.remove(&number));
        if let Some(question) = question {
            question.request.answer_scanned(answer);
        }
    }

    /// Passes the client's progress with a question to the server. Returns `false` if its token is not one of a question.
    pub(crate) fn report_progress(&self, params: Option<&Bytes>) -> bool {
        let Some(Ok(mut params)) = params.map(Object::parse) else { return false };
        let Some(number) = params.get(meta::PROGRESS_TOKEN).and_then(|token| question_number(token)) else {
            return false;
        };
        let state = self.state();
        // The question may have been answered or withdrawn.
        let Some(question) = state.questions.get(&number) else { return true };
        if let Some(own_token) = &question.progress_token {
            params.set_unchecked(meta::PROGRESS_TOKEN, own_token.clone());
            question.request.report_progress(&params);
        }
        true
    }

    /// Remembers the reason of a cancel notification for the server.
    pub(crate) fn set_cancel_reason(&self, params: Option<&Object>) {
        let Some(params) = params else { return };
        let request = params.get("requestId").and_then(|raw| RequestId::parse(raw.clone()));
        let (Some(request), Some(reason)) = (request, params.get_string("reason")) else { return };
        let text = reason.chars().take(MAX_REASON_CHARS).collect();
        let mut state = self.state();
        if state.cancel_reasons.len() >= MAX_CANCEL_REASONS {
            state.cancel_reasons.pop_front();
        }
        state.cancel_reasons.push_back(CancelReason { request, text });
    }

    /// Returns the newest reason for the cancellation of a request, once.
    fn take_cancel_reason(&self, request: &RequestId) -> Option<String> {
        let mut state = self.state();
        let newest = state.cancel_reasons.iter().rposition(|reason| reason.request == *request)?;
        state.cancel_reasons.remove(newest).map(|reason| reason.text)
    }

    /// Drops all questions and refuses further ones.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.questions.clear();
    }

    /// Removes the questions that servers have withdrawn and returns their numbers.
    fn remove_withdrawn(&self) -> Vec<u64> {
        let questions = &mut self.state().questions;
        if questions.is_empty() {
            return Vec::new();
        }
        questions
            .extract_if(|_, question| question.request.is_withdrawn())
            .map(|(number, _)| number)
            .collect()
    }

    fn remove(&self, number: u64) {
        self.state().questions.remove(&number);
    }

    fn len(&self) -> usize {
        self.state().questions.len()
    }
}

impl State {
    fn remember(&mut self, ids: impl IntoIterator<Item = String>) {
        self.follow_ups.extend(ids);
        let excess = self.follow_ups.len().saturating_sub(MAX_FOLLOW_UPS);
        self.follow_ups.drain(..excess);
    }
}

/// Returns the number of a question from its id or progress token.
fn question_number(id: &[u8]) -> Option<u64> {
    as_string(id)?.strip_prefix(ID_PREFIX)?.parse().ok()
}

/// The parameters of a question with another progress token, and the server's own token.
struct ReplacedToken {
    params: Bytes,
    own_token: Bytes,
}

/// Replaces the progress token in the parameters of a question, because servers choose theirs independently. Returns `None`
/// if there is none.
fn replace_progress_token(params: &Bytes, token: &str) -> Option<ReplacedToken> {
    let mut params = Object::parse(params).ok()?;
    let mut meta = Object::parse(params.get("_meta")?).ok()?;
    let own_token = meta.get(meta::PROGRESS_TOKEN)?.clone();
    meta.set_unchecked(meta::PROGRESS_TOKEN, to_json_string(token));
    params.set_unchecked("_meta", meta.to_bytes());
    Some(ReplacedToken { params: params.to_bytes(), own_token })
}

fn elicitation_id(params: &Bytes) -> Option<String> {
    Object::parse(params).ok()?.get_string("elicitationId").map(Cow::into_owned)
}

/// Encodes the notification that a question has been withdrawn.
fn encode_withdrawal(number: u64) -> Vec<u8> {
    let params = format!(r#"{{"requestId":"{ID_PREFIX}{number}","reason":"the request was withdrawn"}}"#);
    encode_notification(CANCELLED, Some(params.as_bytes()))
}

/// Sends questions and notifications to a client that has no request in progress, over a stream that does not belong to a call.
pub(crate) struct IdleUpdateWriter {
    questions: Arc<PendingQuestions>,
    sink: Mutex<Option<BestEffortSink>>,
}

/// Sends a message and returns whether it was accepted. Does not keep the stream open.
type BestEffortSink = Box<dyn Fn(Vec<u8>) -> bool + Send>;

impl std::fmt::Debug for IdleUpdateWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IdleUpdateWriter").field("questions", &self.questions).finish_non_exhaustive()
    }
}

impl IdleUpdateWriter {
    /// Creates a writer without a stream.
    pub(crate) fn new(questions: Arc<PendingQuestions>) -> Self {
        Self { questions, sink: Mutex::default() }
    }

    /// Sets the stream to send to.
    pub(crate) fn connect(&self, sink: impl Fn(Vec<u8>) -> bool + Send + 'static) {
        *self.sink() = Some(Box::new(sink));
    }

    fn sink(&self) -> MutexGuard<'_, Option<BestEffortSink>> {
        self.sink.lock().ignore_poison()
    }
}

impl UpdateSink for IdleUpdateWriter {
    fn deliver(&self, update: CallUpdate) -> bool {
        let question = match update {
            CallUpdate::Request(question) => question,
            CallUpdate::RequestWithdrawn => {
                let withdrawn = self.questions.remove_withdrawn();
                let sink = self.sink();
                return sink
                    .as_ref()
                    .is_some_and(|send| withdrawn.into_iter().map(encode_withdrawal).all(send));
            }
            update => {
                let message = encode_update(update, None);
                return message.is_some_and(|message| self.sink().as_ref().is_some_and(|send| send(message)));
            }
        };
        if self.questions.len() >= MAX_IDLE_QUESTIONS {
            return false;
        }
        let Some((number, message)) = self.questions.add(question) else { return false };
        let sent = self.sink().as_ref().is_some_and(|send| send(message));
        if !sent {
            self.questions.remove(number);
        }
        sent
    }
}

/// Sends the updates of one call to its client. Dropping it removes withdrawn questions.
#[derive(Debug)]
pub(crate) struct UpdateWriter<O> {
    request_id: RequestId,
    progress_token: Option<Bytes>,
    questions: Arc<PendingQuestions>,
    out: O,
}

impl<O: MessageSink> UpdateSink for UpdateWriter<O> {
    fn deliver(&self, update: CallUpdate) -> bool {
        let question = match update {
            CallUpdate::Request(question) => question,
            CallUpdate::RequestWithdrawn => {
                self.send_withdrawals();
                return true;
            }
            update => {
                let message = encode_update(update, self.progress_token.as_ref());
                return message.is_some_and(|message| self.out.try_send(message));
            }
        };
        let Some((number, message)) = self.questions.add(question) else { return false };
        let sent = self.out.try_send_question(message);
        if !sent {
            self.questions.remove(number);
        }
        sent
    }

    fn cancel_reason(&self) -> Option<String> {
        self.questions.take_cancel_reason(&self.request_id)
    }
}

impl<O: MessageSink> UpdateWriter<O> {
    /// Creates the writer for the updates of one request, which go to `out`.
    pub(crate) fn new(receiver: UpdateReceiver<'_>, out: &O) -> Self {
        let UpdateReceiver { request_id, progress_token, questions } = receiver;
        Self {
            request_id: request_id.clone(),
            progress_token,
            questions: questions.clone(),
            out: out.clone(),
        }
    }

    /// Notifies the client of withdrawn questions.
    pub(crate) fn send_withdrawals(&self) {
        for number in self.questions.remove_withdrawn() {
            self.out.try_send(encode_withdrawal(number));
        }
    }
}

impl<O> Drop for UpdateWriter<O> {
    fn drop(&mut self) {
        self.questions.remove_withdrawn();
    }
}

/// Encodes an update that is not a question. Progress is sent only with the client's own token.
pub(crate) fn encode_update(update: CallUpdate, progress_token: Option<&Bytes>) -> Option<Vec<u8>> {
    match update {
        CallUpdate::Progress(mut progress) => {
            progress.set_unchecked(meta::PROGRESS_TOKEN, progress_token?.clone());
            Some(encode_notification(PROGRESS, Some(&progress.to_bytes())))
        }
        CallUpdate::Log(params) => Some(encode_notification(LOG_MESSAGE, Some(&params))),
        CallUpdate::Notification { method, params } => Some(encode_notification(&method, params.as_deref())),
        _ => None,
    }
}

/// The request of a client that receives updates.
pub(crate) struct UpdateReceiver<'a> {
    pub(crate) request_id: &'a RequestId,
    pub(crate) progress_token: Option<Bytes>,
    pub(crate) questions: &'a Arc<PendingQuestions>,
}
