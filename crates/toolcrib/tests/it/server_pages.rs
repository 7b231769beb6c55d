//! Pages of a list that a server is asked for on behalf of one client.

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio::time::Instant;
use toolcrib::access::policy::{Policy, Rules};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::versions::Era;
use toolcrib::{
    Call, CallRecord, Caller, Client, Crib, Error, ErrorKind, Event, ListKind, Observer, Selector, Sharing,
    UsageLimit, UsageLimits,
};

use crate::fake::{FakeServer, FakeStart};
use crate::sharing::{call_as, client};
use crate::support::{SECOND, crib, id, settle, spec};

/// A request for a list, with a cursor if there is one.
fn list_call(kind: ListKind, cursor: Option<&str>) -> Call {
    let mut params = Object::default();
    if let Some(cursor) = cursor {
        params.set("cursor", format!("\"{cursor}\"")).unwrap();
    }
    let method = kind.method();
    Call::request(method, Selector::OnServer(id("s"), method.to_owned()), params)
}

/// Asks for the page of tools after an unknown cursor, and returns whether the server was asked.
async fn is_asked(crib: &Crib, fake: &FakeServer, call: Call) -> bool {
    let before = fake.received("tools/list").len();
    let answered = crib.list_from_server(ListKind::Tools, call).await.unwrap().is_some();
    assert_eq!(fake.received("tools/list").len() > before, answered);
    answered
}

#[tokio::test(start_paused = true)]
async fn page_starts_no_instance() {
    let fake = FakeServer::new();
    let crib = Crib::builder().server(spec("s", &fake).sharing(Sharing::PerClient)).build().unwrap();
    crib.call(call_as(1, "echo")).await.unwrap();
    settle().await;
    let starts = fake.starts();
    for (key, asked) in [(2, false), (1, true)] {
        let call = list_call(ListKind::Tools, Some("x")).client(client(key, Era::Session, "{}"));
        assert_eq!(is_asked(&crib, &fake, call).await, asked, "client {key}");
    }
    assert_eq!(fake.starts(), starts);
    crib.stop(&id("s")).await.unwrap();
    let call = list_call(ListKind::Tools, Some("x")).client(client(1, Era::Session, "{}"));
    assert!(!is_asked(&crib, &fake, call).await);
    assert_eq!(fake.starts(), starts);
}

#[tokio::test(start_paused = true)]
async fn list_waits_only_briefly_for_a_start_which_continues() {
    let slow = FakeServer::with_tools(&["t"]).default_start(FakeStart::SlowHandshake(20 * SECOND));
    let crib = crib(&[("s", &slow)]);
    let client = Client { has_one_server: true, ..client(1, Era::Session, "{}") };
    let call = list_call(ListKind::Tools, None).client(client);
    let before = Instant::now();
    let error = crib.list_if_uncertain(ListKind::Tools, call, 4 * SECOND).await.unwrap_err();
    assert_eq!(
        (error.to_string(), before.elapsed()),
        ("server `s` is still starting".to_owned(), 4 * SECOND)
    );
    let mut catalog = crib.watch_catalog();
    catalog.wait_for(|catalog| catalog.tools().len() == 1).await.unwrap();
    assert_eq!((before.elapsed().as_secs(), slow.starts()), (20, 1));
}

#[tokio::test(start_paused = true)]
async fn page_is_not_requested_for_callers_with_limits() {
    let fake = FakeServer::new();
    let mut limits = UsageLimits::default();
    limits.callers.insert("ci".to_owned(), vec![UsageLimit::quota(NonZeroU32::MIN, SECOND)]);
    limits.callers_in_flight.insert("bot".to_owned(), NonZeroU32::MIN);
    let crib = Crib::builder().server(spec("s", &fake)).limits(limits).build().unwrap();
    crib.list().await;
    for (caller, asked) in [("ci", false), ("bot", false), ("local", true)] {
        let call = list_call(ListKind::Tools, Some("x")).caller(Caller::new(caller));
        assert_eq!(is_asked(&crib, &fake, call).await, asked, "{caller}");
    }
}

#[tokio::test(start_paused = true)]
async fn page_that_the_rules_empty_is_not_requested() {
    let fake = FakeServer::with_tools(&["t"]);
    let policy = Policy::for_everyone(Rules::default().denying(["s.t".parse().unwrap()]));
    let crib = Crib::builder().server(spec("s", &fake)).policy(policy).build().unwrap();
    crib.list().await;
    assert!(!is_asked(&crib, &fake, list_call(ListKind::Tools, None)).await);
    assert!(is_asked(&crib, &fake, list_call(ListKind::Tools, Some("x"))).await);
    let prompts = crib.list_from_server(ListKind::Prompts, list_call(ListKind::Prompts, None)).await;
    assert!(prompts.unwrap().is_some(), "the list of the server is empty itself");
}

#[tokio::test(start_paused = true)]
async fn requested_page_is_recorded() {
    let fake = FakeServer::new();
    let crib = Crib::builder().server(spec("s", &fake)).build().unwrap();
    crib.list().await;
    let mut events = crib.events();
    let call = list_call(ListKind::Tools, Some("x")).caller(Caller::new("ci"));
    assert!(is_asked(&crib, &fake, call).await);
    let mut records = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::CallEnded(record) = event {
            records.push((record.caller.as_str().to_owned(), record.method.to_string(), record.end.name()));
        }
    }
    assert_eq!(records, [("ci".to_owned(), "tools/list".to_owned(), "ok")]);
}

/// An observer that cannot record anything.
struct BrokenRecorder;

impl Observer for BrokenRecorder {
    fn check_ready(&self) -> Result<(), Error> {
        Err(Error::new(ErrorKind::Unrecorded, "the disk is full"))
    }

    fn call_ended(&self, _: &CallRecord) {}
}

#[tokio::test(start_paused = true)]
async fn page_that_cannot_be_recorded_is_not_requested() {
    let fake = FakeServer::new();
    let crib = Crib::builder().server(spec("s", &fake)).observer(Arc::new(BrokenRecorder)).build().unwrap();
    crib.list().await;
    let refused = crib.list_from_server(ListKind::Tools, list_call(ListKind::Tools, Some("x"))).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unrecorded);
    assert_eq!(fake.received("tools/list").len(), 1);
}
