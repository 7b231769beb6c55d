//! Makes characters visible that terminals interpret, hide or reorder. Servers, files and peers choose much of what is printed.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes control characters, invisible characters and those that change the text direction.
pub(crate) fn escape_invisible(text: &str) -> Cow<'_, str> {
    escape(text, is_hidden, |out, char| out.extend(char.escape_unicode()))
}

/// Like [`escape_invisible`], for text of several lines: line ends and tabs are kept.
pub(crate) fn escape_lines(text: &str) -> Cow<'_, str> {
    let is_escaped = |char: char| is_hidden(char) && !matches!(char, '\n' | '\t');
    escape(text, is_escaped, |out, char| out.extend(char.escape_unicode()))
}

/// Like [`escape_lines`], for JSON, which stays the same value.
pub(crate) fn escape_json(json: &str) -> Cow<'_, str> {
    let is_escaped = |char: char| is_hidden(char) && !matches!(char, '\n' | '\t' | '\r');
    escape(json, is_escaped, |out, char| {
        for unit in char.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

fn escape(text: &str, is_escaped: impl Fn(char) -> bool, write: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        if is_escaped(char) {
            write(&mut escaped, char);
        } else {
            escaped.push(char);
        }
    }
    Cow::Owned(escaped)
}

fn is_hidden(char: char) -> bool {
    char.is_control()
        || matches!(char,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{e0000}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped() {
        let text = "a\u{1b}[2Kb\u{202e}c\u{200b}d\u{e0041}e\u{7f}f\tg";
        assert_eq!(escape_invisible(text), r"a\u{1b}[2Kb\u{202e}c\u{200b}d\u{e0041}e\u{7f}f\u{9}g");
        assert_eq!(escape_lines("a\n\tb\r\u{9b}c"), "a\n\tb\\u{d}\\u{9b}c");
        assert!(matches!(escape_invisible("Grüße 🙂 日本"), Cow::Borrowed("Grüße 🙂 日本")));
    }

    #[test]
    fn escaped_json_is_the_same_value() {
        let value = serde_json::json!({"\u{202e}k": "a\u{1b}\u{200b}\u{e0041}\u{85}é\n"});
        let escaped = escape_json(&value.to_string()).into_owned();
        assert!(!escaped.chars().any(is_hidden), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).ok(), Some(value));
    }
}
