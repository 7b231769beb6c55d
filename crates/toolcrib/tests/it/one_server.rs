//! Adding, changing and removing one server at a time, and servers that fail to start at boot.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use toolcrib::{
    Call, Crib, Era, EraChoice, ErrorKind, Lifecycle, RosterChanges, ServerSpec, ServerState, Settings,
    StartPolicy,
};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, id, kind, names, on, roster, settle, spawn, spec, status};

fn at_boot(name: &str, fake: &FakeServer) -> ServerSpec {
    let lifecycle =
        Lifecycle { start: StartPolicy::AtBoot, start_timeout: 5 * SECOND, ..Lifecycle::default() };
    spec(name, fake).lifecycle(lifecycle)
}

/// The servers that failed to start, with the kind of the failure.
fn failed(changes: &RosterChanges) -> Vec<(&str, ErrorKind)> {
    changes.failed.iter().map(|failed| (failed.server.as_str(), failed.error.kind())).collect()
}

#[tokio::test(start_paused = true)]
async fn added_server_is_callable_and_removed_one_is_not() {
    let git = FakeServer::with_tools(&["log"]);
    let time = FakeServer::with_tools(&["now"]);
    let crib = crib(&[("git", &git)]);
    crib.call(on("git", "log")).await.unwrap();
    let changes = crib.add(spec("time", &time)).await.unwrap();
    assert_eq!((changes.added, changes.changed, changes.removed), (vec![id("time")], vec![], vec![]));
    crib.call(Call::tool("time__now")).await.unwrap();
    assert_eq!(names(&crib.list().await), ["git__log", "time__now"]);
    let changes = crib.remove(&id("git")).await.unwrap();
    assert_eq!((changes.removed, names(&crib.catalog())), (vec![id("git")], vec!["time__now".to_owned()]));
    assert_eq!(kind(crib.call(on("git", "log")).await), ErrorKind::Unknown);
    settle().await;
    assert_eq!((git.running_and_peak().0, time.starts()), (0, 1));
    let unknown = crib.remove(&id("git")).await.unwrap_err();
    assert_eq!(
        (unknown.kind(), unknown.to_string().as_str()),
        (ErrorKind::Unknown, "no server is called `git`")
    );
}

#[tokio::test(start_paused = true)]
async fn add_refuses_a_taken_name_and_changes_nothing() {
    let fake = FakeServer::new();
    let crib = crib(&[("my-git", &fake)]);
    crib.call(on("my-git", "echo")).await.unwrap();
    for name in ["my-git", "my_git"] {
        let error = crib.add(spec(name, &FakeServer::new())).await.unwrap_err();
        assert_eq!((error.kind(), error.server()), (ErrorKind::Malformed, Some(&id("my-git"))));
    }
    assert_eq!(crib.replace(spec("my_git", &fake)).await.unwrap_err().kind(), ErrorKind::Malformed);
    crib.call(on("my-git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), crib.roster().servers().count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn replace_changes_or_adds_one_server() {
    let git = FakeServer::new();
    let time = FakeServer::new();
    let crib = crib(&[("git", &git), ("time", &time)]);
    crib.call(on("git", "echo")).await.unwrap();
    crib.call(on("time", "echo")).await.unwrap();
    let original = crib.spec(&id("git")).unwrap();
    let changes = crib.replace(original.clone().era(EraChoice::Era(Era::Session))).await.unwrap();
    assert_eq!((changes.changed, changes.restarted), (vec![id("git")], vec![id("git")]));
    crib.call(on("git", "echo")).await.unwrap();
    assert!(crib.replace(spec("new", &FakeServer::new())).await.unwrap().added == [id("new")]);
    assert_eq!([git.starts(), time.starts()], [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn roster_and_spec_are_what_was_declared() {
    let git = spec("git", &FakeServer::new());
    let mut off = spec("off", &FakeServer::new());
    off.enabled = false;
    let crib = Crib::builder().server(git.clone()).server(off.clone()).build().unwrap();
    assert_eq!(crib.roster(), roster([git.clone(), off.clone()]));
    assert_eq!((crib.spec(&id("off")), crib.spec(&id("none"))), (Some(off), None));
    crib.remove(&id("off")).await.unwrap();
    assert_eq!(crib.roster(), roster([git]));
    assert!(crib.apply_roster(crib.roster()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn failed_start_at_boot_is_reported_per_server() {
    let good = FakeServer::new();
    let silent = FakeServer::new().default_start(FakeStart::Silent);
    let refusing = FakeServer::new().default_start(FakeStart::RefusesHandshake);
    let lazy = FakeServer::new().default_start(FakeStart::Silent);
    let crib = Crib::builder().build().unwrap();
    let began = Instant::now();
    let servers = [
        at_boot("good", &good),
        at_boot("silent", &silent),
        at_boot("refusing", &refusing),
        spec("lazy", &lazy),
    ];
    let changes = crib.apply(Settings::new(roster(servers))).await.unwrap();
    assert_eq!(
        failed(&changes),
        [("refusing", ErrorKind::CouldNotStart), ("silent", ErrorKind::CouldNotStart)]
    );
    assert!(changes.failed[1].error.to_string().contains("did not come up within 5s"), "{changes:?}");
    assert_eq!((began.elapsed(), changes.added.len(), lazy.starts()), (5 * SECOND, 4, 0));
    assert_eq!(status(&crib, "good").state, ServerState::Ready);
    crib.call(on("good", "echo")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn add_waits_for_a_start_at_boot_within_its_timeout() {
    let crib = Crib::builder().build().unwrap();
    let slow = FakeServer::new().default_start(FakeStart::SlowHandshake(3 * SECOND));
    let began = Instant::now();
    let changes = crib.add(at_boot("slow", &slow)).await.unwrap();
    assert_eq!((failed(&changes), began.elapsed()), (vec![], 3 * SECOND));
    let silent = FakeServer::new().default_start(FakeStart::Silent);
    let changes = crib.add(at_boot("silent", &silent)).await.unwrap();
    assert_eq!((failed(&changes).len(), began.elapsed(), changes.added.len()), (1, 8 * SECOND, 1));
    assert!(crib.contains(&id("silent")), "it is added and supervised");
    let began = Instant::now();
    let changes = crib.apply_without_boot(Settings::new(roster([at_boot("silent", &silent)]))).await.unwrap();
    assert_eq!((failed(&changes), began.elapsed()), (vec![], Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn server_that_stays_up_is_not_waited_for() {
    let fake = FakeServer::new();
    let crib = Crib::builder().server(at_boot("git", &fake)).build().unwrap();
    settle().await;
    crib.stop(&id("git")).await.unwrap();
    let mut changed = crib.spec(&id("git")).unwrap();
    changed.limits.cache_entries = 1;
    let began = Instant::now();
    assert!(crib.replace(changed).await.unwrap().failed.is_empty());
    assert_eq!((began.elapsed(), status(&crib, "git").state), (Duration::ZERO, ServerState::Asleep));
}

#[tokio::test(start_paused = true)]
async fn concurrent_changes_of_different_servers_all_apply() {
    let crib = Crib::builder().build().unwrap();
    let mut changes = JoinSet::new();
    for n in 0..20 {
        let crib = crib.clone();
        changes.spawn(async move { crib.add(spec(&format!("s{n}"), &FakeServer::new())).await.unwrap() });
    }
    changes.join_all().await;
    assert_eq!(crib.roster().servers().count(), 20);
    let mut calls = JoinSet::new();
    (0..20).for_each(|n| spawn(&mut calls, &crib, on(&format!("s{n}"), "echo")));
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}
