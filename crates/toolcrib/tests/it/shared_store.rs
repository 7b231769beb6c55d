//! Cribs that share a store.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use toolcrib::access::policy::Rules;
use toolcrib::limits::UsageLimit;
use toolcrib::store::{MemoryStore, Store};
use toolcrib::{Call, Caller, Crib, CribBuilder, ErrorKind, Pinning, Policy, UsageLimits};

use crate::cache::{cacheable_call, caching_spec};
use crate::delayed_store::DelayedStore;
use crate::fake::FakeServer;
use crate::support::{SECOND, id, kind, names, on, settle, spec, status};

/// Returns builders of two cribs with the same store, each with a server of its own.
fn builders() -> [CribBuilder; 2] {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    [0, 1].map(|_| Crib::builder().server(spec("git", &FakeServer::new())).store(store.clone()))
}

#[tokio::test(start_paused = true)]
async fn usage_counts_in_every_crib() {
    let everyone = vec![UsageLimit::quota(NonZeroU32::new(3).unwrap(), 60 * SECOND)];
    let limits = UsageLimits { everyone, ..UsageLimits::default() };
    let [first, second] = builders().map(|builder| builder.limits(limits.clone()).build().unwrap());
    for crib in [&first, &second, &first] {
        crib.call(on("git", "echo")).await.unwrap();
    }
    assert_eq!(kind(second.call(on("git", "echo")).await), ErrorKind::OverQuota);
    assert_eq!(first.limit_status().await[0].remaining, 0);
    first.shutdown(SECOND).await;
    second.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn approval_in_one_crib_applies_to_the_other() {
    let policy = || Policy::for_everyone(Rules::default().asking(["git.echo".parse().unwrap()]));
    let [first, second] = builders().map(|builder| builder.policy(policy()).build().unwrap());
    assert_eq!(kind(first.call(on("git", "echo")).await), ErrorKind::Denied);
    let pending = second.pending_approvals().await;
    assert_eq!(pending.len(), 1);
    second.decide_approval(&pending[0].id, true).await.unwrap();
    first.call(on("git", "echo")).await.unwrap();
    assert!(first.decide_approval(&pending[0].id, true).await.is_err(), "a call is decided once");
    first.shutdown(SECOND).await;
    second.shutdown(SECOND).await;
}

/// Two cribs on one asynchronous store, each with a server of its own whose results may be cached.
struct CachingPair {
    cribs: [Crib; 2],
    servers: [FakeServer; 2],
    store: Arc<DelayedStore>,
}

impl CachingPair {
    /// Starts both servers first, because a new process invalidates what is cached.
    async fn new() -> Self {
        let store = Arc::new(DelayedStore::new());
        let servers = [FakeServer::new(), FakeServer::new()];
        let crib =
            |server| Crib::builder().server(caching_spec(server)).store(store.clone()).build().unwrap();
        let cribs = [crib(&servers[0]), crib(&servers[1])];
        for crib in &cribs {
            crib.call(on("git", "slow")).await.unwrap();
        }
        settle().await;
        Self { cribs, servers, store }
    }

    async fn call(&self, crib: usize, call: Call) -> String {
        let outcome = self.cribs[crib].call(call).await.unwrap();
        settle().await;
        String::from_utf8(outcome.raw().to_vec()).unwrap()
    }

    /// Returns how often a server was called, apart from its start.
    fn calls(&self, server: usize) -> usize {
        self.servers[server].called_tools().len() - 1
    }

    async fn shutdown(self) {
        for crib in &self.cribs {
            crib.shutdown(SECOND).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn response_cached_by_one_crib_answers_the_other() {
    let pair = CachingPair::new().await;
    let first = pair.call(0, cacheable_call("echo", 1)).await;
    tokio::time::advance(Duration::from_secs(20)).await;
    let second = pair.call(1, cacheable_call("echo", 1)).await;
    assert_eq!(second, first.replace(r#""ttlMs":60000}"#, r#""ttlMs":40000}"#), "only the TTL differs");
    assert_eq!((pair.calls(0), pair.calls(1)), (1, 0), "the second server is not called");
    let status = status(&pair.cribs[1], "git");
    assert_eq!((status.cache_entries, status.cache_hits), (1, 1));
    // From its own copy, without the store.
    pair.store.set_failing(true);
    pair.call(1, cacheable_call("echo", 1)).await;
    assert_eq!(pair.calls(1), 0);
    pair.store.set_failing(false);
    pair.call(1, cacheable_call("echo", 2)).await;
    let other_caller = cacheable_call("echo", 1).caller(Caller::new("other"));
    pair.call(1, other_caller).await;
    assert_eq!(pair.calls(1), 2, "other arguments and other callers are separate");
    tokio::time::advance(Duration::from_secs(40)).await;
    pair.call(1, cacheable_call("echo", 1)).await;
    assert_eq!(pair.calls(1), 3, "the lifetime continues at the other crib");
    pair.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn shared_response_is_outdated_by_an_invalidation() {
    let pair = CachingPair::new().await;
    pair.call(0, cacheable_call("echo", 1)).await;
    pair.cribs[0].restart(&id("git")).await.unwrap();
    settle().await;
    pair.call(1, cacheable_call("echo", 1)).await;
    assert_eq!(pair.calls(1), 1, "outdated by the crib that stored it");
    pair.call(0, cacheable_call("echo", 1)).await;
    assert_eq!(pair.calls(0), 1, "the later response is shared");
    pair.call(0, cacheable_call("echo", 2)).await;
    pair.cribs[1].restart(&id("git")).await.unwrap();
    settle().await;
    pair.call(1, cacheable_call("echo", 2)).await;
    assert_eq!(pair.calls(1), 2, "outdated by the other crib");
    pair.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn failing_store_does_not_prevent_cacheable_calls() {
    let pair = CachingPair::new().await;
    pair.store.set_failing(true);
    pair.call(0, cacheable_call("echo", 1)).await;
    pair.call(1, cacheable_call("echo", 1)).await;
    assert_eq!((pair.calls(0), pair.calls(1)), (1, 1));
    pair.store.set_failing(false);
    pair.call(0, cacheable_call("echo", 2)).await;
    pair.call(1, cacheable_call("echo", 2)).await;
    assert_eq!((pair.calls(0), pair.calls(1)), (2, 1));
    pair.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn tools_approved_in_one_crib_are_approved_in_the_other() {
    let store = Arc::new(DelayedStore::new());
    let crib = |server: &FakeServer| {
        let spec = spec("git", server).pin(Pinning::Strict);
        Crib::builder().server(spec).store(store.clone()).build().unwrap()
    };
    let original = crib(&FakeServer::new());
    let tools = names(&original.list().await);
    assert!(tools.contains(&"git__echo".to_owned()), "the first list has the tools: {tools:?}");
    original.call(on("git", "echo")).await.unwrap();
    // Another definition of the same tool.
    let changed = || FakeServer::new().with_hint("echo", "readOnlyHint");
    let [first, second] = [crib(&changed()), crib(&changed())];
    for crib in [&first, &second] {
        assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Denied);
        crib.call(on("git", "slow")).await.unwrap();
    }
    let unapproved = first.unapproved(&id("git")).await.unwrap();
    assert_eq!(unapproved.tools.len(), 1);
    assert_eq!(first.approve(&id("git"), &unapproved.digest).await.unwrap(), ["echo"]);
    settle().await;
    for crib in [&first, &second] {
        crib.call(on("git", "echo")).await.unwrap();
    }
    assert!(second.unapproved(&id("git")).await.unwrap().tools.is_empty());
    for crib in [&original, &first, &second] {
        crib.shutdown(SECOND).await;
    }
}
