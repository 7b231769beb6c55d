//! The stateless clients of one connection.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use toolcrib::Caller;
use toolcrib::util::locks::IgnorePoison as _;

use crate::service::{ClientHandle, McpService};

/// Callers after the first one whose clients are kept. The client of the oldest ends if there are more.
const MAX_OTHERS: usize = 256;

/// The clients whose stateless requests come over one connection: one for each caller, because a proxy may use a connection for
/// several, and what belongs to a client belongs to one caller.
#[derive(Debug, Default)]
pub(crate) struct ConnectionClients {
    /// The client of the first caller, and of most connections the only one.
    first: OnceLock<CallerClient>,
    /// Oldest first.
    others: Mutex<VecDeque<CallerClient>>,
}

#[derive(Debug)]
struct CallerClient {
    caller: Caller,
    client: Arc<ClientHandle>,
}

impl CallerClient {
    fn new(service: &McpService, caller: &Caller) -> Self {
        Self { caller: caller.clone(), client: Arc::new(service.connect_client()) }
    }
}

impl ConnectionClients {
    /// Returns the client of a caller.
    pub(crate) fn get(&self, service: &McpService, caller: &Caller) -> Arc<ClientHandle> {
        let first = self.first.get_or_init(|| CallerClient::new(service, caller));
        if first.caller == *caller {
            return first.client.clone();
        }
        let mut others = self.others.lock().ignore_poison();
        if let Some(known) = others.iter().find(|known| known.caller == *caller) {
            return known.client.clone();
        }
        let oldest = if others.len() >= MAX_OTHERS { others.pop_front() } else { None };
        let added = CallerClient::new(service, caller);
        let client = added.client.clone();
        others.push_back(added);
        // The end of a client stops its servers, which needs no lock here.
        drop(others);
        drop(oldest);
        client
    }
}

#[cfg(test)]
mod tests {
    use toolcrib::Crib;

    use super::*;

    #[tokio::test]
    async fn each_caller_has_one_client_until_there_are_too_many() {
        let service = McpService::new(Crib::builder().build().unwrap());
        let clients = ConnectionClients::default();
        let key = |number: usize| clients.get(&service, &Caller::new(&format!("caller{number}"))).key;
        let keys: Vec<u64> = (0..=MAX_OTHERS).map(key).collect();
        let mut distinct = keys.clone();
        distinct.dedup();
        assert_eq!(distinct.len(), MAX_OTHERS + 1);
        assert_eq!((0..=MAX_OTHERS).map(key).collect::<Vec<u64>>(), keys);
        key(MAX_OTHERS + 1);
        assert_eq!([key(0), key(2)], [keys[0], keys[2]]);
        assert_ne!(key(1), keys[1], "the oldest has ended");
        assert_eq!(clients.others.lock().unwrap().len(), MAX_OTHERS);
    }
}
