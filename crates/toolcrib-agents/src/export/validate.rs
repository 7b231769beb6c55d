//! Validates entries against the schemas of the agents.

use serde_json::{Map, Value as Json};

use crate::agents::schemas::{EntryKey, EntryValueKind};
use crate::agents::{Agent, RemoteFormat, SseSupport};

/// Author of an entry. Only toolcrib's own entries are checked for unknown keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EntryOwner {
    Ours,
    Theirs,
}

/// Checks an entry. The error says what is wrong with it.
pub(super) fn check_entry(agent: &Agent, entry: &Json, owner: EntryOwner) -> Result<(), String> {
    let Some(members) = entry.as_object() else { return Err("it is not an object".to_owned()) };
    let has = |key: &str| members.contains_key(key);
    let bypassed = agent.schema.bypass_flag.and_then(|key| members.get(key)).is_some_and(Json::is_boolean);
    if bypassed && owner == EntryOwner::Theirs {
        return Ok(());
    }
    let has_command = has(agent.entry_format.command_key);
    let has_url = url_keys(agent).any(has);
    let (allowed, required) = match (has_command, has_url) {
        (true, true) => return Err("it has both a command and a URL".to_owned()),
        // Agents also have entries of their own kinds and entries that only disable a server. Those are not checked.
        (false, false) if owner == EntryOwner::Theirs && !has("type") => return Ok(()),
        (false, false) => return Err("it has neither a command nor a URL".to_owned()),
        (true, false) => (agent.schema.command_keys, &[][..]),
        (false, true) => (agent.schema.remote_keys, agent.schema.required_remote),
    };
    if let Some(missing) = agent.schema.required.iter().chain(required).find(|key| !has(key)) {
        return Err(format!("it has no `{missing}`"));
    }
    check_members(members, "", allowed, owner)
}

/// Returns the keys that hold a URL.
fn url_keys(agent: &Agent) -> impl Iterator<Item = &'static str> {
    let sse_key = |remote: &RemoteFormat| match remote.sse {
        SseSupport::Type { url_key, .. } => Some(url_key),
        SseSupport::AutoDetected | SseSupport::Unsupported => None,
    };
    let remote = agent.entry_format.remote;
    remote.map(|remote| remote.url_key).into_iter().chain(remote.as_ref().and_then(sse_key))
}

fn check_members(
    members: &Map<String, Json>,
    path: &str,
    allowed: &[&[EntryKey]],
    owner: EntryOwner,
) -> Result<(), String> {
    let find_key = |key: &str| allowed.iter().copied().flatten().find(|(name, _)| *name == key);
    for (key, value) in members {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match find_key(key) {
            Some((_, kind)) => check_value(*kind, value, &path, owner)?,
            None if owner == EntryOwner::Ours => return Err(format!("unknown key `{path}`")),
            None => {}
        }
    }
    Ok(())
}

fn check_value(kind: EntryValueKind, value: &Json, path: &str, owner: EntryOwner) -> Result<(), String> {
    let all_strings = |values: &Vec<Json>| values.iter().all(Json::is_string);
    let all_values =
        |test: fn(&Json) -> bool| value.as_object().is_some_and(|object| object.values().all(test));
    let (is_valid, expected) = match kind {
        EntryValueKind::Any => (true, String::new()),
        EntryValueKind::Text => (value.is_string(), "a string".to_owned()),
        EntryValueKind::HttpUrl => {
            let is_http = |text: &str| text.starts_with("http://") || text.starts_with("https://");
            (value.as_str().is_some_and(is_http), "an HTTP URL".to_owned())
        }
        EntryValueKind::OneOf(choices) => {
            let is_choice = value.as_str().is_some_and(|text| choices.contains(&text));
            (is_choice, format!("one of `{}`", choices.join("`, `")))
        }
        EntryValueKind::TextList => {
            (value.as_array().is_some_and(all_strings), "a list of strings".to_owned())
        }
        EntryValueKind::Argv => {
            let argv = value.as_array().filter(|argv| !argv.is_empty());
            (argv.is_some_and(all_strings), "a list of program and arguments".to_owned())
        }
        EntryValueKind::TextMap => (all_values(Json::is_string), "an object of strings".to_owned()),
        EntryValueKind::ScalarMap => {
            let is_scalar = |value: &Json| value.is_string() || value.is_number() || value.is_null();
            (all_values(is_scalar), "an object of strings and numbers".to_owned())
        }
        EntryValueKind::Number => (value.is_number(), "a number".to_owned()),
        EntryValueKind::Integer => (value.is_u64() || value.is_i64(), "an integer".to_owned()),
        EntryValueKind::Bool => (value.is_boolean(), "`true` or `false`".to_owned()),
        EntryValueKind::Object(keys) => match value.as_object() {
            Some(members) => return check_members(members, path, &[keys], owner),
            None => (false, "an object".to_owned()),
        },
        EntryValueKind::Refused(instead) => return Err(format!("`{path}` is not allowed: {instead}")),
    };
    if is_valid { Ok(()) } else { Err(format!("`{path}` is not {expected}")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agents;

    fn rejection(agent: &str, entry: &Json) -> Option<String> {
        check_entry(Agent::find(agent).unwrap(), entry, EntryOwner::Ours).err()
    }

    /// Checks an invalid entry of each agent.
    #[test]
    fn invalid_entries_are_rejected_for_every_agent() {
        for (agent, entry, expected) in [
            ("claude", json!({"url": "u"}), "it has no `type`"),
            ("claude", json!({"type": "streamableHttp", "url": "u"}), "`type` is not one of"),
            ("codex", json!({"command": "x", "env": {"A": 1}}), "`env` is not an object of strings"),
            ("codex", json!({"url": "u", "bearer_token": "lit"}), "`bearer_token` is not allowed"),
            ("codex", json!({"url": "u", "command": "x"}), "both a command and a URL"),
            ("codex", json!({"command": 5}), "`command` is not a string"),
            (
                "codex",
                json!({"command": "x", "tool_timeout_sec": "30"}),
                "`tool_timeout_sec` is not a number",
            ),
            ("copilot", json!({"type": "local", "command": "x", "tools": "*"}), "`tools` is not a list"),
            ("gemini", json!({"command": "x", "timeout": "1s"}), "`timeout` is not a number"),
            ("gemini", json!({"command": "x", "disabled": true}), "unknown key `disabled`"),
            ("opencode", json!({"command": "node", "args": ["x"]}), "it has no `type`"),
            ("opencode", json!({"type": "local", "command": "node"}), "`command` is not a list"),
            ("opencode", json!({"type": "stdio", "command": ["x"]}), "`type` is not one of `local`"),
            ("goose", json!({"type": "stdio", "cmd": "x", "enabled": true}), "it has no `name`"),
            ("cline", json!({"url": "u"}), "it has no `type`"),
            ("continue", json!({"command": "x"}), "it has no `name`"),
            (
                "continue",
                json!({"name": "n", "url": "u", "requestOptions": {"headers": {"A": 1}}}),
                "`requestOptions.headers` is not an object of strings",
            ),
            ("amp", json!({"command": "x", "args": "y"}), "`args` is not a list of strings"),
            ("crush", json!({"command": "x"}), "it has no `type`"),
            ("crush", json!({"type": "stdio", "command": "x", "timeout": 0.5}), "not an integer"),
            ("qwen", json!({"httpUrl": "u", "headers": []}), "`headers` is not an object"),
            ("augment", json!({"url": 5}), "`url` is not a string"),
            ("claude-desktop", json!({"url": "u"}), "neither a command nor a URL"),
            ("cursor", json!({"url": "u", "type": "streamable"}), "`type` is not one of"),
            ("vscode", json!({"type": "http", "url": "${env:BASE}/mcp"}), "`url` is not an HTTP URL"),
            ("vscode", json!({"command": "x", "env": {"A": {}}}), "`env` is not an object"),
            ("windsurf", json!({"serverUrl": "u", "disabled": "no"}), "`disabled` is not `true` or `false`"),
            ("zed", json!({"command": {"path": "x"}}), "`command` is not a string"),
            ("roo", json!({"type": "streamable-http", "url": "u", "env": {}}), "unknown key `env`"),
            ("jetbrains", json!({"url": "u", "headers": {}}), "unknown key `headers`"),
            ("junie", json!({"url": "u"}), "neither a command nor a URL"),
            ("lm-studio", json!({"command": "x", "cwd": "/"}), "unknown key `cwd`"),
            ("kiro", json!({"command": "x", "disabledTools": "a"}), "`disabledTools` is not a list"),
            ("warp", json!({"command": "x", "cwd": "/"}), "unknown key `cwd`"),
        ] {
            let reason = rejection(agent, &entry);
            assert!(
                reason.as_ref().is_some_and(|reason| reason.contains(expected)),
                "{agent} {entry}: {reason:?}"
            );
        }
        for agent in agents::all() {
            assert!(rejection(agent.id, &json!("x")).is_some_and(|reason| reason.contains("not an object")));
        }
    }

    #[test]
    fn unknown_keys_are_accepted_in_foreign_entries() {
        let check = |entry: &Json| check_entry(Agent::find("codex").unwrap(), entry, EntryOwner::Theirs);
        assert_eq!(check(&json!({"command": "x", "new_key": {"a": 1}})), Ok(()));
        assert_eq!(
            check(&json!({"enabled": false})),
            Ok(()),
            "an entry without command and URL is not checked"
        );
        assert!(check(&json!({"command": "x", "args": [1]})).is_err());
        let opencode = Agent::find("opencode").unwrap();
        assert_eq!(
            check_entry(opencode, &json!({"command": "x", "enabled": true}), EntryOwner::Theirs),
            Ok(())
        );
    }
}
