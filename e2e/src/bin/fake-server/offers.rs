//! What the server has beside tools: prompts, resources, completions, and subscriptions to what changes.

use serde_json::{Value, json};

use crate::server::{Request, Server};

/// Methods that are answered here.
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

/// Resources that are good for a minute; each read is counted.
const LASTING: &str = "note://lasting";

/// The key under which messages name the stream they are on.
const STREAM: &str = "io.modelcontextprotocol/subscriptionId";

pub(crate) fn answer(server: &Server, method: &str, request: &Request) {
    let text = |key: &str| request.params[key].as_str().unwrap_or_default().to_owned();
    let mut result = match method {
        "prompts/list" => json!({"prompts": [{"name": "greet", "arguments": [{"name": "who"}]}]}),
        "prompts/get" if text("name") == "greet" => {
            let words = format!("Greet {}", request.params["arguments"]["who"].as_str().unwrap_or("you"));
            json!({"messages": [{"role": "user", "content": {"type": "text", "text": words}}]})
        }
        "resources/list" => json!({"resources": [{"uri": "note://one", "name": "one"}]}),
        "resources/templates/list" => {
            json!({"resourceTemplates": [{"uriTemplate": "note://{name}", "name": "note"}]})
        }
        "resources/read" if text("uri").starts_with(LASTING) => {
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
            server.state().subscribed.push((text("uri"), Value::Null));
            json!({})
        }
        "resources/unsubscribe" => {
            server.state().subscribed.retain(|(uri, _)| *uri != text("uri"));
            json!({})
        }
        "completion/complete" => {
            let about = &request.params["ref"];
            let value = about["name"].as_str().or(about["uri"].as_str()).unwrap_or_default();
            json!({"completion": {"values": [value]}})
        }
        "logging/setLevel" => json!({}),
        _ => {
            let code = if server.script.era.is_stateless() { -32602 } else { -32002 };
            return server.refuse(&request.id, code, "not found");
        }
    };
    if server.script.era.is_stateless() {
        result["resultType"] = "complete".into();
        if method.ends_with("/list") || method == "resources/read" {
            let (time, scope) = match method {
                "prompts/list" => (30_000, "public"),
                _ if text("uri").starts_with(LASTING) => (60_000, "private"),
                _ => (0, "private"),
            };
            result["ttlMs"] = time.into();
            result["cacheScope"] = scope.into();
        }
    }
    server.answer(&request.id, &result);
}

/// Opens a stream that stays open; takes everything that is asked for.
pub(crate) fn listen(server: &Server, request: &Request) {
    let wanted = &request.params["notifications"];
    let uris = wanted["resourceSubscriptions"].as_array().cloned().unwrap_or_default();
    for uri in uris {
        let uri = uri.as_str().unwrap_or_default().to_owned();
        server.state().subscribed.push((uri, request.id.clone()));
    }
    let params = json!({"_meta": {STREAM: request.id}, "notifications": wanted});
    server.notify("notifications/subscriptions/acknowledged", &params);
}

/// Tells everybody who wants to hear of it that a resource has changed.
pub(crate) fn update(server: &Server, uri: &str) -> usize {
    let subscribed: Vec<Value> = {
        let state = server.state();
        state.subscribed.iter().filter(|(known, _)| known == uri).map(|(_, stream)| stream.clone()).collect()
    };
    for stream in &subscribed {
        let mut params = json!({"uri": uri});
        if !stream.is_null() {
            params["_meta"][STREAM] = stream.clone();
        }
        server.notify("notifications/resources/updated", &params);
    }
    subscribed.len()
}
