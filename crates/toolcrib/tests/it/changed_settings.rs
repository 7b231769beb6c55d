//! A changed setting is taken over by the running server, unless its process or connection depends on it.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance};
use toolcrib::{
    BackoffSpec, BreakerSpec, Call, Crib, Era, EraChoice, ErrorKind, KeepAlive, Lifecycle, MemoryLimits,
    NamePattern, Pinning, Restarts, ServerLimits, ServerSpec, ServerState, Sharing, StartPolicy, ToolsSpec,
    Trust,
};

use crate::fake::FakeServer;
use crate::sharing::call_as;
use crate::support::{SECOND, id, kind, names, on, roster, settle, spawn, spec, status, with};

/// A change of one field of a spec.
type Change = fn(&mut ServerSpec);

/// Every setting, and whether a change of it needs a new process or connection.
const SETTINGS: &[(&str, Change, bool)] = &[
    ("endpoint", |spec| spec.endpoint = self::spec("git", &FakeServer::new()).endpoint, true),
    ("era", |spec| spec.era = EraChoice::Era(Era::Session), true),
    ("sharing", |spec| spec.sharing = Sharing::PerClient, true),
    ("enabled", |spec| spec.enabled = false, true),
    ("lifecycle.start", |spec| spec.lifecycle.start = StartPolicy::AtBoot, false),
    ("lifecycle.keep_alive", |spec| spec.lifecycle.keep_alive = KeepAlive::Forever, false),
    ("lifecycle.start_timeout", |spec| spec.lifecycle.start_timeout = SECOND, false),
    ("lifecycle.restarts", |spec| spec.lifecycle.restarts = Restarts { at_most: 1, within: SECOND }, false),
    ("lifecycle.backoff", |spec| spec.lifecycle.backoff = BackoffSpec { first: SECOND, most: SECOND }, false),
    ("lifecycle.breaker", |spec| spec.lifecycle.breaker.cool_off = SECOND, false),
    ("lifecycle.memory", |spec| spec.lifecycle.memory.hard = Some(1 << 40), false),
    ("limits.call_timeout", |spec| spec.limits.call_timeout = SECOND, false),
    ("limits.call_timeout_max", |spec| spec.limits.call_timeout_max = 90 * SECOND, false),
    ("limits.gateway_call_timeout_max", |spec| spec.limits.gateway_call_timeout_max = Some(SECOND), false),
    ("limits.in_flight", |spec| spec.limits.in_flight = 2.try_into().unwrap(), false),
    ("limits.message", |spec| spec.limits.message = 1 << 20, false),
    ("limits.instances", |spec| spec.limits.instances = 1.try_into().unwrap(), false),
    ("limits.cache_entries", |spec| spec.limits.cache_entries = 1, false),
    ("limits.cache_ttl_max", |spec| spec.limits.cache_ttl_max = SECOND, false),
    ("tools.idempotent", |spec| spec.tools.idempotent = vec![NamePattern::any()], false),
    ("tools.cache", |spec| spec.tools.cache = vec![NamePattern::any()], false),
    ("tools.call_timeout", |spec| spec.tools.call_timeout = vec![(NamePattern::any(), SECOND)], false),
    ("tools.rename", |spec| drop(spec.tools.rename.insert("echo".into(), "say".into())), false),
    ("tools.check_arguments", |spec| spec.tools.check_arguments = true, false),
    ("trust", |spec| spec.trust = Trust::Trusted, false),
    ("pin", |spec| spec.pin = Pinning::Strict, false),
];

#[tokio::test(start_paused = true)]
async fn only_settings_of_the_process_restart_it() {
    for (name, change, restarts) in SETTINGS {
        let fake = FakeServer::new();
        let before = spec("git", &fake);
        let mut after = before.clone();
        change(&mut after);
        assert_ne!(before, after, "{name}");
        let crib = Crib::builder().server(before).build().unwrap();
        let mut calls = JoinSet::new();
        spawn(&mut calls, &crib, on("git", "hold"));
        settle().await;
        let changes = crib.apply_roster(roster([after])).await.unwrap();
        assert_eq!((&*changes.changed, changes.restarted.len()), (&[id("git")][..], usize::from(*restarts)));
        settle().await;
        if !restarts {
            let now = status(&crib, "git");
            assert_eq!((now.state, now.generation, now.in_flight), (ServerState::Ready, 1, 1), "{name}");
            crib.call(on("git", "echo")).await.unwrap();
        }
        fake.set_hold_open(true);
        assert!(calls.join_next().await.unwrap().unwrap().is_ok(), "{name}: the call in flight goes on");
        settle().await;
        assert_eq!((fake.starts(), fake.running_and_peak().0), (1, usize::from(!restarts)), "{name}");
    }
}

/// A crib with one server whose settings change.
struct Changing {
    crib: Crib,
    original: ServerSpec,
}

impl Changing {
    fn new(fake: &FakeServer) -> Self {
        let original = spec("git", fake);
        Self { crib: Crib::builder().server(original.clone()).build().unwrap(), original }
    }

    /// As [`Changing::new`], with a server that runs.
    async fn running(fake: &FakeServer) -> Self {
        let changing = Self::new(fake);
        changing.crib.call(on("git", "echo")).await.unwrap();
        changing
    }

    /// Applies a change of the original settings.
    async fn apply(&self, change: impl Fn(&mut ServerSpec)) {
        let mut spec = self.original.clone();
        change(&mut spec);
        let changes = self.crib.apply_roster(roster([spec])).await.unwrap();
        assert_eq!((changes.changed.len(), changes.restarted.len()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn shorter_keep_alive_applies_to_an_idle_server() {
    let fake = FakeServer::new();
    let changing = Changing::running(&fake).await;
    let crib = &changing.crib;
    // The timer of the old time to keep running is set.
    advance(SECOND).await;
    settle().await;
    changing.apply(|spec| spec.lifecycle.keep_alive = KeepAlive::For(3 * SECOND)).await;
    advance(3 * SECOND).await;
    settle().await;
    assert_eq!(status(crib, "git").state, ServerState::Asleep);
    changing.apply(|spec| spec.lifecycle.keep_alive = KeepAlive::Forever).await;
    crib.call(on("git", "echo")).await.unwrap();
    advance(3600 * SECOND).await;
    settle().await;
    assert_eq!((status(crib, "git").state, fake.starts()), (ServerState::Ready, 2));
}

#[tokio::test(start_paused = true)]
async fn next_call_follows_changed_limits() {
    let fake = FakeServer::new();
    let changing = Changing::running(&fake).await;
    let crib = &changing.crib;
    let mut calls = JoinSet::new();
    let began = Instant::now();
    spawn(&mut calls, crib, on("git", "hang"));
    settle().await;
    changing.apply(|spec| spec.limits.call_timeout = 5 * SECOND).await;
    assert_eq!(kind(crib.call(on("git", "hang")).await), ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), 5 * SECOND);
    assert_eq!(kind(calls.join_next().await.unwrap().unwrap()), ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), 60 * SECOND, "a call in flight keeps its limit");
    changing.apply(|spec| spec.limits.message = 100).await;
    let large = with("git", "echo", &json!({"text": "x".repeat(200)}));
    assert_eq!(kind(crib.call(large.clone()).await), ErrorKind::BadReply);
    changing.apply(|_| ()).await;
    crib.call(large).await.unwrap();
    assert_eq!(fake.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn raised_concurrency_releases_waiting_calls() {
    let fake = FakeServer::new();
    let one = |spec: &mut ServerSpec| spec.limits.in_flight = 1.try_into().unwrap();
    let changing = Changing::running(&fake).await;
    let crib = &changing.crib;
    changing.apply(one).await;
    let mut calls = JoinSet::new();
    (0..3).for_each(|_| spawn(&mut calls, crib, on("git", "hold")));
    settle().await;
    assert_eq!(fake.called_tools().len(), 2, "one echo and one of three");
    changing.apply(|spec| spec.limits.in_flight = 2.try_into().unwrap()).await;
    settle().await;
    assert_eq!(fake.called_tools().len(), 3);
    fake.set_hold_open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn changed_names_are_in_the_catalog_when_apply_returns() {
    let fake = FakeServer::with_tools(&["log"]);
    let changing = Changing::new(&fake);
    let crib = &changing.crib;
    crib.list().await;
    let rename = [("log".to_owned(), "history".to_owned())].into();
    let tools = ToolsSpec { rename, ..ToolsSpec::default() };
    changing.apply(|spec| spec.tools = tools.clone()).await;
    assert_eq!(names(&crib.catalog()), ["git__history"]);
    crib.call(Call::tool("git__history")).await.unwrap();
    assert_eq!(fake.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn new_boot_policy_starts_a_sleeping_server() {
    let fake = FakeServer::new();
    let changing = Changing::new(&fake);
    let crib = &changing.crib;
    changing.apply(|spec| spec.lifecycle.start = StartPolicy::AtBoot).await;
    settle().await;
    assert_eq!((status(crib, "git").state, fake.starts()), (ServerState::Ready, 1));
    changing.apply(|_| ()).await;
    settle().await;
    advance(Duration::from_secs(301)).await;
    settle().await;
    assert_eq!(status(crib, "git").state, ServerState::Asleep, "it is idle since the change");
}

#[tokio::test(start_paused = true)]
async fn changed_breaker_and_restarts_apply_to_a_running_server() {
    let fake = FakeServer::new();
    let changing = Changing::running(&fake).await;
    let crib = &changing.crib;
    let fragile = |spec: &mut ServerSpec| {
        spec.lifecycle.breaker = BreakerSpec { failures: 1.try_into().unwrap(), cool_off: SECOND };
        spec.lifecycle.restarts.at_most = 0;
    };
    changing.apply(fragile).await;
    assert_eq!(kind(crib.call(on("git", "hang")).await), ErrorKind::TimedOut);
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Tripped);
    advance(SECOND).await;
    assert_eq!(kind(crib.call(on("git", "die")).await), ErrorKind::Lost);
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Ejected);
    changing.apply(|spec| spec.limits.cache_entries = 1).await;
    crib.call(on("git", "echo")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn every_instance_takes_over_changed_settings() {
    let fake = FakeServer::new();
    let per_client = spec("s", &fake).sharing(Sharing::PerClient);
    let crib = Crib::builder().server(per_client.clone()).build().unwrap();
    for key in [1, 2] {
        crib.call(call_as(key, "echo")).await.unwrap();
    }
    let limits = ServerLimits { call_timeout: 5 * SECOND, ..ServerLimits::default() };
    let memory = MemoryLimits { soft: None, hard: Some(1 << 40) };
    let lifecycle = Lifecycle { memory, ..Lifecycle::default() };
    let changes = crib.apply_roster(roster([per_client.limits(limits).lifecycle(lifecycle)])).await.unwrap();
    assert_eq!((changes.changed.len(), changes.restarted.len()), (1, 0));
    for key in [1, 2, 3] {
        let began = Instant::now();
        assert_eq!(kind(crib.call(call_as(key, "hang")).await), ErrorKind::TimedOut);
        assert_eq!(began.elapsed(), 5 * SECOND, "client {key}");
    }
    assert_eq!(fake.starts(), 3);
}
