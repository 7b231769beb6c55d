//! One line about a tool: `name(arg: type, other?: type) – what it does`.

use toolcrib::Tool;
use toolcrib::search::{split_summary, tool_arguments};

/// Bytes of a line, so that ten of them and the last line are at most 1,200 bytes, about 300 tokens.
const MAX_LINE: usize = 114;
/// Bytes of the signature in a line.
const MAX_SIGNATURE: usize = 76;
/// Arguments in a full signature.
const MAX_ARGUMENTS: usize = 40;

/// The signature of a tool, in full and shortened.
#[derive(Debug)]
pub(super) struct ToolSignature {
    pub(super) name: String,
    pub(super) full: String,
    /// With the required arguments only.
    pub(super) required: String,
}

/// Returns the signature of a tool: required arguments first, in the order of the schema.
pub(super) fn tool_signature(tool: &Tool) -> ToolSignature {
    let arguments = tool_arguments(&tool.input_schema());
    let name = tool.public_name.to_string();
    let mut all: Vec<String> = arguments.iter().take(MAX_ARGUMENTS).map(ToString::to_string).collect();
    if arguments.len() > MAX_ARGUMENTS {
        all.push("…".to_owned());
    }
    let required = arguments.iter().filter(|argument| argument.is_required);
    let mut short: Vec<String> = required.map(ToString::to_string).collect();
    if short.len() < arguments.len() {
        short.push("…".to_owned());
    }
    ToolSignature {
        full: format!("{name}({})", all.join(", ")),
        required: format!("{name}({})", short.join(", ")),
        name,
    }
}

/// Returns one line of bounded length.
pub(super) fn text_line(signature: &ToolSignature, description: &str) -> String {
    let fitting = [&signature.full, &signature.required].into_iter().find(|text| text.len() <= MAX_SIGNATURE);
    let shown = fitting.cloned().unwrap_or_else(|| format!("{}(…)", signature.name));
    let left = MAX_LINE.saturating_sub(shown.len() + " – ".len());
    let summary = summary(split_summary(description).0, left);
    if summary.is_empty() { shown } else { format!("{shown} – {summary}") }
}

/// Returns a text in one line with at most `max` bytes, cut between words.
pub(super) fn summary(text: &str, max: usize) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        let separator = usize::from(!line.is_empty());
        if line.len() + separator + word.len() + "…".len() > max {
            if !line.is_empty() {
                line.push('…');
            }
            return line;
        }
        if separator == 1 {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_bounded_and_cut_between_words() {
        assert_eq!(summary("one two  three", 12), "one two…");
        assert_eq!(summary("one", 6), "one");
        assert_eq!(summary("äußerstlangeswort", 6), "");
        let long = "a".repeat(64);
        let signature = ToolSignature { full: long.repeat(3), required: long.repeat(2), name: long };
        let line = text_line(&signature, &"word ".repeat(100));
        assert!(line.len() <= MAX_LINE && line.contains("(…) – word"), "{line}");
        let signature =
            ToolSignature { full: "f(a: string)".into(), required: String::new(), name: "f".into() };
        assert_eq!(text_line(&signature, "Does it.\nMore."), "f(a: string) – Does it.");
    }
}
