//! `ServerLease`, which keeps a server running while an embedder holds it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Crib;
use crate::call::Call;
use crate::call::client_context::ClientContext;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::outcome::Outcome;
use crate::model::status::ServerStatus;
use crate::pipeline::router::CallRouter;
use crate::protocol::era::capabilities::Client;
use crate::registry::LeaseOrigin;
use crate::spec::ServerId;
use crate::supervisor::Lease;
use crate::upstream::Connection;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// The pause before a server that could not be started again is tried again for a lease.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The caller and client that a lease is for. They matter for access rules, and for servers that are not shared: the lease
/// is on the instance that a call of this caller and client would use.
///
/// The default is the local caller with a client that has no capabilities.
#[derive(Debug, Clone, Default)]
pub struct LeaseOptions {
    caller: Option<Caller>,
    client: Option<Client>,
    client_context: Option<Arc<ClientContext>>,
}

impl LeaseOptions {
    /// Creates options for the local caller.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the caller. It selects the instance of a server with [`Sharing::PerCaller`](crate::Sharing::PerCaller).
    #[must_use]
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Sets the client. Its number selects the instance of a server with
    /// [`Sharing::PerClient`](crate::Sharing::PerClient).
    #[must_use]
    pub fn client(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Sets the state of the client that outlives its calls. Its project selects the instance of a server with
    /// [`Sharing::PerProject`](crate::Sharing::PerProject).
    #[must_use]
    pub fn client_context(mut self, context: Arc<ClientContext>) -> Self {
        self.client_context = Some(context);
        self
    }

    /// Creates a call of a tool by the caller and client. The setters of `Call` would move it each time.
    fn new_call(&self, server: &ServerId, tool: impl Into<String>) -> Call {
        let mut call = Call::tool_on(server.clone(), tool);
        if let Some(caller) = &self.caller {
            call.caller = caller.clone();
        }
        if let Some(client) = &self.client {
            call.client = client.clone();
        }
        call.client_context.clone_from(&self.client_context);
        call
    }
}

/// A lease on a server: it keeps the server running until it is dropped. The time to keep running while idle counts from
/// the drop. A lease also keeps the crib alive.
///
/// | event while leased | effect |
/// |---|---|
/// | the server crashes or hangs | Calls in flight fail. The server is started again, within its restart budget. If it is ejected or cannot be started, it is tried again every 5 s, and calls get the reason. |
/// | the circuit breaker opens | Calls are refused until the cool-off has passed. The lease stays. |
/// | [`Crib::stop`] | The server stops, and the lease alone does not start it again. The next call does, and is held from then on. |
/// | [`Crib::restart`] | Calls in flight fail. The new process is leased. |
/// | a change that its process can serve | Nothing: the process stays. |
/// | another change, or its instance is replaced | The replacement is started and leased. The old process finishes its calls. |
/// | the server is removed or disabled | Its process finishes its calls and ends. Calls fail with [`ErrorKind::Unknown`]. |
/// | [`Crib::shutdown`] | The server stops. Calls fail with [`ErrorKind::ShuttingDown`]. |
///
/// ```
/// # use toolcrib::{Crib, ServerSpec, Toolbox};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let schema = serde_json::json!({"type": "object"});
/// # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
/// # let crib = Crib::builder().server(ServerSpec::in_process("house".parse()?, tools)).build()?;
/// let lease = crib.lease(&"house".parse()?).await?;
/// for _ in 0..3 {
///     assert_eq!(lease.call_tool("greet", &serde_json::json!({})).await?.text(), "hello");
/// }
/// assert_eq!(lease.status().map(|status| status.leases), Some(1));
/// drop(lease);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the server is released when the lease is dropped"]
pub struct ServerLease {
    crib: Crib,
    options: LeaseOptions,
    held: Arc<HeldLease>,
    /// Ends the task that keeps the lease.
    _cancel: DropGuard,
}

impl Drop for ServerLease {
    fn drop(&mut self) {
        self.held.release();
    }
}

/// A lease on a running instance; empty while the server is down.
#[derive(Debug)]
struct HeldLease {
    server: ServerId,
    lease: Mutex<Option<Lease>>,
}

impl HeldLease {
    fn hold(&self, lease: Lease) {
        *self.lease.lock().ignore_poison() = Some(lease);
    }

    fn release(&self) {
        let released = self.lease.lock().ignore_poison().take();
        drop(released);
    }
}

impl ServerLease {
    /// Returns the name of the server.
    pub fn server(&self) -> &ServerId {
        &self.held.server
    }

    /// Returns the status of the server; `None` if it was removed.
    pub fn status(&self) -> Option<ServerStatus> {
        self.crib.server_status(self.server())
    }

    /// Creates a call of a tool of this server, by the server's own name for it, with the caller and client of the lease.
    pub fn new_call(&self, tool: impl Into<String>) -> Call {
        self.options.new_call(self.server(), tool)
    }

    /// Runs a call as [`Crib::call`] does, with the same access rules, limits, cache and observers. The call keeps its own
    /// caller and client.
    ///
    /// # Errors
    /// As [`Crib::call`].
    ///
    /// # Cancel safety
    /// As [`Crib::call`].
    pub async fn call(&self, call: Call) -> Result<Outcome, Error> {
        self.crib.call(call).await
    }

    /// Calls a tool of this server, by the server's own name for it, as the caller and client of the lease.
    ///
    /// # Errors
    /// As [`Crib::call`].
    ///
    /// # Cancel safety
    /// As [`Crib::call`].
    pub async fn call_tool(&self, tool: impl Into<String>, arguments: &Value) -> Result<Outcome, Error> {
        self.call(self.new_call(tool).arguments(arguments)).await
    }
}

impl Crib {
    /// Starts a server if it does not run, and keeps it running until the lease is dropped. Concurrent requests share one
    /// start. The lease is for the local caller; see [`Crib::lease_for`].
    ///
    /// # Errors
    /// Fails if the server is unknown, disabled, denied to the caller or cannot be started, or if its circuit breaker is
    /// open.
    ///
    /// # Cancel safety
    /// Cancel safe. A start in progress continues.
    pub async fn lease(&self, server: &ServerId) -> Result<ServerLease, Error> {
        self.lease_for(server, LeaseOptions::default()).await
    }

    /// Like [`Crib::lease`], for any caller and client.
    ///
    /// # Errors
    /// As [`Crib::lease`].
    ///
    /// # Cancel safety
    /// As [`Crib::lease`].
    pub async fn lease_for(&self, server: &ServerId, options: LeaseOptions) -> Result<ServerLease, Error> {
        let request = options.new_call(server, "");
        let first = self.lease_once(server, &request).await?;
        let held = Arc::new(HeldLease { server: server.clone(), lease: Mutex::default() });
        let cancel = CancellationToken::new();
        let keeper = LeaseKeeper {
            router: Arc::downgrade(&self.inner.router),
            held: held.clone(),
            request,
            cancel: cancel.clone(),
            abort: self.router().services.abort_drain.clone(),
        };
        let LeaseWithOrigin { lease, origin } = first;
        let first = keeper.hold(lease, origin);
        self.router().services.tasks.spawn_boxed(keeper.run(first));
        Ok(ServerLease { crib: self.clone(), options, held, _cancel: cancel.drop_guard() })
    }

    /// Starts a server if it does not run, and waits until it is up. It is a lease that is dropped immediately: the server
    /// stays up for its time to keep running while idle.
    ///
    /// # Errors
    /// As [`Crib::lease`].
    ///
    /// # Cancel safety
    /// As [`Crib::lease`].
    pub async fn ensure(&self, server: &ServerId) -> Result<(), Error> {
        let request = Call::tool_on(server.clone(), "");
        self.lease_once(server, &request).await.map(drop)
    }

    async fn lease_once(&self, server: &ServerId, request: &Call) -> Result<LeaseWithOrigin, Error> {
        self.check_open()?;
        if !self.can_see(&request.caller, server) {
            return Err(self.router().hidden_server_error(&request.caller, server));
        }
        self.registered(server)?;
        let leased = self.router().registry.lease_with_origin(server, request).await;
        let (lease, origin) = leased.map_err(|error| self.router().hide_stderr(error, &request.caller))?;
        Ok(LeaseWithOrigin { lease, origin })
    }
}

/// A lease and the instance that it is on.
struct LeaseWithOrigin {
    lease: Lease,
    origin: LeaseOrigin,
}

/// The process that a lease is on.
struct HeldProcess {
    origin: LeaseOrigin,
    connection: Arc<Connection>,
}

/// The task that leases the server again when its process was replaced.
struct LeaseKeeper {
    router: Weak<CallRouter>,
    held: Arc<HeldLease>,
    /// The caller and client that the lease is for.
    request: Call,
    /// Cancelled when the lease is dropped.
    cancel: CancellationToken,
    /// Cancelled when the crib is shut down.
    abort: CancellationToken,
}

impl LeaseKeeper {
    async fn run(self, first: Option<HeldProcess>) {
        tokio::select! {
            () = self.cancel.cancelled() => {}
            () = self.abort.cancelled() => {}
            () = self.keep(first) => {}
        }
        self.held.release();
    }

    async fn keep(&self, first: Option<HeldProcess>) {
        let mut current = first;
        loop {
            match current {
                Some(process) => self.wait_until_needed(process).await,
                None => sleep(RETRY_DELAY).await,
            }
            let Some(router) = self.router.upgrade() else { return };
            let leased = router.registry.lease_with_origin(&self.held.server, &self.request).await;
            drop(router);
            current = match leased {
                Ok((lease, origin)) => self.hold(lease, origin),
                Err(error) if error.kind() == ErrorKind::Unknown => return,
                Err(_) => None,
            };
        }
    }

    /// Holds a lease. Returns `None` if it is the one call that tests a tripped server, which a lease must not occupy.
    fn hold(&self, lease: Lease, origin: LeaseOrigin) -> Option<HeldProcess> {
        if lease.is_probe() {
            return None;
        }
        let connection = lease.connection().clone();
        self.held.hold(lease);
        // A lease that was dropped meanwhile must not hold the server.
        if self.cancel.is_cancelled() {
            self.held.release();
        }
        Some(HeldProcess { origin, connection })
    }

    /// Waits until the held process is gone or about to stop, releases it, and waits until the server is to be leased
    /// again: immediately after a crash or a replacement, and after a stop when something else has started the server.
    async fn wait_until_needed(&self, process: HeldProcess) {
        let HeldProcess { origin, connection } = process;
        tokio::select! {
            () = connection.closed() => {}
            () = origin.supervisor.wait_until_stopping() => {}
        }
        self.held.release();
        let has_crashed = connection.is_closed() && !connection.was_stopped();
        drop(connection);
        let router = self.router.upgrade();
        let is_replaced =
            router.is_none_or(|router| router.registry.is_origin_replaced(&self.held.server, &origin));
        if !has_crashed && !is_replaced {
            origin.wait_until_up().await;
        }
    }
}
