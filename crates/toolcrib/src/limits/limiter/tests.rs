//! Tests of reservations, over a store that answers immediately and over one that answers later.

use std::collections::HashMap;

use proptest::prelude::*;
use tokio::runtime::Builder;

use super::*;
use crate::limits::{LimitOwner, OnStoreFailure, UsageLimit};
use crate::model::error::ErrorKind;
use crate::store::{DelayedStore, MemoryStore};

const HOUR: Duration = Duration::from_secs(3600);

fn calls(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

fn target(server: &str, name: &str) -> Target {
    Target { server: server.parse().unwrap(), name: name.into() }
}

fn call(caller: &str) -> Call {
    Call::tool("x").caller(Caller::new(caller))
}

fn hourly(limits: &[(&str, u32)]) -> UsageLimits {
    let limit = |(pattern, count): &(&str, u32)| {
        UsageLimit::quota(calls(*count), HOUR).matching(pattern.parse().unwrap())
    };
    UsageLimits { everyone: limits.iter().map(limit).collect(), ..UsageLimits::default() }
}

fn limiter(limits: &UsageLimits, store: Arc<dyn Store>) -> Limiter {
    Limiter::new(limits.clone(), store, TaskTracker::new())
}

/// Returns a limiter over each kind of store.
fn limiters(limits: &UsageLimits) -> [Limiter; 2] {
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::default()), Arc::new(DelayedStore::new())];
    stores.map(|store| limiter(limits, store))
}

/// Admits a call and counts it as sent.
async fn send(limiter: &Limiter, caller: &str, target: &Target) -> Result<(), Error> {
    let mut call = call(caller);
    let mut reservation = limiter.admit(&mut call, target).await?;
    reservation.dispatched = true;
    Ok(())
}

/// A call of the property test.
#[derive(Debug, Clone)]
struct Step {
    caller: &'static str,
    target: Target,
    is_released: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let caller = prop::sample::select(vec!["one", "two"]);
    let server = prop::sample::select(vec!["a", "b"]);
    let name = prop::sample::select(vec!["x", "y", "z"]);
    let step =
        (caller, server, name, prop::bool::weighted(0.2)).prop_map(|(caller, server, name, is_released)| {
            Step { caller, target: target(server, name), is_released }
        });
    prop::collection::vec(step, 1..80)
}

/// Counts the sent calls of a caller that a limit matches.
fn count_sent(sent: &[Step], caller: &str, limit: &UsageLimit) -> u32 {
    let matches =
        |step: &&Step| step.caller == caller && limit.pattern.matches(&step.target.server, &step.target.name);
    u32::try_from(sent.iter().filter(matches).count()).unwrap()
}

/// Runs the steps and compares every decision and the final status with a list of the sent calls.
async fn check_steps(limiter: &Limiter, limits: &UsageLimits, steps: &[Step]) {
    let mut sent: Vec<Step> = Vec::new();
    for step in steps {
        let is_full = |limit: &&UsageLimit| {
            limit.pattern.matches(&step.target.server, &step.target.name)
                && count_sent(&sent, step.caller, limit) >= limit.kind.calls().get()
        };
        let full: Vec<String> = limits
            .everyone
            .iter()
            .filter(is_full)
            .map(|limit| limit.config_key(LimitOwner::Everyone))
            .collect();
        let mut call = call(step.caller);
        match limiter.admit(&mut call, &step.target).await {
            Ok(mut reservation) => {
                assert!(full.is_empty(), "{full:?}");
                reservation.dispatched = !step.is_released;
                if !step.is_released {
                    sent.push(step.clone());
                }
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::OverQuota);
                assert!(full.iter().any(|key| error.to_string().contains(key)), "{error}: {full:?}");
            }
        }
    }
    for status in limiter.status().await {
        let is_same = |limit: &&UsageLimit| limit.config_key(LimitOwner::Everyone) == status.limit;
        let limit = limits.everyone.iter().find(is_same).unwrap();
        let expected = limit.kind.calls().get() - count_sent(&sent, status.caller.as_str(), limit);
        assert_eq!(status.remaining, expected);
    }
}

proptest! {
    #[test]
    fn call_is_reserved_in_every_matching_limit_or_in_none(steps in steps()) {
        let limits = hourly(&[("*", 20), ("a.*", 8), ("a.x", 3), ("*.x", 5)]);
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            for limiter in limiters(&limits) {
                check_steps(&limiter, &limits, &steps).await;
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn caller_without_limits_is_not_counted() {
    let limits = UsageLimits {
        callers: [("ci".to_owned(), vec![UsageLimit::quota(calls(1), HOUR)])].into(),
        ..UsageLimits::default()
    };
    for limiter in limiters(&limits) {
        send(&limiter, "other", &target("a", "x")).await.unwrap();
        let status = limiter.status().await;
        assert_eq!(status.len(), 1);
        assert_eq!((status[0].caller.as_str(), status[0].remaining), ("ci", 1));
    }
}

#[tokio::test(start_paused = true)]
async fn agents_share_the_limits_of_the_local_user_and_have_their_own() {
    let own = [("agent:codex".to_owned(), vec![UsageLimit::quota(calls(2), HOUR)])];
    let limits = UsageLimits { callers: own.into(), ..hourly(&[("*", 4)]) };
    let target = target("a", "x");
    let local = Caller::local;
    let codex = || Caller::agent("codex");
    let claude = || Caller::agent("claude");
    for limiter in limiters(&limits) {
        for (caller, is_admitted) in [
            (codex(), true),
            (claude(), true),
            (codex(), true),
            (codex(), false),
            (local(), true),
            (claude(), false),
            (local(), false),
        ] {
            let mut call = Call::tool("x").caller(caller.clone());
            match limiter.admit(&mut call, &target).await {
                Ok(mut reservation) => {
                    reservation.dispatched = true;
                    assert!(is_admitted, "{caller:?}");
                }
                Err(error) => assert!(!is_admitted, "{caller:?}: {error}"),
            }
        }
        let status = limiter.status().await;
        assert!(status.len() >= 2 && status.iter().all(|limit| limit.remaining == 0), "{status:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_stay_within_the_limit() {
    let target = target("a", "x");
    for limiter in limiters(&hourly(&[("*", 3)])) {
        let sends: Vec<_> = (0..10).map(|_| Box::pin(send(&limiter, "ci", &target))).collect();
        let results = join_all(sends).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_identical_calls_stay_within_the_limit() {
    let target = target("a", "x");
    let limits = UsageLimits { identical_calls: Some(calls(3)), ..hourly(&[("*", 100)]) };
    for limiter in limiters(&limits) {
        let sends: Vec<_> = (0..10).map(|_| Box::pin(send(&limiter, "ci", &target))).collect();
        let results = join_all(sends).await;
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
        assert_eq!(limiter.status().await[0].remaining, 97, "refused calls do not count");
    }
}

#[tokio::test(start_paused = true)]
async fn call_dropped_while_the_store_works_does_not_count() {
    let target = target("a", "x");
    let limiter = limiter(&hourly(&[("*", 1)]), Arc::new(DelayedStore::new()));
    for _ in 0..3 {
        let mut dropped = call("ci");
        let mut admission = Box::pin(limiter.admit(&mut dropped, &target));
        let first =
            std::future::poll_fn(|context| std::task::Poll::Ready(admission.as_mut().poll(context))).await;
        assert!(first.is_pending());
    }
    limiter.tasks.close();
    limiter.tasks.wait().await;
    assert_eq!(limiter.status().await[0].remaining, 1);
    send(&limiter, "ci", &target).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn call_is_refused_while_the_store_fails() {
    let other = target("b", "x");
    let target = target("a", "x");
    let store = Arc::new(DelayedStore::new());
    let limiter = limiter(&hourly(&[("a.*", 1)]), store.clone());
    store.set_failing(true);
    let error = send(&limiter, "ci", &target).await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::StoreUnavailable, Delivery::NotSent));
    assert!(error.to_string().contains("connection refused"), "{error}");
    // Calls without limits do not need the store.
    send(&limiter, "ci", &other).await.unwrap();
    store.set_failing(false);
    send(&limiter, "ci", &target).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn uncounted_call_needs_the_consent_of_every_limit() {
    let target = target("a", "x");
    let store = Arc::new(DelayedStore::new());
    let limiter = limiter(&UsageLimits::default(), store.clone());
    let limit = |failure| UsageLimit::rate(calls(1), HOUR).on_store_failure(failure);
    let everyone = vec![limit(OnStoreFailure::Allow)];
    limiter.set_limits(UsageLimits { everyone, ..UsageLimits::default() });
    store.set_failing(true);
    send(&limiter, "ci", &target).await.unwrap();
    // A dropped call releases nothing, because nothing was counted.
    drop(limiter.admit(&mut call("ci"), &target).await.unwrap());
    store.set_failing(false);
    send(&limiter, "ci", &target).await.unwrap();
    assert_eq!(send(&limiter, "ci", &target).await.unwrap_err().kind(), ErrorKind::OverQuota);
    let everyone = vec![limit(OnStoreFailure::Allow), limit(OnStoreFailure::Refuse)];
    limiter.set_limits(UsageLimits { everyone, ..UsageLimits::default() });
    store.set_failing(true);
    assert_eq!(send(&limiter, "ci", &target).await.unwrap_err().kind(), ErrorKind::StoreUnavailable);
}

#[tokio::test(start_paused = true)]
async fn changed_limits_keep_the_usage_of_the_same_calls() {
    let target = target("a", "x");
    for limiter in limiters(&hourly(&[("*", 3), ("a.*", 3)])) {
        send(&limiter, "ci", &target).await.unwrap();
        limiter.set_limits(hourly(&[("*", 5)]));
        assert_eq!(limiter.status().await[0].remaining, 4);
        limiter.set_limits(hourly(&[("*", 5), ("a.*", 3)]));
        let remaining: Vec<u32> = limiter.status().await.iter().map(|status| status.remaining).collect();
        assert_eq!(remaining, [4, 3], "the usage of a removed limit is dropped");
    }
}

/// Polls all futures together.
async fn join_all<F: Future<Output = T> + Unpin, T>(futures: Vec<F>) -> Vec<T> {
    let mut pending: Vec<Option<F>> = futures.into_iter().map(Some).collect();
    let mut results = Vec::new();
    std::future::poll_fn(move |context| {
        for slot in &mut pending {
            if let Some(future) = slot
                && let std::task::Poll::Ready(result) = std::pin::Pin::new(future).poll(context)
            {
                results.push(result);
                *slot = None;
            }
        }
        match pending.iter().all(Option::is_none) {
            true => std::task::Poll::Ready(std::mem::take(&mut results)),
            false => std::task::Poll::Pending,
        }
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn calls_in_flight_of_a_caller_are_limited() {
    let callers_in_flight = HashMap::from([("bob".to_owned(), calls(2))]);
    let limits = UsageLimits { callers_in_flight, ..hourly(&[("*", 100)]) };
    let limiter = limiter(&limits, Arc::new(MemoryStore::default()));
    let target = target("a", "x");
    let mut first = call("bob");
    let mut second = call("bob");
    let first = limiter.admit(&mut first, &target).await.unwrap();
    let second = limiter.admit(&mut second, &target).await.unwrap();
    let started = Instant::now();
    let error = send(&limiter, "bob", &target).await.unwrap_err();
    assert_eq!((error.kind(), started.elapsed()), (ErrorKind::OverQuota, MAX_TURN_WAIT));
    assert!(error.to_string().contains("`callers.bob.in-flight` is 2"), "{error}");
    let mut others = call("alice");
    let other = limiter.admit(&mut others, &target).await.unwrap();
    assert_eq!(started.elapsed(), MAX_TURN_WAIT, "other callers do not wait");
    limiter.set_limits(limits);
    let mut waiting = call("bob");
    let (third, ()) = tokio::join!(limiter.admit(&mut waiting, &target), async { drop(second) });
    assert!(third.is_ok(), "the next call takes its turn, also after a reload");
    drop((first, third, other));
    let used = limiter.status().await.iter().map(|status| status.remaining).collect::<Vec<_>>();
    assert!(
        used.iter().all(|remaining| *remaining == 100),
        "calls that were not sent do not count: {used:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn waiting_calls_of_a_caller_are_limited() {
    let callers_in_flight = HashMap::from([("bob".to_owned(), calls(1))]);
    let limits = UsageLimits { callers_in_flight, ..UsageLimits::default() };
    let limiter = limiter(&limits, Arc::new(MemoryStore::default()));
    let target = target("a", "x");
    let mut held = call("bob");
    let _held = limiter.admit(&mut held, &target).await.unwrap();
    let started = Instant::now();
    let mut waiting: Vec<_> = (0..20).map(|_| Box::pin(send(&limiter, "bob", &target))).collect();
    let mut refused = 0;
    for call in &mut waiting {
        let polled =
            std::future::poll_fn(|context| std::task::Poll::Ready(call.as_mut().poll(context))).await;
        refused += usize::from(polled.is_ready());
    }
    assert_eq!((refused, started.elapsed()), (4, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn limits_of_groups_apply_to_each_member() {
    let mut limits = UsageLimits::default();
    limits.groups.insert("dev".to_owned(), vec![UsageLimit::quota(calls(2), HOUR)]);
    limits.groups_in_flight.insert("ops".to_owned(), calls(1));
    for limiter in limiters(&limits) {
        let git = target("git", "log");
        let member = |name: &str, group: &str| {
            Call::tool("x").caller(Caller::with_groups(name, [group.to_owned()])).timeout(HOUR)
        };
        for name in ["corp:ada", "corp:bob"] {
            for is_admitted in [true, true, false] {
                let mut call = member(name, "dev");
                let admitted = limiter.admit(&mut call, &git).await;
                let error = admitted.map(|mut reservation| reservation.dispatched = true).err();
                assert_eq!(error.is_none(), is_admitted, "{name} {error:?}");
            }
        }
        let shown: Vec<_> =
            limiter.status().await.into_iter().map(|status| (status.limit, status.remaining)).collect();
        assert_eq!(shown, vec![("groups.dev.quota".to_owned(), 0); 2]);
        let mut others = call("corp:ada");
        assert!(limiter.admit(&mut others, &git).await.is_ok(), "not in the group");
        let mut first = member("corp:eve", "ops");
        let mut second = member("corp:eve", "ops");
        let held = limiter.admit(&mut first, &git).await.unwrap();
        let waited = timeout(Duration::from_secs(1), limiter.admit(&mut second, &git)).await.is_err();
        assert!(waited, "one call at a time");
        drop(held);
        assert!(limiter.admit(&mut second, &git).await.is_ok());
    }
}
