//! The clients that listed tools, and what the list of each of them costs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::access::expose::BYTES_PER_TOKEN;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Catalog, Tool};

use super::initialize::instructions;
use super::result_budget::READ_RESULT;
use super::search_tools::SEARCH_TOOLS;
use super::{CatalogScope, EndpointScope, McpService};

/// Clients that are remembered; beyond that, the one that listed its tools first is forgotten.
const MAX_CLIENTS: usize = 64;

/// The clients that listed tools at an endpoint of all servers, in the order of their last lists.
#[derive(Debug, Default)]
pub(super) struct ListedClients(Mutex<Vec<ListedClient>>);

/// A client that listed tools.
#[derive(Debug, Clone)]
struct ListedClient {
    scope: EndpointScope,
    at: Instant,
}

impl ListedClients {
    /// Records that a client listed its tools. Clients of the same program and caller are one.
    pub(super) fn record(&self, scope: &EndpointScope, at: Instant) {
        if scope.view != CatalogScope::All {
            return;
        }
        let mut clients = self.0.lock().ignore_poison();
        clients.retain(|client| client.scope != *scope || client.scope.client_name != scope.client_name);
        if clients.len() >= MAX_CLIENTS {
            clients.remove(0);
        }
        clients.push(ListedClient { scope: scope.clone(), at });
    }
}

/// What the list of tools and the instructions of a client cost, as it would be sent now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientListCost {
    /// The name of the client program, if it has given one.
    pub client: Option<Arc<str>>,
    /// The name of the caller.
    pub caller: String,
    /// The profile of the endpoint or the caller.
    pub profile: Option<String>,
    /// Whether it is listed the search tools instead of all tools.
    pub is_search: bool,
    /// Time since it last listed its tools.
    pub listed_ago: Duration,
    /// Tokens of the instructions.
    pub instruction_tokens: usize,
    /// The tools that it is listed, by server, the most expensive first. Tools of the gateway itself have no server.
    pub servers: Vec<ServerListCost>,
}

/// What the tools of one server in a list cost.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerListCost {
    /// The server; `None` for tools of the gateway itself.
    pub server: Option<String>,
    /// The number of tools.
    pub tools: usize,
    /// The tokens of their definitions.
    pub tokens: usize,
}

impl ClientListCost {
    /// Returns the tokens of the instructions and of all tools.
    pub fn tokens(&self) -> usize {
        self.instruction_tokens + self.servers.iter().map(|cost| cost.tokens).sum::<usize>()
    }
}

impl McpService {
    /// Returns what the list of each client costs that listed tools at an endpoint of all servers, the latest first. Starts
    /// nothing.
    pub fn client_list_costs(&self) -> Vec<ClientListCost> {
        let clients = self.listed_clients.0.lock().ignore_poison().clone();
        let current = clients.iter().rev().filter(|client| !client.scope.caller().is_revoked());
        current.map(|client| self.client_list_cost(client)).collect()
    }

    fn client_list_cost(&self, client: &ListedClient) -> ClientListCost {
        let scope = &client.scope;
        let caller = scope.caller();
        let catalog = self.crib.catalog_for(caller);
        let is_search = self.is_search(scope);
        let mut own_tools: Vec<&str> = Vec::new();
        if self.lists_read_result(scope) {
            own_tools.push(READ_RESULT);
        }
        let listed = match is_search {
            true => Arc::new(self.always_listed(&catalog).unwrap_or_default()),
            false => catalog.clone(),
        };
        if is_search {
            own_tools.extend(SEARCH_TOOLS);
        }
        let text = instructions(&catalog, is_search).unwrap_or_default();
        ClientListCost {
            client: scope.client_name.clone(),
            caller: caller.as_str().to_owned(),
            profile: caller.profile().map(str::to_owned),
            is_search,
            listed_ago: client.at.elapsed(),
            instruction_tokens: text.len().div_ceil(BYTES_PER_TOKEN),
            servers: list_costs(&listed, &own_tools),
        }
    }
}

/// Returns what the tools of a catalog and of the gateway itself cost, by server.
fn list_costs(listed: &Catalog, own_tools: &[&str]) -> Vec<ServerListCost> {
    let mut sizes: BTreeMap<Option<&str>, (usize, usize)> = BTreeMap::new();
    for tool in listed.tools() {
        let (tools, bytes) = sizes.entry(Some(tool.server.as_str())).or_default();
        *tools += 1;
        *bytes += listed_bytes(tool);
    }
    if !own_tools.is_empty() {
        sizes.insert(None, (own_tools.len(), own_tools.iter().map(|definition| definition.len()).sum()));
    }
    let cost = |(server, (tools, bytes)): (Option<&str>, (usize, usize))| ServerListCost {
        server: server.map(str::to_owned),
        tools,
        tokens: bytes.div_ceil(BYTES_PER_TOKEN),
    };
    let mut costs: Vec<ServerListCost> = sizes.into_iter().map(cost).collect();
    // The sort is stable: servers that cost the same stay in the order of their names.
    costs.sort_by_key(|cost| std::cmp::Reverse(cost.tokens));
    costs
}

/// Returns the size of a definition under its public name.
fn listed_bytes(tool: &Tool) -> usize {
    (tool.definition.len() + tool.public_name.len()).saturating_sub(tool.own_name.len())
}
