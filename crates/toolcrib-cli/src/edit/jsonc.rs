//! Sets and removes one member in somebody's JSON. Comments, order, indent, commas and line ends of everything else stay as
//! they are. It edits text and touches no file.

use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use jsonc_parser::{ParseOptions, ast, parse_to_ast};
use serde_json::Value as Json;

use super::entry::{Members, Mistake};

/// Which JSON a program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As it was meant.
    Strict,
    /// With comments and trailing commas.
    Relaxed,
}

fn options(manner: Manner) -> ParseOptions {
    let relaxed = manner == Manner::Relaxed;
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

/// What a text says; nothing at all is an empty object.
pub(super) fn read(manner: Manner, text: &str) -> Result<Json, Mistake> {
    let read = parse_to_ast(text, &jsonc_parser::CollectOptions::default(), &options(manner));
    match read.map_err(|error| mistake(text, &error))?.value {
        None => Ok(Json::Object(serde_json::Map::new())),
        Some(value) => value_of(text, &value),
    }
}

/// The text with a member at a path of keys.
pub(super) fn put(manner: Manner, text: &str, path: &[&str], members: &Members) -> Result<String, Mistake> {
    let root = parsed(manner, text)?;
    let Some((name, parents)) = path.split_last() else { return Err(Mistake::unsuitable("there is no key")) };
    let object = parents.iter().try_fold(top(&root)?, |object, key| {
        object.object_value_or_create(key).ok_or_else(|| no_object(key))
    })?;
    let value =
        CstInputValue::Object(members.iter().map(|(key, value)| (key.clone(), input(value))).collect());
    match object.get(name) {
        Some(member) => member.set_value(value),
        None => {
            object.append(name, value);
        }
    }
    Ok(root.to_string())
}

/// The text without the member at a path of keys.
pub(super) fn remove(manner: Manner, text: &str, path: &[&str]) -> Result<String, Mistake> {
    let root = parsed(manner, text)?;
    let Some((name, parents)) = path.split_last() else { return Ok(text.to_owned()) };
    let object = parents
        .iter()
        .try_fold(top(&root)?, |object, key| object.object_value(key).ok_or_else(|| no_object(key)))?;
    if let Some(member) = object.get(name) {
        member.remove();
    }
    Ok(root.to_string())
}

fn parsed(manner: Manner, text: &str) -> Result<CstRootNode, Mistake> {
    CstRootNode::parse(text, &options(manner)).map_err(|error| mistake(text, &error))
}

fn top(root: &CstRootNode) -> Result<CstObject, Mistake> {
    root.object_value_or_create().ok_or_else(|| Mistake::unsuitable("the file is not one object"))
}

fn no_object(key: &str) -> Mistake {
    Mistake::unsuitable(format!("`{key}` is not an object"))
}

fn mistake(text: &str, error: &jsonc_parser::errors::ParseError) -> Mistake {
    let message = error.kind().to_string();
    let mut letters = message.chars();
    let first = letters.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
    Mistake::at(text, error.range().start, format!("{first}{}", letters.as_str()))
}

fn value_of(text: &str, value: &ast::Value<'_>) -> Result<Json, Mistake> {
    Ok(match value {
        ast::Value::StringLit(string) => string.value.clone().into(),
        ast::Value::NumberLit(number) => serde_json::from_str(number.value).map_err(|_| {
            Mistake::at(text, number.range.start, format!("`{}` is not a number", number.value))
        })?,
        ast::Value::BooleanLit(boolean) => boolean.value.into(),
        ast::Value::NullKeyword(_) => Json::Null,
        ast::Value::Array(array) => {
            array.elements.iter().map(|value| value_of(text, value)).collect::<Result<Vec<_>, _>>()?.into()
        }
        ast::Value::Object(object) => {
            let mut members = serde_json::Map::new();
            for member in &object.properties {
                let key = member.name.as_str().to_owned();
                if members.insert(key.clone(), value_of(text, &member.value)?).is_some() {
                    return Err(Mistake::at(text, member.range.start, format!("`{key}` is there twice")));
                }
            }
            Json::Object(members)
        }
    })
}

fn input(value: &Json) -> CstInputValue {
    match value {
        Json::Null => CstInputValue::Null,
        Json::Bool(value) => CstInputValue::Bool(*value),
        Json::Number(number) => CstInputValue::Number(number.to_string()),
        Json::String(text) => CstInputValue::String(text.clone()),
        Json::Array(values) => CstInputValue::Array(values.iter().map(input).collect()),
        Json::Object(members) => {
            CstInputValue::Object(members.iter().map(|(key, value)| (key.clone(), input(value))).collect())
        }
    }
}
