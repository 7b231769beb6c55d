//! Tests of pruning. Reservations are covered by the contract of the store and by the tests of the limiter.

use std::num::NonZeroU32;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn callers_without_recent_usage_are_pruned() {
    let mut usage = Usage::default();
    let calls = NonZeroU32::new(5).unwrap();
    let counter =
        LimitCounter { name: "policy.quota".into(), ordinal: 0, kind: LimitKind::Quota { calls, per: HOUR } };
    let counters: CounterList<'_> = [&counter].into_iter().collect();
    let now = Instant::now();
    for number in 0..2 * PRUNE_THRESHOLD {
        let caller = Caller::new(&format!("caller-{number}"));
        let request = LimitRequest { caller: &caller, counters: counters.clone(), max_wait: None, now };
        usage.reserve(&request).unwrap();
    }
    assert_eq!(usage.by_caller.len(), 2 * PRUNE_THRESHOLD, "every caller has used something");
    for number in 0..10 * PRUNE_THRESHOLD {
        let caller = Caller::new(&format!("later-{number}"));
        let request =
            LimitRequest { caller: &caller, counters: counters.clone(), max_wait: None, now: now + HOUR };
        let send_at = usage.reserve(&request).unwrap();
        usage.release(&caller, &counters, send_at);
    }
    assert!(usage.by_caller.len() <= 5 * PRUNE_THRESHOLD, "{}", usage.by_caller.len());
}
