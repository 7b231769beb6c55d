//! Sets and removes one entry in a YAML text by changing only the entry's own lines. Works on text and touches no files.
//!
//! YAML that this editor misunderstands is caught by the verification in `entry.rs`.

mod tree;

use serde_json::Value as Json;

use self::tree::{YamlKind, YamlNode};
use super::entry::{EditError, EntryMembers};

/// Plain words that YAML parsers do not read as strings.
const RESERVED_WORDS: [&str; 8] = ["true", "false", "null", "yes", "no", "on", "off", "y"];

/// Parses a text. An empty text is an empty mapping.
pub(super) fn parse(text: &str) -> Result<Json, EditError> {
    Ok(match tree::parse(text)? {
        None => Json::Object(serde_json::Map::new()),
        Some(node) => node.to_json(),
    })
}

/// Returns the text with an entry at `section.name`.
pub(super) fn set_entry(text: &str, path: &[&str], members: &EntryMembers) -> Result<String, EditError> {
    let [section, name] = path else {
        return Err(EditError::unsupported("only entries directly in a section can be set"));
    };
    let root = tree::parse(text)?;
    let mapping = root
        .as_ref()
        .map(|root| root.as_mapping().ok_or_else(|| EditError::unsupported("the file is not a mapping")));
    let Some((key, section_node)) =
        mapping.transpose()?.and_then(|mapping| mapping.iter().find(|(key, _)| key.name == *section))
    else {
        let entry = render_block_entry(name, members, 2);
        return Ok(append_section(text, &format!("{}:\n{entry}", render_string(section))));
    };
    match &section_node.kind {
        YamlKind::Mapping { flow: true, members: existing } if existing.is_empty() => {
            let before = &text[..section_node.start];
            let rest = &text[section_node.end..];
            let (line, rest) = rest.split_at(rest.find('\n').map_or(rest.len(), |end| end + 1));
            let entry = render_block_entry(name, members, key.column + 2);
            Ok(format!("{}{}{entry}{rest}", before.trim_end_matches(' '), with_final_newline(line)))
        }
        YamlKind::Mapping { flow: true, members: existing } => {
            let entry = render_flow_mapping(members);
            match existing.iter().find(|(key, _)| key.name == *name) {
                Some((_, old)) => Ok(format!("{}{entry}{}", &text[..old.start], &text[old.end..])),
                None => {
                    let last = existing.last().map_or(section_node.start + 1, |(_, value)| value.end);
                    Ok(format!("{}, {}: {entry}{}", &text[..last], render_string(name), &text[last..]))
                }
            }
        }
        YamlKind::Mapping { flow: false, members: existing } => {
            let column = existing.first().map_or(key.column + 2, |(key, _)| key.column);
            let entry = render_block_entry(name, members, column);
            let replaced = match existing.iter().find(|(key, _)| key.name == *name) {
                Some((key, value)) => line_start(text, key.start)..line_end(text, value.last_byte()),
                None => {
                    let end = line_end(text, section_node.last_byte());
                    end..end
                }
            };
            Ok(format!("{}{entry}{}", with_final_newline(&text[..replaced.start]), &text[replaced.end..]))
        }
        YamlKind::Scalar(Json::Null) => {
            let end = line_end(text, key.end);
            let entry = render_block_entry(name, members, key.column + 2);
            Ok(format!("{}{entry}{}", with_final_newline(&text[..end]), &text[end..]))
        }
        _ => Err(EditError::unsupported(format!("`{section}` is not a mapping"))),
    }
}

/// Returns the text without the entry at `section.name`.
pub(super) fn remove_entry(text: &str, path: &[&str]) -> Result<String, EditError> {
    let [section, name] = path else {
        return Err(EditError::unsupported("only entries directly in a section can be removed"));
    };
    let root = tree::parse(text)?;
    let root_members = root.as_ref().and_then(YamlNode::as_mapping).unwrap_or_default();
    let Some((section, section_node)) = root_members.iter().find(|(key, _)| key.name == *section) else {
        return Ok(text.to_owned());
    };
    let YamlKind::Mapping { flow: false, members } = &section_node.kind else {
        return Err(EditError::unsupported("an entry in a flow mapping (`{…}`) cannot be removed"));
    };
    let Some((key, value)) = members.iter().find(|(key, _)| key.name == *name) else {
        return Ok(text.to_owned());
    };
    let start = line_start(text, key.start);
    let end = line_end(text, value.last_byte());
    let rest = format!("{}{}", &text[..start], &text[end..]);
    if members.len() > 1 {
        return Ok(rest);
    }
    // A section that becomes empty is kept as `{}`.
    let colon = section.end + text[section.end..].find(':').map_or(0, |colon| colon + 1);
    Ok(format!("{} {{}}{}", &rest[..colon], &rest[colon..]))
}

/// Renders a complete file: a few string values, then a list of entries.
pub(crate) fn render_list_file(head: &[(&str, &str)], key: &str, entries: &[EntryMembers]) -> String {
    let mut text: String =
        head.iter().map(|(key, value)| format!("{key}: {}\n", render_value(&Json::from(*value)))).collect();
    text.push_str(&format!("{key}:\n"));
    for entry in entries {
        for (index, (key, value)) in entry.iter().enumerate() {
            let prefix = if index == 0 { "  - " } else { "    " };
            text.push_str(&format!("{prefix}{}: {}\n", render_string(key), render_value(value)));
        }
    }
    text
}

fn append_section(text: &str, lines: &str) -> String {
    let gap = if text.trim().is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
    let text = if text.trim().is_empty() { "" } else { text };
    format!("{}{gap}{lines}", with_final_newline(text))
}

/// Adds a line ending to the last line if it has none.
fn with_final_newline(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

fn line_start(text: &str, offset: usize) -> usize {
    text[..offset].rfind('\n').map_or(0, |end| end + 1)
}

fn line_end(text: &str, offset: usize) -> usize {
    // A value that includes its line ending ends on that line.
    let start = if offset > 0 && text[..offset].ends_with('\n') { offset - 1 } else { offset };
    text[start..].find('\n').map_or(text.len(), |end| start + end + 1)
}

fn render_block_entry(name: &str, members: &EntryMembers, column: usize) -> String {
    let indent = " ".repeat(column);
    let mut lines = format!("{indent}{}:\n", render_string(name));
    for (key, value) in members {
        lines.push_str(&format!("{indent}  {}: {}\n", render_string(key), render_value(value)));
    }
    lines
}

/// Renders an entry as `{key: value, …}`.
fn render_flow_mapping(members: &EntryMembers) -> String {
    let members: Vec<String> = members
        .iter()
        .map(|(key, value)| format!("{}: {}", render_string(key), render_value(value)))
        .collect();
    format!("{{{}}}", members.join(", "))
}

fn render_value(value: &Json) -> String {
    match value {
        Json::String(text) => render_string(text),
        Json::Array(values) => {
            format!("[{}]", values.iter().map(render_value).collect::<Vec<_>>().join(", "))
        }
        Json::Object(members) => {
            render_flow_mapping(&members.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        other => other.to_string(),
    }
}

/// Renders a string, quoted unless it is certain to be read as a string.
fn render_string(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !RESERVED_WORDS.contains(&&*text.to_ascii_lowercase())
        && text.len() > 1;
    if plain { text.to_owned() } else { Json::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry() -> EntryMembers {
        vec![
            ("enabled".to_owned(), json!(true)),
            ("cmd".to_owned(), json!("toolcrib")),
            ("args".to_owned(), json!(["-x", "no"])),
        ]
    }

    fn set_and_remove(before: &str) -> (String, String) {
        let after = set_entry(before, &["extensions", "toolcrib"], &entry()).unwrap();
        let back = remove_entry(&after, &["extensions", "toolcrib"]).unwrap();
        let parsed = parse(&after).unwrap();
        assert_eq!(
            parsed["extensions"]["toolcrib"],
            json!({"enabled": true, "cmd": "toolcrib", "args": ["-x", "no"]}),
            "{after}"
        );
        (after, back)
    }

    const ADDED: &str = "  toolcrib:\n    enabled: true\n    cmd: toolcrib\n    args: [\"-x\", \"no\"]\n";

    #[test]
    fn set_appends_entry_and_keeps_comments() {
        let before = "# mine\nGOOSE_MODEL: x # why\nextensions: # all\n  # first\n  dev:\n    type: builtin # b\n    about: |\n      two\n      lines\n# after\n\nother: [1, 2] # o\n";
        let (after, back) = set_and_remove(before);
        assert_eq!(after, before.replace("      lines\n", &format!("      lines\n{ADDED}")));
        assert_eq!(back, before);
    }

    #[test]
    fn set_keeps_indentation_and_ends_last_line() {
        let before = "extensions:\n    dev: {type: builtin} # d";
        let (after, _) = set_and_remove(before);
        assert!(
            after.starts_with(
                "extensions:\n    dev: {type: builtin} # d\n    toolcrib:\n      enabled: true\n"
            ),
            "{after}"
        );
    }

    #[test]
    fn set_creates_missing_or_empty_section() {
        assert_eq!(set_and_remove("").0, format!("extensions:\n{ADDED}"));
        assert_eq!(set_and_remove("# only\n").0, format!("# only\n\nextensions:\n{ADDED}"));
        assert_eq!(set_and_remove("a: 1").0, format!("a: 1\n\nextensions:\n{ADDED}"));
        assert_eq!(
            set_and_remove("extensions: {} # none\nb: 2\n").0,
            format!("extensions: # none\n{ADDED}b: 2\n")
        );
        assert_eq!(set_and_remove("extensions:\nb: 2\n").0, format!("extensions:\n{ADDED}b: 2\n"));
        assert_eq!(set_and_remove("extensions:\nb: 2\n").1, "extensions: {}\nb: 2\n");
    }

    #[test]
    fn set_adds_and_replaces_in_flow_mapping() {
        let before = "extensions: {dev: {type: builtin}} # all\n";
        let after = set_entry(before, &["extensions", "toolcrib"], &entry()).unwrap();
        assert_eq!(
            after,
            "extensions: {dev: {type: builtin}, toolcrib: {enabled: true, cmd: toolcrib, args: [\"-x\", \"no\"]}} # all\n"
        );
        let again =
            set_entry(&after, &["extensions", "toolcrib"], &vec![("cmd".to_owned(), json!("x y"))]).unwrap();
        assert_eq!(again, "extensions: {dev: {type: builtin}, toolcrib: {cmd: \"x y\"}} # all\n");
    }

    #[test]
    fn set_replaces_existing_entry_in_place() {
        let before = "extensions:\n  toolcrib:\n    cmd: old\n    # inside\n    args:\n    - a\n    - b\n  # about dev\n  dev:\n    type: builtin\n";
        let (after, _) = set_and_remove(before);
        assert_eq!(after, format!("extensions:\n{ADDED}  # about dev\n  dev:\n    type: builtin\n"));
    }

    #[test]
    fn rendered_list_file_parses_back() {
        let entry =
            vec![("name".to_owned(), json!("a b")), ("env".to_owned(), json!({"K": "${{ secrets.K }}"}))];
        let text = render_list_file(&[("name", "toolcrib"), ("version", "0.0.1")], "mcpServers", &[entry]);
        let expected = json!({"name": "toolcrib", "version": "0.0.1", "mcpServers": [{"name": "a b", "env": {"K": "${{ secrets.K }}"}}]});
        assert_eq!(parse(&text).unwrap(), expected);
    }

    #[test]
    fn invalid_yaml_and_non_mappings_are_errors() {
        assert!(parse("a: [1\nb: 2\n").unwrap_err().position.is_some());
        assert!(set_entry("- 1\n", &["extensions", "t"], &entry()).is_err());
        assert!(set_entry("extensions: 5\n", &["extensions", "t"], &entry()).is_err());
        assert!(parse("a: 1\na: 2\n").is_err(), "duplicate key");
        assert!(parse("a: 1\n---\nb: 1\n").is_err(), "two documents");
        assert_eq!(
            parse("a: &x {b: 1}\nc: *x\nd: 'no'\ne: no\nf: 0x1F\ng: ~\n").unwrap(),
            json!({"a": {"b": 1}, "c": {"b": 1}, "d": "no", "e": "no", "f": 31, "g": null})
        );
    }
}
