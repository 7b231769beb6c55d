//! Listings of servers: read page by page, stored between runs, and announced when they change.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::time::Duration;

use e2e::chaos::execution_log::ExecutionLog;
use serde_json::json;
use tempfile::TempDir;
use test_support::{WAIT_LIMIT, count_starts, eventually, fake, status, text};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, timeout};
use toolcrib::{Crib, Event, ServerSpec, ServerState};

/// The number of tools that every fake server has.
const USEFUL: usize = 30;

fn crib_with_state(spec: ServerSpec, dir: &TempDir) -> Crib {
    let builder = Crib::builder().server(spec).state_dir(dir.path());
    builder.listing_wait(WAIT_LIMIT).build().unwrap()
}

fn count_tools(crib: &Crib) -> usize {
    crib.catalog().tools().len()
}

async fn wait_for_change(events: &mut Receiver<Event>) {
    let changed = async { while !matches!(events.recv().await, Ok(Event::ListingChanged { .. })) {} };
    timeout(WAIT_LIMIT, changed).await.unwrap();
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
async fn stored_listing_is_served_without_starting_the_server() {
    let dir = TempDir::new().unwrap();
    let count = dir.path().join("starts");
    let spec = fake!("fake", "--tools", "3", "--count-file", count.to_str().unwrap());
    let first = crib_with_state(spec.clone(), &dir);
    assert_eq!(first.list().await.tools().len(), USEFUL + 3);
    first.shutdown(Duration::ZERO).await;
    assert_eq!(count_starts(&count), 1);
    let second = crib_with_state(spec, &dir);
    assert_eq!(second.list().await.tools().len(), USEFUL + 3);
    assert_eq!((count_starts(&count), status(&second, "fake").state), (1, ServerState::Asleep));
    assert_eq!(text(&second, "fake", "echo", &json!({"text": "and it works"})).await, "and it works");
    second.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn listing_changed_between_runs_is_announced_at_the_next_start() {
    let dir = TempDir::new().unwrap();
    let program = dir.path().join("server");
    let install = |tools: usize| {
        let script = format!("#!/bin/sh\nexec '{}' --tools {tools}\n", env!("CARGO_BIN_EXE_fake-server"));
        test_support::process::write_program(&program, &script);
    };
    let spec = || test_support::fake_server(program.to_str().unwrap(), "fake", &[]);
    install(1);
    let first = crib_with_state(spec(), &dir);
    assert_eq!(first.list().await.tools().len(), USEFUL + 1);
    first.shutdown(Duration::ZERO).await;
    install(2);
    let second = crib_with_state(spec(), &dir);
    let mut events = second.events();
    assert_eq!(second.list().await.tools().len(), USEFUL + 1, "the stored listing is served first");
    assert_eq!(text(&second, "fake", "echo", &json!({"text": "awake"})).await, "awake");
    wait_for_change(&mut events).await;
    eventually("the catalog is updated", || count_tools(&second) == USEFUL + 2).await;
    second.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn announced_change_is_listed_again() {
    let crib = test_support::crib([fake!("fake")]);
    crib.list().await;
    let mut events = crib.events();
    for _ in 0..3 {
        assert_eq!(text(&crib, "fake", "notify_list_changed", &json!({})).await, "changed");
    }
    wait_for_change(&mut events).await;
    eventually("the catalog is updated", || count_tools(&crib) == USEFUL + 3).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn continuous_changes_are_listed_at_most_once_per_second() {
    let dir = TempDir::new().unwrap();
    let executions = ExecutionLog::new(dir.path().join("records"));
    let crib = test_support::crib([fake!("fake", "--record-dir", executions.server_folder("fake"))]);
    crib.list().await;
    let first = count_tools(&crib);
    let before = executions.read().lists;
    let started = Instant::now();
    for _ in 0..300 {
        text(&crib, "fake", "notify_list_changed", &json!({})).await;
    }
    eventually("the catalog is updated", || count_tools(&crib) == first + 300).await;
    let lists = executions.read().lists - before;
    let seconds = started.elapsed().as_secs();
    assert!((1..=seconds + 2).contains(&(lists as u64)), "{lists} lists in {seconds} s");
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn failed_start_does_not_affect_the_listing_of_others() {
    let broken = fake!("broken", "--never-answer-handshake");
    let lifecycle =
        toolcrib::Lifecycle { start_timeout: Duration::from_millis(300), ..test_support::quick_lifecycle(0) };
    let crib = test_support::crib([broken.lifecycle(lifecycle), fake!("fake")]);
    assert_eq!(crib.list().await.tools().len(), USEFUL);
    let found = crib.discover().await;
    assert_eq!(found.iter().map(|discovery| discovery.tools.is_ok()).collect::<Vec<_>>(), [false, true]);
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn bare_name_resolves_to_the_only_server_with_that_tool() {
    let crib = test_support::crib([fake!("one", "--tools", "1"), fake!("two", "--tools", "2")]);
    let refused = crib.call(toolcrib::Call::tool("echo")).await.unwrap_err();
    assert!(refused.to_string().contains("`one__echo`, `two__echo`"), "{refused}");
    let outcome = crib.call(toolcrib::Call::tool("extra_2")).await.unwrap();
    assert_eq!(outcome.server, Some(test_support::server_id("two")));
    crib.shutdown(Duration::ZERO).await;
}
