//! Merges two changes of one text, line by line.

use std::ops::Range;

use serde_json::Value as Json;
use similar::{Algorithm, DiffTag, capture_diff_slices};

use super::entry::{FileLanguage, without_empty_tables};

/// Lines that replace a range of the lines of the base.
#[derive(Debug, PartialEq, Eq)]
struct LineChange<'a> {
    replaced: Range<usize>,
    lines: Vec<&'a str>,
}

impl LineChange<'_> {
    /// Returns whether both change the same lines, or insert at the same place.
    fn overlaps(&self, other: &Self) -> bool {
        let (own, others) = (&self.replaced, &other.replaced);
        match (own.is_empty(), others.is_empty()) {
            (true, true) => own.start == others.start,
            (true, false) => others.start < own.start && own.start < others.end,
            (false, true) => own.start < others.start && others.start < own.end,
            (false, false) => own.start < others.end && others.start < own.end,
        }
    }
}

/// Returns the base with the changes that lead to either of the other texts, unless both change the same lines. Lines that one
/// inserts among lines that the other removes stay.
///
/// ```
/// use toolcrib_agents::edit::merge::merge_texts;
///
/// let base = "a\nb\nc\n";
/// assert_eq!(merge_texts(base, "a\nB\nc\n", "a\nb\nc\nd\n").as_deref(), Some("a\nB\nc\nd\n"));
/// assert_eq!(merge_texts(base, "a\nB\nc\n", "a\n2\nc\n"), None);
/// ```
pub fn merge_texts(base: &str, one: &str, other: &str) -> Option<String> {
    let lines: Vec<&str> = base.split_inclusive('\n').collect();
    let changes_of_one = find_changes(&lines, one);
    let mut changes = split_removals(find_changes(&lines, other), &changes_of_one);
    let changes_of_one = split_removals(changes_of_one, &changes);
    for change in changes_of_one {
        match changes.iter().find(|other| other.overlaps(&change)) {
            None => changes.push(change),
            Some(same) if *same == change => {}
            Some(_) => return None,
        }
    }
    changes.sort_by_key(|change| (change.replaced.start, change.replaced.end));
    let mut merged = String::with_capacity(base.len());
    let mut next = 0;
    for LineChange { replaced, lines: new_lines } in changes {
        merged.extend(lines[next..replaced.start].iter().copied());
        merged.extend(new_lines);
        next = replaced.end;
    }
    merged.extend(lines[next..].iter().copied());
    Some(merged)
}

/// Splits changes that only remove lines where other changes insert some.
fn split_removals<'a>(changes: Vec<LineChange<'a>>, others: &[LineChange<'_>]) -> Vec<LineChange<'a>> {
    let mut split = Vec::new();
    for mut change in changes {
        if change.lines.is_empty() {
            let insertions = others.iter().filter(|other| other.replaced.is_empty());
            for at in insertions.map(|insertion| insertion.replaced.start) {
                if change.replaced.start < at && at < change.replaced.end {
                    split.push(LineChange { replaced: change.replaced.start..at, lines: Vec::new() });
                    change.replaced.start = at;
                }
            }
        }
        split.push(change);
    }
    split
}

/// Like [`merge_texts`], for a JSON text that another program has written from scratch since: one value per line, in the order of
/// the base. Returns `None` if the other text does not look like that.
pub(crate) fn merge_rewritten_json(base: &str, one: &str, rewritten: &str) -> Option<String> {
    let body = rewritten.trim_end();
    let second_line = body.lines().nth(1)?;
    let indent = &second_line[..second_line.len() - second_line.trim_start().len()];
    let is_rewritten = spread_json(body, indent).is_some_and(|spread| spread == body);
    let merged = merge_texts(&spread_json(base, indent)?, &spread_json(one, indent)?, body);
    merged.filter(|_| is_rewritten).map(|merged| merged + &rewritten[body.len()..])
}

/// Returns a JSON text with one value per line, as most programs write it, or `None` if it has comments.
fn spread_json(text: &str, indent: &str) -> Option<String> {
    let mut spread = String::with_capacity(text.len() * 2);
    let mut depth: usize = 0;
    let mut rest = text.trim();
    let break_line = |spread: &mut String, depth: usize| {
        spread.push('\n');
        (0..depth).for_each(|_| spread.push_str(indent));
    };
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        match first {
            '"' => {
                length = string_length(rest)?;
                spread.push_str(&rest[..length]);
            }
            '{' | '[' => {
                spread.push(first);
                depth += 1;
                let close = rest[1..].trim_start().chars().next().filter(|next| matches!(next, '}' | ']'));
                if close.is_none() {
                    break_line(&mut spread, depth);
                }
            }
            '}' | ']' => {
                depth = depth.checked_sub(1)?;
                if !spread.ends_with(['{', '[']) {
                    break_line(&mut spread, depth);
                }
                spread.push(first);
            }
            ',' => {
                spread.push(',');
                break_line(&mut spread, depth);
            }
            ':' => spread.push_str(": "),
            '/' => return None,
            _ if first.is_whitespace() => {}
            _ => spread.push(first),
        }
        rest = &rest[length..];
    }
    Some(spread)
}

/// Returns the length of the JSON string at the start of a text, with its quotes.
fn string_length(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    let end = text.char_indices().skip(1).find(|(_, letter)| {
        let is_end = *letter == '"' && !is_escaped;
        is_escaped = *letter == '\\' && !is_escaped;
        is_end
    });
    end.map(|(end, _)| end + 1)
}

/// Returns a later text of a file with one change undone, unless it cannot be told apart from what was changed since.
pub fn undo_change(language: FileLanguage, before: &str, after: &str, now: &str) -> Option<String> {
    let parse = |text: &str| language.parse(text).ok();
    let expected = undo_value(Some(&parse(before)?), Some(&parse(after)?), Some(&parse(now)?))?;
    let merged = merge_texts(after, before, now)?;
    (without_empty_tables(&parse(&merged)?) == without_empty_tables(&expected)).then_some(merged)
}

/// Returns a value with one change undone; what was changed since stays.
fn undo_value(before: Option<&Json>, after: Option<&Json>, now: Option<&Json>) -> Option<Json> {
    if now == after {
        return before.cloned();
    }
    let Some(Json::Object(members)) = now else { return now.cloned() };
    let member = |value: Option<&Json>, key: &str| value.and_then(|value| value.get(key)).cloned();
    let removed = before.and_then(Json::as_object).into_iter().flatten();
    let keys = members.iter().chain(removed).map(|(key, _)| key.clone());
    let undone = keys.filter_map(|key| {
        let values = [before, after, now].map(|value| member(value, &key));
        let value = undo_value(values[0].as_ref(), values[1].as_ref(), values[2].as_ref())?;
        Some((key, value))
    });
    Some(Json::Object(undone.collect()))
}

/// Returns the changes that lead from the lines of the base to a text.
fn find_changes<'a>(base: &[&str], text: &'a str) -> Vec<LineChange<'a>> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let operations = capture_diff_slices(Algorithm::Myers, base, &lines);
    let changes = operations.into_iter().filter(|operation| operation.tag() != DiffTag::Equal);
    changes
        .map(|operation| LineChange {
            replaced: operation.old_range(),
            lines: lines[operation.new_range()].to_vec(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_different_lines_are_merged() {
        let base = "1\n2\n3\n4\n";
        for (one, other, merged) in [
            ("1\n3\n4\n", "1\n2\n3\n4\n5\n", Some("1\n3\n4\n5\n")),
            ("0\n1\n2\n3\n4\n", "1\n2\n3\n4", Some("0\n1\n2\n3\n4")),
            ("", "1\n2\n3\n4\n5\n", Some("5\n")),
            ("1\n2\nx\n4\n", "1\n2\nx\n4\n", Some("1\n2\nx\n4\n")),
            ("1\n2\nx\n3\n4\n", "1\n2\ny\n3\n4\n", None),
            ("1\n4\n", "1\n2\nx\n3\n4\n", Some("1\nx\n4\n")),
            ("1\ny\n4\n", "1\n2\nx\n3\n4\n", None),
            ("x\n2\n3\n4\n", "1\nx\n3\n4\n", Some("x\nx\n3\n4\n")),
        ] {
            assert_eq!(merge_texts(base, one, other).as_deref(), merged, "{one:?} {other:?}");
            assert_eq!(merge_texts(base, other, one).as_deref(), merged, "{other:?} {one:?}");
        }
        assert_eq!(merge_texts("", "a\n", "").as_deref(), Some("a\n"));
    }

    #[test]
    fn rewritten_json_is_merged_in_its_own_form() {
        let base = "{\"a\": {\"own\": [\"x\"]}, \"z\": {}, \"b\": \"{\\\"\"}";
        let one = "{\"a\": {}, \"z\": {}, \"b\": \"{\\\"\"}\n";
        let rewritten = "{\n\t\"a\": {\n\t\t\"own\": [\n\t\t\t\"x\"\n\t\t]\n\t},\n\t\"z\": {},\n\t\"b\": \"{\\\"\",\n\t\"v\": 4\n}\n";
        let merged = "{\n\t\"a\": {},\n\t\"z\": {},\n\t\"b\": \"{\\\"\",\n\t\"v\": 4\n}\n";
        assert_eq!(merge_rewritten_json(base, one, rewritten).as_deref(), Some(merged));
        assert_eq!(merge_rewritten_json(base, one, &rewritten.replace("\"z\": {}", "\"z\":{}")), None);
        assert_eq!(merge_rewritten_json(base, "{} // mine", rewritten), None);
        assert_eq!(merge_rewritten_json(base, one, ""), None);
    }

    #[test]
    fn undone_change_keeps_what_was_changed_since() {
        let undo = |before: &str, after: &str, now: &str| undo_change(FileLanguage::Toml, before, after, now);
        let after = "[a]\nx = 1\n\n[p]\ny = 1\n";
        let kept = undo("", after, "[a]\nx = 1\n\n[mine]\nz = 1\n\n[p]\ny = 1\n").unwrap();
        assert_eq!(kept.trim(), "[mine]\nz = 1");
        assert_eq!(undo("k = 1\n", "k = 1\n[a]\nx = 1\n", "k = 2\n[a]\nx = 1\n").as_deref(), Some("k = 2\n"));
        // The member would become one of another table.
        assert_eq!(undo("", after, "[a]\nx = 1\nmine = 1\n\n[p]\ny = 1\n"), None);
        assert_eq!(undo("", after, "[a]\nx = 2\n\n[p]\ny = 1\n"), None);
    }
}
