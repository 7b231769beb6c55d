//! What servers weigh in memory against what they may, each of them and all together.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Supervisor;
use crate::spec::Capacity;

/// How often servers are weighed.
const WEIGH: Duration = Duration::from_secs(1);

/// One running server on the scales.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Weight {
    /// Bytes it uses, with everything it started.
    pub(crate) used: u64,
    /// Beyond this it is replaced as soon as nobody uses it.
    pub(crate) soft: Option<u64>,
    /// Beyond this it is stopped.
    pub(crate) hard: Option<u64>,
    /// Since when nobody uses it, in any unit; `None` while somebody does.
    pub(crate) idle_since: Option<u64>,
}

/// What is to become of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes as soon as nobody uses it: it alone uses more than it should.
    Recycle,
    /// It goes if nobody uses it: together they use more than they may.
    MakeRoom,
    /// It goes now: it alone uses more than it may.
    TooHeavy {
        /// How much that is.
        may: u64,
    },
    /// It goes now: together they use more than they may, nobody else can go, and it is the heaviest.
    Heaviest {
        /// How much all of them may use.
        may: u64,
    },
}

/// Judges everybody on the scales; `None` for those who may stay. Together they may weigh `all`: if they weigh more,
/// the idle go first, the longest idle before the others, and only then the heaviest of those in use.
pub(crate) fn judge(weights: &[Weight], all: Option<u64>) -> Vec<Option<Verdict>> {
    let alone = |weight: &Weight| match weight {
        Weight { used, hard: Some(hard), .. } if used > hard => Some(Verdict::TooHeavy { may: *hard }),
        Weight { used, soft: Some(soft), .. } if used > soft => Some(Verdict::Recycle),
        _ => None,
    };
    let mut verdicts: Vec<_> = weights.iter().map(alone).collect();
    let Some(all) = all else { return verdicts };
    let goes_now = |weight: &Weight, verdict: Option<Verdict>| match verdict {
        Some(Verdict::Recycle) => weight.idle_since.is_some(),
        verdict => verdict.is_some(),
    };
    let rest = weights.iter().zip(&verdicts).filter(|(weight, verdict)| !goes_now(weight, **verdict));
    let mut total: u64 = rest.map(|(weight, _)| weight.used).sum();
    let mut idle: Vec<usize> = (0..weights.len())
        .filter(|at| weights[*at].idle_since.is_some() && verdicts[*at].is_none())
        .collect();
    idle.sort_by_key(|at| weights[*at].idle_since);
    for at in idle {
        if total <= all {
            return verdicts;
        }
        verdicts[at] = Some(Verdict::MakeRoom);
        total -= weights[at].used;
    }
    let staying = (0..weights.len()).filter(|at| !goes_now(&weights[*at], verdicts[*at]));
    if let Some(heaviest) = staying.max_by_key(|at| weights[*at].used)
        && total > all
    {
        verdicts[heaviest] = Some(Verdict::Heaviest { may: all });
    }
    verdicts
}

/// Weighs the servers again and again, as long as there is a limit to hold their weight against. `servers` also says
/// whether one of them has a limit of its own, which one may have that does not run yet.
pub(crate) async fn watch(
    servers: impl Fn() -> Option<(Vec<Supervisor>, bool)>,
    mut capacity: watch::Receiver<Capacity>,
    end: CancellationToken,
) {
    loop {
        let all = capacity.borrow_and_update().memory;
        let Some((servers, limited)) = servers() else { return };
        let limited = limited || all.is_some();
        if limited {
            // The system is asked about every process, and nobody else should wait for that. Only a panic fails.
            let _ = spawn_blocking(move || weigh(&servers, all)).await;
        } else {
            drop(servers); // or one that leaves would be kept until the next look
        }
        tokio::select! {
            () = sleep(WEIGH), if limited => {}
            changed = capacity.changed() => if changed.is_err() { return },
            () = end.cancelled() => return,
        }
    }
}

/// Weighs the servers once and tells those who may not stay as they are.
fn weigh(supervisors: &[Supervisor], all: Option<u64>) {
    let weighed: Vec<_> =
        supervisors.iter().filter_map(|supervisor| Some((supervisor, supervisor.weight()?))).collect();
    let weights: Vec<Weight> = weighed.iter().map(|(_, (_, weight))| weight.clone()).collect();
    for ((supervisor, (generation, weight)), verdict) in weighed.iter().zip(judge(&weights, all)) {
        if let Some(verdict) = verdict {
            supervisor.weighed(*generation, weight.used, verdict);
        }
    }
}

/// Bytes as people say them.
pub(super) fn size(bytes: u64) -> String {
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

    fn weight(used: u64, soft: u64, hard: u64, idle_since: Option<u64>) -> Weight {
        let limit = |bytes: u64| (bytes > 0).then_some(bytes);
        Weight { used, soft: limit(soft), hard: limit(hard), idle_since }
    }

    #[test]
    fn each_is_held_to_its_own_limits() {
        let weights = [
            weight(10, 10, 20, None),
            weight(11, 10, 20, None),
            weight(21, 10, 20, Some(1)),
            weight(21, 0, 20, None),
            weight(99, 0, 0, Some(1)),
        ];
        let (recycle, heavy) = (Some(Verdict::Recycle), Some(Verdict::TooHeavy { may: 20 }));
        assert_eq!(judge(&weights, None), [None, recycle, heavy, heavy, None]);
    }

    #[test]
    fn together_the_longest_idle_go_first() {
        let weights = [weight(40, 0, 0, None), weight(30, 0, 0, Some(9)), weight(30, 0, 0, Some(4))];
        assert_eq!(judge(&weights, Some(100)), [None, None, None]);
        assert_eq!(judge(&weights, Some(99)), [None, None, Some(Verdict::MakeRoom)]);
        assert_eq!(judge(&weights, Some(50)), [None, Some(Verdict::MakeRoom), Some(Verdict::MakeRoom)]);
    }

    #[test]
    fn the_heaviest_of_those_in_use_goes_only_when_nobody_idle_is_left() {
        let weights = [weight(60, 0, 0, None), weight(50, 0, 0, None), weight(1, 0, 0, Some(1))];
        let verdicts = judge(&weights, Some(100));
        assert_eq!(verdicts, [Some(Verdict::Heaviest { may: 100 }), None, Some(Verdict::MakeRoom)]);
    }

    proptest! {
        #[test]
        fn whoever_is_in_use_and_within_bounds_stays(
            servers in prop::collection::vec((0u64..100, 0u64..100, 0u64..100, prop::option::of(0u64..10)), 0..12),
            all in prop::option::of(0u64..400),
        ) {
            let weights: Vec<_> =
                servers.into_iter().map(|(used, soft, hard, idle)| weight(used, soft, hard, idle)).collect();
            let verdicts = judge(&weights, all);
            prop_assert_eq!(verdicts.len(), weights.len());
            let busy_ones_stopped = verdicts.iter().filter(|verdict| matches!(verdict, Some(Verdict::Heaviest { .. })));
            prop_assert!(busy_ones_stopped.count() <= 1);
            let total: u64 = weights.iter().map(|weight| weight.used).sum();
            for (weight, verdict) in weights.iter().zip(&verdicts) {
                let over = |limit: Option<u64>| limit.is_some_and(|limit| weight.used > limit);
                match verdict {
                    None => prop_assert!(!over(weight.soft) && !over(weight.hard)),
                    Some(Verdict::TooHeavy { .. }) => prop_assert!(over(weight.hard)),
                    Some(Verdict::Recycle) => prop_assert!(over(weight.soft)),
                    Some(Verdict::MakeRoom) => {
                        prop_assert!(weight.idle_since.is_some() && all.is_some_and(|all| total > all));
                    }
                    Some(Verdict::Heaviest { .. }) => {
                        prop_assert!(weight.idle_since.is_none() && all.is_some_and(|all| total > all));
                    }
                }
            }
        }
    }
}
