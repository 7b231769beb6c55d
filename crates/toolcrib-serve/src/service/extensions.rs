//! Requests and notifications of extensions: which server they go to, and the skills of all servers.
//!
//! At the endpoint of one server they go to that server. At the endpoint for all servers they go to the server of the URI
//! that they name, else to the only server with an extension of that name, else to the only server with any extension.
//! There, a server that announced no extension gets none of them.

use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;
use toolcrib::protocol::era::IMPLEMENTATION;
use toolcrib::protocol::era::client::{self, ListCaching, PROGRESS, ROOTS_CHANGED};
use toolcrib::protocol::era::extensions::{
    LIST_SKILLS, SKILLS, announced_extensions, is_extension_notification, is_method_of,
};
use toolcrib::protocol::json::object::{Object, parse_array, to_json_string};
use toolcrib::protocol::jsonrpc::{ResponsePayload, code};
use toolcrib::{Catalog, ClientCapabilities, Selector, ServerId};
use tracing::warn;

use super::methods::method_not_found;
use super::{CatalogScope, ClientHandle, McpService, RequestContext, reject};

/// Pages of skills that are read from one server.
const MAX_SKILL_PAGES: usize = 100;

impl McpService {
    /// Makes the capabilities of a new session known, before servers are started for it.
    pub(crate) fn introduce_client(&self, initialize: Option<&Object>) {
        if let Some(declared) = initialize.and_then(|params| params.get("capabilities")) {
            self.crib.add_client_capabilities(&ClientCapabilities::parse(declared));
        }
    }

    /// Forwards a request that the protocol does not define.
    pub(super) async fn forward_extension(
        &self,
        context: RequestContext,
        method: &str,
        params: Object,
    ) -> ResponsePayload {
        match self.select_extension_server(&context, method, &params).await {
            Ok(Some(selector)) => self.plan_call(context, method, selector, params).make(self).await,
            Ok(None) => method_not_found(),
            Err(response) => response,
        }
    }

    /// Forwards a notification that the protocol does not define in a task of its own. It is dropped if no server can be meant, if too many
    /// of this client wait, or if the call fails, which is recorded.
    pub(crate) fn spawn_notification(
        self: &Arc<Self>,
        tasks: &TaskTracker,
        client: &ClientHandle,
        context: RequestContext,
        method: String,
        params: Object,
    ) {
        // Roots and progress may be all that the only server waits for.
        let is_for_one_server = matches!(&*method, ROOTS_CHANGED | PROGRESS) && context.client.has_one_server;
        if !is_extension_notification(&method) && !is_for_one_server {
            return;
        }
        let Some(permit) = client.try_start_notification() else {
            warn!(method, "dropped a notification, because too many wait for their server");
            return;
        };
        let service = self.clone();
        tasks.spawn(async move {
            if let Ok(Some(selector)) = service.select_extension_server(&context, &method, &params).await {
                let call = context.notification(method, selector, params);
                // The observers have the reason why it failed; there is no response.
                let _ = service.crib.call(call).await;
            }
            drop(permit);
        });
    }

    /// Returns the selector of the server that a message which the protocol does not define belongs to; `None` at the endpoint
    /// for all servers, if that server announced no extension. The error is the response to a request.
    async fn select_extension_server(
        &self,
        context: &RequestContext,
        method: &str,
        params: &Object,
    ) -> Result<Option<Selector>, ResponsePayload> {
        let scope = &context.scope;
        let era = context.client.era;
        let uri = params.get_string("uri");
        if let CatalogScope::One(server) = &scope.view {
            // The rules of a caller that may use only a part of the server deny what they cannot describe, and the denial is
            // recorded.
            let name = uri.as_deref().unwrap_or(method).to_owned();
            return Ok(Some(Selector::OnServer(server.clone(), name)));
        }
        let catalog = self.crib.list_for_era(scope.caller(), era, self.first_wait(scope)).await;
        if let Some(uri) = uri {
            let selector = Selector::Resource(uri.into_owned());
            let target = self.crib.find_for_era(scope.caller(), &selector, era).await;
            let target = target.map_err(|error| self.error_payload(&error))?;
            let may_pass = has_extensions(&catalog, &target.server);
            return Ok(may_pass.then_some(selector));
        }
        match &find_servers(&catalog, method)[..] {
            [] => Ok(None),
            [only] => Ok(Some(Selector::OnServer((*only).clone(), method.to_owned()))),
            several => {
                let names: Vec<String> = several.iter().map(|server| format!("`/mcp/s/{server}`")).collect();
                let message = format!("`{method}` may belong to several servers: use {}", names.join(" or "));
                Err(reject(code::METHOD_NOT_FOUND, &message))
            }
        }
    }

    /// Returns the skills of all servers, under public URIs and in one page. A server that cannot be asked is left out.
    pub(super) async fn list_skills(&self, context: &RequestContext) -> ResponsePayload {
        let wait = self.first_wait(&context.scope);
        let catalog = self.crib.list_for_era(context.scope.caller(), context.client.era, wait).await;
        let servers: Vec<ServerId> =
            catalog.servers().filter(|server| announces(&catalog, server, SKILLS)).cloned().collect();
        if servers.is_empty() {
            return method_not_found();
        }
        let mut requests = JoinSet::new();
        for (index, server) in servers.into_iter().enumerate() {
            let crib = self.crib.clone();
            let context = context.clone();
            let catalog = catalog.clone();
            requests.spawn(async move { (index, read_skills(&crib, &context, &server, &catalog).await) });
        }
        let mut found = requests.join_all().await;
        found.sort_by_key(|(index, _)| *index);
        let skills: Vec<Bytes> = found.into_iter().flat_map(|(_, skills)| skills).collect();
        let items = [b"[", &*skills.join(&b","[..]), b"]"].concat();
        let era = context.client.era;
        let caching = ListCaching::default();
        let info = IMPLEMENTATION.as_bytes();
        ResponsePayload::Result(client::list_result("skills", &items, None, era, caching, info))
    }
}

/// Reads all skills of one server.
async fn read_skills(
    crib: &toolcrib::Crib,
    context: &RequestContext,
    server: &ServerId,
    catalog: &Catalog,
) -> Vec<Bytes> {
    let mut skills = Vec::new();
    let mut params = Object::default();
    for _ in 0..MAX_SKILL_PAGES {
        let selector = Selector::OnServer(server.clone(), LIST_SKILLS.to_owned());
        let call = context.clone().call(LIST_SKILLS.into(), selector, params);
        let result = match crib.call(call).await.map(|outcome| outcome.answer) {
            Ok(ResponsePayload::Result(result)) => result,
            Ok(_) => break,
            Err(error) => {
                warn!(%server, %error, "cannot list its skills");
                break;
            }
        };
        let result = catalog.publish_skill_uris(server, LIST_SKILLS, &result).unwrap_or(result);
        let Ok(page) = Object::parse(&result) else { break };
        skills.extend(page.get("skills").and_then(|raw| parse_array(raw).ok()).unwrap_or_default());
        let Some(cursor) = page.get_string("nextCursor") else { break };
        params = Object::default();
        params.set_unchecked("cursor", to_json_string(&cursor));
    }
    skills
}

fn extension_keys(catalog: &Catalog, server: &ServerId) -> Vec<String> {
    catalog.server_capabilities(server).map(announced_extensions).unwrap_or_default()
}

fn has_extensions(catalog: &Catalog, server: &ServerId) -> bool {
    !extension_keys(catalog, server).is_empty()
}

fn announces(catalog: &Catalog, server: &ServerId, key: &str) -> bool {
    extension_keys(catalog, server).iter().any(|announced| announced == key)
}

/// Returns the servers that a method may belong to: those with an extension of that name, else all with any extension.
fn find_servers<'a>(catalog: &'a Catalog, method: &str) -> Vec<&'a ServerId> {
    let mut named = Vec::new();
    let mut all = Vec::new();
    for server in catalog.servers() {
        let keys = extension_keys(catalog, server);
        if keys.iter().any(|key| is_method_of(method, key)) {
            named.push(server);
        }
        if !keys.is_empty() {
            all.push(server);
        }
    }
    if named.is_empty() { all } else { named }
}
