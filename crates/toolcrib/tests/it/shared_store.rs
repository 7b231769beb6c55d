//! Cribs that share a store.

use std::num::NonZeroU32;
use std::sync::Arc;

use toolcrib::access::policy::Rules;
use toolcrib::limits::UsageLimit;
use toolcrib::store::{MemoryStore, Store};
use toolcrib::{Crib, CribBuilder, ErrorKind, Policy, UsageLimits};

use crate::fake::FakeServer;
use crate::support::{SECOND, kind, on, spec};

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
