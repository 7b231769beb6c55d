//! The contract of [`Store`], checked for every implementation. The tests of `toolcrib-valkey` include this file; the parent
//! module supplies the stores and their clock.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::contract_stores::{advance, is_equal_time, stores};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn session(name: &str) -> StoreKey<'_> {
    StoreKey::new(StoreKind::Session, name)
}

async fn get(store: &Arc<dyn Store>, key: StoreKey<'_>) -> Option<Bytes> {
    store.get(key).wait().await.unwrap()
}

async fn put(store: &Arc<dyn Store>, key: StoreKey<'_>, value: &'static str, ttl: Option<Duration>) {
    store.put(key, Bytes::from_static(value.as_bytes()), ttl).wait().await.unwrap();
}

fn quota(name: &str, calls: u32) -> LimitCounter {
    let calls = NonZeroU32::new(calls).unwrap();
    LimitCounter { name: name.into(), ordinal: 0, kind: LimitKind::Quota { calls, per: HOUR } }
}

fn rate(name: &str, calls: u32, max_wait: Duration) -> LimitCounter {
    let calls = NonZeroU32::new(calls).unwrap();
    LimitCounter { name: name.into(), ordinal: 0, kind: LimitKind::Rate { calls, per: SECOND, max_wait } }
}

/// Starts a reservation without waiting for it.
fn reserve(store: &Arc<dyn Store>, caller: &Caller, counters: &[LimitCounter]) -> StoreResult<Admission> {
    let counters = counters.iter().collect();
    store.reserve(&LimitRequest { caller, counters, max_wait: None, now: Instant::now() })
}

fn is_admitted(admission: &Admission) -> bool {
    matches!(admission, Admission::Admitted { .. })
}

fn refusal(admission: Admission) -> LimitRefusal {
    match admission {
        Admission::Refused(refusal) => refusal,
        admitted => panic!("the call was admitted: {admitted:?}"),
    }
}

async fn usage(store: &Arc<dyn Store>, caller: &Caller, counters: &[LimitCounter]) -> Vec<CounterUsage> {
    store.usage(caller, &counters.iter().collect(), Instant::now()).wait().await.unwrap()
}

async fn used(store: &Arc<dyn Store>, caller: &Caller, counters: &[LimitCounter]) -> Vec<u32> {
    usage(store, caller, counters).await.iter().map(|usage| usage.used).collect()
}

#[tokio::test(start_paused = true)]
async fn value_is_returned_until_it_expires() {
    for store in stores().await {
        assert_eq!(get(&store, session("a")).await, None);
        put(&store, session("a"), "1", Some(SECOND)).await;
        put(&store, session("b"), "2", None).await;
        assert_eq!(get(&store, session("a")).await.as_deref(), Some(&b"1"[..]));
        put(&store, session("a"), "3", Some(3 * SECOND)).await;
        advance(2 * SECOND).await;
        assert_eq!(
            get(&store, session("a")).await.as_deref(),
            Some(&b"3"[..]),
            "the lifetime is replaced too"
        );
        advance(SECOND).await;
        assert_eq!(get(&store, session("a")).await, None);
        advance(HOUR).await;
        assert_eq!(get(&store, session("b")).await.as_deref(), Some(&b"2"[..]));
    }
}

#[tokio::test(start_paused = true)]
async fn kinds_do_not_share_names() {
    for store in stores().await {
        for kind in StoreKind::ALL {
            put(&store, StoreKey::new(kind, "same"), kind.as_str(), None).await;
        }
        for kind in StoreKind::ALL {
            assert_eq!(
                get(&store, StoreKey::new(kind, "same")).await.as_deref(),
                Some(kind.as_str().as_bytes())
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn put_if_absent_succeeds_once_until_the_value_expires() {
    for store in stores().await {
        for _ in 0..2 {
            let attempts: Vec<_> = (0..8)
                .map(|_| store.put_if_absent(session("a"), Bytes::from_static(b"1"), Some(SECOND)))
                .collect();
            let mut set = 0;
            for attempt in attempts {
                set += u32::from(attempt.wait().await.unwrap());
            }
            assert_eq!(set, 1);
            advance(SECOND).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn replace_succeeds_once_and_only_for_the_expected_value() {
    for store in stores().await {
        let expected = Bytes::from_static(b"1");
        let replace =
            || store.replace(session("a"), &expected, Bytes::from_static(b"2"), Some(SECOND)).wait();
        assert!(!replace().await.unwrap(), "there is no value");
        put(&store, session("a"), "1", Some(SECOND)).await;
        assert_eq!([replace().await.unwrap(), replace().await.unwrap()], [true, false]);
        assert_eq!(get(&store, session("a")).await.as_deref(), Some(&b"2"[..]));
        put(&store, session("a"), "1", Some(SECOND)).await;
        advance(SECOND).await;
        assert!(!replace().await.unwrap(), "expired");
    }
}

#[tokio::test(start_paused = true)]
async fn take_returns_a_value_once() {
    for store in stores().await {
        put(&store, session("a"), "1", Some(SECOND)).await;
        let attempts: Vec<_> = (0..8).map(|_| store.take(session("a"))).collect();
        let mut taken = 0;
        for attempt in attempts {
            taken += u32::from(attempt.wait().await.unwrap().is_some());
        }
        assert_eq!(taken, 1);
        put(&store, session("a"), "2", Some(SECOND)).await;
        advance(SECOND).await;
        assert_eq!(store.take(session("a")).wait().await.unwrap(), None, "expired");
    }
}

#[tokio::test(start_paused = true)]
async fn remaining_ttl_is_returned_with_the_value() {
    for store in stores().await {
        put(&store, session("a"), "1", Some(3 * SECOND)).await;
        put(&store, session("b"), "2", None).await;
        advance(SECOND).await;
        let ttl = async |name| {
            let found = store.get_with_ttl(session(name)).wait().await.unwrap();
            found.map(|found| (found.value, found.ttl))
        };
        let (value, rest) = ttl("a").await.unwrap();
        assert!(value == "1" && is_equal_time(rest.unwrap(), 2 * SECOND), "{rest:?}");
        assert_eq!(ttl("b").await, Some(("2".into(), None)));
        advance(2 * SECOND).await;
        assert_eq!(ttl("a").await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn take_and_put_exchanges_a_value_once() {
    let pending = StoreKey::new(StoreKind::PendingApproval, "a");
    let decision = StoreKey::new(StoreKind::ApprovalDecision, "b");
    for store in stores().await {
        for (from, to) in [(pending, decision), (decision, pending), (session("a"), session("b"))] {
            put(&store, from, "old", None).await;
            let attempts: Vec<_> =
                (0..8).map(|number| store.take_and_put(from, to, number.to_string().into(), None)).collect();
            let mut taken = Vec::new();
            for attempt in attempts {
                taken.extend(attempt.wait().await.unwrap());
            }
            assert_eq!(taken, ["old"]);
            assert_eq!(get(&store, from).await, None);
            assert_eq!(get(&store, to).await.as_deref(), Some(&b"0"[..]), "a later attempt changes nothing");
            assert!(store.remove(to).wait().await.unwrap());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn list_returns_valid_values_with_the_prefix_in_order() {
    for store in stores().await {
        for name in ["b/2", "a", "b/1", "b/3"] {
            put(&store, session(name), "1", None).await;
        }
        put(&store, session("b/0"), "1", Some(SECOND)).await;
        advance(SECOND).await;
        assert!(store.remove(session("b/3")).wait().await.unwrap());
        assert!(!store.remove(session("b/3")).wait().await.unwrap());
        let listed = store.list(StoreKind::Session, "b/").wait().await.unwrap();
        let names: Vec<&str> = listed.iter().map(|value| value.name.as_str()).collect();
        assert_eq!(names, ["b/1", "b/2"]);
        assert!(store.list(StoreKind::Pin, "").wait().await.unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn operations_take_effect_in_order_and_without_waiting() {
    for store in stores().await {
        for number in 0..10 {
            drop(store.put(session("a"), Bytes::from(format!("{number}")), None));
            drop(store.remove(session("a")));
        }
        assert_eq!(get(&store, session("a")).await, None);
        drop(store.put(session("a"), Bytes::from_static(b"last"), None));
        assert_eq!(get(&store, session("a")).await.as_deref(), Some(&b"last"[..]));
    }
}

#[tokio::test(start_paused = true)]
async fn bounded_kind_evicts_what_expires_first() {
    let max = StoreKind::PendingApproval.max_values().unwrap();
    for store in stores().await {
        for number in 0..max + 10 {
            let name = format!("{number:05}");
            put(&store, StoreKey::new(StoreKind::PendingApproval, &name), "1", Some(HOUR)).await;
            advance(Duration::from_millis(1)).await;
        }
        let listed = store.list(StoreKind::PendingApproval, "").wait().await.unwrap();
        assert_eq!((listed.len(), listed[0].name.as_str()), (max, "00010"));
    }
}

#[tokio::test(start_paused = true)]
async fn watchers_of_a_kind_get_its_notices_in_order() {
    for store in stores().await {
        let mut first = store.watch(StoreKind::Revocation);
        let mut second = store.watch(StoreKind::Revocation);
        let mut other = store.watch(StoreKind::CachedResponse);
        for name in ["a", "b"] {
            store.publish(StoreKey::new(StoreKind::Revocation, name)).wait().await.unwrap();
        }
        for watcher in [&mut first, &mut second] {
            assert_eq!(watcher.recv().await.unwrap(), StoreNotice::Changed("a".into()));
            assert_eq!(watcher.recv().await.unwrap(), StoreNotice::Changed("b".into()));
        }
        assert!(other.try_recv().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn reservation_counts_in_every_counter_or_in_none() {
    let caller = Caller::new("ci");
    let counters = [quota("wide", 5), quota("narrow", 2)];
    for store in stores().await {
        for _ in 0..2 {
            assert!(is_admitted(&reserve(&store, &caller, &counters).wait().await.unwrap()));
            advance(SECOND).await;
        }
        let refused = refusal(reserve(&store, &caller, &counters).wait().await.unwrap());
        assert_eq!(&*refused.counter.name, "narrow");
        assert!(is_equal_time(refused.wait, HOUR - 2 * SECOND), "{refused:?}");
        assert_eq!(used(&store, &caller, &counters).await, [2, 2]);
        assert!(is_admitted(&reserve(&store, &caller, &counters[..1]).wait().await.unwrap()));
        assert!(is_admitted(&reserve(&store, &Caller::new("other"), &counters).wait().await.unwrap()));
        assert_eq!(used(&store, &caller, &counters).await, [3, 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_names_the_counter_with_the_longest_wait() {
    let caller = Caller::new("ci");
    let counters = [rate("first", 1, Duration::ZERO), quota("second", 1), quota("third", 1)];
    for store in stores().await {
        assert!(is_admitted(&reserve(&store, &caller, &counters).wait().await.unwrap()));
        let refused = refusal(reserve(&store, &caller, &counters).wait().await.unwrap());
        assert_eq!(&*refused.counter.name, "second");
        assert!(is_equal_time(refused.wait, HOUR), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn reservations_made_together_stay_within_the_limit() {
    let caller = Caller::new("ci");
    let counters = [quota("a", 10), quota("b", 12)];
    for store in stores().await {
        let attempts: Vec<_> = (0..50).map(|_| reserve(&store, &caller, &counters)).collect();
        let mut admitted = 0;
        for attempt in attempts {
            admitted += u32::from(is_admitted(&attempt.wait().await.unwrap()));
        }
        assert_eq!((admitted, used(&store, &caller, &counters).await), (10, vec![10, 10]));
    }
}

#[tokio::test(start_paused = true)]
async fn released_reservation_no_longer_counts() {
    let caller = Caller::new("ci");
    let counters = [quota("quota", 1), rate("rate", 1, Duration::ZERO)];
    for store in stores().await {
        for _ in 0..3 {
            let Admission::Admitted { token, .. } = reserve(&store, &caller, &counters).wait().await.unwrap()
            else {
                panic!("the call was refused");
            };
            // A counter without the reservation is not changed.
            let list = counters.iter().chain([&counters[0]]).collect();
            store.release(&UsageRelease { caller: &caller, counters: list, token }).wait().await.unwrap();
            advance(Duration::from_millis(1)).await;
        }
        assert_eq!(used(&store, &caller, &counters).await, [0, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn call_over_a_rate_waits_as_long_as_allowed() {
    let caller = Caller::new("ci");
    let counters = [rate("rate", 1, 2 * SECOND)];
    for store in stores().await {
        for expected in [Duration::ZERO, SECOND, 2 * SECOND] {
            let admission = reserve(&store, &caller, &counters).wait().await.unwrap();
            assert!(
                matches!(admission, Admission::Admitted { delay, .. } if is_equal_time(delay, expected)),
                "{admission:?}"
            );
        }
        let refused = refusal(reserve(&store, &caller, &counters).wait().await.unwrap());
        assert!(is_equal_time(refused.wait, 3 * SECOND), "{refused:?}");
        advance(2 * SECOND).await;
        let request = LimitRequest {
            caller: &caller,
            counters: counters.iter().collect(),
            max_wait: Some(SECOND / 2),
            now: Instant::now(),
        };
        let refused = refusal(store.reserve(&request).wait().await.unwrap());
        assert!(is_equal_time(refused.wait, SECOND), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn usage_is_kept_when_the_numbers_of_a_limit_change() {
    let caller = Caller::new("ci");
    for store in stores().await {
        for _ in 0..3 {
            assert!(is_admitted(&reserve(&store, &caller, &[quota("a", 3)]).wait().await.unwrap()));
        }
        let lowered = [quota("a", 2)];
        let [CounterUsage { used: 3, wait }] = *usage(&store, &caller, &lowered).await else {
            panic!("three calls are counted")
        };
        assert!(is_equal_time(wait, HOUR), "{wait:?}");
        assert!(is_admitted(&reserve(&store, &caller, &[quota("a", 4)]).wait().await.unwrap()));
        let second = LimitCounter { ordinal: 1, ..quota("a", 4) };
        assert_eq!(used(&store, &caller, &[quota("a", 4), second]).await, [4, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn cleared_usage_is_forgotten() {
    let caller = Caller::new("ci");
    let counters = [quota("a", 3), quota("b", 3)];
    for store in stores().await {
        assert!(store.callers().wait().await.unwrap().is_empty());
        assert!(is_admitted(&reserve(&store, &caller, &counters).wait().await.unwrap()));
        assert_eq!(store.callers().wait().await.unwrap(), std::slice::from_ref(&caller));
        store.clear_usage(&caller, &counters[..1].iter().collect()).wait().await.unwrap();
        assert_eq!(used(&store, &caller, &counters).await, [0, 1]);
        store.clear_usage(&caller, &counters.iter().collect()).wait().await.unwrap();
        assert!(store.callers().wait().await.unwrap().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn long_list_of_counters_is_complete() {
    let caller = Caller::new("ci");
    let counters: Vec<LimitCounter> = (0..30).map(|number| quota(&number.to_string(), 1)).collect();
    for store in stores().await {
        assert!(is_admitted(&reserve(&store, &caller, &counters).wait().await.unwrap()));
        assert_eq!(used(&store, &caller, &counters).await, [1; 30]);
    }
}
