//! The tools that a client is listed, by server, and what they cost.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use toolcrib::access::expose::estimate_tokens;
use toolcrib::{Catalog, ServerId, Tool};

use super::initialize::instructions;
use super::recent_clients::ListedClient;
use super::result_budget::READ_RESULT;
use super::search_tools::SEARCH_TOOLS;
use super::{CatalogScope, EndpointScope, McpService};

/// The tools of one server that a client is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShownTools {
    /// The server; `None` for tools of the gateway itself.
    pub server: Option<ServerId>,
    /// The number of tools.
    pub tools: usize,
    /// The size of their definitions.
    pub bytes: usize,
}

impl ShownTools {
    /// Returns the estimated tokens of the definitions.
    pub fn tokens(&self) -> usize {
        estimate_tokens(self.bytes)
    }
}

/// What the list of tools and the instructions of a client cost, as they would be sent now.
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
    /// The tools that it is listed, by server, the most expensive first.
    pub servers: Vec<ShownTools>,
}

impl McpService {
    /// Returns what the list of each client costs that listed tools at an endpoint of all servers, the latest first. Starts
    /// nothing.
    pub fn client_list_costs(&self) -> Vec<ClientListCost> {
        self.recent_clients.listed().iter().map(|client| self.client_list_cost(client)).collect()
    }

    fn client_list_cost(&self, client: &ListedClient) -> ClientListCost {
        let scope = &client.scope;
        let caller = scope.caller();
        let is_search = self.is_search(scope);
        let text = instructions(&self.crib.catalog_for(caller), is_search).unwrap_or_default();
        ClientListCost {
            client: scope.client_name.clone(),
            caller: caller.as_str().to_owned(),
            profile: caller.profile().map(str::to_owned),
            is_search,
            listed_ago: client.at.elapsed(),
            instruction_tokens: estimate_tokens(text.len()),
            servers: self.shown_tools(scope),
        }
    }

    /// Returns the tools that a client is listed, by server, the most expensive first.
    pub(crate) fn shown_tools(&self, scope: &EndpointScope) -> Vec<ShownTools> {
        let catalog = self.crib.catalog_for(scope.caller());
        let mut own_tools: Vec<&str> = Vec::new();
        if self.lists_read_result(scope) {
            own_tools.push(READ_RESULT);
        }
        let mut shown = match self.is_search(scope) {
            true => {
                own_tools.extend(SEARCH_TOOLS);
                tools_by_server(&self.always_listed(&catalog).unwrap_or_default(), &scope.view)
            }
            false => tools_by_server(&catalog, &scope.view),
        };
        if !own_tools.is_empty() {
            let bytes = own_tools.iter().map(|definition| definition.len()).sum();
            shown.push(ShownTools { server: None, tools: own_tools.len(), bytes });
        }
        // The sort is stable: servers that cost the same stay in the order of their names.
        shown.sort_by_key(|shown| Reverse(shown.bytes));
        shown
    }
}

/// Returns the tools of a catalog by server. The catalog has the tools of a server in a row.
fn tools_by_server(catalog: &Catalog, view: &CatalogScope) -> Vec<ShownTools> {
    let is_visible = |tool: &&Tool| view.server().is_none_or(|server| *server == tool.server);
    let mut shown: Vec<ShownTools> = Vec::new();
    for tool in catalog.tools().iter().filter(is_visible) {
        let bytes = match view {
            CatalogScope::All => tool.listed_bytes(),
            CatalogScope::One(_) => tool.definition.len(),
        };
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
