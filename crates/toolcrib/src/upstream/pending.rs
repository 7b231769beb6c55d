//! Requests in flight on one connection: assigns their ids and matches responses to them.

mod discarded;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::deadline::RequestDeadline;
use super::fair_queue::Turn;
use super::seen_clients::SeenClients;
use crate::call::updates::UpdateSink;
use crate::model::error::Error;
use crate::model::failure_class::Delivery;
use crate::protocol::era::capabilities::Client;
use crate::protocol::jsonrpc::{RequestId, ResponsePayload};

pub(super) use discarded::DiscardedMessage;

/// If this many requests were in flight together, the next one is queued although it is alone: others follow it, and one write for
/// all of them is enough: 2,200 writes instead of 4,000 for 20,000 calls of 16 callers, and 1 % less CPU.
const MANY_REQUESTS: usize = 4;

/// Open questions that one call may have.
const MAX_QUESTIONS_PER_CALL: usize = 64;

/// Time that a client has to answer a question while another client's question is refused because of it.
const CONTESTED_QUESTION_TIME: Duration = Duration::from_secs(60);

/// Time in which a log message may arrive after the response to its call, on another stream.
const LATE_LOG_GRACE: Duration = Duration::from_secs(2);

/// Time in which a server that answers no ping may still act on a call after it was cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// The end of a request.
#[derive(Debug)]
pub(super) enum RequestEnd {
    /// The server responded.
    Answered(ResponsePayload),
    /// The server sent something that is not a valid response; the text says why.
    BadReply(String),
    /// This request failed; the connection goes on.
    Failed(Error),
    /// The connection closed first.
    Lost(Delivery),
    /// No response came before this time. The request stays in the table until its caller has cancelled it.
    TimedOut(Instant),
}

/// A request that waits for its response.
#[derive(Debug)]
pub(super) struct PendingRequest {
    /// `None` after the request has timed out.
    reply: Option<oneshot::Sender<RequestEnd>>,
    deadline: Option<RequestDeadline>,
    /// The client behind the request; `None` for the gateway's own requests.
    receiver: Option<ResponseReceiver>,
    /// `NotSent` only if the transport has reported that the server did not process the request.
    delivery: Delivery,
    /// When the server last reported progress.
    progress: Option<Instant>,
    /// Questions of the server that the client has not answered yet.
    open_questions: usize,
}

/// A request of the server that waits for a client's answer.
#[derive(Debug)]
struct PendingQuestion {
    /// The id that the server gave it.
    id: RequestId,
    /// The call whose client is asked; `None` if the owner of the instance is asked.
    call: Option<u64>,
    client: u64,
    /// True if it arrived on the call's own stream. If not, it may belong to an earlier call of the same client.
    is_certain: bool,
    asked_at: Instant,
}

/// A question that was closed because it took too long.
#[derive(Debug)]
pub(super) struct ExpiredQuestion {
    /// The id that the server gave it.
    pub(super) id: RequestId,
    /// The sink of the client that was asked.
    pub(super) updates: Option<Arc<dyn UpdateSink>>,
}

/// The client behind a request, and the sink for updates that arrive before the response.
#[derive(Debug)]
pub(super) struct ResponseReceiver {
    pub(super) client: Client,
    pub(super) updates: Option<Arc<dyn UpdateSink>>,
    /// The call's in-flight turn, released while the client is asked a question.
    pub(super) turn: Option<Turn>,
}

/// The newest sign of life of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activity {
    /// The server reported progress at this time.
    Progress(Instant),
    /// A question to the client is open.
    Question,
}

/// The reason why a message of the server has no recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRecipient {
    /// The request whose stream it arrived on has ended, or is the gateway's own.
    CallEnded,
    /// No client has a call in flight.
    NoCall,
    /// Several clients have calls in flight and the message does not say which one it belongs to.
    Ambiguous,
}

/// A client whose request was cancelled, and until when its server may still work on it.
#[derive(Debug)]
struct CancelledClient {
    client: u64,
    until: Instant,
    /// The ping that was sent after the cancellation. Its answer shows that the server has noticed the cancellation.
    ping: Option<u64>,
}

/// The client whose call was answered last.
#[derive(Debug)]
struct LastClient {
    client: Client,
    answered: Instant,
    /// When a call of another client was answered last.
    other_answered: Option<Instant>,
}

impl PendingRequest {
    /// Returns the reason that the client gave for a cancellation.
    pub(super) fn cancel_reason(&self) -> Option<String> {
        self.receiver.as_ref()?.updates.as_ref()?.cancel_reason_contained()
    }

    pub(super) fn new(reply: oneshot::Sender<RequestEnd>, receiver: Option<ResponseReceiver>) -> Self {
        Self {
            reply: Some(reply),
            deadline: None,
            receiver,
            delivery: Delivery::MaybeSent,
            progress: None,
            open_questions: 0,
        }
    }

    pub(super) fn with_deadline(self, deadline: Option<RequestDeadline>) -> Self {
        Self { deadline, ..self }
    }

    pub(super) fn finish(self, end: RequestEnd) {
        let end = match end {
            RequestEnd::Failed(error) if self.delivery == Delivery::NotSent => {
                RequestEnd::Failed(error.mark_not_sent())
            }
            end => end,
        };
        // The receiver is gone if the caller was dropped at the same time.
        let _ = self.reply.map(|reply| reply.send(end));
    }

    /// Returns the newest sign of life.
    fn last_activity(&self) -> Option<Activity> {
        match self.open_questions {
            0 => self.progress.map(Activity::Progress),
            _ => Some(Activity::Question),
        }
    }

    /// Moves a deadline that has passed if there was activity. Otherwise the request has timed out, and is returned.
    fn check_deadline(&mut self, now: Instant) -> Option<TimedOutRequest> {
        let passed = self.deadline.filter(|deadline| deadline.until <= now)?;
        self.deadline = passed.extend(self.last_activity());
        let reply = if self.deadline.is_none() { self.reply.take() } else { None };
        Some(TimedOutRequest { reply: reply?, deadline: passed.until })
    }

    /// Ends the request because its connection closed.
    pub(super) fn finish_lost(self) {
        let lost = RequestEnd::Lost(self.delivery);
        self.finish(lost);
    }
}

/// A request without a response in time. Its caller does not know yet.
#[derive(Debug)]
pub(super) struct TimedOutRequest {
    reply: oneshot::Sender<RequestEnd>,
    deadline: Instant,
}

impl TimedOutRequest {
    /// Reports the timeout to the caller, who is woken.
    pub(super) fn report(self) {
        // The receiver is gone if the caller was dropped at the same time.
        let _ = self.reply.send(RequestEnd::TimedOut(self.deadline));
    }
}

/// The requests in flight on one connection. Ids are never reused, so a late response matches nothing.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    requests: BTreeMap<u64, PendingRequest>,
    questions: BTreeMap<u64, PendingQuestion>,
    /// Clients with a cancelled request that their server may still be working on.
    recently_cancelled: Vec<CancelledClient>,
    last_id: u64,
    /// The most requests that were in flight at the same time since one was alone.
    most_in_flight: usize,
    last_question_id: u64,
    closed: bool,
    /// When the timer of the connection next looks for passed deadlines. It is not later than any deadline, and in the past until
    /// the timer has looked.
    timer: Option<Instant>,
    /// True if log messages may arrive later than the response to their call.
    remembers_last_client: bool,
    last_client: Option<LastClient>,
    /// The newest message that was discarded without a request that it failed.
    discarded: Option<DiscardedMessage>,
    /// The clients of calls on this connection, the newest last; `None` if they are not remembered.
    clients: Option<SeenClients>,
}

impl PendingRequests {
    /// Adds a request and returns its id, or `None` once the connection is closed.
    pub(super) fn insert(&mut self, request: PendingRequest) -> Option<u64> {
        if self.closed {
            return None;
        }
        self.last_id += 1;
        if let (Some(clients), Some(receiver)) = (&mut self.clients, &request.receiver) {
            clients.add(receiver.client.key);
        }
        self.requests.insert(self.last_id, request);
        Some(self.last_id)
    }

    /// Returns the clients of calls on this connection, to remember them or forget some; `None` until that is set.
    pub(super) fn seen_clients(&mut self) -> &mut Option<SeenClients> {
        &mut self.clients
    }

    /// Sets the timer to an earlier time if this deadline needs it. Returns whether that is so.
    pub(super) fn set_timer_earlier(&mut self, deadline: Option<RequestDeadline>) -> bool {
        let Some(RequestDeadline { until, .. }) = deadline else { return false };
        let is_earlier = self.timer.is_none_or(|timer| until < timer);
        if is_earlier {
            self.timer = Some(until);
        }
        is_earlier
    }

    /// Returns the requests that have timed out, and sets the timer to the next deadline.
    pub(super) fn check_deadlines(&mut self, now: Instant) -> Vec<TimedOutRequest> {
        let timed_out =
            self.requests.values_mut().filter_map(|request| request.check_deadline(now)).collect();
        self.timer = self.requests.values().filter_map(|request| Some(request.deadline?.until)).min();
        timed_out
    }

    /// Returns when the timer next looks for passed deadlines, if any request has a deadline.
    pub(super) fn timer(&self) -> Option<Instant> {
        self.timer
    }

    /// Removes a request that has ended.
    pub(super) fn remove(&mut self, id: u64) -> Option<PendingRequest> {
        if !self.recently_cancelled.is_empty() {
            self.recently_cancelled.retain(|cancelled| cancelled.ping != Some(id));
        }
        let request = self.requests.remove(&id);
        if self.remembers_last_client
            && let Some(receiver) = request.as_ref().and_then(|request| request.receiver.as_ref())
        {
            self.set_last_client(&receiver.client);
        }
        request
    }

    /// Remembers the client of the last call from now on.
    pub(super) fn remember_last_client(&mut self) {
        self.remembers_last_client = true;
    }

    fn set_last_client(&mut self, client: &Client) {
        let other_answered = self.last_client.take().and_then(|last| match last.client.key == client.key {
            true => last.other_answered,
            false => Some(last.answered),
        });
        self.last_client =
            Some(LastClient { client: client.clone(), answered: Instant::now(), other_answered });
    }

    /// Returns the client that a late log message belongs to: the only one whose calls were answered a moment ago.
    pub(super) fn find_last_client(&self) -> Option<&Client> {
        let is_recent = |answered: Instant| answered.elapsed() < LATE_LOG_GRACE;
        let last = self.last_client.as_ref().filter(|last| is_recent(last.answered))?;
        (!last.other_answered.is_some_and(is_recent)).then_some(&last.client)
    }

    /// Adds a ping if a cancelled request makes it unclear which client a question belongs to, and returns its id. Its
    /// answer, or the end of the grace period, makes it clear again.
    pub(super) fn insert_ping_after_cancellation(&mut self) -> Option<u64> {
        if self.recently_cancelled.is_empty() {
            return None;
        }
        let now = Instant::now();
        self.recently_cancelled.retain(|cancelled| cancelled.until > now);
        let clients =
            self.requests.values().filter_map(|request| Some(request.receiver.as_ref()?.client.key));
        let clients: Vec<u64> = clients.collect();
        let is_unclear = |cancelled: &CancelledClient| {
            cancelled.ping.is_none() && clients.iter().any(|client| *client != cancelled.client)
        };
        if !self.recently_cancelled.iter().any(is_unclear) {
            return None;
        }
        let id = self.insert(PendingRequest::new(oneshot::channel().0, None))?;
        self.recently_cancelled.iter_mut().for_each(|cancelled| {
            cancelled.ping.get_or_insert(id);
        });
        Some(id)
    }

    /// Records that the server did not process a request. Its caller learns this when the request fails.
    pub(super) fn mark_not_sent(&mut self, id: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.delivery = Delivery::NotSent;
        }
    }

    /// Returns the update sink of a request. Progress extends the request's deadline.
    pub(super) fn update_sink(&mut self, id: u64, progress: bool) -> Option<Arc<dyn UpdateSink>> {
        let request = self.requests.get_mut(&id)?;
        if progress {
            request.progress = Some(Instant::now());
        }
        request.receiver.as_ref()?.updates.clone()
    }

    /// Opens a question to the client of a call and releases the call's turn. Returns the question's id and the
    /// client's sink.
    pub(super) fn open_question(
        &mut self,
        call: u64,
        id: RequestId,
        is_certain: bool,
    ) -> Option<(u64, Arc<dyn UpdateSink>)> {
        let request =
            self.requests.get_mut(&call).filter(|request| request.open_questions < MAX_QUESTIONS_PER_CALL)?;
        let receiver = request.receiver.as_mut()?;
        let updates = receiver.updates.clone()?;
        receiver.turn = None;
        request.open_questions += 1;
        let client = receiver.client.key;
        let question = PendingQuestion { id, call: Some(call), client, is_certain, asked_at: Instant::now() };
        Some((self.insert_question(question), updates))
    }

    /// Opens a question to the owner of the instance and returns its id.
    pub(super) fn open_owner_question(&mut self, id: RequestId) -> u64 {
        let asked_at = Instant::now();
        self.insert_question(PendingQuestion { id, call: None, client: 0, is_certain: false, asked_at })
    }

    fn insert_question(&mut self, question: PendingQuestion) -> u64 {
        self.last_question_id += 1;
        self.questions.insert(self.last_question_id, question);
        self.last_question_id
    }

    /// Returns whether any question waits for its answer.
    pub(super) fn has_open_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Returns whether the server still waits for an answer: a call that the question can belong to is in flight.
    pub(super) fn is_question_open(&self, question: u64) -> bool {
        let Some(question) = self.questions.get(&question) else { return false };
        let is_from_client = |request: &PendingRequest| {
            request.receiver.as_ref().is_some_and(|receiver| receiver.client.key == question.client)
        };
        match question.call {
            None => true,
            Some(call) if question.is_certain => self.is_pending(call),
            Some(call) => self.requests.range(..=call).any(|(_, request)| is_from_client(request)),
        }
    }

    /// Closes the questions to clients that have been open for too long, and returns them. Called when their calls keep
    /// another client from being asked: one client that does not answer must not stop the questions of all others.
    pub(super) fn close_contested_questions(&mut self, now: Instant) -> Vec<ExpiredQuestion> {
        let is_old = |question: &PendingQuestion| {
            question.call.is_some()
                && now.saturating_duration_since(question.asked_at) >= CONTESTED_QUESTION_TIME
        };
        let old: Vec<u64> =
            self.questions.iter().filter(|(_, question)| is_old(question)).map(|(id, _)| *id).collect();
        let expire = |id: u64| {
            let question = self.questions.get(&id)?;
            let request = question.call.and_then(|call| self.requests.get(&call));
            let updates = request.and_then(|request| request.receiver.as_ref()?.updates.clone());
            let expired = ExpiredQuestion { id: question.id.clone(), updates };
            self.close_question(id).then_some(expired)
        };
        old.into_iter().filter_map(expire).collect()
    }

    /// Removes a question that the server withdrew. Returns the client's sink, or `None` if the owner was asked.
    pub(super) fn withdraw_question(&mut self, id: &RequestId) -> Option<Arc<dyn UpdateSink>> {
        let (question_id, client) = self
            .questions
            .iter()
            .find(|(_, question)| question.id == *id)
            .map(|(question_id, question)| (*question_id, question.call.map(|_| question.client)))?;
        self.close_question(question_id);
        let mut receivers = self.requests.values().rev().filter_map(|request| request.receiver.as_ref());
        receivers.find(|receiver| Some(receiver.client.key) == client)?.updates.clone()
    }

    /// Returns whether the request that was just added is the only one in flight, including the gateway's own, and others are not
    /// expected to follow it: clients that get their responses together call again together. Call it once for each request.
    pub(super) fn check_alone(&mut self) -> bool {
        let in_flight = self.requests.len();
        if in_flight > 1 {
            self.most_in_flight = self.most_in_flight.max(in_flight);
            return false;
        }
        std::mem::take(&mut self.most_in_flight) < MANY_REQUESTS
    }

    pub(super) fn is_pending(&self, id: u64) -> bool {
        self.requests.contains_key(&id)
    }

    /// Closes a question after its answer and resumes the call's deadline. Returns `false` if it was closed before.
    pub(super) fn close_question(&mut self, question: u64) -> bool {
        let Some(PendingQuestion { call, .. }) = self.questions.remove(&question) else { return false };
        if let Some(request) = call.and_then(|call| self.requests.get_mut(&call)) {
            request.open_questions -= 1;
            request.progress = Some(Instant::now());
        }
        true
    }

    /// Returns the newest sign of life of a request.
    pub(super) fn last_activity(&self, id: u64) -> Option<Activity> {
        self.requests.get(&id)?.last_activity()
    }

    /// Returns the client that a message of the server belongs to, and the call to deliver it on.
    ///
    /// A message on the stream of request `origin` belongs to its client. Any other belongs to a client only if no
    /// other client has a call in flight or recently cancelled: servers ask several times in one call, and go on
    /// after a cancellation.
    pub(super) fn find_client(&mut self, origin: Option<u64>) -> Result<(u64, &Client), NoRecipient> {
        if let Some(origin) = origin {
            let receiver = self.requests.get(&origin).and_then(|request| request.receiver.as_ref());
            return receiver.map(|receiver| (origin, &receiver.client)).ok_or(NoRecipient::CallEnded);
        }
        let now = Instant::now();
        self.recently_cancelled.retain(|cancelled| cancelled.until > now);
        let requests = self.requests.iter().rev();
        let mut newest_first =
            requests.filter_map(|(id, request)| Some((*id, &request.receiver.as_ref()?.client)));
        let newest = newest_first.next().ok_or(NoRecipient::NoCall)?;
        let is_other = |key: u64| key != newest.1.key;
        if newest_first.any(|(_, client)| is_other(client.key))
            || self.recently_cancelled.iter().any(|cancelled| is_other(cancelled.client))
        {
            return Err(NoRecipient::Ambiguous);
        }
        Ok(newest)
    }

    /// Cancels a request; `None` if it has ended. The server may go on with it for a moment.
    pub(super) fn cancel(&mut self, id: u64) -> Option<PendingRequest> {
        let request = self.requests.remove(&id)?;
        if let Some(receiver) = &request.receiver {
            let now = Instant::now();
            self.recently_cancelled.retain(|cancelled| cancelled.until > now);
            let until = now + CANCEL_GRACE;
            self.recently_cancelled.push(CancelledClient { client: receiver.client.key, until, ping: None });
        }
        Some(request)
    }

    /// Takes the request that an unreadable response is most likely for: the first of `ids` that is pending, else the
    /// only pending request. If `ids` names a request that has ended, there is none.
    pub(super) fn take_likely_owner(&mut self, ids: &[u64]) -> Option<PendingRequest> {
        let owner = self.find_likely_owner(ids)?;
        self.requests.remove(&owner)
    }

    fn find_likely_owner(&self, ids: &[u64]) -> Option<u64> {
        let names_ended = ids.iter().any(|id| (1..=self.last_id).contains(id));
        match ids.iter().copied().find(|id| self.requests.contains_key(id)) {
            None if !names_ended && self.requests.len() == 1 => self.requests.keys().next().copied(),
            named => named,
        }
    }

    /// Refuses new requests and returns those in flight.
    pub(super) fn close(&mut self) -> Vec<PendingRequest> {
        self.closed = true;
        std::mem::take(&mut self.requests).into_values().collect()
    }

    /// Counts the clients' requests in flight, without the gateway's own.
    pub(super) fn in_flight(&self) -> usize {
        self.requests.values().filter(|request| request.receiver.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot::Receiver;

    use super::*;
    use crate::spec::{ServerLimits, ToolsSpec};
    use crate::upstream::deadline::Deadline;

    const SECOND: Duration = Duration::from_secs(1);

    struct AddedRequest {
        id: u64,
        end: Receiver<RequestEnd>,
        /// True if the timer had to be set to an earlier time.
        changed_timer: bool,
    }

    /// Adds a request with a time limit in seconds.
    fn add(pending: &mut PendingRequests, began: Instant, seconds: u32) -> AddedRequest {
        let limits = ServerLimits { call_timeout: seconds * SECOND, ..ServerLimits::default() };
        let tools = ToolsSpec::default();
        let deadline = Some(Deadline::new(&limits, &tools, "echo", began).for_request());
        let (sender, end) = oneshot::channel();
        let id = pending.insert(PendingRequest::new(sender, None).with_deadline(deadline)).unwrap();
        AddedRequest { id, end, changed_timer: pending.set_timer_earlier(deadline) }
    }

    /// Looks at the deadlines as the timer does, and returns when it looks again.
    fn check(pending: &mut PendingRequests, now: Instant) -> Option<Instant> {
        pending.check_deadlines(now).into_iter().for_each(TimedOutRequest::report);
        pending.timer()
    }

    fn has_timed_out(receiver: &mut Receiver<RequestEnd>, deadline: Instant) -> bool {
        matches!(receiver.try_recv(), Ok(RequestEnd::TimedOut(until)) if until == deadline)
    }

    #[test]
    fn timer_is_set_only_for_an_earlier_deadline() {
        let began = Instant::now();
        let mut pending = PendingRequests::default();
        let mut first = add(&mut pending, began, 10);
        assert!(first.changed_timer && !add(&mut pending, began + SECOND, 10).changed_timer);
        assert!(add(&mut pending, began, 3).changed_timer);
        assert_eq!(check(&mut pending, began + 3 * SECOND), Some(began + 10 * SECOND));
        assert_eq!(check(&mut pending, began + 10 * SECOND), Some(began + 11 * SECOND));
        assert!(has_timed_out(&mut first.end, began + 10 * SECOND) && pending.is_pending(first.id));
        assert_eq!(check(&mut pending, began + 11 * SECOND), None);
        assert!(add(&mut pending, began + 20 * SECOND, 10).changed_timer, "the timer was not set");
    }

    #[test]
    fn progress_moves_a_deadline_when_it_passes() {
        let began = Instant::now();
        let mut pending = PendingRequests::default();
        let mut request = add(&mut pending, began, 10);
        pending.requests.get_mut(&request.id).unwrap().progress = Some(began + 8 * SECOND);
        assert_eq!(check(&mut pending, began + 10 * SECOND), Some(began + 18 * SECOND));
        assert!(!has_timed_out(&mut request.end, began + 10 * SECOND));
        assert_eq!(check(&mut pending, began + 18 * SECOND), None);
    }

    #[test]
    fn response_after_the_deadline_is_dropped() {
        let began = Instant::now();
        let mut pending = PendingRequests::default();
        let mut request = add(&mut pending, began, 10);
        assert_eq!(check(&mut pending, began + 10 * SECOND), None);
        let response = RequestEnd::Answered(ResponsePayload::Result("{}".into()));
        pending.remove(request.id).unwrap().finish(response);
        assert!(has_timed_out(&mut request.end, began + 10 * SECOND));
    }
}
