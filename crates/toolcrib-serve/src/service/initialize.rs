//! Responses to `initialize` and `server/discover`: capabilities and instructions.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use toolcrib::protocol::era::IMPLEMENTATION;
use toolcrib::protocol::era::client::{self, ServerIntroduction};
use toolcrib::protocol::era::extensions::{self, merge_extensions};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::versions::{Era, Revision};
use toolcrib::{Catalog, ServerId};

use super::search_tools::search_instructions;
use super::{CatalogScope, EndpointScope, McpService};

/// Servers that are named to the model while they are not available.
const MAX_NAMED_SERVERS: usize = 10;

/// Extensions whose methods can be routed to a server.
const ROUTED_EXTENSIONS: [&str; 1] = [extensions::TASKS];

impl McpService {
    /// Returns the result of `initialize` for a session of this revision.
    pub(crate) async fn initialize_result(&self, scope: &EndpointScope, revision: Revision) -> Bytes {
        let mut reply = self.build_reply(scope, Era::Session).await;
        if scope.view == CatalogScope::All && revision == Revision::V2025_11_25 {
            // Each tool says whether it supports tasks.
            reply.capabilities["tasks"] =
                json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
        }
        client::initialize_result(revision, &reply)
    }

    /// Returns the result of `server/discover`.
    pub(super) async fn discover_result(&self, scope: &EndpointScope) -> Bytes {
        client::discover_result(&self.build_reply(scope, Era::Stateless).await)
    }

    /// Returns the capabilities that a stateless client of this scope sees.
    pub(crate) async fn stateless_capabilities(&self, scope: &EndpointScope) -> Value {
        self.build_reply(scope, Era::Stateless).await.capabilities
    }

    /// Builds the reply. At the endpoint of one server it is the server's own. A server that cannot be listed now is offered
    /// with every capability; requests to it report why it fails.
    async fn build_reply(&self, scope: &EndpointScope, era: Era) -> ServerIntroduction {
        match &scope.view {
            CatalogScope::All => {
                // The capabilities of a session cannot change later, so servers that were never listed are waited for.
                let catalog = self.crib.list_for_era(scope.caller(), era, self.first_wait(scope)).await;
                let mut capabilities = client::all_capabilities(era, &routable_extensions(&catalog));
                let declared = catalog.servers().filter_map(|server| catalog.server_capabilities(server));
                merge_extensions(&mut capabilities, &declared.collect::<Vec<_>>());
                let instructions = instructions(&catalog, self.is_search(scope));
                ServerIntroduction { instructions, ..ServerIntroduction::new(capabilities) }
            }
            CatalogScope::One(server) => {
                let wait = self.first_wait(scope).request;
                let catalog = self.crib.load_server_for(server, scope.caller(), era, wait).await.ok();
                let declared = catalog.as_ref().and_then(|catalog| catalog.server_capabilities(server));
                let passed = declared.and_then(|declared| client::forwarded_capabilities(declared, era));
                let server_info = catalog.as_ref().and_then(|catalog| catalog.server_info(server)).cloned();
                ServerIntroduction {
                    server_info: server_info.unwrap_or(Bytes::from_static(IMPLEMENTATION.as_bytes())),
                    capabilities: passed.unwrap_or_else(|| client::all_capabilities(era, &ROUTED_EXTENSIONS)),
                    instructions: catalog
                        .as_ref()
                        .and_then(|catalog| catalog.server_instructions(server))
                        .map(str::to_owned),
                }
            }
        }
    }
}

/// Returns the routable extensions that a server declares.
fn routable_extensions(catalog: &Arc<Catalog>) -> Vec<&'static str> {
    let declares = |name: &str| {
        catalog.servers().any(|server| {
            let declared = catalog.server_capabilities(server).and_then(|raw| Object::parse(raw).ok());
            let extensions = declared.and_then(|declared| Object::parse(declared.get("extensions")?).ok());
            extensions.is_some_and(|extensions| extensions.get(name).is_some())
        })
    };
    ROUTED_EXTENSIONS.into_iter().filter(|name| declares(name)).collect()
}

/// Returns the instructions for clients of all servers.
pub(super) fn instructions(catalog: &Arc<Catalog>, is_search: bool) -> Option<String> {
    let known = if is_search { Some(search_instructions(catalog)) } else { merge_instructions(catalog) };
    let parts: Vec<String> = known.into_iter().chain(not_available_line(catalog)).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

/// Returns a line for the model that names the servers whose tools are not listed yet, if there are any.
pub(super) fn not_available_line(catalog: &Catalog) -> Option<String> {
    let names: Vec<&str> = catalog.undiscovered().map(ServerId::as_str).collect();
    let (named, others) = names.split_at(names.len().min(MAX_NAMED_SERVERS));
    let others = if others.is_empty() { String::new() } else { format!(" and {} more", others.len()) };
    (!named.is_empty()).then(|| format!("Not available yet: {}{others}.", named.join(", ")))
}

/// Joins the instructions of all servers, each under the server's name.
fn merge_instructions(catalog: &Arc<Catalog>) -> Option<String> {
    let parts: Vec<String> =
        catalog.servers().filter_map(|server| server_instructions(catalog, server)).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

/// Returns the instructions of a server, under its name.
pub(super) fn server_instructions(catalog: &Catalog, server: &ServerId) -> Option<String> {
    let instructions = catalog.server_instructions(server)?.trim();
    (!instructions.is_empty()).then(|| format!("# {server}\n\n{instructions}"))
}
