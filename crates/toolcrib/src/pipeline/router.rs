//! `CallRouter`, which finds the target of a call and checks whether the caller may use it.

mod first_failure;
mod first_listing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::access::approvals::Approvals;
use crate::access::argument_schemas::ArgumentSchemas;
use crate::access::policy::Policy;
use crate::access::visible_catalogs::{self, VisibleCatalog, VisibleCatalogs};
use crate::call::Call;
use crate::call::executor::{ToolCall, ToolExecutor};
use crate::catalog::{Catalog, public_name};
use crate::limits::limiter::Limiter;
use crate::model::caller::Caller;
use crate::model::denial::Denial;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::Decision;
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::pipeline::discovery::Discoverer;
use crate::pipeline::task_owners::TaskOwners;
use crate::protocol::versions::Era;
use crate::registry::{RegisteredServer, Registry};
use crate::spec::{FirstListingWait, ServerId};
use crate::supervisor::SupervisorServices;
use crate::util::panics;

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
    /// listing, that server is listed first, unless the rules deny the item already. A bare name or URI that no known server
    /// has waits for every server without a known listing, as the first list does. Servers that are started for that follow
    /// the era of the client.
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
    /// list more for a client with extensions or other capabilities.
    pub(crate) fn own_catalog(&self, call: &Call) -> Option<VisibleCatalog> {
        if !call.has_client_extensions() && !self.registry.has_listings_of_clients() {
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
            if self.denies_unlisted(caller, server, selector) {
                return catalog.find(selector);
            }
            let discovered = self.discover_server(server, caller, era).await;
            return self.callable_catalog(caller).find(selector).map_err(|error| match discovered {
                Err(failure) => failure,
                Ok(()) => error,
            });
        }
        let mut servers = self.undiscovered_servers(catalog);
        servers.retain(|entry| can_see(&entry.spec().id));
        let wait = self.discoverer.first_listing().in_one_request();
        self.find_within(caller, selector, era, &servers, wait).await
    }

    /// Finds a bare name or URI that no known server has: waits until one of `servers`, which were never listed, has it. Those
    /// that are not awaited any longer count as not having it.
    async fn find_within(
        &self,
        caller: &Caller,
        selector: &Selector,
        era: Era,
        servers: &[RegisteredServer],
        wait: FirstListingWait,
    ) -> Result<Target, Error> {
        // A typing error is answered from what is known.
        let is_misspelt = self.callable_catalog(caller).has_suggestion(selector);
        let wait = if is_misspelt { FirstListingWait::at_most(Duration::ZERO) } else { wait };
        tokio::select! {
            biased;
            () = self.discover_within(caller, era, servers, wait) => {}
            () = self.wait_for_match(caller, selector) => {}
        }
        let catalog = self.callable_catalog(caller);
        let error = match catalog.find(selector) {
            Err(error) if error.kind() == ErrorKind::Unknown && !catalog.has_match(selector) => error,
            found => return found,
        };
        let missing = servers.iter().map(|entry| &entry.spec().id);
        let mut missing: Vec<&ServerId> = missing.filter(|server| catalog.is_undiscovered(server)).collect();
        let not_searched = join_names(&missing);
        missing.retain(|server| !self.discoverer.time_left(server, wait).is_zero());
        match (missing.is_empty(), not_searched.is_empty()) {
            (true, true) => Err(error),
            (true, false) => Err(not_searched_error(&error, &not_searched)),
            (false, _) => Err(not_known_error(selector.name(), &missing)),
        }
    }

    /// Waits until a known server has what a selector means to a caller.
    async fn wait_for_match(&self, caller: &Caller, selector: &Selector) {
        let mut catalog = self.catalog.clone();
        while !self.callable_catalog(caller).has_match(selector) {
            if catalog.changed().await.is_err() {
                // The crib is being dropped.
                return;
            }
        }
    }

    /// Returns whether the rules or the guard deny an item of a server that was never listed, as far as its name tells.
    fn denies_unlisted(&self, caller: &Caller, server: &ServerId, selector: &Selector) -> bool {
        let Ok(policy) = self.visible_catalogs.policy_for(caller) else { return true };
        let Some(policy) = policy else { return false };
        let name = self.unlisted_name(server, selector);
        name.is_some_and(|name| policy.authorize(caller, server, Some(&name)).is_err())
    }

    /// Returns the server's own name of what a selector means on a server that was never listed; `None` if only its listing
    /// tells.
    fn unlisted_name(&self, server: &ServerId, selector: &Selector) -> Option<String> {
        let public = match selector {
            Selector::OnServer(_, name) => return Some(name.clone()),
            named => public_name::plain_name(server, named.name())?,
        };
        Some(self.registry.spec(server)?.tools.own_name(public).to_owned())
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
        let server = &target.server;
        let by_rules = || self.visible_catalogs.for_caller_by_rules(self.catalog(), &call.caller).callable;
        let unknown_server = || self.hidden_server_error(&call.caller, server);
        let is_adhoc = self.registry.is_adhoc(server);
        let mut visible = by_rules();
        if (is_adhoc || visible.is_undiscovered(server))
            && policy.can_see(&call.caller, server)
            && !policy.is_unrestricted(&call.caller, server)
        {
            // The rules need the server's listing, unless they deny the call in any case.
            visible_catalogs::authorize_unlisted(policy, call, target, unknown_server)?;
            self.discover_server(server, &call.caller, call.client.era).await?;
            visible = if is_adhoc { self.adhoc_catalog(policy, &call.caller, server) } else { by_rules() };
        }
        let find_tool = |task: &Arc<str>| self.task_owners.find(server, task).map(|origin| origin.tool);
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
            let is_open = denies_openly(&policy, &call.caller, server);
            if let Err(denial) = policy.authorize(&call.caller, server, None) {
                record_denial(call, Target::new(server, call.name()), &denial);
                return is_open.then(|| denial.into_server_error(&call.caller, server));
            }
            let name = self.unlisted_name(server, &call.selector)?;
            let denial = policy.authorize(&call.caller, server, Some(&name)).err()?;
            record_denial(call, Target::new(server, &name), &denial);
            return is_open.then(|| denial.into_error(&call.caller, server, &name));
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
            Ok(Some(policy)) if caller.is_local() && is_declared => {
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
        let catalog = self.callable_catalog(&call.caller);
        // A bare name that several servers have is ambiguous, also if one more is denied.
        let is_ambiguous =
            !matches!(call.selector, Selector::OnServer(..)) && catalog.has_match(&call.selector);
        let denied = || self.denial_error(&call).or_else(|| self.withheld_error(&call));
        if let Some(denied) = if is_ambiguous { None } else { denied() } {
            return Err(denied);
        }
        // A typing error is better explained here. An unknown name must not count towards limits, and is recorded as unknown
        // where callers are told apart.
        let is_forwarded = call.forwards_unknown
            && call.caller.is_local()
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
}

/// Returns whether a caller may know that a server exists which it may not use. The local user wrote the rules.
fn denies_openly(policy: &Policy, caller: &Caller, server: &ServerId) -> bool {
    caller.is_local() || policy.can_see(caller, server)
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

/// Returns the names of servers as a part of a message.
fn join_names(servers: &[&ServerId]) -> String {
    let names: Vec<String> = servers.iter().map(|server| format!("`{server}`")).collect();
    names.join(", ")
}

/// Returns the error for an unknown name, with what was not searched for it.
fn not_searched_error(unknown: &Error, not_searched: &str) -> Error {
    let message = format!("{unknown}; not searched: {not_searched}");
    Error::new(ErrorKind::Unknown, message).with_hint(unknown.hint())
}

/// Returns the error for a bare name that servers may have which were never listed.
fn not_known_error(name: &str, servers: &[&ServerId]) -> Error {
    let message = format!("cannot tell which server has `{name}`: not known yet: {}", join_names(servers));
    let hint = "try again in a moment, or use the public name, such as `SERVER__TOOL`";
    let error = Error::new(ErrorKind::CouldNotStart, message).with_hint(hint);
    match servers {
        [only] => error.with_server(only),
        _ => error,
    }
}
