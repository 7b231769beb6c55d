//! Output of changes to the config that a person is asked about.

use serde_json::{Value, json};
use toolcrib::config::ConfigChange;

use super::ls::format_origin;
use crate::output::Output;
use crate::visible_text::escape_invisible;

/// Prints the old value and the new one, each on a line of its own.
pub(super) fn print(change: &ConfigChange, out: &mut Output) -> std::io::Result<()> {
    let line = |sign: char, value: &Value| {
        let text = format!("{} = {value}", change.key);
        format!("  {sign} {}", escape_invisible(&text))
    };
    let origin = format!("  ({})", escape_invisible(&format_origin(&change.origin)));
    if let Some(before) = &change.before {
        let place = if change.after.is_none() { origin.as_str() } else { "" };
        out.print_line(&format!("{}{place}", line('-', before)))?;
    }
    match &change.after {
        Some(after) => out.print_line(&format!("{}{origin}", line('+', after))),
        None => Ok(()),
    }
}

/// Returns a change as JSON; `null` stands for a value that is not there.
pub(super) fn to_json(change: &ConfigChange) -> Value {
    json!({
        "key": change.key,
        "before": change.before,
        "after": change.after,
        "file": change.origin.file.display().to_string(),
        "line": change.origin.line,
    })
}
