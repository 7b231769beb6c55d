//! The requests of one client that are in progress, so that the client can cancel them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard};

use tokio::task::AbortHandle;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::RequestId;
use toolcrib::util::locks::IgnorePoison as _;

/// Requests in progress by the client's request id. Usually there are none, or very few: a tree holds no memory while it is
/// empty, and needs no hashes.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<BTreeMap<RequestId, AbortHandle>>);

impl InFlight {
    fn requests(&self) -> MutexGuard<'_, BTreeMap<RequestId, AbortHandle>> {
        self.0.lock().ignore_poison()
    }

    /// Adds a request and spawns it; `false` if one with this id is already in progress.
    pub(crate) fn start(&self, id: &RequestId, spawn: impl FnOnce() -> AbortHandle) -> bool {
        match self.requests().entry(id.clone()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(spawn());
                true
            }
        }
    }

    /// Removes a request that has ended.
    pub(crate) fn finish(&self, id: &RequestId) {
        self.requests().remove(id);
    }

    /// Aborts the request that a cancel notification names.
    pub(crate) fn cancel(&self, params: Option<&Object>) {
        let id = params.and_then(|params| RequestId::parse(params.get("requestId")?.clone()));
        if let Some(request) = id.and_then(|id| self.requests().remove(&id)) {
            request.abort();
        }
    }

    /// Aborts all requests.
    pub(crate) fn cancel_all(&self) {
        std::mem::take(&mut *self.requests()).into_values().for_each(|request| request.abort());
    }
}
