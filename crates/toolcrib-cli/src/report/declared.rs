//! Declared servers: whether each is on here, why, and where its values come from.

use serde_json::{Value, json};
use toolcrib::config::{Config, DeclaredServer, DeclaredValue, LayeredConfig, TagCondition};
use toolcrib::util::format::closest_match;

use crate::command_error::CommandError;

/// Finds a declared server by name.
pub(crate) fn find_declared<'a>(config: &'a Config, name: &str) -> Result<&'a DeclaredServer, CommandError> {
    let server = config.declared.iter().find(|server| server.id.as_str() == name);
    server.ok_or_else(|| {
        let error = CommandError::usage(format!("no server is called `{name}`"));
        match closest_match(name, config.declared.iter().map(|server| server.id.as_str())) {
            Some(similar) => error.hint(format!("did you mean `{similar}`?")),
            None => error.hint("toolcrib ls"),
        }
    })
}

/// Returns the object of `why --json`.
pub(crate) fn why_json(layered: &LayeredConfig, config: &Config, server: &DeclaredServer) -> Value {
    let active: Vec<&str> = config.tags.active.keys().map(String::as_str).collect();
    let scopes = config.scopes.iter().map(|scope| {
        json!({"name": scope.name, "matched": scope.matched, "fact": scope.reason, "tags": scope.tags,
               "file": scope.origin.file.display().to_string(), "line": scope.origin.line})
    });
    json!({
        "name": server.id.as_str(),
        "active": is_on(server, config),
        "reason": reason(server, config),
        "scopes": scopes.collect::<Vec<_>>(),
        "tags": {"active": active, "wanted": server.when.as_ref().map(condition_json)},
        "values": layered.server_values(&server.id).iter().map(value_json).collect::<Vec<_>>(),
    })
}

/// Returns whether a server is on: nothing is, while the config is refused.
pub(crate) fn is_on(server: &DeclaredServer, config: &Config) -> bool {
    server.active && !config.is_refused()
}

/// Returns why a server is on or off.
pub(crate) fn reason<'a>(server: &'a DeclaredServer, config: &Config) -> &'a str {
    match server.active && config.is_refused() {
        true => "off: the config is refused as a whole",
        false => &server.reason,
    }
}

fn condition_json(condition: &TagCondition) -> Value {
    json!({"any": condition.any, "all": condition.all, "not": condition.not})
}

/// Returns one value with its origin as JSON.
pub(crate) fn value_json(declared: &DeclaredValue) -> Value {
    let overrides = declared.overrides.iter().map(|(value, origin)| {
        json!({"value": value, "file": origin.file.display().to_string(), "line": origin.line})
    });
    json!({
        "key": declared.key,
        "value": declared.value,
        "file": declared.origin.file.display().to_string(),
        "line": declared.origin.line,
        "overrides": overrides.collect::<Vec<_>>(),
        "replaces": declared.replaces.iter().map(value_json).collect::<Vec<_>>(),
        "withheld": declared.withheld.iter().map(value_json).collect::<Vec<_>>(),
    })
}
