//! `TomlFile`: sets and removes values in somebody's TOML. Comments, order, blank lines, line ends and the byte order mark
//! of everything else stay as they are. It edits text and touches no file.

#[cfg(test)]
mod tests;

use serde_json::Value as Json;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};

const BOM: char = '\u{feff}';

/// Somebody's TOML.
pub(crate) struct TomlFile {
    written: String,
    document: DocumentMut,
}

/// Why a file cannot be edited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum BadToml {
    /// It is no TOML; at the line and column, from 1.
    Syntax {
        /// The line.
        line: usize,
        /// The column, in characters.
        column: usize,
        /// What is wrong.
        message: String,
    },
    /// What stands at this key is no table, so nothing can be put below it.
    NoTable(String),
    /// A value that TOML has no word for.
    Unspeakable(String),
}

impl std::fmt::Display for BadToml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Syntax { line, column, message } => write!(f, "{line}:{column}: {message}"),
            Self::NoTable(key) => write!(f, "`{key}` is not a table"),
            Self::Unspeakable(key) => write!(f, "the value of `{key}` cannot be written in TOML"),
        }
    }
}

impl std::error::Error for BadToml {}

impl TomlFile {
    /// Reads a text.
    pub(crate) fn parse(written: &str) -> Result<Self, BadToml> {
        let text = written.strip_prefix(BOM).unwrap_or(written);
        let document = text.parse::<DocumentMut>().map_err(|error| {
            let at = error.span().map_or(0, |span| span.start).min(text.len());
            let before = &text[..text.floor_char_boundary(at)];
            let line_start = before.rfind('\n').map_or(0, |end| end + 1);
            BadToml::Syntax {
                line: before.matches('\n').count() + 1,
                column: before[line_start..].chars().count() + 1,
                message: error.message().replace('\n', ", "),
            }
        })?;
        Ok(Self { written: written.to_owned(), document })
    }

    /// Whether something stands at a path of keys.
    pub(crate) fn has(&self, path: &[&str]) -> bool {
        self.item(path).is_some()
    }

    /// The keys of the table at a path, in the order of the file.
    pub(crate) fn keys(&self, path: &[&str]) -> Vec<String> {
        let table = self.item(path).and_then(Item::as_table_like);
        table.map(|table| table.iter().map(|(key, _)| key.to_owned()).collect()).unwrap_or_default()
    }

    /// What stands at a path of keys; dates as text.
    pub(crate) fn get(&self, path: &[&str]) -> Option<Json> {
        self.item(path).map(to_json)
    }

    fn item(&self, path: &[&str]) -> Option<&Item> {
        path.iter().try_fold(self.document.as_item(), |item, key| item.as_table_like()?.get(key))
    }

    /// Puts a value at a path of keys, in place of what is there; tables on the way are made. An object becomes an inline
    /// table. A value that is there already is not touched.
    pub(crate) fn set(&mut self, path: &[&str], value: &Json) -> Result<(), BadToml> {
        let Some((last, parents)) = path.split_last() else { return Err(BadToml::NoTable(String::new())) };
        if self.item(path).is_some_and(|item| to_json(item) == *value) {
            return Ok(());
        }
        let mut new = to_toml(value).ok_or_else(|| BadToml::Unspeakable(path.join(".")))?;
        self.make_table(parents)?;
        let table = self.table(parents).ok_or_else(|| BadToml::NoTable(parents.join(".")))?;
        match table.get_mut(last) {
            Some(Item::Value(old)) => {
                *new.decor_mut() = old.decor().clone();
                *old = new;
            }
            Some(other) => *other = Item::Value(new),
            None => {
                table.insert(last, Item::Value(new));
            }
        }
        Ok(())
    }

    /// Removes what stands at a path of keys, with the comment right above it; whether there was anything.
    pub(crate) fn remove(&mut self, path: &[&str]) -> bool {
        let Some((last, parents)) = path.split_last() else { return false };
        let Some(item) = self.item(path) else { return false };
        let kept = item.as_table().map(comments_apart).unwrap_or_default();
        let next = item.as_table().and_then(|table| self.after(table));
        let Some(table) = self.table(parents) else { return false };
        if table.remove(last).is_none() {
            return false;
        }
        if !kept.is_empty() {
            self.put_before(next, &kept);
        }
        true
    }

    /// The text with every change in it.
    pub(crate) fn render(&self) -> String {
        let plain = self.written.strip_prefix(BOM).unwrap_or(&self.written);
        let bom = if plain.len() < self.written.len() { "\u{feff}" } else { "" };
        format!("{bom}{}", super::lines::with_ends_of(plain, &self.document.to_string()))
    }

    fn table(&mut self, path: &[&str]) -> Option<&mut dyn TableLike> {
        path.iter()
            .try_fold(self.document.as_item_mut(), |item, key| item.as_table_like_mut()?.get_mut(key))?
            .as_table_like_mut()
    }

    /// Makes the tables of a path. A new one is put behind its neighbours of the same parent.
    fn make_table(&mut self, path: &[&str]) -> Result<(), BadToml> {
        for depth in 1..=path.len() {
            let (parents, key) = (&path[..depth - 1], path[depth - 1]);
            if let Some(item) = self.item(&path[..depth]) {
                if !item.is_table_like() {
                    return Err(BadToml::NoTable(path[..depth].join(".")));
                }
                continue;
            }
            let mut new = Table::new();
            new.set_implicit(depth < path.len());
            if depth == path.len() && !self.written.trim().is_empty() {
                self.place(&mut new, parents);
            }
            let inline = self.item(parents).is_some_and(Item::is_inline_table);
            let table = self.table(parents).ok_or_else(|| BadToml::NoTable(parents.join(".")))?;
            let new = if inline { Item::Value(InlineTable::new().into()) } else { Item::Table(new) };
            table.insert(key, new);
        }
        Ok(())
    }

    /// Says where a new table stands: a blank line below the last one of its parent. At the end of the file it stands below
    /// the last comment, too.
    fn place(&mut self, new: &mut Table, parents: &[&str]) {
        let (mut all, mut siblings) = (Vec::new(), Vec::new());
        positions(self.document.as_table(), &mut all);
        if let Some(parent) = self.item(parents).and_then(Item::as_table) {
            positions(parent, &mut siblings);
        }
        let last = all.iter().max().copied();
        let position = siblings.iter().max().copied().or(last);
        new.set_position(position.or(Some(0)));
        new.decor_mut().set_prefix("\n");
        if position == last {
            let trailing = self.document.trailing().as_str().unwrap_or_default().to_owned();
            if !trailing.trim().is_empty() {
                let end = if trailing.ends_with('\n') { "" } else { "\n" };
                new.decor_mut().set_prefix(format!("{trailing}{end}\n"));
                self.document.set_trailing("");
            }
        }
    }

    /// The position of the table that stands behind another one in the file.
    fn after(&self, table: &Table) -> Option<isize> {
        let (mut all, mut own) = (Vec::new(), Vec::new());
        positions(self.document.as_table(), &mut all);
        positions(table, &mut own);
        let last = own.iter().max().copied()?;
        all.into_iter().filter(|position| *position > last).min()
    }

    fn put_before(&mut self, position: Option<isize>, comments: &str) {
        let next = position.and_then(|position| at_position(self.document.as_table_mut(), position));
        match next {
            Some(table) => {
                let own = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
                let both = format!("{comments}{own}");
                table.decor_mut().set_prefix(both);
            }
            None => {
                let own = self.document.trailing().as_str().unwrap_or_default().to_owned();
                self.document.set_trailing(format!("{comments}{own}"));
            }
        }
    }
}

/// The comments above a table that a blank line keeps apart from it: they are about more than the table.
fn comments_apart(table: &Table) -> String {
    let above = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
    let mut end = 0;
    let mut passed = 0;
    for line in above.split_inclusive('\n') {
        passed += line.len();
        if line.trim().is_empty() && above[..passed].contains('#') {
            end = passed;
        }
    }
    above[..end].trim_end_matches(['\n', '\r', ' ', '\t']).to_owned() + if end > 0 { "\n" } else { "" }
}

fn positions(table: &Table, found: &mut Vec<isize>) {
    found.extend(table.position());
    for (_, item) in table.iter() {
        match item {
            Item::Table(table) => positions(table, found),
            Item::ArrayOfTables(tables) => tables.iter().for_each(|table| positions(table, found)),
            _ => {}
        }
    }
}

fn at_position(table: &mut Table, position: isize) -> Option<&mut Table> {
    if table.position() == Some(position) && !table.is_implicit() {
        return Some(table);
    }
    table.iter_mut().find_map(|(_, item)| match item {
        Item::Table(table) => at_position(table, position),
        Item::ArrayOfTables(tables) => tables.iter_mut().find_map(|table| at_position(table, position)),
        _ => None,
    })
}

fn to_toml(value: &Json) -> Option<Value> {
    Some(match value {
        Json::Null => return None,
        Json::Bool(value) => (*value).into(),
        Json::String(text) => text.as_str().into(),
        Json::Number(number) => match number.as_i64() {
            Some(number) => number.into(),
            None => number.as_f64()?.into(),
        },
        Json::Array(values) => Value::Array(values.iter().map(to_toml).collect::<Option<Array>>()?),
        Json::Object(members) => {
            let mut table = InlineTable::new();
            for (key, value) in members {
                table.insert(key, to_toml(value)?);
            }
            Value::InlineTable(table)
        }
    })
}

fn to_json(item: &Item) -> Json {
    match item {
        Item::None => Json::Null,
        Item::Value(value) => value_to_json(value),
        Item::Table(table) => table
            .iter()
            .map(|(key, item)| (key.to_owned(), to_json(item)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Item::ArrayOfTables(tables) => {
            tables.iter().map(|table| to_json(&Item::Table(table.clone()))).collect::<Vec<_>>().into()
        }
    }
}

fn value_to_json(value: &Value) -> Json {
    match value {
        Value::String(text) => text.value().as_str().into(),
        Value::Integer(number) => (*number.value()).into(),
        Value::Float(number) => (*number.value()).into(),
        Value::Boolean(value) => (*value.value()).into(),
        Value::Datetime(date) => date.value().to_string().into(),
        Value::Array(values) => values.iter().map(value_to_json).collect::<Vec<_>>().into(),
        Value::InlineTable(table) => {
            let members = table.iter().map(|(key, value)| (key.to_owned(), value_to_json(value)));
            members.collect::<serde_json::Map<_, _>>().into()
        }
    }
}
