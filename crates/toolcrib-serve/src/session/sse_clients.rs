//! Clients of HTTP+SSE, the transport of 2024-11-05: each has one event stream, on which it gets everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolcrib::util::encoding;
use toolcrib::util::locks::IgnorePoison as _;

use crate::service::EndpointScope;

/// The clients whose event stream is open, by the id in the address of their messages.
#[derive(Debug, Default)]
pub(crate) struct SseClients(Mutex<HashMap<String, Arc<SseClient>>>);

/// A client whose event stream is open.
#[derive(Debug)]
pub(crate) struct SseClient {
    pub(crate) scope: EndpointScope,
    /// Encoded events for its stream, which ends when all senders are dropped.
    pub(crate) events: mpsc::Sender<Vec<u8>>,
    /// Cancelled when the stream has ended, or is to end.
    pub(crate) ended: CancellationToken,
    /// The id of its session, once it has sent `initialize`.
    pub(crate) session: OnceLock<String>,
}

impl SseClients {
    fn clients(&self) -> MutexGuard<'_, HashMap<String, Arc<SseClient>>> {
        self.0.lock().ignore_poison()
    }

    /// Adds a client and returns its id; `None` if there are `max` clients, or no random id is available.
    pub(crate) fn add(&self, client: Arc<SseClient>, max: usize) -> Option<String> {
        let id = encoding::random_hex()?;
        let mut clients = self.clients();
        if clients.len() >= max {
            return None;
        }
        clients.insert(id.clone(), client);
        Some(id)
    }

    /// Returns the client with this id, if it has the same scope.
    pub(crate) fn find(&self, id: &str, scope: &EndpointScope) -> Option<Arc<SseClient>> {
        self.clients().get(id).filter(|client| client.scope == *scope).cloned()
    }

    /// Removes a client.
    pub(crate) fn remove(&self, id: &str) {
        self.clients().remove(id);
    }
}
