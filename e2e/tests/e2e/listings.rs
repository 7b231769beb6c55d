//! What servers offer: found page by page, remembered between runs, and announced when it changes.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::time::Duration;

use e2e::chaos::books::Books;
use serde_json::json;
use tempfile::TempDir;
use test_support::{PATIENCE, eventually, fake, starts, status, text};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, timeout};
use toolcrib::{Crib, Event, ServerSpec, StateName};

/// The tools that every fake server has.
const USEFUL: usize = 30;

fn remembering(spec: ServerSpec, dir: &TempDir) -> Crib {
    Crib::builder().server(spec).state_dir(dir.path()).build().unwrap()
}

fn listed(crib: &Crib) -> usize {
    crib.catalog().tools().len()
}

async fn changed(events: &mut Receiver<Event>) {
    let heard = async { while !matches!(events.recv().await, Ok(Event::Changed { .. })) {} };
    timeout(PATIENCE, heard).await.unwrap();
}

#[tokio::test]
async fn all_pages_are_listed_in_order() {
    let crib = test_support::crib([fake!("fake", "--tools", "100", "--page-size", "7")]);
    let catalog = crib.list().await;
    assert_eq!(catalog.tools().len(), USEFUL + 100);
    assert_eq!(&*catalog.tools()[0].public_name, "fake__echo");
    assert_eq!(&*catalog.tools()[USEFUL + 99].public_name, "fake__extra_100");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_second_crib_lists_what_the_first_one_saw_and_starts_nothing() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = fake!("fake", "--tools", "3", "--count-file", count.to_str().unwrap());
    let first = remembering(spec.clone(), &dir);
    assert_eq!(first.list().await.tools().len(), USEFUL + 3);
    first.shutdown(Duration::ZERO).await;
    assert_eq!(starts(&count), 1);
    let second = remembering(spec, &dir);
    assert_eq!(second.list().await.tools().len(), USEFUL + 3);
    assert_eq!((starts(&count), status(&second, "fake").state), (1, StateName::Asleep));
    assert_eq!(text(&second, "fake", "echo", &json!({"text": "and it works"})).await, "and it works");
    second.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_listing_that_changed_meanwhile_is_announced_at_the_next_start() {
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("server");
    let install = |tools: usize| {
        let script = format!("#!/bin/sh\nexec '{}' --tools {tools}\n", env!("CARGO_BIN_EXE_fake-server"));
        test_support::process::write_program(&program, &script);
    };
    let spec = || test_support::fake_server(program.to_str().unwrap(), "fake", &[]);
    install(1);
    let first = remembering(spec(), &dir);
    assert_eq!(first.list().await.tools().len(), USEFUL + 1);
    first.shutdown(Duration::ZERO).await;
    install(2);
    let second = remembering(spec(), &dir);
    let mut events = second.events();
    assert_eq!(second.list().await.tools().len(), USEFUL + 1, "what is known is shown at once");
    assert_eq!(text(&second, "fake", "echo", &json!({"text": "awake"})).await, "awake");
    changed(&mut events).await;
    eventually("the catalog shows it", || listed(&second) == USEFUL + 2).await;
    second.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_says_its_tools_changed_is_listed_anew() {
    let crib = test_support::crib([fake!("fake")]);
    crib.list().await;
    let mut events = crib.events();
    for _ in 0..3 {
        assert_eq!(text(&crib, "fake", "notify_list_changed", &json!({})).await, "changed");
    }
    changed(&mut events).await;
    eventually("all of them are there", || listed(&crib) == USEFUL + 3).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_server_that_says_so_without_end_is_listed_at_most_once_a_second() {
    let dir = TempDir::new().unwrap();
    let books = Books::new(dir.path().join("ledger"));
    let crib = test_support::crib([fake!("fake", "--ledger", books.of("fake"))]);
    crib.list().await;
    let (known, before, began) = (listed(&crib), books.read().lists, Instant::now());
    for _ in 0..300 {
        text(&crib, "fake", "notify_list_changed", &json!({})).await;
    }
    eventually("all of them are there", || listed(&crib) == known + 300).await;
    let (lists, seconds) = (books.read().lists - before, began.elapsed().as_secs());
    assert!((1..=seconds + 2).contains(&(lists as u64)), "{lists} lists in {seconds} s");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn one_server_that_cannot_start_costs_only_its_own_tools() {
    let broken = fake!("broken", "--never-answer-handshake");
    let lifecycle =
        toolcrib::Lifecycle { start_timeout: Duration::from_millis(300), ..test_support::quick(0) };
    let crib = test_support::crib([broken.lifecycle(lifecycle), fake!("fake")]);
    assert_eq!(crib.list().await.tools().len(), USEFUL);
    let found = crib.discover().await;
    assert_eq!(found.iter().map(|discovery| discovery.tools.is_ok()).collect::<Vec<_>>(), [false, true]);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn a_bare_name_reaches_the_only_server_that_has_it() {
    let crib = test_support::crib([fake!("one", "--tools", "1"), fake!("two", "--tools", "2")]);
    let refused = crib.call(toolcrib::Call::tool("echo")).await.unwrap_err();
    assert!(refused.to_string().contains("`one__echo`, `two__echo`"), "{refused}");
    let outcome = crib.call(toolcrib::Call::tool("extra_2")).await.unwrap();
    assert_eq!(outcome.server, Some(test_support::server_id("two")));
    crib.shutdown(Duration::ZERO).await;
}
