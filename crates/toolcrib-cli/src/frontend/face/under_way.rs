//! `UnderWay`: the requests of one client that are worked on, to be found again when it takes one back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use toolcrib::wire::message::Id;
use toolcrib::wire::object::Object;

/// Requests under way, by the client's id.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<HashMap<Id, AbortHandle>>);

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
        let mut calls = self.calls();
        calls.remove(id);
        if calls.is_empty() {
            // Most sessions are idle most of the time.
            calls.shrink_to_fit();
        }
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
