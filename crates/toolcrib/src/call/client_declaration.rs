//! `ClientDeclaration`: what servers learn about the client that this crib is to them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use bytes::Bytes;

use crate::call::client_context::InstanceOwner;
use crate::call::client_handlers::ClientHandlers;
use crate::protocol::era::IMPLEMENTATION;
use crate::protocol::era::capabilities::ClientCapabilities;
use crate::protocol::era::handshake::HandshakeClient;
use crate::util::locks::IgnorePoison as _;

/// Capabilities objects that are remembered because they add no extension.
const MAX_MERGED: usize = 16;
/// Bytes of such an object.
const MAX_MERGED_SIZE: usize = 4 << 10;

/// The name and the capabilities under which servers know this crib.
#[derive(Debug)]
pub(crate) struct ClientDeclaration {
    /// The name and version, as JSON.
    pub(crate) info: Bytes,
    /// Answers requests of servers that no client answers.
    pub(crate) handlers: Option<Arc<ClientHandlers>>,
    /// The capabilities of clients that make calls or may make them.
    clients: RwLock<KnownClients>,
    /// True once `clients` has every capability, so that nothing can be added.
    is_complete: AtomicBool,
}

/// The clients that make calls or may make them.
#[derive(Debug, Default)]
struct KnownClients {
    capabilities: ClientCapabilities,
    /// Capabilities objects whose extensions are part of `capabilities`, newest first.
    merged: VecDeque<Bytes>,
}

impl KnownClients {
    /// Returns whether the extensions of a client are known to be part of the capabilities.
    fn has_merged(&self, client: &ClientCapabilities) -> bool {
        self.merged.contains(client.as_json())
    }

    /// Adds the extensions of a client.
    fn merge_extensions(&mut self, client: &ClientCapabilities) {
        if let Some(extended) = self.capabilities.with_extensions_of(client) {
            self.capabilities = extended;
            // Values of other clients may have been replaced or removed.
            self.merged.clear();
        }
        if client.as_json().len() <= MAX_MERGED_SIZE && !self.has_merged(client) {
            self.merged.truncate(MAX_MERGED - 1);
            self.merged.push_front(client.as_json().clone());
        }
    }
}

impl Default for ClientDeclaration {
    fn default() -> Self {
        Self::new(None, None)
    }
}

impl ClientDeclaration {
    /// Creates a declaration that announces what the handlers can answer. Without `info` the name is toolcrib's.
    pub(crate) fn new(info: Option<Bytes>, handlers: Option<Arc<ClientHandlers>>) -> Self {
        Self {
            info: info.unwrap_or(Bytes::from_static(IMPLEMENTATION.as_bytes())),
            handlers,
            clients: RwLock::default(),
            is_complete: AtomicBool::new(false),
        }
    }

    /// Adds the capabilities of a client. Servers that all clients share learn them at their next start. Where clients
    /// announce an extension with different values, the newest one applies: that of the client that starts a server.
    pub(crate) fn add_client(&self, capabilities: &ClientCapabilities) {
        if capabilities.has_extensions() {
            self.add_extensions(capabilities);
        }
        if !capabilities.has_any()
            || self.is_complete.load(Ordering::Relaxed)
            || self.clients.read().ignore_poison().capabilities.includes(capabilities)
        {
            return;
        }
        let mut clients = self.clients.write().ignore_poison();
        clients.capabilities = clients.capabilities.union(&capabilities.without_unknown());
        let is_complete = clients.capabilities.includes(&ClientCapabilities::all());
        self.is_complete.store(is_complete, Ordering::Relaxed);
    }

    fn add_extensions(&self, capabilities: &ClientCapabilities) {
        if !self.clients.read().ignore_poison().has_merged(capabilities) {
            self.clients.write().ignore_poison().merge_extensions(capabilities);
        }
    }

    /// Returns the client that a handshake introduces: the owner of the instance, or else every client that may use it.
    pub(crate) fn handshake_client(&self, owner: &InstanceOwner) -> HandshakeClient {
        let clients = || self.clients.read().ignore_poison().capabilities.clone();
        let capabilities = match (&owner.capabilities, &self.handlers) {
            (Some(capabilities), _) => capabilities.clone(),
            (None, Some(handlers)) => clients().union(handlers.capabilities()),
            (None, None) => clients(),
        };
        let info = owner.client_info.as_ref().unwrap_or(&self.info);
        HandshakeClient { capabilities, info: info.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(value: usize) -> ClientCapabilities {
        ClientCapabilities::parse(&format!(r#"{{"extensions":{{"x":{{"v":{value}}}}}}}"#).into())
    }

    #[test]
    fn newest_value_of_an_extension_applies_again() {
        let declaration = ClientDeclaration::default();
        for value in [1, 1, 2, 1] {
            declaration.add_client(&client(value));
            let known = declaration.clients.read().ignore_poison();
            assert_eq!(known.capabilities.as_json(), client(value).as_json());
            assert_eq!(known.merged, [client(value).as_json().clone()]);
        }
    }

    #[test]
    fn remembered_clients_are_bounded() {
        let declaration = ClientDeclaration::default();
        for number in 0..100 {
            let text = format!(r#"{{"extensions":{{"x":{{}}}},"other":{number}}}"#);
            declaration.add_client(&ClientCapabilities::parse(&text.into()));
        }
        let large = format!(r#"{{"extensions":{{"x":{{}}}},"other":"{}"}}"#, "x".repeat(MAX_MERGED_SIZE));
        let large = ClientCapabilities::parse(&large.into());
        declaration.add_client(&large);
        let known = declaration.clients.read().ignore_poison();
        assert_eq!((known.merged.len(), known.has_merged(&large)), (MAX_MERGED, false));
    }
}
