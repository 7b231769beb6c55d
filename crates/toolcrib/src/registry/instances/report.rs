//! All instances of one server, as its status shows them together.

use tokio::time::Instant;

use super::Instances;
use crate::status::{InstanceStatus, ServerStatus, StateName};

/// States from the one that says most about a server to the one that says least.
const TELLING: [StateName; 7] = [
    StateName::Ready,
    StateName::Probing,
    StateName::Tripped,
    StateName::Starting,
    StateName::BackingOff,
    StateName::Ejected,
    StateName::Stopping,
];

impl Instances {
    /// All of them together: sums, the most telling state, the worst of the rest. A process is shown if there is but one.
    pub(crate) fn status(&self, now: Instant) -> ServerStatus {
        let mut instances: Vec<InstanceStatus> = self
            .open()
            .instances
            .iter()
            .map(|(key, instance)| InstanceStatus {
                key: key.clone(),
                asked: now.duration_since(instance.used),
                status: instance.supervisor.status(now),
            })
            .collect();
        instances.sort_by_key(|instance| instance.asked);
        let each = || instances.iter().map(|instance| &instance.status);
        let running: Vec<&ServerStatus> = each().filter(|status| status.uptime.is_some()).collect();
        let only = match &*running {
            [only] => Some(*only),
            _ => None,
        };
        let known = self.books.memory.known();
        let (gauges, fate) = (&self.books.gauges, &self.books.fate);
        let (restarts, restarts_left) = fate.restarts(now);
        let wait = fate.until(now).map(|until| until.saturating_duration_since(now));
        let otherwise = match (fate.is_ejected(), wait) {
            (true, _) => StateName::Ejected,
            (false, Some(_)) => StateName::BackingOff,
            (false, None) => StateName::Asleep,
        };
        ServerStatus {
            state: TELLING
                .into_iter()
                .find(|state| each().any(|status| status.state == *state))
                .unwrap_or(otherwise),
            pid: only.and_then(|only| only.pid),
            uptime: running.iter().filter_map(|status| status.uptime).max(),
            generation: each().map(|status| status.generation).sum(),
            leases: each().map(|status| status.leases).sum(),
            in_flight: each().map(|status| status.in_flight).sum(),
            restarts,
            restarts_left,
            consecutive_failures: each().map(|status| status.consecutive_failures).max().unwrap_or(0),
            next_attempt_in: each().filter_map(|status| status.next_attempt_in).min().or(wait),
            last_error: fate.last_error(),
            stderr_tail: self.books.stderr.after(0).into_iter().map(|(_, line)| line).collect(),
            noise: each().map(|status| status.noise).sum(),
            memory: each().filter_map(|status| status.memory).reduce(|one, other| one + other),
            tools: known.as_ref().map(|known| known.listing.tools.len()),
            calls: gauges.calls(),
            errors: gauges.errors(),
            p50: gauges.percentile(0.5),
            p99: gauges.percentile(0.99),
            protocol: known.as_ref().map(|known| known.revision),
            server_info: known.and_then(|known| known.server_info),
            instances: instances.clone(),
            ..ServerStatus::off(&self.spec)
        }
    }
}
