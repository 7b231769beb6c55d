//! Sets and removes one entry in somebody's YAML by changing lines of its own only. It edits text and touches no file; what
//! it does not understand it leaves to the proof in `entry.rs`.

mod tree;

use serde_json::Value as Json;

use self::tree::{Kind, Node};
use super::entry::{Members, Mistake};

/// Words that YAML does not take for strings.
const WORDS: [&str; 8] = ["true", "false", "null", "yes", "no", "on", "off", "y"];

/// What a text says; nothing at all is an empty mapping.
pub(super) fn read(text: &str) -> Result<Json, Mistake> {
    Ok(match tree::parse(text)? {
        None => Json::Object(serde_json::Map::new()),
        Some(node) => node.to_json(),
    })
}

/// The text with an entry at `section.name`.
pub(super) fn put(text: &str, path: &[&str], members: &Members) -> Result<String, Mistake> {
    let [section, name] = path else {
        return Err(Mistake::unsuitable("only entries of a section can be set"));
    };
    let root = tree::parse(text)?;
    let mapping = root
        .as_ref()
        .map(|root| root.mapping().ok_or_else(|| Mistake::unsuitable("the file is not a mapping")));
    let Some((key, found)) =
        mapping.transpose()?.and_then(|mapping| mapping.iter().find(|(key, _)| key.is(section)))
    else {
        let entry = block(name, members, 2);
        return Ok(appended(text, &format!("{}:\n{entry}", word(section))));
    };
    match &found.kind {
        Kind::Mapping { flow: true, members: inside } if inside.is_empty() => {
            let before = &text[..found.start];
            let rest = &text[found.end..];
            let (line, rest) = rest.split_at(rest.find('\n').map_or(rest.len(), |end| end + 1));
            let entry = block(name, members, key.column + 2);
            Ok(format!("{}{}{entry}{rest}", before.trim_end_matches(' '), ended(line)))
        }
        Kind::Mapping { flow: true, members: inside } => {
            let entry = flow(members);
            match inside.iter().find(|(key, _)| key.is(name)) {
                Some((_, old)) => Ok(format!("{}{entry}{}", &text[..old.start], &text[old.end..])),
                None => {
                    let last = inside.last().map_or(found.start + 1, |(_, value)| value.end);
                    Ok(format!("{}, {}: {entry}{}", &text[..last], word(name), &text[last..]))
                }
            }
        }
        Kind::Mapping { flow: false, members: inside } => {
            let column = inside.first().map_or(key.column + 2, |(key, _)| key.column);
            let entry = block(name, members, column);
            let old = inside.iter().find(|(key, _)| key.is(name));
            let (start, end) = match old {
                Some((key, value)) => (line_start(text, key.start), line_end(text, value.last())),
                None => {
                    let end = line_end(text, found.last());
                    (end, end)
                }
            };
            Ok(format!("{}{entry}{}", ended(&text[..start]), &text[end..]))
        }
        Kind::Scalar(Json::Null) => {
            let end = line_end(text, key.end);
            let entry = block(name, members, key.column + 2);
            Ok(format!("{}{entry}{}", ended(&text[..end]), &text[end..]))
        }
        _ => Err(Mistake::unsuitable(format!("`{section}` is not a mapping"))),
    }
}

/// The text without the entry at `section.name`.
pub(super) fn remove(text: &str, path: &[&str]) -> Result<String, Mistake> {
    let [section, name] = path else {
        return Err(Mistake::unsuitable("only entries of a section can be removed"));
    };
    let root = tree::parse(text)?;
    let inside =
        root.as_ref().and_then(Node::mapping).and_then(|root| root.iter().find(|(key, _)| key.is(section)));
    let Some((section, found)) = inside else { return Ok(text.to_owned()) };
    let Kind::Mapping { flow: false, members } = &found.kind else {
        return Err(Mistake::unsuitable("an entry between braces is not taken out"));
    };
    let Some((key, value)) = members.iter().find(|(key, _)| key.is(name)) else { return Ok(text.to_owned()) };
    let (start, end) = (line_start(text, key.start), line_end(text, value.last()));
    let rest = format!("{}{}", &text[..start], &text[end..]);
    if members.len() > 1 {
        return Ok(rest);
    }
    // A section that is there and empty stays one.
    let colon = section.end + text[section.end..].find(':').map_or(0, |colon| colon + 1);
    Ok(format!("{} {{}}{}", &rest[..colon], &rest[colon..]))
}

/// A whole file of ours: a few values, and a list of entries.
pub(crate) fn listing(head: &[(&str, &str)], key: &str, entries: &[Members]) -> String {
    let mut text: String =
        head.iter().map(|(key, value)| format!("{key}: {}\n", scalar(&Json::from(*value)))).collect();
    text.push_str(&format!("{key}:\n"));
    for entry in entries {
        for (index, (key, value)) in entry.iter().enumerate() {
            let lead = if index == 0 { "  - " } else { "    " };
            text.push_str(&format!("{lead}{}: {}\n", word(key), scalar(value)));
        }
    }
    text
}

fn appended(text: &str, lines: &str) -> String {
    let gap = if text.trim().is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
    let text = if text.trim().is_empty() { "" } else { text };
    format!("{}{gap}{lines}", ended(text))
}

/// A text whose last line has an end.
fn ended(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |end| end + 1)
}

fn line_end(text: &str, at: usize) -> usize {
    // What ends with its line already ends there.
    let from = if at > 0 && text[..at].ends_with('\n') { at - 1 } else { at };
    text[from..].find('\n').map_or(text.len(), |end| from + end + 1)
}

fn block(name: &str, members: &Members, column: usize) -> String {
    let indent = " ".repeat(column);
    let mut lines = format!("{indent}{}:\n", word(name));
    for (key, value) in members {
        lines.push_str(&format!("{indent}  {}: {}\n", word(key), scalar(value)));
    }
    lines
}

/// JSON is YAML, too.
fn flow(members: &Members) -> String {
    let members: Vec<String> =
        members.iter().map(|(key, value)| format!("{}: {}", word(key), scalar(value))).collect();
    format!("{{{}}}", members.join(", "))
}

fn scalar(value: &Json) -> String {
    match value {
        Json::String(text) => word(text),
        Json::Array(values) => format!("[{}]", values.iter().map(scalar).collect::<Vec<_>>().join(", ")),
        Json::Object(members) => {
            flow(&members.iter().map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        other => other.to_string(),
    }
}

/// A string, in quotes unless it cannot be taken for anything else.
fn word(text: &str) -> String {
    let plain = text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        && text
            .chars()
            .all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-' | '.' | '/'))
        && !WORDS.contains(&&*text.to_ascii_lowercase())
        && text.len() > 1;
    if plain { text.to_owned() } else { Json::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry() -> Members {
        vec![
            ("enabled".to_owned(), json!(true)),
            ("cmd".to_owned(), json!("toolcrib")),
            ("args".to_owned(), json!(["-x", "no"])),
        ]
    }

    fn put_both(before: &str) -> (String, String) {
        let after = put(before, &["extensions", "toolcrib"], &entry()).unwrap();
        let back = remove(&after, &["extensions", "toolcrib"]).unwrap();
        let said = read(&after).unwrap();
        assert_eq!(
            said["extensions"]["toolcrib"],
            json!({"enabled": true, "cmd": "toolcrib", "args": ["-x", "no"]}),
            "{after}"
        );
        (after, back)
    }

    const ADDED: &str = "  toolcrib:\n    enabled: true\n    cmd: toolcrib\n    args: [\"-x\", \"no\"]\n";

    #[test]
    fn an_entry_stands_behind_the_last_one_and_comments_stay() {
        let before = "# mine\nGOOSE_MODEL: x # why\nextensions: # all\n  # first\n  dev:\n    type: builtin # b\n    about: |\n      two\n      lines\n# after\n\nother: [1, 2] # o\n";
        let (after, back) = put_both(before);
        assert_eq!(after, before.replace("      lines\n", &format!("      lines\n{ADDED}")));
        assert_eq!(back, before);
    }

    #[test]
    fn wider_indents_and_last_lines_without_an_end_are_kept() {
        let before = "extensions:\n    dev: {type: builtin} # d";
        let (after, _) = put_both(before);
        assert!(
            after.starts_with(
                "extensions:\n    dev: {type: builtin} # d\n    toolcrib:\n      enabled: true\n"
            ),
            "{after}"
        );
    }

    #[test]
    fn a_section_that_is_absent_or_empty_is_begun() {
        assert_eq!(put_both("").0, format!("extensions:\n{ADDED}"));
        assert_eq!(put_both("# only\n").0, format!("# only\n\nextensions:\n{ADDED}"));
        assert_eq!(put_both("a: 1").0, format!("a: 1\n\nextensions:\n{ADDED}"));
        assert_eq!(put_both("extensions: {} # none\nb: 2\n").0, format!("extensions: # none\n{ADDED}b: 2\n"));
        assert_eq!(put_both("extensions:\nb: 2\n").0, format!("extensions:\n{ADDED}b: 2\n"));
        assert_eq!(put_both("extensions:\nb: 2\n").1, "extensions: {}\nb: 2\n");
    }

    #[test]
    fn an_entry_between_braces_joins_the_others() {
        let before = "extensions: {dev: {type: builtin}} # all\n";
        let after = put(before, &["extensions", "toolcrib"], &entry()).unwrap();
        assert_eq!(
            after,
            "extensions: {dev: {type: builtin}, toolcrib: {enabled: true, cmd: toolcrib, args: [\"-x\", \"no\"]}} # all\n"
        );
        let again =
            put(&after, &["extensions", "toolcrib"], &vec![("cmd".to_owned(), json!("x y"))]).unwrap();
        assert_eq!(again, "extensions: {dev: {type: builtin}, toolcrib: {cmd: \"x y\"}} # all\n");
    }

    #[test]
    fn an_entry_that_is_there_is_replaced_where_it_stands() {
        let before = "extensions:\n  toolcrib:\n    cmd: old\n    # inside\n    args:\n    - a\n    - b\n  # about dev\n  dev:\n    type: builtin\n";
        let (after, _) = put_both(before);
        assert_eq!(after, format!("extensions:\n{ADDED}  # about dev\n  dev:\n    type: builtin\n"));
    }

    #[test]
    fn a_list_of_ours_reads_back() {
        let entry =
            vec![("name".to_owned(), json!("a b")), ("env".to_owned(), json!({"K": "${{ secrets.K }}"}))];
        let text = listing(&[("name", "toolcrib"), ("version", "0.0.1")], "mcpServers", &[entry]);
        let want = json!({"name": "toolcrib", "version": "0.0.1", "mcpServers": [{"name": "a b", "env": {"K": "${{ secrets.K }}"}}]});
        assert_eq!(read(&text).unwrap(), want);
    }

    #[test]
    fn what_is_no_mapping_says_so_and_where() {
        assert!(read("a: [1\nb: 2\n").unwrap_err().at.is_some());
        assert!(put("- 1\n", &["extensions", "t"], &entry()).is_err());
        assert!(put("extensions: 5\n", &["extensions", "t"], &entry()).is_err());
        assert!(read("a: 1\na: 2\n").is_err(), "a key that is there twice");
        assert!(read("a: 1\n---\nb: 1\n").is_err(), "two documents");
        assert_eq!(
            read("a: &x {b: 1}\nc: *x\nd: 'no'\ne: no\nf: 0x1F\ng: ~\n").unwrap(),
            json!({"a": {"b": 1}, "c": {"b": 1}, "d": "no", "e": "no", "f": 31, "g": null})
        );
    }
}
