//! A server that all clients share: one instance, or one per era if it may speak both. Clients of a server that sends them
//! requests may get instances of their own; see `own_instances.rs`.

use std::path::Path;
use std::sync::Arc;

use tokio::time::Instant;

use super::instances::Instances;
use super::own_instances::OwnInstances;
use super::{KeyedSupervisor, LeaseOrigin};
use crate::call::Call;
use crate::call::client_context::InstanceOwner;
use crate::model::error::{Error, ErrorKind};
use crate::model::instance_key::InstanceKey;
use crate::model::listing::Listing;
use crate::model::spoken_eras::SpokenEras;
use crate::model::status::{InstanceStatus, ListingError, STATE_PRIORITY, ServerStatus};
use crate::process::stderr::StderrTail;
use crate::protocol::versions::Era;
use crate::spec::{ServerSpec, Sharing, StartPolicy};
use crate::supervisor::{Lease, LeaseClient, ServerRecords, Supervisor, SupervisorServices};

/// The instance of a shared server, and the one for stateless clients if there may be two. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SharedServer {
    /// Serves clients in a session; all clients if the server has one instance or speaks one era.
    main: Supervisor,
    /// Serves stateless clients.
    stateless: Option<Supervisor>,
    /// The instances of single clients, if the server may have any.
    pub(super) own: Option<OwnInstances>,
    /// What all instances have in common.
    pub(super) records: ServerRecords,
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
        let own = (spec.sharing == Sharing::Auto).then(|| {
            let spec = Arc::new(spec.clone());
            OwnInstances::new(Instances::beside_shared(spec, records.clone(), services.clone()))
        });
        if !spec.has_instance_per_era() {
            let main = Supervisor::start_instance(Arc::default(), spec, replaced, records.clone(), services);
            return Self { main, stateless: None, own, records };
        }
        let stateless = stateless_spec(&spec);
        // Its calls are counted once, as those of the server.
        let main_records = ServerRecords { metrics: records.metrics.clone(), ..records.for_instance() };
        let main = Supervisor::start_instance(Arc::default(), spec, replaced, main_records, services.clone());
        let owner = Arc::new(InstanceOwner { key: stateless_key(), ..InstanceOwner::default() });
        let stateless =
            Supervisor::start_instance(owner, stateless, Vec::new(), records.for_instance(), services);
        Self { main, stateless: Some(stateless), own, records }
    }

    /// Returns the supervisor of the instance that starts at boot and serves clients in a session.
    pub(super) fn main(&self) -> &Supervisor {
        &self.main
    }

    /// Returns the stderr of all instances.
    pub(super) fn stderr(&self) -> &StderrTail {
        &self.records.stderr
    }

    /// Returns the first request that the server was seen to send to a client during a call.
    pub(super) fn asks(&self) -> Option<&'static str> {
        self.records.listing_store.asks()
    }

    /// Returns the supervisor of the shared instance that clients of an era use. If the server speaks only one era, all use the
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

    /// Returns a lease for a client of an era if the instance that it uses is ready, and is the same for all such clients.
    pub(super) fn try_lease(&self, era: Era) -> Option<Lease> {
        if self.splits_clients() {
            return None;
        }
        match self.known_eras().and_then(SpokenEras::only) {
            // It is rarely the other one, which is looked for only then.
            Some(Era::Session) => self.main.try_lease().or_else(|| self.for_era(era).try_lease()),
            _ => self.for_era(era).try_lease(),
        }
    }

    /// Returns a lease on the instance that a call goes to, and the instance.
    pub(super) async fn lease(&self, call: &Call) -> Result<(Lease, LeaseOrigin), Error> {
        let known_eras = self.known_eras();
        let leased = self.lease_once(call).await;
        // The server turned out to speak only one era.
        match leased.is_err() && self.known_eras() != known_eras {
            true => Box::pin(self.lease_once(call)).await,
            false => leased,
        }
    }

    /// Waits for the start that shows which eras the server speaks, if one is running: until then, a client of the other era
    /// would start a second process of a server that speaks only one.
    async fn wait_for_first_start(&self) {
        let is_unknown = || self.known_eras() == Some(SpokenEras::default());
        for supervisor in self.supervisors() {
            if is_unknown() && supervisor.is_starting() {
                supervisor.wait_while_starting().await;
            }
        }
    }

    async fn lease_once(&self, call: &Call) -> Result<(Lease, LeaseOrigin), Error> {
        if let Some(own) = self.own_for(call) {
            match Box::pin(own.instances.lease_for_client(call)).await {
                // There are as many instances as there may be, so clients share one.
                Err(error) if error.kind() == ErrorKind::OverQuota => {}
                leased => return leased,
            }
        }
        self.wait_for_first_start().await;
        let asked = self.for_era(call.client.era);
        let is_session = self.opens_session(call.client.era);
        let capabilities = (self.splits_clients() && is_session).then(|| call.announced_capabilities());
        // A client of one server asks for its lists itself.
        let needs_lists = !call.client.has_one_server;
        let client = LeaseClient { capabilities, needs_lists, ..self.lease_client(asked, call.client.era) };
        let lease = asked.lease(client).await?;
        Ok((lease, LeaseOrigin::shared(self.key_of(asked), asked)))
    }

    /// Returns a lease on the shared instance for clients of an era, and the supervisor that granted it.
    pub(super) async fn lease_shared(&self, era: Era) -> Result<(Lease, &Supervisor), Error> {
        self.lease_in_era(era, true).await
    }

    async fn lease_in_era(&self, era: Era, needs_lists: bool) -> Result<(Lease, &Supervisor), Error> {
        let client = |asked: &Supervisor| LeaseClient { needs_lists, ..self.lease_client(asked, era) };
        let known_eras = self.known_eras();
        let mut asked = self.for_era(era);
        let mut leased = asked.lease(client(asked)).await;
        // The server turned out to speak only one era.
        if leased.is_err() && self.known_eras() != known_eras {
            asked = self.for_era(era);
            leased = asked.lease(client(asked)).await;
        }
        leased.map(|lease| (lease, asked))
    }

    fn lease_client(&self, asked: &Supervisor, era: Era) -> LeaseClient {
        let mut others = self.shared_supervisors().filter(|supervisor| !supervisor.is_same(asked));
        LeaseClient { is_other_up: others.any(|other| !other.is_asleep()), ..LeaseClient::from(era) }
    }

    /// Starts the server and returns what it says about itself, without its lists.
    pub(crate) async fn introduce(&self, era: Era) -> Result<Listing, Error> {
        let (lease, _) = self.lease_in_era(era, false).await?;
        Ok(lease.connection().handshake_listing())
    }

    /// Starts the server and reads its lists, if a start for a client of one server has not done that.
    pub(super) async fn discover(&self, era: Era) -> Result<(), Error> {
        let (_lease, supervisor) = self.lease_shared(era).await?;
        if self.listing().is_none()
            && let Some(listing) = supervisor.first_listing()
        {
            listing.wait().await;
        }
        Ok(())
    }

    /// Returns whether a lease is on an instance of this server.
    pub(super) fn is_origin(&self, origin: &LeaseOrigin) -> bool {
        let is_own = self.own.as_ref().is_some_and(|own| origin.is_of(&own.instances));
        is_own || self.shared_supervisors().any(|supervisor| supervisor.is_same(&origin.supervisor))
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
        let own = self.own.as_ref().map(|own| own.instances.supervisors()).unwrap_or_default();
        self.shared_supervisors().cloned().chain(own).collect()
    }

    /// Returns the supervisors of the instances that all clients of an era share.
    pub(super) fn shared_supervisors(&self) -> impl Iterator<Item = &Supervisor> {
        std::iter::once(&self.main).chain(&self.stateless)
    }

    /// Returns all instances, to be retired.
    pub(super) fn into_instances(self) -> Vec<KeyedSupervisor> {
        let keyed = |supervisor: &Supervisor| KeyedSupervisor {
            key: self.key_of(supervisor),
            supervisor: supervisor.clone(),
        };
        let own = self.own.as_ref().map(|own| own.instances.close()).unwrap_or_default();
        self.shared_supervisors().map(keyed).chain(own).collect()
    }

    pub(super) fn spec(&self) -> &ServerSpec {
        self.main.spec()
    }

    /// Returns whether both are the same server, possibly with different settings.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.main.is_same(&other.main)
    }

    /// Returns whether no call uses the server.
    pub(super) fn is_idle(&self) -> bool {
        self.supervisors().iter().all(Supervisor::is_idle)
    }

    /// Takes over a changed spec without a restart. The spec must not need a restart.
    pub(super) fn update(&self, spec: &ServerSpec) -> Self {
        let stateless = self.stateless.as_ref().map(|supervisor| supervisor.update(stateless_spec(spec)));
        self.own.iter().for_each(|own| own.instances.update(&Arc::new(spec.clone())));
        Self { main: self.main.update(spec.clone()), stateless, ..self.clone() }
    }

    /// Returns the last known listing, or the tools of its card if it was never listed.
    pub(super) fn listing(&self) -> Option<Arc<Listing>> {
        if self.stateless.is_none() {
            return self.main.listing();
        }
        let known = self.records.listing_store.get().map(|known| known.listing);
        known.or_else(|| self.records.cards.listing())
    }

    /// Stops every instance and waits until the server is up again. Those for some clients only start with the next call.
    pub(super) async fn restart(&self) -> Result<(), Error> {
        // The main one first, so that no call starts on it.
        let (main, others) = tokio::join!(self.main.begin_restart(), self.stop_others());
        main.and(others)?;
        // The server may speak only the era of the other instance, which a client has started by now.
        self.lease_shared(Era::Session).await.map(drop)
    }

    /// Stops every instance.
    pub(super) async fn stop(&self) -> Result<(), Error> {
        let (main, others) = tokio::join!(self.main.stop(), self.stop_others());
        main.and(others)
    }

    /// Stops every instance except the main one.
    async fn stop_others(&self) -> Result<(), Error> {
        if let Some(stateless) = &self.stateless {
            stateless.stop().await?;
        }
        match &self.own {
            Some(own) => own.instances.stop().await,
            None => Ok(()),
        }
    }

    pub(super) fn status(&self, now: Instant) -> ServerStatus {
        let asks = self.own.as_ref().and_then(|_| self.asks());
        let instances = self.instance_statuses(now);
        if let [only] = &*instances {
            return ServerStatus { asks, ..only.status.clone() };
        }
        let each = || instances.iter().map(|instance| &instance.status);
        let up: Vec<&ServerStatus> = each().filter(|status| status.uptime.is_some()).collect();
        let mut eras: Vec<Era> = up.iter().flat_map(|status| status.eras.clone()).collect();
        eras.sort_by_key(|era| *era == Era::Stateless);
        eras.dedup();
        let main = &instances[0].status;
        // The instance that represents the server.
        let shown = if main.uptime.is_some() { main } else { *up.first().unwrap_or(&main) };
        let ServerRecords { metrics, listing_store, stderr, .. } = &self.records;
        let known = listing_store.get();
        let listing = self.listing();
        ServerStatus {
            asks,
            start: main.start,
            state: STATE_PRIORITY
                .into_iter()
                .find(|state| each().any(|status| status.state == *state))
                .unwrap_or(shown.state),
            pid: if up.len() > 1 { None } else { shown.pid },
            uptime: up.iter().filter_map(|status| status.uptime).max(),
            generation: each().map(|status| status.generation).sum(),
            leases: each().map(|status| status.leases).sum(),
            in_flight: each().map(|status| status.in_flight).sum(),
            consecutive_failures: each().map(|status| status.consecutive_failures).max().unwrap_or(0),
            next_attempt_in: each().filter_map(|status| status.next_attempt_in).min(),
            last_error: each().filter_map(|status| status.last_error.clone()).max_by_key(|error| error.at),
            stderr_tail: stderr.lines_after(0).into_iter().map(|line| line.text).collect(),
            garbage_lines: each().map(|status| status.garbage_lines).sum(),
            memory: each().filter_map(|status| status.memory).reduce(|sum, memory| sum + memory),
            cpu_time: each().filter_map(|status| status.cpu_time).reduce(|sum, time| sum + time),
            queued: each().map(|status| status.queued).sum(),
            tools: listing.as_ref().and_then(|listing| listing.tool_count()),
            listing_errors: join_listing_errors(each(), listing.as_deref()),
            problems: listing.map(|listing| listing.problems()).unwrap_or_default(),
            calls: metrics.calls(),
            errors: metrics.errors(),
            p50: metrics.percentile(0.5),
            p99: metrics.percentile(0.99),
            protocol: match eras.len() {
                0 => known.as_ref().map(|known| known.revision),
                1 => shown.protocol,
                _ => up.iter().filter_map(|status| status.protocol).max(),
            },
            eras: match (eras.is_empty(), known) {
                (true, Some(known)) => vec![known.revision.era()],
                _ => eras,
            },
            instances: match up.len() {
                0 | 1 => Vec::new(),
                _ => instances.iter().filter(|one| one.status.uptime.is_some()).cloned().collect(),
            },
            ..shown.clone()
        }
    }

    /// Returns the status of each instance, the main one first. Its calls are counted as those of the server.
    fn instance_statuses(&self, now: Instant) -> Vec<InstanceStatus> {
        let status = |supervisor: &Supervisor| {
            InstanceStatus::new(self.key_of(supervisor), supervisor.idle_time(now), supervisor.status(now))
        };
        let mut instances: Vec<InstanceStatus> = self.shared_supervisors().map(status).collect();
        instances.extend(self.own.iter().flat_map(|own| own.instances.instance_statuses(now)));
        if let [main, others @ ..] = &mut *instances {
            let counted = |count: fn(&ServerStatus) -> u64| others.iter().map(|one| count(&one.status)).sum();
            main.status.calls = main.status.calls.saturating_sub(counted(|status| status.calls));
            main.status.errors = main.status.errors.saturating_sub(counted(|status| status.errors));
        }
        instances
    }
}

/// Returns the lists that an instance could not read, or that could never be read.
fn join_listing_errors<'a>(
    instances: impl Iterator<Item = &'a ServerStatus>,
    listing: Option<&Listing>,
) -> Vec<ListingError> {
    let mut errors: Vec<ListingError> = Vec::new();
    for error in instances.flat_map(|status| &status.listing_errors) {
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
