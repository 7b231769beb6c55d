//! `InstanceClients`: the clients of one instance of a server, to find the one that a message belongs to which no call
//! identifies.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::call::client_context::ClientContext;
use crate::call::updates::UpdateSink;
use crate::protocol::era::capabilities::Client;
use crate::util::locks::IgnorePoison as _;

/// Clients that are told apart; with more of them there is no only client until the process ends.
const MAX_CLIENTS: usize = 16;

/// The clients that have used an instance since its process started, or are connected to its endpoint.
#[derive(Debug, Default)]
pub(crate) struct InstanceClients {
    /// The key of the client that was added last, plus one; zero if there is none. Most calls are of that client, and need
    /// no lock.
    last: AtomicU64,
    known: Mutex<InstanceClientList>,
}

#[derive(Debug, Default)]
struct InstanceClientList {
    clients: Vec<InstanceClient>,
    /// True if there were too many.
    has_more: bool,
}

/// One client of an instance.
#[derive(Debug)]
struct InstanceClient {
    key: u64,
    takes_unknown_messages: bool,
    /// Facts that exist as long as the client is connected. None for a client whose end is not known, which counts until
    /// the process ends.
    context: Option<Weak<ClientContext>>,
}

impl InstanceClient {
    fn is_connected(&self) -> bool {
        self.context.as_ref().is_none_or(|context| context.strong_count() > 0)
    }
}

impl InstanceClientList {
    fn remove_disconnected(&mut self) {
        self.clients.retain(InstanceClient::is_connected);
    }
}

impl InstanceClients {
    /// Adds a client, unless it is known.
    pub(crate) fn add(&self, client: &Client, context: Option<&Arc<ClientContext>>) {
        let last = client.key.wrapping_add(1);
        if self.last.load(Ordering::Relaxed) == last {
            return;
        }
        self.last.store(last, Ordering::Relaxed);
        let mut known = self.known.lock().ignore_poison();
        known.remove_disconnected();
        if known.clients.iter().any(|other| other.key == client.key) {
            return;
        }
        known.has_more |= known.clients.len() >= MAX_CLIENTS;
        if !known.has_more {
            known.clients.push(InstanceClient {
                key: client.key,
                takes_unknown_messages: client.takes_unknown_messages(),
                context: context.map(Arc::downgrade),
            });
        }
    }

    /// Returns whether a client is the only one.
    pub(crate) fn is_only(&self, client: u64) -> bool {
        let mut known = self.known.lock().ignore_poison();
        known.remove_disconnected();
        !known.has_more && matches!(&known.clients[..], [only] if only.key == client)
    }

    /// Forgets the clients whose end is not known, because the next process has not heard from them.
    pub(crate) fn process_ended(&self) {
        let mut known = self.known.lock().ignore_poison();
        known.clients.retain(|client| client.context.is_some());
        known.has_more = false;
        self.last.store(0, Ordering::Relaxed);
    }

    /// Returns the sink of the only client, if messages that the protocol does not define are passed on to it.
    pub(crate) fn only_recipient(&self) -> Option<Arc<dyn UpdateSink>> {
        let mut known = self.known.lock().ignore_poison();
        known.remove_disconnected();
        match &known.clients[..] {
            [only] if !known.has_more && only.takes_unknown_messages => {
                only.context.as_ref()?.upgrade()?.idle_sink().cloned()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::call::updates::CallUpdate;

    fn client(key: u64) -> Client {
        Client { key, has_one_server: true, ..Client::without_capabilities() }
    }

    fn context() -> Arc<ClientContext> {
        let (sender, _) = mpsc::channel::<CallUpdate>(1);
        Arc::new(ClientContext::default().update_sink(Arc::new(sender)))
    }

    #[test]
    fn only_client_is_the_one_that_is_left() {
        let clients = InstanceClients::default();
        let [first, second] = [context(), context()];
        for _ in 0..2 {
            clients.add(&client(1), Some(&first));
            assert!(clients.only_recipient().is_some());
        }
        clients.add(&client(2), Some(&second));
        clients.add(&client(1), Some(&first));
        assert!(clients.only_recipient().is_none());
        drop(second);
        assert!(clients.only_recipient().is_some());
    }

    #[test]
    fn client_without_an_end_counts_until_the_process_ends() {
        let clients = InstanceClients::default();
        let session = context();
        clients.add(&client(1), Some(&session));
        clients.add(&client(2), None);
        assert!(clients.only_recipient().is_none());
        clients.process_ended();
        assert!(clients.only_recipient().is_some());
    }

    #[test]
    fn client_of_many_servers_takes_messages_only_with_extensions() {
        let clients = InstanceClients::default();
        let session = context();
        clients.add(&Client::without_capabilities(), Some(&session));
        assert!(clients.only_recipient().is_none());
    }

    #[test]
    fn number_of_clients_is_bounded() {
        let clients = InstanceClients::default();
        let contexts: Vec<_> = (0..40).map(|_| context()).collect();
        for (key, context) in (0..).zip(&contexts) {
            clients.add(&client(key), Some(context));
        }
        assert_eq!(clients.known.lock().ignore_poison().clients.len(), MAX_CLIENTS);
        drop(contexts);
        let late = context();
        clients.add(&client(99), Some(&late));
        assert!(clients.only_recipient().is_none(), "one of them is not known");
    }
}
