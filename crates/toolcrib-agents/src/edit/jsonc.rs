//! Sets and removes one entry in a JSON text. Comments, order, indentation, commas and line endings of everything else are
//! kept. Works on text and touches no files.

use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use jsonc_parser::{ParseOptions, ast, parse_to_ast};
use serde_json::Value as Json;

use super::entry::{EditError, EntryMembers};

/// JSON dialect that a program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonDialect {
    /// Standard JSON.
    Strict,
    /// JSON with comments and trailing commas.
    Relaxed,
}

fn parse_options(dialect: JsonDialect) -> ParseOptions {
    let relaxed = dialect == JsonDialect::Relaxed;
    ParseOptions {
        allow_comments: relaxed,
        allow_trailing_commas: relaxed,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

/// Parses a text. An empty text is an empty object.
pub(super) fn parse(dialect: JsonDialect, text: &str) -> Result<Json, EditError> {
    let parsed = parse_to_ast(text, &jsonc_parser::CollectOptions::default(), &parse_options(dialect));
    match parsed.map_err(|error| parse_error(text, &error))?.value {
        None => Ok(Json::Object(serde_json::Map::new())),
        Some(value) => to_json(text, &value),
    }
}

/// Returns the text with an entry at a path of keys.
pub(super) fn set_entry(
    dialect: JsonDialect,
    text: &str,
    path: &[&str],
    members: &EntryMembers,
) -> Result<String, EditError> {
    let root = parse_cst(dialect, text)?;
    let Some((name, parents)) = path.split_last() else {
        return Err(EditError::unsupported("the path has no keys"));
    };
    let object = parents.iter().try_fold(root_object(&root)?, |object, key| {
        object.object_value_or_create(key).ok_or_else(|| not_an_object(key))
    })?;
    let value = CstInputValue::Object(
        members.iter().map(|(key, value)| (key.clone(), to_cst_input(value))).collect(),
    );
    match object.get(name) {
        Some(member) => member.set_value(value),
        None => {
            object.append(name, value);
        }
    }
    Ok(root.to_string())
}

/// Returns the text without the entry at a path of keys.
pub(super) fn remove_entry(dialect: JsonDialect, text: &str, path: &[&str]) -> Result<String, EditError> {
    let root = parse_cst(dialect, text)?;
    let Some((name, parents)) = path.split_last() else { return Ok(text.to_owned()) };
    let object = parents.iter().try_fold(root_object(&root)?, |object, key| {
        object.object_value(key).ok_or_else(|| not_an_object(key))
    })?;
    if let Some(member) = object.get(name) {
        member.remove();
    }
    Ok(root.to_string())
}

fn parse_cst(dialect: JsonDialect, text: &str) -> Result<CstRootNode, EditError> {
    CstRootNode::parse(text, &parse_options(dialect)).map_err(|error| parse_error(text, &error))
}

fn root_object(root: &CstRootNode) -> Result<CstObject, EditError> {
    root.object_value_or_create().ok_or_else(|| EditError::unsupported("the file is not a JSON object"))
}

fn not_an_object(key: &str) -> EditError {
    EditError::unsupported(format!("`{key}` is not an object"))
}

/// Converts a parser error, with its message in lower case.
fn parse_error(text: &str, error: &jsonc_parser::errors::ParseError) -> EditError {
    let message = error.kind().to_string();
    let mut chars = message.chars();
    let first = chars.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
    EditError::at_byte(text, error.range().start, format!("{first}{}", chars.as_str()))
}

fn to_json(text: &str, value: &ast::Value<'_>) -> Result<Json, EditError> {
    Ok(match value {
        ast::Value::StringLit(string) => string.value.clone().into(),
        ast::Value::NumberLit(number) => serde_json::from_str(number.value).map_err(|_| {
            EditError::at_byte(text, number.range.start, format!("`{}` is not a number", number.value))
        })?,
        ast::Value::BooleanLit(boolean) => boolean.value.into(),
        ast::Value::NullKeyword(_) => Json::Null,
        ast::Value::Array(array) => {
            array.elements.iter().map(|value| to_json(text, value)).collect::<Result<Vec<_>, _>>()?.into()
        }
        ast::Value::Object(object) => {
            let mut members = serde_json::Map::new();
            for member in &object.properties {
                let key = member.name.as_str().to_owned();
                if members.insert(key.clone(), to_json(text, &member.value)?).is_some() {
                    return Err(EditError::at_byte(
                        text,
                        member.range.start,
                        format!("duplicate key `{key}`"),
                    ));
                }
            }
            Json::Object(members)
        }
    })
}

fn to_cst_input(value: &Json) -> CstInputValue {
    match value {
        Json::Null => CstInputValue::Null,
        Json::Bool(value) => CstInputValue::Bool(*value),
        Json::Number(number) => CstInputValue::Number(number.to_string()),
        Json::String(text) => CstInputValue::String(text.clone()),
        Json::Array(values) => CstInputValue::Array(values.iter().map(to_cst_input).collect()),
        Json::Object(members) => CstInputValue::Object(
            members.iter().map(|(key, value)| (key.clone(), to_cst_input(value))).collect(),
        ),
    }
}
