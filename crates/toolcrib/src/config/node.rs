//! Syntax tree of a config file, the same for TOML and JSON. Every key and value knows its place in the text.

use std::ops::Range;

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use toml::de::{DeInteger, DeTable, DeValue};

/// A value and the bytes it was written in.
#[derive(Clone)]
pub(super) struct ConfigNode {
    pub(super) span: Range<usize>,
    pub(super) value: ConfigValue,
}

impl ConfigNode {
    pub(super) fn as_table(&self) -> Option<&ConfigTable> {
        match &self.value {
            ConfigValue::Table(table) => Some(table),
            _ => None,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match &self.value {
            ConfigValue::String(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_array(&self) -> Option<&[Self]> {
        match &self.value {
            ConfigValue::Array(elements) => Some(elements),
            _ => None,
        }
    }

    /// Returns whether two values are the same, wherever they are written.
    pub(super) fn has_value_of(&self, other: &Self) -> bool {
        match (&self.value, &other.value) {
            (ConfigValue::String(one), ConfigValue::String(two)) => one == two,
            (ConfigValue::Number(one), ConfigValue::Number(two)) => one.is_some() && one == two,
            (ConfigValue::Bool(one), ConfigValue::Bool(two)) => one == two,
            (ConfigValue::Array(one), ConfigValue::Array(two)) => {
                one.len() == two.len() && one.iter().zip(two).all(|(one, two)| one.has_value_of(two))
            }
            (ConfigValue::Table(one), ConfigValue::Table(two)) => {
                let is_same = |(one, two): (&TableEntry, &TableEntry)| {
                    one.key == two.key && one.value.has_value_of(&two.value)
                };
                one.0.len() == two.0.len() && one.0.iter().zip(&two.0).all(is_same)
            }
            _ => false,
        }
    }

    /// Returns the value of a key, if this is a table that has it.
    pub(super) fn child(&self, key: &str) -> Option<&Self> {
        self.as_table()?.entries(key).next().map(|entry| &entry.value)
    }
}

/// A TOML or JSON value.
#[derive(Clone)]
pub(super) enum ConfigValue {
    String(String),
    /// A whole number that is not negative, or `None` for any other number.
    Number(Option<u64>),
    Bool(bool),
    Array(Vec<ConfigNode>),
    Table(ConfigTable),
    /// A value that no key accepts, with a description for messages.
    Other(&'static str),
}

impl ConfigValue {
    /// Returns a description for messages, such as `a string`.
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

/// Entries in the order of the file. JSON allows duplicate keys; the reader reports them.
#[derive(Clone, Default)]
pub(super) struct ConfigTable(pub(super) Vec<TableEntry>);

impl ConfigTable {
    /// Returns the entries of a key: none, one, or in JSON more.
    pub(super) fn entries<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a TableEntry> {
        self.0.iter().filter(move |entry| entry.key == key)
    }

    /// Returns the value at a path of keys.
    pub(super) fn find(&self, path: &[&str]) -> Option<&ConfigNode> {
        let (first, rest) = path.split_first()?;
        let node = &self.entries(first).next()?.value;
        if rest.is_empty() { Some(node) } else { node.as_table()?.find(rest) }
    }

    /// Returns the tables of all entries with a key.
    pub(super) fn tables_mut<'a>(&'a mut self, key: &str) -> impl Iterator<Item = &'a mut ConfigTable> {
        let entries = self.0.iter_mut().filter(move |entry| entry.key == key);
        entries.filter_map(|entry| match &mut entry.value.value {
            ConfigValue::Table(table) => Some(table),
            _ => None,
        })
    }
}

/// A key, the offset where it starts, and its value.
#[derive(Clone)]
pub(super) struct TableEntry {
    pub(super) key: String,
    pub(super) offset: usize,
    pub(super) value: ConfigNode,
    /// Values of farther layers that this one overrides, the nearest last.
    pub(super) overridden: Vec<ConfigNode>,
    /// Keys of farther layers that this one replaces, such as `command` by `url`.
    pub(super) replaced: Vec<TableEntry>,
    /// Keys of farther layers that are not used because a project sets this one.
    pub(super) withheld: Vec<TableEntry>,
}

impl TableEntry {
    /// Creates an entry at the place of its value.
    pub(super) fn new(key: impl Into<String>, value: ConfigNode) -> Self {
        let offset = value.span.start;
        Self {
            key: key.into(),
            offset,
            value,
            overridden: Vec::new(),
            replaced: Vec::new(),
            withheld: Vec::new(),
        }
    }
}

/// A syntax error.
pub(super) struct SyntaxError {
    pub(super) offset: usize,
    pub(super) message: String,
    pub(super) hint: String,
}

/// Parses a text whose first byte has the offset `start`, or returns every syntax error in it.
pub(super) fn parse(text: &str, start: usize, json: bool) -> Result<ConfigTable, Vec<SyntaxError>> {
    let parsed = if json { parse_json(text) } else { parse_toml(text) };
    match parsed {
        Ok(mut table) => {
            shift_table(start, &mut table);
            Ok(table)
        }
        Err(mut errors) => {
            errors.iter_mut().for_each(|error| error.offset += start);
            Err(errors)
        }
    }
}

fn shift_table(start: usize, table: &mut ConfigTable) {
    for entry in &mut table.0 {
        entry.offset += start;
        shift_node(start, &mut entry.value);
    }
}

fn shift_node(start: usize, node: &mut ConfigNode) {
    node.span.start += start;
    node.span.end += start;
    match &mut node.value {
        ConfigValue::Array(elements) => elements.iter_mut().for_each(|element| shift_node(start, element)),
        ConfigValue::Table(table) => shift_table(start, table),
        _ => {}
    }
}

fn parse_toml(text: &str) -> Result<ConfigTable, Vec<SyntaxError>> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(toml_table(root.get_ref()));
    }
    let mut errors: Vec<_> = errors.iter().map(toml_error).collect();
    errors.sort_by_key(|error| error.offset);
    errors.dedup_by_key(|error| error.offset);
    truncate_after_open_bracket(&mut errors);
    Err(errors)
}

/// Removes the errors that follow from an unclosed bracket: the parser reports one for every line after it.
fn truncate_after_open_bracket(errors: &mut Vec<SyntaxError>) {
    let is_unclosed =
        |error: &SyntaxError| matches!(&*error.message, "unclosed array" | "unclosed inline table");
    let is_inside = |error: &SyntaxError| {
        ["array", "inline table", "key-value pairs"].iter().any(|bracket| error.message.contains(bracket))
    };
    if errors.iter().any(is_unclosed)
        && let Some(first) = errors.iter().position(is_inside)
    {
        errors.truncate(first + 1);
        "a bracket before this is not closed".clone_into(&mut errors[first].message);
        "write `]` or `}` at the end of the array or inline table".clone_into(&mut errors[first].hint);
    }
}

fn toml_error(error: &toml::de::Error) -> SyntaxError {
    let offset = error.span().map_or(0, |span| span.start);
    let (message, hint) = match error.message().split_once(", expected ") {
        Some((message, "nothing")) => (message, "remove it".to_owned()),
        Some((message @ ("string values must be quoted" | "invalid float"), _)) => {
            (message, "put a string in double quotes".to_owned())
        }
        Some((message, expected)) => (message, format!("expected {expected}")),
        None if error.message() == "duplicate key" => {
            ("this key is already defined", "remove one of the two".to_owned())
        }
        None => (
            error.message(),
            "check that every string, bracket and table header before it is closed".to_owned(),
        ),
    };
    SyntaxError { offset, message: message.to_owned(), hint }
}

fn toml_table(table: &DeTable<'_>) -> ConfigTable {
    let mut entries: Vec<_> = table
        .iter()
        .map(|(key, value)| TableEntry {
            offset: key.span().start,
            ..TableEntry::new(key.get_ref().clone(), toml_node(value))
        })
        .collect();
    entries.sort_by_key(|entry| entry.offset);
    ConfigTable(entries)
}

fn toml_node(node: &toml::Spanned<DeValue<'_>>) -> ConfigNode {
    let to_u64 = |number: &DeInteger<'_>| u64::from_str_radix(number.as_str(), number.radix()).ok();
    let value = match node.get_ref() {
        DeValue::String(text) => ConfigValue::String(text.clone().into_owned()),
        DeValue::Integer(number) => ConfigValue::Number(to_u64(number)),
        DeValue::Float(_) => ConfigValue::Number(None),
        DeValue::Boolean(value) => ConfigValue::Bool(*value),
        DeValue::Datetime(_) => ConfigValue::Other("a date"),
        DeValue::Array(array) => ConfigValue::Array(array.iter().map(toml_node).collect()),
        DeValue::Table(table) => ConfigValue::Table(toml_table(table)),
    };
    ConfigNode { span: node.span(), value }
}

/// Parses JSON with comments and trailing commas.
fn parse_json(text: &str) -> Result<ConfigTable, Vec<SyntaxError>> {
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
    let fail =
        |offset, message, hint: &str| Err(vec![SyntaxError { offset, message, hint: hint.to_owned() }]);
    match parse_to_ast(text, &CollectOptions::default(), &options).map(|result| result.value) {
        Ok(Some(ast::Value::Object(object))) => Ok(json_table(&object)),
        Ok(None) => Ok(ConfigTable::default()),
        Ok(Some(other)) => fail(
            other.range().start,
            "a config file must be one object".to_owned(),
            "write `{\"mcpServers\": {\"NAME\": {\"command\": \"…\"}}}`",
        ),
        Err(error) => {
            let message = error.kind().to_string();
            let mut letters = message.chars();
            let message = letters.next().map(|first| first.to_lowercase().chain(letters).collect());
            let hint = "check that strings are in double quotes, members are separated by commas and brackets are closed";
            fail(error.range().start, message.unwrap_or_default(), hint)
        }
    }
}

fn json_table(object: &ast::Object<'_>) -> ConfigTable {
    let entry = |property: &ast::ObjectProp<'_>| TableEntry {
        offset: property.range.start,
        ..TableEntry::new(property.name.as_str(), json_node(&property.value))
    };
    ConfigTable(object.properties.iter().map(entry).collect())
}

fn json_node(node: &ast::Value<'_>) -> ConfigNode {
    let value = match node {
        ast::Value::StringLit(text) => ConfigValue::String(text.value.clone().into_owned()),
        ast::Value::NumberLit(number) => ConfigValue::Number(number.value.parse().ok()),
        ast::Value::BooleanLit(boolean) => ConfigValue::Bool(boolean.value),
        ast::Value::Object(object) => ConfigValue::Table(json_table(object)),
        ast::Value::Array(array) => ConfigValue::Array(array.elements.iter().map(json_node).collect()),
        ast::Value::NullKeyword(_) => ConfigValue::Other("`null`"),
    };
    ConfigNode { span: node.range().start..node.range().end, value }
}
