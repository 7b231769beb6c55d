//! Reads `card` of a server: a table, or the path of a JSON file. The contents of the file are a fact about this machine.

use std::path::PathBuf;

use serde_json::Value;

use super::facts::{HostFacts, RequiredFacts};
use super::node::{ConfigNode, ConfigTable, ConfigValue};
use super::reader::TableReader;
use super::server;
use super::source_map::SourceMap;
use crate::spec::ServerCard;
use crate::util::maps::collect_map;

/// Adds the card files that servers name.
pub(super) fn add_required_facts(source: &SourceMap, root: &ConfigTable, required: &mut RequiredFacts) {
    let sections = root.entries("servers").chain(root.entries("mcpServers"));
    let servers = sections.filter_map(|entry| entry.value.as_table()).flat_map(|table| &table.0);
    for card in servers.filter_map(|server| server.value.child("card")) {
        if let ConfigValue::String(written) = &card.value {
            let path: PathBuf = source.folder(card.span.start).join(written).components().collect();
            required.card_files.insert(path);
        }
    }
}

/// Reads the card of a server, if it has one.
pub(super) fn read(reader: &mut TableReader<'_>, facts: &HostFacts) -> Option<ServerCard> {
    match reader.peek("card").map(|card| &card.value) {
        Some(ConfigValue::Table(_)) => reader.table("card").map(read_table),
        _ => read_file(reader, facts),
    }
}

fn read_file(reader: &mut TableReader<'_>, facts: &HostFacts) -> Option<ServerCard> {
    let written = reader.string("card")?;
    let path = server::resolve_path(reader, "card", written)?;
    let contents = match facts.card_files.get(&path) {
        Some(Ok(contents)) => contents,
        Some(Err(reason)) => {
            let message = format!("cannot read the card `{}`: {reason}", path.display());
            reader.error_at_value("card", message, "name a JSON file, or write `[servers.NAME.card]`");
            return None;
        }
        // The facts are of a machine whose files are not known.
        None => return None,
    };
    match ServerCard::from_json(contents.as_bytes()) {
        Ok(card) => Some(card),
        Err(error) => {
            let message = format!("the card `{}` cannot be used: {error}", path.display());
            reader.error_at_value(
                "card",
                message,
                "write an object with `title`, `description`, `tags` and `tools`",
            );
            None
        }
    }
}

fn read_table(mut reader: TableReader<'_>) -> ServerCard {
    let title = reader.string("title").map(str::to_owned);
    let description = reader.string("description").map(str::to_owned);
    let tags = reader.strings("tags").unwrap_or_default();
    let tags = tags.into_iter().map(|(_, tag)| tag.to_owned()).collect();
    let mut card = ServerCard { title, description, tags, tools: Vec::new() };
    if let Some(tools) = reader.take("tools") {
        card = read_tools(&mut reader, tools, card);
    }
    reader.finish();
    card
}

fn read_tools(reader: &mut TableReader<'_>, tools: &ConfigNode, mut card: ServerCard) -> ServerCard {
    let example = "write `tools = [{ name = \"…\", description = \"…\" }]`";
    let ConfigValue::Array(elements) = &tools.value else {
        let message = format!("{} must be an array of tables", reader.key_path("tools"));
        reader.error(tools.span.start, message, example);
        return card;
    };
    for element in elements {
        match card.clone().tool(&to_json(reader.source(), element)) {
            Ok(extended) => card = extended,
            Err(error) => {
                let message = format!("{}: {error}", reader.key_path("tools"));
                reader.error(element.span.start, message, example);
            }
        }
    }
    card
}

fn to_json(source: &SourceMap, node: &ConfigNode) -> Value {
    match &node.value {
        ConfigValue::String(text) => text.as_str().into(),
        ConfigValue::Number(Some(number)) => (*number).into(),
        ConfigValue::Bool(value) => (*value).into(),
        ConfigValue::Array(elements) => elements.iter().map(|element| to_json(source, element)).collect(),
        ConfigValue::Table(table) => {
            let members = table.0.iter().map(|entry| (entry.key.clone(), to_json(source, &entry.value)));
            Value::Object(collect_map(members))
        }
        // A negative number, a fraction or a date; the first two are written as in JSON.
        ConfigValue::Number(None) | ConfigValue::Other(_) => {
            let written = source.short_text(&node.span).unwrap_or_default();
            serde_json::from_str(written).unwrap_or_else(|_| written.into())
        }
    }
}
