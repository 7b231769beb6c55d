//! `CallRouter`, which finds the target of a call and checks whether the caller may use it.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::access::approvals::Approvals;
use crate::access::argument_schemas::ArgumentSchemas;
use crate::access::policy::Policy;
use crate::access::visible_catalogs::{self, VisibleCatalog, VisibleCatalogs};
use crate::call::Call;
use crate::catalog::Catalog;
use crate::limits::limiter::Limiter;
use crate::model::caller::Caller;
use crate::model::denial::Denial;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::Decision;
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::pipeline::task_owners::TaskOwners;
use crate::registry::{RegisteredServer, Registry, RosterChanges};
use crate::spec::ServerId;
use crate::supervisor::SupervisorServices;
use crate::util::panics;

/// The number of servers that are started in parallel to be listed.
const MAX_PARALLEL_STARTS: usize = 8;
/// The time that a list waits for servers without a known listing.
pub(crate) const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Handles calls of names that no server offers.
pub(crate) type Fallback =
    Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>> + Send + Sync>;

/// The servers, catalog, access rules and limits of one crib.
pub(crate) struct CallRouter {
    pub(crate) registry: Registry,
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    pub(crate) services: SupervisorServices,
    pub(crate) visible_catalogs: VisibleCatalogs,
    pub(crate) limiter: Limiter,
    /// The tools that created the running tasks.
    pub(crate) task_owners: TaskOwners,
    /// Decisions of people about calls.
    pub(crate) approvals: Approvals,
    argument_schemas: ArgumentSchemas,
    start_permits: Arc<Semaphore>,
    discovery_timeout: Duration,
    fallback: Option<Fallback>,
}

/// The checks that a call must pass before it is sent.
pub(crate) struct CallChecks {
    pub(crate) visible_catalogs: VisibleCatalogs,
    pub(crate) limiter: Limiter,
    pub(crate) approvals: Approvals,
}

impl CallRouter {
    pub(crate) fn new(
        registry: Registry,
        catalog: watch::Receiver<Arc<Catalog>>,
        services: SupervisorServices,
        checks: CallChecks,
        discovery_timeout: Duration,
        fallback: Option<Fallback>,
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
            start_permits: Arc::new(Semaphore::new(MAX_PARALLEL_STARTS)),
            discovery_timeout,
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

    /// Finds the target of a selector, and the catalog in which it was found. If the name points at a server without a known
    /// listing, that server is listed first; for an unknown bare name or URI, every such server is.
    pub(crate) async fn find_target(
        &self,
        caller: &Caller,
        selector: &Selector,
    ) -> Result<(Target, VisibleCatalog), Error> {
        if let Selector::OnServer(server, _) = selector
            && let Some(Err(disabled)) = self.registry.get(server)
            && self.visible_catalogs.can_see(caller, server)
        {
            return Err(disabled);
        }
        let visible = self.visible_catalog(caller);
        let catalog = &visible.callable;
        let found = match (catalog.find_listed(selector), selector) {
            (Err(_), Selector::OnServer(server, name)) if self.registry.is_adhoc(server) => {
                Ok(Target::new(server, name))
            }
            (Err(_), Selector::Tool(name) | Selector::Prompt(name) | Selector::Resource(name))
                if !catalog.has_match(selector) =>
            {
                Box::pin(self.find_after_discovery(catalog, caller, selector, name)).await
            }
            (found, _) => found,
        };
        found.map(|target| (target, visible))
    }

    async fn find_after_discovery(
        &self,
        catalog: &Catalog,
        caller: &Caller,
        selector: &Selector,
        name: &str,
    ) -> Result<Target, Error> {
        let named_server = catalog.undiscovered_by_prefix(name);
        let undiscovered: Vec<ServerId> = match named_server {
            Some(server) => vec![server.clone()],
            None => catalog.undiscovered().cloned().collect(),
        };
        loop {
            let mut servers = self.registered_servers(&undiscovered);
            if named_server.is_none() {
                servers.retain(RegisteredServer::is_worth_listing);
            }
            if servers.is_empty() {
                return self.callable_catalog(caller).find(selector);
            }
            let mut failures = self.discover(&servers).await;
            let found = self.callable_catalog(caller).find(selector);
            let failure = failures.pop().flatten().filter(|_| named_server.is_some() && found.is_err());
            let replaced = |server: &RegisteredServer| self.registry.is_replaced(server);
            match failure {
                // The server was replaced while it was being listed: try its successor.
                Some(failure)
                    if failure.kind() == ErrorKind::ShuttingDown && servers.iter().all(replaced) => {}
                Some(failure) => return Err(failure),
                // The listed server was replaced: try its successor.
                None if found.is_err() && servers.iter().any(replaced) => {}
                None => return found,
            }
        }
    }

    /// Checks whether a call may be sent to its target. Waits for approval if a rule requires it.
    pub(crate) async fn authorize(
        &self,
        call: &Call,
        target: &Target,
        visible: Option<VisibleCatalog>,
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
        let mut visible = self.callable_catalog(&call.caller);
        if self.registry.is_adhoc(&target.server)
            && policy.can_see(&call.caller, &target.server)
            && !policy.is_unrestricted(&call.caller, &target.server)
        {
            self.discover_server(&target.server).await?;
            visible = self.adhoc_catalog(policy, &call.caller, &target.server);
        }
        let is_undiscovered =
            |catalog: &Catalog| catalog.undiscovered().any(|server| *server == target.server);
        if matches!(call.selector, Selector::OnServer(..))
            && policy.can_see(&call.caller, &target.server)
            && !policy.is_unrestricted(&call.caller, &target.server)
            && is_undiscovered(&visible)
        {
            // The rules need the server's listing.
            self.discover_server(&target.server).await?;
            visible = self.callable_catalog(&call.caller);
        }
        visible_catalogs::authorize(policy, &visible, call, target, |task| {
            self.task_owners.find_tool(&target.server, task)
        })?;
        match visible_catalogs::required_approval(policy, call, target) {
            None => Ok(Decision::Allowed),
            Some(finding) => {
                self.approvals.require(call, target, &finding).await.map(|()| Decision::Approved)
            }
        }
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

    /// Lists a server that has no known listing, or its replacement if the roster changes in the meantime.
    async fn discover_server(&self, server: &ServerId) -> Result<(), Error> {
        loop {
            let servers = self.registered_servers(std::slice::from_ref(server));
            let failure = self.discover(&servers).await.into_iter().flatten().next();
            let replaced = |server: &RegisteredServer| self.registry.is_replaced(server);
            match failure {
                None => return Ok(()),
                Some(failure)
                    if failure.kind() == ErrorKind::ShuttingDown && servers.iter().any(replaced) => {}
                Some(failure) => return Err(failure),
            }
        }
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

    /// Passes the call to the fallback, or returns the error with a suggestion.
    pub(crate) async fn run_fallback(&self, call: Call, error: Error) -> Result<Outcome, Error> {
        if let Some(denied) = self.denial_error(&call).or_else(|| self.withheld_error(&call)) {
            return Err(denied);
        }
        let catalog = self.callable_catalog(&call.caller);
        match &self.fallback {
            Some(fallback) if error.kind() == ErrorKind::Unknown && !catalog.has_match(&call.selector) => {
                run_contained(fallback, call).await
            }
            _ => Err(catalog.add_suggestion(error, &call.selector)),
        }
    }

    pub(crate) fn registered_servers(&self, servers: &[ServerId]) -> Vec<RegisteredServer> {
        servers.iter().filter_map(|server| self.registry.get(server)?.ok()).collect()
    }

    /// Lists servers that have no known listing: starts a few at a time, for a bounded time in total. Returns the error of
    /// each server, in order.
    pub(crate) async fn discover(&self, servers: &[RegisteredServer]) -> Vec<Option<Error>> {
        let deadline = Instant::now() + self.discovery_timeout;
        let tasks: Vec<_> = servers
            .iter()
            .map(|server| {
                self.services.tasks.spawn(start_and_list(
                    server.clone(),
                    self.start_permits.clone(),
                    deadline,
                ))
            })
            .collect();
        let mut failures = Vec::new();
        for task in tasks {
            failures.push(
                task.await
                    .unwrap_or_else(|panic| Some(Error::new(ErrorKind::CouldNotStart, panic.to_string()))),
            );
        }
        for (server, failure) in servers.iter().zip(&failures) {
            if failure.is_none() {
                self.wait_until_listed(&server.spec().id).await;
            }
        }
        failures
    }

    /// Waits until a started server is in the catalog.
    async fn wait_until_listed(&self, server: &ServerId) {
        let mut catalog = self.catalog.clone();
        let listed = catalog.wait_for(|catalog| catalog.undiscovered().all(|id| id != server));
        // The timeout covers a server that was replaced at this moment and is not listed again yet.
        let _ = timeout(self.discovery_timeout, listed).await;
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
async fn run_contained(fallback: &Fallback, call: Call) -> Result<Outcome, Error> {
    let outcome = match panics::contain("fallback", || fallback(call)) {
        Some(running) => panics::contain_future("fallback", running).await,
        None => None,
    };
    outcome.unwrap_or_else(|| Err(Error::new(ErrorKind::BadReply, "the fallback panicked")))
}

/// Starts a server without a known listing when a permit is free.
async fn start_and_list(
    entry: RegisteredServer,
    permits: Arc<Semaphore>,
    deadline: Instant,
) -> Option<Error> {
    if entry.listing().is_some() {
        return None;
    }
    let listed = timeout_at(deadline, async {
        let _permit = permits.acquire().await;
        entry.discover().await
    });
    match listed.await {
        Ok(result) => result.err(),
        Err(_) => {
            entry.mark_slow();
            let server = &entry.spec().id;
            let message = format!("server `{server}` is still starting");
            Some(
                Error::new(ErrorKind::CouldNotStart, message)
                    .with_server(server)
                    .with_hint("try again in a moment"),
            )
        }
    }
}
