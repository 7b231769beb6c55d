//! Reports on clients: who is connected, and what each of them is listed.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::SystemTime;

use bytes::Bytes;
use toolcrib::access::expose::BYTES_PER_TOKEN;
use toolcrib::protocol::era::client::{RequestMeta, RequestMetaReader};
use toolcrib::protocol::versions::Revision;
use toolcrib::util::clock::wall_time;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Caller, Catalog, ServerId, Tool};

use super::session_client::SessionClientState;
use super::{CatalogScope, ClientHandle, EndpointScope, McpService};

/// Stateless clients that are remembered.
const MAX_STATELESS: usize = 256;
/// Largest capabilities of such a client that are remembered.
const MAX_CAPABILITIES: usize = 16 << 10;

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
            && self.server.as_ref() == scope.view.server()
    }
}

/// The tools of one server that a client is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShownTools {
    /// `None` for the search tools of the gateway.
    pub server: Option<ServerId>,
    /// The number of tools.
    pub tools: usize,
    /// The size of their definitions.
    pub bytes: usize,
}

impl ShownTools {
    /// Returns the estimated tokens of the definitions.
    pub fn tokens(&self) -> usize {
        self.bytes.div_ceil(BYTES_PER_TOKEN)
    }
}

/// Clients that no other list has: sessions on pipes, and stateless clients.
#[derive(Debug, Default)]
pub(super) struct OtherClients {
    pipes: Mutex<Vec<Weak<SessionClientState>>>,
    stateless: Mutex<VecDeque<ConnectedClient>>,
}

impl McpService {
    /// Adds the session of a pipe to the connected clients.
    pub(crate) fn add_pipe(&self, session: &Arc<SessionClientState>) {
        let mut pipes = self.other_clients.pipes.lock().ignore_poison();
        pipes.retain(|pipe| pipe.strong_count() > 0);
        pipes.push(Arc::downgrade(session));
    }

    /// Remembers a stateless client with its first request on a connection.
    pub(crate) fn note_stateless(
        &self,
        handle: &ClientHandle,
        scope: &EndpointScope,
        meta: &RequestMeta,
        reader: &RequestMetaReader,
    ) {
        if handle.is_noted.load(Ordering::Relaxed) || handle.is_noted.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut clients = self.other_clients.stateless.lock().ignore_poison();
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

    /// Returns the sessions on pipes and the recent stateless clients.
    pub(crate) fn other_clients(&self) -> Vec<ConnectedClient> {
        let pipes: Vec<Arc<SessionClientState>> =
            self.other_clients.pipes.lock().ignore_poison().iter().filter_map(Weak::upgrade).collect();
        let pipes = pipes.iter().map(|pipe| ConnectedClient::from_session(ClientKind::Pipe, pipe));
        pipes.chain(self.other_clients.stateless.lock().ignore_poison().iter().cloned()).collect()
    }

    /// Returns the tools that a client is listed, by server.
    pub(crate) fn shown_tools(&self, scope: &EndpointScope) -> Vec<ShownTools> {
        let catalog = self.crib.catalog_for(scope.caller());
        if !self.is_search(scope) {
            return tools_by_server(&catalog, &scope.view);
        }
        let own = ShownTools { server: None, tools: 3, bytes: self.search_tools_bytes() };
        let listed = self.always_listed(&catalog).map(|listed| tools_by_server(&listed, &scope.view));
        [own].into_iter().chain(listed.into_iter().flatten()).collect()
    }
}

/// Returns the tools of a catalog by server. The catalog has the tools of a server in a row.
fn tools_by_server(catalog: &Catalog, view: &CatalogScope) -> Vec<ShownTools> {
    let is_visible = |tool: &&Tool| view.server().is_none_or(|server| *server == tool.server);
    let mut shown: Vec<ShownTools> = Vec::new();
    for tool in catalog.tools().iter().filter(is_visible) {
        let name_bytes = match view {
            CatalogScope::All => tool.public_name.len(),
            CatalogScope::One(_) => tool.own_name.len(),
        };
        let bytes = (tool.definition.len() + name_bytes).saturating_sub(tool.own_name.len());
        match shown.last_mut().filter(|last| last.server.as_ref() == Some(&tool.server)) {
            Some(last) => {
                last.tools += 1;
                last.bytes += bytes;
            }
            None => shown.push(ShownTools { server: Some(tool.server.clone()), tools: 1, bytes }),
        }
    }
    shown
}
