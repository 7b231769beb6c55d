//! Whether an entry is one that its agent reads: held against what the agent's schema says of it, key by key.

use serde_json::{Map, Value as Json};

use crate::agents::schemas::{Key, Kind};
use crate::agents::{Agent, Events};

/// Whose entry it is: ours may hold nothing that is not known, somebody else's may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Ours,
    Theirs,
}

/// Says what is wrong with an entry, and where in it.
pub(super) fn check(agent: &Agent, entry: &Json, whose: Whose) -> Result<(), String> {
    let Some(members) = entry.as_object() else { return Err("it is not a table of keys".to_owned()) };
    let has = |key: &str| members.contains_key(key);
    let enough = agent.schema.enough.and_then(|key| members.get(key)).is_some_and(Json::is_boolean);
    if enough && whose == Whose::Theirs {
        return Ok(());
    }
    let (command, address) = (has(agent.words.command), addresses(agent).any(has));
    let (parts, needed) = match (command, address) {
        (true, true) => return Err("it has both a command and an address".to_owned()),
        // Agents know entries that are neither, of their own or switched off; those are not ours to judge.
        (false, false) if whose == Whose::Theirs && !has("type") => return Ok(()),
        (false, false) => return Err("it has neither a command nor an address".to_owned()),
        (true, false) => (agent.schema.command, &[][..]),
        (false, true) => (agent.schema.address, agent.schema.needed_with_address),
    };
    if let Some(lacking) = agent.schema.needed.iter().chain(needed).find(|key| !has(key)) {
        return Err(format!("it has no `{lacking}`"));
    }
    members_fit(members, "", parts, whose)
}

/// The keys that addresses stand under.
fn addresses(agent: &Agent) -> impl Iterator<Item = &'static str> {
    let other = |remote: &crate::agents::Remote| match remote.events {
        Events::Type(_, key) => Some(key),
        Events::Found | Events::Unknown => None,
    };
    let remote = agent.words.remote;
    remote.map(|remote| remote.url).into_iter().chain(remote.as_ref().and_then(other))
}

fn members_fit(
    members: &Map<String, Json>,
    path: &str,
    parts: &[&[Key]],
    whose: Whose,
) -> Result<(), String> {
    let known = |key: &str| parts.iter().copied().flatten().find(|(name, _)| *name == key);
    for (key, value) in members {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match known(key) {
            Some((_, kind)) => fits(*kind, value, &path, whose)?,
            None if whose == Whose::Ours => return Err(format!("`{path}` is not a key of its entries")),
            None => {}
        }
    }
    Ok(())
}

fn fits(kind: Kind, value: &Json, path: &str, whose: Whose) -> Result<(), String> {
    let strings = |values: &Vec<Json>| values.iter().all(Json::is_string);
    let all = |fit: fn(&Json) -> bool| value.as_object().is_some_and(|table| table.values().all(fit));
    let (fits, wanted) = match kind {
        Kind::Any => (true, String::new()),
        Kind::Text => (value.is_string(), "a string".to_owned()),
        Kind::Address => {
            let web = |text: &str| text.starts_with("http://") || text.starts_with("https://");
            (value.as_str().is_some_and(web), "an address that begins with `http`".to_owned())
        }
        Kind::Word(words) => {
            let known = value.as_str().is_some_and(|word| words.contains(&word));
            (known, format!("one of `{}`", words.join("`, `")))
        }
        Kind::Texts => (value.as_array().is_some_and(strings), "a list of strings".to_owned()),
        Kind::Argv => {
            let argv = value.as_array().filter(|argv| !argv.is_empty());
            (argv.is_some_and(strings), "a list of the program and its arguments".to_owned())
        }
        Kind::Table => (all(Json::is_string), "a table of strings".to_owned()),
        Kind::Scalars => {
            let scalar = |value: &Json| value.is_string() || value.is_number() || value.is_null();
            (all(scalar), "a table of strings and numbers".to_owned())
        }
        Kind::Number => (value.is_number(), "a number".to_owned()),
        Kind::Whole => (value.is_u64() || value.is_i64(), "a whole number".to_owned()),
        Kind::Flag => (value.is_boolean(), "`true` or `false`".to_owned()),
        Kind::Of(keys) => match value.as_object() {
            Some(members) => return members_fit(members, path, &[keys], whose),
            None => (false, "a table".to_owned()),
        },
        Kind::Never(instead) => return Err(format!("`{path}` is refused by it: {instead}")),
    };
    if fits { Ok(()) } else { Err(format!("`{path}` is not {wanted}")) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agents;

    fn why(agent: &str, entry: &Json) -> Option<String> {
        check(Agent::find(agent).unwrap(), entry, Whose::Ours).err()
    }

    /// An entry for each agent that does not fit, and what is wrong with it.
    #[test]
    fn every_agent_has_entries_that_do_not_fit() {
        for (agent, entry, wrong) in [
            ("claude", json!({"url": "u"}), "it has no `type`"),
            ("claude", json!({"type": "streamableHttp", "url": "u"}), "`type` is not one of"),
            ("codex", json!({"command": "x", "env": {"A": 1}}), "`env` is not a table of strings"),
            ("codex", json!({"url": "u", "bearer_token": "lit"}), "`bearer_token` is refused"),
            ("codex", json!({"url": "u", "command": "x"}), "both a command and an address"),
            ("codex", json!({"command": 5}), "`command` is not a string"),
            (
                "codex",
                json!({"command": "x", "tool_timeout_sec": "30"}),
                "`tool_timeout_sec` is not a number",
            ),
            ("copilot", json!({"type": "local", "command": "x", "tools": "*"}), "`tools` is not a list"),
            ("gemini", json!({"command": "x", "timeout": "1s"}), "`timeout` is not a number"),
            ("gemini", json!({"command": "x", "disabled": true}), "`disabled` is not a key"),
            ("opencode", json!({"command": "node", "args": ["x"]}), "it has no `type`"),
            ("opencode", json!({"type": "local", "command": "node"}), "`command` is not a list"),
            ("opencode", json!({"type": "stdio", "command": ["x"]}), "`type` is not one of `local`"),
            ("goose", json!({"type": "stdio", "cmd": "x", "enabled": true}), "it has no `name`"),
            ("cline", json!({"url": "u"}), "it has no `type`"),
            ("continue", json!({"command": "x"}), "it has no `name`"),
            (
                "continue",
                json!({"name": "n", "url": "u", "requestOptions": {"headers": {"A": 1}}}),
                "`requestOptions.headers` is not a table of strings",
            ),
            ("amp", json!({"command": "x", "args": "y"}), "`args` is not a list of strings"),
            ("crush", json!({"command": "x"}), "it has no `type`"),
            ("crush", json!({"type": "stdio", "command": "x", "timeout": 0.5}), "not a whole number"),
            ("qwen", json!({"httpUrl": "u", "headers": []}), "`headers` is not a table"),
            ("augment", json!({"url": 5}), "`url` is not a string"),
            ("claude-desktop", json!({"url": "u"}), "neither a command nor an address"),
            ("cursor", json!({"url": "u", "type": "streamable"}), "`type` is not one of"),
            ("vscode", json!({"type": "http", "url": "${env:BASE}/mcp"}), "`url` is not an address"),
            ("vscode", json!({"command": "x", "env": {"A": {}}}), "`env` is not a table"),
            ("windsurf", json!({"serverUrl": "u", "disabled": "no"}), "`disabled` is not `true` or `false`"),
            ("zed", json!({"command": {"path": "x"}}), "`command` is not a string"),
            ("roo", json!({"type": "streamable-http", "url": "u", "env": {}}), "`env` is not a key"),
            ("jetbrains", json!({"url": "u", "headers": {}}), "`headers` is not a key"),
            ("junie", json!({"url": "u"}), "neither a command nor an address"),
            ("lm-studio", json!({"command": "x", "cwd": "/"}), "`cwd` is not a key"),
            ("kiro", json!({"command": "x", "disabledTools": "a"}), "`disabledTools` is not a list"),
            ("warp", json!({"command": "x", "cwd": "/"}), "`cwd` is not a key"),
        ] {
            let said = why(agent, &entry);
            assert!(said.as_ref().is_some_and(|said| said.contains(wrong)), "{agent} {entry}: {said:?}");
        }
        for agent in agents::all() {
            assert!(why(agent.id, &json!("x")).is_some_and(|said| said.contains("not a table of keys")));
        }
    }

    #[test]
    fn keys_that_we_do_not_know_are_theirs_to_write() {
        let check = |entry: &Json| check(Agent::find("codex").unwrap(), entry, Whose::Theirs);
        assert_eq!(check(&json!({"command": "x", "new_key": {"a": 1}})), Ok(()));
        assert_eq!(check(&json!({"enabled": false})), Ok(()), "neither is none of our business");
        assert!(check(&json!({"command": "x", "args": [1]})).is_err());
        let opencode = Agent::find("opencode").unwrap();
        assert_eq!(super::check(opencode, &json!({"command": "x", "enabled": true}), Whose::Theirs), Ok(()));
    }
}
