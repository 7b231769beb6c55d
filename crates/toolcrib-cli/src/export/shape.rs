//! Whether an entry is one that its agent reads: the keys and types that the agents' own schemas ask for, as far as a row
//! of the table knows them.

use serde_json::Value as Json;

use crate::agents::Agent;

/// Says what is wrong with an entry.
pub(super) fn check(agent: &Agent, entry: &Json) -> Result<(), String> {
    let words = &agent.words;
    let Some(members) = entry.as_object() else { return Err("is not a table of keys".to_owned()) };
    let urls: Vec<&str> = match words.remote {
        None => Vec::new(),
        Some(remote) => match remote.events {
            crate::agents::Events::Type(_, key) => vec![remote.url, key],
            _ => vec![remote.url],
        },
    };
    let (command, url) = (members.get(words.command), urls.iter().find_map(|key| members.get(*key)));
    match (command, url) {
        (Some(_), Some(_)) => return Err("has both a command and an address".to_owned()),
        (None, None) => return Err("has neither a command nor an address".to_owned()),
        (Some(command), None) => check_command(words.argv, command)?,
        (None, Some(url)) if !url.is_string() => return Err("has an address that is no string".to_owned()),
        (None, Some(_)) => {}
    }
    if let Some(word) = members.get("type") {
        let known = [words.stdio, words.remote.and_then(|remote| remote.http)];
        let sse = word.as_str() == Some("sse");
        let typed = known.iter().flatten().any(|known| word.as_str() == Some(known))
            || sse
            || word.as_str() == Some("stdio");
        if !typed && agent.brittle {
            return Err(format!("is of a type that is not known: {word}"));
        }
    } else if words.argv {
        return Err("has no `type`".to_owned());
    }
    if members.contains_key("bearer_token") {
        return Err("has a `bearer_token`, which must be named by `bearer_token_env_var`".to_owned());
    }
    let strings = |value: &Json| value.as_array().is_some_and(|values| values.iter().all(Json::is_string));
    if members.get("args").is_some_and(|args| !strings(args)) {
        return Err("has `args` that are no list of strings".to_owned());
    }
    let flat = |value: &Json| {
        value.as_object().is_some_and(|values| values.values().all(|value| !value.is_object()))
    };
    if members.get(words.env).is_some_and(|env| !flat(env)) {
        return Err(format!("has an `{}` that is no table of strings", words.env));
    }
    Ok(())
}

fn check_command(argv: bool, command: &Json) -> Result<(), String> {
    let fine = match argv {
        true => command.as_array().is_some_and(|argv| !argv.is_empty() && argv.iter().all(Json::is_string)),
        false => command.as_str().is_some_and(|command| !command.is_empty()),
    };
    match (fine, argv) {
        (true, _) => Ok(()),
        (false, true) => Err("has a `command` that is no list of strings".to_owned()),
        (false, false) => Err("has a command that is no string".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn why(agent: &str, entry: &Json) -> Option<String> {
        check(Agent::find(agent).unwrap(), entry).err()
    }

    #[test]
    fn entries_that_an_agent_would_stumble_over_are_known() {
        assert_eq!(why("codex", &json!({"command": "x", "args": ["y"]})), None);
        assert_eq!(why("codex", &json!({"url": "u", "bearer_token_env_var": "T"})), None);
        assert!(why("codex", &json!({"url": "u", "command": "x"})).is_some());
        assert!(why("codex", &json!({"url": "u", "bearer_token": "lit"})).is_some());
        assert!(why("codex", &json!({"command": 5})).is_some());
        assert_eq!(why("opencode", &json!({"type": "local", "command": ["x"]})), None);
        assert!(why("opencode", &json!({"command": "node", "args": ["x"]})).is_some());
        assert!(why("opencode", &json!({"type": "stdio!", "command": ["x"]})).is_some());
        assert_eq!(why("qwen", &json!({"url": "u", "type": "sse"})), None);
        assert!(why("junie", &json!({"url": "u"})).is_some());
    }
}
