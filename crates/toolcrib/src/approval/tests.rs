//! Who is asked, what an answer is about, and how long it holds.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use super::*;
use crate::policy::{Policy, Rules};
use crate::wire::dialect::party::{Abilities, Client};

fn policy() -> Policy {
    Policy::for_everyone(Rules::default().asking(["git.push*".parse().unwrap()]))
}

fn target(name: &str) -> Target {
    Target { server: "git".parse().unwrap(), name: name.into() }
}

fn call(caller: &str, arguments: &str) -> Call {
    Call::on("git".parse().unwrap(), "push").by(Caller::named(caller)).raw_arguments(arguments.to_owned())
}

/// A client that can be asked, and answers this; what it was asked is counted.
fn asked(call: Call, answers: &'static [&'static str]) -> (Call, tokio::task::JoinHandle<Vec<String>>) {
    let (sink, mut told) = mpsc::channel(8);
    let abilities = Abilities::read(&bytes::Bytes::from_static(br#"{"elicitation":{}}"#));
    let client = Client { abilities, ..Client::silent() };
    let person = TaskTracker::new().spawn(async move {
        let mut seen = Vec::new();
        let mut answers = answers.iter();
        while let Some(told) = told.recv().await {
            let Told::Asked(ask) = told else { continue };
            seen.push(String::from_utf8_lossy(ask.params.as_deref().unwrap_or_default()).into_owned());
            match answers.next() {
                Some(answer) => ask.answer(Answer::Result(answer.as_bytes().into())),
                None => drop(ask),
            }
        }
        seen
    });
    (call.of(client).listen(Arc::new(sink)), person)
}

async fn obtain(approvals: &Approvals, call: &Call, name: &str) -> Result<(), Error> {
    let (policy, target) = (policy(), target(name));
    let finding = policy.asks(&call.caller, &target.server, name).unwrap();
    approvals.obtain(call, &target, &finding).await
}

#[tokio::test(start_paused = true)]
async fn a_yes_is_for_this_caller_this_thing_and_these_arguments_and_for_a_while() {
    let approvals = Approvals::default();
    let (yes, person) =
        asked(call("ci", r#"{"remote":"origin","n":1}"#), &[r#"{"action":"accept","content":{}}"#]);
    obtain(&approvals, &yes, "push").await.unwrap();
    obtain(&approvals, &yes, "push").await.unwrap();
    drop(yes);
    let questions = person.await.unwrap();
    assert_eq!(questions.len(), 1, "it is not asked twice");
    assert!(questions[0].contains("`ci` wants to use `git.push` with"), "{questions:?}");
    // The same by value, from a client that cannot be asked.
    obtain(&approvals, &call("ci", r#"{ "n":1, "remote":"origin"}"#), "push").await.unwrap();
    for (caller, arguments, name) in [
        ("cj", r#"{"remote":"origin","n":1}"#, "push"),
        ("ci", r#"{"remote":"origin","n":2}"#, "push"),
        ("ci", r#"{"remote":"origin","n":1}"#, "push_all"),
    ] {
        let error = obtain(&approvals, &call(caller, arguments), name).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{caller} {arguments} {name}");
    }
    tokio::time::advance(HOLDS).await;
    assert!(obtain(&approvals, &call("ci", r#"{"n":1,"remote":"origin"}"#), "push").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_no_is_not_asked_about_again_and_silence_is_no_yes() {
    let approvals = Approvals::default();
    let (no, person) = asked(call("ci", "{}"), &[r#"{"action":"decline"}"#]);
    let first = obtain(&approvals, &no, "push").await.unwrap_err();
    assert!(first.to_string().contains("a person said no"), "{first}");
    assert!(obtain(&approvals, &no, "push").await.unwrap_err().to_string().contains("a moment ago"));
    drop(no);
    assert_eq!(person.await.unwrap().len(), 1);
    for answer in [&[r#"{"action":"cancel"}"#][..], &["7"], &[r#"{"action":"ACCEPT"}"#], &[]] {
        let approvals = Approvals::default();
        let (silent, _person) = asked(call("ci", "{}"), answer);
        let error = obtain(&approvals, &silent, "push").await.unwrap_err();
        assert!(error.to_string().contains("nobody answered"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_cannot_be_asked_learns_what_a_person_can_type() {
    let approvals = Approvals::default();
    let error = obtain(&approvals, &call("ci", r#"{"a":1}"#), "push").await.unwrap_err();
    let waiting = approvals.waiting(Instant::now());
    assert_eq!((waiting.len(), waiting[0].arguments.as_str()), (1, r#"{"a":1}"#));
    let id = waiting[0].id.clone();
    assert_eq!(error.advice(), format!("toolcrib approve --call {id}"));
    assert_eq!(error.data()["approval"], id.as_str());
    assert_eq!(
        error.to_string(),
        "`ci` may not use `git.push`: a person must say yes, and this client cannot be asked: `policy.ask` has `git.push*`"
    );
    assert!(approvals.decide("nonsense", true, Instant::now()).is_none());
    assert!(approvals.decide(&id, true, Instant::now()).is_some());
    assert!(approvals.decide(&id, true, Instant::now()).is_none(), "once");
    obtain(&approvals, &call("ci", r#"{"a":1}"#), "push").await.unwrap();
    let late = obtain(&approvals, &call("ci", r#"{"a":2}"#), "push").await.unwrap_err();
    tokio::time::advance(WAITS).await;
    let id = late.data()["approval"].as_str().unwrap().to_owned();
    assert!(approvals.waiting(Instant::now()).is_empty());
    assert!(approvals.decide(&id, true, Instant::now()).is_none());
}

#[tokio::test(start_paused = true)]
async fn neither_answers_nor_questions_pile_up() {
    let approvals = Approvals::default();
    for number in 0..MOST + 10 {
        let call = call("ci", &format!(r#"{{"n":{number}}}"#));
        obtain(&approvals, &call, "push").await.unwrap_err();
        approvals.book().decide([u8::try_from(number % 256).unwrap(); 32], true, Instant::now());
    }
    assert_eq!(approvals.waiting(Instant::now()).len(), MOST);
    let long = call("ci", &format!(r#"{{"n":"{}\n"}}"#, "x".repeat(3 * SHOWN)));
    assert!(arguments(&long).len() < SHOWN + 100 && arguments(&long).contains("bytes in all"));
}
