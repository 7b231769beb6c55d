//! The table of requests in flight: numbers out, answers back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::turns::Turn;
use crate::error::Error;
use crate::told::Hear;
use crate::wire::dialect::party::Client;
use crate::wire::message::{Answer, Id};

/// Questions of a server that one client may have before it in one call.
const MOST_QUESTIONS: usize = 64;

/// How long a server may go on with a call that was taken back.
const STOPPING: Duration = Duration::from_secs(5);

/// How a request ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// With an answer.
    Answered(Answer),
    /// With bytes that are no answer.
    BadReply(String),
    /// With a failure that concerns this request alone.
    Failed(Error),
    /// Without one: the other end is gone. `unsent` if it certainly never got the request.
    Lost { unsent: bool },
}

/// Who waits for an answer.
#[derive(Debug)]
pub(super) struct Waiter {
    answer: oneshot::Sender<Ended>,
    /// On whose behalf; nobody's for requests of our own.
    listener: Option<Listener>,
    /// The other end certainly never got the request.
    pub(super) unsent: bool,
    /// When progress was heard of last.
    progress: Option<Instant>,
    /// Questions of the server that the client has not answered yet.
    asking: usize,
}

/// A question of the server that waits for a client's answer.
#[derive(Debug)]
struct Question {
    /// What the server calls it.
    id: Id,
    /// The request whose client is asked, and that client; no request if it is put to whose server this is.
    call: Option<u64>,
    client: u64,
    /// Whether it certainly belongs to that request, and to no earlier one of the client.
    sure: bool,
}

/// The client behind a request, and where it is told what comes before the answer.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) client: Client,
    pub(super) told: Option<Arc<dyn Hear>>,
    /// One of the places for calls that the server works on; given back while the client is asked.
    pub(super) turn: Option<Turn>,
}

/// What was heard about a request last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// That it goes on.
    Progress(Instant),
    /// A question; people take their time.
    Question,
}

/// Why a question of the server's can reach nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unheard {
    /// The request it came with is over, or is one of ours.
    Over,
    /// No client's request is under way.
    Nobody,
    /// Requests of several clients are, and nothing says whose it belongs to.
    Several,
}

impl Waiter {
    pub(super) fn new(answer: oneshot::Sender<Ended>, listener: Option<Listener>) -> Self {
        Self { answer, listener, unsent: false, progress: None, asking: 0 }
    }

    pub(super) fn end(self, ended: Ended) {
        // Nobody listens any more if the caller gave up in this very moment.
        let _ = self.answer.send(ended);
    }
}

/// The requests in flight on one connection. Numbers are never used twice, so a late answer finds nobody.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: BTreeMap<u64, Waiter>,
    questions: BTreeMap<u64, Question>,
    /// Clients whose requests were taken back, and until when their server may not have noticed.
    taken_back: Vec<(u64, Instant)>,
    last: u64,
    last_question: u64,
    closed: bool,
}

impl Pending {
    /// Enters a waiter and gives it a number; `None` once the connection is closed.
    pub(super) fn enter(&mut self, waiter: Waiter) -> Option<u64> {
        if self.closed {
            return None;
        }
        self.last += 1;
        self.waiting.insert(self.last, waiter);
        Some(self.last)
    }

    /// Takes a waiter out.
    pub(super) fn take(&mut self, id: u64) -> Option<Waiter> {
        self.waiting.remove(&id)
    }

    /// Notes that a request never left; who waits for it is told when the connection closes.
    pub(super) fn mark_unsent(&mut self, id: u64) {
        if let Some(waiter) = self.waiting.get_mut(&id) {
            waiter.unsent = true;
        }
    }

    /// Who hears what is told under this number; progress is good for more time.
    pub(super) fn hears(&mut self, id: u64, progress: bool) -> Option<Arc<dyn Hear>> {
        let waiter = self.waiting.get_mut(&id)?;
        if progress {
            waiter.progress = Some(Instant::now());
        }
        waiter.listener.as_ref()?.told.clone()
    }

    /// Puts a question to the client of this request, until `answered`: the server works on something else meanwhile.
    /// The question's number, and who is asked.
    pub(super) fn asks(&mut self, call: u64, id: Id, sure: bool) -> Option<(u64, Arc<dyn Hear>)> {
        let waiter = self.waiting.get_mut(&call).filter(|waiter| waiter.asking < MOST_QUESTIONS)?;
        let listener = waiter.listener.as_mut()?;
        let told = listener.told.clone()?;
        listener.turn = None;
        waiter.asking += 1;
        let client = listener.client.key;
        Some((self.pose(Question { id, call: Some(call), client, sure }), told))
    }

    /// Puts a question to the client whose server this is, until `answered`.
    pub(super) fn asks_owner(&mut self, id: Id) -> u64 {
        self.pose(Question { id, call: None, client: 0, sure: false })
    }

    fn pose(&mut self, question: Question) -> u64 {
        self.last_question += 1;
        self.questions.insert(self.last_question, question);
        self.last_question
    }

    /// Whether the server waits for the answer to a question: as long as a request is under way that it can belong to.
    pub(super) fn is_asked(&self, question: u64) -> bool {
        let Some(question) = self.questions.get(&question) else { return false };
        let of_client = |waiter: &Waiter| {
            waiter.listener.as_ref().is_some_and(|listener| listener.client.key == question.client)
        };
        match question.call {
            None => true,
            Some(call) if question.sure => self.waits(call),
            Some(call) => self.waiting.range(..=call).any(|(_, waiter)| of_client(waiter)),
        }
    }

    /// The server needs no answer to its question any more; who is to be told, but for whose server this is.
    pub(super) fn unasked(&mut self, id: &Id) -> Option<Arc<dyn Hear>> {
        let (number, client) = self
            .questions
            .iter()
            .find(|(_, question)| question.id == *id)
            .map(|(number, question)| (*number, question.call.map(|_| question.client)))?;
        self.answered(number);
        let mut listeners = self.waiting.values().rev().filter_map(|waiter| waiter.listener.as_ref());
        listeners.find(|listener| Some(listener.client.key) == client)?.told.clone()
    }

    /// Whether somebody waits under this number.
    pub(super) fn waits(&self, id: u64) -> bool {
        self.waiting.contains_key(&id)
    }

    /// A question that was put to a client has its answer, so the request goes on; `false` if it was over.
    pub(super) fn answered(&mut self, question: u64) -> bool {
        let Some(Question { call, .. }) = self.questions.remove(&question) else { return false };
        if let Some(waiter) = call.and_then(|call| self.waiting.get_mut(&call)) {
            waiter.asking -= 1;
            waiter.progress = Some(Instant::now());
        }
        true
    }

    /// What was heard about a request last.
    pub(super) fn heard(&self, id: u64) -> Option<Heard> {
        let waiter = self.waiting.get(&id)?;
        if waiter.asking > 0 { Some(Heard::Question) } else { waiter.progress.map(Heard::Progress) }
    }

    /// The client that something belongs to which came on the stream of request `origin`, or on no request's: then only
    /// if there is but one client it could belong to. Nothing else is proof: a server may ask twice in one call, and go
    /// on with a call that was taken back. The client's newest request is where it is told.
    pub(super) fn client_of(&mut self, origin: Option<u64>) -> Result<(u64, &Client), Unheard> {
        if let Some(origin) = origin {
            let listener = self.waiting.get(&origin).and_then(|waiter| waiter.listener.as_ref());
            return listener.map(|listener| (origin, &listener.client)).ok_or(Unheard::Over);
        }
        let now = Instant::now();
        self.taken_back.retain(|(_, until)| *until > now);
        let waiting = self.waiting.iter().rev();
        let mut newest_first =
            waiting.filter_map(|(id, waiter)| Some((*id, &waiter.listener.as_ref()?.client)));
        let newest = newest_first.next().ok_or(Unheard::Nobody)?;
        let is_other = |key: u64| key != newest.1.key;
        if newest_first.any(|(_, client)| is_other(client.key))
            || self.taken_back.iter().any(|(key, _)| is_other(*key))
        {
            return Err(Unheard::Several);
        }
        Ok(newest)
    }

    /// Takes a request back; `None` if it is over. Its server may go on with it for a moment.
    pub(super) fn take_back(&mut self, id: u64) -> Option<Waiter> {
        let waiter = self.waiting.remove(&id)?;
        if let Some(listener) = &waiter.listener {
            self.taken_back.push((listener.client.key, Instant::now() + STOPPING));
        }
        Some(waiter)
    }

    /// The waiter that an answer nobody can read is most likely for: the first that it names, else the only one there
    /// is. An answer to a request that is over is for nobody.
    pub(super) fn suspect(&mut self, ids: &[u64]) -> Option<Waiter> {
        let over = ids.iter().any(|id| (1..=self.last).contains(id));
        match ids.iter().find_map(|id| self.waiting.remove(id)) {
            None if !over && self.waiting.len() == 1 => self.waiting.pop_first().map(|(_, waiter)| waiter),
            named => named,
        }
    }

    /// Takes nobody in any more and lets everybody out.
    pub(super) fn close(&mut self) -> Vec<Waiter> {
        self.closed = true;
        std::mem::take(&mut self.waiting).into_values().collect()
    }

    /// Whether nobody is taken in any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Requests of clients under way; ours are nobody's business.
    pub(super) fn in_flight(&self) -> usize {
        self.waiting.values().filter(|waiter| waiter.listener.is_some()).count()
    }
}
