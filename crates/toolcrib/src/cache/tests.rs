//! Tests of lookups, of merged calls and of invalidation.

use bytes::Bytes;
use proptest::prelude::*;
use std::hash::{BuildHasherDefault, DefaultHasher};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::model::caller::Caller;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::Era;
use crate::spec::{CommandSpec, ServerSpec};
use crate::store::{DelayedStore, MemoryStore, Store, StoreKey, StoreKind, StoreNotice};

const SETTINGS: CacheSettings = CacheSettings { max_entries: 64, max_ttl: Duration::from_secs(3600) };

fn server() -> ServerId {
    "git".parse().unwrap()
}

/// Not seeded, so that equal requests always have equal hashes.
type FixedHasher = BuildHasherDefault<DefaultHasher>;

fn key(caller: &str, request: &str) -> CacheKey {
    let subject = CacheSubject { server: server(), item: CachedItem::Tool("get".into()) };
    let definition = Bytes::from_static(b"{}");
    CacheKey::new(
        subject,
        request.into(),
        InstanceKey::Shared,
        Caller::new(caller),
        definition,
        &FixedHasher::default(),
    )
}

fn outcome(text: &str, rest: &str) -> Outcome {
    let result = format!(r#"{{"text":"{text}"{rest}}}"#);
    Outcome {
        answer: ResponsePayload::Result(result.into()),
        era: Era::Stateless,
        server: Some(server()),
        server_info: None,
    }
}

/// Looks a key up, expects a miss, and completes the call with this outcome.
fn complete_call(cache: &Arc<ResponseCache>, key: &CacheKey, outcome: &Outcome, now: Instant) {
    let CacheResult::Miss(flight) = cache.lookup(key.clone(), now) else { panic!("the key is cached") };
    flight.mark_sent();
    flight.complete(outcome, &SETTINGS, now);
}

fn lookup_text(cache: &Arc<ResponseCache>, key: &CacheKey, now: Instant) -> Option<String> {
    match cache.lookup(key.clone(), now) {
        CacheResult::Hit(outcome) => Some(outcome.to_value()["text"].as_str().unwrap().to_owned()),
        CacheResult::InFlight(..) | CacheResult::Miss(_) => None,
    }
}

/// Returns a cache that shares a store with others, and the task that applies their notices.
fn shared_cache(store: &Arc<dyn Store>, replica: &str) -> Arc<ResponseCache> {
    let peers = CachePeers::new(store.clone(), replica.to_owned(), TaskTracker::new());
    Arc::new(ResponseCache::default().with_peers(peers))
}

#[tokio::test]
async fn invalidation_reaches_the_caches_of_other_replicas() {
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::default()), Arc::new(DelayedStore::new())];
    let now = Instant::now();
    let cached = outcome("cached", r#","ttlMs":1000"#);
    for store in stores {
        let mut notices = store.watch(StoreKind::CachedResponse);
        let first = shared_cache(&store, "first");
        let second = shared_cache(&store, "second");
        complete_call(&second, &key("a", "1"), &cached, now);
        first.invalidate(&server(), Some(&InstanceKey::Discovery), Invalidation::All);
        let notice = notices.recv().await.unwrap();
        complete_call(&first, &key("a", "1"), &cached, now);
        first.apply_notice(&notice);
        second.apply_notice(&notice);
        assert!(lookup_text(&first, &key("a", "1"), now).is_some(), "an own notice is not applied twice");
        assert_eq!(lookup_text(&second, &key("a", "1"), now), None);
        complete_call(&second, &key("a", "2"), &cached, now);
        first.invalidate(&server(), None, Invalidation::Resource("file:///a"));
        second.apply_notice(&notices.recv().await.unwrap());
        assert!(lookup_text(&second, &key("a", "2"), now).is_some(), "a resource does not affect tools");
        second.apply_notice(&StoreNotice::Missed);
        assert_eq!(lookup_text(&second, &key("a", "2"), now), None);
    }
}

/// Looks a response up in the store and returns its text. Stores `fresh` there if nothing was found.
async fn share(cache: &Arc<ResponseCache>, fresh: &str) -> Option<String> {
    let now = Instant::now();
    let spec = ServerSpec::command(server(), CommandSpec::new("git"));
    let CacheResult::Miss(mut flight) = cache.lookup(key("a", "1"), now) else { panic!("cached here") };
    match flight.find_shared(&spec).await {
        Some(found) => {
            let outcome = flight.accept_shared(found, &SETTINGS, now).unwrap();
            Some(outcome.to_value()["text"].as_str().unwrap().to_owned())
        }
        None => {
            flight.mark_sent();
            flight.complete(&outcome(fresh, r#","ttlMs":100000"#), &SETTINGS, now);
            None
        }
    }
}

#[tokio::test(start_paused = true)]
async fn invalidation_that_the_store_did_not_take_is_repeated() {
    let delayed = Arc::new(DelayedStore::new());
    let store: Arc<dyn Store> = delayed.clone();
    let mut notices = store.watch(StoreKind::CachedResponse);
    let first = shared_cache(&store, "first");
    let second = shared_cache(&store, "second");
    assert_eq!(share(&first, "stale").await, None);
    assert_eq!(share(&second, "").await.as_deref(), Some("stale"));
    delayed.set_failing(true);
    first.invalidate(&server(), None, Invalidation::All);
    tokio::time::sleep(Duration::from_millis(1)).await;
    delayed.set_failing(false);
    assert_eq!(share(&first, "fresh").await, None, "the stored response may be stale");
    first.apply_notice(&StoreNotice::Missed);
    second.apply_notice(&notices.recv().await.unwrap());
    assert_eq!(share(&second, "fresh").await, None);
    first.apply_notice(&StoreNotice::Missed);
    assert_eq!(share(&first, "").await.as_deref(), Some("fresh"));
}

#[tokio::test(start_paused = true)]
async fn lagging_watcher_invalidates_everything() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let notices = store.watch(StoreKind::CachedResponse);
    let cache = shared_cache(&store, "first");
    let now = Instant::now();
    complete_call(&cache, &key("a", "1"), &outcome("cached", r#","ttlMs":1000"#), now);
    for _ in 0..1000 {
        let _ = store.publish(StoreKey::new(StoreKind::CachedResponse, r#"{"server":"other"}"#));
    }
    drop(store);
    let stop = CancellationToken::new();
    let watcher = TaskTracker::new().spawn(watch_peers(Arc::downgrade(&cache), notices, stop.clone()));
    tokio::task::yield_now().await;
    assert_eq!(lookup_text(&cache, &key("a", "1"), now), None);
    stop.cancel();
    watcher.await.unwrap();
}

#[tokio::test]
async fn private_answer_is_per_caller_and_public_is_shared() {
    let cache = Arc::<ResponseCache>::default();
    let now = Instant::now();
    complete_call(&cache, &key("a", "1"), &outcome("mine", r#","ttlMs":1000"#), now);
    assert_eq!(lookup_text(&cache, &key("a", "1"), now).as_deref(), Some("mine"));
    assert_eq!(lookup_text(&cache, &key("b", "1"), now), None);
    complete_call(&cache, &key("a", "2"), &outcome("ours", r#","ttlMs":1000,"cacheScope":"public""#), now);
    assert_eq!(lookup_text(&cache, &key("b", "2"), now).as_deref(), Some("ours"));
    assert_eq!(lookup_text(&cache, &key("b", "3"), now), None);
}

#[tokio::test]
async fn ttl_runs_from_arrival_and_is_capped() {
    let cache = Arc::<ResponseCache>::default();
    let now = Instant::now();
    let century = outcome("old", r#","ttlMs":3155760000000"#);
    complete_call(&cache, &key("a", "1"), &century, now);
    let CacheResult::Hit(given) = cache.lookup(key("a", "1"), now + Duration::from_secs(3590)) else {
        panic!()
    };
    assert_eq!(given.to_value()["ttlMs"], 10_000, "the rest of the maximum TTL");
    assert_eq!(lookup_text(&cache, &key("a", "1"), now + Duration::from_secs(3600)), None);
}

#[tokio::test]
async fn answer_sent_before_invalidation_is_not_stored() {
    let cache = Arc::<ResponseCache>::default();
    let now = Instant::now();
    let CacheResult::Miss(flight) = cache.lookup(key("a", "1"), now) else { panic!() };
    flight.mark_sent();
    assert!(matches!(cache.lookup(key("a", "1"), now), CacheResult::InFlight(..)));
    cache.invalidate(&server(), None, Invalidation::All);
    let CacheResult::Miss(second) = cache.lookup(key("a", "1"), now) else {
        panic!("a call after the invalidation joined a flight sent before it")
    };
    second.mark_sent();
    flight.complete(&outcome("before", r#","ttlMs":1000"#), &SETTINGS, now);
    assert!(
        matches!(cache.lookup(key("a", "1"), now), CacheResult::InFlight(..)),
        "the second flight is still active"
    );
    second.complete(&outcome("after", r#","ttlMs":1000"#), &SETTINGS, now);
    assert_eq!(lookup_text(&cache, &key("a", "1"), now).as_deref(), Some("after"));
}

#[tokio::test]
async fn waiting_call_takes_over_an_abandoned_flight() {
    let cache = Arc::<ResponseCache>::default();
    let now = Instant::now();
    let CacheResult::Miss(leader) = cache.lookup(key("a", "1"), now) else { panic!() };
    let CacheResult::InFlight(mut result, _) = cache.lookup(key("a", "1"), now) else { panic!() };
    drop(leader);
    assert!(matches!(
        *result.wait_for(|result| !matches!(result, FlightResult::Pending)).await.unwrap(),
        FlightResult::Abandoned
    ));
    assert!(matches!(cache.lookup(key("a", "1"), now), CacheResult::Miss(_)));
}

#[tokio::test]
async fn uncacheable_calls_are_not_merged() {
    let cache = Arc::<ResponseCache>::default();
    let now = Instant::now();
    complete_call(&cache, &key("a", "1"), &outcome("uncacheable", ""), now);
    let flights: Vec<CacheResult> = (0..3).map(|_| cache.lookup(key("a", "1"), now)).collect();
    assert!(
        flights.iter().all(|found| matches!(found, CacheResult::Miss(_))),
        "every call is sent on its own"
    );
    drop(flights);
    complete_call(&cache, &key("a", "1"), &outcome("cacheable", r#","ttlMs":1000"#), now);
    let later = now + Duration::from_secs(2);
    let CacheResult::Miss(_flight) = cache.lookup(key("a", "1"), later) else { panic!() };
    assert!(
        matches!(cache.lookup(key("a", "1"), later), CacheResult::InFlight(..)),
        "the subject is cacheable again"
    );
}

#[tokio::test]
async fn uncacheable_subject_is_rechecked_periodically() {
    let cache = Arc::<ResponseCache>::default();
    let now = Instant::now();
    let subject = key("a", "1").subject;
    assert!(!cache.should_bypass(&subject), "the subject has not been called yet");
    complete_call(&cache, &key("a", "1"), &outcome("uncacheable", ""), now);
    let lookups = (0..RECHECK_INTERVAL).filter(|_| !cache.should_bypass(&subject)).count();
    assert_eq!(lookups, 1);
    complete_call(&cache, &key("a", "1"), &outcome("cacheable", r#","ttlMs":1000"#), now);
    complete_call(&cache, &key("a", "2"), &outcome("uncacheable", ""), now);
    assert!(!cache.should_bypass(&subject), "a cached entry of the subject is used");
}

#[tokio::test]
async fn tool_error_does_not_mark_subject_uncacheable() {
    let cache = Arc::<ResponseCache>::default();
    let now = Instant::now();
    complete_call(&cache, &key("a", "1"), &outcome("no", r#","ttlMs":1000,"isError":true"#), now);
    let CacheResult::Miss(_flight) = cache.lookup(key("a", "1"), now) else {
        panic!("a tool error was cached")
    };
    assert!(matches!(cache.lookup(key("a", "1"), now), CacheResult::InFlight(..)));
}

#[tokio::test]
async fn stats_count_hits_misses_and_entries() {
    let cache = Arc::<ResponseCache>::default();
    let now = Instant::now();
    complete_call(&cache, &key("a", "1"), &outcome("x", r#","ttlMs":1000"#), now);
    assert!(
        lookup_text(&cache, &key("a", "1"), now).is_some()
            && lookup_text(&cache, &key("a", "1"), now).is_some()
    );
    let CacheStats { entries, hits, misses, .. } = cache.stats(&server(), now);
    assert_eq!((entries, hits, misses), (1, 2, 1));
    assert_eq!(
        cache.stats(&server(), now + Duration::from_secs(1)).entries,
        0,
        "expired entries are not counted"
    );
}

/// One step of a random run.
#[derive(Debug, Clone)]
enum Step {
    Call { caller: usize, request: u8, public: bool, restarts_meanwhile: bool },
    Restart,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..2, 0u8..3, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(caller, request, public, restarts_meanwhile)| Step::Call { caller, request, public, restarts_meanwhile }
        ),
        1 => Just(Step::Restart),
        1 => (0u64..2).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn answers_never_cross_callers_generations_or_requests(steps in prop::collection::vec(steps(), 1..100)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let cache = Arc::<ResponseCache>::default();
        let mut now = Instant::now();
        let mut generation = 0;
        for step in steps {
            match step {
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
                Step::Restart => {
                    generation += 1;
                    cache.invalidate(&server(), None, Invalidation::All);
                }
                Step::Call { caller, request, public, restarts_meanwhile } => {
                    let caller = ["a", "b"][caller];
                    let request = request.to_string();
                    match cache.lookup(key(caller, &request), now) {
                        CacheResult::Hit(outcome) => {
                            let given = outcome.to_value()["text"].as_str().unwrap().to_owned();
                            let parts: Vec<&str> = given.split(' ').collect();
                            prop_assert_eq!(parts[0], generation.to_string());
                            prop_assert_eq!(parts[1], &request);
                            prop_assert!(parts[2] == caller || parts[3] == "true", "{} to {}", given, caller);
                        }
                        CacheResult::Miss(flight) => {
                            flight.mark_sent();
                            let scope = if public { "public" } else { "private" };
                            let text = format!("{generation} {request} {caller} {public}");
                            if restarts_meanwhile {
                                generation += 1;
                                cache.invalidate(&server(), None, Invalidation::All);
                            }
                            let outcome = outcome(&text, &format!(r#","ttlMs":1500,"cacheScope":"{scope}""#));
                            flight.complete(&outcome, &SETTINGS, now);
                        }
                        CacheResult::InFlight(..) => prop_assert!(false, "no call is in flight"),
                    }
                }
            }
        }
    }
}
