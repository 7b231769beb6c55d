//! The clients that have sent calls over a connection.

/// Clients that are remembered.
const MAX_CLIENTS: usize = 64;

/// The clients that have sent calls over a connection, the newest last.
#[derive(Debug, Default)]
pub(super) struct SeenClients(Vec<u64>);

impl SeenClients {
    /// Adds a client. Almost always it is the newest one.
    pub(super) fn add(&mut self, client: u64) {
        if self.0.last() == Some(&client) {
            return;
        }
        self.remove(client);
        if self.0.len() >= MAX_CLIENTS {
            self.0.remove(0);
        }
        self.0.push(client);
    }

    pub(super) fn remove(&mut self, client: u64) {
        self.0.retain(|known| *known != client);
    }

    pub(super) fn as_slice(&self) -> &[u64] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_clients_are_remembered_once() {
        let mut clients = SeenClients::default();
        (0..100).chain([98, 98]).for_each(|client| clients.add(client));
        assert_eq!(clients.as_slice().len(), MAX_CLIENTS);
        assert_eq!(clients.as_slice()[MAX_CLIENTS - 2..], [99, 98]);
        clients.remove(98);
        assert_eq!(clients.as_slice().last(), Some(&99));
    }
}
