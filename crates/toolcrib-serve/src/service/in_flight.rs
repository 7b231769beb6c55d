//! The requests of one client that are in progress, so that the client can cancel them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::AbortHandle;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::RequestId;
use toolcrib::util::locks::IgnorePoison as _;

/// A request in progress that can be cancelled.
pub(crate) trait CancelRequest: fmt::Debug + Send + Sync {
    /// Ends the request without a response.
    fn cancel(&self);
}

impl CancelRequest for AbortHandle {
    fn cancel(&self) {
        self.abort();
    }
}

impl<R: CancelRequest + ?Sized> CancelRequest for Arc<R> {
    fn cancel(&self) {
        (**self).cancel();
    }
}

/// Requests in progress by the client's request id. Usually there are none, or very few: a tree holds no memory while it is
/// empty, and needs no hashes.
#[derive(Debug)]
pub(crate) struct InFlight<R>(Mutex<BTreeMap<RequestId, R>>);

impl<R> Default for InFlight<R> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<R: CancelRequest> InFlight<R> {
    fn requests(&self) -> MutexGuard<'_, BTreeMap<RequestId, R>> {
        self.0.lock().ignore_poison()
    }

    /// Adds a request and starts it; `false` if one with this id is already in progress.
    pub(crate) fn start(&self, id: &RequestId, start: impl FnOnce() -> R) -> bool {
        match self.requests().entry(id.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(start());
                true
            }
        }
    }

    /// Removes a request that has ended.
    pub(crate) fn finish(&self, id: &RequestId) {
        self.requests().remove(id);
    }

    /// Cancels the request that a cancel notification names.
    pub(crate) fn cancel(&self, params: Option<&Object>) {
        let id = params.and_then(|params| RequestId::parse(params.get("requestId")?.clone()));
        if let Some(request) = id.and_then(|id| self.requests().remove(&id)) {
            request.cancel();
        }
    }

    /// Cancels all requests.
    pub(crate) fn cancel_all(&self) {
        std::mem::take(&mut *self.requests()).into_values().for_each(|request| request.cancel());
    }
}
