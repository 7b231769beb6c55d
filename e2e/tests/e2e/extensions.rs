//! Extensions through the gateway: capabilities, messages that the protocol does not define, pages of tools, and skills.

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient, revision};
use test_support::gateway::{GatewayProcess, Home, server_config};
use test_support::wait_until;

const BOTH_ERAS: [Era; 2] = [Era::Session, Era::Stateless];

/// Returns the config of a server of this era with these capabilities and flags.
fn server(name: &str, era: &str, capabilities: &Value, flags: &[&str]) -> String {
    let capabilities = capabilities.to_string();
    let fixed = ["--name", name, "--era", era, "--capabilities", &capabilities];
    server_config(env!("CARGO_BIN_EXE_fake-server"), name, &[&fixed[..], flags].concat())
}

fn example() -> Value {
    json!({"extensions": {"com.example/chat": {"v": 1}}, "experimental": {"dial": {"n": 1.5}}})
}

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), config)
}

fn client(gateway: &GatewayProcess, path: &str, era: Era, capabilities: &Value) -> HttpClient {
    let mut client = HttpClient::with_capabilities(gateway.address, path, era, capabilities);
    assert_ne!(client.tools().len(), 0);
    client
}

/// Returns the capabilities that a client of this era is told.
fn told_capabilities(gateway: &GatewayProcess, path: &str, era: Era) -> Value {
    let mut client = HttpClient::new(gateway.address, path, era);
    let result = match era {
        Era::Session => client.initialize_result.clone(),
        _ => client.request("server/discover", &json!({})).message()["result"].clone(),
    };
    result["capabilities"].clone()
}

#[test]
fn server_extensions_survive_in_both_eras() {
    let one = json!({"extensions": {"com.example/a": {"x": [1, 2]}, "com.example/both": {"y": 1}, "com.example/odd": {}}});
    let two = json!({"extensions": {"com.example/both": {"y": 1}, "com.example/odd": {"z": 1}}, "experimental": {"e": {}}});
    let home = home(&(server("one", "session", &one, &[]) + &server("two", "stateless", &two, &[])));
    let gateway = home.serve();
    for era in BOTH_ERAS {
        let own = told_capabilities(&gateway, "/mcp/s/one", era);
        assert_eq!(own["extensions"], one["extensions"], "{era:?} {own}");
        let own = told_capabilities(&gateway, "/mcp/s/two", era);
        assert_eq!((&own["extensions"], &own["experimental"]), (&two["extensions"], &two["experimental"]));
        let merged = told_capabilities(&gateway, "/mcp", era);
        let expected = json!({"com.example/a": {"x": [1, 2]}, "com.example/both": {"y": 1}});
        assert_eq!(merged["extensions"], expected, "{era:?} {merged}");
        assert_eq!(merged["experimental"], json!({"e": {}}), "{era:?} {merged}");
    }
}

#[test]
fn server_is_told_the_extensions_of_its_client() {
    for sharing in ["shared", "per-client"] {
        let config = server("s", "session", &json!({}), &[]) + &format!("sharing = '{sharing}'\n");
        // The server is started for the client, and not before.
        let limits = "[limits]\nfirst-listing-wait = '0s'\nfirst-listing-clients = { e2e = '40s' }\n";
        let home = home(&(config + limits));
        let gateway = home.serve();
        let capabilities =
            json!({"extensions": {"com.example/chat": {"v": 1}}, "experimental": {"e": {"n": 2}}});
        let mut extended = client(&gateway, "/mcp/s/s", Era::Session, &capabilities);
        let told: Value = extended.text("client_capabilities", &json!({})).parse().unwrap();
        assert_eq!(told["extensions"], capabilities["extensions"], "{sharing}: {told}");
        assert_eq!(told["experimental"], capabilities["experimental"], "{sharing}: {told}");
        if sharing == "per-client" {
            let mut plain = HttpClient::new(gateway.address, "/mcp", Era::Session);
            let told: Value = plain.text("s__client_capabilities", &json!({})).parse().unwrap();
            assert!(told["extensions"].is_null(), "{told}");
        }
    }
}

#[test]
fn per_client_list_comes_from_the_clients_own_instance() {
    let home = home(&(server("s", "session", &json!({}), &[]) + "sharing = 'per-client'\n"));
    let gateway = home.serve();
    let mut plain = HttpClient::new(gateway.address, "/mcp", Era::Session);
    plain.text("s__echo", &json!({"text": "x"}));
    let capabilities = json!({"extensions": {"com.example/chat": {}}});
    let mut extended = client(&gateway, "/mcp", Era::Session, &capabilities);
    extended.text("s__echo", &json!({"text": "x"}));
    let own = "s__for_extended_clients";
    assert!(extended.tools().iter().any(|tool| tool == own));
    assert_eq!(extended.text(own, &json!({})), "for_extended_clients");
    assert!(!plain.tools().iter().any(|tool| tool == own));
    let mut one = client(&gateway, "/mcp/s/s", Era::Session, &capabilities);
    one.text("echo", &json!({"text": "x"}));
    assert!(one.tools().iter().any(|tool| tool == "for_extended_clients"));
}

#[test]
fn requests_of_an_announced_extension_reach_the_server() {
    let home = home(&server("s", "session", &example(), &[]));
    let gateway = home.serve();
    for (era, path) in BOTH_ERAS.into_iter().flat_map(|era| ["/mcp", "/mcp/s/s"].map(|path| (era, path))) {
        let mut client = client(&gateway, path, era, &json!({}));
        let answer = client.request("chat/say", &json!({"message": "hi"})).message();
        let result = &answer["result"];
        assert_eq!((&result["method"], &result["message"]), (&json!("chat/say"), &json!("hi")), "{answer}");
    }
    for method in ["sampling/createMessage", "roots/list", "notifications/chat/x"] {
        let refused = client(&gateway, "/mcp/s/s", Era::Session, &json!({})).request(method, &json!({}));
        assert_eq!(refused.code(), Some(-32601), "{method}");
    }
}

#[test]
fn unknown_requests_reach_a_server_at_its_own_endpoint() {
    let capability = json!({"events": {}});
    let config = server("plain", "session", &json!({}), &[]) + &server("ev", "stateless", &capability, &[]);
    let home = home(&config);
    let gateway = home.serve();
    for (era, server) in BOTH_ERAS.into_iter().flat_map(|era| ["plain", "ev"].map(|server| (era, server))) {
        let mut one = client(&gateway, &format!("/mcp/s/{server}"), era, &json!({}));
        let answer = one.request("events/list", &json!({"message": "hi"})).message();
        let result = &answer["result"];
        assert_eq!((&result["server"], &result["message"]), (&json!(server), &json!("hi")), "{answer}");
        let mut all = client(&gateway, "/mcp", era, &json!({}));
        assert_eq!(all.request("events/list", &json!({})).code(), Some(-32601), "{era:?}");
    }
    assert_eq!(told_capabilities(&gateway, "/mcp/s/ev", Era::Stateless)["events"], json!({}));
}

#[test]
fn first_message_of_an_unknown_method_starts_the_server() {
    let home = home(&server("plain", "session", &json!({}), &[]));
    let gateway = home.serve();
    let mut one = HttpClient::new(gateway.address, "/mcp/s/plain", Era::Stateless);
    let answer = one.request("events/list", &json!({"message": "hi"})).message();
    assert_eq!(answer["result"]["message"], "hi", "{answer}");
}

#[test]
fn request_that_several_servers_may_mean_is_refused() {
    let home = home(&(server("a", "session", &example(), &[]) + &server("b", "session", &example(), &[])));
    let gateway = home.serve();
    let mut client = client(&gateway, "/mcp", Era::Session, &json!({}));
    let refused = client.request("chat/say", &json!({})).message();
    assert_eq!(refused["error"]["code"], -32601, "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("/mcp/s/"), "{message}");
    let read = client.request("chat/open", &json!({"uri": "toolcrib://b/note%3A%2F%2Fone"})).message();
    assert_eq!(read["result"]["server"], "b", "the URI names the server: {read}");
}

#[test]
fn denied_server_gets_no_messages_of_extensions() {
    let config = server("s", "session", &example(), &[]) + "[policy]\ndeny = ['s.echo']\n";
    let home = home(&config);
    let gateway = home.serve();
    let mut client = client(&gateway, "/mcp/s/s", Era::Session, &json!({}));
    let refused = client.request("chat/say", &json!({})).message();
    assert_eq!(refused["error"]["code"], -31010, "{refused}");
    assert_eq!(client.notify("notifications/chat/x", &json!({})).status, 202);
    client.text("sleep", &json!({"ms": 100}));
    assert_eq!(client.text("notifications", &json!({})), "[]");
}

#[test]
fn notifications_of_a_client_reach_the_servers_that_they_are_for() {
    let plain = server("plain", "session", &json!({}), &[]);
    let home = home(&(server("s", "session", &example(), &[]) + &plain));
    let gateway = home.serve();
    for path in ["/mcp", "/mcp/s/s", "/mcp/s/plain"] {
        let client = client(&gateway, path, Era::Session, &json!({}));
        for method in ["notifications/chat/typing", "notifications/initialized", "notifications/message"] {
            assert_eq!(client.notify(method, &json!({"at": path})).status, 202);
        }
    }
    let mut client = client(&gateway, "/mcp", Era::Session, &json!({}));
    let mut received = Value::Null;
    wait_until("both notifications arrive", || {
        received = client.text("s__notifications", &json!({})).parse().unwrap();
        received.as_array().is_some_and(|received| received.len() >= 2)
    });
    let sent = |path: &str| json!({"method": "notifications/chat/typing", "params": {"at": path}});
    assert_eq!(received, json!([sent("/mcp"), sent("/mcp/s/s")]));
    wait_until("the one at the endpoint of the server arrives", || {
        client.text("plain__notifications", &json!({})) != "[]"
    });
    let received: Value = client.text("plain__notifications", &json!({})).parse().unwrap();
    assert_eq!(received, json!([sent("/mcp/s/plain")]), "it announced nothing");
}

#[test]
fn notifications_of_a_server_reach_only_the_calling_client() {
    let home = home(&server("s", "session", &json!({}), &[]));
    let gateway = home.serve();
    for era in BOTH_ERAS {
        let mut extended = client(&gateway, "/mcp", era, &example());
        let arguments = json!({"method": "notifications/chat/new", "message": "hi"});
        let tell = json!({"name": "s__tell_client", "arguments": arguments});
        let messages = extended.request("tools/call", &tell).messages();
        assert_eq!(messages.len(), 2, "{era:?} {messages:?}");
        assert_eq!(messages[0]["method"], "notifications/chat/new");
        assert_eq!(messages[0]["params"], json!({"message": "hi"}));
        let mut plain = client(&gateway, "/mcp", era, &json!({}));
        assert_eq!(plain.request("tools/call", &tell).messages().len(), 1, "it announced nothing");
    }
}

#[test]
fn unknown_notifications_of_a_server_reach_the_caller_at_its_endpoint() {
    let home = home(&server("s", "session", &json!({}), &[]));
    let gateway = home.serve();
    for era in BOTH_ERAS {
        let mut plain = client(&gateway, "/mcp/s/s", era, &json!({}));
        let arguments = json!({"method": "notifications/chat/new", "message": "hi"});
        let tell = json!({"name": "tell_client", "arguments": arguments});
        let messages = plain.request("tools/call", &tell).messages();
        assert_eq!(messages.len(), 2, "{era:?} {messages:?}");
        assert_eq!(messages[0]["method"], "notifications/chat/new");
        assert_eq!(messages[0]["params"], json!({"message": "hi"}));
    }
}

#[test]
fn unknown_request_of_a_server_is_answered_by_the_caller_at_its_endpoint() {
    let home = home(&server("s", "session", &json!({}), &[]));
    let gateway = home.serve();
    let mut plain = client(&gateway, "/mcp/s/s", Era::Session, &json!({}));
    let mut stream = plain.open("tools/call", &json!({"name": "ask", "arguments": {"method": "chat/pick"}}));
    let question = stream.next_event().unwrap();
    assert_eq!(question["method"], "chat/pick", "{question}");
    let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"picked": 7}});
    assert_eq!(plain.post_raw("", None, &answer.to_string()).status, 202);
    let response = stream.next_event().unwrap();
    assert_eq!(response["result"]["content"][0]["text"], r#"{"picked":7}"#, "{response}");
}

#[test]
fn late_notification_of_a_shared_server_reaches_its_only_client() {
    let home = home(&server("s", "session", &json!({}), &[]));
    let gateway = home.serve();
    let arguments = json!({"method": "notifications/chat/late", "message": "hi", "late": true});
    let mut first = client(&gateway, "/mcp/s/s", Era::Session, &json!({}));
    let mut stream = first.send_without_body("GET");
    assert_eq!(first.text("tell_client", &arguments), "told");
    let late = stream.next_event().unwrap();
    assert_eq!(late["params"], json!({"message": "hi"}), "{late}");

    let mut second = client(&gateway, "/mcp/s/s", Era::Session, &json!({}));
    assert_eq!(second.text("tell_client", &arguments), "told");
    // An answer after the notification shows that the server has sent it.
    second.text("sleep", &json!({"ms": 400}));
    second.send_without_body("DELETE");
    let said = json!({"method": "notifications/chat/late", "message": "again", "late": true});
    assert_eq!(first.text("tell_client", &said), "told");
    let late = stream.next_event().unwrap();
    assert_eq!(late["params"], json!({"message": "again"}), "with two clients, it reached one: {late}");
}

#[test]
fn late_notification_reaches_the_only_client_of_an_instance() {
    let home = home(&(server("s", "session", &json!({}), &[]) + "sharing = 'per-client'\n"));
    let command = home.command(&["stdio"]);
    let mut pipe = StdioClient::session_with_capabilities(command, revision(Era::Session), &example());
    let arguments = json!({"method": "notifications/chat/late", "message": "hi", "late": true});
    assert_eq!(pipe.text("s__tell_client", &arguments), "told");
    let mut late = pipe.read().unwrap();
    while late["method"] == "notifications/tools/list_changed" {
        late = pipe.read().unwrap();
    }
    let expected =
        json!({"jsonrpc": "2.0", "method": "notifications/chat/late", "params": {"message": "hi"}});
    assert_eq!(late, expected);
}

#[test]
fn flood_of_notifications_is_bounded_and_the_answer_arrives() {
    let home = home(&server("s", "session", &json!({}), &[]));
    let gateway = home.serve();
    for era in BOTH_ERAS {
        let mut extended = client(&gateway, "/mcp", era, &example());
        let arguments = json!({"method": "notifications/chat/new", "times": 50_000});
        let tell = json!({"name": "s__tell_client", "arguments": arguments});
        let messages = extended.request("tools/call", &tell).messages();
        assert_eq!(messages.last().unwrap()["result"]["content"][0]["text"], "told", "{era:?}");
    }
}

#[test]
fn messages_of_extensions_are_in_the_audit() {
    let home = home(&format!("audit = 'audit.jsonl'\n{}", server("s", "session", &example(), &[])));
    let mut gateway = home.serve();
    let mut client = client(&gateway, "/mcp/s/s", Era::Session, &json!({}));
    client.request("chat/say", &json!({"message": "hi"}));
    client.notify("notifications/chat/typing", &json!({}));
    wait_until("the notification arrives", || client.text("notifications", &json!({})) != "[]");
    assert!(gateway.stop().success());
    let audit = std::fs::read_to_string(home.file("audit.jsonl")).unwrap();
    for method in ["chat/say", "notifications/chat/typing"] {
        let is_recorded = |line: &str| {
            line.contains(&format!(r#""method":"{method}""#)) && line.contains(r#""server":"s""#)
        };
        assert!(audit.lines().any(is_recorded), "{method}: {audit}");
    }
}

#[test]
fn notification_that_several_clients_may_mean_is_dropped() {
    let home = home(&server("s", "session", &json!({}), &[]));
    let gateway = home.serve();
    let mut first = client(&gateway, "/mcp", Era::Session, &example());
    let mut second = client(&gateway, "/mcp", Era::Session, &example());
    let slow = std::thread::spawn(move || {
        let call = json!({"name": "s__sleep", "arguments": {"ms": 3000}});
        first.request("tools/call", &call).messages()
    });
    let tell = json!({"name": "s__tell_client", "arguments": {"method": "notifications/chat/new"}});
    wait_until("the slow call is in flight", || second.text("s__peak", &json!({})) != "1");
    let messages = second.request("tools/call", &tell).messages();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert_eq!(slow.join().unwrap().len(), 1);
}

#[test]
fn request_of_a_server_is_answered_by_a_client_with_extensions() {
    for sharing in ["shared", "per-client"] {
        let home = home(&(server("s", "session", &json!({}), &[]) + &format!("sharing = '{sharing}'\n")));
        let gateway = home.serve();
        let mut extended = client(&gateway, "/mcp", Era::Session, &example());
        let ask = json!({"name": "s__ask", "arguments": {"method": "chat/pick"}});
        let mut stream = extended.open("tools/call", &ask);
        let question = stream.next_event().unwrap();
        assert_eq!(question["method"], "chat/pick", "{sharing}: {question}");
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": {"picked": 7}});
        assert_eq!(extended.post_raw("", None, &answer.to_string()).status, 202);
        let response = stream.next_event().unwrap();
        assert_eq!(response["result"]["content"][0]["text"], r#"{"picked":7}"#, "{response}");
        for era in BOTH_ERAS {
            let mut plain = client(&gateway, "/mcp", era, &json!({}));
            let refused: Value = plain.text("s__ask", &ask["arguments"]).parse().unwrap();
            assert_eq!(refused["code"], -32601, "{era:?} {refused}");
        }
    }
}

#[test]
fn pages_of_two_servers_are_readable_under_ui_addresses() {
    let page = "ui://app/page.html";
    let listed = server("a", "session", &json!({}), &["--page", page, "--list-page"]);
    let unlisted = server("b", "stateless", &json!({}), &["--page", page]);
    let home = home(&(listed + &unlisted));
    let gateway = home.serve();
    for era in BOTH_ERAS {
        let mut client = client(&gateway, "/mcp", era, &json!({}));
        let tools = client.request("tools/list", &json!({})).message()["result"]["tools"].clone();
        for server in ["a", "b"] {
            let name = format!("{server}__show");
            let tool = tools.as_array().unwrap().iter().find(|tool| tool["name"] == *name).unwrap();
            let uri = format!("ui://toolcrib/{server}/app/page.html");
            assert_eq!(tool["_meta"], json!({"ui": {"resourceUri": uri}, "ui/resourceUri": uri}), "{tool}");
            let read = client.request("resources/read", &json!({"uri": uri})).message();
            let content = &read["result"]["contents"][0];
            assert_eq!(
                (&content["uri"], &content["text"]),
                (&json!(uri), &json!(format!("page of {server}")))
            );
            let shown = client.call(&name, &json!({}))["result"].clone();
            assert_eq!(shown["_meta"]["ui"]["resourceUri"], uri, "{shown}");
            assert_eq!(
                (&shown["content"][1]["uri"], &shown["content"][2]["resource"]["uri"]),
                (&json!(uri), &json!(uri))
            );
        }
        let resources = client.request("resources/list", &json!({})).message()["result"]["resources"].clone();
        let is_listed =
            |uri: &str| resources.as_array().unwrap().iter().any(|resource| resource["uri"] == uri);
        assert!(is_listed("ui://toolcrib/a/app/page.html"), "{resources}");
        let mut one = HttpClient::new(gateway.address, "/mcp/s/a", era);
        let shown = one.call("show", &json!({}))["result"].clone();
        assert_eq!(shown["content"][1]["uri"], page, "the endpoint of one server changes nothing: {shown}");
    }
}

#[test]
fn rules_apply_to_the_own_address_of_a_page() {
    let page = "ui://app/page.html";
    let config = server("a", "session", &json!({}), &["--page", page]);
    let home = home(&(config + "[policy]\ndeny = ['a.ui://app/*']\n"));
    let gateway = home.serve();
    let mut client = client(&gateway, "/mcp", Era::Session, &json!({}));
    for uri in ["ui://toolcrib/a/app/page.html", page] {
        let refused = client.request("resources/read", &json!({"uri": uri})).message();
        assert_eq!(refused["error"]["code"], -31010, "{refused}");
    }
}

#[test]
fn skills_of_two_servers_are_listed_and_found() {
    let skills = json!({"extensions": {"io.modelcontextprotocol/skills": {"directoryRead": true}}});
    let home = home(&(server("a", "session", &skills, &[]) + &server("b", "stateless", &skills, &[])));
    let gateway = home.serve();
    for era in BOTH_ERAS {
        let mut client = client(&gateway, "/mcp", era, &json!({}));
        assert_eq!(told_capabilities(&gateway, "/mcp", era)["extensions"], skills["extensions"]);
        let listed = client.request("skills/list", &json!({})).message()["result"].clone();
        assert_eq!(listed["resultType"].is_string(), era == Era::Stateless, "{listed}");
        let uri = |server: &str| format!("skill://toolcrib/{server}/hello/SKILL.md");
        for (index, server) in ["a", "b"].iter().enumerate() {
            let skill = &listed["skills"][index];
            assert_eq!(skill["uri"], uri(server), "{listed}");
            assert_eq!(skill["resources"][0]["uri"], uri(server));
            let got = client.request("skills/get", &json!({"uri": uri(server)})).message()["result"].clone();
            assert_eq!(got["skill"], *skill, "{got}");
            assert_eq!(got["ttlMs"].is_number(), era == Era::Stateless, "{got}");
            let directory = json!({"uri": format!("skill://toolcrib/{server}/hello")});
            let children = client.request("resources/directory/read", &directory).message()["result"].clone();
            assert_eq!(children["resources"][0]["uri"], uri(server), "{children}");
        }
        let mut one = HttpClient::new(gateway.address, "/mcp/s/a", era);
        let listed = one.request("skills/list", &json!({})).message()["result"].clone();
        assert_eq!(listed["skills"][0]["uri"], "skill://hello/SKILL.md", "{listed}");
    }
}
