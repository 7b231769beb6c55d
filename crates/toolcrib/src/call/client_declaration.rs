//! `ClientDeclaration`: what servers learn about the client that this crib is to them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use bytes::Bytes;

use crate::call::client_context::InstanceOwner;
use crate::call::client_handlers::ClientHandlers;
use crate::protocol::era::IMPLEMENTATION;
use crate::protocol::era::capabilities::ClientCapabilities;
use crate::protocol::era::handshake::HandshakeClient;
use crate::util::locks::IgnorePoison as _;

/// The name and the capabilities under which servers know this crib.
#[derive(Debug)]
pub(crate) struct ClientDeclaration {
    /// The name and version, as JSON.
    pub(crate) info: Bytes,
    /// Answers requests of servers that no client answers.
    pub(crate) handlers: Option<Arc<ClientHandlers>>,
    /// The capabilities of clients that make calls or may make them.
    clients: RwLock<ClientCapabilities>,
    /// True once `clients` has every capability, so that nothing can be added.
    is_complete: AtomicBool,
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
            || self.clients.read().ignore_poison().includes(capabilities)
        {
            return;
        }
        let mut clients = self.clients.write().ignore_poison();
        *clients = clients.union(&capabilities.without_unknown());
        let is_complete = clients.includes(&ClientCapabilities::all());
        self.is_complete.store(is_complete, Ordering::Relaxed);
    }

    fn add_extensions(&self, capabilities: &ClientCapabilities) {
        let has_changed = self.clients.read().ignore_poison().with_extensions_of(capabilities).is_some();
        if has_changed {
            let mut clients = self.clients.write().ignore_poison();
            if let Some(extended) = clients.with_extensions_of(capabilities) {
                *clients = extended;
            }
        }
    }

    /// Returns the client that a handshake introduces: the owner of the instance, or else every client that may use it.
    pub(crate) fn handshake_client(&self, owner: &InstanceOwner) -> HandshakeClient {
        let clients = || self.clients.read().ignore_poison().clone();
        let capabilities = match (&owner.capabilities, &self.handlers) {
            (Some(capabilities), _) => capabilities.clone(),
            (None, Some(handlers)) => clients().union(handlers.capabilities()),
            (None, None) => clients(),
        };
        HandshakeClient { capabilities, info: self.info.clone() }
    }
}
