//! The state that all connections share, and the state of one connection.

mod shared_state;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::HostLimits;
use toolcrib::protocol::era::client::RequestMetaReader;

use crate::admin_routes::{AdminRoutes, NoAdminRoutes};
use crate::callers::{ActiveCallers, Entrypoint};
use crate::origin_check::HostAllowList;
use crate::service::{ClientHandle, McpService};
use crate::session::Sessions;

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
}

impl HttpGateway {
    /// Creates a gateway without an admin API, which is addressed as `localhost`. Of the limits, those of request bodies and
    /// sessions apply.
    ///
    /// If the crib has a store that other gateways use, they can continue its sessions, and a caller that one of them revokes
    /// loses access to all.
    ///
    /// # Panics
    /// Panics if the crib has such a store and there is no tokio runtime.
    pub fn new(service: McpService, callers: Arc<ActiveCallers>, limits: &HostLimits) -> Self {
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
        }
    }

    /// Sets the admin API.
    #[must_use]
    pub fn with_admin(self, admin: Arc<dyn AdminRoutes>) -> Self {
        Self { admin, ..self }
    }

    /// Sets the names other than `localhost` by which the gateway is addressed. Requests for other hosts, or from web pages
    /// of other hosts, are refused.
    #[must_use]
    pub fn with_hosts(self, hosts: Vec<String>) -> Self {
        Self { allowed_hosts: HostAllowList::new(hosts), ..self }
    }

    /// Waits until all calls and streams that outlived their connections have ended. Call it after the connections were
    /// told to stop.
    ///
    /// # Cancel safety
    /// Cancel safe. Dropping the future only skips waiting.
    pub async fn finish(&self) {
        self.sessions.close();
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
    /// Cancelled when the gateway stops; ends streams that have no end of their own.
    pub(crate) stop: CancellationToken,
}
