//! A server that all clients share: one instance, or one per era if it may speak both.

use std::path::Path;
use std::sync::Arc;

use tokio::time::Instant;

use super::KeyedSupervisor;
use crate::call::client_context::InstanceOwner;
use crate::model::error::Error;
use crate::model::instance_key::InstanceKey;
use crate::model::listing::Listing;
use crate::model::spoken_eras::SpokenEras;
use crate::model::status::{InstanceStatus, ListingError, STATE_PRIORITY, ServerStatus};
use crate::process::stderr::StderrTail;
use crate::protocol::versions::Era;
use crate::spec::{ServerSpec, StartPolicy};
use crate::supervisor::{Lease, LeaseClient, ServerRecords, Supervisor, SupervisorServices};

/// The instance of a shared server, and the one for stateless clients if there may be two. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SharedServer {
    /// Serves clients in a session; all clients if the server has one instance or speaks one era.
    main: Supervisor,
    /// Serves stateless clients.
    stateless: Option<Supervisor>,
    /// What both instances have in common.
    records: ServerRecords,
}

impl SharedServer {
    /// Starts the supervisors of a server, with the listing remembered in the folder `listings`.
    pub(super) fn start(
        spec: ServerSpec,
        replaced: Vec<Supervisor>,
        listings: Option<&Path>,
        services: SupervisorServices,
    ) -> Self {
        let records = Supervisor::new_records(&spec, &replaced, listings, &services);
        if !spec.has_instance_per_era() {
            let main = Supervisor::start_instance(Arc::default(), spec, replaced, records.clone(), services);
            return Self { main, stateless: None, records };
        }
        let stateless = stateless_spec(&spec);
        // Its calls are counted once, as those of the server.
        let main_records = ServerRecords { metrics: records.metrics.clone(), ..records.for_instance() };
        let main = Supervisor::start_instance(Arc::default(), spec, replaced, main_records, services.clone());
        let owner = Arc::new(InstanceOwner { key: stateless_key(), ..InstanceOwner::default() });
        let stateless =
            Supervisor::start_instance(owner, stateless, Vec::new(), records.for_instance(), services);
        Self { main, stateless: Some(stateless), records }
    }

    /// Returns the supervisor of the instance that starts at boot and serves clients in a session.
    pub(super) fn main(&self) -> &Supervisor {
        &self.main
    }

    /// Returns the stderr of all instances.
    pub(super) fn stderr(&self) -> &StderrTail {
        &self.records.stderr
    }

    /// Returns the supervisor of the instance that clients of an era use. If the server speaks only one era, all use the
    /// same one: the one for stateless clients only while that alone is up.
    pub(super) fn for_era(&self, era: Era) -> &Supervisor {
        let Some(stateless) = &self.stateless else { return &self.main };
        let uses_stateless = match self.records.listing_store.eras().only() {
            Some(Era::Session) => self.main.is_asleep() && !stateless.is_asleep(),
            Some(Era::Stateless) => !stateless.is_asleep(),
            None => era == Era::Stateless,
        };
        if uses_stateless { stateless } else { &self.main }
    }

    /// Returns the supervisor of the instance that the listing comes from, or would come from.
    pub(super) fn for_listing(&self) -> &Supervisor {
        let Some(stateless) = &self.stateless else { return &self.main };
        let runs_alone = || self.main.is_asleep() && !stateless.is_asleep();
        match self.records.listing_store.is_source(&stateless_key()) || runs_alone() {
            true => stateless,
            false => &self.main,
        }
    }

    /// Returns whether no instance runs and the tools could not be read when one last did, so that it is time to ask again.
    pub(super) fn is_unlisted(&self, now: Instant) -> bool {
        let list_ttl = self.spec().lifecycle.list_ttl;
        let is_unknown = |listing: Arc<Listing>| listing.has_unknown_tools(list_ttl, now);
        self.supervisors().iter().all(Supervisor::is_asleep) && self.listing().is_some_and(is_unknown)
    }

    /// Returns what is known about the server's eras, if it decides which instance a client uses.
    pub(super) fn known_eras(&self) -> Option<SpokenEras> {
        self.stateless.as_ref().map(|_| self.records.listing_store.eras())
    }

    /// Returns a lease for a client of an era if the instance that it uses is ready.
    pub(super) fn try_lease(&self, era: Era) -> Option<Lease> {
        match self.known_eras().and_then(SpokenEras::only) {
            // It is rarely the other one, which is looked for only then.
            Some(Era::Session) => self.main.try_lease().or_else(|| self.for_era(era).try_lease()),
            _ => self.for_era(era).try_lease(),
        }
    }

    /// Returns a lease for a client of an era, and the supervisor that granted it.
    pub(super) async fn lease(&self, era: Era) -> Result<(Lease, &Supervisor), Error> {
        let known_eras = self.known_eras();
        let mut asked = self.for_era(era);
        let mut leased = asked.lease(self.lease_client(asked, era)).await;
        // The server turned out to speak only one era.
        if leased.is_err() && self.known_eras() != known_eras {
            asked = self.for_era(era);
            leased = asked.lease(self.lease_client(asked, era)).await;
        }
        leased.map(|lease| (lease, asked))
    }

    fn lease_client(&self, asked: &Supervisor, era: Era) -> LeaseClient {
        let others = self.supervisors().into_iter().filter(|supervisor| !supervisor.is_same(asked));
        LeaseClient { era, is_other_up: others.into_iter().any(|other| !other.is_asleep()) }
    }

    /// Returns the key of the instance of a supervisor.
    pub(super) fn key_of(&self, supervisor: &Supervisor) -> InstanceKey {
        match supervisor.is_same(&self.main) {
            true => InstanceKey::Shared,
            false => stateless_key(),
        }
    }

    /// Returns the supervisors of all instances.
    pub(super) fn supervisors(&self) -> Vec<Supervisor> {
        std::iter::once(&self.main).chain(&self.stateless).cloned().collect()
    }

    /// Returns all instances, to be retired.
    pub(super) fn into_instances(self) -> Vec<KeyedSupervisor> {
        let keyed = |supervisor: Supervisor| KeyedSupervisor { key: self.key_of(&supervisor), supervisor };
        self.supervisors().into_iter().map(keyed).collect()
    }

    pub(super) fn spec(&self) -> &ServerSpec {
        self.main.spec()
    }

    /// Returns whether both are the same server, possibly with different settings.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.main.is_same(&other.main)
    }

    /// Returns whether a supervisor is that of one of the instances.
    pub(super) fn has(&self, supervisor: &Supervisor) -> bool {
        self.supervisors().iter().any(|own| own.is_same(supervisor))
    }

    /// Returns whether no call uses the server.
    pub(super) fn is_idle(&self) -> bool {
        self.supervisors().iter().all(Supervisor::is_idle)
    }

    /// Takes over a changed spec without a restart. The spec must not need a restart.
    pub(super) fn update(&self, spec: &ServerSpec) -> Self {
        let stateless = self.stateless.as_ref().map(|supervisor| supervisor.update(stateless_spec(spec)));
        Self { main: self.main.update(spec.clone()), stateless, records: self.records.clone() }
    }

    /// Returns the last known listing, or the tools of its card if it was never listed.
    pub(super) fn listing(&self) -> Option<Arc<Listing>> {
        if self.stateless.is_none() {
            return self.main.listing();
        }
        let known = self.records.listing_store.get().map(|known| known.listing);
        known.or_else(|| self.records.cards.listing())
    }

    /// Stops every instance and waits until the server is up again.
    pub(super) async fn restart(&self) -> Result<(), Error> {
        // The main one first, so that no call starts on it.
        let (main, stateless) = tokio::join!(self.main.begin_restart(), self.stop_stateless());
        main.and(stateless)?;
        // The server may speak only the era of the other instance, which a client has started by now.
        self.lease(Era::Session).await.map(drop)
    }

    /// Stops every instance.
    pub(super) async fn stop(&self) -> Result<(), Error> {
        let (main, stateless) = tokio::join!(self.main.stop(), self.stop_stateless());
        main.and(stateless)
    }

    async fn stop_stateless(&self) -> Result<(), Error> {
        match &self.stateless {
            Some(stateless) => stateless.stop().await,
            None => Ok(()),
        }
    }

    pub(super) fn status(&self, now: Instant) -> ServerStatus {
        let main = self.main.status(now);
        let Some(stateless) = self.stateless.as_ref().map(|supervisor| supervisor.status(now)) else {
            return main;
        };
        let records = &self.records;
        let both = [&main, &stateless];
        let is_up = |status: &ServerStatus| status.uptime.is_some();
        let mut eras: Vec<Era> =
            both.into_iter().filter(|status| is_up(status)).flat_map(|status| status.eras.clone()).collect();
        eras.dedup();
        // The instance that represents the server.
        let shown = if !is_up(&main) && is_up(&stateless) { stateless.clone() } else { main.clone() };
        let known = records.listing_store.get();
        let listing = self.listing();
        let metrics = &records.metrics;
        ServerStatus {
            start: main.start,
            state: STATE_PRIORITY
                .into_iter()
                .find(|state| both.iter().any(|status| status.state == *state))
                .unwrap_or(shown.state),
            uptime: both.iter().filter_map(|status| status.uptime).max(),
            generation: main.generation + stateless.generation,
            leases: main.leases + stateless.leases,
            in_flight: main.in_flight + stateless.in_flight,
            consecutive_failures: main.consecutive_failures.max(stateless.consecutive_failures),
            next_attempt_in: both.iter().filter_map(|status| status.next_attempt_in).min(),
            last_error: both
                .iter()
                .filter_map(|status| status.last_error.clone())
                .max_by_key(|error| error.at),
            stderr_tail: records.stderr.lines_after(0).into_iter().map(|line| line.text).collect(),
            garbage_lines: main.garbage_lines + stateless.garbage_lines,
            memory: sum(both.map(|status| status.memory)),
            cpu_time: sum(both.map(|status| status.cpu_time)),
            queued: main.queued + stateless.queued,
            tools: listing.as_ref().and_then(|listing| listing.tool_count()),
            listing_errors: join_listing_errors(both, listing.as_deref()),
            problems: listing.map(|listing| listing.problems()).unwrap_or_default(),
            calls: metrics.calls(),
            errors: metrics.errors(),
            p50: metrics.percentile(0.5),
            p99: metrics.percentile(0.99),
            protocol: match eras.len() {
                0 => known.as_ref().map(|known| known.revision),
                1 => shown.protocol,
                _ => main.protocol.max(stateless.protocol),
            },
            eras: match (eras.is_empty(), known) {
                (true, Some(known)) => vec![known.revision.era()],
                _ => eras,
            },
            pid: shown.pid.filter(|_| !both.into_iter().all(is_up)),
            instances: match both.into_iter().all(is_up) {
                true => self.instance_statuses(&main, &stateless, now),
                false => Vec::new(),
            },
            ..shown
        }
    }

    /// Returns the status of each instance while both are up. Calls of the main instance are counted for the server.
    fn instance_statuses(
        &self,
        main: &ServerStatus,
        stateless: &ServerStatus,
        now: Instant,
    ) -> Vec<InstanceStatus> {
        let main = ServerStatus {
            calls: main.calls.saturating_sub(stateless.calls),
            errors: main.errors.saturating_sub(stateless.errors),
            ..main.clone()
        };
        let each = self.supervisors().into_iter().zip([main, stateless.clone()]);
        let status = |(supervisor, status): (Supervisor, ServerStatus)| {
            InstanceStatus::new(self.key_of(&supervisor), supervisor.idle_time(now), status)
        };
        each.map(status).collect()
    }
}

/// Adds the values of the instances that have one.
fn sum<T: std::ops::Add<Output = T>>(values: [Option<T>; 2]) -> Option<T> {
    values.into_iter().flatten().reduce(|sum, value| sum + value)
}

/// Returns the lists that an instance could not read, or that could never be read.
fn join_listing_errors(instances: [&ServerStatus; 2], listing: Option<&Listing>) -> Vec<ListingError> {
    let mut errors: Vec<ListingError> = Vec::new();
    for error in instances.into_iter().flat_map(|status| &status.listing_errors) {
        if errors.iter().all(|known| known.list != error.list) {
            errors.push(error.clone());
        }
    }
    match errors.is_empty() {
        true => listing.map(ListingError::of_unknown_lists).unwrap_or_default(),
        false => errors,
    }
}

/// Returns the key of the instance for stateless clients.
fn stateless_key() -> InstanceKey {
    InstanceKey::Stateless(Box::default())
}

/// Returns the spec of the instance for stateless clients, which is started when one needs it.
fn stateless_spec(spec: &ServerSpec) -> ServerSpec {
    let mut spec = spec.clone();
    spec.lifecycle.start = StartPolicy::OnDemand;
    spec
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::listing::{FetchedListing, ListFailure};
    use crate::protocol::list_kind::{ListKind, ListKinds};
    use crate::protocol::versions::Revision;
    use crate::registry::RegisteredServer;
    use crate::spec::HttpSpec;
    use crate::supervisor::listing_store::KnownListing;

    /// Returns a remote server, after its connection for stateless clients could not read the tools and was closed.
    fn server_with_unknown_tools() -> SharedServer {
        let spec = ServerSpec::http("a".parse().unwrap(), HttpSpec::new("http://127.0.0.1:9/mcp"));
        let server = SharedServer::start(spec, Vec::new(), None, SupervisorServices::default());
        let failures = vec![ListFailure::from_disk(ListKind::Tools)];
        let fetched = FetchedListing { listing: Listing::default(), kinds: ListKinds::ALL, failures };
        let listing = Arc::new(fetched.merge(None, Instant::now()));
        let revision = Revision::newest(Era::Stateless);
        let known = KnownListing { revision, is_legacy_sse: false, listing };
        let store = &server.records.listing_store;
        store.record(&stateless_key(), known, None, false);
        store.instance_stopped(&stateless_key());
        server
    }

    #[tokio::test(start_paused = true)]
    async fn sleeping_remote_server_with_unknown_tools_is_asked_again() {
        let server = RegisteredServer::Shared(server_with_unknown_tools());
        assert!(server.needs_discovery(Instant::now() + Duration::from_secs(3600)));
    }

    #[tokio::test(start_paused = true)]
    async fn status_of_a_remote_server_shows_unknown_tools() {
        let status = server_with_unknown_tools().status(Instant::now());
        assert_eq!(status.tools, None);
        let lists: Vec<ListKind> = status.listing_errors.iter().map(|error| error.list).collect();
        assert_eq!(lists, [ListKind::Tools]);
    }
}
