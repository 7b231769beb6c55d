//! `Node`: one small tree for TOML and JSON alike, in which every key and value knows where it was written. Nothing
//! is checked here beyond syntax.

use std::ops::Range;

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use toml::de::{DeInteger, DeTable, DeValue};

/// A value and the bytes it was written in.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) span: Range<usize>,
    pub(super) value: Value,
}

/// A value of either language.
#[derive(Clone)]
pub(super) enum Value {
    String(String),
    /// A whole number that is not negative, or `None` for any other number.
    Number(Option<u64>),
    Bool(bool),
    Array(Vec<Node>),
    Table(Table),
    /// What no key wants; named for the message.
    Other(&'static str),
}

impl Value {
    /// What it is, as a person would say.
    pub(super) fn kind(&self, json: bool) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Number(_) => "a number",
            Self::Bool(_) => "`true` or `false`",
            Self::Array(_) => "an array",
            Self::Table(_) if json => "an object",
            Self::Table(_) => "a table",
            Self::Other(kind) => kind,
        }
    }
}

/// Keys and values in the order of the file. A key may be there twice: JSON allows it, the reader reports it.
#[derive(Clone, Default)]
pub(super) struct Table(pub(super) Vec<Entry>);

impl Table {
    /// The entries of a key: none, one, or in JSON more.
    pub(super) fn entries<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a Entry> {
        self.0.iter().filter(move |entry| entry.key == key)
    }
}

/// A key, where it starts, and its value.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) at: usize,
    pub(super) value: Node,
    /// What farther layers say in its place, the nearest of them last.
    pub(super) beaten: Vec<Node>,
}

/// Reads a text that starts at a place among others, or lists every mistake in it.
pub(super) fn read(text: &str, start: usize, json: bool) -> Result<Table, Vec<Mistake>> {
    let read = if json { self::json(text) } else { toml(text) };
    match read {
        Ok(mut table) => {
            move_by(start, &mut table);
            Ok(table)
        }
        Err(mut mistakes) => {
            mistakes.iter_mut().for_each(|mistake| mistake.at += start);
            Err(mistakes)
        }
    }
}

fn move_by(start: usize, table: &mut Table) {
    for entry in &mut table.0 {
        entry.at += start;
        move_node(start, &mut entry.value);
    }
}

fn move_node(start: usize, node: &mut Node) {
    (node.span.start, node.span.end) = (node.span.start + start, node.span.end + start);
    match &mut node.value {
        Value::Array(elements) => elements.iter_mut().for_each(|element| move_node(start, element)),
        Value::Table(table) => move_by(start, table),
        _ => {}
    }
}

/// A mistake in the syntax.
pub(super) struct Mistake {
    pub(super) at: usize,
    pub(super) message: String,
    pub(super) hint: String,
}

/// Reads TOML, or lists every mistake in it.
fn toml(text: &str) -> Result<Table, Vec<Mistake>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(toml_table(root.get_ref()));
    }
    let mut mistakes: Vec<_> = errors.iter().map(toml_mistake).collect();
    mistakes.sort_by_key(|mistake| mistake.at);
    mistakes.dedup_by_key(|mistake| mistake.at);
    forget_what_an_open_bracket_swallowed(&mut mistakes);
    Err(mistakes)
}

/// A bracket that is never closed makes a mistake of every line after it; only the first is worth reading.
fn forget_what_an_open_bracket_swallowed(mistakes: &mut Vec<Mistake>) {
    let open = |mistake: &Mistake| matches!(&*mistake.message, "unclosed array" | "unclosed inline table");
    let inside = |mistake: &Mistake| {
        ["array", "inline table", "key-value pairs"].iter().any(|bracket| mistake.message.contains(bracket))
    };
    if mistakes.iter().any(open)
        && let Some(first) = mistakes.iter().position(inside)
    {
        mistakes.truncate(first + 1);
        "a bracket before this is never closed".clone_into(&mut mistakes[first].message);
        "write `]` or `}` where the array or inline table ends".clone_into(&mut mistakes[first].hint);
    }
}

fn toml_mistake(error: &toml::de::Error) -> Mistake {
    let at = error.span().map_or(0, |span| span.start);
    let (message, hint) = match error.message().split_once(", expected ") {
        Some((message, "nothing")) => (message, "leave it out".to_owned()),
        Some((message @ ("string values must be quoted" | "invalid float"), _)) => {
            (message, "put a string in double quotes".to_owned())
        }
        Some((message, expected)) => (message, format!("expected {expected}")),
        None if error.message() == "duplicate key" => {
            ("this key is there twice", "keep one of the two".to_owned())
        }
        None => (
            error.message(),
            "see that every string, bracket and table header before it is closed".to_owned(),
        ),
    };
    Mistake { at, message: message.to_owned(), hint }
}

fn toml_table(table: &DeTable<'_>) -> Table {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, value)| Entry {
            key: key.get_ref().clone().into_owned(),
            at: key.span().start,
            value: toml_node(value),
            beaten: Vec::new(),
        })
        .collect();
    entries.sort_by_key(|entry| entry.at);
    Table(entries)
}

fn toml_node(node: &toml::Spanned<DeValue<'_>>) -> Node {
    let whole = |number: &DeInteger<'_>| u64::from_str_radix(number.as_str(), number.radix()).ok();
    let value = match node.get_ref() {
        DeValue::String(text) => Value::String(text.clone().into_owned()),
        DeValue::Integer(number) => Value::Number(whole(number)),
        DeValue::Float(_) => Value::Number(None),
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(array) => Value::Array(array.iter().map(toml_node).collect()),
        DeValue::Table(table) => Value::Table(toml_table(table)),
    };
    Node { span: node.span(), value }
}

/// Reads JSON with comments and trailing commas.
fn json(text: &str) -> Result<Table, Vec<Mistake>> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    let mistake = |at, message, hint: &str| Err(vec![Mistake { at, message, hint: hint.to_owned() }]);
    match parse_to_ast(text, &CollectOptions::default(), &options).map(|result| result.value) {
        Ok(Some(ast::Value::Object(object))) => Ok(json_table(&object)),
        Ok(None) => Ok(Table::default()),
        Ok(Some(other)) => mistake(
            other.range().start,
            "a config file is one object".to_owned(),
            "write `{\"mcpServers\": {\"NAME\": {\"command\": \"…\"}}}`",
        ),
        Err(error) => {
            let message = error.kind().to_string();
            let mut letters = message.chars();
            let message = letters.next().map(|first| first.to_lowercase().chain(letters).collect());
            let hint = "see that strings are in double quotes, members have commas between them, brackets are closed";
            mistake(error.range().start, message.unwrap_or_default(), hint)
        }
    }
}

fn json_table(object: &ast::Object<'_>) -> Table {
    let entry = |property: &ast::ObjectProp<'_>| Entry {
        key: property.name.as_str().to_owned(),
        at: property.range.start,
        value: json_node(&property.value),
        beaten: Vec::new(),
    };
    Table(object.properties.iter().map(entry).collect())
}

fn json_node(node: &ast::Value<'_>) -> Node {
    let value = match node {
        ast::Value::StringLit(text) => Value::String(text.value.clone().into_owned()),
        ast::Value::NumberLit(number) => Value::Number(number.value.parse().ok()),
        ast::Value::BooleanLit(boolean) => Value::Bool(boolean.value),
        ast::Value::Object(object) => Value::Table(json_table(object)),
        ast::Value::Array(array) => Value::Array(array.elements.iter().map(json_node).collect()),
        ast::Value::NullKeyword(_) => Value::Other("`null`"),
    };
    Node { span: node.range().start..node.range().end, value }
}
