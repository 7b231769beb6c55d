//! Prompts, resources, completions and subscriptions.

use serde_json::{Value, json};

use crate::extensions;
use crate::server::{Request, Server};

/// Methods that are answered by this module.
pub(crate) const METHODS: [&str; 9] = [
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "completion/complete",
    "logging/setLevel",
];

/// Prefix of resources that may be cached for a minute; each read is counted.
const CACHEABLE: &str = "note://cacheable";

/// The `_meta` key of the subscription that a message belongs to.
const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

pub(crate) fn answer(server: &Server, method: &str, request: &Request) {
    let text = |key: &str| request.params[key].as_str().unwrap_or_default().to_owned();
    let mut result = match method {
        "prompts/list" if server.script.instructions_file.is_some() => {
            let description = server.script.instructions();
            json!({"prompts": [{"name": "greet", "description": description, "arguments": [{"name": "who"}]}]})
        }
        "prompts/list" => json!({"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]}),
        "prompts/get" if text("name") == "greet" => {
            let greeting = format!("Greet {}", request.params["arguments"]["who"].as_str().unwrap_or("you"));
            json!({"messages": [{"role": "user", "content": {"type": "text", "text": greeting}}]})
        }
        "resources/list" => json!({"resources": resources(server)}),
        "resources/templates/list" => {
            json!({"resourceTemplates": [{"uriTemplate": "note://{name}", "name": "note"}]})
        }
        "resources/read" if text("uri").starts_with(CACHEABLE) => {
            let reads = {
                let mut state = server.state();
                state.reads += 1;
                state.reads
            };
            json!({"contents": [{"uri": text("uri"), "text": format!("read {reads}")}]})
        }
        "resources/read" if text("uri").starts_with("note://") => {
            json!({"contents": [{"uri": text("uri"), "text": format!("read {}", text("uri"))}]})
        }
        "resources/subscribe" => {
            server.state().subscriptions.push((text("uri"), Value::Null));
            json!({})
        }
        "resources/unsubscribe" => {
            server.state().subscriptions.retain(|(uri, _)| *uri != text("uri"));
            json!({})
        }
        "completion/complete" => {
            let reference = &request.params["ref"];
            let value = reference["name"].as_str().or(reference["uri"].as_str()).unwrap_or_default();
            json!({"completion": {"values": [value]}})
        }
        "logging/setLevel" => json!({}),
        "resources/read" if let Some(page) = extensions::read_page(server, &text("uri")) => page,
        _ => {
            let code = if server.script.era.is_stateless() { -32602 } else { -32002 };
            return server.refuse(&request.id, code, "not found");
        }
    };
    if server.script.era.is_stateless() {
        add_stateless_members(&mut result, method, &text("uri"));
    }
    server.answer(&request.id, &result);
}

/// Adds the members that every result of the stateless era has.
fn add_stateless_members(result: &mut Value, method: &str, uri: &str) {
    result["resultType"] = "complete".into();
    if method.ends_with("/list") || method == "resources/read" {
        let (ttl_ms, scope) = match method {
            "prompts/list" => (30_000, "public"),
            _ if uri.starts_with(CACHEABLE) => (60_000, "private"),
            _ => (0, "private"),
        };
        result["ttlMs"] = ttl_ms.into();
        result["cacheScope"] = scope.into();
    }
}

/// Returns the listed resources.
fn resources(server: &Server) -> Vec<Value> {
    let note = json!({"uri": "note://one", "name": "one"});
    [note].into_iter().chain(extensions::listed_page(server)).collect()
}

/// Opens a stream that stays open, with every subscription that was requested.
pub(crate) fn listen(server: &Server, request: &Request) {
    let requested = &request.params["notifications"];
    let uris = requested["resourceSubscriptions"].as_array().cloned().unwrap_or_default();
    for uri in uris {
        let uri = uri.as_str().unwrap_or_default().to_owned();
        server.state().subscriptions.push((uri, request.id.clone()));
    }
    let params = json!({"_meta": {SUBSCRIPTION_ID: request.id}, "notifications": requested});
    server.notify("notifications/subscriptions/acknowledged", &params);
}

/// Notifies all subscribers that a resource has changed; returns their number.
pub(crate) fn update(server: &Server, uri: &str) -> usize {
    let streams: Vec<Value> = {
        let state = server.state();
        let matching = state.subscriptions.iter().filter(|(subscribed, _)| subscribed == uri);
        matching.map(|(_, stream)| stream.clone()).collect()
    };
    for stream in &streams {
        let mut params = json!({"uri": uri});
        if !stream.is_null() {
            params["_meta"][SUBSCRIPTION_ID] = stream.clone();
        }
        server.notify("notifications/resources/updated", &params);
    }
    streams.len()
}
