//! Extensions of the protocol: what a side announces, and which messages belong to them.
//!
//! The names of an extension's methods cannot be derived from its key. So a message belongs to an extension if the
//! protocol itself does not define its method, and it is passed on if the receiver has announced any extension.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::protocol::json::object::Object;

/// The extension that lets a server respond to a stateless client with a task. The gateway translates it itself.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

/// The extension that serves skills.
pub const SKILLS: &str = "io.modelcontextprotocol/skills";

/// Lists the skills of a server.
pub const LIST_SKILLS: &str = "skills/list";
/// Returns one skill of a server.
pub const GET_SKILL: &str = "skills/get";
/// Lists the direct children of a directory resource.
pub const READ_DIRECTORY: &str = "resources/directory/read";

/// The members of a capabilities object that announce extensions.
pub(super) const MEMBERS: [&str; 2] = ["extensions", "experimental"];

/// The requests that the protocol itself defines, in any revision and direction.
const CORE_REQUESTS: [&str; 23] = [
    "initialize",
    "ping",
    "server/discover",
    "tools/list",
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "subscriptions/listen",
    "logging/setLevel",
    "completion/complete",
    "tasks/get",
    "tasks/update",
    "tasks/result",
    "tasks/cancel",
    "tasks/list",
    "sampling/createMessage",
    "elicitation/create",
    "roots/list",
];

/// The notifications that the protocol itself defines, in any revision and direction.
const CORE_NOTIFICATIONS: [&str; 13] = [
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/message",
    "notifications/tools/list_changed",
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/resources/updated",
    "notifications/roots/list_changed",
    "notifications/subscriptions/acknowledged",
    "notifications/elicitation/complete",
    "notifications/tasks",
    "notifications/tasks/status",
];

/// Returns whether a request belongs to an extension.
pub fn is_extension_request(method: &str) -> bool {
    !CORE_REQUESTS.contains(&method) && !method.starts_with("notifications/")
}

/// Returns whether a notification belongs to an extension.
pub fn is_extension_notification(method: &str) -> bool {
    !CORE_NOTIFICATIONS.contains(&method) && !CORE_REQUESTS.contains(&method)
}

/// Returns the keys of all extensions that a capabilities object announces, except [`TASKS`].
pub fn announced_extensions(capabilities: &Bytes) -> Vec<String> {
    let Ok(object) = Object::parse(capabilities) else { return Vec::new() };
    let parts = MEMBERS.iter().filter_map(|member| Object::parse(object.get(member)?).ok());
    let mut keys = Vec::new();
    for part in parts {
        keys.extend(part.iter().map(|(key, _)| key.to_owned()).filter(|key| key != TASKS));
    }
    keys
}

/// Returns whether a method can be told to belong to the extension with this key: `chat/say` and
/// `notifications/chat/new` to `com.example/chat`.
pub fn is_method_of(method: &str, key: &str) -> bool {
    let method = method.strip_prefix("notifications/").unwrap_or(method);
    let name = key.rsplit_once('/').map_or(key, |(_, name)| name);
    let starts_with = |prefix: &str| method.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    starts_with(name) || starts_with(key)
}

/// Adds the extensions of several servers to the capabilities that a client is told. An extension that servers announce
/// with different values is left out, because one value would be wrong for some of them. [`TASKS`] is left out too.
pub fn merge_extensions(capabilities: &mut Value, declared: &[&Bytes]) {
    for member in MEMBERS {
        let mut values: BTreeMap<String, Option<Value>> = BTreeMap::new();
        for declared in declared {
            let object = Object::parse(declared).unwrap_or_default();
            let announced = object.get(member).and_then(|raw| serde_json::from_slice(raw).ok());
            let announced: Map<String, Value> = announced.unwrap_or_default();
            for (key, value) in announced {
                let merged = values.entry(key).or_insert_with(|| Some(value.clone()));
                if merged.as_ref() != Some(&value) {
                    *merged = None;
                }
            }
        }
        let merged = values.into_iter().filter(|(key, _)| key != TASKS);
        for (key, value) in merged.filter_map(|(key, value)| Some((key, value?))) {
            capabilities[member][key] = value;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_methods_outside_the_protocol_belong_to_extensions() {
        assert!(is_extension_request("skills/list") && is_extension_request("x"));
        for core in ["tools/call", "roots/list", "notifications/x", "tasks/get"] {
            assert!(!is_extension_request(core), "{core}");
        }
        assert!(is_extension_notification("notifications/chat/new") && is_extension_notification("x/y"));
        for core in ["notifications/initialized", "notifications/tasks", "tools/call"] {
            assert!(!is_extension_notification(core), "{core}");
        }
    }

    #[test]
    fn announced_extensions_are_those_beside_tasks() {
        let keys = |text: &'static str| announced_extensions(&Bytes::from_static(text.as_bytes()));
        let both = r#"{"extensions":{"io.modelcontextprotocol/tasks":{},"a/b":{}},"experimental":{"c":1}}"#;
        assert_eq!(keys(both), ["a/b", "c"]);
        for none in
            ["7", "{}", r#"{"extensions":7}"#, r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#]
        {
            assert!(keys(none).is_empty(), "{none}");
        }
    }

    #[test]
    fn method_names_its_extension_by_name_or_key() {
        for method in ["chat/say", "notifications/chat/new", "com.example/chat/say"] {
            assert!(is_method_of(method, "com.example/chat"), "{method}");
        }
        for method in ["chats/say", "chat", "other/chat/say", "example/say"] {
            assert!(!is_method_of(method, "com.example/chat"), "{method}");
        }
    }

    #[test]
    fn merged_extensions_have_one_value() {
        let declared = [
            r#"{"extensions":{"a":{"x":1},"both":{"y":[1]},"odd":{}},"experimental":{"e":{}}}"#,
            r#"{"extensions":{"both":{ "y": [1] },"odd":{"z":1},"io.modelcontextprotocol/tasks":{}}}"#,
            r#"{"extensions":7}"#,
            "7",
        ]
        .map(|text| Bytes::from_static(text.as_bytes()));
        let mut capabilities = json!({"tools": {}});
        merge_extensions(&mut capabilities, &declared.each_ref());
        let expected = json!({"tools": {}, "extensions": {"a": {"x": 1}, "both": {"y": [1]}}, "experimental": {"e": {}}});
        assert_eq!(capabilities, expected);
        let mut none = json!({"tools": {}});
        merge_extensions(&mut none, &[]);
        assert_eq!(none, json!({"tools": {}}));
    }
}
