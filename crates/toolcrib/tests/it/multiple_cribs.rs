//! Several cribs in one process are independent.

use toolcrib::spec::Restarts;
use toolcrib::{
    Call, Catalog, Crib, Error, ErrorKind, Event, Lifecycle, Outcome, ServerSpec, ServerState, ServerStatus,
};

use crate::fake::FakeServer;
use crate::support::{SECOND, crib, id, kind, on, spec, status};

fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn public_types_are_send_and_sync() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Crib>();
    shared::<Catalog>();
    shared::<Outcome>();
    shared::<Error>();
    shared::<Event>();
    shared::<ServerSpec>();
    shared::<ServerStatus>();
}

#[tokio::test]
async fn futures_are_send() {
    let crib = crib(&[("git", &FakeServer::new())]);
    is_send(crib.call(Call::tool("echo"))).await.unwrap();
    is_send(crib.list()).await;
    is_send(crib.discover()).await;
    is_send(crib.restart(&id("git"))).await.unwrap();
    is_send(crib.stop(&id("git"))).await.unwrap();
    is_send(crib.shutdown(SECOND)).await;
}

#[tokio::test(start_paused = true)]
async fn cribs_in_one_process_are_independent() {
    let first_git = FakeServer::new();
    let second_git = FakeServer::new();
    let lifecycle = Lifecycle { restarts: Restarts { at_most: 0, within: SECOND }, ..Lifecycle::default() };
    let first = Crib::builder().server(spec("git", &first_git).lifecycle(lifecycle)).build().unwrap();
    let second = crib(&[("git", &second_git)]);
    second.call(on("git", "echo")).await.unwrap();
    assert_eq!(first_git.starts(), 0);
    assert_eq!(kind(first.call(on("git", "die")).await), ErrorKind::Lost);
    assert_eq!(kind(first.call(on("git", "echo")).await), ErrorKind::Ejected);
    assert_eq!(status(&second, "git").state, ServerState::Ready);
    first.shutdown(SECOND).await;
    second.call(on("git", "echo")).await.unwrap();
    assert_eq!((second_git.starts(), second_git.called_tools().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn one_server_object_runs_once_per_crib() {
    let fake = FakeServer::new();
    let first = crib(&[("git", &fake)]);
    let second = crib(&[("git", &fake)]);
    first.call(on("git", "echo")).await.unwrap();
    second.call(on("git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), fake.running_and_peak().0), (2, 2));
    first.stop(&id("git")).await.unwrap();
    assert_eq!(fake.running_and_peak().0, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_calls_from_threads_are_answered() {
    let git = FakeServer::new();
    let time = FakeServer::new();
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..400 {
        crate::support::spawn(&mut calls, &crib, on(if n % 2 == 0 { "git" } else { "time" }, "echo"));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    crib.shutdown(SECOND).await;
    assert_eq!(
        (git.starts(), time.starts(), git.running_and_peak().0, time.running_and_peak().0),
        (1, 1, 0, 0)
    );
}
