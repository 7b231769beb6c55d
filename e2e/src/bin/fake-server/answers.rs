//! The fixed answers of both eras, and the answers that break the rules.

use serde_json::{Value, json};

/// Returns the result of `server/discover`.
pub(crate) fn discover_result(instructions: &str) -> Value {
    json!({
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": capabilities(),
        "instructions": instructions,
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "fake-server", "version": "1"}},
    })
}

fn capabilities() -> Value {
    json!({
        "tools": {"listChanged": true},
        "prompts": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "completions": {},
        "logging": {},
    })
}

/// Returns the result of `initialize`, in the requested revision.
pub(crate) fn initialize_result(params: &Value, instructions: &str) -> Value {
    json!({
        "protocolVersion": params["protocolVersion"],
        "capabilities": capabilities(),
        "instructions": instructions,
        "serverInfo": {"name": "fake-server", "version": "1"},
    })
}

/// Returns a line that answers `id` in an invalid form; `None` for an unknown form.
pub(crate) fn malformed_answer(id: &Value, form: &str, bytes: usize) -> Option<Vec<u8>> {
    let text = match form {
        "string_id" => json!({"jsonrpc": "2.0", "id": id.to_string(), "result": {}}).to_string(),
        "both" => json!({"jsonrpc": "2.0", "id": id, "result": {}, "error": {"code": 1, "message": "x"}})
            .to_string(),
        "neither" => json!({"jsonrpc": "2.0", "id": id}).to_string(),
        "wrong_type" => json!({"jsonrpc": "2.0", "id": id, "result": 7}).to_string(),
        "batch" => json!([{"jsonrpc": "2.0", "id": id, "result": {}}]).to_string(),
        "not_json" => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{content: yes}}}}"#),
        "cut" => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"ty"#),
        "oversize" => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"x":"{}"}}}}"#, "x".repeat(bytes)),
        "output" => "x".repeat(bytes),
        "invalid_utf8" => {
            let mut line = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"x":"#).into_bytes();
            line.extend_from_slice(b"\"\xff\xfe\"}}");
            return Some(line);
        }
        _ => return None,
    };
    Some(text.into_bytes())
}
