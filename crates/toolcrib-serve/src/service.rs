//! The crib as an MCP server: handles the requests that are the same over HTTP, on pipes and in both eras.

mod catalog_digest;
pub(crate) mod change_watcher;
mod extensions;
pub(crate) mod in_flight;
mod initialize;
pub(crate) mod listen;
mod methods;
mod owned_request;
mod planned_request;
pub(crate) mod recent_clients;
mod result_budget;
mod result_parts;
pub(crate) mod search_tools;
pub(crate) mod session_client;
pub(crate) mod session_record;
pub(crate) mod shown_tools;
mod signature;
mod stored_results;
mod tasks;
pub(crate) mod updates;

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use toolcrib::model::trace_context::NetworkTransport;
use toolcrib::protocol::era::client::{self, RequestMeta};
use toolcrib::protocol::era::{IMPLEMENTATION, adapt_response_for_client, shorten_server_info};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::{ResponsePayload, code, error_object, move_own_code};
use toolcrib::protocol::versions::Era;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{
    Call, Caller, Catalog, Client, ClientCapabilities, ClientContext, Crib, Error, ErrorKind, FailureClass,
    FirstListingWait, Hint, ListKind, Outcome, Page, Selector, ServerId, UpdateSink,
};

use self::catalog_digest::{CatalogDigest, ListDigests, hash_list};
use self::change_watcher::list_index;
use self::recent_clients::RecentClients;
use self::stored_results::ResultStore;
use crate::callers::AuthenticatedCaller;

/// Resource subscriptions per session or listen stream.
const MAX_SUBSCRIPTIONS: usize = 1000;
/// Notifications of extensions that may wait for their server, per client.
const MAX_PENDING_NOTIFICATIONS: usize = 64;
/// Time limit for a page that only the server knows.
const MAX_PAGE_WAIT: Duration = Duration::from_secs(60);
/// Cached catalog digests, one per caller.
const MAX_CATALOG_DIGESTS: usize = 64;

/// The part of the catalog that an endpoint serves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum CatalogScope {
    /// All servers, under public names.
    All,
    /// One server, under the server's own names.
    One(ServerId),
}

impl CatalogScope {
    /// Returns the server of a single-server endpoint.
    pub(crate) fn server(&self) -> Option<&ServerId> {
        match self {
            Self::All => None,
            Self::One(server) => Some(server),
        }
    }

    /// Returns the selector of a resource by the URI that clients of this endpoint use.
    pub(crate) fn resource_selector(&self, uri: &str) -> Selector {
        match self {
            Self::All => Selector::Resource(uri.to_owned()),
            Self::One(server) => Selector::OnServer(server.clone(), uri.to_owned()),
        }
    }
}

/// An endpoint and the caller that uses it. Not a part of [`RequestContext`] alone, because sessions, pipes and streams keep
/// it for longer than a request.
#[derive(Debug, Clone)]
pub(crate) struct EndpointScope {
    pub(crate) view: CatalogScope,
    pub(crate) access: Arc<AuthenticatedCaller>,
    /// The name of the client program, once it is known.
    pub(crate) client_name: Option<Arc<str>>,
    /// How the client is connected, if it is known.
    pub(crate) transport: Option<NetworkTransport>,
}

/// The same caller with another profile is another scope.
impl PartialEq for EndpointScope {
    fn eq(&self, other: &Self) -> bool {
        let own = self.caller();
        let others = other.caller();
        self.view == other.view
            && own == others
            && own.profile() == others.profile()
            && own.groups() == others.groups()
    }
}

impl EndpointScope {
    /// Returns the scope of the local caller at the endpoint for all servers.
    #[cfg(test)]
    pub(crate) fn local() -> Self {
        Self::trusted(Caller::local())
    }

    /// Returns the scope of a caller at the endpoint for all servers.
    pub(crate) fn all(access: Arc<AuthenticatedCaller>) -> Self {
        Self { view: CatalogScope::All, access, client_name: None, transport: None }
    }

    /// Returns the scope of a caller that needs no authentication, at the endpoint for all servers.
    pub(crate) fn trusted(caller: Caller) -> Self {
        Self::all(Arc::new(AuthenticatedCaller::trusted(caller, false)))
    }

    /// Adds the client that these parameters of `initialize` name.
    pub(crate) fn with_client(self, initialize: Option<&Object>) -> Self {
        Self { client_name: client::client_name(initialize), ..self }
    }

    /// Returns the caller.
    pub(crate) fn caller(&self) -> &Caller {
        &self.access.caller
    }

    /// Returns whether a server is visible in this scope.
    fn can_see(&self, crib: &Crib, server: &ServerId) -> bool {
        self.view.server().is_none_or(|own| own == server) && crib.can_see(self.caller(), server)
    }
}

/// The origin of one request: endpoint, caller and client, and where updates go.
#[derive(Debug, Clone)]
pub(crate) struct RequestContext {
    pub(crate) scope: EndpointScope,
    pub(crate) client: Client,
    /// Facts about the client that outlast this request.
    pub(crate) client_context: Option<Arc<ClientContext>>,
    /// Receives what the server sends before its response.
    pub(crate) updates: Option<Arc<dyn UpdateSink>>,
    /// True if the client announced extensions, for this request or its session.
    pub(crate) has_extensions: bool,
}

impl RequestContext {
    /// Returns the context of a stateless request; `key` is the client's key.
    pub(crate) fn stateless(scope: EndpointScope, meta: &RequestMeta, key: u64) -> Self {
        let client = Client {
            key,
            era: Era::Stateless,
            capabilities: meta.capabilities.clone(),
            log_level: meta.log_level,
            has_one_server: scope.view.server().is_some(),
            info: meta.client_info.clone(),
        };
        let has_extensions = client.capabilities.has_extensions();
        let scope = EndpointScope { client_name: meta.client_name.clone(), ..scope };
        Self { scope, client, client_context: None, updates: None, has_extensions }
    }

    /// Adds facts about the client that outlast this request.
    pub(crate) fn with_client_context(self, context: Arc<ClientContext>) -> Self {
        Self { client_context: Some(context), ..self }
    }

    /// Sends updates to this sink.
    pub(crate) fn with_updates(self, sink: Arc<dyn UpdateSink>) -> Self {
        Self { updates: Some(sink), ..self }
    }

    /// Creates a call with this context.
    pub(crate) fn call(self, method: Cow<'static, str>, selector: Selector, params: Object) -> Call {
        let caller = self.scope.caller().clone();
        let mut call =
            Call::from_client(caller, self.client, method, selector, params).forward_unknown_names();
        call.set_client_context(self.client_context, self.updates);
        call.set_client_name(self.scope.client_name);
        call.set_client_transport(self.scope.transport);
        call
    }

    /// Creates a notification with this context.
    fn notification(self, method: String, selector: Selector, params: Object) -> Call {
        let caller = self.scope.caller().clone();
        let mut call = Call::notification(method, selector, params).caller(caller).client(self.client);
        call.set_client_context(self.client_context, self.updates);
        call.set_client_name(self.scope.client_name);
        call.set_client_transport(self.scope.transport);
        call
    }
}

/// A connected client: a session, a pipe or a connection. Lives as long as the client, because dropping it stops the server
/// instances of this client.
#[derive(Debug)]
pub(crate) struct ClientHandle {
    pub(crate) key: u64,
    crib: Crib,
    /// Limits the notifications of extensions that wait for their server; created for the first one.
    notifications: OnceLock<Arc<Semaphore>>,
    /// Set by the first stateless request.
    is_recorded: AtomicBool,
}

impl ClientHandle {
    /// Returns the permit for one more notification of an extension; `None` if too many wait.
    fn try_start_notification(&self) -> Option<OwnedSemaphorePermit> {
        let permits = self.notifications.get_or_init(|| Arc::new(Semaphore::new(MAX_PENDING_NOTIFICATIONS)));
        permits.clone().try_acquire_owned().ok()
    }
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.crib.client_disconnected(self.key);
    }
}

/// A function that puts the hints of errors into words.
struct HintFormatter(Box<dyn Fn(&Hint) -> String + Send + Sync>);

impl fmt::Debug for HintFormatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HintFormatter")
    }
}

/// A crib as an MCP server, independent of transports.
#[derive(Debug)]
pub struct McpService {
    pub(crate) crib: Crib,
    /// Key of the next client.
    next_key: AtomicU64,
    /// Digests of the newest catalog, one per caller.
    catalog_digests: Mutex<Vec<Arc<CatalogDigest>>>,
    hint_formatter: Option<HintFormatter>,
    /// Results that were too large for their clients.
    stored_results: ResultStore,
    /// Clients for reports.
    pub(crate) recent_clients: RecentClients,
}

impl McpService {
    /// Creates a service that offers what the crib's servers offer.
    pub fn new(crib: Crib) -> Self {
        // A client of any kind may connect, and each is asked only what it can answer.
        crib.add_client_capabilities(&ClientCapabilities::all());
        let stored_results = ResultStore::new(crib.replica());
        Self {
            crib,
            next_key: AtomicU64::new(1),
            catalog_digests: Mutex::default(),
            hint_formatter: None,
            stored_results,
            recent_clients: RecentClients::default(),
        }
    }

    /// Sets a function that puts the hints of errors into words, for example as commands of a program.
    #[must_use]
    pub fn with_hints(self, format: impl Fn(&Hint) -> String + Send + Sync + 'static) -> Self {
        Self { hint_formatter: Some(HintFormatter(Box::new(format))), ..self }
    }

    fn hint_text(&self, error: &Error) -> String {
        match &self.hint_formatter {
            Some(HintFormatter(format)) => format(&error.hint()),
            None => error.hint().to_string(),
        }
    }

    /// Encodes an error, with its hint in words. An error object of the server passes unchanged.
    pub(crate) fn error_object(&self, error: &Error) -> Bytes {
        if let Some(server_error) = error.server_error() {
            return move_own_code(server_error.clone());
        }
        let hint = self.hint_text(error);
        // Most clients show only the message, and nothing works before the login.
        let needs_login =
            error.kind() == ErrorKind::AuthNeeded || error.class() == Some(FailureClass::NeedsAuth);
        let message = if needs_login { format!("{error}; hint: {hint}") } else { error.to_string() };
        error_object(error.kind().facts().code, &message, Some(&error.data_with_hint(&hint)))
    }

    /// Returns an error as the answer to a request, with its hint in words.
    fn error_payload(&self, error: &Error) -> ResponsePayload {
        ResponsePayload::Error(self.error_object(error))
    }

    /// Registers a new client.
    pub(crate) fn connect_client(&self) -> ClientHandle {
        ClientHandle {
            key: self.next_key.fetch_add(1, Ordering::Relaxed),
            crib: self.crib.clone(),
            notifications: OnceLock::new(),
            is_recorded: AtomicBool::new(false),
        }
    }

    /// Returns whether a request is forwarded to a server, which may send updates before its response.
    pub(crate) fn is_forwarded(era: Era, method: &str) -> bool {
        methods::is_forwarded(era, method)
    }

    /// Returns one page of a list, and the catalog of the caller. The page is read from the lists of the client's own
    /// instances where they differ.
    async fn list(
        &self,
        context: RequestContext,
        kind: ListKind,
        params: Object,
    ) -> (ResponsePayload, Option<Arc<Catalog>>) {
        let scope = &context.scope;
        let era = context.client.era;
        let raw_cursor = params.get("cursor").filter(|raw| &***raw != b"null");
        let cursor = params.get_string("cursor");
        if raw_cursor.is_some() && cursor.is_none() {
            return (reject(code::INVALID_PARAMS, "`params.cursor` must be a string"), None);
        }
        if let Some((answer, catalog)) = self.list_if_uncertain(&context, kind, &params).await {
            return (answer, catalog);
        }
        let catalog = match self.load_catalog(scope, era, kind, cursor.is_none()).await {
            Ok(catalog) => catalog,
            Err(error) => return (self.error_payload(&error), None),
        };
        if kind == ListKind::Tools {
            self.recent_clients.record_list(scope, Instant::now());
        }
        let own_catalog = self.own_catalog(&context).await;
        let listed = own_catalog.as_ref().unwrap_or(&catalog);
        let list_error = scope.view.server().and_then(|server| listed.list_error(kind, server));
        // A cursor is the server's own: it may answer it although it refused the first page.
        if let Some(error) = list_error.filter(|_| cursor.is_none()) {
            return (ResponsePayload::Error(error.clone()), None);
        }
        let mut page = match kind == ListKind::Tools && self.is_search(scope) {
            true => self.search_page(listed, era, cursor.as_deref()),
            false => listed.page(kind, scope.view.server(), era, cursor.as_deref()),
        };
        if let Ok(page) = &mut page
            && kind == ListKind::Tools
            && cursor.is_none()
            && self.lists_read_result(scope)
        {
            Self::add_read_result(page);
        }
        let is_empty = page.as_ref().is_ok_and(|page| &*page.items == b"[]");
        if let CatalogScope::One(server) = &scope.view
            && (is_empty || page.is_err())
            && catalog.server_capabilities(server).is_some()
        {
            // The server's own answer: it may have no such list, or know a cursor that the catalog does not know.
            let limit = if is_empty { self.crib.listing_wait() } else { MAX_PAGE_WAIT };
            match self.list_from_server(context.clone(), server.clone(), kind, params, limit).await {
                Some(Ok(answer)) => return (answer, Some(catalog)),
                Some(Err(error)) if !is_empty => return (self.error_payload(&error), None),
                _ => {}
            }
        }
        match page.map(|page| self.encode_page(&context, kind, &page, &catalog)) {
            Ok(result) => (ResponsePayload::Result(result), Some(catalog)),
            Err(error) => (self.error_payload(&error), None),
        }
    }

    /// Encodes a page of a list: in the server's own result if there is one, so that nothing else of it is changed.
    fn encode_page(&self, context: &RequestContext, kind: ListKind, page: &Page, catalog: &Catalog) -> Bytes {
        let server = context.scope.view.server();
        let freshness = self.crib.freshness(kind, server, context.scope.caller());
        // Other clients may be listed other tools.
        let is_public = freshness.public && self.crib.expose_settings().lists_all();
        let caching = client::ListCaching { ttl: freshness.ttl, is_public };
        let member = kind.list_member();
        let next_cursor = page.next_cursor.as_deref();
        let own_result = page.own_result.as_ref().and_then(|own_result| {
            client::own_list_result(own_result, member, page.items.clone(), next_cursor, caching)
        });
        own_result.or_else(|| page.session_result()).unwrap_or_else(|| {
            let info = server.and_then(|server| catalog.server_info(server));
            let info = info.map_or(Bytes::from_static(IMPLEMENTATION.as_bytes()), shorten_server_info);
            client::list_result(member, &page.items, next_cursor, context.client.era, caching, &info)
        })
    }

    /// Returns the catalog with the lists of the client's own instances, if they differ from those of their servers.
    async fn own_catalog(&self, context: &RequestContext) -> Option<Arc<Catalog>> {
        let has_lists_of_clients = self.crib.has_lists_of_clients();
        if !context.has_extensions && !has_lists_of_clients {
            return None;
        }
        let selector = Selector::Resource(String::new());
        let call = context.clone().call("tools/list".into(), selector, Object::default());
        if has_lists_of_clients {
            Box::pin(self.crib.discover_for_client(&call, context.scope.view.server())).await;
        }
        self.crib.own_catalog(&call)
    }

    /// Returns the answer of the only server of an endpoint to a list request, if its last known list may not be what it would
    /// answer now, and the catalog with that answer.
    async fn list_if_uncertain(
        &self,
        context: &RequestContext,
        kind: ListKind,
        params: &Object,
    ) -> Option<(ResponsePayload, Option<Arc<Catalog>>)> {
        let scope = &context.scope;
        let server = scope.view.server()?.clone();
        if kind == ListKind::Tools && self.lists_read_result(scope) {
            return None;
        }
        let era = context.client.era;
        let selector = Selector::OnServer(server, kind.method().to_owned());
        let call = context.clone().call(kind.method().into(), selector, params.clone());
        let wait = self.first_wait(scope).request;
        match Box::pin(self.crib.list_if_uncertain(kind, call, wait)).await.transpose()? {
            Ok(outcome) => {
                if kind == ListKind::Tools {
                    self.recent_clients.record_list(scope, Instant::now());
                }
                let catalog = self.crib.catalog_for(scope.caller());
                Some((adapt_outcome(outcome, kind.method(), era), Some(catalog)))
            }
            Err(error) => Some((self.error_payload(&error), None)),
        }
    }

    /// Asks a server for a page of a list; `None` if it is not asked for this client or does not answer in time.
    async fn list_from_server(
        &self,
        context: RequestContext,
        server: ServerId,
        kind: ListKind,
        params: Object,
        limit: Duration,
    ) -> Option<Result<ResponsePayload, Error>> {
        let era = context.client.era;
        let method = kind.method();
        let call = context.call(method.into(), Selector::OnServer(server, method.to_owned()), params);
        let answer = timeout(limit, Box::pin(self.crib.list_from_server(kind, call))).await;
        let outcome = answer.ok()?.transpose()?;
        Some(outcome.map(|outcome| adapt_outcome(outcome, method, era)))
    }

    /// Returns the catalog that shows how a tool is called. A server that was never listed is listed first.
    pub(crate) async fn catalog_with_tool(&self, scope: &EndpointScope, tool: &str) -> Arc<Catalog> {
        let catalog = self.crib.catalog_for(scope.caller());
        if !catalog.has_undiscovered() {
            return catalog;
        }
        // Only stateless clients send parameters in headers. If this fails, the call fails for the same reason.
        let era = Era::Stateless;
        match &scope.view {
            // What is denied is not worth a start.
            CatalogScope::One(server) if !self.crib.can_use(scope.caller(), server, tool) => {}
            CatalogScope::One(server) => {
                drop(self.crib.list_server_for_era(server, scope.caller(), era).await);
            }
            CatalogScope::All => {
                let selector = Selector::Tool(tool.to_owned());
                drop(self.crib.find_for_era(scope.caller(), &selector, era).await);
            }
        }
        self.crib.catalog_for(scope.caller())
    }

    /// Returns how long a request of a client waits for servers that were never listed.
    pub(super) fn first_wait(&self, scope: &EndpointScope) -> FirstListingWait {
        self.crib.first_listing().for_client(scope.client_name.as_deref())
    }

    /// Returns the visible catalog, for the first page of a list with a current list. Servers that were never listed are
    /// waited for within limits, and a change is announced when others are up. At the endpoint of one server there is no list
    /// without it.
    async fn load_catalog(
        &self,
        scope: &EndpointScope,
        era: Era,
        kind: ListKind,
        is_first_page: bool,
    ) -> Result<Arc<Catalog>, Error> {
        match &scope.view {
            _ if !is_first_page => Ok(self.crib.catalog_for(scope.caller())),
            CatalogScope::All => {
                Ok(self.crib.list_kind_for(kind, scope.caller(), era, self.first_wait(scope)).await)
            }
            CatalogScope::One(server) => {
                let wait = self.first_wait(scope).request;
                self.crib.list_server_kind_for(kind, server, scope.caller(), era, wait).await
            }
        }
    }

    /// Returns the digest of a catalog, which is computed once.
    pub(crate) fn catalog_digest(&self, catalog: &Arc<Catalog>) -> Arc<CatalogDigest> {
        let mut digests = self.catalog_digests.lock().ignore_poison();
        if let Some(digest) = digests.iter().find(|digest| digest.is_for(catalog)) {
            return digest.clone();
        }
        digests.retain(|digest| digest.revision() == catalog.revision());
        if digests.len() >= MAX_CATALOG_DIGESTS {
            digests.clear();
        }
        let digest = Arc::new(CatalogDigest::new(catalog.clone()));
        digests.push(digest.clone());
        digest
    }

    /// Returns the digests of the current lists in a scope.
    pub(crate) fn list_digests(&self, scope: &EndpointScope) -> ListDigests {
        self.list_digests_of(&self.crib.catalog_for(scope.caller()), scope)
    }

    /// Returns the digests of the lists of a catalog in a scope. In search mode, only the tools that are listed count.
    pub(crate) fn list_digests_of(&self, catalog: &Arc<Catalog>, scope: &EndpointScope) -> ListDigests {
        let mut digests = self.catalog_digest(catalog).list_digests(&scope.view);
        if self.is_search(scope) {
            let listed = self.always_listed(catalog).map(|listed| listed.list_json(ListKind::Tools, None));
            digests[list_index(ListKind::Tools)] = hash_list(&listed.unwrap_or_default());
        }
        if self.lists_read_result(scope) {
            // The tool is listed or not, and never changes.
            digests[list_index(ListKind::Tools)] ^= 1;
        }
        digests
    }
}

/// Encodes the outcome of a call for a client.
fn adapt_outcome(outcome: Outcome, method: &str, era: Era) -> ResponsePayload {
    let server_info = outcome.server_info;
    adapt_response_for_client(outcome.answer, method, outcome.era, era, server_info.as_ref())
}

/// Encodes an error whose hint is a text.
pub(crate) fn error_payload(error: &Error) -> ResponsePayload {
    ResponsePayload::Error(error_object(error.kind().facts().code, &error.to_string(), Some(&error.data())))
}

/// Encodes an error as a tool result, because most clients show tool results to the model but not errors.
fn error_as_tool_result(error: &Error, hint: &str) -> ResponsePayload {
    let text = format!("{error}; {hint}");
    let mut data = error.data_with_hint(hint);
    data["code"] = error.kind().facts().code.into();
    let content = json!([{"type": "text", "text": text}]);
    ResponsePayload::Result(
        json!({"content": content, "isError": true, "_meta": {"toolcrib/error": data}}).to_string().into(),
    )
}

/// Encodes a protocol error.
pub(crate) fn reject(code: i32, message: &str) -> ResponsePayload {
    ResponsePayload::Error(error_object(code, message, None))
}

#[cfg(test)]
mod tests;
