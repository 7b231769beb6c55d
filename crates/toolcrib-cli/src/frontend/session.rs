//! Sessions, for clients old enough to need them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolcrib::wire::message::Id;
use toolcrib::wire::object::Object;

use super::face::View;

/// The sessions that are open on one gateway.
#[derive(Debug)]
pub(crate) struct Sessions {
    open: Mutex<HashMap<String, Arc<Session>>>,
    most: usize,
}

/// One client's session.
#[derive(Debug)]
pub(crate) struct Session {
    view: View,
    used: Mutex<Instant>,
    /// Ends the streams of a session that has ended.
    pub(crate) ended: CancellationToken,
    /// Requests under way, to be found again when the client takes one back.
    pub(crate) under_way: UnderWay,
}

/// Requests under way, by the client's id.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<HashMap<Id, AbortHandle>>);

impl Sessions {
    pub(crate) fn new(most: usize) -> Self {
        Self { open: Mutex::default(), most }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a session and returns its id. When there are too many, the one that has been idle longest makes room;
    /// `None` if all are busy or no id could be drawn.
    pub(crate) fn begin(&self, view: View) -> Option<String> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).ok()?;
        let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = Instant::now();
        let mut open = self.open();
        if open.len() >= self.most {
            // Whoever listens or waits for an answer holds the session.
            let idle = open.iter().filter(|(_, session)| Arc::strong_count(session) == 1);
            let oldest = idle.min_by_key(|(_, session)| session.last_used()).map(|(id, _)| id.clone())?;
            open.remove(&oldest);
        }
        let session = Session {
            view,
            used: Mutex::new(now),
            ended: CancellationToken::new(),
            under_way: UnderWay::default(),
        };
        open.insert(id.clone(), Arc::new(session));
        Some(id)
    }

    /// A session that was opened for this view and is still open.
    pub(crate) fn find(&self, id: &str, view: &View) -> Option<Arc<Session>> {
        let session = self.open().get(id).filter(|session| session.view == *view).cloned()?;
        *session.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Some(session)
    }

    /// Ends a session and everything under way in it; `false` if there is none.
    pub(crate) fn end(&self, id: &str, view: &View) -> bool {
        let mut open = self.open();
        let Some(session) = open.get(id).filter(|session| session.view == *view).cloned() else {
            return false;
        };
        open.remove(id);
        session.ended.cancel();
        session.under_way.cancel_all();
        true
    }
}

impl Session {
    fn last_used(&self) -> Instant {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay {
    fn calls(&self) -> MutexGuard<'_, HashMap<Id, AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a request; `false` if one with this id is under way already.
    pub(crate) fn enter(&self, id: &Id, spawn: impl FnOnce() -> AbortHandle) -> bool {
        let mut calls = self.calls();
        if calls.contains_key(id) {
            return false;
        }
        calls.insert(id.clone(), spawn());
        true
    }

    pub(crate) fn leave(&self, id: &Id) {
        self.calls().remove(id);
    }

    /// The client takes a request back: whatever works on it is dropped.
    pub(crate) fn cancel(&self, params: Option<&Object>) {
        let id = params.and_then(|params| Id::read(params.get("requestId")?.clone()));
        if let Some(call) = id.and_then(|id| self.calls().remove(&id)) {
            call.abort();
        }
    }

    pub(crate) fn cancel_all(&self) {
        self.calls().drain().for_each(|(_, call)| call.abort());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_session_is_found_in_its_view_until_it_ends() {
        let sessions = Sessions::new(10);
        let one = View::One("git".parse().unwrap());
        let id = sessions.begin(View::All).unwrap();
        assert!(sessions.find(&id, &View::All).is_some());
        assert!(sessions.find(&id, &one).is_none() && !sessions.end(&id, &one));
        assert!(sessions.end(&id, &View::All));
        assert!(sessions.find(&id, &View::All).is_none() && !sessions.end(&id, &View::All));
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_session_makes_room() {
        let sessions = Sessions::new(2);
        let begin = async || {
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
            sessions.begin(View::All).unwrap()
        };
        let (first, second) = (begin().await, begin().await);
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert!(sessions.find(&first, &View::All).is_some());
        let third = begin().await;
        assert!(sessions.find(&second, &View::All).is_none());
        assert!(sessions.find(&first, &View::All).is_some() && sessions.find(&third, &View::All).is_some());
    }
}
