//! Servers that answer too slowly, too much or not at all, and what may be executed meanwhile.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use e2e::chaos::books::Books;
use e2e::chaos::gauge::Gauge;
use serde_json::json;
use tempfile::TempDir;
use test_support::{PATIENCE, call, crib, eventually, fake, quick, status, text};
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::spec::BreakerSpec;
use toolcrib::{Crib, Error, ErrorKind, KeepAlive, Lifecycle, Limits, Outcome, StateName};

/// A call that is written into the server's books.
async fn stamp(crib: &Crib, token: u64, how: &str) -> Result<Outcome, Error> {
    let arguments = json!({"token": token.to_string(), "how": how});
    timeout(PATIENCE, call(crib, "fake", "stamp", &arguments)).await.unwrap()
}

fn books() -> (TempDir, Books) {
    let dir = TempDir::new().unwrap();
    let books = Books::new(dir.path().join("ledger"));
    (dir, books)
}

#[tokio::test]
async fn an_answer_that_comes_byte_by_byte_does_not_outlive_the_calls_limit_and_harms_no_later_one() {
    let (_dir, books) = books();
    let limits = Limits { call_timeout: Duration::from_millis(300), ..Limits::default() };
    let breaker = BreakerSpec { failures: NonZeroU32::MAX, cool_off: Duration::from_secs(1) };
    let spec = fake!("fake", "--ledger", books.of("fake")).limits(limits);
    let crib = crib([spec.lifecycle(Lifecycle { breaker, ..quick(5) })]);
    assert_eq!(stamp(&crib, 1, "drip").await.unwrap_err().kind(), ErrorKind::TimedOut);
    let _watchdog = test_support::deadline::Watchdog::new(10 * PATIENCE);
    // The rest of it is still on its way, and is nobody's answer.
    let mut later = stamp(&crib, 2, "").await;
    while later.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut) {
        later = stamp(&crib, 2, "").await;
    }
    assert_eq!(later.unwrap().text(), "2");
    assert_eq!(status(&crib, "fake").generation, 1, "it is slow, not dead");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_line_without_an_end_is_not_kept_and_the_next_answers_are_heard() {
    // The memory of the whole process is measured.
    if !test_support::in_own_process!() {
        return;
    }
    let (_dir, books) = books();
    let crib = crib([fake!("fake", "--ledger", books.of("fake")), fake!("other")]);
    text(&crib, "fake", "echo", &json!({"text": "warm"})).await;
    let gauge = Gauge::new(std::process::id());
    let before = gauge.memory();
    let mut calls = JoinSet::new();
    let endless = crib.clone();
    calls.spawn(async move { stamp(&endless, 1, "endless").await });
    let mut most = before;
    while calls.try_join_next().is_none() {
        assert_eq!(text(&crib, "other", "echo", &json!({"text": "well"})).await, "well");
        most = most.max(gauge.memory());
    }
    assert!(most < before + (96 << 10), "{before} KiB became {most} KiB");
    assert_eq!(stamp(&crib, 2, "").await.unwrap().text(), "2");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_tripped_server_gets_one_call_that_tries_and_only_its_success_lets_others_through() {
    let (_dir, books) = books();
    let breaker = BreakerSpec { failures: NonZeroU32::new(3).unwrap(), cool_off: Duration::from_millis(300) };
    let limits = Limits { call_timeout: Duration::from_millis(500), ..Limits::default() };
    let spec = fake!("fake", "--ledger", books.of("fake")).limits(limits);
    let crib = crib([spec.lifecycle(Lifecycle { breaker, ..quick(5) })]);
    text(&crib, "fake", "echo", &json!({"text": "warm"})).await;
    let hang = async |token| stamp(&crib, token, "hang").await.unwrap_err().kind();
    // Two failures are not three in a row, whatever a tool says of itself in between.
    for token in [0, 1] {
        assert_eq!(hang(token).await, ErrorKind::TimedOut);
    }
    assert!(call(&crib, "fake", "fail", &json!({"text": "no"})).await.unwrap().is_error());
    for token in [2, 3, 4] {
        assert_eq!(status(&crib, "fake").state, StateName::Ready, "before {token}");
        assert_eq!(hang(token).await, ErrorKind::TimedOut);
    }
    eventually("it trips", || status(&crib, "fake").state == StateName::Tripped).await;
    let refused = stamp(&crib, 10, "").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Tripped);
    tokio::time::sleep(refused.wait().unwrap()).await;
    let mut calls = JoinSet::new();
    for token in 100..130 {
        let crib = crib.clone();
        calls.spawn(async move { stamp(&crib, token, "hang").await.map_err(|error| error.kind()) });
    }
    let mut ends = calls.join_all().await;
    ends.retain(|end| end.as_ref().is_err_and(|kind| *kind != ErrorKind::Tripped));
    assert_eq!(ends.len(), 1, "all but the one that tried were refused: {ends:?}");
    assert_eq!(books.read().tokens.len(), 5 + 1, "nobody else was let through");
    eventually("a try that hangs trips it again", || status(&crib, "fake").state == StateName::Tripped).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn when_the_call_that_tries_is_taken_back_the_next_one_may_try() {
    let (_dir, books) = books();
    let breaker = BreakerSpec { failures: NonZeroU32::new(1).unwrap(), cool_off: Duration::from_millis(100) };
    let limits = Limits { call_timeout: Duration::from_secs(2), ..Limits::default() };
    let spec = fake!("fake", "--ledger", books.of("fake")).limits(limits);
    let crib = crib([spec.lifecycle(Lifecycle { breaker, ..quick(5) })]);
    assert_eq!(stamp(&crib, 0, "hang").await.unwrap_err().kind(), ErrorKind::TimedOut);
    eventually("it may be tried", || status(&crib, "fake").breaker() == "half_open").await;
    let mut trying = JoinSet::new();
    let caller = crib.clone();
    trying.spawn(async move { stamp(&caller, 1, "hang").await });
    eventually("one tries", || status(&crib, "fake").state == StateName::Probing).await;
    trying.shutdown().await;
    eventually("its place is free", || status(&crib, "fake").state == StateName::Tripped).await;
    assert_eq!(stamp(&crib, 2, "").await.unwrap().text(), "2");
    eventually("it is well", || status(&crib, "fake").state == StateName::Ready).await;
    assert_eq!(status(&crib, "fake").restarts, 0);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_call_never_goes_to_a_server_that_is_about_to_sleep() {
    let (_dir, books) = books();
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::from_millis(1)), ..quick(5) };
    let crib = crib([fake!("fake", "--ledger", books.of("fake")).lifecycle(lifecycle)]);
    for token in 0..40 {
        assert_eq!(stamp(&crib, token, "").await.unwrap().text(), token.to_string());
        tokio::time::sleep(Duration::from_millis(token % 4)).await;
    }
    let done = books.read();
    assert_eq!(done.tokens.len(), 40);
    assert!(done.tokens.values().all(|times| *times == 1), "{done:?}");
    assert_eq!(status(&crib, "fake").restarts, 0, "sleeping is no crash");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn calls_taken_back_free_their_places_and_their_late_answers_are_dropped() {
    let (_dir, books) = books();
    let limits = Limits { in_flight: NonZeroUsize::new(4).unwrap(), ..Limits::default() };
    let crib = crib([fake!("fake", "--ledger", books.of("fake")).limits(limits)]);
    text(&crib, "fake", "echo", &json!({"text": "warm"})).await;
    for round in 0..10 {
        let mut calls = JoinSet::new();
        for number in 0..8 {
            let crib = crib.clone();
            let how = if number % 2 == 0 { "hang" } else { "late" };
            calls.spawn(async move { stamp(&crib, round * 8 + number, how).await });
        }
        eventually("as many as may are in flight", || status(&crib, "fake").in_flight == 4).await;
        calls.shutdown().await;
        eventually("none is in flight", || status(&crib, "fake").in_flight == 0).await;
    }
    assert_eq!(stamp(&crib, 1000, "").await.unwrap().text(), "1000");
    crib.shutdown(Duration::ZERO).await;
}
