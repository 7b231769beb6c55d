//! The requests of one client that are in progress, so that the client can cancel them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use tokio::task::AbortHandle;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::RequestId;
use toolcrib::util::locks::IgnorePoison as _;

/// Requests in progress by the client's request id.
#[derive(Debug, Default)]
pub(crate) struct InFlight(Mutex<HashMap<RequestId, AbortHandle>>);

impl InFlight {
    fn requests(&self) -> MutexGuard<'_, HashMap<RequestId, AbortHandle>> {
        self.0.lock().ignore_poison()
    }

    /// Adds a request and spawns it; `false` if one with this id is already in progress.
    pub(crate) fn start(&self, id: &RequestId, spawn: impl FnOnce() -> AbortHandle) -> bool {
        let mut requests = self.requests();
        if requests.contains_key(id) {
            return false;
        }
        requests.insert(id.clone(), spawn());
        true
    }

    /// Removes a request that has ended.
    pub(crate) fn finish(&self, id: &RequestId) {
        let mut requests = self.requests();
        requests.remove(id);
        if requests.is_empty() {
            // Most sessions are idle most of the time, so the memory is freed.
            requests.shrink_to_fit();
        }
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
        self.requests().drain().for_each(|(_, request)| request.abort());
    }
}
