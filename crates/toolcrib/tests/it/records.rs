//! Every call that came in is told of once, however it ended, with everything but what was said in it.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;
use toolcrib::event::Decision::{self, Allowed, Denied, Unjudged};
use toolcrib::event::{Called, Ending};
use toolcrib::policy::{Policy, Rules};
use toolcrib::wire::dialect::party::Abilities;
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Era;
use toolcrib::{Call, Caller, Client, Crib, Error, ErrorKind, Event, ServerSpec, Wanted, Witness};

use crate::asking::Asking;
use crate::fake::Fake;
use crate::house::{SECOND, breath, id, kind, on, spec};

fn rules(deny: &[&str]) -> Rules {
    Rules::default().denying(deny.iter().map(|rule| rule.parse().unwrap()))
}

/// What was told of calls so far.
fn told(events: &mut Receiver<Event>) -> Vec<Arc<Called>> {
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::Called(called) = event {
            told.push(called);
        }
    }
    told
}

/// What was told of the one call that was made.
fn only(events: &mut Receiver<Event>) -> Arc<Called> {
    let mut told = told(events);
    assert_eq!(told.len(), 1, "{told:?}");
    told.remove(0)
}

fn summary(called: &Called) -> (Option<&str>, &str, Decision, &'static str) {
    (
        called.server.as_ref().map(toolcrib::ServerId::as_str),
        &called.name,
        called.decision,
        called.ending.name(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_call_is_told_of_once_however_it_ends() {
    let (git, secret) = (Fake::new(), Fake::new());
    let mut policy = Policy::for_everyone(rules(&["git.refuse"]));
    policy.callers.insert("ci".to_owned(), rules(&["secret.*"]));
    let crib = Crib::builder().server(spec("git", &git)).server(spec("secret", &secret)).policy(policy);
    let crib = crib.build().unwrap();
    crib.list().await;
    let ci = || Caller::named("ci");
    let mut events = crib.events();
    let cases = [
        (Call::tool("git__echo").by(ci()), Some("git"), "echo", Allowed, "ok"),
        (on("git", "echo"), Some("git"), "echo", Allowed, "ok"),
        (Call::tool("git__fail"), Some("git"), "fail", Allowed, "tool_error"),
        (Call::tool("git__refuse"), Some("git"), "refuse", Denied, "denied"),
        (on("git", "refuse"), Some("git"), "refuse", Denied, "denied"),
        // Whoever asks learns nothing of it; whoever reads the record does.
        (Call::tool("secret__echo").by(ci()), Some("secret"), "echo", Denied, "unknown"),
        (on("secret", "echo").by(ci()), Some("secret"), "echo", Denied, "unknown"),
        (Call::tool("git__nope"), None, "git__nope", Unjudged, "unknown"),
        (on("git", "hang").timeout(SECOND), Some("git"), "hang", Allowed, "timed_out"),
        (on("git", "die"), Some("git"), "die", Allowed, "lost"),
    ];
    for (call, server, name, decision, ending) in cases {
        let asked = format!("{:?}", call.wanted);
        let _ = crib.call(call).await;
        let called = only(&mut events);
        assert_eq!(summary(&called), (server, name, decision, ending), "{asked}");
        assert_eq!(called.denial.is_some(), decision == Denied, "{asked}");
        assert!(called.arguments.is_none());
    }
    crib.shutdown(SECOND).await;
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::ShuttingDown);
    assert_eq!(summary(&only(&mut events)), (None, "echo", Unjudged, "shutting_down"));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_taken_back_is_told_of_too() {
    let fake = Fake::new();
    let crib = Crib::builder().server(spec("git", &fake)).build().unwrap();
    crib.list().await;
    let mut events = crib.events();
    assert!(timeout(SECOND, crib.call(on("git", "hang"))).await.is_err());
    let called = only(&mut events);
    assert_eq!(summary(&called), (Some("git"), "hang", Allowed, "cancelled"));
    assert!(called.took >= SECOND);
    breath().await;
    assert!(told(&mut events).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_record_tells_the_rule_who_asked_and_how_much_was_said() {
    let fake = Fake::new();
    let policy = Policy::for_everyone(rules(&["git.hold"]));
    let crib = Crib::builder().server(spec("git", &fake)).policy(policy).build().unwrap();
    crib.list().await;
    let mut events = crib.events();
    let outcome =
        crib.call(on("git", "echo").arguments(&json!({"a": 1})).by(Caller::named("ci"))).await.unwrap();
    let called = only(&mut events);
    assert_eq!((called.caller.as_str(), &*called.method), ("ci", "tools/call"));
    assert_eq!((called.asked, called.answered), (r#""echo"{"a":1}"#.len(), outcome.raw().len()));
    crib.call(on("git", "hold")).await.unwrap_err();
    assert_eq!(only(&mut events).denial.as_ref().unwrap().rule, "`policy.deny` has `git.hold`");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_taken_up_again_is_told_of_with_where_it_went() {
    let crib = Crib::builder().server(ServerSpec::in_process(id("a"), Asking::in_session())).build().unwrap();
    crib.list().await;
    let mut events = crib.events();
    let call = |params: &Value| {
        let params = Object::parse(&params.to_string().into()).unwrap();
        let abilities = Abilities::read(&br#"{"elicitation":{}}"#.as_slice().into());
        Call::request("tools/call", Wanted::Named("a__ask".into()), params).of(Client {
            key: 1,
            era: Era::Stateless,
            abilities,
            log: None,
        })
    };
    let mut params = json!({"name": "ask", "arguments": {"method": "elicitation/create", "params": {}}});
    let asked = crib.call(call(&params)).await.unwrap().to_value();
    assert_eq!(summary(&only(&mut events)), (Some("a"), "ask", Allowed, "input_required"));
    params["inputResponses"] = json!({"ask-1": {"action": "accept"}});
    params["requestState"] = asked["requestState"].clone();
    crib.call(call(&params)).await.unwrap();
    assert_eq!(summary(&only(&mut events)), (Some("a"), "ask", Allowed, "ok"));
}

/// Remembers what it saw, and lets calls be made as long as it is well.
#[derive(Default)]
struct Clerk {
    seen: Mutex<Vec<Called>>,
    ill: Mutex<bool>,
}

impl Witness for Clerk {
    fn is_ready(&self) -> Result<(), Error> {
        match *self.ill.lock().unwrap() {
            true => Err(Error::new(ErrorKind::Unrecorded, "the clerk is ill")),
            false => Ok(()),
        }
    }

    fn wants_arguments(&self) -> bool {
        true
    }

    fn saw(&self, called: &Called) {
        self.seen.lock().unwrap().push(called.clone());
    }
}

#[tokio::test(start_paused = true)]
async fn a_witness_sees_each_call_before_its_caller_does_and_may_refuse_them() {
    let (fake, clerk) = (Fake::new(), Arc::new(Clerk::default()));
    let crib = Crib::builder().server(spec("git", &fake)).witness(clerk.clone()).build().unwrap();
    let mut events = crib.events();
    crib.call(on("git", "echo").arguments(&json!({"a": 1}))).await.unwrap();
    let seen = clerk.seen.lock().unwrap().pop().unwrap();
    assert_eq!(seen.arguments.as_deref(), Some(&br#"{"a":1}"#[..]));
    assert!(
        told(&mut events).iter().all(|called| called.arguments.is_none()),
        "arguments are for the witness alone"
    );
    *clerk.ill.lock().unwrap() = true;
    assert_eq!(kind(crib.call(on("git", "echo")).await), ErrorKind::Unrecorded);
    assert_eq!(clerk.seen.lock().unwrap().pop().unwrap().ending, Ending::Failed(ErrorKind::Unrecorded));
    assert_eq!(fake.called().len(), 1);
}
