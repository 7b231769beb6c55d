//! Checks the memory of running servers against the limits of each server and of all servers together.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Supervisor;
use crate::process::MEASURES_MEMORY;
use crate::spec::Capacity;

/// Interval between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The memory of one running server and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryUsage {
    /// Bytes used by the server and its descendants.
    pub(crate) used: u64,
    /// Above this, the server is replaced as soon as it is idle.
    pub(crate) soft_limit: Option<u64>,
    /// Above this, the server is stopped.
    pub(crate) hard_limit: Option<u64>,
    /// Position in the order in which servers became idle; `None` while in use.
    pub(crate) idle_rank: Option<u64>,
}

/// The memory of one generation of a server.
#[derive(Debug, Clone)]
pub(crate) struct MemorySample {
    pub(crate) generation: u64,
    pub(crate) usage: MemoryUsage,
}

/// The action to take on a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryVerdict {
    /// Stop it as soon as it is idle: it is above its soft limit.
    Recycle,
    /// Stop it if it is idle: all servers together are above the total limit.
    Evict,
    /// Stop it now: it is above its hard limit.
    OverHardLimit {
        /// Its hard limit in bytes.
        limit: u64,
    },
    /// Stop it now: all servers together are above the total limit, none is idle, and it uses the most.
    LargestOverTotal {
        /// The total limit in bytes.
        limit: u64,
    },
}

/// Returns a verdict for each server, `None` if it may continue. If all servers together are above `total_limit`, idle
/// servers are evicted first, longest idle first, and then the largest of those in use is stopped.
pub(crate) fn evaluate(servers: &[MemoryUsage], total_limit: Option<u64>) -> Vec<Option<MemoryVerdict>> {
    let mut verdicts: Vec<_> = servers.iter().map(check_own_limits).collect();
    let Some(limit) = total_limit else { return verdicts };
    let stops_now = |server: &MemoryUsage, verdict: Option<MemoryVerdict>| match verdict {
        Some(MemoryVerdict::Recycle) => server.idle_rank.is_some(),
        verdict => verdict.is_some(),
    };
    let staying = servers.iter().zip(&verdicts).filter(|(server, verdict)| !stops_now(server, **verdict));
    let mut total: u64 = staying.map(|(server, _)| server.used).sum();
    let mut idle: Vec<usize> = (0..servers.len())
        .filter(|index| servers[*index].idle_rank.is_some() && verdicts[*index].is_none())
        .collect();
    idle.sort_by_key(|index| servers[*index].idle_rank);
    for index in idle {
        if total <= limit {
            return verdicts;
        }
        verdicts[index] = Some(MemoryVerdict::Evict);
        total -= servers[index].used;
    }
    let staying = (0..servers.len()).filter(|index| !stops_now(&servers[*index], verdicts[*index]));
    if let Some(largest) = staying.max_by_key(|index| servers[*index].used)
        && total > limit
    {
        verdicts[largest] = Some(MemoryVerdict::LargestOverTotal { limit });
    }
    verdicts
}

fn check_own_limits(server: &MemoryUsage) -> Option<MemoryVerdict> {
    match (server.hard_limit, server.soft_limit) {
        (Some(limit), _) if server.used > limit => Some(MemoryVerdict::OverHardLimit { limit }),
        (_, Some(limit)) if server.used > limit => Some(MemoryVerdict::Recycle),
        _ => None,
    }
}

/// The servers to watch.
pub(crate) struct WatchedServers {
    pub(crate) supervisors: Vec<Supervisor>,
    /// True if any server has its own memory limit, even if it does not run yet.
    pub(crate) any_limited: bool,
}

/// Samples the servers periodically while any memory limit is set. Ends when `servers` returns `None`.
pub(crate) async fn watch(
    servers: impl Fn() -> Option<WatchedServers>,
    mut capacity: watch::Receiver<Capacity>,
    shutdown: CancellationToken,
) {
    let mut has_warned = MEASURES_MEMORY;
    loop {
        let total_limit = capacity.borrow_and_update().memory;
        let Some(WatchedServers { supervisors, any_limited }) = servers() else { return };
        let is_limited = any_limited || total_limit.is_some();
        if is_limited && !has_warned {
            has_warned = true;
            tracing::warn!(
                "memory limits have no effect: this system does not tell the memory of a process tree"
            );
        }
        if is_limited {
            // Reads every process, which would block the runtime. It fails only if it panics.
            let _ = spawn_blocking(move || sample(&supervisors, total_limit)).await;
        } else {
            // Otherwise a draining server would be kept alive until the next sample.
            drop(supervisors);
        }
        tokio::select! {
            () = sleep(SAMPLE_INTERVAL), if is_limited => {}
            changed = capacity.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
    }
}

/// Samples the servers once and sends the verdicts to their actors.
fn sample(supervisors: &[Supervisor], total_limit: Option<u64>) {
    let mut sampled: Vec<&Supervisor> = Vec::new();
    let mut samples: Vec<MemorySample> = Vec::new();
    for supervisor in supervisors {
        if let Some(sample) = supervisor.sample_memory() {
            sampled.push(supervisor);
            samples.push(sample);
        }
    }
    let usages: Vec<MemoryUsage> = samples.iter().map(|sample| sample.usage.clone()).collect();
    let verdicts = evaluate(&usages, total_limit);
    for ((supervisor, sample), verdict) in sampled.into_iter().zip(&samples).zip(verdicts) {
        if let Some(verdict) = verdict {
            supervisor.apply_memory_verdict(sample.generation, sample.usage.used, verdict);
        }
    }
}

/// Formats a number of bytes as MiB or GiB.
pub(super) fn format_bytes(bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit after the point")]
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    match mebibytes {
        0.0..1024.0 => format!("{mebibytes:.1} MiB"),
        _ => format!("{:.1} GiB", mebibytes / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A server's memory; a limit of 0 means none.
    fn usage(used: u64, soft_limit: u64, hard_limit: u64, idle_rank: Option<u64>) -> MemoryUsage {
        let limit = |bytes: u64| (bytes > 0).then_some(bytes);
        MemoryUsage { used, soft_limit: limit(soft_limit), hard_limit: limit(hard_limit), idle_rank }
    }

    #[test]
    fn own_limits_apply_to_each_server() {
        let servers = [
            usage(10, 10, 20, None),
            usage(11, 10, 20, None),
            usage(21, 10, 20, Some(1)),
            usage(21, 0, 20, None),
            usage(99, 0, 0, Some(1)),
        ];
        let recycle = Some(MemoryVerdict::Recycle);
        let over = Some(MemoryVerdict::OverHardLimit { limit: 20 });
        assert_eq!(evaluate(&servers, None), [None, recycle, over, over, None]);
    }

    #[test]
    fn total_limit_evicts_longest_idle_first() {
        let servers = [usage(40, 0, 0, None), usage(30, 0, 0, Some(9)), usage(30, 0, 0, Some(4))];
        let evict = Some(MemoryVerdict::Evict);
        assert_eq!(evaluate(&servers, Some(100)), [None, None, None]);
        assert_eq!(evaluate(&servers, Some(99)), [None, None, evict]);
        assert_eq!(evaluate(&servers, Some(50)), [None, evict, evict]);
    }

    #[test]
    fn total_limit_stops_largest_in_use_after_idle_ones() {
        let servers = [usage(60, 0, 0, None), usage(50, 0, 0, None), usage(1, 0, 0, Some(1))];
        let largest = Some(MemoryVerdict::LargestOverTotal { limit: 100 });
        assert_eq!(evaluate(&servers, Some(100)), [largest, None, Some(MemoryVerdict::Evict)]);
    }

    proptest! {
        #[test]
        fn verdicts_match_the_limits(
            servers in prop::collection::vec((0u64..100, 0u64..100, 0u64..100, prop::option::of(0u64..10)), 0..12),
            total_limit in prop::option::of(0u64..400),
        ) {
            let servers: Vec<_> =
                servers.into_iter().map(|(used, soft, hard, idle)| usage(used, soft, hard, idle)).collect();
            let verdicts = evaluate(&servers, total_limit);
            prop_assert_eq!(verdicts.len(), servers.len());
            let is_largest =
                |verdict: &&Option<MemoryVerdict>| matches!(verdict, Some(MemoryVerdict::LargestOverTotal { .. }));
            prop_assert!(verdicts.iter().filter(is_largest).count() <= 1);
            let total: u64 = servers.iter().map(|server| server.used).sum();
            let over_total = total_limit.is_some_and(|limit| total > limit);
            for (server, verdict) in servers.iter().zip(&verdicts) {
                let over = |limit: Option<u64>| limit.is_some_and(|limit| server.used > limit);
                match verdict {
                    None => prop_assert!(!over(server.soft_limit) && !over(server.hard_limit)),
                    Some(MemoryVerdict::OverHardLimit { .. }) => prop_assert!(over(server.hard_limit)),
                    Some(MemoryVerdict::Recycle) => prop_assert!(over(server.soft_limit)),
                    Some(MemoryVerdict::Evict) => prop_assert!(server.idle_rank.is_some() && over_total),
                    Some(MemoryVerdict::LargestOverTotal { .. }) => {
                        prop_assert!(server.idle_rank.is_none() && over_total);
                    }
                }
            }
        }
    }
}
