//! Who we are and what is on offer, for clients that have just come.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use toolcrib::Catalog;
use toolcrib::wire::dialect::client;
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::{Era, Revision};

use super::{Face, View, Visit};

/// Extensions whose methods find their way to the right server.
const ROUTED: [&str; 1] = ["io.modelcontextprotocol/tasks"];

/// What a client is told when it comes.
struct Offer {
    capabilities: Value,
    instructions: Option<String>,
}

impl Face {
    /// The answer that opens a session of this revision.
    pub(crate) async fn hello(&self, visit: &Visit, revision: Revision) -> Bytes {
        let offer = self.offer(visit, Era::Session).await;
        client::hello_result(revision, &offer.capabilities, offer.instructions.as_deref())
    }

    /// The answer to a stateless client that asks what is here.
    pub(super) async fn discovered(&self, visit: &Visit) -> Bytes {
        let offer = self.offer(visit, Era::Stateless).await;
        client::discover_result(&offer.capabilities, offer.instructions.as_deref())
    }

    /// Whether a list is offered at all to a visitor, who could hear of its changes.
    pub(crate) async fn offers(&self, visit: &Visit) -> Value {
        self.offer(visit, Era::Stateless).await.capabilities
    }

    /// A server that cannot be met now may have anything: whoever asks it for something will be told why it fails.
    async fn offer(&self, visit: &Visit, era: Era) -> Offer {
        match &visit.view {
            View::All => {
                let catalog = self.crib.catalog_for(&visit.caller);
                let capabilities = client::every_capability(era, &extensions(&catalog));
                Offer { capabilities, instructions: merged(&catalog) }
            }
            View::One(server) => {
                let met = self.crib.list_of_for(server, &visit.caller).await.ok();
                let declared = met.as_ref().and_then(|catalog| catalog.capabilities_of(server));
                let passed = declared.and_then(|declared| client::passed_capabilities(declared, era));
                Offer {
                    capabilities: passed.unwrap_or_else(|| client::every_capability(era, &ROUTED)),
                    instructions: met
                        .as_ref()
                        .and_then(|catalog| catalog.instructions_of(server))
                        .map(str::to_owned),
                }
            }
        }
    }
}

/// The extensions that some server declares and that can be routed.
fn extensions(catalog: &Arc<Catalog>) -> Vec<&'static str> {
    let declares = |name: &str| {
        catalog.servers().any(|server| {
            let declared = catalog.capabilities_of(server).and_then(|raw| Object::parse(raw).ok());
            let extensions = declared.and_then(|declared| Object::parse(declared.get("extensions")?).ok());
            extensions.is_some_and(|extensions| extensions.get(name).is_some())
        })
    };
    ROUTED.into_iter().filter(|name| declares(name)).collect()
}

/// What every server says about itself, each under its name.
fn merged(catalog: &Arc<Catalog>) -> Option<String> {
    let parts: Vec<String> = catalog
        .servers()
        .filter_map(|server| {
            let said = catalog.instructions_of(server)?.trim();
            (!said.is_empty()).then(|| format!("# {server}\n\n{said}"))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}
