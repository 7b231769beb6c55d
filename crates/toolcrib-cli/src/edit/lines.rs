//! Line ends of a text that was edited: what did not change keeps the ends it had.

/// Gives lines that did not change the ends they had; new ones end as most do.
pub(super) fn with_ends_of(before: &str, after: &str) -> String {
    if !before.contains('\r') {
        return after.to_owned();
    }
    let (old, new): (Vec<&str>, Vec<&str>) =
        (before.split_inclusive('\n').collect(), after.split_inclusive('\n').collect());
    let same =
        |old: &&str, new: &&str| old.trim_end_matches(['\r', '\n']) == new.trim_end_matches(['\r', '\n']);
    let head = old.iter().zip(&new).take_while(|(old, new)| same(old, new)).count();
    let most = old.len().min(new.len()) - head;
    let tail =
        old.iter().rev().zip(new.iter().rev()).take(most).take_while(|(old, new)| same(old, new)).count();
    let windows = old.iter().filter(|line| line.ends_with("\r\n")).count() * 2 > old.len();
    let mut text: String = old[..head].concat();
    // A last line without an end has one once another follows.
    if head < new.len() && head > 0 && !text.ends_with('\n') {
        text.push_str(if windows { "\r\n" } else { "\n" });
    }
    for line in &new[head..new.len() - tail] {
        match line.strip_suffix('\n') {
            Some(line) if windows => text.extend([line.trim_end_matches('\r'), "\r\n"]),
            _ => text.push_str(line),
        }
    }
    text.extend(old[old.len() - tail..].iter().copied());
    text
}
