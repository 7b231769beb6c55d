//! JSON text of an embedder cannot change what a call is: the tool that was authorized is the tool that runs.

use bytes::Bytes;
use toolcrib::access::policy::{Policy, Rules};
use toolcrib::protocol::json::object::Object;
use toolcrib::{Call, Crib, ErrorKind, Selector};

use crate::fake::FakeServer;
use crate::support::{id, kind, on, spec};

/// A server with the tools `echo` and `env`, the second of which is denied.
async fn crib_denying_env() -> (Crib, FakeServer) {
    let fake = FakeServer::with_tools(&["echo", "env"]);
    let deny = Rules::default().denying(["fake.env".parse().unwrap()]);
    let builder = Crib::builder().server(spec("fake", &fake)).policy(Policy::for_everyone(deny));
    let crib = builder.build().unwrap();
    crib.list().await;
    (crib, fake)
}

fn object(text: &'static str) -> Object {
    Object::parse(&Bytes::from_static(text.as_bytes())).unwrap()
}

#[tokio::test(start_paused = true)]
async fn arguments_that_are_not_one_json_value_are_refused() {
    let (crib, fake) = crib_denying_env().await;
    let invalid: [&[u8]; 7] = [
        br#"{"text":"x"},"name":"env""#,
        br#"{"text":"x"}} {"#,
        b"{} {}",
        b"",
        b"{",
        b"{\"a\":\"\xff\"}",
        b"{\"a\":\"line\nbreak\"}",
    ];
    for text in invalid {
        for call in [on("fake", "echo"), Call::tool("fake__echo"), Call::tool("echo")] {
            let error = crib.call(call.raw_arguments(text)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Malformed, "{}: {error}", text.escape_ascii());
            assert!(error.is_not_sent() && error.to_string().contains("not valid JSON"), "{error}");
        }
    }
    assert!(fake.called_tools().is_empty(), "{:?}", fake.called_tools());
    // A later valid value replaces an invalid one.
    let call = on("fake", "echo").raw_arguments("{").raw_arguments(r#" { "a" : 1.0 } "#);
    crib.call(call).await.unwrap();
    assert_eq!(fake.received("tools/call")[0]["params"]["arguments"]["a"], 1.0);
}

#[tokio::test(start_paused = true)]
async fn object_takes_no_member_that_is_not_one_json_value() {
    let (crib, fake) = crib_denying_env().await;
    let mut params = object(r#"{"name":"echo"}"#);
    let _ = params.set("arguments", r#"{},"name":"env""#);
    let _ = params.set("_meta", r#"{}}"#);
    crib.call(Call::request("tools/call", Selector::Tool("fake__echo".into()), params)).await.unwrap();
    assert_eq!(fake.called_tools(), ["echo"]);
    assert!(fake.received("tools/call")[0]["params"].get("arguments").is_none());
}

#[tokio::test(start_paused = true)]
async fn authorized_name_is_the_name_that_is_sent() {
    let (crib, fake) = crib_denying_env().await;
    let params = || object(r#"{"name":"env","arguments":{}}"#);
    let on_server = || Selector::OnServer(id("fake"), "echo".into());
    crib.call(on("fake", "echo").params(params())).await.unwrap();
    crib.call(Call::request("tools/call", on_server(), params())).await.unwrap();
    crib.call(Call::request("tools/call", on_server(), Object::default())).await.unwrap();
    crib.call(Call::request("tools/call", on_server(), object(r#"{"name":7}"#))).await.unwrap();
    assert_eq!(fake.called_tools(), ["echo"; 4]);
    let denied = Call::request(
        "tools/call",
        Selector::OnServer(id("fake"), "env".into()),
        object(r#"{"name":"echo"}"#),
    );
    assert_eq!(kind(crib.call(denied).await), ErrorKind::Denied);
    // Another spelling of the same name passes byte for byte.
    let spelled = r#"{"name":"\u0065cho"}"#;
    crib.call(Call::request("tools/call", on_server(), object(spelled))).await.unwrap();
    assert_eq!(fake.called_tools().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn selector_of_another_kind_does_not_reach_a_denied_tool() {
    let (crib, fake) = crib_denying_env().await;
    let selectors = [
        Selector::Resource("file:///x".into()),
        Selector::Prompt("fake__x".into()),
        Selector::Task("fake__7".into()),
        Selector::Task("fake__env".into()),
        Selector::Resource("env".into()),
    ];
    for selector in selectors {
        let call = Call::request("tools/call", selector.clone(), object(r#"{"name":"env"}"#));
        let _ = crib.call(call).await;
        assert!(!fake.called_tools().contains(&"env".to_owned()), "{selector:?}");
    }
}
