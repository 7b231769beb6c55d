//! Nothing is global: cribs in one process do not know of each other.

use toolcrib::spec::Restarts;
use toolcrib::{
    Call, Catalog, Crib, Error, ErrorKind, Event, Lifecycle, Outcome, ServerSpec, ServerStatus, StateName,
};

use crate::fake::Fake;
use crate::house::{SECOND, crib, id, kind, on, spec, status};

fn is_send<T: Send>(value: T) -> T {
    value
}

#[test]
fn what_an_embedder_holds_can_be_shared_between_threads() {
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
async fn every_future_can_move_between_threads() {
    let crib = crib(&[("git", &Fake::new())]);
    is_send(crib.call(Call::tool("echo"))).await.unwrap();
    is_send(crib.list()).await;
    is_send(crib.discover()).await;
    is_send(crib.restart(&id("git"))).await.unwrap();
    is_send(crib.stop(&id("git"))).await.unwrap();
    is_send(crib.shutdown(SECOND)).await;
}

#[tokio::test(start_paused = true)]
async fn two_cribs_in_one_process_are_independent() {
    let (one_git, other_git) = (Fake::new(), Fake::new());
    let care = Lifecycle { restarts: Restarts { at_most: 0, within: SECOND }, ..Lifecycle::default() };
    let one = Crib::builder().server(spec("git", &one_git).lifecycle(care)).build().unwrap();
    let other = crib(&[("git", &other_git)]);
    other.call(on("git", "echo")).await.unwrap();
    assert_eq!(one_git.starts(), 0);
    assert_eq!(kind(one.call(on("git", "die")).await), ErrorKind::Lost);
    assert_eq!(kind(one.call(on("git", "echo")).await), ErrorKind::Ejected);
    assert_eq!(status(&other, "git").state, StateName::Ready);
    one.shutdown(SECOND).await;
    other.call(on("git", "echo")).await.unwrap();
    assert_eq!((other_git.starts(), other_git.called().len()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn one_server_object_in_two_cribs_runs_once_for_each() {
    let fake = Fake::new();
    let (one, other) = (crib(&[("git", &fake)]), crib(&[("git", &fake)]));
    one.call(on("git", "echo")).await.unwrap();
    other.call(on("git", "echo")).await.unwrap();
    assert_eq!((fake.starts(), fake.living().0), (2, 2));
    one.stop(&id("git")).await.unwrap();
    assert_eq!(fake.living().0, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_from_many_threads_are_all_answered() {
    let (git, time) = (Fake::new(), Fake::new());
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut calls = tokio::task::JoinSet::new();
    for n in 0..400 {
        crate::house::spawn(&mut calls, &crib, on(if n % 2 == 0 { "git" } else { "time" }, "echo"));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    crib.shutdown(SECOND).await;
    assert_eq!((git.starts(), time.starts(), git.living().0, time.living().0), (1, 1, 0, 0));
}
