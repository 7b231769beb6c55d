//! Prompts and resources go the way of tools: named, found, remembered, and their servers woken for them.

use serde_json::{Value, json};
use toolcrib::wire::object::{self, Object};
use toolcrib::{Call, Catalog, Crib, ErrorKind, Kind, Outcome, Wanted};

use crate::fake::Fake;
use crate::house::{crib, id};

/// A server with the prompt `ask`, these resources, and the template `SCHEME://of/{n}` of the first one's scheme.
fn library(resources: &[&str]) -> Fake {
    let line = |result: &Value| format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#);
    let scheme = resources[0].split_once(':').unwrap().0;
    let resources: Vec<Value> = resources.iter().map(|uri| json!({"uri": uri, "name": "x"})).collect();
    let capabilities = json!({"tools": {}, "prompts": {}, "resources": {}});
    let welcome =
        json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "instructions": scheme});
    Fake::offering(&["t"])
        .script("initialize", &[&line(&welcome)])
        .script("prompts/list", &[&line(&json!({"prompts": [{"name": "ask"}]}))])
        .script("resources/list", &[&line(&json!({ "resources": resources }))])
        .script(
            "resources/templates/list",
            &[&line(&json!({"resourceTemplates": [{"uriTemplate": format!("{scheme}://of/{{n}}")}]}))],
        )
        .script("prompts/get", &[&line(&json!({"messages": []}))])
        .script("resources/read", &[&line(&json!({"contents": []})), &line(&json!({"contents": []}))])
}

async fn read(crib: &Crib, uri: &str) -> Result<Outcome, toolcrib::Error> {
    let mut params = Object::default();
    params.set("uri", object::string(uri));
    crib.call(Call::request("resources/read", Wanted::Resource(uri.to_owned()), params)).await
}

fn publics(catalog: &Catalog, kind: Kind) -> Vec<String> {
    catalog.items(kind).iter().map(|item| item.public_name.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_prompt_is_found_at_a_server_nobody_has_seen_yet() {
    let (a, b) = (library(&["a://1"]), library(&["b://1"]));
    let crib = crib(&[("a", &a), ("b", &b)]);
    let mut params = Object::default();
    params.set("name", object::string("b__ask"));
    let call = Call::request("prompts/get", Wanted::Prompt("b__ask".into()), params);
    assert_eq!(crib.call(call).await.unwrap().server, Some(id("b")));
    assert_eq!(b.heard("prompts/get")[0]["params"]["name"], "ask");
    assert_eq!((a.starts(), b.starts()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn an_address_is_read_from_its_server_whoever_was_seen_before() {
    let (a, b) = (library(&["a://1"]), library(&["b://1"]));
    let crib = crib(&[("a", &a), ("b", &b)]);
    crib.list_of(&id("a")).await.unwrap();
    // Only `a` is known to have resources, but `b` may as well.
    assert_eq!(read(&crib, "b://of/7").await.unwrap().server, Some(id("b")));
    assert_eq!(b.heard("resources/read")[0]["params"]["uri"], "b://of/7");
    assert_eq!(read(&crib, "a://unlisted").await.unwrap().server, Some(id("a")));
    let error = read(&crib, "c://1").await.unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Unknown, "Resource not found: c://1".into()));
}

#[tokio::test(start_paused = true)]
async fn an_address_of_two_servers_is_read_under_the_name_of_either() {
    let (a, b) = (library(&["s://1"]), library(&["s://1"]));
    let crib = crib(&[("a", &a), ("b", &b)]);
    let catalog = crib.list().await;
    let shared = ["toolcrib://a/s%3A%2F%2F1", "toolcrib://b/s%3A%2F%2F1"];
    assert_eq!(publics(&catalog, Kind::Resources), shared);
    let templates = ["toolcrib://a/s://of/{n}", "toolcrib://b/s://of/{n}"];
    assert_eq!(publics(&catalog, Kind::Templates), templates);
    assert!(read(&crib, "s://1").await.unwrap_err().to_string().contains(shared[1]));
    read(&crib, shared[1]).await.unwrap();
    read(&crib, &templates[1].replace("{n}", "a%2Fb")).await.unwrap();
    let heard: Vec<Value> =
        b.heard("resources/read").iter().map(|call| call["params"]["uri"].clone()).collect();
    assert_eq!((heard, a.heard("resources/read").len()), (vec![json!("s://1"), json!("s://of/a%2Fb")], 0));
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_server_is_known_for_what_it_said() {
    let a = library(&["a://1"]);
    let crib = crib(&[("a", &a)]);
    crib.list().await;
    crib.stop(&id("a")).await.unwrap();
    let catalog = crib.catalog();
    assert_eq!(publics(&catalog, Kind::Prompts), ["a__ask"]);
    assert_eq!(catalog.instructions_of(&id("a")), Some("a"));
    let capabilities: Value = serde_json::from_slice(catalog.capabilities_of(&id("a")).unwrap()).unwrap();
    assert_eq!(capabilities, json!({"tools": {}, "prompts": {}, "resources": {}}));
}
