//! Responses to `initialize` and `server/discover`: capabilities and instructions.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use toolcrib::Catalog;
use toolcrib::protocol::era::client;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::versions::{Era, Revision};

use super::{CatalogScope, EndpointScope, McpService};

/// Extensions whose methods can be routed to a server.
const ROUTED_EXTENSIONS: [&str; 1] = ["io.modelcontextprotocol/tasks"];

/// Capabilities and instructions that a client receives first.
struct InitializeReply {
    capabilities: Value,
    instructions: Option<String>,
}

impl McpService {
    /// Returns the result of `initialize` for a session of this revision.
    pub(crate) async fn initialize_result(&self, scope: &EndpointScope, revision: Revision) -> Bytes {
        let mut reply = self.build_reply(scope, Era::Session).await;
        if scope.view == CatalogScope::All && revision == Revision::V2025_11_25 {
            // Each tool says whether it supports tasks.
            reply.capabilities["tasks"] =
                json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
        }
        client::initialize_result(revision, &reply.capabilities, reply.instructions.as_deref())
    }

    /// Returns the result of `server/discover`.
    pub(super) async fn discover_result(&self, scope: &EndpointScope) -> Bytes {
        let reply = self.build_reply(scope, Era::Stateless).await;
        client::discover_result(&reply.capabilities, reply.instructions.as_deref())
    }

    /// Returns the capabilities that a stateless client of this scope sees.
    pub(crate) async fn stateless_capabilities(&self, scope: &EndpointScope) -> Value {
        self.build_reply(scope, Era::Stateless).await.capabilities
    }

    /// Builds the reply. A server that cannot be listed now is offered with every capability; requests to it report why it
    /// fails.
    async fn build_reply(&self, scope: &EndpointScope, era: Era) -> InitializeReply {
        match &scope.view {
            CatalogScope::All => {
                let catalog = self.crib.catalog_for(scope.caller());
                let capabilities = client::all_capabilities(era, &routable_extensions(&catalog));
                InitializeReply { capabilities, instructions: merge_instructions(&catalog) }
            }
            CatalogScope::One(server) => {
                let catalog = self.crib.load_server_for(server, scope.caller()).await.ok();
                let declared = catalog.as_ref().and_then(|catalog| catalog.server_capabilities(server));
                let passed = declared.and_then(|declared| client::forwarded_capabilities(declared, era));
                InitializeReply {
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

/// Joins the instructions of all servers, each under the server's name.
fn merge_instructions(catalog: &Arc<Catalog>) -> Option<String> {
    let parts: Vec<String> = catalog
        .servers()
        .filter_map(|server| {
            let instructions = catalog.server_instructions(server)?.trim();
            (!instructions.is_empty()).then(|| format!("# {server}\n\n{instructions}"))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}
