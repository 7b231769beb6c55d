//! Sets and removes values in a TOML text. Comments, order, blank lines, line endings and the byte order mark are kept.
//! Works on text and touches no files.

#[cfg(test)]
mod tests;

use serde_json::Value as Json;
use toml_edit::{Array, DocumentMut, InlineTable, Item, Table, TableLike, Value};
use toolcrib::util::maps::collect_map;

const BOM: char = '\u{feff}';

/// A TOML text that is being edited.
#[derive(Debug)]
pub struct TomlFile {
    source: String,
    document: DocumentMut,
}

/// Reason why a text cannot be parsed or edited.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TomlEditError {
    /// Invalid TOML. Line and column count from 1, the column in characters.
    Syntax {
        /// Line of the error.
        line: usize,
        /// Column of the error.
        column: usize,
        /// The parser's message.
        message: String,
    },
    /// The value at this key is not a table.
    NotATable(String),
    /// The value for this key does not exist in TOML.
    NotRepresentable(String),
}

impl std::fmt::Display for TomlEditError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Syntax { line, column, message } => write!(f, "{line}:{column}: {message}"),
            Self::NotATable(key) => write!(f, "`{key}` is not a table"),
            Self::NotRepresentable(key) => write!(f, "the value of `{key}` cannot be written in TOML"),
        }
    }
}

impl std::error::Error for TomlEditError {}

impl TomlFile {
    /// Parses a text.
    ///
    /// # Errors
    ///
    /// Fails if the text is not valid TOML.
    pub fn parse(source: &str) -> Result<Self, TomlEditError> {
        let text = source.strip_prefix(BOM).unwrap_or(source);
        let document = text.parse::<DocumentMut>().map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start).min(text.len());
            let before = &text[..text.floor_char_boundary(offset)];
            let line_start = before.rfind('\n').map_or(0, |end| end + 1);
            TomlEditError::Syntax {
                line: before.matches('\n').count() + 1,
                column: before[line_start..].chars().count() + 1,
                message: error.message().replace('\n', ", "),
            }
        })?;
        Ok(Self { source: source.to_owned(), document })
    }

    /// Returns whether there is a value at a path of keys.
    pub fn contains(&self, path: &[&str]) -> bool {
        self.find_item(path).is_some()
    }

    /// Returns the keys of the table at a path, in file order.
    pub fn keys(&self, path: &[&str]) -> Vec<String> {
        let table = self.find_item(path).and_then(Item::as_table_like);
        table.map(|table| table.iter().map(|(key, _)| key.to_owned()).collect()).unwrap_or_default()
    }

    /// Returns the value at a path of keys. Dates become strings.
    pub fn get(&self, path: &[&str]) -> Option<Json> {
        self.find_item(path).map(to_json)
    }

    fn find_item(&self, path: &[&str]) -> Option<&Item> {
        path.iter().try_fold(self.document.as_item(), |item, key| item.as_table_like()?.get(key))
    }

    /// Sets the value at a path of keys and creates missing tables. An object becomes an inline table. An equal value is
    /// not touched.
    ///
    /// # Errors
    ///
    /// Fails if a parent is not a table, or if TOML has no such value.
    pub fn set(&mut self, path: &[&str], value: &Json) -> Result<(), TomlEditError> {
        let Some((last, parents)) = path.split_last() else {
            return Err(TomlEditError::NotATable(String::new()));
        };
        if self.find_item(path).is_some_and(|item| to_json(item) == *value) {
            return Ok(());
        }
        let mut new = to_toml(value).ok_or_else(|| TomlEditError::NotRepresentable(path.join(".")))?;
        self.create_tables(parents)?;
        let table = self.table_mut(parents).ok_or_else(|| TomlEditError::NotATable(parents.join(".")))?;
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

    /// Removes the value at a path of keys and the comment directly above it. Returns whether there was one.
    pub fn remove(&mut self, path: &[&str]) -> bool {
        let Some((last, parents)) = path.split_last() else { return false };
        let Some(item) = self.find_item(path) else { return false };
        let comments = item.as_table().map(detached_comments).unwrap_or_default();
        let next = item.as_table().and_then(|table| self.next_table_position(table));
        let Some(table) = self.table_mut(parents) else { return false };
        if table.remove(last).is_none() {
            return false;
        }
        if !comments.is_empty() {
            self.prepend_comments(next, &comments);
        }
        true
    }

    /// Returns the edited text.
    pub fn render(&self) -> String {
        let plain = self.source.strip_prefix(BOM).unwrap_or(&self.source);
        let bom = if plain.len() < self.source.len() { "\u{feff}" } else { "" };
        let text = super::restore_line_endings(plain, &self.document.to_string());
        // The document ends each value with a line break, also the last one of a file that ends without.
        let is_cut = !plain.ends_with('\n') && plain.lines().next_back() == text.lines().next_back();
        format!("{bom}{}", if is_cut { text.trim_end_matches(['\r', '\n']) } else { &text })
    }

    fn table_mut(&mut self, path: &[&str]) -> Option<&mut dyn TableLike> {
        path.iter()
            .try_fold(self.document.as_item_mut(), |item, key| item.as_table_like_mut()?.get_mut(key))?
            .as_table_like_mut()
    }

    /// Creates the missing tables of a path. A new table goes after the other tables of its parent.
    fn create_tables(&mut self, path: &[&str]) -> Result<(), TomlEditError> {
        for depth in 1..=path.len() {
            let parents = &path[..depth - 1];
            let key = path[depth - 1];
            if let Some(item) = self.find_item(&path[..depth]) {
                if !item.is_table_like() {
                    return Err(TomlEditError::NotATable(path[..depth].join(".")));
                }
                continue;
            }
            let mut new = Table::new();
            new.set_implicit(depth < path.len());
            if depth == path.len() && !self.source.trim().is_empty() {
                self.place_new_table(&mut new, parents);
            }
            let inline = self.find_item(parents).is_some_and(Item::is_inline_table);
            let table = self.table_mut(parents).ok_or_else(|| TomlEditError::NotATable(parents.join(".")))?;
            let new = if inline { Item::Value(InlineTable::new().into()) } else { Item::Table(new) };
            table.insert(key, new);
        }
        Ok(())
    }

    /// Positions a new table after the last table of its parent, separated by a blank line. At the end of the file it also
    /// goes after the last comment.
    fn place_new_table(&mut self, new: &mut Table, parents: &[&str]) {
        let mut all = Vec::new();
        let mut siblings = Vec::new();
        collect_positions(self.document.as_table(), &mut all);
        if let Some(parent) = self.find_item(parents).and_then(Item::as_table) {
            collect_positions(parent, &mut siblings);
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

    /// Returns the position of the table that follows another one in the file.
    fn next_table_position(&self, table: &Table) -> Option<isize> {
        let mut all = Vec::new();
        let mut own = Vec::new();
        collect_positions(self.document.as_table(), &mut all);
        collect_positions(table, &mut own);
        let last = own.iter().max().copied()?;
        all.into_iter().filter(|position| *position > last).min()
    }

    /// Adds comments above the table at a position, or at the end of the file.
    fn prepend_comments(&mut self, position: Option<isize>, comments: &str) {
        let next = position.and_then(|position| find_table_at(self.document.as_table_mut(), position));
        match next {
            Some(table) => {
                let own = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
                let combined = format!("{comments}{own}");
                table.decor_mut().set_prefix(combined);
            }
            None => {
                let own = self.document.trailing().as_str().unwrap_or_default().to_owned();
                self.document.set_trailing(format!("{comments}{own}"));
            }
        }
    }
}

/// Returns the comments above a table that a blank line separates from it. They are not about that table alone.
fn detached_comments(table: &Table) -> String {
    let above = table.decor().prefix().and_then(|prefix| prefix.as_str()).unwrap_or_default();
    let mut end = 0;
    let mut scanned = 0;
    for line in above.split_inclusive('\n') {
        scanned += line.len();
        if line.trim().is_empty() && above[..scanned].contains('#') {
            end = scanned;
        }
    }
    above[..end].trim_end_matches(['\n', '\r', ' ', '\t']).to_owned() + if end > 0 { "\n" } else { "" }
}

fn collect_positions(table: &Table, positions: &mut Vec<isize>) {
    positions.extend(table.position());
    for (_, item) in table.iter() {
        match item {
            Item::Table(table) => collect_positions(table, positions),
            Item::ArrayOfTables(tables) => {
                tables.iter().for_each(|table| collect_positions(table, positions));
            }
            _ => {}
        }
    }
}

fn find_table_at(table: &mut Table, position: isize) -> Option<&mut Table> {
    if table.position() == Some(position) && !table.is_implicit() {
        return Some(table);
    }
    table.iter_mut().find_map(|(_, item)| match item {
        Item::Table(table) => find_table_at(table, position),
        Item::ArrayOfTables(tables) => tables.iter_mut().find_map(|table| find_table_at(table, position)),
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
        Item::Table(table) => {
            Json::Object(collect_map(table.iter().map(|(key, item)| (key.to_owned(), to_json(item)))))
        }
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
            Json::Object(collect_map(members))
        }
    }
}
