//! Leases keep a server running, also when its process is replaced.

use std::sync::Arc;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{advance, sleep};
use toolcrib::{
    BreakerSpec, Caller, ClientContext, Crib, Era, EraChoice, ErrorKind, KeepAlive, LeaseOptions, Lifecycle,
    Pinning, Policy, Project, Rules, ServerLease, ServerSpec, ServerState, Sharing,
};

use crate::fake::{FakeServer, FakeStart};
use crate::sharing::client;
use crate::support::{CallResult, SECOND, crib, id, kind, on, settle, spec, status};

/// A crib whose server stops as soon as it is idle.
fn eager_crib(fake: &FakeServer) -> Crib {
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(2 * SECOND), ..Lifecycle::default() };
    Crib::builder().server(spec("git", fake).lifecycle(lifecycle)).build().unwrap()
}

async fn echo(lease: &ServerLease) -> CallResult {
    lease.call_tool("echo", &json!({"n": 1})).await
}

fn leases(crib: &Crib) -> usize {
    status(crib, "git").leases
}

#[tokio::test(start_paused = true)]
async fn leased_server_stays_up_until_the_drop() {
    let fake = FakeServer::new();
    let crib = eager_crib(&fake);
    let lease = crib.lease(&id("git")).await.unwrap();
    assert_eq!((lease.server(), leases(&crib)), (&id("git"), 1));
    advance(3600 * SECOND).await;
    settle().await;
    assert_eq!(echo(&lease).await.unwrap().text(), r#"{"n":1}"#);
    let seen = lease.status().unwrap();
    assert_eq!((seen.state, seen.generation, seen.calls, seen.leases), (ServerState::Ready, 1, 1, 1));
    drop(lease);
    settle().await;
    assert_eq!((leases(&crib), status(&crib, "git").state), (0, ServerState::Ready));
    advance(2 * SECOND).await;
    settle().await;
    assert_eq!((status(&crib, "git").state, fake.starts()), (ServerState::Asleep, 1));
}

#[tokio::test(start_paused = true)]
async fn concurrent_leases_share_one_start() {
    let fake = FakeServer::new().default_start(FakeStart::SlowHandshake(SECOND));
    let crib = eager_crib(&fake);
    let mut requests = JoinSet::new();
    for _ in 0..20 {
        let crib = crib.clone();
        requests.spawn(async move { crib.lease(&id("git")).await.unwrap() });
    }
    let all = requests.join_all().await;
    assert_eq!((all.len(), fake.starts(), leases(&crib)), (20, 1, 20));
    drop(all);
    settle().await;
    assert_eq!(leases(&crib), 0);
}

#[tokio::test(start_paused = true)]
async fn ensure_starts_and_does_not_hold() {
    let fake = FakeServer::new();
    let crib = eager_crib(&fake);
    crib.ensure(&id("git")).await.unwrap();
    settle().await;
    assert_eq!((status(&crib, "git").state, leases(&crib)), (ServerState::Ready, 0));
    advance(2 * SECOND).await;
    settle().await;
    assert_eq!(status(&crib, "git").state, ServerState::Asleep);
    assert_eq!(crib.ensure(&id("none")).await.unwrap_err().kind(), ErrorKind::Unknown);
    let silent = eager_crib(&FakeServer::new().default_start(FakeStart::Silent));
    assert_eq!(silent.ensure(&id("git")).await.unwrap_err().kind(), ErrorKind::CouldNotStart);
    assert_eq!(silent.lease(&id("git")).await.unwrap_err().kind(), ErrorKind::CouldNotStart);
}

#[tokio::test(start_paused = true)]
async fn crashed_server_is_started_again_while_leased() {
    let fake = FakeServer::new();
    let crib = eager_crib(&fake);
    let lease = crib.lease(&id("git")).await.unwrap();
    assert_eq!(kind(lease.call_tool("die", &json!({})).await), ErrorKind::Lost);
    sleep(SECOND).await;
    assert_eq!((status(&crib, "git").state, fake.starts(), leases(&crib)), (ServerState::Ready, 2, 1));
    advance(3600 * SECOND).await;
    settle().await;
    echo(&lease).await.unwrap();
    assert_eq!(fake.starts(), 2, "the new process is held");
    // A call that does not wait for the restart is served by it.
    fake.kill();
    echo(&lease).await.unwrap();
    assert_eq!(fake.starts(), 3);
    drop(lease);
    sleep(3 * SECOND).await;
    assert_eq!(status(&crib, "git").state, ServerState::Asleep);
}

#[tokio::test(start_paused = true)]
async fn stopped_server_is_not_started_by_the_lease_alone() {
    let fake = FakeServer::new();
    let crib = eager_crib(&fake);
    let lease = crib.lease(&id("git")).await.unwrap();
    crib.stop(&id("git")).await.unwrap();
    sleep(600 * SECOND).await;
    assert_eq!((status(&crib, "git").state, fake.starts()), (ServerState::Asleep, 1));
    echo(&lease).await.unwrap();
    sleep(600 * SECOND).await;
    assert_eq!((status(&crib, "git").state, fake.starts()), (ServerState::Ready, 2), "it is held again");
    crib.restart(&id("git")).await.unwrap();
    sleep(600 * SECOND).await;
    assert_eq!((status(&crib, "git").state, fake.starts()), (ServerState::Ready, 3), "restarted");
    echo(&lease).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lease_moves_to_the_replacement() {
    let fake = FakeServer::new();
    let crib = eager_crib(&fake);
    let lease = crib.lease(&id("git")).await.unwrap();
    let mut calls = JoinSet::new();
    let lease = Arc::new(lease);
    let holder = lease.clone();
    calls.spawn(async move { holder.call_tool("hold", &json!({})).await });
    settle().await;
    let original = crib.spec(&id("git")).unwrap();
    crib.replace(original.clone().era(EraChoice::Era(Era::Session))).await.unwrap();
    sleep(SECOND).await;
    assert_eq!(
        (fake.starts(), fake.running_and_peak().0, leases(&crib)),
        (2, 2, 1),
        "the old one has a call"
    );
    fake.set_hold_open(true);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
    sleep(600 * SECOND).await;
    assert_eq!((fake.running_and_peak().0, leases(&crib)), (1, 1), "the old one has ended");
    echo(&lease).await.unwrap();
    // A change that the process can serve keeps it.
    let mut changed = crib.spec(&id("git")).unwrap();
    changed.limits.call_timeout = 5 * SECOND;
    crib.replace(changed).await.unwrap();
    assert_eq!(kind(lease.call_tool("hang", &json!({})).await), ErrorKind::TimedOut);
    assert_eq!(fake.starts(), 2);
    crib.remove(&id("git")).await.unwrap();
    settle().await;
    assert_eq!((kind(echo(&lease).await), fake.running_and_peak().0), (ErrorKind::Unknown, 0));
    assert!(lease.status().is_none());
}

#[tokio::test(start_paused = true)]
async fn shutdown_ends_leases() {
    let fake = FakeServer::new();
    let crib = eager_crib(&fake);
    let lease = crib.lease(&id("git")).await.unwrap();
    crib.shutdown(SECOND).await;
    assert_eq!((fake.running_and_peak().0, kind(echo(&lease).await)), (0, ErrorKind::ShuttingDown));
    assert_eq!(crib.lease(&id("git")).await.unwrap_err().kind(), ErrorKind::ShuttingDown);
}

#[tokio::test(start_paused = true)]
async fn lease_keeps_the_crib_alive() {
    let fake = FakeServer::new();
    let crib = eager_crib(&fake);
    let lease = crib.lease(&id("git")).await.unwrap();
    drop(crib);
    settle().await;
    echo(&lease).await.unwrap();
    drop(lease);
    settle().await;
    assert_eq!(fake.running_and_peak().0, 0);
}

#[tokio::test(start_paused = true)]
async fn calls_through_a_lease_count_for_the_breaker() {
    let fake = FakeServer::new();
    let breaker = BreakerSpec { failures: 2.try_into().unwrap(), cool_off: 30 * SECOND };
    let server = spec("git", &fake).lifecycle(Lifecycle { breaker, ..Lifecycle::default() });
    let crib = Crib::builder().server(server).build().unwrap();
    let lease = crib.lease(&id("git")).await.unwrap();
    let hang = || async { kind(lease.call_tool("hang", &json!({})).await) };
    assert_eq!(hang().await, ErrorKind::TimedOut);
    echo(&lease).await.unwrap();
    assert_eq!(hang().await, ErrorKind::TimedOut);
    echo(&lease).await.unwrap();
    assert_eq!(hang().await, ErrorKind::TimedOut);
    assert_eq!(hang().await, ErrorKind::TimedOut);
    assert_eq!(kind(echo(&lease).await), ErrorKind::Tripped);
    sleep(30 * SECOND).await;
    echo(&lease).await.unwrap();
    settle().await;
    assert_eq!((fake.starts(), leases(&crib)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn lease_does_not_occupy_the_probe_of_a_tripped_server() {
    let fake = FakeServer::new();
    let breaker = BreakerSpec { failures: 1.try_into().unwrap(), cool_off: SECOND };
    let server = spec("git", &fake).lifecycle(Lifecycle { breaker, ..Lifecycle::default() });
    let crib = Crib::builder().server(server).build().unwrap();
    assert_eq!(kind(crib.call(on("git", "hang")).await), ErrorKind::TimedOut);
    assert_eq!(crib.lease(&id("git")).await.unwrap_err().kind(), ErrorKind::Tripped);
    sleep(SECOND).await;
    let lease = crib.lease(&id("git")).await.unwrap();
    crib.call(on("git", "echo")).await.unwrap();
    sleep(6 * SECOND).await;
    assert_eq!((leases(&crib), echo(&lease).await.is_ok()), (1, true));
}

#[tokio::test(start_paused = true)]
async fn rules_apply_to_leases_and_their_calls() {
    let fake = FakeServer::new();
    let rules = Rules::default().denying(["git.fail".parse().unwrap(), "off.*".parse().unwrap()]);
    let servers = [spec("git", &fake), spec("off", &fake)];
    let crib = Crib::builder().roster(crate::support::roster(servers)).policy(Policy::for_everyone(rules));
    let crib = crib.build().unwrap();
    assert_eq!(crib.lease(&id("off")).await.unwrap_err().kind(), ErrorKind::Denied);
    let guest = LeaseOptions::new().caller(Caller::new("guest"));
    assert_eq!(crib.lease_for(&id("off"), guest).await.unwrap_err().kind(), ErrorKind::Unknown);
    let lease = crib.lease(&id("git")).await.unwrap();
    assert_eq!(kind(lease.call_tool("fail", &json!({})).await), ErrorKind::Denied);
    echo(&lease).await.unwrap();
    crib.set_policy(Policy::for_everyone(Rules::default().denying(["git.*".parse().unwrap()])));
    assert_eq!(kind(echo(&lease).await), ErrorKind::Denied);
    assert_eq!(fake.called_tools(), ["echo"]);
}

#[tokio::test(start_paused = true)]
async fn changed_tool_is_withheld_from_a_lease_on_a_strict_server() {
    let fake = FakeServer::with_tools(&["echo", "say"]);
    let crib = Crib::builder().server(spec("git", &fake).pin(Pinning::Strict)).build().unwrap();
    let lease = crib.lease(&id("git")).await.unwrap();
    echo(&lease).await.unwrap();
    let fake = fake.with_hint("echo", "destructiveHint");
    let lines = [
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#,
    ];
    lease.call_tool("say", &json!({ "lines": lines })).await.unwrap();
    sleep(2 * SECOND).await;
    assert_eq!(kind(echo(&lease).await), ErrorKind::Denied);
    assert_eq!(fake.called_tools(), ["echo", "say"]);
}

#[tokio::test(start_paused = true)]
async fn lease_is_on_the_instance_of_its_caller_and_client() {
    let context = |folder| Arc::new(ClientContext::default().project(Project::from_roots([folder])));
    let caller = |name: &str| LeaseOptions::new().caller(Caller::new(name));
    let by_client = |key| LeaseOptions::new().client(client(key, Era::Session, "{}"));
    let by_project = |folder| by_client(7).client_context(context(folder));
    let cases = [
        (Sharing::PerCaller, caller("a"), caller("b")),
        (Sharing::PerClient, by_client(1), by_client(2)),
        (Sharing::PerProject, by_project("/a"), by_project("/b")),
    ];
    for (sharing, one, other) in cases {
        let fake = FakeServer::new();
        let lifecycle = Lifecycle { keep_alive: KeepAlive::For(SECOND), ..Lifecycle::default() };
        let server: ServerSpec = spec("git", &fake).sharing(sharing).lifecycle(lifecycle);
        let crib = Crib::builder().server(server).build().unwrap();
        let first = crib.lease_for(&id("git"), one).await.unwrap();
        let second = crib.lease_for(&id("git"), other).await.unwrap();
        sleep(60 * SECOND).await;
        echo(&first).await.unwrap();
        echo(&second).await.unwrap();
        settle().await;
        assert_eq!((fake.starts(), leases(&crib)), (2, 2), "{sharing:?}");
        // A call of another caller and client goes to its own instance.
        first.call(second.new_call("echo")).await.unwrap();
        assert_eq!(fake.starts(), 2, "{sharing:?}");
        drop(first);
        sleep(60 * SECOND).await;
        assert_eq!((leases(&crib), fake.running_and_peak().0), (1, 1), "{sharing:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_of_another_server_runs_without_the_lease() {
    let git = FakeServer::new();
    let time = FakeServer::new();
    let crib = crib(&[("git", &git), ("time", &time)]);
    let lease = crib.lease(&id("git")).await.unwrap();
    lease.call(on("time", "echo")).await.unwrap();
    assert_eq!((git.called_tools().len(), time.called_tools().len()), (0, 1));
}
