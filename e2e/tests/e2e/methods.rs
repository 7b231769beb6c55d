//! Every method of both eras through the gateway: lists, prompts, resources, completions and discovery.

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient, count_tools};
use test_support::gateway::{GatewayProcess, Home};

fn home() -> Home {
    let server = |name, era| {
        test_support::gateway::server_config(
            env!("CARGO_BIN_EXE_fake-server"),
            name,
            &["--era", era, "--page-size", "5"],
        )
    };
    Home::new(env!("CARGO_BIN_EXE_crib"), &(server("old", "session") + &server("new", "stateless")))
}

fn client(gateway: &GatewayProcess, path: &str, era: Era) -> HttpClient {
    HttpClient::new(gateway.address, path, era)
}

fn result(client: &mut HttpClient, method: &str, params: &Value) -> Value {
    let response = client.request(method, params);
    assert_eq!(response.status, 200, "{method}: {}", response.text());
    response.message()["result"].clone()
}

#[test]
fn prompts_resources_and_completion_work_in_both_eras() {
    let home = home();
    let eras = [Era::Session, Era::Stateless];
    let gateway = home.serve();
    for (era, server) in eras.iter().flat_map(|era| ["old", "new"].map(|server| (*era, server))) {
        let mut client = client(&gateway, "/mcp", era);
        let prompts = result(&mut client, "prompts/list", &json!({}));
        assert_eq!(prompts["prompts"][0]["name"], "new__greet", "{prompts}");
        assert_eq!(prompts["ttlMs"].is_number(), era == Era::Stateless, "{prompts}");
        let got = result(
            &mut client,
            "prompts/get",
            &json!({"name": format!("{server}__greet"), "arguments": {"who": "Ada"}}),
        );
        assert_eq!(got["messages"][0]["content"]["text"], "Greet Ada");
        assert_eq!(got["resultType"].is_string(), era == Era::Stateless, "{got}");
        let uri = format!("toolcrib://{server}/note%3A%2F%2Fone");
        let listed = result(&mut client, "resources/list", &json!({}));
        assert!(listed["resources"].as_array().unwrap().iter().any(|item| item["uri"] == uri), "{listed}");
        let read = result(&mut client, "resources/read", &json!({"uri": uri}));
        assert_eq!(read["contents"][0]["text"], "read note://one", "{read}");
        assert_eq!(read["cacheScope"].is_string(), era == Era::Stateless, "{read}");
        let params = json!({"ref": {"type": "ref/prompt", "name": format!("{server}__greet")}, "argument": {"name": "who", "value": "A"}});
        let completed = result(&mut client, "completion/complete", &params);
        assert_eq!(completed["completion"]["values"][0], "greet", "{completed}");
    }
}

#[test]
fn endpoint_of_one_server_is_transparent() {
    let home = home();
    let gateway = home.serve();
    for (era, server) in [(Era::Session, "new"), (Era::Stateless, "old")] {
        let mut client = client(&gateway, &format!("/mcp/s/{server}"), era);
        let templates = result(&mut client, "resources/templates/list", &json!({}));
        assert_eq!(templates["resourceTemplates"][0]["uriTemplate"], "note://{name}");
        let read = result(&mut client, "resources/read", &json!({"uri": "note://two"}));
        assert_eq!(read["contents"][0]["uri"], "note://two");
        let missing = client.request("resources/read", &json!({"uri": "other://two"}));
        let code = if era == Era::Session { -32002 } else { -32602 };
        assert_eq!(missing.code(), Some(code), "{}", missing.text());
        let unknown = client.request("skills/list", &json!({}));
        let status = if era == Era::Session { 200 } else { 404 };
        assert_eq!((unknown.status, unknown.code()), (status, Some(-32601)), "{}", unknown.text());
    }
}

#[test]
fn discover_describes_all_servers() {
    let home = home();
    let gateway = home.serve();
    let mut stateless = client(&gateway, "/mcp", Era::Stateless);
    assert_eq!(stateless.tools().len(), count_tools(gateway.address, ["old", "new"]));
    let found = result(&mut stateless, "server/discover", &json!({}));
    assert_eq!(found["capabilities"]["resources"]["subscribe"], true, "{found}");
    let instructions = found["instructions"].as_str().unwrap();
    assert_eq!(
        instructions,
        "# new\n\nAsk the fake server for anything.\n\n# old\n\nAsk the fake server for anything."
    );
    let mut one = client(&gateway, "/mcp/s/old", Era::Stateless);
    let found = result(&mut one, "server/discover", &json!({}));
    assert_eq!(found["instructions"], "Ask the fake server for anything.");
    assert_eq!(found["capabilities"]["prompts"]["listChanged"], true);
    for method in ["ping", "initialize", "logging/setLevel", "resources/subscribe"] {
        let removed = one.request(method, &json!({}));
        assert_eq!((removed.status, removed.code()), (404, Some(-32601)), "{method}: {}", removed.text());
    }
}

#[test]
fn session_gets_log_messages_from_its_level_on() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, "/mcp", Era::Session);
    let refused = client.request("logging/setLevel", &json!({"level": "loud"}));
    assert_eq!(refused.code(), Some(-32602), "{}", refused.text());
    assert_eq!(result(&mut client, "logging/setLevel", &json!({"level": "warning"})), json!({}));
    let mut log = |level: &str| {
        let arguments = json!({"level": level, "text": "line"});
        client.request("tools/call", &json!({"name": "old__send_log", "arguments": arguments})).messages()
    };
    assert_eq!(log("info").len(), 1, "only the response");
    let messages = log("error");
    assert_eq!(messages[0]["method"], "notifications/message", "{messages:?}");
    assert_eq!(messages[0]["params"]["data"], "line");
}

#[test]
fn header_parameters_must_match_the_arguments() {
    let home = home();
    let gateway = home.serve();
    let mut client = client(&gateway, "/mcp", Era::Stateless);
    assert_eq!(client.tools().len(), count_tools(gateway.address, ["old", "new"]));
    let call = |client: &HttpClient, header: Option<&str>, region: Value| {
        let params = json!({"name": "old__mirror", "arguments": {"region": region}});
        let body =
            test_support::client::message(Era::Stateless, &json!(1), "tools/call", &params).to_string();
        let mut headers = client.headers("tools/call", Some("old__mirror"));
        headers.extend(header.map(|value| ("Mcp-Param-Region".to_owned(), value.to_owned())));
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        test_support::http::request(gateway.address, "POST", "/mcp", &headers, body.as_bytes())
    };
    for (header, region, valid) in [
        (Some("eu"), json!("eu"), true),
        (Some("=?base64?ZXU=?="), json!("eu"), true),
        (None, json!(null), true),
        (Some("us"), json!("eu"), false),
        (None, json!("eu"), false),
        (Some("eu"), json!(null), false),
        (Some("=?base64?ZXU?="), json!("eu"), false),
    ] {
        let response = call(&client, header, region.clone());
        let expected = if valid { (200, None) } else { (400, Some(-32020)) };
        assert_eq!((response.status, response.code()), expected, "{header:?} {region}: {}", response.text());
    }
}

#[test]
fn both_eras_work_on_one_pipe() {
    let home = home();
    let mut pipe = StdioClient::new(home.command(&["stdio"]), Era::Session);
    let read = pipe.request("resources/read", &json!({"uri": "toolcrib://old/note%3A%2F%2Fone"}));
    assert_eq!(read["result"]["contents"][0]["text"], "read note://one", "{read}");
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    let found = pipe.request("server/discover", &json!({"_meta": meta}));
    assert_eq!(found["result"]["resultType"], "complete", "{found}");
    assert_eq!(pipe.request("ping", &json!({"_meta": meta}))["error"]["code"], -32601);
    assert_eq!(pipe.request("ping", &json!({}))["result"], json!({}));
}
