//! Sessions end when they are told to, when nobody uses them, and when there are too many.

use toolcrib::Caller;

use super::*;
use crate::frontend::face::{Face, View};

fn face() -> Face {
    Face::new(toolcrib::Crib::builder().build().unwrap())
}

fn begin(sessions: &Sessions, face: &Face) -> String {
    sessions.begin(Talk::new(face, Visit::local(), None, None), &CancellationToken::new()).unwrap().id
}

fn is_open(sessions: &Sessions, id: &str) -> bool {
    sessions.find(id, &Visit::local()).is_some()
}

#[tokio::test]
async fn a_session_is_found_by_its_caller_in_its_view_until_it_ends() {
    let (sessions, face) = (Sessions::new(10), face());
    let (me, one) = (Visit::local(), View::One("git".parse().unwrap()));
    let id = begin(&sessions, &face);
    assert!(is_open(&sessions, &id));
    let elsewhere = Visit { view: one, ..Visit::local() };
    let foreign = Visit { caller: Caller::named("other"), ..Visit::local() };
    for visit in [elsewhere, foreign] {
        assert!(sessions.find(&id, &visit).is_none() && !sessions.end(&id, &visit));
    }
    assert!(sessions.end(&id, &me));
    assert!(!is_open(&sessions, &id) && !sessions.end(&id, &me));
}

#[tokio::test(start_paused = true)]
async fn the_longest_idle_session_makes_room() {
    let (sessions, face) = (Sessions::new(2), face());
    let begin = async || {
        tokio::time::advance(Duration::from_secs(1)).await;
        begin(&sessions, &face)
    };
    let (first, second) = (begin().await, begin().await);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(is_open(&sessions, &first));
    let third = begin().await;
    assert!(!is_open(&sessions, &second));
    assert!(is_open(&sessions, &first) && is_open(&sessions, &third));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_nobody_uses_ends_and_then_nobody_watches() {
    let (sessions, face) = (Sessions::new(10), face());
    let first =
        sessions.begin(Talk::new(&face, Visit::local(), None, None), &CancellationToken::new()).unwrap();
    assert!(first.unwatched);
    let held = sessions.find(&first.id, &Visit::local()).unwrap();
    let second =
        sessions.begin(Talk::new(&face, Visit::local(), None, None), &CancellationToken::new()).unwrap();
    assert!(!second.unwatched);
    let ended = sessions.open().sessions[&second.id].ended.clone();
    let watch = sessions.watch();
    tokio::pin!(watch);
    tokio::select! {
        () = &mut watch => panic!("the first is still there"),
        () = tokio::time::sleep(IDLE + PAUSE) => {}
    }
    assert!(ended.is_cancelled() && !is_open(&sessions, &second.id), "it was idle");
    drop(held);
    watch.await;
    assert!(!is_open(&sessions, &first.id));
    assert!(
        sessions
            .begin(Talk::new(&face, Visit::local(), None, None), &CancellationToken::new())
            .unwrap()
            .unwatched
    );
}

#[tokio::test]
async fn the_news_of_a_session_are_heard_by_one_at_a_time() {
    let (sessions, face) = (Sessions::new(10), face());
    let id = begin(&sessions, &face);
    let session = sessions.find(&id, &Visit::local()).unwrap();
    let listening = session.listen().unwrap();
    assert!(session.listen().is_none());
    drop(listening);
    assert!(session.listen().is_some());
}
