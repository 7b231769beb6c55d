//! `CallRouter`, which finds the target of a call and checks whether the caller may use it.

mod first_failure;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{timeout, timeout_at};
use tracing::warn;

use crate::access::approvals::Approvals;
use crate::access::argument_schemas::ArgumentSchemas;
use crate::access::policy::Policy;
use crate::access::visible_catalogs::{self, VisibleCatalog, VisibleCatalogs};
use crate::call::Call;
use crate::call::executor::{ToolCall, ToolExecutor};
use crate::catalog::Catalog;
use crate::limits::limiter::Limiter;
use crate::model::caller::Caller;
use crate::model::denial::Denial;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::Decision;
use crate::model::hint::Hint;
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::pipeline::discovery::{Discoverer, DiscoveryState};
use crate::pipeline::task_owners::TaskOwners;
use crate::protocol::list_kind::ListKinds;
use crate::protocol::versions::Era;
use crate::registry::{RegisteredServer, Registry, RosterChanges};
use crate::spec::{ServerId, ServerSpec};
use crate::supervisor::SupervisorServices;
use crate::util::panics;
use crate::util::tasks::SpawnBoxed as _;

/// The time that a supervisor has to report that a start took too long.
const REPORT_GRACE: Duration = Duration::from_secs(1);
/// The time until a listing is in the catalog. It covers a server that is replaced at this moment.
const CATALOG_WAIT: Duration = Duration::from_secs(10);

/// The servers, catalog, access rules and limits of one crib.
pub(crate) struct CallRouter {
    pub(crate) registry: Arc<Registry>,
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    pub(crate) services: SupervisorServices,
    pub(crate) visible_catalogs: Arc<VisibleCatalogs>,
    pub(crate) limiter: Limiter,
    /// The callers and tools that created the running tasks.
    pub(crate) task_owners: TaskOwners,
    /// Decisions of people about calls.
    pub(crate) approvals: Approvals,
    argument_schemas: ArgumentSchemas,
    pub(crate) discoverer: Discoverer,
    /// Runs tools that no server offers.
    fallback: Option<Arc<dyn ToolExecutor>>,
    /// Asks clients for logins.
    #[cfg(feature = "http")]
    pub(crate) in_band_logins: Option<super::in_band_login::InBandLogins>,
}

/// The checks that a call must pass before it is sent.
pub(crate) struct CallChecks {
    pub(crate) visible_catalogs: Arc<VisibleCatalogs>,
    pub(crate) limiter: Limiter,
    pub(crate) approvals: Approvals,
}

impl CallRouter {
    pub(crate) fn new(
        registry: Arc<Registry>,
        catalog: watch::Receiver<Arc<Catalog>>,
        services: SupervisorServices,
        checks: CallChecks,
        discoverer: Discoverer,
        fallback: Option<Arc<dyn ToolExecutor>>,
    ) -> Self {
        Self {
            registry,
            catalog,
            services,
            visible_catalogs: checks.visible_catalogs,
            limiter: checks.limiter,
            task_owners: TaskOwners::default(),
            approvals: checks.approvals,
            argument_schemas: ArgumentSchemas::default(),
            #[cfg(feature = "http")]
            in_band_logins: None,
            discoverer,
            fallback,
        }
    }

    /// Returns everything that the servers are known to offer. Starts nothing.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.borrow().clone()
    }

    /// Returns the part of the catalog that is listed to a caller.
    pub(crate) fn listed_catalog(&self, caller: &Caller) -> Arc<Catalog> {
        self.visible_catalog(caller).listed
    }

    /// Returns the part of the catalog that a caller may call.
    pub(crate) fn callable_catalog(&self, caller: &Caller) -> Arc<Catalog> {
        self.visible_catalog(caller).callable
    }

    fn visible_catalog(&self, caller: &Caller) -> VisibleCatalog {
        self.visible_catalogs.for_caller(self.catalog(), caller)
    }

    /// Finds the target of a selector among what the rules allow, if the embedder's guard does not deny it now. The guard
    /// is asked about the other items only if several servers have the name.
    fn find_allowed(
        &self,
        by_rules: &Catalog,
        caller: &Caller,
        selector: &Selector,
    ) -> Result<Target, Error> {
        let found = by_rules.find_listed(selector);
        let policy = self.visible_catalogs.policy().filter(|policy| policy.has_guard());
        match (policy, found) {
            (Some(_), Err(_)) => self.callable_catalog(caller).find(selector),
            (None, Err(_)) => by_rules.find(selector),
            (Some(policy), Ok(target))
                if !matches!(selector, Selector::OnServer(..))
                    && !policy.guard_allows(caller, &target.server, &target.name) =>
            {
                // The error of a catalog without the target.
                Catalog::default().find_listed(selector)
            }
            (_, found) => found,
        }
    }

    /// Finds the target of a selector, and the catalog in which it was found. If the name points at a server without a known
    /// listing, that server is listed first. For a bare name or an unknown URI, every such server is, so that the answer does
    /// not depend on which servers were seen before. Servers that are started for that follow the era of the client.
    pub(crate) async fn find_target(
        &self,
        caller: &Caller,
        selector: &Selector,
        era: Era,
    ) -> Result<(Target, VisibleCatalog), Error> {
        let visible = self.visible_catalogs.for_caller_by_rules(self.catalog(), caller);
        let found = match selector {
            Selector::OnServer(server, name) if !visible.callable.has_server(server) => {
                match self.registry.get(server) {
                    Some(Err(disabled)) if self.visible_catalogs.can_see(caller, server) => Err(disabled),
                    _ if self.registry.is_adhoc(server) => Ok(Target::new(server, name)),
                    _ => self.find_allowed(&visible.callable, caller, selector),
                }
            }
            _ if visible.callable.is_certain(selector) => {
                self.find_allowed(&visible.callable, caller, selector)
            }
            _ => Box::pin(self.find_after_discovery(&visible.callable, caller, selector, era)).await,
        };
        found.map(|target| (target, visible)).map_err(|error| match error.kind() {
            // The catalog loses all servers when they are stopped.
            ErrorKind::Unknown if self.registry.is_closed() => shutting_down_error(),
            _ => error,
        })
    }

    /// Returns what a caller may use if own instances of the client list something else than their servers do: a server may
    /// list more for a client with extensions.
    pub(crate) fn own_catalog(&self, call: &Call) -> Option<VisibleCatalog> {
        if !call.has_client_extensions() {
            return None;
        }
        let listings = self.registry.listings_for_client(call)?;
        let full = Arc::new(Catalog::build(self.catalog().revision(), &listings));
        Some(self.visible_catalogs.for_caller_uncached(full, &call.caller))
    }

    /// Finds the target of a call among what own instances of its client list.
    pub(crate) fn find_in_own_catalog(&self, call: &Call) -> Option<(Target, VisibleCatalog)> {
        let visible = self.own_catalog(call)?;
        let target = visible.callable.find_listed(&call.selector).ok()?;
        Some((target, visible))
    }

    async fn find_after_discovery(
        &self,
        catalog: &Catalog,
        caller: &Caller,
        selector: &Selector,
        era: Era,
    ) -> Result<Target, Error> {
        // The guard is asked before a server is started.
        let can_see = |server: &ServerId| self.visible_catalogs.can_see(caller, server);
        if let Some(server) = catalog.undiscovered_by_prefix(selector.name()).filter(|server| can_see(server))
        {
            let discovered = self.discover_server(server, caller, era).await;
            return self.callable_catalog(caller).find(selector).map_err(|error| match discovered {
                Err(failure) => failure,
                Ok(()) => error,
            });
        }
        let mut servers = self.undiscovered_servers(catalog);
        servers.retain(|entry| can_see(&entry.spec().id));
        self.discover_within_start_timeout(caller, era, &servers).await;
        self.find_among_known(caller, selector, &servers)
    }

    /// Finds a bare name or URI after `servers` were discovered. Those that could not be started count as not having it;
    /// with those that are still starting, only an ambiguity is certain.
    fn find_among_known(
        &self,
        caller: &Caller,
        selector: &Selector,
        servers: &[RegisteredServer],
    ) -> Result<Target, Error> {
        let catalog = self.callable_catalog(caller);
        let mut unknown = Vec::new();
        for entry in servers.iter().filter(|entry| catalog.is_undiscovered(&entry.spec().id)) {
            let server = &entry.spec().id;
            match self.discoverer.state(entry) {
                DiscoveryState::Pending => unknown.push(server.clone()),
                DiscoveryState::Restarting(error) | DiscoveryState::Failed(error) => {
                    warn!(name = selector.name(), %server, %error, "not searched, because it could not be started");
                }
            }
        }
        let found = catalog.find(selector);
        let is_ambiguous = found.is_err() && catalog.has_match(selector);
        match unknown.is_empty() || is_ambiguous {
            true => found,
            false => Err(not_known_error(selector.name(), &unknown)),
        }
    }

    /// Checks whether a call may be sent to its target. Waits for approval if a rule requires it.
    pub(crate) async fn authorize(
        &self,
        call: &Call,
        target: &Target,
        visible: Option<&VisibleCatalog>,
    ) -> Result<Decision, Error> {
        match self.visible_catalogs.policy_for(&call.caller)? {
            None => Ok(Decision::Allowed),
            Some(policy)
                if visible.is_some_and(|visible| visible.is_preauthorized(&policy, call, target)) =>
            {
                Ok(Decision::Allowed)
            }
            Some(policy) => Box::pin(self.check_policy(&policy, call, target)).await,
        }
    }

    async fn check_policy(&self, policy: &Policy, call: &Call, target: &Target) -> Result<Decision, Error> {
        let by_rules = || self.visible_catalogs.for_caller_by_rules(self.catalog(), &call.caller).callable;
        let mut visible = by_rules();
        if self.registry.is_adhoc(&target.server)
            && policy.can_see(&call.caller, &target.server)
            && !policy.is_unrestricted(&call.caller, &target.server)
        {
            self.discover_server(&target.server, &call.caller, call.client.era).await?;
            visible = self.adhoc_catalog(policy, &call.caller, &target.server);
        }
        if policy.can_see(&call.caller, &target.server)
            && !policy.is_unrestricted(&call.caller, &target.server)
            && visible.is_undiscovered(&target.server)
        {
            // The rules need the server's listing.
            self.discover_server(&target.server, &call.caller, call.client.era).await?;
            visible = by_rules();
        }
        let find_tool =
            |task: &Arc<str>| self.task_owners.find(&target.server, task).map(|origin| origin.tool);
        let unknown_server = || self.hidden_server_error(&call.caller, &target.server);
        visible_catalogs::authorize(policy, &visible, call, target, find_tool, unknown_server)?;
        match visible_catalogs::required_approval(policy, call, target) {
            None => Ok(Decision::Allowed),
            Some(finding) => {
                self.approvals.require(call, target, &finding).await.map(|()| Decision::Approved)
            }
        }
    }

    /// Returns whether the caller of a subscription may be told about another URI of the server.
    pub(crate) fn can_subscribe(&self, call: &Call, server: &ServerId, uri: &Arc<str>) -> bool {
        let Ok(policy) = self.visible_catalogs.policy_for(&call.caller) else { return false };
        let Some(policy) = policy else { return true };
        let visible = self.visible_catalogs.for_caller_by_rules(self.catalog(), &call.caller).callable;
        let target = Target { server: server.clone(), name: uri.clone() };
        let unknown_server = || self.hidden_server_error(&call.caller, server);
        visible_catalogs::authorize(&policy, &visible, call, &target, |_| None, unknown_server).is_ok()
    }

    /// Returns the catalog of a server that is not in the roster, as far as a caller may use it.
    fn adhoc_catalog(&self, policy: &Policy, caller: &Caller, server: &ServerId) -> Arc<Catalog> {
        let listing = self.registry.find(server).and_then(|entry| entry.listing());
        let full = Catalog::build(0, &BTreeMap::from([(server.clone(), listing)]));
        Arc::new(full.filtered(
            |server| policy.can_see(caller, server),
            |server, name| policy.authorize(caller, server, Some(name)).is_ok(),
        ))
    }

    /// Checks the arguments of a tool call against the tool's schema, if such checks are enabled.
    pub(crate) fn check_arguments(&self, call: &Call, target: &Target) -> Result<(), Error> {
        if !self.registry.checks_arguments() || call.method() != "tools/call" {
            return Ok(());
        }
        let server = self.registry.get(&target.server).and_then(Result::ok);
        let server = server.filter(|server| server.spec().tools.check_arguments);
        match server.and_then(|server| server.listing()) {
            Some(listing) => self.argument_schemas.check(&listing, call, target),
            None => Ok(()),
        }
    }

    /// Returns the error for a target that exists but is denied to the caller.
    pub(crate) fn denial_error(&self, call: &Call) -> Option<Error> {
        let policy = match self.visible_catalogs.policy_for(&call.caller) {
            Ok(policy) => policy?,
            Err(revoked) => return Some(revoked),
        };
        let catalog = self.catalog();
        let candidates = catalog.candidates(&call.selector);
        let Some(first) = candidates.first() else {
            let server = catalog.undiscovered_by_prefix(call.name())?;
            let denial = policy.authorize(&call.caller, server, None).err()?;
            let target = Target { server: server.clone(), name: call.name().into() };
            record_denial(call, target, &denial);
            return denies_openly(&policy, &call.caller, server)
                .then(|| denial.into_server_error(&call.caller, server));
        };
        // A bare name may belong to several servers. If one of them is known to the caller, its rule is named.
        let shown = candidates.iter().find(|target| denies_openly(&policy, &call.caller, &target.server));
        let target = shown.unwrap_or(first);
        let denial = policy.authorize(&call.caller, &target.server, Some(&target.name)).err()?;
        record_denial(call, target.clone(), &denial);
        shown.map(|target| denial.into_error(&call.caller, &target.server, &target.name))
    }

    /// Returns the error for a server that a caller cannot see.
    pub(crate) fn hidden_server_error(&self, caller: &Caller, server: &ServerId) -> Error {
        let unknown = || self.listed_catalog(caller).unknown_server_error(server.as_str());
        let is_declared = self.registry.get(server).is_some();
        match self.visible_catalogs.policy_for(caller) {
            Err(revoked) => revoked,
            Ok(Some(policy)) if *caller == Caller::local() && is_declared => {
                let denial = policy.authorize(caller, server, None).err();
                denial.map_or_else(unknown, |denial| denial.into_server_error(caller, server))
            }
            Ok(_) => unknown(),
        }
    }

    /// Returns the error for a tool that exists but is not approved yet.
    fn withheld_error(&self, call: &Call) -> Option<Error> {
        let Selector::Tool(name) = &call.selector else { return None };
        let policy = match self.visible_catalogs.policy_for(&call.caller) {
            Ok(policy) => policy,
            Err(revoked) => return Some(revoked),
        };
        self.registry.withheld_error(name, |server, own| {
            policy.as_ref().is_none_or(|policy| policy.authorize(&call.caller, server, Some(own)).is_ok())
        })
    }

    /// Passes the call to the fallback or to the server that its unknown name refers to, or returns the error with a
    /// suggestion.
    pub(crate) async fn run_fallback(&self, mut call: Call, error: Error) -> Result<Outcome, Error> {
        if let Some(denied) = self.denial_error(&call).or_else(|| self.withheld_error(&call)) {
            return Err(denied);
        }
        let catalog = self.callable_catalog(&call.caller);
        // A typing error is better explained here. An unknown name must not count towards limits, and is recorded as unknown
        // where callers are told apart.
        let is_forwarded = call.forwards_unknown
            && call.caller == Caller::local()
            && error.kind() == ErrorKind::Unknown
            && self.fallback.is_none()
            && !self.limiter.has_limits()
            && !catalog.has_suggestion(&call.selector);
        if is_forwarded && let Some(Target { server, name }) = catalog.guess_target(&call.selector) {
            call.selector = Selector::OnServer(server, name.to_string());
            return Box::pin(super::run(self, &mut call)).await;
        }
        match &self.fallback {
            Some(fallback)
                if matches!(call.selector, Selector::Tool(_))
                    && error.kind() == ErrorKind::Unknown
                    && !catalog.has_match(&call.selector) =>
            {
                run_contained(&**fallback, ToolCall::from(&call)).await
            }
            _ => Err(catalog.add_suggestion(error, &call.selector)),
        }
    }

    /// Returns the servers of a catalog that were never listed.
    fn undiscovered_servers(&self, catalog: &Catalog) -> Vec<RegisteredServer> {
        catalog.undiscovered().filter_map(|server| self.registry.get(server)?.ok()).collect()
    }

    /// Returns what is listed to a caller, with current lists of these kinds. Servers that were never listed are discovered
    /// in the background; the list waits for them, and for running servers with outdated lists, only briefly.
    pub(crate) async fn list(&self, caller: &Caller, kinds: ListKinds, era: Era) -> Arc<Catalog> {
        let catalog = self.callable_catalog(caller);
        let mut servers = self.undiscovered_servers(&catalog);
        servers.extend(self.servers_without_tools(&catalog));
        let entries: Vec<RegisteredServer> =
            catalog.servers().filter_map(|server| self.registry.get(server)?.ok()).collect();
        tokio::join!(
            async {
                if !servers.is_empty() {
                    self.discover_briefly(caller, era, &servers).await;
                }
            },
            self.refresh(caller, &entries, kinds),
        );
        self.listed_catalog(caller)
    }

    /// Asks for the listings of servers that a caller may see, and waits for those that were not asked for before.
    pub(crate) async fn discover_briefly(&self, caller: &Caller, era: Era, servers: &[RegisteredServer]) {
        self.discoverer.request(caller, era, servers);
        if let Some(deadline) = self.discoverer.listing_deadline(servers) {
            // The rest is announced when it arrives.
            if timeout_at(deadline, self.wait_for_first_starts(servers)).await.is_err() {
                let listed = self.services.listing_changes.wait_until_applied();
                let _ = timeout(CATALOG_WAIT, listed).await;
            }
        }
    }

    /// Asks for the listings of servers, and waits until each has been listed or its first start has failed.
    pub(crate) async fn discover(&self, caller: &Caller, era: Era, servers: &[RegisteredServer]) {
        self.discoverer.request(caller, era, servers);
        self.wait_for_first_starts(servers).await;
    }

    async fn wait_for_first_starts(&self, servers: &[RegisteredServer]) {
        let is_pending = |state: &DiscoveryState| matches!(state, DiscoveryState::Pending);
        self.discoverer.wait_while(servers, self.catalog.clone(), is_pending).await;
    }

    /// Asks for the listings of servers, and waits until each has been listed or cannot be started, as long as the slowest
    /// of them may take to start.
    async fn discover_within_start_timeout(&self, caller: &Caller, era: Era, servers: &[RegisteredServer]) {
        let limits = servers.iter().map(|entry| entry.spec().lifecycle.start_timeout);
        let Some(limit) = limits.max() else { return };
        self.discoverer.request(caller, era, servers);
        let may_come_up =
            |state: &DiscoveryState| matches!(state, DiscoveryState::Pending | DiscoveryState::Restarting(_));
        let settled = self.discoverer.wait_while(servers, self.catalog.clone(), may_come_up);
        // The lookup that follows reports servers that are still starting.
        let _ = timeout(limit + REPORT_GRACE, settled).await;
    }

    /// Returns the error of a server that is not in the catalog of a caller, and whether it may still be listed.
    pub(crate) fn discovery_error(&self, entry: &RegisteredServer, caller: &Caller) -> (Error, bool) {
        match self.discoverer.state(entry) {
            DiscoveryState::Restarting(error) | DiscoveryState::Failed(error) => {
                (with_login_of(error, entry.spec(), caller), false)
            }
            DiscoveryState::Pending => (still_starting_error(&entry.spec().id), true),
        }
    }

    /// Lists one server that was never listed, or its replacement if the roster changes in the meantime. Waits as long as
    /// its start may take.
    pub(crate) async fn discover_server(
        &self,
        server: &ServerId,
        caller: &Caller,
        era: Era,
    ) -> Result<(), Error> {
        loop {
            let Some(Ok(entry)) = self.registry.get(server) else { return Ok(()) };
            if entry.listing().is_none() {
                match self.start_and_list(&entry, caller, era).await {
                    Ok(()) => {}
                    Err(failure)
                        if failure.kind() == ErrorKind::ShuttingDown && self.registry.is_replaced(&entry) =>
                    {
                        continue;
                    }
                    Err(failure) => return Err(failure),
                }
            }
            self.wait_until_listed(server).await;
            if !self.registry.is_replaced(&entry) || !self.catalog().is_undiscovered(server) {
                return Ok(());
            }
        }
    }

    /// Starts a server in a task of its own, which continues if the caller does not wait.
    async fn start_and_list(&self, entry: &RegisteredServer, caller: &Caller, era: Era) -> Result<(), Error> {
        let server = entry.clone();
        let caller = caller.clone();
        let start = self.services.tasks.spawn_boxed(async move { server.discover(&caller, era).await });
        let limit = entry.spec().lifecycle.start_timeout + REPORT_GRACE;
        match timeout(limit, start).await {
            Ok(Ok(listed)) => listed,
            Ok(Err(panic)) => Err(Error::new(ErrorKind::CouldNotStart, panic.to_string())),
            Err(_) => Err(still_starting_error(&entry.spec().id)),
        }
    }

    /// Waits until a started server is in the catalog.
    async fn wait_until_listed(&self, server: &ServerId) {
        self.services.listing_changes.apply_now();
        let mut catalog = self.catalog.clone();
        let listed = catalog.wait_for(|catalog| !catalog.is_undiscovered(server));
        let _ = timeout(CATALOG_WAIT, listed).await;
    }

    /// Waits until the catalog reflects a new roster.
    pub(crate) async fn wait_until_applied(&self, changes: &RosterChanges) {
        let mut catalog = self.catalog.clone();
        let is_current = |catalog: &Arc<Catalog>| {
            let enabled = self.registry.enabled();
            let all_added = enabled.iter().all(|entry| catalog.has_server(&entry.spec().id));
            let is_removed =
                |server: &ServerId| !catalog.has_server(server) || self.registry.get(server).is_some();
            let is_updated = |server: &ServerId| self.registry.is_listed_in(server, catalog);
            all_added && changes.removed.iter().all(is_removed) && changes.changed.iter().all(is_updated)
        };
        // An error means that the crib is being dropped.
        let _ = catalog.wait_for(is_current).await;
    }
}

/// Returns the error of a server for which another caller may have asked, with the next step of this caller.
fn with_login_of(error: Error, spec: &ServerSpec, caller: &Caller) -> Error {
    let names_login = matches!(error.own_hint(), Some(Hint::Login { .. } | Hint::LoginAs { .. }));
    match names_login && spec.has_login_per_caller() {
        true => error.with_hint(Hint::login_for(&spec.id, caller)),
        false => error,
    }
}

/// Returns whether a caller may know that a server exists which it may not use. The local user wrote the rules.
fn denies_openly(policy: &Policy, caller: &Caller, server: &ServerId) -> bool {
    *caller == Caller::local() || policy.can_see(caller, server)
}

fn record_denial(call: &Call, target: Target, denial: &Denial) {
    call.trace.record(|facts| {
        facts.target = Some(target);
        facts.denial = Some(denial.clone());
    });
}

/// Runs the fallback; its panic is an error of the call.
async fn run_contained(fallback: &dyn ToolExecutor, call: ToolCall) -> Result<Outcome, Error> {
    let outcome = match panics::contain("fallback", || fallback.execute(call)) {
        Some(running) => panics::contain_future("fallback", running).await,
        None => None,
    };
    outcome.unwrap_or_else(|| Err(Error::new(ErrorKind::BadReply, "the fallback panicked")))
}

/// Returns the error for a target that can no longer be found, because all servers are gone.
fn shutting_down_error() -> Error {
    Error::new(ErrorKind::ShuttingDown, "toolcrib is shutting down").mark_not_sent()
}

/// Returns the error for a bare name that servers may have which were never listed.
fn not_known_error(name: &str, servers: &[ServerId]) -> Error {
    let names: Vec<String> = servers.iter().map(|server| format!("`{server}`")).collect();
    let message = format!("cannot tell which server has `{name}`: not known yet: {}", names.join(", "));
    let hint = "try again in a moment, or use the public name, such as `SERVER__TOOL`";
    let error = Error::new(ErrorKind::CouldNotStart, message).with_hint(hint);
    match servers {
        [only] => error.with_server(only),
        _ => error,
    }
}

fn still_starting_error(server: &ServerId) -> Error {
    let message = format!("server `{server}` is still starting");
    Error::new(ErrorKind::CouldNotStart, message).with_server(server).with_hint("try again in a moment")
}
