//! The clients that reports are about: who is connected, and who listed tools.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use tokio::time::Instant;
use toolcrib::protocol::era::client::{RequestMeta, RequestMetaReader};
use toolcrib::protocol::versions::Revision;
use toolcrib::util::clock::wall_time;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Caller, ServerId};

use super::session_client::SessionClientState;
use super::{CatalogScope, ClientHandle, EndpointScope};

/// Stateless clients that are remembered.
const MAX_STATELESS: usize = 256;
/// Largest capabilities of such a client that are remembered.
const MAX_CAPABILITIES: usize = 16 << 10;
/// Clients that listed tools and are remembered.
const MAX_LISTED: usize = 64;

/// How a client is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClientKind {
    /// In a session over HTTP.
    Session,
    /// In a session on a pipe.
    Pipe,
    /// With requests that stand alone; it may be gone.
    Stateless,
}

/// A client that is connected, or made stateless requests.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConnectedClient {
    /// How it is connected.
    pub kind: ClientKind,
    /// The number in the records of its calls. A stateless client has one for each connection.
    pub key: u64,
    /// The name of the program, if it is known.
    pub name: Option<Arc<str>>,
    /// The version of the program, if it is known.
    pub version: Option<Arc<str>>,
    /// The revision of the protocol.
    pub revision: Revision,
    /// The declared capabilities, as JSON; empty if a stateless client declared many.
    pub capabilities: Bytes,
    /// The caller.
    pub caller: Caller,
    /// The server, at the endpoint of one server.
    pub server: Option<ServerId>,
    /// When it connected, or was first seen.
    pub since: SystemTime,
}

impl ConnectedClient {
    /// Creates the report about a session.
    pub(crate) fn from_session(kind: ClientKind, session: &SessionClientState) -> Self {
        Self {
            kind,
            key: session.key(),
            name: session.scope.client_name.clone(),
            version: session.version.clone(),
            revision: session.revision,
            capabilities: session.capabilities().as_json().clone(),
            caller: session.scope.caller().clone(),
            server: session.scope.view.server().cloned(),
            since: session.since,
        }
    }

    /// Returns whether a request comes from the same program and caller.
    fn is_same(&self, scope: &EndpointScope, meta: &RequestMeta) -> bool {
        self.name == meta.client_name
            && self.revision == meta.revision
            && self.caller == *scope.caller()
            && self.caller.profile() == scope.caller().profile()
            && self.caller.groups() == scope.caller().groups()
            && self.server.as_ref() == scope.view.server()
    }
}

/// A client that listed tools.
#[derive(Debug, Clone)]
pub(super) struct ListedClient {
    pub(super) scope: EndpointScope,
    /// When it listed them last.
    pub(super) at: Instant,
}

/// The clients that a service remembers. Sessions over HTTP are not among the connected ones; the gateway has them.
#[derive(Debug, Default)]
pub(crate) struct RecentClients {
    pipes: Mutex<Vec<Weak<SessionClientState>>>,
    stateless: Mutex<VecDeque<ConnectedClient>>,
    /// Clients that listed tools at an endpoint of all servers, in the order of their last lists.
    listed: Mutex<VecDeque<ListedClient>>,
}

impl RecentClients {
    /// Adds the session of a pipe.
    pub(crate) fn add_pipe(&self, session: &Arc<SessionClientState>) {
        let mut pipes = self.pipes.lock().ignore_poison();
        pipes.retain(|pipe| pipe.strong_count() > 0);
        pipes.push(Arc::downgrade(session));
    }

    /// Remembers a stateless client with its first request on a connection.
    pub(crate) fn record_stateless(
        &self,
        handle: &ClientHandle,
        scope: &EndpointScope,
        meta: &RequestMeta,
        reader: &RequestMetaReader,
    ) {
        if handle.is_recorded.load(Ordering::Relaxed) || handle.is_recorded.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut clients = self.stateless.lock().ignore_poison();
        clients.retain(|client| !client.caller.is_revoked());
        if clients.iter().any(|client| client.is_same(scope, meta)) {
            return;
        }
        if clients.len() >= MAX_STATELESS {
            clients.pop_front();
        }
        let is_small = |capabilities: &&Bytes| capabilities.len() <= MAX_CAPABILITIES;
        clients.push_back(ConnectedClient {
            kind: ClientKind::Stateless,
            key: handle.key,
            name: meta.client_name.clone(),
            version: reader.client_version(),
            revision: meta.revision,
            capabilities: Some(meta.capabilities.as_json()).filter(is_small).cloned().unwrap_or_default(),
            caller: scope.caller().clone(),
            server: scope.view.server().cloned(),
            since: wall_time(),
        });
    }

    /// Records that a client listed its tools. Clients of the same program and caller are one.
    pub(super) fn record_list(&self, scope: &EndpointScope, at: Instant) {
        if scope.view != CatalogScope::All {
            return;
        }
        let mut clients = self.listed.lock().ignore_poison();
        clients.retain(|client| client.scope != *scope || client.scope.client_name != scope.client_name);
        if clients.len() >= MAX_LISTED {
            clients.pop_front();
        }
        clients.push_back(ListedClient { scope: scope.clone(), at });
    }

    /// Returns the sessions on pipes, and the recent stateless clients that still have access.
    pub(crate) fn connected(&self) -> Vec<ConnectedClient> {
        let pipes: Vec<Arc<SessionClientState>> =
            self.pipes.lock().ignore_poison().iter().filter_map(Weak::upgrade).collect();
        let pipes = pipes.iter().map(|pipe| ConnectedClient::from_session(ClientKind::Pipe, pipe));
        let stateless = self.stateless.lock().ignore_poison();
        pipes.chain(stateless.iter().filter(|client| !client.caller.is_revoked()).cloned()).collect()
    }

    /// Returns the clients that listed tools and still have access, the latest first.
    pub(super) fn listed(&self) -> Vec<ListedClient> {
        let clients = self.listed.lock().ignore_poison();
        clients.iter().rev().filter(|client| !client.scope.caller().is_revoked()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolcrib::Crib;
    use toolcrib::protocol::era::client::DeclaredEra;
    use toolcrib::protocol::json::object::Object;

    use super::super::McpService;
    use super::*;

    #[tokio::test]
    async fn stateless_client_is_replaced_when_its_access_was_revoked() {
        let service = McpService::new(Crib::builder().build().unwrap());
        let params = json!({"_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "ide", "version": "2"},
            "io.modelcontextprotocol/clientCapabilities": {},
        }});
        let mut params = Object::parse(&params.to_string().into()).unwrap();
        let reader = RequestMetaReader::default();
        let DeclaredEra::Stateless(meta) = reader.read(Some(&mut params)) else { panic!("{params:?}") };
        let record = |caller: &Caller| {
            let scope = EndpointScope::trusted(caller.clone());
            service.recent_clients.record_stateless(&service.connect_client(), &scope, &meta, &reader);
        };
        let names = || -> Vec<Option<Arc<str>>> {
            service.recent_clients.connected().into_iter().map(|client| client.name).collect()
        };
        let ada = Caller::new("ada");
        record(&ada);
        record(&Caller::new("ada"));
        assert_eq!(names(), [Some("ide".into())], "one program of one caller");
        ada.revoke();
        assert!(names().is_empty());
        record(&Caller::new("ada"));
        assert_eq!(names(), [Some("ide".into())]);
    }
}
