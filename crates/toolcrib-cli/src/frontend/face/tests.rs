//! What requests mean, in both eras and both views.

use bytes::Bytes;

use super::methods::{Meant, meant};
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
}
