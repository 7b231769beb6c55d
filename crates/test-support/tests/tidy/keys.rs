//! The page of all config keys, and the schema by which editors know them: both are written from one table.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use toolcrib::config::keys::{Key, Kind, ROOT};

use super::pages::fresh;

fn kind_words(kind: &Kind) -> String {
    match kind {
        Kind::Text => "string".to_owned(),
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Count => "whole number".to_owned(),
        Kind::Duration => "duration".to_owned(),
        Kind::Size => "size".to_owned(),
        Kind::Texts => "list of strings".to_owned(),
        Kind::Words(words) => words.iter().map(|word| format!("`\"{word}\"`")).collect::<Vec<_>>().join(", "),
        Kind::Map(kind) => format!("table of {}s", kind_words(kind)),
        Kind::Table(_) => "table".to_owned(),
        Kind::Named(_) => "tables by name".to_owned(),
        Kind::Either(kinds) => kinds.iter().map(kind_words).collect::<Vec<_>>().join(" or "),
    }
}

fn tables(page: &mut String, path: &str, keys: &[Key]) {
    let title = if path.is_empty() { "The file".to_owned() } else { format!("`[{path}]`") };
    write!(page, "\n## {title}\n\n| key | what | if left out | |\n|---|---|---|---|\n").unwrap();
    for Key { name, kind, otherwise, about } in keys {
        let otherwise = if otherwise.is_empty() { String::new() } else { format!("`{otherwise}`") };
        writeln!(page, "| `{name}` | {} | {otherwise} | {about} |", kind_words(kind)).unwrap();
    }
    // Those of `[defaults]` are those of a server.
    for key in keys.iter().filter(|_| path != "defaults") {
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let kinds = if let Kind::Either(kinds) = &key.kind { kinds } else { std::slice::from_ref(&key.kind) };
        for kind in kinds {
            match kind {
                Kind::Table(keys) => tables(page, &below(key.name), keys),
                Kind::Named(keys) if key.name == "limits" => {
                    tables(page, &format!("{}.\"SERVER.TOOL\"", below(key.name)), keys);
                }
                Kind::Named(keys) => tables(page, &format!("{}.NAME", below(key.name)), keys),
                _ => {}
            }
        }
    }
}

#[test]
fn the_page_of_config_keys_is_fresh() {
    let mut page = String::from(
        "# Config keys\n\nEvery key there is. This page is generated from `config/keys.rs`; do not edit it by hand. What they are for is \
         told in the\n[guide](GUIDE.md); which file wins, too. Durations are `100ms`, `30s`, `5m`, `1h`, sizes `512B`, `64KiB`, `32MiB`, \
         `1GiB`:\none whole number and a unit. In a nearer layer, `\"+key\"` adds to a list instead of replacing it. Editors know the keys \
         by\n[config.schema.json](config.schema.json): in a TOML file, `#:schema PATH/config.schema.json` as the first line.\n",
    );
    tables(&mut page, "", ROOT);
    fresh("docs/config.md", &page);
}

fn schema(kind: &Kind) -> Value {
    match kind {
        Kind::Text => json!({"type": "string"}),
        Kind::Flag => json!({"type": "boolean"}),
        Kind::Count => json!({"type": "integer", "minimum": 0}),
        Kind::Duration => json!({"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}),
        Kind::Size => json!({"type": "string", "pattern": "^[0-9]+(B|KiB|MiB|GiB)$"}),
        Kind::Texts => json!({"type": "array", "items": {"type": "string"}}),
        Kind::Words(words) => json!({"enum": words}),
        Kind::Map(kind) => json!({"type": "object", "additionalProperties": schema(kind)}),
        Kind::Table(keys) => object(keys),
        Kind::Named(keys) => json!({"type": "object", "additionalProperties": object(keys)}),
        Kind::Either(kinds) => json!({"anyOf": kinds.iter().map(schema).collect::<Vec<_>>()}),
    }
}

fn object(keys: &[Key]) -> Value {
    let mut properties = Map::new();
    for Key { name, kind, otherwise, about } in keys {
        let mut property = schema(kind);
        let about = if otherwise.is_empty() {
            (*about).to_owned()
        } else {
            format!("{about}. If left out: {otherwise}")
        };
        property["description"] = about.into();
        if matches!(kind, Kind::Texts) {
            properties.insert(format!("+{name}"), property.clone());
        }
        properties.insert((*name).to_owned(), property);
    }
    json!({"type": "object", "properties": properties, "additionalProperties": false})
}

#[test]
fn the_schema_of_the_config_is_fresh() {
    let mut whole = object(ROOT);
    whole["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    whole["title"] = "toolcrib config".into();
    fresh("docs/config.schema.json", &format!("{whole:#}\n"));
}
