//! How calls end with their connection: what never left is known not to have, and a stop is not called a death.

use tokio::io::DuplexStream;
use tokio::sync::oneshot;

use super::*;
use crate::connection::link::{Link, Ticket};
use crate::last_words::{Exit, LastWords};

/// A link to an end in this process; how that went is not known before the test says so.
fn open() -> (Link, DuplexStream, oneshot::Sender<LastWords>) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (told, words) = oneshot::channel();
    let farewell = Box::pin(async move { words.await.unwrap_or_default() });
    let (pipes, gone) = (tokio::io::split(ours), std::future::pending());
    let news = tokio::sync::broadcast::channel(8).0;
    let (link, queue) = Link::new(
        "fake".parse().unwrap(),
        (news, Arc::default()),
        TaskTracker::new(),
        Default::default(),
        Arc::default(),
    );
    (link.over_pipes(queue, pipes, 1 << 20, gone, farewell), theirs, told)
}

fn ask(link: &Link) -> Ticket {
    link.ask("tools/call", None, |_, line| line.extend_from_slice(b"{}")).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_call_that_enters_a_dying_connection_is_marked_unsent() {
    let (link, theirs, told) = open();
    drop(theirs);
    breath().await;
    assert!(!link.is_closed(), "how it went is still being found out");
    let ticket = ask(&link);
    told.send(LastWords::default()).unwrap();
    let error = ticket.await.unwrap_err();
    assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, true), "{error}");
    assert_eq!(link.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_handed_over_in_the_moment_of_the_break_is_marked_unsent_and_one_that_left_is_not() {
    let (link, theirs, told) = open();
    let left = ask(&link);
    breath().await;
    let queued = ask(&link);
    drop(theirs);
    breath().await;
    told.send(LastWords::default()).unwrap();
    assert!(!left.await.unwrap_err().is_unsent());
    assert!(queued.await.unwrap_err().is_unsent());
}

#[tokio::test(start_paused = true)]
async fn calls_lost_to_a_stop_say_stopped_and_calls_lost_to_a_crash_say_died() {
    for (stopped, words) in [(true, "`fake` was stopped"), (false, "`fake` died: ")] {
        let fake = Fake::new();
        let connection = connected(&spec(&fake)).await;
        let mut calls = JoinSet::new();
        (0..3).for_each(|_| held(&connection, &mut calls));
        breath().await;
        match stopped {
            true => connection.stop().await,
            false => fake.kill(),
        }
        for outcome in calls.join_all().await {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), error.is_unsent()), (ErrorKind::Lost, false));
            assert!(error.to_string().starts_with(words), "{error}");
        }
        assert!(connection.obituary().to_string().starts_with(words), "{}", connection.obituary());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_crashed_and_is_then_seen_out_has_died_all_the_same() {
    let (link, theirs, told) = open();
    let ticket = ask(&link);
    breath().await;
    drop(theirs);
    told.send(LastWords { exit: Some(Exit::Status(3)), ..LastWords::default() }).unwrap();
    link.closed().await;
    link.hang_up();
    assert_eq!(ticket.await.unwrap_err().to_string(), "`fake` died: exit status 3");
}
