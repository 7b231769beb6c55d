//! Merges two changes of one text, line by line.

use std::ops::Range;

use similar::{Algorithm, DiffTag, capture_diff_slices};

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

/// Returns the base with the changes that lead to either of the other texts, unless both change the same lines.
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
    let mut changes = find_changes(&lines, other);
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
            ("1\n4\n", "1\n2\nx\n3\n4\n", None),
            ("x\n2\n3\n4\n", "1\nx\n3\n4\n", Some("x\nx\n3\n4\n")),
        ] {
            assert_eq!(merge_texts(base, one, other).as_deref(), merged, "{one:?} {other:?}");
            assert_eq!(merge_texts(base, other, one).as_deref(), merged, "{other:?} {one:?}");
        }
        assert_eq!(merge_texts("", "a\n", "").as_deref(), Some("a\n"));
    }
}
