//! The page of config keys and the JSON schema for editors, both generated from one table.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use toolcrib::config::keys::{ConfigKey, ROOT, ValueKind};

use super::pages::assert_page;

fn kind_words(kind: &ValueKind) -> String {
    match kind {
        ValueKind::Text => "string".to_owned(),
        ValueKind::Boolean => "`true` or `false`".to_owned(),
        ValueKind::Integer => "whole number".to_owned(),
        ValueKind::Duration => "duration".to_owned(),
        ValueKind::Size => "size".to_owned(),
        ValueKind::TextList => "list of strings".to_owned(),
        ValueKind::TableList => "list of tables".to_owned(),
        ValueKind::OneOf(words) => {
            words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", ")
        }
        ValueKind::Map(kind) => format!("table of {}s", kind_words(kind)),
        ValueKind::Table(_) => "table".to_owned(),
        ValueKind::NamedTables(_) => "tables by name".to_owned(),
        ValueKind::AnyOf(kinds) => kinds.iter().map(kind_words).collect::<Vec<_>>().join(" or "),
        kind => unreachable!("describe {kind:?} here"),
    }
}

fn tables(page: &mut String, path: &str, keys: &[ConfigKey]) {
    let title = if path.is_empty() { "Top level".to_owned() } else { format!("`[{path}]`") };
    write!(page, "\n## {title}\n\n| key | type | default | description |\n|---|---|---|---|\n").unwrap();
    for ConfigKey { name, kind, default, description: about } in keys {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        writeln!(page, "| `{name}` | {} | {default} | {about} |", kind_words(kind)).unwrap();
    }
    // The keys of `[defaults]` are those of a server.
    for key in keys.iter().filter(|_| path != "defaults") {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let kinds =
            if let ValueKind::AnyOf(kinds) = &key.kind { kinds } else { std::slice::from_ref(&key.kind) };
        for kind in kinds {
            match kind {
                ValueKind::Table(keys) => tables(page, &below(key.name), keys),
                ValueKind::NamedTables(keys) if key.name == "limits" => {
                    tables(page, &format!("{}.\"SERVER.TOOL\"", below(key.name)), keys);
                }
                ValueKind::NamedTables(keys) => tables(page, &format!("{}.NAME", below(key.name)), keys),
                _ => {}
            }
        }
    }
}

#[test]
fn config_page_matches_the_code() {
    let mut page = String::from(
        "# Config keys\n\nReference of every key. This page is generated from `config/keys.rs`; do not edit it by hand. \
         [Configuration](configuration.md)\nexplains files, layers and scopes. Durations are `100ms`, `30s`, `5m`, `1h`; sizes are \
         `512B`, `64KiB`, `32MiB`, `1GiB`: one whole\nnumber and a unit. In a nearer layer, `\"+key\"` appends to a list instead of \
         replacing it. Editors can use\n[config.schema.json](config.schema.json): put `#:schema PATH/config.schema.json` on the \
         first line of a TOML file.\n",
    );
    tables(&mut page, "", ROOT);
    assert_page("docs/config.md", &page);
}

fn schema(kind: &ValueKind) -> Value {
    match kind {
        ValueKind::Text => json!({"type": "string"}),
        ValueKind::Boolean => json!({"type": "boolean"}),
        ValueKind::Integer => json!({"type": "integer", "minimum": 0}),
        ValueKind::Duration => json!({"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"}),
        ValueKind::Size => json!({"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$"}),
        ValueKind::TextList => json!({"type": "array", "items": {"type": "string"}}),
        ValueKind::TableList => json!({"type": "array", "items": {"type": "object"}}),
        ValueKind::OneOf(words) => json!({"enum": words}),
        ValueKind::Map(kind) => json!({"type": "object", "additionalProperties": schema(kind)}),
        ValueKind::Table(keys) => object(keys),
        ValueKind::NamedTables(keys) => json!({"type": "object", "additionalProperties": object(keys)}),
        ValueKind::AnyOf(kinds) => json!({"anyOf": kinds.iter().map(schema).collect::<Vec<_>>()}),
        kind => unreachable!("describe {kind:?} here"),
    }
}

fn object(keys: &[ConfigKey]) -> Value {
    let mut properties = Map::new();
    for ConfigKey { name, kind, default, description: about } in keys {
        let mut property = schema(kind);
        let about =
            if default.is_empty() { (*about).to_owned() } else { format!("{about}. Default: {default}") };
        property["description"] = about.into();
        if matches!(kind, ValueKind::TextList) {
            properties.insert(format!("+{name}"), property.clone());
        }
        properties.insert((*name).to_owned(), property);
    }
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

#[test]
fn config_schema_matches_the_code() {
    let mut whole = object(ROOT);
    whole["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    whole["title"] = "toolcrib config".into();
    assert_page("docs/config.schema.json", &format!("{whole:#}\n"));
}
