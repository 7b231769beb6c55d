//! Edits of config files that users also edit. Everything outside the edited entry keeps its bytes.

pub mod entry;
pub mod file;
pub mod jsonc;
pub mod merge;
pub mod toml;
pub(crate) mod yaml;

/// Returns `after` with the line endings of `before` on unchanged lines. New lines get the ending that most lines have.
fn restore_line_endings(before: &str, after: &str) -> String {
    if !before.contains('\r') {
        return after.to_owned();
    }
    let old: Vec<&str> = before.split_inclusive('\n').collect();
    let new: Vec<&str> = after.split_inclusive('\n').collect();
    let same =
        |old: &&str, new: &&str| old.trim_end_matches(['\r', '\n']) == new.trim_end_matches(['\r', '\n']);
    let head = old.iter().zip(&new).take_while(|(old, new)| same(old, new)).count();
    let max_tail = old.len().min(new.len()) - head;
    let tail =
        old.iter().rev().zip(new.iter().rev()).take(max_tail).take_while(|(old, new)| same(old, new)).count();
    let mostly_crlf = old.iter().filter(|line| line.ends_with("\r\n")).count() * 2 > old.len();
    let mut text: String = old[..head].concat();
    // A last line without a line ending needs one if lines follow it now.
    if head < new.len() && head > 0 && !text.ends_with('\n') {
        text.push_str(if mostly_crlf { "\r\n" } else { "\n" });
    }
    for line in &new[head..new.len() - tail] {
        match line.strip_suffix('\n') {
            Some(line) if mostly_crlf => text.extend([line.trim_end_matches('\r'), "\r\n"]),
            _ => text.push_str(line),
        }
    }
    text.extend(old[old.len() - tail..].iter().copied());
    text
}
