//! Tests of approval requests and decisions.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::*;
use crate::access::policy::{Policy, Rules};
use crate::protocol::era::capabilities::{Client, ClientCapabilities};
use crate::store::{DelayedStore, MemoryStore};

fn policy() -> Policy {
    Policy::for_everyone(Rules::default().asking(["git.push*".parse().unwrap()]))
}

fn store() -> Arc<dyn Store> {
    Arc::new(MemoryStore::default())
}

fn target(name: &str) -> Target {
    Target { server: "git".parse().unwrap(), name: name.into() }
}

fn call(caller: &str, arguments: &str) -> Call {
    Call::tool_on("git".parse().unwrap(), "push")
        .caller(Caller::new(caller))
        .raw_arguments(arguments.to_owned())
}

/// Adds a client that answers approval requests with `answers`. The task returns the requests it received.
fn with_answers(
    call: Call,
    answers: &'static [&'static str],
) -> (Call, tokio::task::JoinHandle<Vec<String>>) {
    let (sink, mut updates) = mpsc::channel(8);
    let capabilities = ClientCapabilities::parse(&Bytes::from_static(br#"{"elicitation":{}}"#));
    let client = Client { capabilities, ..Client::without_capabilities() };
    let answering = TaskTracker::new().spawn(async move {
        let mut requests = Vec::new();
        let mut answers = answers.iter();
        while let Some(update) = updates.recv().await {
            let CallUpdate::Request(request) = update else { continue };
            requests
                .push(String::from_utf8_lossy(request.params.as_deref().unwrap_or_default()).into_owned());
            match answers.next() {
                Some(answer) => request.answer(ResponsePayload::Result(answer.as_bytes().into())),
                None => drop(request),
            }
        }
        requests
    });
    (call.client(client).update_sink(Arc::new(sink)), answering)
}

async fn require(approvals: &Approvals, call: &Call, name: &str) -> Result<(), Error> {
    let policy = policy();
    let target = target(name);
    let verdict = policy.required_approval(&call.caller, &target.server, name).unwrap();
    approvals.require(call, &target, &verdict).await
}

#[tokio::test(start_paused = true)]
async fn approval_is_per_caller_tool_and_arguments_and_expires() {
    let approvals = Approvals::new(store());
    let (accepted, answering) =
        with_answers(call("ci", r#"{"remote":"origin","n":1}"#), &[r#"{"action":"accept","content":{}}"#]);
    require(&approvals, &accepted, "push").await.unwrap();
    require(&approvals, &accepted, "push").await.unwrap();
    drop(accepted);
    let requests = answering.await.unwrap();
    assert_eq!(requests.len(), 1, "the client is asked once");
    assert!(requests[0].contains("`ci` wants to use `git.push` with"), "{requests:?}");
    // Equal arguments, from a client that cannot be asked.
    require(&approvals, &call("ci", r#"{ "n":1, "remote":"origin"}"#), "push").await.unwrap();
    for (caller, arguments, name) in [
        ("cj", r#"{"remote":"origin","n":1}"#, "push"),
        ("ci", r#"{"remote":"origin","n":2}"#, "push"),
        ("ci", r#"{"remote":"origin","n":1}"#, "push_all"),
    ] {
        let error = require(&approvals, &call(caller, arguments), name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{caller} {arguments} {name}");
    }
    tokio::time::advance(DECISION_TTL).await;
    assert!(require(&approvals, &call("ci", r#"{"n":1,"remote":"origin"}"#), "push").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn declined_call_is_not_asked_again_and_no_answer_denies() {
    let approvals = Approvals::new(store());
    let (declined, answering) = with_answers(call("ci", "{}"), &[r#"{"action":"decline"}"#]);
    let first = require(&approvals, &declined, "push").await.unwrap_err();
    assert!(first.to_string().contains("the call was declined"), "{first}");
    assert!(require(&approvals, &declined, "push").await.unwrap_err().to_string().contains("a moment ago"));
    drop(declined);
    assert_eq!(answering.await.unwrap().len(), 1);
    for answer in [&[r#"{"action":"cancel"}"#][..], &["7"], &[r#"{"action":"ACCEPT"}"#], &[]] {
        let approvals = Approvals::new(store());
        let (silent, _answering) = with_answers(call("ci", "{}"), answer);
        let error = require(&approvals, &silent, "push").await.unwrap_err();
        assert!(error.to_string().contains("was not answered"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_cannot_be_asked_gets_the_approve_command() {
    let approvals = Approvals::new(store());
    let error = require(&approvals, &call("ci", r#"{"a":1}"#), "push").await.unwrap_err();
    let pending = approvals.pending().await;
    assert_eq!((pending.len(), pending[0].arguments.as_str()), (1, r#"{"a":1}"#));
    let id = pending[0].id.clone();
    assert_eq!(error.hint(), Hint::ApproveCall { id: id.clone() });
    assert_eq!(error.data()["approval"], id.as_str());
    assert_eq!(
        error.to_string(),
        "`ci` may not use `git.push`: it needs approval and this client cannot be asked: `policy.ask` has `git.push*`"
    );
    assert!(approvals.decide("nonsense", true).await.unwrap().is_none());
    assert!(approvals.decide(&id, true).await.unwrap().is_some());
    assert!(approvals.decide(&id, true).await.unwrap().is_none(), "a call is decided once");
    require(&approvals, &call("ci", r#"{"a":1}"#), "push").await.unwrap();
    let late = require(&approvals, &call("ci", r#"{"a":2}"#), "push").await.unwrap_err();
    tokio::time::advance(PENDING_TTL).await;
    let id = late.data()["approval"].as_str().unwrap().to_owned();
    assert!(approvals.pending().await.is_empty());
    assert!(approvals.decide(&id, true).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn id_is_stable_for_a_call_and_unpredictable() {
    let mut ids = Vec::new();
    for approvals in [Approvals::new(store()), Approvals::new(store())] {
        for _ in 0..2 {
            let error = require(&approvals, &call("ci", r#"{"a":1}"#), "push").await.unwrap_err();
            ids.push(error.data()["approval"].as_str().unwrap().to_owned());
        }
        assert_eq!(approvals.pending().await.len(), 1);
    }
    assert!(ids[0] == ids[1] && ids[2] == ids[3] && ids[1] != ids[2], "{ids:?}");
    let predictable = approval_key(&call("ci", r#"{"a":1}"#), &target("push"));
    assert!(!ids.iter().any(|id| predictable.starts_with(id)), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn decisions_and_pending_approvals_are_bounded() {
    let approvals = Approvals::new(store());
    let max_entries = StoreKind::PendingApproval.max_values().unwrap();
    for number in 0..max_entries + 10 {
        let call = call("ci", &format!(r#"{{"n":{number}}}"#));
        require(&approvals, &call, "push").await.unwrap_err();
        approvals.save_decision(&number.to_string(), true).await;
    }
    assert_eq!(approvals.pending().await.len(), max_entries);
    let long = call("ci", &format!(r#"{{"n":"{}\n"}}"#, "x".repeat(3 * MAX_SHOWN_CHARS)));
    assert!(
        shown_arguments(&long).len() < MAX_SHOWN_CHARS + 100
            && shown_arguments(&long).contains("bytes in all")
    );
}

/// Lets other tasks run this many times.
async fn yield_times(times: u32) {
    for _ in 0..times {
        tokio::task::yield_now().await;
    }
}

/// Returns whether the call can still be approved, or may be made.
async fn is_pending_or_approved(approvals: &Approvals, call: &Call) -> bool {
    !approvals.pending().await.is_empty() || require(approvals, call, "push").await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn dropped_decision_loses_no_approval() {
    for yields in 0..20 {
        let approvals = Approvals::new(Arc::new(DelayedStore::new()));
        let call = call("ci", "{}");
        require(&approvals, &call, "push").await.unwrap_err();
        let id = approvals.pending().await[0].id.clone();
        tokio::select! {
            biased;
            _ = approvals.decide(&id, true) => {}
            () = yield_times(yields) => {}
        }
        assert!(is_pending_or_approved(&approvals, &call).await, "dropped after {yields} yields");
    }
}

#[tokio::test(start_paused = true)]
async fn decision_while_the_store_fails_loses_no_approval() {
    for yields in 0..20 {
        let store = Arc::new(DelayedStore::new());
        let approvals = Approvals::new(store.clone());
        let call = call("ci", "{}");
        require(&approvals, &call, "push").await.unwrap_err();
        let id = approvals.pending().await[0].id.clone();
        let fail = async {
            yield_times(yields).await;
            store.set_failing(true);
        };
        let (_, ()) = tokio::join!(approvals.decide(&id, true), fail);
        store.set_failing(false);
        assert!(is_pending_or_approved(&approvals, &call).await, "failed after {yields} yields");
    }
}

#[tokio::test(start_paused = true)]
async fn call_is_refused_while_the_store_does_not_answer() {
    let store = Arc::new(DelayedStore::new());
    let approvals = Approvals::new(store.clone());
    store.set_failing(true);
    let error = require(&approvals, &call("ci", "{}"), "push").await.unwrap_err();
    assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::StoreUnavailable, false));
    assert!(error.to_string().contains("connection refused"), "{error}");
    assert!(approvals.decide("1", true).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn of_two_decisions_one_is_made() {
    let approvals = Approvals::new(Arc::new(DelayedStore::new()));
    require(&approvals, &call("ci", "{}"), "push").await.unwrap_err();
    let id = approvals.pending().await[0].id.clone();
    let (approved, declined) = tokio::join!(approvals.decide(&id, true), approvals.decide(&id, false));
    assert_eq!((approved.unwrap().is_some(), declined.unwrap().is_some()), (true, false));
    require(&approvals, &call("ci", "{}"), "push").await.unwrap();
}
