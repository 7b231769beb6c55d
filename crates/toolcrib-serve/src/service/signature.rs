//! One line about a tool: `name(arg: type, other?: type) – what it does`.

use serde_json::Value;
use toolcrib::Tool;
use toolcrib::search::split_summary;

/// Bytes of a line, so that ten of them and the last line are at most 1,200 bytes, about 300 tokens.
const MAX_LINE: usize = 114;
/// Bytes of the signature in a line.
const MAX_SIGNATURE: usize = 76;
/// Arguments in a full signature.
const MAX_ARGUMENTS: usize = 40;
/// Values of an argument that are named.
const MAX_VALUES: usize = 4;

/// The signature of a tool, in full and shortened.
#[derive(Debug)]
pub(super) struct ToolSignature {
    pub(super) name: String,
    pub(super) full: String,
    /// With the required arguments only.
    pub(super) required: String,
}

/// Returns the signature of a tool: required arguments first, in the order of the schema.
pub(super) fn tool_signature(tool: &Tool) -> ToolSignature {
    let schema = tool.input_schema();
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object();
    let argument_type = |name: &str| properties.and_then(|properties| properties.get(name)).map(type_name);
    let first: Vec<String> = required
        .iter()
        .map(|name| format!("{name}: {}", argument_type(name).unwrap_or_else(|| "any".to_owned())))
        .collect();
    let names = properties.into_iter().flatten().filter(|(name, _)| !required.contains(&name.as_str()));
    let optional: Vec<String> =
        names.map(|(name, schema)| format!("{name}?: {}", type_name(schema))).collect();
    let name = tool.public_name.to_string();
    let mut all: Vec<&str> = first.iter().chain(&optional).map(String::as_str).collect();
    if all.len() > MAX_ARGUMENTS {
        all.truncate(MAX_ARGUMENTS);
        all.push("…");
    }
    let mut short: Vec<&str> = first.iter().map(String::as_str).collect();
    if !optional.is_empty() {
        short.push("…");
    }
    ToolSignature {
        full: format!("{name}({})", all.join(", ")),
        required: format!("{name}({})", short.join(", ")),
        name,
    }
}

/// Returns the type of an argument, in one word where possible.
fn type_name(schema: &Value) -> String {
    if let Some(values) = schema["enum"].as_array() {
        let texts: Option<Vec<&str>> = values.iter().map(Value::as_str).collect();
        if let Some(texts) = texts.filter(|texts| !texts.is_empty() && texts.len() <= MAX_VALUES) {
            return texts.join("|");
        }
    }
    match &schema["type"] {
        Value::String(kind) if kind == "array" => match schema.get("items") {
            Some(items) => format!("{}[]", type_name(items)),
            None => "any[]".to_owned(),
        },
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds: Vec<&str> =
                kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect();
            if kinds.is_empty() { "any".to_owned() } else { kinds.join("|") }
        }
        _ => "any".to_owned(),
    }
}

/// Returns one line of bounded length.
pub(super) fn text_line(signature: &ToolSignature, description: &str) -> String {
    let fitting = [&signature.full, &signature.required].into_iter().find(|text| text.len() <= MAX_SIGNATURE);
    let shown = fitting.cloned().unwrap_or_else(|| format!("{}(…)", signature.name));
    let left = MAX_LINE.saturating_sub(shown.len() + " – ".len());
    let summary = summary(split_summary(description).0, left);
    if summary.is_empty() { shown } else { format!("{shown} – {summary}") }
}

/// Returns a text in one line with at most `max` bytes, cut between words.
pub(super) fn summary(text: &str, max: usize) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        let separator = usize::from(!line.is_empty());
        if line.len() + separator + word.len() + "…".len() > max {
            if !line.is_empty() {
                line.push('…');
            }
            return line;
        }
        if separator == 1 {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn line_is_bounded_and_cut_between_words() {
        assert_eq!(summary("one two  three", 12), "one two…");
        assert_eq!(summary("one", 6), "one");
        assert_eq!(summary("äußerstlangeswort", 6), "");
        let long = "a".repeat(64);
        let signature = ToolSignature { full: long.repeat(3), required: long.repeat(2), name: long };
        let line = text_line(&signature, &"word ".repeat(100));
        assert!(line.len() <= MAX_LINE && line.contains("(…) – word"), "{line}");
        let signature =
            ToolSignature { full: "f(a: string)".into(), required: String::new(), name: "f".into() };
        assert_eq!(text_line(&signature, "Does it.\nMore."), "f(a: string) – Does it.");
    }

    #[test]
    fn types_are_short() {
        let cases = [
            (json!({"type": "string"}), "string"),
            (json!({"type": "array", "items": {"type": "integer"}}), "integer[]"),
            (json!({"enum": ["a", "b"], "type": "string"}), "a|b"),
            (json!({"type": ["string", "null"]}), "string"),
            (json!({"anyOf": []}), "any"),
            (json!(true), "any"),
        ];
        for (schema, expected) in cases {
            assert_eq!(type_name(&schema), expected);
        }
    }
}
