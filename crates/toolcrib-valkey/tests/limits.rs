//! Limits of several gateways on one server.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use test_support::store_server::StoreServer;
use tokio::task::JoinSet;
use tokio::time::Instant;
use toolcrib::Caller;
use toolcrib::store::{Admission, CounterUsage, LimitCounter, LimitKind, LimitRequest, Store, UsageRelease};
use toolcrib_valkey::{ValkeyOptions, ValkeyStore};

const QUOTA: u32 = 1000;
const GATEWAYS: u32 = 3;

fn quota(calls: u32) -> LimitCounter {
    let calls = NonZeroU32::new(calls).unwrap();
    LimitCounter {
        name: "q".into(),
        ordinal: 0,
        kind: LimitKind::Quota { calls, per: Duration::from_secs(3600) },
    }
}

fn connect(server: &StoreServer, lease: u32) -> Arc<ValkeyStore> {
    let mut options = ValkeyOptions::default();
    options.limit_lease = NonZeroU32::new(lease).unwrap();
    options.operation_timeout = Duration::from_secs(10);
    let url = format!("valkey://{}", server.address()).parse().unwrap();
    Arc::new(ValkeyStore::connect(url, options).unwrap())
}

async fn reserve(store: &ValkeyStore, counter: &LimitCounter) -> Admission {
    let caller = Caller::new("ci");
    let counters = [counter].into_iter().collect();
    let request = LimitRequest { caller: &caller, counters, max_wait: None, now: Instant::now() };
    store.reserve(&request).wait().await.unwrap()
}

/// Makes five calls in each of 300 tasks, over all gateways. Returns how many were admitted.
async fn admit_concurrently(stores: &[Arc<ValkeyStore>]) -> u32 {
    let mut tasks = JoinSet::new();
    for task in 0..300 {
        let store = stores[task % stores.len()].clone();
        tasks.spawn(async move {
            let mut admitted = 0;
            for _ in 0..5 {
                admitted +=
                    u32::from(matches!(reserve(&store, &quota(QUOTA)).await, Admission::Admitted { .. }));
            }
            admitted
        });
    }
    tasks.join_all().await.into_iter().sum()
}

#[tokio::test]
async fn quota_of_several_gateways_is_exact_without_leases() {
    let Some(server) = StoreServer::start(&[]) else { return };
    let stores = [(); GATEWAYS as usize].map(|()| connect(&server, 1));
    assert_eq!(admit_concurrently(&stores).await, QUOTA);
}

#[tokio::test]
async fn quota_of_several_gateways_is_within_its_bound_with_leases() {
    let Some(server) = StoreServer::start(&[]) else { return };
    let lease = 20;
    let stores = [(); GATEWAYS as usize].map(|()| connect(&server, lease));
    let admitted = admit_concurrently(&stores).await;
    assert!(QUOTA - lease * GATEWAYS <= admitted && admitted <= QUOTA, "{admitted}");
    let operations: u64 = stores.iter().map(|store| store.status().operations).sum();
    assert!(operations < 1500, "{operations} round trips");
}

#[tokio::test]
async fn unused_calls_of_a_lease_go_back() {
    let Some(server) = StoreServer::start(&[]) else { return };
    let first = connect(&server, 10);
    let second = connect(&server, 10);
    let counter = quota(10);
    let Admission::Admitted { token, .. } = reserve(&first, &counter).await else { panic!("refused") };
    assert!(matches!(reserve(&second, &counter).await, Admission::Refused(_)), "the first holds all calls");
    // A released call can be used again, without the store.
    let caller = Caller::new("ci");
    let list = || [&counter].into_iter().collect();
    let release = UsageRelease { caller: &caller, counters: list(), token };
    first.release(&release).wait().await.unwrap();
    for _ in 0..4 {
        assert!(matches!(reserve(&first, &counter).await, Admission::Admitted { .. }));
    }
    let until = Instant::now() + Duration::from_secs(20);
    while !matches!(reserve(&second, &counter).await, Admission::Admitted { .. }) {
        assert!(Instant::now() < until, "the calls do not come back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let usage = second.usage(&caller, &list(), Instant::now()).wait().await.unwrap();
    assert!(matches!(*usage, [CounterUsage { used: 10, .. }]), "4 used and 6 reserved: {usage:?}");
    second.clear_usage(&caller, &list()).wait().await.unwrap();
    assert!(matches!(reserve(&first, &counter).await, Admission::Admitted { .. }));
}
