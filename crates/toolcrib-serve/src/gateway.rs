//! The state that all connections share, and the state of one connection.

mod shared_state;

use std::net::IpAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Once};

use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Response, Uri};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::{AddressRange, GatewayLimits};
use toolcrib::protocol::era::client::RequestMetaReader;
use toolcrib::store::Replica;
use toolcrib::util::tasks::SpawnBoxed as _;
use toolcrib::{Caller, ServerId};

use crate::address_limit::AddressLimit;
use crate::admin_routes::{AdminRoutes, NoAdminRoutes};
use crate::body::ResponseBody;
use crate::callers::{ActiveCallers, AuthenticatedCaller, IssuedCallers, bearer_token, is_signed_token};
use crate::client_memory::{ClientMemory, MemoryAccount};
use crate::connection_clients::ConnectionClients;
use crate::connection_peer::{ConnectionPeer, Entrypoint};
use crate::dashboard_sessions::{DashboardSessions, SessionAccess};
use crate::draining::Draining;
use crate::forwarded::ForwardedClient;
use crate::login::{ConnectionLogin, FailedLoginLog, FailedLogins, UnauthenticatedConnections};
use crate::login_error::LoginError;
use crate::origin_check::{HostAllowList, is_loopback, request_authority};
use crate::replicas::Replicas;
use crate::resource::{PublicAddress, ResourceUrl, endpoint_path};
use crate::response;
use crate::service::recent_clients::{ClientKind, ConnectedClient};
use crate::service::shown_tools::ShownTools;
use crate::service::{CatalogScope, ClientHandle, EndpointScope, McpService};
use crate::session::Sessions;
use crate::session::sse_clients::SseClients;
use crate::static_files::StaticFile;

/// Handshakes at the same time. If there are more, the oldest is ended.
const MAX_HANDSHAKES: usize = 512;

/// An MCP service over HTTP, shared by all its connections. [`serve_connection`](crate::serve_connection) serves one of
/// them.
#[derive(Debug)]
pub struct HttpGateway {
    pub(crate) service: Arc<McpService>,
    pub(crate) callers: Arc<ActiveCallers>,
    pub(crate) admin: Arc<dyn AdminRoutes>,
    pub(crate) sessions: Arc<Sessions>,
    /// Clients of HTTP+SSE, if that is served.
    pub(crate) sse_clients: Option<Arc<SseClients>>,
    /// The other replicas, if requests are forwarded to them.
    pub(crate) replicas: Option<Replicas>,
    pub(crate) allowed_hosts: HostAllowList,
    /// Size limit of a request body in bytes.
    pub(crate) max_body: usize,
    /// Calls and streams that may outlive their connection.
    pub(crate) tasks: TaskTracker,
    /// Number of HTTP/1 connections that hold buffers.
    pub(crate) open_phases: AtomicUsize,
    /// The memory that clients use.
    pub(crate) memory: Arc<ClientMemory>,
    /// Connections without a valid token, if their number is limited.
    pub(crate) unauthenticated: Option<Arc<UnauthenticatedConnections>>,
    pub(crate) failed_logins: FailedLoginLog,
    /// The URL of the gateway, which tokens of issuers name.
    pub(crate) public_address: PublicAddress,
    /// Handshakes in progress.
    pub(crate) handshakes: Arc<UnauthenticatedConnections>,
    /// Peers whose headers about their clients are used.
    pub(crate) trusted_proxies: Vec<AddressRange>,
    /// Completed once a proxy has named another URL than the configured one.
    pub(crate) url_conflict: Once,
    /// Requests that trusted proxies passed on.
    pub(crate) client_requests: AddressLimit,
    pub(crate) dashboard_files: &'static [StaticFile],
    pub(crate) dashboard_sessions: Arc<DashboardSessions>,
    /// Tells connections that another process accepts new ones.
    pub(crate) draining: Draining,
}

impl HttpGateway {
    /// Creates a gateway without an admin API, which is addressed as `localhost`. Of the limits, those of request bodies,
    /// sessions and the memory of clients apply.
    ///
    /// If the crib has a store that other gateways use, they can continue its sessions, and a caller that one of them revokes
    /// loses access to all.
    ///
    /// # Panics
    /// Panics if the crib has such a store and there is no tokio runtime.
    pub fn new(
        service: impl Into<Arc<McpService>>,
        callers: Arc<ActiveCallers>,
        limits: &GatewayLimits,
    ) -> Self {
        let service = service.into();
        let store = service.crib.store();
        let replica = service.crib.replica().filter(|_| store.is_shared());
        let replicas = replica.and_then(open_replicas);
        let replica = replica.filter(|_| replicas.is_some());
        let sessions = Arc::new(Sessions::new(limits.sessions).with_store(store, replica));
        let tasks = TaskTracker::new();
        if store.is_shared() {
            shared_state::spawn_watchers(store, &service, &callers, &sessions, &tasks);
        }
        Self {
            service,
            callers,
            admin: Arc::new(NoAdminRoutes),
            allowed_hosts: HostAllowList::new(own_host(replicas.as_ref()).into_iter().collect()),
            sessions,
            sse_clients: None,
            replicas,
            max_body: limits.body,
            tasks,
            open_phases: AtomicUsize::new(0),
            memory: Arc::new(ClientMemory::new(limits.client_memory())),
            unauthenticated: None,
            failed_logins: FailedLoginLog::default(),
            public_address: PublicAddress::default(),
            handshakes: Arc::new(UnauthenticatedConnections::new(MAX_HANDSHAKES)),
            trusted_proxies: Vec::new(),
            url_conflict: Once::new(),
            client_requests: AddressLimit::default(),
            dashboard_files: &[],
            dashboard_sessions: Arc::default(),
            draining: Draining::default(),
        }
    }

    /// Sets the admin API.
    #[must_use]
    pub fn with_admin(self, admin: Arc<dyn AdminRoutes>) -> Self {
        Self { admin, ..self }
    }

    /// Serves the files of a web page, and lets browsers log in: with the token of a caller, or with a code that `sessions` created.
    /// A session that a code opened has the rights of the local caller.
    #[must_use]
    pub fn with_dashboard(self, files: &'static [StaticFile], sessions: Arc<DashboardSessions>) -> Self {
        Self { dashboard_files: files, dashboard_sessions: sessions, ..self }
    }

    /// Sets the names other than `localhost` by which the gateway is addressed, and the origins of web pages that may use the
    /// MCP endpoints, such as `http://localhost:6274`. Requests for other hosts, or from other web pages, are refused.
    #[must_use]
    pub fn with_hosts(self, hosts: Vec<String>, origins: Vec<String>) -> Self {
        let own_host = own_host(self.replicas.as_ref());
        let allowed_hosts = HostAllowList::new(hosts.into_iter().chain(own_host).collect());
        Self { allowed_hosts: allowed_hosts.with_origins(origins), ..self }
    }

    /// Serves clients of HTTP+SSE, the transport of 2024-11-05, at `/sse`, `/sse/p/PROFILE` and `/sse/s/SERVER`.
    #[must_use]
    pub fn with_sse(self) -> Self {
        Self { sse_clients: Some(Arc::default()), ..self }
    }

    /// Sets the URL by which clients reach the gateway, without a slash at its end, if it is not that of the listener, and the
    /// port of the listener. Tokens of issuers are accepted if they were issued for this URL, or for the host of the request at
    /// this port.
    #[must_use]
    pub fn with_public_address(self, url: Option<String>, port: Option<u16>) -> Self {
        Self { public_address: PublicAddress { url, port }, ..self }
    }

    /// Sets the addresses of proxies. `Forwarded` and `X-Forwarded-…` headers of their requests name the client; those of
    /// other peers are ignored.
    #[must_use]
    pub fn with_trusted_proxies(self, trusted_proxies: Vec<AddressRange>) -> Self {
        Self { trusted_proxies, ..self }
    }

    /// Returns whether a peer is a trusted proxy.
    pub fn is_trusted_proxy(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|range| range.contains(address))
    }

    /// Returns whether another replica has connected from an address. Its connections carry requests of many clients.
    pub fn is_replica(&self, address: IpAddr) -> bool {
        self.replicas.as_ref().is_some_and(|replicas| replicas.is_peer(address))
    }

    /// Sets the number of TCP connections that may be open without having presented a valid token. If there are more, the
    /// oldest of them is closed. Unlimited by default.
    #[must_use]
    pub fn with_max_unauthenticated(self, max: usize) -> Self {
        Self { unauthenticated: Some(Arc::new(UnauthenticatedConnections::new(max.max(1)))), ..self }
    }

    /// Sets a function that receives reports of requests without a valid token: at most one report in ten seconds, and one
    /// about the rest in [`HttpGateway::finish`]. It must not block.
    #[must_use]
    pub fn with_failed_logins(mut self, report: impl Fn(&FailedLogins) + Send + Sync + 'static) -> Self {
        self.failed_logins.reporter = Some(Box::new(report));
        self
    }

    /// Records a request without a valid token. The last ones of a series are reported when the next report may be made.
    pub(crate) fn record_failed_login(self: &Arc<Self>, address: Option<IpAddr>) {
        let Some(time) = self.failed_logins.record(address, Instant::now()) else { return };
        let gateway = Arc::downgrade(self);
        let closed = self.failed_logins.closed.clone();
        self.tasks.spawn_boxed(async move {
            // Either way the rest is reported.
            let _ = closed.run_until_cancelled(sleep_until(time)).await;
            if let Some(gateway) = gateway.upgrade() {
                gateway.failed_logins.report_rest(Instant::now());
            }
        });
    }

    /// Returns the number of open sessions.
    pub fn session_count(&self) -> usize {
        self.sessions.count()
    }

    /// Moves clients to another process that accepts connections at the same addresses. The next response on an HTTP/1
    /// connection is the last one, HTTP/2 clients are told to open another connection, and event streams and pipes end. Requests
    /// are served until the connections are [stopped](crate::serve_connection).
    pub fn drain(&self) {
        self.draining.start();
    }

    /// Returns the sessions for another process, which continues them with [`HttpGateway::take_over_session`]. From now on, `later`
    /// receives sessions that are opened or changed here.
    pub fn hand_over_sessions(&self, later: UnboundedSender<Value>) -> Vec<Value> {
        self.sessions.hand_over_all(later)
    }

    /// Hands over no more sessions, because the other process has failed.
    pub fn cancel_hand_over(&self) {
        self.sessions.cancel_hand_over();
    }

    /// Continues a session that another process has handed over, as soon as its client uses it.
    ///
    /// # Cancel safety
    /// If the future is dropped, subscriptions of a session that is open already may be missing.
    pub async fn take_over_session(&self, session: &Value) {
        self.sessions.inherit(&self.service, session).await;
    }

    /// Sets where messages for the process that hands over its sessions go, or `None` once that has ended. Meanwhile, requests in
    /// unknown sessions wait a moment.
    pub fn set_predecessor(&self, messages: Option<UnboundedSender<Value>>) {
        self.sessions.set_predecessor(messages);
    }

    /// Handles a message of a client that the process which has taken over the sessions has received: an answer or a cancellation.
    pub fn receive_passed_back(&self, message: &Value) {
        self.sessions.receive_passed_back(message);
    }

    /// Returns the clients in sessions, and the stateless clients that were seen recently.
    pub fn clients(&self) -> Vec<ConnectedClient> {
        let sessions = self.sessions.all();
        let sessions = sessions
            .iter()
            .map(|session| ConnectedClient::from_session(ClientKind::Session, &session.client));
        sessions.chain(self.service.recent_clients.connected()).collect()
    }

    /// Returns the tools that a client with this name is listed, by server, the most expensive first; at the endpoint of one
    /// server, if there is one.
    pub fn shown_tools(
        &self,
        caller: &Caller,
        client: Option<Arc<str>>,
        server: Option<&ServerId>,
    ) -> Vec<ShownTools> {
        let view = server.map_or(CatalogScope::All, |server| CatalogScope::One(server.clone()));
        let scope = EndpointScope { view, client_name: client, ..EndpointScope::trusted(caller.clone()) };
        self.service.shown_tools(&scope)
    }

    /// Waits until clients have released most of a large amount of memory that they used for a while. An allocator may
    /// keep that memory; this is a good time to return it to the system.
    ///
    /// # Cancel safety
    /// Cancel safe. The next call returns what a dropped one would have.
    pub async fn wait_for_released_memory(&self) {
        self.memory.wait_for_end_of_burst().await;
    }

    /// Waits until all calls and streams that outlived their connections have ended. Call it after the connections were
    /// told to stop.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future only skips waiting.
    pub async fn finish(&self) {
        self.sessions.close();
        self.failed_logins.closed.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Returns the client for other replicas, unless TLS is needed and not available.
fn open_replicas(replica: &Arc<Replica>) -> Option<Replicas> {
    let opened = Replicas::new(replica.clone());
    opened
        .inspect_err(|reason| tracing::error!("requests are not forwarded to other replicas: {reason}"))
        .ok()
}

/// Returns the host by which other replicas address this one.
fn own_host(replicas: Option<&Replicas>) -> Option<String> {
    let url: Uri = replicas?.own.address().parse().ok()?;
    url.host().map(str::to_owned)
}

/// State of one connection, shared by its requests.
pub(crate) struct ConnectionContext {
    pub(crate) gateway: Arc<HttpGateway>,
    pub(crate) peer: ConnectionPeer,
    /// The clients of stateless requests.
    pub(crate) clients: ConnectionClients,
    /// Reads the `_meta` of stateless requests.
    pub(crate) meta_reader: RequestMetaReader,
    /// Cancelled when the gateway stops or the connection is to be closed; ends streams that have no end of their own.
    pub(crate) stop: CancellationToken,
    pub(crate) login: ConnectionLogin,
}

impl ConnectionContext {
    /// Returns the caller of a request. A token of an issuer that was not seen before is verified, which may wait for the
    /// keys of the issuer.
    pub(crate) async fn authenticate(
        &self,
        target: &Uri,
        headers: &HeaderMap,
    ) -> Result<Arc<AuthenticatedCaller>, LoginError> {
        if self.login.is_refused() {
            return Err(LoginError::Missing);
        }
        let callers = &self.gateway.callers;
        let found = match callers.issued() {
            Some(issued) if self.peer.entrypoint != Entrypoint::Socket => {
                let token = bearer_token(headers);
                match token.and_then(|token| issued.find(token, || self.resource(target, headers))) {
                    Some(known) => known.map_err(LoginError::Refused),
                    // Boxed to keep the future of a request without issuers small.
                    None => Box::pin(self.authenticate_issued(&issued, target, headers)).await,
                }
            }
            _ => callers.authenticate(&self.peer, headers).ok_or(LoginError::Missing),
        };
        let is_known = found.is_ok();
        let access = match found {
            Ok(access) => access,
            Err(error) => self.session(headers).ok_or(error)?,
        };
        self.login.succeed();
        let known_callers = self.gateway.service.crib.known_callers();
        if known_callers.is_wanted() && !access.caller.is_local() {
            // Beside a session or on a Unix socket, a token is not looked at, so that nothing is done with it.
            let is_token_checked = is_known && self.peer.entrypoint != Entrypoint::Socket;
            let token = if is_token_checked { bearer_token(headers) } else { None };
            let token = token.and_then(|token| str::from_utf8(token).ok());
            known_callers.record(&access.caller, token);
        }
        Ok(access)
    }

    /// Returns the access of the browser session that a request belongs to.
    pub(crate) fn session(&self, headers: &HeaderMap) -> Option<Arc<AuthenticatedCaller>> {
        let access = match self.gateway.dashboard_sessions.find(headers, Instant::now())? {
            SessionAccess::Local => self.gateway.callers.authenticate(&Entrypoint::Socket.into(), headers)?,
            SessionAccess::Caller(access) => access,
        };
        self.login.succeed();
        Some(access)
    }

    /// Returns whether an admin's request may approve something. The local caller may over the gateway's own socket and in a browser
    /// session: any program on this machine can reach the address, including servers that fetch URLs.
    pub(crate) fn can_approve(&self, caller: &Caller, is_logged_in: bool) -> bool {
        self.peer.entrypoint == Entrypoint::Socket || is_logged_in || *caller != Caller::local()
    }

    /// Returns the caller of a request where issuers are declared, and whose token is not known.
    async fn authenticate_issued(
        &self,
        issued: &Arc<IssuedCallers>,
        target: &Uri,
        headers: &HeaderMap,
    ) -> Result<Arc<AuthenticatedCaller>, LoginError> {
        let callers = &self.gateway.callers;
        let token = bearer_token(headers).and_then(|token| str::from_utf8(token).ok());
        let token = token.filter(|token| is_signed_token(token));
        if let Some(access) = callers.authenticate(&self.peer, headers) {
            return Ok(access);
        }
        let Some(token) = token else {
            return Err(if headers.contains_key(AUTHORIZATION) {
                LoginError::UnknownToken
            } else {
                LoginError::Missing
            });
        };
        let resource = self.resource(target, headers);
        if let Some(verified) = issued.verify(token, &resource).await {
            return verified.map_err(LoginError::Refused);
        }
        // A reload has replaced the issuers meanwhile.
        let verified = match callers.issued() {
            Some(issued) => issued.verify(token, &resource).await,
            None => None,
        };
        verified.ok_or(LoginError::UnknownToken)?.map_err(LoginError::Refused)
    }

    /// Returns the URL of the endpoint that a request is for. Other paths belong to the endpoint of all servers.
    pub(crate) fn resource(&self, target: &Uri, headers: &HeaderMap) -> ResourceUrl {
        ResourceUrl { path: endpoint_path(target.path()).to_owned(), ..self.root_resource(target, headers) }
    }

    /// Returns the URL of the gateway as a whole, as the client of a request addresses it. A trusted proxy names the scheme
    /// and the host that its client used.
    pub(crate) fn root_resource(&self, target: &Uri, headers: &HeaderMap) -> ResourceUrl {
        let forwarded = match self.peer.is_proxy {
            true => ForwardedClient::read(headers, &self.gateway.trusted_proxies).unwrap_or_default(),
            false => ForwardedClient::default(),
        };
        let is_https = forwarded.is_https.unwrap_or(self.peer.is_tls);
        let address = &self.gateway.public_address;
        let authority = forwarded.host.as_deref().unwrap_or_else(|| request_authority(target, headers));
        let is_direct = forwarded == ForwardedClient::default();
        let base = match is_direct {
            true => address.request_url(is_https, authority),
            false => address.forwarded_url(is_https, authority),
        };
        let is_ambiguous =
            is_direct && address.url.is_none() && self.peer.is_remote() && is_loopback(authority);
        ResourceUrl { base, path: String::new(), is_ambiguous }
    }

    /// Logs once that a trusted proxy names another URL than the configured one.
    pub(crate) fn report_url_conflict(&self, client: &ForwardedClient) {
        let gateway = &self.gateway;
        let (Some(configured), Some(host)) = (&gateway.public_address.url, &client.host) else { return };
        let is_https = client.is_https.unwrap_or(self.peer.is_tls);
        if gateway.url_conflict.is_completed() || gateway.public_address.is_at(is_https, host) {
            return;
        }
        let scheme = if is_https { "https" } else { "http" };
        gateway.url_conflict.call_once(|| {
            tracing::warn!(
                "`listen.public-url` is `{configured}`, but a trusted proxy was addressed as `{scheme}://{host}`; \
                 `public-url` is used"
            );
        });
    }

    /// Returns the response to a request whose caller is not known.
    pub(crate) fn refuse_login(
        &self,
        error: &LoginError,
        target: &Uri,
        headers: &HeaderMap,
    ) -> Response<ResponseBody> {
        if self.peer.entrypoint == Entrypoint::OtherUser && self.gateway.callers.is_empty() {
            return response::other_user();
        }
        let Some(issued) = self.gateway.callers.issued() else { return response::unauthenticated() };
        if let LoginError::Refused(reason) = error {
            tracing::debug!("refused a token: {reason}");
        }
        error.response(&issued, &self.resource(target, headers))
    }

    /// Returns the client of the stateless requests of a caller.
    pub(crate) fn client(&self, caller: &Caller) -> Arc<ClientHandle> {
        self.clients.get(&self.gateway.service, caller)
    }

    /// Returns the memory that a request or session of a caller counts against.
    pub(crate) fn memory(&self, access: &AuthenticatedCaller) -> MemoryAccount {
        MemoryAccount { total: self.gateway.memory.clone(), caller: access.memory.clone() }
    }
}
