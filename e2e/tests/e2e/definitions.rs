//! A definition that official clients reject must not hide the tools, prompts and resources of other servers.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{Home, server_config};

/// A server in `sh` with definitions as some servers send them.
const SLOPPY_SERVER: &str = r#"
while IFS= read -r line; do
  id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
  [ -n "$id" ] || continue
  case "$line" in
    *'"initialize"'*) result='"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{},"prompts":{},"resources":{}},"serverInfo":{"name":"s","version":"1"}}' ;;
    *'"tools/list"'*) result='"result":{"tools":[{"name":"bare"},{"name":"nulls","title":null,"description":null,"inputSchema":null,"outputSchema":null,"annotations":null,"icons":null,"_meta":null,"execution":null},{"name":"odd","inputSchema":{"properties":{"a":true},"required":null},"annotations":{"readOnlyHint":"no"}},{"name":null},{"name":"fine","inputSchema":{"type":"object"},"x":1.0}]}' ;;
    *'"prompts/list"'*) result='"result":{"prompts":[{"name":"p","arguments":null},{"name":"q","arguments":[{"description":"no name"}]}]}' ;;
    *'"resources/list"'*) result='"result":{"resources":[{"uri":"a:b","mimeType":null,"size":"big"}]}' ;;
    *'"resources/templates/list"'*) result='"result":{"resourceTemplates":[{"uriTemplate":"a:{b}","name":null}]}' ;;
    *) result='"error":{"code":-32601,"message":"no such method"}' ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$result"
done
"#;

fn home() -> Home {
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), "");
    let script = home.file("sloppy.sh");
    std::fs::write(&script, SLOPPY_SERVER).unwrap();
    let script = script.to_str().unwrap();
    let good = server_config(env!("CARGO_BIN_EXE_fake-server"), "good", &[]);
    home.write_config(&(server_config("sh", "sloppy", &[script]) + &good));
    home
}

fn list(client: &mut HttpClient, method: &str, member: &str) -> Vec<Value> {
    let answer = client.request(method, &json!({})).message();
    answer["result"][member].as_array().unwrap_or_else(|| panic!("{answer}")).clone()
}

#[test]
fn rejected_definitions_are_repaired_where_all_servers_are_listed() {
    let home = home();
    let gateway = home.serve();
    let any = json!({"type": "object"});
    for era in [Era::Session, Era::Stateless] {
        let mut client = HttpClient::new(gateway.address, "/mcp", era);
        let tools = list(&mut client, "tools/list", "tools");
        assert!(tools.iter().any(|tool| tool["name"] == "good__echo"));
        let sloppy: Vec<&Value> =
            tools.iter().filter(|tool| tool["name"].as_str().unwrap().starts_with("sloppy__")).collect();
        let expected = [
            json!({"name": "sloppy__bare", "inputSchema": any}),
            json!({"name": "sloppy__nulls", "inputSchema": any}),
            json!({"name": "sloppy__odd", "inputSchema": {"type": "object", "properties": {"a": {}}}, "annotations": {}}),
            json!({"name": "sloppy__fine", "inputSchema": any, "x": 1.0}),
        ];
        assert_eq!(sloppy, expected.iter().collect::<Vec<_>>());
        let prompts = list(&mut client, "prompts/list", "prompts");
        assert!(prompts.contains(&json!({"name": "sloppy__p"})), "{prompts:?}");
        assert!(prompts.contains(&json!({"name": "sloppy__q", "arguments": []})), "{prompts:?}");
        let resources = list(&mut client, "resources/list", "resources");
        assert!(resources.contains(&json!({"uri": "a:b", "name": "a:b"})), "{resources:?}");
        let templates = list(&mut client, "resources/templates/list", "resourceTemplates");
        assert!(templates.contains(&json!({"uriTemplate": "a:{b}", "name": "a:{b}"})), "{templates:?}");
    }
}

#[test]
fn definitions_of_one_server_are_passed_unchanged_and_reported() {
    let home = home();
    let gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp/s/sloppy", Era::Session);
    let tools = list(&mut client, "tools/list", "tools");
    assert_eq!(tools[0], json!({"name": "bare"}));
    assert_eq!(tools[1]["inputSchema"], Value::Null);
    assert!(tools[1].as_object().unwrap().contains_key("annotations"));
    let output = home.run(&["status", "sloppy", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problems = status["problems"].to_string();
    for problem in
        ["tool `bare`: `inputSchema` is missing", "prompt `p`: ", "resource `a:b`: ", "no usable name"]
    {
        assert!(problems.contains(problem), "{problem}: {problems}");
    }
    let shown = String::from_utf8(home.run(&["status"]).stderr).unwrap();
    assert!(shown.contains("`sloppy` lists definitions that clients would reject"), "{shown}");
}
