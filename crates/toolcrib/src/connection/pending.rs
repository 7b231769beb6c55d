//! The table of requests in flight: numbers out, answers back.

use std::collections::BTreeMap;

use tokio::sync::{mpsc, oneshot};

use crate::call::Progress;
use crate::wire::message::Answer;

/// How a request ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// With an answer.
    Answered(Answer),
    /// With bytes that are no answer.
    BadReply(String),
    /// Without one: the other end is gone. `unsent` if it certainly never got the request.
    Lost { unsent: bool },
}

/// Who waits for an answer.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) answer: oneshot::Sender<Ended>,
    pub(super) progress: Option<mpsc::Sender<Progress>>,
    /// The other end certainly never got the request.
    pub(super) unsent: bool,
}

/// The requests in flight on one connection. Numbers are never used twice, so a late answer finds nobody.
#[derive(Debug, Default)]
pub(super) struct Pending {
    waiting: BTreeMap<u64, Waiter>,
    last: u64,
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

    /// Where progress under this number goes.
    pub(super) fn progress(&self, id: u64) -> Option<&mpsc::Sender<Progress>> {
        self.waiting.get(&id)?.progress.as_ref()
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

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}
