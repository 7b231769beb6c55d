//! What requests mean, in both eras and both views.

use bytes::Bytes;
use toolcrib::event::News;

use super::methods::{Meant, meant};
use super::talk::Talk;
use super::told::WORDS_WAITING;
use super::watcher::{Hears as _, Stir};
use super::*;

fn params(text: &str) -> Object {
    Object::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn one() -> View {
    View::One("git".parse().unwrap())
}

fn code_of(answer: &Answer) -> i64 {
    let Answer::Error(error) = answer else { panic!("{answer:?}") };
    serde_json::from_slice::<serde_json::Value>(error).unwrap()["code"].as_i64().unwrap()
}

#[test]
fn whom_a_request_means_is_in_its_parameters() {
    let all = |method, text| meant(&View::All, Era::Stateless, method, &params(text));
    let goes = |wanted| Ok(Meant::Goes(wanted));
    assert_eq!(all("tools/call", r#"{"name":"a"}"#), goes(Wanted::Named("a".into())));
    assert_eq!(all("prompts/get", r#"{"name":"a"}"#), goes(Wanted::Prompt("a".into())));
    assert_eq!(all("resources/read", r#"{"uri":"a:b"}"#), goes(Wanted::Resource("a:b".into())));
    assert_eq!(all("tasks/update", r#"{"taskId":"t"}"#), goes(Wanted::Task("t".into())));
    let prompt = r#"{"ref":{"type":"ref/prompt","name":"p"}}"#;
    assert_eq!(all("completion/complete", prompt), goes(Wanted::Prompt("p".into())));
    let template = r#"{"ref":{"type":"ref/resource","uri":"x://{y}"}}"#;
    assert_eq!(all("completion/complete", template), goes(Wanted::Resource("x://{y}".into())));
    for (method, text) in [
        ("tools/call", "{}"),
        ("tools/call", r#"{"name":"a","arguments":[]}"#),
        ("resources/read", r#"{"uri":7}"#),
        ("completion/complete", r#"{"ref":{"type":"ref/other"}}"#),
    ] {
        assert_eq!(code_of(&all(method, text).unwrap_err()), -32602, "{method} {text}");
    }
}

#[test]
fn each_era_has_its_methods() {
    for (method, session, stateless) in [
        ("ping", true, false),
        ("initialize", false, false),
        ("server/discover", false, true),
        ("tools/list", true, true),
        ("resources/templates/list", true, true),
        ("no/such/method", false, false),
        ("tasks/list", false, false),
    ] {
        let known = |era| meant(&View::All, era, method, &Object::default()).is_ok();
        assert_eq!((known(Era::Session), known(Era::Stateless)), (session, stateless), "{method}");
    }
    let removed = meant(&one(), Era::Stateless, "ping", &Object::default()).unwrap_err();
    assert_eq!(code_of(&removed), -32601);
}

#[test]
fn one_server_is_asked_whatever_its_client_asks() {
    let asked = meant(&one(), Era::Stateless, "skills/list", &Object::default());
    assert_eq!(asked, Ok(Meant::Goes(Wanted::On("git".parse().unwrap(), "skills/list".into()))));
    assert!(Face::goes_out(&one(), Era::Stateless, "skills/list"));
    assert!(!Face::goes_out(&View::All, Era::Stateless, "skills/list"));
    assert!(!Face::goes_out(&one(), Era::Stateless, "tools/list"));
    for era in [Era::Session, Era::Stateless] {
        let refused = meant(&one(), era, "notifications/cancelled", &Object::default()).unwrap_err();
        assert_eq!(code_of(&refused), -32601);
        assert!(!Face::goes_out(&one(), era, "notifications/cancelled"));
    }
}

#[tokio::test]
async fn a_session_that_asked_for_no_log_hears_none_but_its_own() {
    let face = Face::new(Crib::builder().build().unwrap());
    let mut talk = Arc::new(Talk::new(&face, View::All, None));
    let line = Bytes::from_static(br#"{"level":"error","data":"of somebody else"}"#);
    let logged = Stir::News(News::Logged { server: "git".parse().unwrap(), params: line });
    assert!(talk.hear(&logged).is_empty());
    let (out, _heard) = tokio::sync::mpsc::channel::<Vec<u8>>(WORDS_WAITING);
    let set = talk.respond(&face, "logging/setLevel", Some(params(r#"{"level":"error"}"#)), Some(&out)).await;
    assert!(matches!(set, Answer::Result(_)), "{set:?}");
    assert_eq!(talk.hear(&logged).len(), 1);
}
