//! The arguments of a tool in words: their types, and an example call that the schema accepts.

use serde_json::{Map, Value, json};
use toolcrib::access::schema::Schema;
use toolcrib::search::tool_arguments;

use crate::visible_text::escape_invisible;

/// The depth to which schemas are followed.
const MAX_DEPTH: usize = 8;
/// Values of an enumeration that are shown.
const MAX_SHOWN_VALUES: usize = 12;

/// Returns the tool as a function: `name(a: string, b?: integer)`.
pub(super) fn signature(name: &str, schema: &Value) -> String {
    let arguments: Vec<String> = tool_arguments(schema).iter().map(ToString::to_string).collect();
    escape_invisible(&format!("{name}({})", arguments.join(", "))).into_owned()
}

/// Returns the words of an example call: required arguments with values that their schemas accept. All arguments, if the
/// required ones alone do not fit the schema of the tool.
pub(super) fn example_words(definition: &Value) -> Vec<String> {
    let schema = &definition["inputSchema"];
    let properties = schema["properties"].as_object().into_iter().flatten();
    let required = example_members(schema, required_names(schema).into_iter());
    let checked = Schema::from_definition(&definition.to_string().into());
    let text = Value::Object(required.clone()).to_string();
    let members = match checked.map(|checked| checked.check(text.as_bytes())) {
        Some(Err(_)) => example_members(schema, properties.map(|(name, _)| name.as_str())),
        _ => required,
    };
    let word = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{}={}", quote(name), quote(text)),
        value => format!("{}:={}", quote(name), quote(&value.to_string())),
    };
    members.iter().map(word).collect()
}

fn example_members<'n>(schema: &Value, names: impl Iterator<Item = &'n str>) -> Map<String, Value> {
    let member = |name: &str| (name.to_owned(), example_value(&schema["properties"][name], schema, 0));
    names.map(member).collect()
}

/// Quotes a word for a shell, if that is needed. A NUL character cannot be quoted.
fn quote(word: &str) -> String {
    shlex::try_quote(word).map_or_else(|_| word.to_owned(), Into::into)
}

fn required_names(schema: &Value) -> Vec<&str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns the description of an argument, with its values, its default and its bounds.
pub(super) fn describe(member: &Value) -> String {
    let description = member["description"].as_str().or(member["title"].as_str()).unwrap_or_default();
    let mut parts: Vec<String> = Vec::new();
    if let Some(values) = member["enum"].as_array() {
        let mut shown: Vec<String> = values.iter().take(MAX_SHOWN_VALUES).map(Value::to_string).collect();
        if values.len() > MAX_SHOWN_VALUES {
            shown.push("…".to_owned());
        }
        parts.push(format!("one of {}", shown.join(", ")));
    }
    for (key, label) in [("default", "default"), ("minimum", "at least"), ("maximum", "at most")] {
        if let Some(value) = member.get(key).filter(|value| !value.is_null()) {
            parts.push(format!("{label} {value}"));
        }
    }
    let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
    match (description.is_empty(), parts.is_empty()) {
        (_, true) => description,
        (true, false) => parts.join(", "),
        (false, false) => format!("{description} ({})", parts.join(", ")),
    }
}

/// Follows a reference inside the schema.
fn resolve<'v>(member: &'v Value, root: &'v Value) -> &'v Value {
    let target = member["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?));
    target.unwrap_or(member)
}

/// Returns a value that a schema accepts, as far as its usual keywords tell.
fn example_value(member: &Value, root: &Value, depth: usize) -> Value {
    let member = resolve(member, root);
    if depth > MAX_DEPTH {
        return Value::Null;
    }
    let given =
        [member.get("const"), member["examples"].get(0), member.get("default"), member["enum"].get(0)];
    if let Some(value) = given.into_iter().flatten().find(|value| !value.is_null()) {
        return value.clone();
    }
    if let Some(choice) = member["anyOf"].get(0).or(member["oneOf"].get(0)) {
        return example_value(choice, root, depth + 1);
    }
    let type_name = member["type"].as_str().or(member["type"][0].as_str()).unwrap_or_default();
    match type_name {
        "integer" | "number" => example_number(member),
        "boolean" => json!(true),
        "null" => Value::Null,
        "array" => {
            let count = usize::try_from(member["minItems"].as_u64().unwrap_or(1).clamp(1, 8)).unwrap_or(1);
            Value::Array(vec![example_value(&member["items"], root, depth + 1); count])
        }
        "object" => {
            let required = required_names(member).into_iter();
            let entry =
                |name: &str| (name.to_owned(), example_value(&member["properties"][name], root, depth + 1));
            Value::Object(required.map(entry).collect::<Map<String, Value>>())
        }
        _ => json!(example_string(member)),
    }
}

fn example_number(member: &Value) -> Value {
    let minimum = member["minimum"].as_i64();
    let above = member["exclusiveMinimum"].as_i64().map(|bound| bound + 1);
    let at_most = member["maximum"].as_i64().map(|bound| bound.min(1));
    json!(minimum.or(above).or(at_most).unwrap_or(1))
}

fn example_string(member: &Value) -> String {
    let text = match member["format"].as_str().unwrap_or_default() {
        "date" => "2026-01-31",
        "date-time" => "2026-01-31T12:00:00Z",
        "time" => "12:00:00Z",
        "email" => "name@example.com",
        "uri" | "url" => "https://example.com",
        "uuid" => "00000000-0000-4000-8000-000000000000",
        "ipv4" => "127.0.0.1",
        _ => "text",
    };
    let shortest = usize::try_from(member["minLength"].as_u64().unwrap_or(0).min(256)).unwrap_or(0);
    let longest = usize::try_from(member["maxLength"].as_u64().unwrap_or(1024)).unwrap_or(1024);
    let repeated: String = text.chars().cycle().take(shortest.max(text.len())).collect();
    repeated.chars().take(longest.max(shortest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object",
            "required": ["path", "mode", "tags", "at", "point", "level"],
            "properties": {
                "path": {"type": "string", "description": "Where\n  to look", "minLength": 6},
                "count": {"type": ["integer", "null"], "default": 10, "maximum": 50},
                "mode": {"enum": ["fast", "it's slow"]},
                "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2},
                "at": {"$ref": "#/$defs/At"},
                "point": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number", "minimum": 3}}},
                "level": {"anyOf": [{"type": "integer", "exclusiveMinimum": 4}, {"type": "null"}]},
            },
            "$defs": {"At": {"type": "string", "format": "date"}},
        })
    }

    #[test]
    fn descriptions_have_values_defaults_and_bounds() {
        let properties = &schema()["properties"];
        assert_eq!(describe(&properties["path"]), "Where to look");
        assert_eq!(describe(&properties["count"]), "default 10, at most 50");
        assert_eq!(describe(&properties["mode"]), r#"one of "fast", "it's slow""#);
        let signature = signature("f", &schema());
        assert!(
            signature
                .ends_with("tags: string[], at: string, point: object, level: integer, count?: integer)"),
            "{signature}"
        );
    }

    /// Returns the words of the example, and whether the schema accepts them.
    fn example(schema: &Value) -> (Vec<String>, bool) {
        let definition = json!({"name": "f", "inputSchema": schema});
        let words = shlex::split(&example_words(&definition).join(" ")).unwrap();
        let mut arguments = Map::new();
        for word in &words {
            match word.split_once(":=") {
                Some((name, json)) => arguments.insert(name.to_owned(), serde_json::from_str(json).unwrap()),
                None => {
                    let (name, text) = word.split_once('=').unwrap();
                    arguments.insert(name.to_owned(), json!(text))
                }
            };
        }
        let checked = Schema::from_definition(&definition.to_string().into()).unwrap();
        let is_accepted = checked.check(Value::Object(arguments).to_string().as_bytes()).is_ok();
        (words, is_accepted)
    }

    #[test]
    fn example_is_accepted_by_the_schema() {
        let (words, is_accepted) = example(&schema());
        assert!(is_accepted && words.len() == 6, "{words:?}");
        let one_of_two = json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}]});
        let (words, is_accepted) = example(&one_of_two);
        assert!(is_accepted && words == ["a=text", "b:=1"], "{words:?}");
    }
}
