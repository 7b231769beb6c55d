//! Servers that are called by their command line without being declared.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use test_support::{count_starts, fake};
use tokio::task::JoinSet;
use toolcrib::{
    Call, Caller, Crib, CribBuilder, Endpoint, ErrorKind, Policy, Roster, Rules, ServerLimits, ServerSpec,
    ServerState,
};

/// The spec of a fake server that counts its starts in a file.
fn counting(count: &Path) -> ServerSpec {
    fake!("ignored", "--count-file", count.to_str().unwrap())
}

fn argv(spec: &ServerSpec) -> Vec<String> {
    let Endpoint::Command(command) = &spec.endpoint else { panic!("{spec:?}") };
    std::iter::once(&command.program).chain(&command.args).map(|word| word.source().to_owned()).collect()
}

fn echo() -> Call {
    Call::tool("echo").arguments(&json!({"text": "hi"}))
}

fn build(builder: CribBuilder) -> Crib {
    builder.build().unwrap()
}

#[tokio::test]
async fn equal_specs_share_one_process() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = counting(&count);
    let crib = build(Crib::builder().state_dir(dir.path().join("state")));
    let mut calls = JoinSet::new();
    for n in 0..10 {
        let (crib, spec) = (crib.clone(), spec.clone());
        calls.spawn(async move {
            match n % 2 {
                0 => crib.call_command(argv(&spec), "echo", &json!({"text": "hi"})).await,
                _ => crib.call_spec(spec, echo()).await,
            }
        });
    }
    assert!(calls.join_all().await.iter().all(|end| end.as_ref().is_ok_and(|answer| answer.text() == "hi")));
    assert_eq!(count_starts(&count), 1);
    let seen = crib.adhoc_status();
    assert_eq!((seen.len(), seen[0].state, seen[0].calls), (1, ServerState::Ready, 10));
    let name = seen[0].server.clone();
    assert!(name.as_str().starts_with("adhoc-") && name.as_str().len() == 14, "{name}");
    assert!(crib.roster().is_empty() && crib.status().is_empty() && !crib.contains(&name));
    assert!(crib.list().await.tools().is_empty(), "it is not listed");
    // It survives a reload, and takes over settings of the same server.
    crib.apply_roster(Roster::default()).await.unwrap();
    let limits = ServerLimits { call_timeout: Duration::from_secs(5), ..ServerLimits::default() };
    crib.call_spec(spec.clone().limits(limits), echo()).await.unwrap();
    assert_eq!(count_starts(&count), 1);
    assert!(!dir.path().join("state/listings").exists(), "nothing is kept on disk");
    crib.shutdown(Duration::ZERO).await;
    assert_eq!(crib.call_spec(spec, echo()).await.unwrap_err().kind(), ErrorKind::ShuttingDown);
}

#[tokio::test]
async fn least_recently_used_idle_server_is_evicted() {
    let dir = TempDir::new().unwrap();
    let counts: Vec<_> = (0..3).map(|n| dir.path().join(format!("starts-{n}"))).collect();
    let crib = build(Crib::builder().max_adhoc_servers(2));
    for n in [0, 1, 0, 2, 0, 1] {
        crib.call_spec(counting(&counts[n]), echo()).await.unwrap();
        assert!(crib.adhoc_status().len() <= 2);
    }
    let starts: Vec<usize> = counts.iter().map(|count| count_starts(count)).collect();
    assert_eq!(starts, [1, 2, 1], "the second was evicted for the third");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn busy_servers_are_not_evicted() {
    let dir = TempDir::new().unwrap();
    let crib = build(Crib::builder().max_adhoc_servers(1));
    let first = counting(&dir.path().join("a"));
    let holder = crib.clone();
    let held = first.clone();
    let mut calls = JoinSet::new();
    calls.spawn(async move {
        holder.call_spec(held, Call::tool("sleep").arguments(&json!({"ms": 60_000}))).await
    });
    test_support::eventually("the call is in flight", || {
        crib.adhoc_status().first().is_some_and(|server| server.in_flight == 1)
    })
    .await;
    let refused = crib.call_spec(counting(&dir.path().join("b")), echo()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::OverQuota);
    crib.call_spec(first, echo()).await.unwrap();
    calls.shutdown().await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn rules_apply_to_undeclared_servers() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let rules = |rule: &str| Policy::for_everyone(Rules::default().denying([rule.parse().unwrap()]));
    let crib = build(Crib::builder().policy(rules("*.env")));
    let call = |tool: &str| Call::tool(tool).arguments(&json!({"name": "HOME", "text": "hi"}));
    assert_eq!(crib.call_spec(counting(&count), call("env")).await.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(crib.call_spec(counting(&count), call("echo")).await.unwrap().text(), "hi");
    let guest = call("echo").caller(Caller::new("guest"));
    assert_eq!(crib.call_spec(counting(&count), guest).await.unwrap().text(), "hi");
    crib.shutdown(Duration::ZERO).await;
    let crib = build(Crib::builder().policy(rules("adhoc-*.*")));
    let count = dir.path().join("denied");
    let denied = crib.call_spec(counting(&count), call("echo")).await.unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::Denied);
    assert!(denied.to_string().contains("adhoc-*.*") && !count.exists(), "{denied}");
    crib.shutdown(Duration::ZERO).await;
}
