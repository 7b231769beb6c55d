//! A server that all clients share: one instance, or one per era if it is remote and may speak both.

use std::path::Path;
use std::sync::Arc;

use tokio::time::Instant;

use super::KeyedSupervisor;
use crate::call::client_context::InstanceOwner;
use crate::model::error::Error;
use crate::model::instance_key::InstanceKey;
use crate::model::listing::Listing;
use crate::model::spoken_eras::SpokenEras;
use crate::model::status::{ListingError, STATE_PRIORITY, ServerStatus};
use crate::protocol::versions::Era;
use crate::spec::{ServerSpec, StartPolicy};
use crate::supervisor::metrics::ServerMetrics;
use crate::supervisor::{Lease, ServerRecords, Supervisor, SupervisorServices};

/// The instance of a shared server, and the one for stateless clients if there may be two. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SharedServer {
    /// Serves clients in a session; all clients if the server has one instance or speaks one era.
    main: Supervisor,
    stateless: Option<Arc<StatelessInstance>>,
}

/// The instance for stateless clients of a remote server.
#[derive(Debug)]
struct StatelessInstance {
    supervisor: Supervisor,
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
        if !spec.has_connection_per_era() {
            return Self { main: Supervisor::start(spec, replaced, listings, services), stateless: None };
        }
        let records = Supervisor::new_records(&spec, &replaced, listings, &services);
        let start = |owner, spec, replaced| {
            let metrics = Arc::new(ServerMetrics::for_instance(records.metrics.clone()));
            let records = ServerRecords { metrics, ..records.clone() };
            Supervisor::start_instance(Arc::new(owner), spec, replaced, records, services.clone())
        };
        let main = start(InstanceOwner::default(), spec.clone(), replaced);
        let owner = InstanceOwner { key: stateless_key(), ..InstanceOwner::default() };
        let supervisor = start(owner, stateless_spec(&spec), Vec::new());
        Self { main, stateless: Some(Arc::new(StatelessInstance { supervisor, records })) }
    }

    /// Returns the supervisor of the instance that starts at boot and serves clients in a session.
    pub(super) fn main(&self) -> &Supervisor {
        &self.main
    }

    /// Returns the supervisor of the instance that clients of an era use. If the server speaks only one era, all use the
    /// same one: the one for stateless clients only while that is up.
    pub(super) fn for_era(&self, era: Era) -> &Supervisor {
        let Some(stateless) = &self.stateless else { return &self.main };
        let uses_stateless = match stateless.records.listing_store.eras().only() {
            Some(Era::Session) => false,
            Some(Era::Stateless) => !stateless.supervisor.is_asleep(),
            None => era == Era::Stateless,
        };
        if uses_stateless { &stateless.supervisor } else { &self.main }
    }

    /// Returns the supervisor of the instance that the listing comes from, or would come from.
    pub(super) fn for_listing(&self) -> &Supervisor {
        let Some(StatelessInstance { supervisor, records }) = self.stateless.as_deref() else {
            return &self.main;
        };
        let runs_alone = || self.main.is_asleep() && !supervisor.is_asleep();
        match records.listing_store.is_source(&stateless_key()) || runs_alone() {
            true => supervisor,
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
        self.stateless.as_ref().map(|instance| instance.records.listing_store.eras())
    }

    /// Returns a lease for a client of an era, and the supervisor that granted it.
    pub(super) async fn lease(&self, era: Era) -> Result<(Lease, &Supervisor), Error> {
        let known_eras = self.known_eras();
        let mut asked = self.for_era(era);
        let mut leased = asked.lease(era).await;
        // The server turned out to speak only one era.
        if leased.is_err() && self.known_eras() != known_eras {
            asked = self.for_era(era);
            leased = asked.lease(era).await;
        }
        leased.map(|lease| (lease, asked))
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
        let stateless = self.stateless.iter().map(|instance| instance.supervisor.clone());
        std::iter::once(self.main.clone()).chain(stateless).collect()
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
        let stateless = self.stateless.as_ref().map(|instance| {
            let supervisor = instance.supervisor.update(stateless_spec(spec));
            Arc::new(StatelessInstance { supervisor, records: instance.records.clone() })
        });
        Self { main: self.main.update(spec.clone()), stateless }
    }

    /// Returns the last known listing, or the tools of its card if it was never listed.
    pub(super) fn listing(&self) -> Option<Arc<Listing>> {
        let Some(StatelessInstance { records, .. }) = self.stateless.as_deref() else {
            return self.main.listing();
        };
        let known = records.listing_store.get().map(|known| known.listing);
        known.or_else(|| records.cards.listing())
    }

    /// Stops every instance and waits until the server is up again.
    pub(super) async fn restart(&self) -> Result<(), Error> {
        if let Some(instance) = &self.stateless {
            instance.supervisor.stop().await?;
        }
        self.main.begin_restart().await?;
        // The server may speak only the era of the other instance, which a client has started by now.
        self.lease(Era::Session).await.map(drop)
    }

    /// Stops every instance.
    pub(super) async fn stop(&self) -> Result<(), Error> {
        if let Some(instance) = &self.stateless {
            instance.supervisor.stop().await?;
        }
        self.main.stop().await
    }

    pub(super) fn status(&self, now: Instant) -> ServerStatus {
        let main = self.main.status(now);
        let Some(StatelessInstance { supervisor, records }) = self.stateless.as_deref() else { return main };
        let stateless = supervisor.status(now);
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
            garbage_lines: main.garbage_lines + stateless.garbage_lines,
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
            ..shown
        }
    }
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
        let store = &server.stateless.as_ref().unwrap().records.listing_store;
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
