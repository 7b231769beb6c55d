//! `Stock`: the servers and the catalog of one crib, and how what is wanted is found in them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::approval::Approvals;
use crate::call::{Call, Caller, Outcome, Wanted};
use crate::catalog::{Catalog, Target};
use crate::error::{Error, ErrorKind};
use crate::event::Decision;
use crate::policy::Policy;
use crate::quota::meter::Meter;
use crate::registry::{Changes, Entry, Registry};
use crate::schemas::Schemas;
use crate::spec::ServerId;
use crate::supervisor::Surroundings;
use crate::tasks::Tasks;
use crate::views::{self, View, Views};

/// How many servers are started at the same time to be listed.
const PARALLEL_STARTS: usize = 8;
/// How long a list waits for servers that were never seen before.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Answers a call that nobody here can.
pub(crate) type Fallback =
    Arc<dyn Fn(Call) -> Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>> + Send + Sync>;

/// What a crib has on its shelves.
pub(crate) struct Stock {
    pub(crate) registry: Registry,
    pub(crate) catalog: watch::Receiver<Arc<Catalog>>,
    pub(crate) around: Surroundings,
    /// Who may see and use what.
    pub(crate) views: Views,
    /// How much of it.
    pub(crate) meter: Meter,
    /// Which tools made the tasks that go on.
    pub(crate) tasks: Tasks,
    /// What people said yes and no to.
    pub(crate) approvals: Approvals,
    schemas: Schemas,
    starts: Arc<Semaphore>,
    patience: Duration,
    fallback: Option<Fallback>,
}

impl Stock {
    pub(crate) fn new(
        registry: Registry,
        catalog: watch::Receiver<Arc<Catalog>>,
        around: Surroundings,
        views: Views,
        meter: Meter,
        patience: Duration,
        fallback: Option<Fallback>,
    ) -> Self {
        let starts = Arc::new(Semaphore::new(PARALLEL_STARTS));
        let (tasks, approvals, schemas) = Default::default();
        Self {
            registry,
            catalog,
            around,
            views,
            meter,
            tasks,
            approvals,
            schemas,
            starts,
            patience,
            fallback,
        }
    }

    /// What is known to be on offer; starts nothing.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.borrow().clone()
    }

    /// The same, as far as a caller may see it.
    pub(crate) fn seen(&self, caller: &Caller) -> Arc<Catalog> {
        self.view(caller).catalog
    }

    fn view(&self, caller: &Caller) -> View {
        self.views.of(self.catalog(), caller)
    }

    /// The one thing that is meant, and the view in which it was looked for. A name that points at a server nobody has
    /// seen yet makes that one be listed first; a bare name or an address that nobody is known to have, every such server.
    pub(crate) async fn find(&self, caller: &Caller, wanted: &Wanted) -> Result<(Target, View), Error> {
        if let Wanted::On(server, _) = wanted
            && let Some(Err(switched_off)) = self.registry.get(server)
            && self.views.sees(caller, server)
        {
            return Err(switched_off);
        }
        let view = self.view(caller);
        let catalog = &view.catalog;
        let found = match (catalog.find_listed(wanted), wanted) {
            (Err(_), Wanted::Named(name) | Wanted::Prompt(name) | Wanted::Resource(name))
                if !catalog.offers(wanted) =>
            {
                Box::pin(self.find_among_strangers(catalog, caller, wanted, name)).await
            }
            (found, _) => found,
        };
        found.map(|target| (target, view))
    }

    async fn find_among_strangers(
        &self,
        catalog: &Catalog,
        caller: &Caller,
        wanted: &Wanted,
        name: &str,
    ) -> Result<Target, Error> {
        let behind = catalog.stranger_behind(name);
        let strangers: Vec<ServerId> = match behind {
            Some(stranger) => vec![stranger.clone()],
            None => catalog.strangers().cloned().collect(),
        };
        loop {
            let mut servers = self.servers(&strangers);
            if behind.is_none() {
                servers.retain(Entry::may_be_listed);
            }
            if servers.is_empty() {
                return self.seen(caller).find(wanted);
            }
            let mut failures = self.meet(&servers).await;
            let found = self.seen(caller).find(wanted);
            let failure = failures.pop().flatten().filter(|_| behind.is_some() && found.is_err());
            let replaced = |server: &Entry| self.registry.has_replaced(server);
            match failure {
                // What is being seen out is not the server any more: its successor is asked.
                Some(failure)
                    if failure.kind() == ErrorKind::ShuttingDown && servers.iter().all(replaced) => {}
                Some(failure) => return Err(failure),
                // What was listed is not the server any more, either.
                None if found.is_err() && servers.iter().any(replaced) => {}
                None => return found,
            }
        }
    }

    /// Whether a call may go where it was found to go, maybe in a view.
    pub(crate) async fn permit(
        &self,
        call: &Call,
        target: &Target,
        view: Option<View>,
    ) -> Result<Decision, Error> {
        match self.views.policy_for(&call.caller) {
            None => Ok(Decision::Allowed),
            Some(policy) if view.is_some_and(|view| view.settles(&policy, call, target)) => {
                Ok(Decision::Allowed)
            }
            Some(policy) => Box::pin(self.judge(&policy, call, target)).await,
        }
    }

    async fn judge(&self, policy: &Policy, call: &Call, target: &Target) -> Result<Decision, Error> {
        let mut seen = self.seen(&call.caller);
        let is_stranger = |catalog: &Catalog| catalog.strangers().any(|server| *server == target.server);
        if matches!(call.wanted, Wanted::On(..))
            && policy.sees(&call.caller, &target.server)
            && !policy.is_open(&call.caller, &target.server)
            && is_stranger(&seen)
        {
            // What it lists decides what can be asked of it.
            self.meet_one(&target.server).await?;
            seen = self.seen(&call.caller);
        }
        views::permit(policy, &seen, call, target, |task| self.tasks.maker(&target.server, task))?;
        match views::asks(policy, call, target) {
            None => Ok(Decision::Allowed),
            Some(finding) => self.approvals.obtain(call, target, &finding).await.map(|()| Decision::Approved),
        }
    }

    /// Makes sure that a server has been listed, or whoever takes its place meanwhile.
    async fn meet_one(&self, server: &ServerId) -> Result<(), Error> {
        loop {
            let servers = self.servers(std::slice::from_ref(server));
            let failure = self.meet(&servers).await.into_iter().flatten().next();
            let replaced = |server: &Entry| self.registry.has_replaced(server);
            match failure {
                None => return Ok(()),
                Some(failure)
                    if failure.kind() == ErrorKind::ShuttingDown && servers.iter().any(replaced) => {}
                Some(failure) => return Err(failure),
            }
        }
    }

    /// Whether the arguments of a call fit what its tool says of them, where somebody wants that to be known before the
    /// server is asked.
    pub(crate) fn check(&self, call: &Call, target: &Target) -> Result<(), Error> {
        match self.registry.checks() && call.method() == "tools/call" {
            true => self.schemas.check(&self.registry, call, target),
            false => Ok(()),
        }
    }

    /// Why a call was not found that would have been without rules: it is there, and forbidden.
    pub(crate) fn denied(&self, call: &Call) -> Option<Error> {
        let policy = self.views.policy_for(&call.caller)?;
        let whole = self.catalog();
        let Ok(target) = whole.find_listed(&call.wanted) else {
            let server = whole.stranger_behind(call.name())?;
            let denial = policy.judge(&call.caller, server, None).err()?;
            let target = Target { server: server.clone(), name: call.name().into() };
            call.record.note(|met| (met.target, met.denial) = (Some(target), Some(denial)));
            return None;
        };
        let denial = policy.judge(&call.caller, &target.server, Some(&target.name)).err()?;
        let error = policy
            .sees(&call.caller, &target.server)
            .then(|| denial.clone().error(&call.caller, &target.server, &target.name));
        call.record.note(|met| (met.target, met.denial) = (Some(target), Some(denial)));
        error
    }

    /// Why a tool was not found that would have been if a person had approved it.
    fn withheld(&self, call: &Call) -> Option<Error> {
        let Wanted::Named(name) = &call.wanted else { return None };
        let policy = self.views.policy_for(&call.caller);
        self.registry.withheld(name, |server, own| {
            policy.as_ref().is_none_or(|policy| policy.judge(&call.caller, server, Some(own)).is_ok())
        })
    }

    /// Gives the call to the fallback, or says what the caller may have meant.
    pub(crate) async fn fall_back(&self, call: Call, error: Error) -> Result<Outcome, Error> {
        if let Some(denied) = self.denied(&call).or_else(|| self.withheld(&call)) {
            return Err(denied);
        }
        let catalog = self.seen(&call.caller);
        match &self.fallback {
            Some(fallback) if error.kind() == ErrorKind::Unknown && !catalog.offers(&call.wanted) => {
                fallback(call).await
            }
            _ => Err(catalog.advise(error, &call.wanted)),
        }
    }

    pub(crate) fn servers(&self, servers: &[ServerId]) -> Vec<Entry> {
        servers.iter().filter_map(|server| self.registry.get(server)?.ok()).collect()
    }

    /// Makes sure that servers have been listed: starts those that never were, a few at a time, for a bounded time
    /// altogether. Returns what went wrong with each, in order.
    pub(crate) async fn meet(&self, servers: &[Entry]) -> Vec<Option<Error>> {
        let until = Instant::now() + self.patience;
        let meetings: Vec<_> = servers
            .iter()
            .map(|server| self.around.tasks.spawn(meet(server.clone(), self.starts.clone(), until)))
            .collect();
        let mut failures = Vec::new();
        for meeting in meetings {
            failures.push(
                meeting
                    .await
                    .unwrap_or_else(|panic| Some(Error::new(ErrorKind::CouldNotStart, panic.to_string()))),
            );
        }
        for (server, failure) in servers.iter().zip(&failures) {
            if failure.is_none() {
                self.await_listing(&server.spec().id).await;
            }
        }
        failures
    }

    /// A server that is up has been listed; the catalog shows it a moment later.
    async fn await_listing(&self, server: &ServerId) {
        let mut catalog = self.catalog.clone();
        let listed = catalog.wait_for(|catalog| catalog.strangers().all(|stranger| stranger != server));
        // A server that was replaced in this very moment is a stranger again; nobody waits for that.
        let _ = timeout(self.patience, listed).await;
    }

    /// The servers of a roster are in the catalog a moment after it was applied.
    pub(crate) async fn await_servers(&self, changes: &Changes) {
        let mut catalog = self.catalog.clone();
        let followed = |catalog: &Arc<Catalog>| {
            let known = |server: &ServerId| catalog.knows(server);
            let gone = |server: &ServerId| !known(server) || self.registry.get(server).is_some();
            self.registry.running().iter().all(|on| known(&on.spec().id)) && changes.removed.iter().all(gone)
        };
        // An error means that the crib is being dropped.
        let _ = catalog.wait_for(followed).await;
    }
}

/// Starts a server that was never listed, once it is its turn.
async fn meet(entry: Entry, starts: Arc<Semaphore>, until: Instant) -> Option<Error> {
    if entry.listing().is_some() {
        return None;
    }
    let met = timeout_at(until, async {
        let _turn = starts.acquire().await;
        entry.look().await
    });
    match met.await {
        Ok(seen) => seen.err(),
        Err(_) => {
            entry.mark_slow();
            let server = &entry.spec().id;
            let message = format!("`{server}` is still starting");
            Some(Error::new(ErrorKind::CouldNotStart, message).at(server).hint("ask again in a moment"))
        }
    }
}
