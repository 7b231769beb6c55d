//! The combined status of all instances of one server.

use tokio::time::Instant;

use super::Instances;
use crate::model::status::{InstanceStatus, ListingError, STATE_PRIORITY, ServerState, ServerStatus};
use crate::protocol::versions::{Era, Revision};
use crate::spec::Endpoint;

impl Instances {
    /// Combines the instances: sums of counts, the state with the highest priority, and the pid if only one runs.
    pub(crate) fn status(&self, now: Instant) -> ServerStatus {
        let instances = self.instance_statuses(now);
        let each = || instances.iter().map(|instance| &instance.status);
        let running: Vec<&ServerStatus> = each().filter(|status| status.uptime.is_some()).collect();
        let known = self.records.listing_store.get();
        let protocol = known.as_ref().map(|known| known.revision);
        let has_era = |era: &Era| running.iter().any(|status| status.eras.contains(era));
        let eras: Vec<Era> = [Era::Session, Era::Stateless].into_iter().filter(has_era).collect();
        let is_remote = matches!(self.lock().spec.endpoint, Endpoint::Http(_));
        let listing = self.listing();
        let metrics = &self.records.metrics;
        let gate = &self.records.start_gate;
        let restarts = gate.restart_counts(now);
        let wait = gate.retry_at(now).map(|until| until.saturating_duration_since(now));
        let state_without_instances = match wait {
            _ if gate.is_ejected() => ServerState::Ejected,
            Some(_) => ServerState::BackingOff,
            None => ServerState::Asleep,
        };
        ServerStatus {
            state: STATE_PRIORITY
                .into_iter()
                .find(|state| each().any(|status| status.state == *state))
                .unwrap_or(state_without_instances),
            pid: if let [only] = &*running { only.pid } else { None },
            uptime: running.iter().filter_map(|status| status.uptime).max(),
            generation: each().map(|status| status.generation).sum(),
            leases: each().map(|status| status.leases).sum(),
            in_flight: each().map(|status| status.in_flight).sum(),
            restarts: restarts.spent,
            restarts_left: restarts.remaining,
            consecutive_failures: each().map(|status| status.consecutive_failures).max().unwrap_or(0),
            next_attempt_in: each().filter_map(|status| status.next_attempt_in).min().or(wait),
            last_error: gate.last_error(),
            stderr_tail: self.records.stderr.lines_after(0).into_iter().map(|line| line.text).collect(),
            garbage_lines: each().map(|status| status.garbage_lines).sum(),
            memory: each().filter_map(|status| status.memory).reduce(|sum, memory| sum + memory),
            cpu_time: each().filter_map(|status| status.cpu_time).reduce(|sum, time| sum + time),
            queued: each().map(|status| status.queued).sum(),
            tools: listing.as_ref().and_then(|listing| listing.tool_count()),
            listing_errors: self.listing_errors(&instances),
            problems: listing.map(|listing| listing.problems()).unwrap_or_default(),
            card: self.records.cards.combined(),
            calls: metrics.calls(),
            errors: metrics.errors(),
            p50: metrics.percentile(0.5),
            p99: metrics.percentile(0.99),
            protocol,
            eras: match is_remote && !eras.is_empty() {
                true => eras,
                false => protocol.map(Revision::era).into_iter().collect(),
            },
            server_info: known.and_then(|known| known.listing.server_info.clone()),
            instances: instances.clone(),
            ..ServerStatus::disabled(&self.lock().spec)
        }
    }

    /// Returns the lists that an instance could not read, or that could never be read.
    fn listing_errors(&self, instances: &[InstanceStatus]) -> Vec<ListingError> {
        let current = instances.iter().map(|instance| &instance.status.listing_errors);
        match current.into_iter().find(|errors| !errors.is_empty()) {
            Some(errors) => errors.clone(),
            None => {
                self.listing().map(|listing| ListingError::of_unknown_lists(&listing)).unwrap_or_default()
            }
        }
    }

    /// Returns the status of each instance, most recently used first.
    pub(crate) fn instance_statuses(&self, now: Instant) -> Vec<InstanceStatus> {
        let table = self.lock();
        let mut statuses: Vec<InstanceStatus> = table
            .instances
            .iter()
            .map(|(key, instance)| InstanceStatus {
                key: key.clone(),
                last_used: now.duration_since(instance.last_used),
                status: instance.supervisor.status(now),
            })
            .collect();
        statuses.sort_by_key(|instance| instance.last_used);
        statuses
    }
}
