//! The texts of a tool that are searched, and how much each counts.

use serde_json::Value;

use super::index::ToolText;

/// Nesting of a schema that is read.
const MAX_SCHEMA_DEPTH: usize = 6;

/// A part of a tool that a query can match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum SearchField {
    /// The name of the tool.
    Name,
    /// Its title.
    Title,
    /// The name, title, description and tags of its server.
    Server,
    /// The first sentence of its description.
    Summary,
    /// The rest of its description.
    Description,
    /// The names of its arguments.
    ArgumentName,
    /// The descriptions of its arguments.
    ArgumentDescription,
    /// The values that its arguments may have.
    ArgumentValue,
}

/// Influence of a field on the score (BM25F).
#[derive(Debug, Clone, Copy)]
pub(super) struct FieldWeight {
    /// Weight of one occurrence of a word.
    pub(super) weight: f32,
    /// Typical number of words. In a longer text, a word counts for less. The number is fixed, so that the index of a tool does
    /// not depend on other tools.
    pub(super) typical_words: f32,
}

impl SearchField {
    pub(super) const ALL: [Self; 8] = [
        Self::Name,
        Self::Title,
        Self::Server,
        Self::Summary,
        Self::Description,
        Self::ArgumentName,
        Self::ArgumentDescription,
        Self::ArgumentValue,
    ];

    /// Returns the name of the field in JSON and on the terminal.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Title => "title",
            Self::Server => "server",
            Self::Summary => "summary",
            Self::Description => "description",
            Self::ArgumentName => "argument_name",
            Self::ArgumentDescription => "argument_description",
            Self::ArgumentValue => "argument_value",
        }
    }

    /// Returns the weight of the field. `scripts/recall` measures the effect of a change.
    pub(super) fn weight(self) -> FieldWeight {
        match self {
            Self::Name | Self::Title => FieldWeight { weight: 2.0, typical_words: 3.0 },
            Self::Server => FieldWeight { weight: 1.0, typical_words: 2.0 },
            Self::Summary => FieldWeight { weight: 1.0, typical_words: 12.0 },
            Self::Description => FieldWeight { weight: 0.7, typical_words: 12.0 },
            Self::ArgumentName => FieldWeight { weight: 1.0, typical_words: 5.0 },
            Self::ArgumentDescription => FieldWeight { weight: 0.5, typical_words: 20.0 },
            Self::ArgumentValue => FieldWeight { weight: 0.5, typical_words: 5.0 },
        }
    }
}

/// What is known about a server beside its tools.
#[derive(Debug, Clone, Default)]
pub struct ServerText {
    /// Its name.
    pub name: String,
    /// Its title, description and tags.
    pub about: String,
}

/// Calls `visit` with each text of a tool that is searched.
pub(super) fn for_each_field(tool: &ToolText<'_>, mut visit: impl FnMut(SearchField, &str)) {
    visit(SearchField::Server, &tool.server.name);
    visit(SearchField::Server, &tool.server.about);
    let Ok(definition) = serde_json::from_slice::<Value>(tool.definition) else { return };
    let text = |key: &str| definition.get(key).and_then(Value::as_str).unwrap_or_default();
    visit(SearchField::Name, text("name"));
    if !tool.public_name.ends_with(text("name")) {
        // Renamed in the configuration.
        visit(SearchField::Name, tool.public_name);
    }
    let annotated = definition.get("annotations").and_then(|annotations| annotations.get("title"));
    let title = definition.get("title").or(annotated).and_then(Value::as_str);
    visit(SearchField::Title, title.unwrap_or_default());
    let (summary, rest) = split_summary(text("description"));
    visit(SearchField::Summary, summary);
    visit(SearchField::Description, rest);
    if let Some(schema) = definition.get("inputSchema") {
        visit_schema(schema, 0, &mut visit);
    }
}

/// Splits a description after its first sentence or line.
pub fn split_summary(description: &str) -> (&str, &str) {
    let description = description.trim();
    let bytes = description.as_bytes();
    let ends_here = |index: usize| match bytes[index] {
        b'\n' => true,
        b'.' | b'!' | b'?' => bytes.get(index + 1).is_none_or(u8::is_ascii_whitespace),
        _ => false,
    };
    // An end before the fourth byte is an abbreviation or a number.
    match (4..bytes.len()).find(|index| ends_here(*index)) {
        Some(end) => description.split_at(end + 1),
        None => (description, ""),
    }
}

/// Passes the names, descriptions and values of the arguments in a schema.
fn visit_schema(schema: &Value, depth: usize, visit: &mut impl FnMut(SearchField, &str)) {
    let Some(schema) = schema.as_object().filter(|_| depth < MAX_SCHEMA_DEPTH) else { return };
    if let Some(description) = schema.get("description").and_then(Value::as_str) {
        visit(SearchField::ArgumentDescription, description);
    }
    for value in schema.get("enum").and_then(Value::as_array).into_iter().flatten() {
        visit(SearchField::ArgumentValue, value.as_str().unwrap_or_default());
    }
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        visit(SearchField::ArgumentName, name);
        visit_schema(property, depth + 1, visit);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(nested) = schema.get(keyword) {
            visit_schema(nested, depth + 1, visit);
        }
    }
    for keyword in ["anyOf", "oneOf", "allOf"] {
        for nested in schema.get(keyword).and_then(Value::as_array).into_iter().flatten() {
            visit_schema(nested, depth + 1, visit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_ends_with_the_first_sentence_or_line() {
        assert_eq!(split_summary(" Lists files. Sorted. "), ("Lists files.", " Sorted."));
        assert_eq!(split_summary("Reads v1.2 of it\nmore"), ("Reads v1.2 of it\n", "more"));
        assert_eq!(split_summary("ä"), ("ä", ""));
        assert_eq!(split_summary(""), ("", ""));
    }

    #[test]
    fn every_searched_text_is_passed_with_its_field() {
        let definition = serde_json::json!({"name": "n", "title": "t", "description": "First one. Rest", "inputSchema": {
            "properties": {"a": {"description": "da", "enum": ["x", 1]}, "b": {"items": {"anyOf": [{"properties": {"c": {}}}]}}}}});
        let server = ServerText { name: "s".to_owned(), about: "tags".to_owned() };
        let mut found = Vec::new();
        let definition = definition.to_string();
        let tool = ToolText { server: &server, public_name: "s__n", definition: definition.as_bytes() };
        for_each_field(&tool, |field, text| {
            if !text.is_empty() {
                found.push(format!("{} {text}", field.as_str()));
            }
        });
        let expected = "server s,server tags,name n,title t,summary First one.,description  Rest,argument_name a,\
                        argument_description da,argument_value x,argument_name b,argument_name c";
        assert_eq!(found.join(","), expected);
    }
}
