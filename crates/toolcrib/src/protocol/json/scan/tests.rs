//! Tests of the scanner against `serde_json`.

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

/// The elements that the scanner finds in `[text]`.
fn scanned(text: &str) -> Option<Vec<String>> {
    let array = format!("[{text}]");
    let mut found = Vec::new();
    Scanner::new(array.as_bytes()).scan_array(|range| found.push(array[range].to_owned())).ok()?;
    Some(found)
}

/// The elements that `serde_json` finds in `[text]`.
fn parsed(text: &str) -> Option<Vec<String>> {
    let array = format!("[{text}]");
    let elements: Vec<&RawValue> = serde_json::from_str(&array).ok()?;
    Some(elements.iter().map(|raw| raw.get().to_owned()).collect())
}

#[test]
fn scanner_agrees_with_serde_json_on_edge_cases() {
    for text in [
        "",
        "1",
        "-",
        "-0",
        "01",
        "1.",
        "1.5e",
        "1.5e+3",
        ".5",
        "1e400",
        "- 1",
        "+1",
        "0x1",
        "1 2",
        "NaN",
        "true",
        "tru",
        "truee",
        "null",
        "nul",
        "{}",
        "{ }",
        "[ ]",
        "[,]",
        "[1,]",
        "{,}",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":1 "b":2}"#,
        r#"{a:1}"#,
        "[1 2]",
        "[[[[]]]]",
        "[}",
        "{]",
        r#""\u00e9""#,
        r#""\u00g9""#,
        r#""\x""#,
        r#""\ud800""#,
        "\"a\nb\"",
        "\"tab\t\"",
        r#""a\nb\tc\"d\u00e9e\n\nf""#,
        r#""a\nb\xc""#,
        r#""a\nb\""#,
        "\"a\\nb\tc\\nd\"",
        r#""open"#,
        r#""\"#,
        "\u{feff}1",
        "\u{a0}1",
        " 1 ",
        "1,2",
        "//",
        r#"{"a":{"b":[1,{"c":null}],"d":"x"},"e":[]}"#,
    ] {
        assert_eq!(scanned(text), parsed(text), "{text}");
    }
}

#[test]
fn scanner_agrees_with_serde_json_at_every_offset_of_a_long_text() {
    let parts =
        [r"\n", r"\t", r"\\", r"\\n", r#"\""#, r"\x", r"\u000a", r"\u00g", "\"", r"\", "\u{1f642}", "\t"];
    for part in parts {
        for before in 0..2 * BLOCK + 3 {
            let lines = r"a line\n".repeat(before / 8);
            let text =
                format!("\"\\n{lines}{}{part}{}\"", "-".repeat(before % 8), r"\n-".repeat(2 * BLOCK / 3));
            assert_eq!(scanned(&text), parsed(&text), "{text}");
        }
    }
}

#[test]
fn text_that_ends_after_an_escape_is_an_error() {
    for length in 0..2 * BLOCK + 3 {
        let text = format!("\"\\n{}\\n", "-".repeat(length));
        assert_eq!(check_json(text.as_bytes()).unwrap_err().offset, text.len());
    }
}

#[test]
fn plain_prefix_len_finds_quote_or_backslash_anywhere() {
    for length in 0..80 {
        assert_eq!(plain_prefix_len(&vec![0x23; length]), length);
        for position in 0..length {
            for special in *b"\"\\" {
                let mut text = vec![0x23; length];
                text[position] = special;
                text[length - 1] = special;
                assert_eq!(plain_prefix_len(&text), position);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn find_quoted_returns_the_first_offset(
        parts in prop::collection::vec(prop::sample::select(vec!["\"isError\"", "isError\"", "E", "\"is", "x_", "\"id\"", "0123456789"]), 0..200),
        name in prop::sample::select(vec!["\"isError\"", "\"input_required\"", "\"id\""]),
    ) {
        let text = parts.concat();
        prop_assert_eq!(find_quoted(text.as_bytes(), name.as_bytes()), text.find(name));
    }

    #[test]
    fn scanner_accepts_exactly_what_serde_json_accepts(
        text in prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..14),
    ) {
        let text = text.concat();
        prop_assert_eq!(scanned(&text), parsed(&text), "{}", text);
    }
}

const PIECES: [&str; 32] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\"a\"",
    "\"b\":",
    "\\",
    "\\n",
    "\\u12",
    "ab",
    "1",
    "0",
    "-",
    ".",
    "e",
    "E+",
    "12",
    "true",
    "false",
    "null",
    " ",
    "\n",
    "\t",
    "\u{0}",
    "é",
    "\u{1f600}",
    "{\"k\":[",
    "]}",
    "\"long enough to fill a whole block of bytes\"",
];
