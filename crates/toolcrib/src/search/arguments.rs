//! The arguments of a tool with their types, in a few words.

use serde_json::Value;

/// The depth to which schemas are followed.
const MAX_DEPTH: usize = 8;
/// Values of an enumeration that are named instead of their type.
const MAX_VALUES: usize = 4;

/// An argument of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolArgument {
    /// Its name.
    pub name: String,
    /// Its type, such as `string`, `integer[]` or `fast|slow`.
    pub type_name: String,
    /// Whether a call needs it.
    pub is_required: bool,
}

impl std::fmt::Display for ToolArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mark = if self.is_required { "" } else { "?" };
        write!(f, "{}{mark}: {}", self.name, self.type_name)
    }
}

/// Returns the arguments in an input schema: required ones first, in the order in which they are required.
pub fn tool_arguments(schema: &Value) -> Vec<ToolArgument> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object();
    let optional = properties.into_iter().flatten().map(|(name, _)| name.as_str());
    let optional = optional.filter(|name| !required.contains(name));
    let argument = |name: &str, is_required| ToolArgument {
        name: name.to_owned(),
        type_name: type_name(&schema["properties"][name], schema, 0),
        is_required,
    };
    let mut arguments: Vec<ToolArgument> = required.iter().map(|name| argument(name, true)).collect();
    arguments.extend(optional.map(|name| argument(name, false)));
    arguments
}

/// Returns the type of an argument, in one word where possible. `null` is not named beside other types.
fn type_name(schema: &Value, root: &Value, depth: usize) -> String {
    let target = schema["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?));
    let schema = target.unwrap_or(schema);
    if depth > MAX_DEPTH {
        return "any".to_owned();
    }
    let constant = schema.get("const").map(std::slice::from_ref);
    let values = constant.or(schema["enum"].as_array().map(Vec::as_slice)).unwrap_or_default();
    if (1..=MAX_VALUES).contains(&values.len()) {
        return join(values.iter().map(|value| value.as_str().map_or(value.to_string(), str::to_owned)));
    }
    if let Some(choices) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return join(choices.iter().map(|choice| type_name(choice, root, depth + 1)));
    }
    let named = |name: &str| match name {
        "array" => format!("{}[]", type_name(&schema["items"], root, depth + 1)),
        name => name.to_owned(),
    };
    match &schema["type"] {
        Value::String(name) => named(name),
        Value::Array(names) => join(names.iter().filter_map(Value::as_str).map(named)),
        _ if schema["properties"].is_object() => "object".to_owned(),
        _ if !values.is_empty() && values.iter().all(Value::is_string) => "string".to_owned(),
        _ => "any".to_owned(),
    }
}

fn join(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.filter(|name| name != "null").collect();
    names.dedup();
    if names.is_empty() { "any".to_owned() } else { names.join("|") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn types_are_short() {
        let root = json!({"$defs": {"at": {"type": "string"}, "loop": {"items": {"$ref": "#/$defs/loop"}, "type": "array"}}});
        let cases = [
            (json!({"type": "string"}), "string"),
            (json!({"type": "array", "items": {"type": "integer"}}), "integer[]"),
            (json!({"type": "array"}), "any[]"),
            (json!({"enum": ["a", "b"], "type": "string"}), "a|b"),
            (json!({"enum": ["a", "b", "c", "d", "e"]}), "string"),
            (json!({"const": 1}), "1"),
            (json!({"type": ["string", "null"]}), "string"),
            (
                json!({"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/at"}, {"type": "null"}]}),
                "integer|string",
            ),
            (json!({"anyOf": []}), "any"),
            (json!({"properties": {}}), "object"),
            (json!(true), "any"),
        ];
        for (schema, expected) in cases {
            assert_eq!(type_name(&schema, &root, 0), expected, "{schema}");
        }
        assert!(type_name(&json!({"$ref": "#/$defs/loop"}), &root, 0).starts_with("any[]"));
    }

    #[test]
    fn required_arguments_come_first() {
        let schema = json!({"required": ["z", "undeclared"], "properties": {"a": {"type": "string"}, "z": {"type": "integer"}}});
        let texts: Vec<String> = tool_arguments(&schema).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["z: integer", "undeclared: any", "a?: string"]);
    }
}
