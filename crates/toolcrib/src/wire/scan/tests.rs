//! The scanner against a real parser.

use proptest::prelude::*;
use serde_json::value::RawValue;

use super::*;

/// Whether the scanner takes `text` as one value, and where it sees its elements.
fn scanned(text: &str) -> Option<Vec<String>> {
    let array = format!("[{text}]");
    let mut found = Vec::new();
    Scanner::new(array.as_bytes()).array(|range| found.push(array[range].to_owned())).ok()?;
    Some(found)
}

fn parsed(text: &str) -> Option<Vec<String>> {
    let array = format!("[{text}]");
    let elements: Vec<&RawValue> = serde_json::from_str(&array).ok()?;
    Some(elements.iter().map(|raw| raw.get().to_owned()).collect())
}

#[test]
fn agrees_with_a_real_parser_where_it_is_easy_to_be_wrong() {
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
fn the_next_quote_or_backslash_is_found_wherever_it_stands() {
    for length in 0..80 {
        assert_eq!(plain(&vec![0x23; length]), length);
        for at in 0..length {
            for special in *b"\"\\" {
                let mut text = vec![0x23; length];
                text[at] = special;
                text[length - 1] = special;
                assert_eq!(plain(&text), at);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_name_is_found_where_it_stands_first(
        parts in prop::collection::vec(prop::sample::select(vec!["\"isError\"", "isError\"", "E", "\"is", "x_", "\"id\"", "0123456789"]), 0..200),
        name in prop::sample::select(vec!["\"isError\"", "\"input_required\"", "\"id\""]),
    ) {
        let text = parts.concat();
        prop_assert_eq!(find(text.as_bytes(), name.as_bytes()), text.find(name));
    }

    #[test]
    fn accepts_exactly_what_a_real_parser_accepts(
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
