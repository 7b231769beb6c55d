//! Sessions end when they are told to, when nobody uses them, and when there are too many.

use super::*;
use crate::frontend::face::Face;

fn face() -> Face {
    Face::new(toolcrib::Crib::builder().build().unwrap())
}

fn begin(sessions: &Sessions, face: &Face) -> String {
    sessions.begin(Talk::new(face, View::All, None, None)).unwrap().id
}

fn is_open(sessions: &Sessions, id: &str) -> bool {
    sessions.find(id, &View::All, &Caller::local()).is_some()
}

#[tokio::test]
async fn a_session_is_found_by_its_caller_in_its_view_until_it_ends() {
    let (sessions, face) = (Sessions::new(10), face());
    let (one, me) = (View::One("git".parse().unwrap()), Caller::local());
    let id = begin(&sessions, &face);
    assert!(is_open(&sessions, &id));
    assert!(sessions.find(&id, &one, &me).is_none() && !sessions.end(&id, &one, &me));
    let other = Caller::named("other");
    assert!(sessions.find(&id, &View::All, &other).is_none() && !sessions.end(&id, &View::All, &other));
    assert!(sessions.end(&id, &View::All, &me));
    assert!(!is_open(&sessions, &id) && !sessions.end(&id, &View::All, &me));
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
    let first = sessions.begin(Talk::new(&face, View::All, None, None)).unwrap();
    assert!(first.unwatched);
    let held = sessions.find(&first.id, &View::All, &Caller::local()).unwrap();
    let second = sessions.begin(Talk::new(&face, View::All, None, None)).unwrap();
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
    assert!(sessions.begin(Talk::new(&face, View::All, None, None)).unwrap().unwatched);
}

#[tokio::test]
async fn the_news_of_a_session_are_heard_by_one_at_a_time() {
    let (sessions, face) = (Sessions::new(10), face());
    let id = begin(&sessions, &face);
    let session = sessions.find(&id, &View::All, &Caller::local()).unwrap();
    let listening = session.listen().unwrap();
    assert!(session.listen().is_none());
    drop(listening);
    assert!(session.listen().is_some());
}
