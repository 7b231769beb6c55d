//! A build without the feature `http` refuses remote servers. Run with
//! `cargo test -p toolcrib --no-default-features --test without_http`.

#![cfg(not(feature = "http"))]
#![expect(clippy::unwrap_used, reason = "a failing test should panic at the cause")]

use serde_json::json;
use toolcrib::{BuildError, Call, Crib, ErrorKind, HttpSpec, Roster, ServerId, ServerSpec, Toolbox};

fn remote_server() -> ServerSpec {
    ServerSpec::http("remote".parse().unwrap(), HttpSpec::new("https://example.test/mcp"))
}

#[tokio::test]
async fn build_refuses_a_remote_server() {
    let error = Crib::builder().server(remote_server()).build().unwrap_err();
    let remote: ServerId = "remote".parse().unwrap();
    assert_eq!(error, BuildError::RemoteUnsupported(remote));
    assert!(error.to_string().contains("needs the feature `http`"), "{error}");
}

#[tokio::test]
async fn remote_server_is_refused_while_running_and_nothing_changes() {
    let schema = json!({"type": "object"});
    let tools = Toolbox::new().tool("hello", "Greets", &schema, |_| async { Ok("hello".to_owned()) });
    let local = ServerSpec::in_process("local".parse().unwrap(), tools);
    let crib = Crib::builder().server(local).build().unwrap();
    let mut roster = Roster::default();
    roster.add(remote_server()).unwrap();
    for error in [
        crib.apply_roster(roster).await.unwrap_err(),
        crib.add(remote_server()).await.unwrap_err(),
        crib.replace(remote_server()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Malformed);
        assert!(error.to_string().contains("needs the feature `http`"), "{error}");
    }
    let greeting = crib.call(Call::tool_on("local".parse().unwrap(), "hello")).await.unwrap();
    assert_eq!((greeting.text().as_ref(), crib.roster().servers().count()), ("hello", 1));
}
