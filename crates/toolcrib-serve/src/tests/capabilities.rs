//! What `initialize` and `server/discover` say works, and what works is said.

use serde_json::{Value, json};
use toolcrib::spec::EraChoice;
use toolcrib::{Crib, Era, ServerSpec};

use super::TestGateway;
use super::transparency::EndpointClient;
use super::transparency::raw_server::{RawServer, error, result};

const ERAS: [Era; 2] = [Era::Session, Era::Stateless];

/// A request that works if its capability is declared.
struct Probe {
    capability: &'static [&'static str],
    method: &'static str,
    params: &'static str,
    /// True if only sessions have the method.
    is_for_sessions: bool,
}

const fn probe(capability: &'static [&'static str], method: &'static str, params: &'static str) -> Probe {
    Probe { capability, method, params, is_for_sessions: false }
}

const fn session_probe(
    capability: &'static [&'static str],
    method: &'static str,
    params: &'static str,
) -> Probe {
    Probe { is_for_sessions: true, ..probe(capability, method, params) }
}

const COMPLETE: &str = r#"{"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":""}}"#;

const PROBES: [Probe; 11] = [
    probe(&["tools"], "tools/list", "{}"),
    probe(&["prompts"], "prompts/list", "{}"),
    probe(&["resources"], "resources/list", "{}"),
    probe(&["resources"], "resources/read", r#"{"uri":"note://a"}"#),
    probe(&["completions"], "completion/complete", COMPLETE),
    session_probe(&["resources", "subscribe"], "resources/subscribe", r#"{"uri":"note://a"}"#),
    session_probe(&["logging"], "logging/setLevel", r#"{"level":"error"}"#),
    session_probe(&["tasks", "list"], "tasks/list", "{}"),
    probe(&["extensions", "io.modelcontextprotocol/skills"], "skills/list", "{}"),
    probe(&["extensions", "com.example/chat"], "chat/say", "{}"),
    probe(&["events"], "events/list", "{}"),
];

/// Every capability of a server in an era, and some that the protocol does not define.
fn every_capability(era: Era) -> Value {
    let mut all = json!({
        "tools": {},
        "prompts": {},
        "resources": {"subscribe": true},
        "completions": {},
        "logging": {},
        "extensions": {"io.modelcontextprotocol/skills": {}, "com.example/chat": {}},
        "events": {},
    });
    if era == Era::Session {
        all["tasks"] = json!({"list": {}});
    }
    all
}

fn has(capabilities: &Value, capability: &[&str]) -> bool {
    capability.iter().try_fold(capabilities, |value, member| value.get(member)).is_some()
}

/// Removes a capability, and its member if nothing else is in it.
fn remove(capabilities: &mut Value, capability: &[&str]) {
    let members = capabilities.as_object_mut().unwrap();
    if let [first, rest @ ..] = capability
        && let Some(value) = members.get_mut(*first)
    {
        if !rest.is_empty() {
            remove(value, rest);
        }
        if rest.is_empty() || *first == "tasks" {
            members.remove(*first);
        }
    }
}

/// A server that has exactly the methods that it declares.
fn server(era: Era, declared: Value) -> ServerSpec {
    let respond = move |message: &Value| {
        let method = message["method"].as_str().unwrap_or_default();
        let answers = match method {
            _ if message["id"].is_null() => return Vec::new(),
            "initialize" if era == Era::Session => true,
            "server/discover" if era == Era::Stateless => true,
            "resources/templates/list" => has(&declared, &["resources"]),
            "resources/unsubscribe" => has(&declared, &["resources", "subscribe"]),
            _ => PROBES.iter().any(|probe| probe.method == method && has(&declared, probe.capability)),
        };
        if !answers {
            return error(message, json!({"code": -32601, "message": "Method not found"}));
        }
        let mut answer = json!({
            "protocolVersion": "2025-11-25",
            "supportedVersions": ["2026-07-28"],
            "capabilities": declared,
            "serverInfo": {"name": "s", "version": "1"},
            "tools": [{"name": "t", "inputSchema": {"type": "object"}}],
            "prompts": [{"name": "p"}],
            "resources": [{"uri": "note://a", "name": "a"}],
            "resourceTemplates": [],
            "contents": [],
            "completion": {"values": []},
            "tasks": [],
            "skills": [],
        });
        if era == Era::Stateless {
            answer["resultType"] = "complete".into();
        }
        result(message, answer)
    };
    ServerSpec::in_process("s".parse().unwrap(), RawServer::new(respond)).era(EraChoice::Era(era))
}

/// Checks what a client of an era is told at an endpoint, for a server of an era with these capabilities.
async fn check(path: &'static str, client_era: Era, server_era: Era, declared: &Value, left_out: &[&str]) {
    let crib = Crib::builder().server(server(server_era, declared.clone())).build().unwrap();
    crib.list().await;
    let gateway = TestGateway::with_crib(crib, 1 << 20, 10);
    let (client, told) = match client_era {
        Era::Session => EndpointClient::session(&gateway, path).await,
        _ => {
            let client = EndpointClient::stateless(&gateway, path);
            let told = client.request("server/discover", json!({})).await["result"].clone();
            (client, told)
        }
    };
    let told = &told["capabilities"];
    for probe in &PROBES {
        if left_out.contains(&probe.method) || probe.is_for_sessions && client_era == Era::Stateless {
            continue;
        }
        let answer = client.request(probe.method, serde_json::from_str(probe.params).unwrap()).await;
        let works = answer["error"]["code"] != -32601;
        let said = has(told, probe.capability);
        let method = probe.method;
        assert_eq!(
            said, works,
            "{path}, {client_era:?} client, {server_era:?} server, {method}: {told} {answer}"
        );
    }
    if client_era == Era::Stateless {
        let refused = client.request("tasks/list", json!({})).await;
        assert_eq!((refused["error"]["code"].clone(), &told["tasks"]), (json!(-32601), &Value::Null));
    }
}

#[tokio::test]
async fn capabilities_of_one_server_are_what_works_at_its_endpoint() {
    for (client_era, server_era) in ERAS.into_iter().flat_map(|client| ERAS.map(|server| (client, server))) {
        // Subscriptions at a stateless server need a stream.
        let left_out: &[&str] = if server_era == Era::Stateless { &["resources/subscribe"] } else { &[] };
        let all = every_capability(server_era);
        check("/mcp/s/s", client_era, server_era, &all, left_out).await;
        for missing in &PROBES {
            let mut declared = all.clone();
            remove(&mut declared, missing.capability);
            check("/mcp/s/s", client_era, server_era, &declared, left_out).await;
        }
    }
}

#[tokio::test]
async fn capabilities_of_the_gateway_are_what_works_at_its_endpoint() {
    // Capabilities that the protocol does not define belong to one server.
    for (client_era, server_era) in ERAS.into_iter().flat_map(|client| ERAS.map(|server| (client, server))) {
        let all = every_capability(server_era);
        let left_out: &[&str] = match server_era {
            Era::Stateless => &["resources/subscribe", "events/list"],
            _ => &["events/list"],
        };
        check("/mcp", client_era, server_era, &all, left_out).await;
    }
}
