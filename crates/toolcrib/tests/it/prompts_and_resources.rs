//! Prompts and resources are named, found and listed like tools, and start their servers.

use serde_json::{Value, json};
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::{Call, Catalog, Crib, ErrorKind, ListKind, Outcome, Selector};

use crate::fake::FakeServer;
use crate::support::{crib, id};

/// A server with the prompt `ask`, these resources, and a template with the scheme of the first one.
fn resource_server(resources: &[&str]) -> FakeServer {
    let line = |result: &Value| format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#);
    let scheme = resources[0].split_once(':').unwrap().0;
    let resources: Vec<Value> = resources.iter().map(|uri| json!({"uri": uri, "name": "x"})).collect();
    let capabilities = json!({"tools": {}, "prompts": {}, "resources": {}});
    let initialize_result =
        json!({"protocolVersion": "2025-11-25", "capabilities": capabilities, "instructions": scheme});
    FakeServer::with_tools(&["t"])
        .script("initialize", &[&line(&initialize_result)])
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
    params.set_unchecked("uri", object::to_json_string(uri));
    crib.call(Call::request("resources/read", Selector::Resource(uri.to_owned()), params)).await
}

fn public_names(catalog: &Catalog, kind: ListKind) -> Vec<String> {
    catalog.items(kind).iter().map(|item| item.public_name.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn prompt_is_found_on_an_undiscovered_server() {
    let a = resource_server(&["a://1"]);
    let b = resource_server(&["b://1"]);
    let crib = crib(&[("a", &a), ("b", &b)]);
    let mut params = Object::default();
    params.set_unchecked("name", object::to_json_string("b__ask"));
    let call = Call::request("prompts/get", Selector::Prompt("b__ask".into()), params);
    assert_eq!(crib.call(call).await.unwrap().server, Some(id("b")));
    assert_eq!(b.received("prompts/get")[0]["params"]["name"], "ask");
    assert_eq!((a.starts(), b.starts()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn uri_is_read_from_the_server_that_offers_it() {
    let a = resource_server(&["a://1"]);
    let b = resource_server(&["b://1"]);
    let crib = crib(&[("a", &a), ("b", &b)]);
    crib.list_server(&id("a")).await.unwrap();
    // Only `a` is known to have resources, but `b` may have some too.
    assert_eq!(read(&crib, "b://of/7").await.unwrap().server, Some(id("b")));
    assert_eq!(b.received("resources/read")[0]["params"]["uri"], "b://of/7");
    assert_eq!(read(&crib, "a://unlisted").await.unwrap().server, Some(id("a")));
    let error = read(&crib, "c://1").await.unwrap_err();
    assert_eq!((error.kind(), error.to_string()), (ErrorKind::Unknown, "Resource not found: c://1".into()));
}

#[tokio::test(start_paused = true)]
async fn uri_of_two_servers_needs_the_public_uri() {
    let a = resource_server(&["s://1"]);
    let b = resource_server(&["s://1"]);
    let crib = crib(&[("a", &a), ("b", &b)]);
    let catalog = crib.list().await;
    let shared = ["toolcrib://a/s%3A%2F%2F1", "toolcrib://b/s%3A%2F%2F1"];
    assert_eq!(public_names(&catalog, ListKind::Resources), shared);
    let templates = ["toolcrib://a/s://of/{n}", "toolcrib://b/s://of/{n}"];
    assert_eq!(public_names(&catalog, ListKind::Templates), templates);
    assert!(read(&crib, "s://1").await.unwrap_err().to_string().contains(shared[1]));
    read(&crib, shared[1]).await.unwrap();
    read(&crib, &templates[1].replace("{n}", "a%2Fb")).await.unwrap();
    let uris: Vec<Value> =
        b.received("resources/read").iter().map(|call| call["params"]["uri"].clone()).collect();
    assert_eq!((uris, a.received("resources/read").len()), (vec![json!("s://1"), json!("s://of/a%2Fb")], 0));
}

#[tokio::test(start_paused = true)]
async fn stopped_server_keeps_prompts_and_instructions() {
    let a = resource_server(&["a://1"]);
    let crib = crib(&[("a", &a)]);
    crib.list().await;
    crib.stop(&id("a")).await.unwrap();
    let catalog = crib.catalog();
    assert_eq!(public_names(&catalog, ListKind::Prompts), ["a__ask"]);
    assert_eq!(catalog.server_instructions(&id("a")), Some("a"));
    let capabilities: Value = serde_json::from_slice(catalog.server_capabilities(&id("a")).unwrap()).unwrap();
    assert_eq!(capabilities, json!({"tools": {}, "prompts": {}, "resources": {}}));
}

#[tokio::test(start_paused = true)]
async fn convenience_methods_send_the_requests_of_the_protocol() {
    let completion = r#"{"jsonrpc":"2.0","id":$ID,"result":{"completion":{"values":["x"]}}}"#;
    let a = resource_server(&["a://1"]).script("completion/complete", &[completion, completion]);
    let crib = crib(&[("a", &a)]);
    crib.read_resource("a://1").await.unwrap().into_result().unwrap();
    crib.get_prompt("a__ask", &json!({"topic": "tea"})).await.unwrap();
    let completed = crib.complete(&Selector::Prompt("a__ask".to_owned()), "topic", "te").await.unwrap();
    assert_eq!(completed.to_value()["completion"]["values"], json!(["x"]));
    let template = Selector::Resource("a://of/{n}".to_owned());
    crib.complete(&template, "n", "1").await.unwrap();
    let sent = |method: &str| a.received(method).iter().map(|sent| sent["params"].clone()).collect();
    let read: Vec<Value> = sent("resources/read");
    let prompts: Vec<Value> = sent("prompts/get");
    let completions: Vec<Value> = sent("completion/complete");
    assert_eq!(read[0]["uri"], "a://1");
    assert_eq!((&prompts[0]["name"], &prompts[0]["arguments"]), (&json!("ask"), &json!({"topic": "tea"})));
    assert_eq!(completions[0]["ref"], json!({"type": "ref/prompt", "name": "ask"}));
    assert_eq!(completions[0]["argument"], json!({"name": "topic", "value": "te"}));
    assert_eq!(completions[1]["ref"], json!({"type": "ref/resource", "uri": "a://of/{n}"}));
    let refused = crib.complete(&Selector::Tool("a__t".to_owned()), "n", "1").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Malformed);
}
