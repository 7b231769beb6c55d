//! Keeps what a person changed in the entry of toolcrib when the entry is written again.

use serde_json::{Map, Value as Json};

use super::file_name;
use super::gateway::ENTRY_NAME;
use crate::agents::Agent;
use crate::edit::entry::EntryMembers;

/// The command that an entry of toolcrib starts.
const COMMAND: &str = "stdio";

/// Options of that command that every export writes again.
const OWN_OPTIONS: [&str; 2] = ["--agent", "--config"];

/// The option that an export writes only if it was asked to.
const PROFILE_OPTION: &str = "--profile";

/// An entry of toolcrib in an agent's file.
pub(super) struct WrittenEntry<'a> {
    pub(super) agent: &'a Agent,
    /// The entry as it is in the file.
    pub(super) current: &'a Json,
    /// The members that the last export chose, without what it kept, if they are known.
    pub(super) last: Option<&'a Json>,
}

impl WrittenEntry<'_> {
    /// Returns the members of the next entry with what a person added to the current one: further arguments, variables and
    /// settings, and other values of settings. The program and the options of every export are always the new ones.
    pub(super) fn keep_edits(&self, next: EntryMembers) -> EntryMembers {
        let current = flatten(self.current);
        let last = self.last.map(flatten).unwrap_or_default();
        let command_key = self.agent.entry_format.command_key;
        // Without a command, it is an entry of another kind, which cannot be combined with this one.
        let Some(program) = current.get(command_key).and_then(first_text) else { return next };
        let is_own_program = file_name(program) == Some(ENTRY_NAME);
        let mut members = Vec::new();
        for (key, value) in next {
            let kept = match (current.get(&key), &value) {
                (None, _) => value,
                (Some(_), Json::String(_)) if key == command_key || key == "type" => value,
                (Some(Json::Array(current)), Json::Array(next)) if key == "args" => {
                    Json::Array(keep_arguments(next, current, is_own_program))
                }
                (Some(Json::Array(current)), Json::Array(next)) if key == command_key => {
                    let (Some(program), Some(current)) = (next.first(), current.get(1..)) else { continue };
                    let arguments = keep_arguments(&next[1..], current, is_own_program);
                    Json::Array(std::iter::once(program.clone()).chain(arguments).collect())
                }
                (Some(Json::Array(current)), Json::Array(next)) => {
                    let last = last.get(&key).and_then(Json::as_array);
                    let is_added =
                        |item: &&Json| !next.contains(item) && last.is_none_or(|last| !last.contains(item));
                    Json::Array(next.iter().chain(current.iter().filter(is_added)).cloned().collect())
                }
                (Some(Json::Object(current)), Json::Object(next)) => {
                    let last = last.get(&key).and_then(Json::as_object);
                    let mut all = next.clone();
                    all.extend(added_members(current, next, last));
                    Json::Object(all)
                }
                (Some(current), _) if last.get(&key) == Some(current) => value,
                (Some(current), _) => current.clone(),
            };
            members.push((key, kept));
        }
        let written = members.iter().cloned().collect();
        members.extend(added_members(&current, &written, Some(&last)));
        members
    }
}

/// Returns the members of an entry. Some agents keep the command in an object of its own.
fn flatten(entry: &Json) -> Map<String, Json> {
    let mut members = entry.as_object().cloned().unwrap_or_default();
    if let Some(Json::Object(transport)) = members.remove("transport") {
        members.extend(transport);
    }
    members
}

fn first_text(value: &Json) -> Option<&str> {
    value.as_str().or_else(|| value.as_array()?.first()?.as_str())
}

/// Returns the members of `current` that neither the next entry has nor the last export wrote.
fn added_members(
    current: &Map<String, Json>,
    next: &Map<String, Json>,
    last: Option<&Map<String, Json>>,
) -> Vec<(String, Json)> {
    let is_added = |(key, value): &(&String, &Json)| {
        !next.contains_key(*key) && last.is_none_or(|last| last.get(*key) != Some(*value))
    };
    current.iter().filter(is_added).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns the next arguments with those that a person added. Arguments before the command are those of toolcrib only if it
/// is the program; otherwise another program starts it.
fn keep_arguments(next: &[Json], current: &[Json], is_own_program: bool) -> Vec<Json> {
    let command = current.iter().position(|argument| argument == COMMAND);
    let (before, after) = match command {
        Some(command) => (&current[..command], &current[command + 1..]),
        None => (&[][..], current),
    };
    let before = if is_own_program { before } else { &[] };
    let is_replaced = |option: &str| {
        OWN_OPTIONS.contains(&option)
            || (option == PROFILE_OPTION && next.iter().any(|argument| argument == PROFILE_OPTION))
    };
    let mut kept = next.to_vec();
    let mut arguments = before.iter().chain(after);
    while let Some(argument) = arguments.next() {
        let text = argument.as_str().unwrap_or_default();
        match text.split_once('=') {
            Some((option, _)) if is_replaced(option) => {}
            None if is_replaced(text) => drop(arguments.next()),
            _ => kept.push(argument.clone()),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keep(agent: &str, current: &Json, last: Option<&Json>, next: &Json) -> Json {
        let entry = WrittenEntry { agent: Agent::find(agent).unwrap(), current, last };
        let next = next.as_object().unwrap().clone().into_iter().collect();
        Json::Object(entry.keep_edits(next).into_iter().collect())
    }

    #[test]
    fn added_arguments_stay_and_own_options_are_replaced() {
        let next = json!({"command": "/new/toolcrib", "args": ["stdio", "--agent", "cursor"]});
        for (args, expected) in [
            (json!(["stdio"]), json!(["stdio", "--agent", "cursor"])),
            (
                json!(["stdio", "--profile", "work"]),
                json!(["stdio", "--agent", "cursor", "--profile", "work"]),
            ),
            (json!(["-v", "stdio", "--agent=x"]), json!(["stdio", "--agent", "cursor", "-v"])),
            (
                json!(["stdio", "--config", "/old.toml", "--profile=a"]),
                json!(["stdio", "--agent", "cursor", "--profile=a"]),
            ),
        ] {
            let current = json!({"command": "toolcrib", "args": args});
            let expected = json!({"command": "/new/toolcrib", "args": expected});
            assert_eq!(keep("cursor", &current, None, &next), expected, "{args}");
        }
        let runner = json!({"command": "npx", "args": ["-y", "toolcrib", "stdio", "--profile", "a"]});
        let kept = keep("cursor", &runner, None, &next);
        assert_eq!(kept["args"], json!(["stdio", "--agent", "cursor", "--profile", "a"]));
        let next = json!({"command": "toolcrib", "args": ["stdio", "--profile", "b"]});
        let current = json!({"command": "toolcrib", "args": ["stdio", "--profile", "a", "-q"]});
        assert_eq!(keep("cursor", &current, None, &next)["args"], json!(["stdio", "--profile", "b", "-q"]));
        let next = json!({"type": "local", "command": ["toolcrib", "stdio"], "enabled": true});
        let current = json!({"type": "local", "command": ["x/toolcrib", "stdio", "-q"], "enabled": false});
        let expected = json!({"type": "local", "command": ["toolcrib", "stdio", "-q"], "enabled": false});
        assert_eq!(keep("opencode", &current, None, &next), expected);
    }

    #[test]
    fn settings_of_a_person_stay_and_those_of_an_export_go() {
        let last = json!({"command": "toolcrib", "args": ["stdio"], "env": {"TOOLCRIB_HOME": "/a", "OLD": "$OLD"},
            "disabled": false, "timeout": 30});
        let current = json!({"command": "toolcrib", "args": ["stdio"], "env": {"TOOLCRIB_HOME": "/a", "OLD": "$OLD", "MINE": "1"},
            "disabled": true, "timeout": 30, "note": "mine"});
        let next = json!({"command": "toolcrib", "args": ["stdio"], "env": {"NEW": "$NEW"}, "disabled": false, "timeout": 60});
        let kept = keep("cline", &current, Some(&last), &next);
        let expected = json!({"command": "toolcrib", "args": ["stdio"], "env": {"NEW": "$NEW", "MINE": "1"},
            "disabled": true, "timeout": 60, "note": "mine"});
        assert_eq!(kept, expected);
        assert_eq!(keep("cline", &kept, Some(&next), &next), expected, "also by the next export");
    }

    #[test]
    fn entry_of_another_kind_is_replaced() {
        let next = json!({"command": "toolcrib", "args": ["stdio"]});
        let url = json!({"url": "http://127.0.0.1:7717/mcp"});
        assert_eq!(keep("cursor", &url, None, &next), next);
        let nested = json!({"transport": {"type": "stdio", "command": "toolcrib", "args": ["stdio", "--profile", "a"]}});
        let kept = keep("cline", &nested, None, &next);
        assert_eq!(kept["args"], json!(["stdio", "--profile", "a"]));
        assert!(kept.get("transport").is_none(), "{kept}");
    }
}
