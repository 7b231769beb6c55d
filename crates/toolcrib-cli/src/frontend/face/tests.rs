//! What requests mean, in both eras and both views.

use std::pin::Pin;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use toolcrib::event::News;
use toolcrib::spec::EraChoice;
use toolcrib::wire::dialect::client::{ELICITED, TASK_STATUS};
use toolcrib::wire::message::Id;
use toolcrib::{InProcess, ServerSpec, SharingKey};

use super::methods::{Meant, meant};
use super::talk::Talk;
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
    serde_json::from_slice::<Value>(error).unwrap()["code"].as_i64().unwrap()
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
async fn hints_name_the_config_of_a_gateway_that_has_to_be_told_it() {
    let crib = Crib::builder().build().unwrap();
    let face = Face::new(crib).advising(Advice::naming(std::path::Path::new("/my.toml")));
    let error = Error::new(toolcrib::ErrorKind::Ejected, "it is").at(&"git".parse().unwrap());
    let Answer::Error(told) = face.failed(&error) else { panic!("an error") };
    let told: Value = serde_json::from_slice(&told).unwrap();
    assert_eq!(told["data"]["hint"], "toolcrib restart --config /my.toml git");
}

#[tokio::test]
async fn a_session_that_asked_for_no_log_hears_none_but_its_own() {
    let face = Face::new(Crib::builder().build().unwrap());
    let mut talk = Arc::new(Talk::new(&face, Visit::local(), None, None));
    let line = Bytes::from_static(br#"{"level":"error","data":"of somebody else"}"#);
    let logged = Stir::News(News::Logged {
        server: "git".parse().unwrap(),
        instance: SharingKey::Shared,
        params: line,
    });
    assert!(talk.hear(&logged).is_empty());
    let (out, _heard) = crate::frontend::outbox::outbox();
    let set = talk.respond(&face, "logging/setLevel", Some(params(r#"{"level":"error"}"#)), Some(&out)).await;
    assert!(matches!(set, Answer::Result(_)), "{set:?}");
    assert_eq!(talk.hear(&logged).len(), 1);
}

#[tokio::test]
async fn a_session_hears_of_changes_in_its_own_instances_alone() {
    let face = Face::new(Crib::builder().build().unwrap());
    let mut talk = Arc::new(Talk::new(&face, Visit::local(), None, None));
    let relisted = |instance| {
        let lists = [Kind::Tools, Kind::Templates, Kind::Resources].into();
        Stir::News(News::Relisted { server: "git".parse().unwrap(), instance, lists })
    };
    assert!(talk.hear(&relisted(SharingKey::Nobody)).is_empty());
    let told = talk.hear(&relisted(SharingKey::Shared));
    let methods: Vec<Value> =
        told.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap()["method"].clone()).collect();
    assert_eq!(methods, ["notifications/tools/list_changed", "notifications/resources/list_changed"]);
}

#[tokio::test]
async fn a_session_hears_how_that_goes_on_which_it_began_and_nothing_else() {
    let face = Face::new(Crib::builder().build().unwrap());
    let mut talk = Arc::new(Talk::new(&face, Visit::local(), None, None));
    let noted = |method, name: &str, params: &'static str| {
        let (server, params) = ("git".parse().unwrap(), Bytes::from_static(params.as_bytes()));
        Stir::News(News::Noted { server, method, name: name.into(), params })
    };
    let task = noted(TASK_STATUS, "7", r#"{"taskId":"7","status":"completed"}"#);
    let opened = noted(ELICITED, "e", r#"{"elicitationId":"e"}"#);
    assert!(talk.hear(&task).is_empty() && talk.hear(&opened).is_empty(), "of somebody else");
    let name = Catalog::public_task(&"git".parse().unwrap(), "7");
    let made = json!({"task": {"taskId": name}}).to_string();
    talk.asks.learn(&Answer::Result(made.into()), true);
    let asks = json!({"code": -32042, "message": "", "data": {"elicitations": [{"mode": "url", "elicitationId": "e"}]}});
    talk.asks.learn(&Answer::Error(asks.to_string().into()), false);
    let heard: Value = serde_json::from_slice(&talk.hear(&task)[0]).unwrap();
    assert_eq!(
        (&heard["method"], &heard["params"]["taskId"]),
        (&json!(TASK_STATUS), &json!(name)),
        "{heard}"
    );
    assert_eq!(talk.hear(&opened).len(), 1);
}

/// A server with two resources that says yes to everything else.
struct Shelf;

impl InProcess for Shelf {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let (reads, mut writes) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reads).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let asked: Value = serde_json::from_str(&line).unwrap();
                let result = match asked["method"].as_str().unwrap() {
                    "initialize" => json!({
                        "protocolVersion": "2025-11-25",
                        "capabilities": {"resources": {"subscribe": true}},
                        "serverInfo": {"name": "shelf", "version": "1"},
                    }),
                    "resources/list" => {
                        json!({"resources": [{"uri": "a:1", "name": "a"}, {"uri": "a:2", "name": "b"}]})
                    }
                    "resources/templates/list" => json!({"resourceTemplates": []}),
                    _ => json!({}),
                };
                if asked["id"].is_null() {
                    continue;
                }
                let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
                if writes.write_all(format!("{answer}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        })
    }
}

#[tokio::test]
async fn whoever_missed_something_hears_of_everything_it_subscribed_to() {
    let spec = ServerSpec::in_process("git".parse().unwrap(), Shelf).era(EraChoice::Era(Era::Session));
    let face = Face::new(Crib::builder().server(spec).build().unwrap());
    let mut talk = Arc::new(Talk::new(&face, Visit { view: one(), ..Visit::local() }, None, None));
    let (out, _heard) = crate::frontend::outbox::outbox();
    for uri in [r#"{"uri":"a:1"}"#, r#"{"uri":"a:2"}"#] {
        let done = talk.respond(&face, "resources/subscribe", Some(params(uri)), Some(&out)).await;
        assert!(matches!(done, Answer::Result(_)), "{done:?}");
    }
    let wanted = params(r#"{"notifications":{"resourceSubscriptions":["a:2"]}}"#);
    let stream = Id::read(Bytes::from_static(b"7")).unwrap();
    let visit = Visit { view: one(), ..Visit::local() };
    let asker = Asker { visit, client: Client::silent(), guest: None };
    let mut listener = face.listen(&asker, &stream, Some(&wanted)).await.map_err(drop).unwrap();
    let uris = |lines: Vec<Vec<u8>>| -> Vec<Value> {
        let lines = lines.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap());
        lines.map(|line| line["params"]["uri"].clone()).collect()
    };
    assert_eq!(uris(talk.hear(&Stir::Missed)), ["a:1", "a:2"]);
    assert_eq!(uris(listener.hear(&Stir::Missed)), ["a:2"]);
    let news = Stir::News(News::Updated {
        server: "git".parse().unwrap(),
        instance: SharingKey::Shared,
        uri: "a:1".into(),
    });
    assert_eq!(uris(talk.hear(&news)), ["a:1"]);
    assert!(listener.hear(&news).is_empty());
}
