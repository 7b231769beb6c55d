//! The state that all connections share, and the state of one connection.

mod shared_state;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use hyper::{HeaderMap, Response};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::Caller;
use toolcrib::config::GatewayLimits;
use toolcrib::protocol::era::client::RequestMetaReader;
use toolcrib::util::tasks::SpawnBoxed as _;

use crate::admin_routes::{AdminRoutes, NoAdminRoutes};
use crate::body::ResponseBody;
use crate::callers::{ActiveCallers, AuthenticatedCaller, Entrypoint};
use crate::client_memory::{ClientMemory, MemoryAccount};
use crate::dashboard_sessions::{DashboardSessions, SessionAccess};
use crate::login::{ConnectionLogin, FailedLoginLog, FailedLogins, UnauthenticatedConnections};
use crate::origin_check::HostAllowList;
use crate::response;
use crate::service::{ClientHandle, McpService};
use crate::session::Sessions;
use crate::static_files::StaticFile;

/// An MCP service over HTTP, shared by all its connections. [`serve_connection`](crate::serve_connection) serves one of
/// them.
#[derive(Debug)]
pub struct HttpGateway {
    pub(crate) service: Arc<McpService>,
    pub(crate) callers: Arc<ActiveCallers>,
    pub(crate) admin: Arc<dyn AdminRoutes>,
    pub(crate) sessions: Arc<Sessions>,
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
    pub(crate) dashboard_files: &'static [StaticFile],
    pub(crate) dashboard_sessions: Arc<DashboardSessions>,
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
    pub fn new(service: McpService, callers: Arc<ActiveCallers>, limits: &GatewayLimits) -> Self {
        let service = Arc::new(service);
        let store = service.crib.store();
        let sessions = Arc::new(Sessions::new(limits.sessions).with_store(store));
        let tasks = TaskTracker::new();
        if store.is_shared() {
            shared_state::spawn_watchers(store, &service, &callers, &sessions, &tasks);
        }
        Self {
            service,
            callers,
            admin: Arc::new(NoAdminRoutes),
            sessions,
            allowed_hosts: HostAllowList::new(Vec::new()),
            max_body: limits.body,
            tasks,
            open_phases: AtomicUsize::new(0),
            memory: Arc::new(ClientMemory::new(limits.client_memory())),
            unauthenticated: None,
            failed_logins: FailedLoginLog::default(),
            dashboard_files: &[],
            dashboard_sessions: Arc::default(),
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

    /// Sets the names other than `localhost` by which the gateway is addressed. Requests for other hosts, or from web pages
    /// of other hosts, are refused.
    #[must_use]
    pub fn with_hosts(self, hosts: Vec<String>) -> Self {
        Self { allowed_hosts: HostAllowList::new(hosts), ..self }
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

/// State of one connection, shared by its requests.
pub(crate) struct ConnectionContext {
    pub(crate) gateway: Arc<HttpGateway>,
    pub(crate) entrypoint: Entrypoint,
    /// The client of stateless requests.
    pub(crate) client: ClientHandle,
    /// Reads the `_meta` of stateless requests.
    pub(crate) meta_reader: RequestMetaReader,
    /// Cancelled when the gateway stops or the connection is to be closed; ends streams that have no end of their own.
    pub(crate) stop: CancellationToken,
    /// The address of the client, if it is known.
    pub(crate) address: Option<IpAddr>,
    pub(crate) login: ConnectionLogin,
}

impl ConnectionContext {
    /// Returns the caller of a request, or `None` without a valid token.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> Option<Arc<AuthenticatedCaller>> {
        if self.login.is_refused() {
            return None;
        }
        let access = self.gateway.callers.authenticate(self.entrypoint, headers);
        let access = access.or_else(|| self.session(headers))?;
        self.login.succeed();
        Some(access)
    }

    /// Returns the access of the browser session that a request belongs to.
    pub(crate) fn session(&self, headers: &HeaderMap) -> Option<Arc<AuthenticatedCaller>> {
        let access = match self.gateway.dashboard_sessions.find(headers, Instant::now())? {
            SessionAccess::Local => self.gateway.callers.authenticate(Entrypoint::Socket, headers)?,
            SessionAccess::Caller(access) => access,
        };
        self.login.succeed();
        Some(access)
    }

    /// Returns whether an admin's request may approve something. The local caller may over the gateway's own socket and in a browser
    /// session: any program on this machine can reach the address, including servers that fetch URLs.
    pub(crate) fn can_approve(&self, caller: &Caller, is_logged_in: bool) -> bool {
        self.entrypoint == Entrypoint::Socket || is_logged_in || *caller != Caller::local()
    }

    /// Returns the response to a request without a valid token.
    pub(crate) fn refuse_login(&self) -> Response<ResponseBody> {
        if self.entrypoint == Entrypoint::OtherUser && self.gateway.callers.is_empty() {
            return response::other_user();
        }
        response::unauthenticated()
    }

    /// Returns the memory that a request or session of a caller counts against.
    pub(crate) fn memory(&self, access: &AuthenticatedCaller) -> MemoryAccount {
        MemoryAccount { total: self.gateway.memory.clone(), caller: access.memory.clone() }
    }
}
