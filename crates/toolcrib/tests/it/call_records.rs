//! Every call is recorded exactly once, without its arguments and results.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;
use toolcrib::access::policy::{Policy, Rules};
use toolcrib::model::event::Decision::{self, Allowed, Denied, NotEvaluated};
use toolcrib::model::event::{CallEnd, CallRecord};
use toolcrib::protocol::era::capabilities::ClientCapabilities;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::versions::Era;
use toolcrib::{Call, Caller, Client, Crib, Error, ErrorKind, Event, Observer, Selector, ServerSpec};

use crate::asking_server::AskingServer;
use crate::fake::FakeServer;
use crate::support::{SECOND, id, kind, on, settle, spec};

fn rules(deny: &[&str]) -> Rules {
    Rules::default().denying(deny.iter().map(|rule| rule.parse().unwrap()))
}

/// Returns the records of all calls so far.
fn records(events: &mut Receiver<Event>) -> Vec<Arc<CallRecord>> {
    let mut records = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::CallEnded(called) = event {
            records.push(called);
        }
    }
    records
}

/// Returns the record of the only call.
fn only_record(events: &mut Receiver<Event>) -> Arc<CallRecord> {
    let mut records = records(events);
    assert_eq!(records.len(), 1, "{records:?}");
    records.remove(0)
}

fn summary(called: &CallRecord) -> (Option<&str>, &str, Decision, &'static str) {
    (called.server.as_ref().map(toolcrib::ServerId::as_str), &called.name, called.decision, called.end.name())
}

#[tokio::test(start_paused = true)]
async fn call_is_recorded_once_however_it_ends() {
    let git = FakeServer::new();
    let secret = FakeServer::new();
    let mut policy = Policy::for_everyone(rules(&["git.refuse"]));
    policy.callers.insert("ci".to_owned(), rules(&["secret.*"]));
    let crib = Crib::builder().server(spec("git", &git)).server(spec("secret", &secret)).policy(policy);
    let crib = crib.build().unwrap();
    crib.list().await;
    let ci = || Caller::new("ci");
    let mut events = crib.events();
    let cases = [
        (Call::tool("git__echo").caller(ci()), Some("git"), "echo", Allowed, "ok"),
        (on("git", "echo"), Some("git"), "echo", Allowed, "ok"),
        (Call::tool("git__fail"), Some("git"), "fail", Allowed, "tool_error"),
        (Call::tool("git__refuse"), Some("git"), "refuse", Denied, "denied"),
        (on("git", "refuse"), Some("git"), "refuse", Denied, "denied"),
        // The caller does not learn that the server exists; the record names it.
        (Call::tool("secret__echo").caller(ci()), Some("secret"), "echo", Denied, "unknown"),
        (on("secret", "echo").caller(ci()), Some("secret"), "echo", Denied, "unknown"),
        (Call::tool("git__nope"), None, "git__nope", NotEvaluated, "unknown"),
        (on("git", "hang").timeout(SECOND), Some("git"), "hang", Allowed, "timed_out"),
        (on("git", "die"), Some("git"), "die", Allowed, "lost"),
    ];
    for (call, server, name, decision, ending) in cases {
        let asked = format!("{:?}", call.get_selector());
        let _ = crib.call(call).await;
        let called = only_record(&mut events);
        assert_eq!(summary(&called), (server, name, decision, ending), "{asked}");
        assert_eq!(called.denial.is_some(), decision == Denied, "{asked}");
        assert!(called.arguments.is_none());
    }
    crib.shutdown(SECOND).await;
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::ShuttingDown);
    assert!(records(&mut events).is_empty(), "the stream of events has ended");
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_is_recorded() {
    let fake = FakeServer::new();
    let crib = Crib::builder().server(spec("git", &fake)).build().unwrap();
    crib.list().await;
    let mut events = crib.events();
    assert!(timeout(SECOND, crib.call(on("git", "hang"))).await.is_err());
    let called = only_record(&mut events);
    assert_eq!(summary(&called), (Some("git"), "hang", Allowed, "cancelled"));
    assert!(called.duration >= SECOND);
    settle().await;
    assert!(records(&mut events).is_empty());
}

#[tokio::test]
async fn denied_call_spends_its_whole_time_on_the_decision() {
    let fake = FakeServer::new();
    let policy = Policy::for_everyone(rules(&["git.hold"]));
    let crib = Crib::builder().server(spec("git", &fake)).policy(policy).build().unwrap();
    crib.list().await;
    let mut events = crib.events();
    crib.call(on("git", "hold")).await.unwrap_err();
    let called = only_record(&mut events);
    assert!(!called.duration.is_zero());
    assert_eq!(called.timing.policy, called.duration);
}

#[tokio::test(start_paused = true)]
async fn record_has_rule_caller_and_sizes() {
    let fake = FakeServer::new();
    let policy = Policy::for_everyone(rules(&["git.hold"]));
    let crib = Crib::builder().server(spec("git", &fake)).policy(policy).build().unwrap();
    crib.list().await;
    let mut events = crib.events();
    let outcome =
        crib.call(on("git", "echo").arguments(&json!({"a": 1})).caller(Caller::new("ci"))).await.unwrap();
    let called = only_record(&mut events);
    assert_eq!((called.caller.as_str(), &*called.method), ("ci", "tools/call"));
    assert_eq!(
        (called.request_bytes, called.response_bytes),
        (r#""echo"{"a":1}"#.len(), outcome.raw().len())
    );
    crib.call(on("git", "hold")).await.unwrap_err();
    assert_eq!(only_record(&mut events).denial.as_ref().unwrap().rule, "`policy.deny` has `git.hold`");
}

#[tokio::test(start_paused = true)]
async fn resumed_call_is_recorded_with_its_target() {
    let crib =
        Crib::builder().server(ServerSpec::in_process(id("a"), AskingServer::in_session())).build().unwrap();
    crib.list().await;
    let mut events = crib.events();
    let call = |params: &Value| {
        let params = Object::parse(&params.to_string().into()).unwrap();
        let capabilities = ClientCapabilities::parse(&br#"{"elicitation":{}}"#.as_slice().into());
        Call::request("tools/call", Selector::Tool("a__ask".into()), params).client(Client {
            key: 1,
            era: Era::Stateless,
            capabilities,
            ..Client::without_capabilities()
        })
    };
    let mut params = json!({"name": "ask", "arguments": {"method": "elicitation/create", "params": {}}});
    let asked = crib.call(call(&params)).await.unwrap().to_value();
    assert_eq!(summary(&only_record(&mut events)), (Some("a"), "ask", Allowed, "input_required"));
    params["inputResponses"] = json!({"ask-1": {"action": "accept"}});
    params["requestState"] = asked["requestState"].clone();
    crib.call(call(&params)).await.unwrap();
    assert_eq!(summary(&only_record(&mut events)), (Some("a"), "ask", Allowed, "ok"));
}

/// An observer that remembers records and can refuse calls.
#[derive(Default)]
struct RecordingObserver {
    seen: Mutex<Vec<CallRecord>>,
    is_failing: Mutex<bool>,
}

impl Observer for RecordingObserver {
    fn check_ready(&self) -> Result<(), Error> {
        match *self.is_failing.lock().unwrap() {
            true => Err(Error::new(ErrorKind::Unrecorded, "the observer is failing")),
            false => Ok(()),
        }
    }

    fn wants_arguments(&self) -> bool {
        true
    }

    fn call_ended(&self, called: &CallRecord) {
        self.seen.lock().unwrap().push(called.clone());
    }
}

#[tokio::test(start_paused = true)]
async fn observer_sees_calls_first_and_can_refuse_them() {
    let fake = FakeServer::new();
    let observer = Arc::new(RecordingObserver::default());
    let crib = Crib::builder().server(spec("git", &fake)).observer(observer.clone()).build().unwrap();
    let mut events = crib.events();
    crib.call(on("git", "echo").arguments(&json!({"a": 1}))).await.unwrap();
    let seen = observer.seen.lock().unwrap().pop().unwrap();
    assert_eq!(seen.arguments.as_deref(), Some(&br#"{"a":1}"#[..]));
    assert!(
        records(&mut events).iter().all(|called| called.arguments.is_none()),
        "only the observer gets arguments"
    );
    *observer.is_failing.lock().unwrap() = true;
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Unrecorded);
    assert_eq!(observer.seen.lock().unwrap().pop().unwrap().end, CallEnd::Failed(ErrorKind::Unrecorded));
    assert_eq!(fake.called_tools().len(), 1);
}

/// An observer that counts records and does not want arguments.
#[derive(Default)]
struct CountingObserver {
    ended: Mutex<usize>,
    closed: Mutex<bool>,
}

impl Observer for CountingObserver {
    fn call_ended(&self, record: &CallRecord) {
        assert!(record.arguments.is_none(), "this observer does not want arguments");
        *self.ended.lock().unwrap() += 1;
    }

    fn close(&self) {
        *self.closed.lock().unwrap() = true;
    }
}

#[tokio::test(start_paused = true)]
async fn every_observer_gets_each_record_once() {
    let recording = Arc::new(RecordingObserver::default());
    let counting = Arc::new(CountingObserver::default());
    let builder = Crib::builder().server(spec("git", &FakeServer::new()));
    let crib = builder.observer(recording.clone()).observer(counting.clone()).build().unwrap();
    crib.call(on("git", "echo").arguments(&json!({"a": 1}))).await.unwrap();
    assert_eq!(*counting.ended.lock().unwrap(), 1);
    assert!(recording.seen.lock().unwrap().pop().unwrap().arguments.is_some());
    *recording.is_failing.lock().unwrap() = true;
    assert_eq!(
        kind(crib.call(on("git", "echo")).await),
        ErrorKind::Unrecorded,
        "one observer is enough to refuse"
    );
    assert_eq!(*counting.ended.lock().unwrap(), 2);
    crib.shutdown(SECOND).await;
    assert!(*counting.closed.lock().unwrap());
}
