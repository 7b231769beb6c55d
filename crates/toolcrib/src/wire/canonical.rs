//! JSON in the one form that all spellings of a value share, in the manner of RFC 8785. Pure.
//!
//! Names are sorted, blanks dropped and escapes undone. Numbers stay as they are spelled: `1` and `1.0` are not the same
//! to every server, and large ones are not the same as the nearest that a `double` can hold. Text is not normalised.

use std::borrow::Cow;

use super::object::{as_string, each_member, write_string};
use super::scan::{Scanner, plain};

/// The longest object that has a form, and the deepest.
const LONGEST: usize = 64 << 10;
const DEEPEST: usize = 64;

/// What becomes of a value that can be read in two ways, or is nested too deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Odd {
    /// Nothing around it has a form.
    Refused,
    /// It stays as it is spelled.
    AsSpelled,
}

/// An object in canonical form; `None` for whatever has none: what is no object, a name that is there twice, half a
/// character, and what is too long or too deep.
pub(crate) fn object(raw: &[u8]) -> Option<Vec<u8>> {
    let raw = raw.trim_ascii();
    if raw.first() != Some(&b'{') || raw.len() > LONGEST {
        return None;
    }
    if is_form(raw) {
        return Some(raw.to_vec());
    }
    let mut out = Vec::with_capacity(raw.len());
    write(raw, 0, Odd::Refused, &mut out)?;
    Some(out)
}

/// Whether an object is written in its form already, as far as that is seen at a glance: names in order, texts without
/// escapes, whole numbers, no blanks and nothing nested. Most arguments are.
fn is_form(raw: &[u8]) -> bool {
    let readable = raw.iter().fold(true, |all, byte| all & (0x20..0x7f).contains(byte));
    let Some(mut rest) = raw.strip_prefix(b"{").filter(|_| readable) else { return false };
    let mut before: Option<&[u8]> = None;
    loop {
        let Some((name, after)) = quoted(rest) else { return false };
        let Some(value) = after.strip_prefix(b":") else { return false };
        if before.is_some_and(|before| before >= name) {
            return false;
        }
        let after = quoted(value).map(|(_, after)| after).or_else(|| after_word(value));
        match after {
            Some([b'}']) => return true,
            Some([b',', next @ ..]) => (before, rest) = (Some(name), next),
            _ => return false,
        }
    }
}

/// The text at the beginning, and what follows it.
fn quoted(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = raw.strip_prefix(b"\"")?;
    let (text, after) = text.split_at(plain(text));
    Some((text, after.strip_prefix(b"\"")?))
}

/// What follows the word or the whole number at the beginning.
fn after_word(raw: &[u8]) -> Option<&[u8]> {
    let (value, after) = raw.split_at(raw.iter().position(|byte| matches!(byte, b',' | b'}'))?);
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let whole = digits.iter().all(u8::is_ascii_digit) && matches!(digits, [_] | [b'1'..=b'9', ..]);
    (whole || matches!(value, b"true" | b"false" | b"null")).then_some(after)
}

/// Any text in canonical form, as far as its parts have one; the others stay as they are spelled, so that nothing can hide
/// in them.
pub(crate) fn text(raw: &[u8]) -> Vec<u8> {
    let raw = raw.trim_ascii();
    let mut out = Vec::with_capacity(raw.len());
    if write(raw, 0, Odd::AsSpelled, &mut out).is_none() {
        out.extend_from_slice(raw);
    }
    out
}

fn write(raw: &[u8], depth: usize, odd: Odd, out: &mut Vec<u8>) -> Option<()> {
    let before = out.len();
    let written = match raw.first()? {
        b'{' | b'[' if depth >= DEEPEST => None,
        b'{' => write_object(raw, depth, odd, out),
        b'[' => write_array(raw, depth, odd, out),
        // Without escapes it is spelled as it would be written.
        b'"' if memchr::memchr(b'\\', raw).is_some() => as_string(raw).map(|text| write_string(out, &text)),
        _ => {
            out.extend_from_slice(raw);
            Some(())
        }
    };
    if written.is_none() && odd == Odd::AsSpelled {
        out.truncate(before);
        out.extend_from_slice(raw);
        return Some(());
    }
    written
}

/// How deep a value is looked into for its own sake.
fn deepest(odd: Odd) -> usize {
    if odd == Odd::Refused { DEEPEST } else { usize::MAX }
}

fn write_object(raw: &[u8], depth: usize, odd: Odd, out: &mut Vec<u8>) -> Option<()> {
    let mut members: Vec<(Cow<'_, str>, &str)> = Vec::new();
    let read = each_member(raw, deepest(odd), |name, value| {
        members.push((name, value));
        Ok(())
    });
    read.ok()?;
    members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    if members.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return None;
    }
    out.push(b'{');
    for (index, (name, value)) in members.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match name {
            Cow::Borrowed(name) => {
                out.push(b'"');
                out.extend_from_slice(name.as_bytes());
                out.push(b'"');
            }
            Cow::Owned(decoded) => write_string(out, decoded),
        }
        out.push(b':');
        write(value.as_bytes(), depth + 1, odd, out)?;
    }
    out.push(b'}');
    Some(())
}

fn write_array(raw: &[u8], depth: usize, odd: Odd, out: &mut Vec<u8>) -> Option<()> {
    let mut elements = Vec::new();
    Scanner::new(raw).at_most(deepest(odd)).array(|element| elements.push(element)).ok()?;
    out.push(b'[');
    for (index, element) in elements.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(&raw[element], depth + 1, odd, out)?;
    }
    out.push(b']');
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn form(text: &str) -> Option<String> {
        object(text.as_bytes()).map(|form| String::from_utf8(form).unwrap())
    }

    #[test]
    fn every_spelling_of_a_value_has_the_same_form() {
        let one = r#"{"b":[1,{"y":null,"x":"é"}],"a":"A/"}"#;
        for same in [
            " { \"a\" : \"\\u0041\\/\" ,\n\"b\" : [ 1 , { \"x\":\"\\u00e9\", \"y\" : null } ] } ",
            r#"{"\u0062":[1,{"x":"é","y":null}],"a":"A/"}"#,
        ] {
            assert_eq!(form(same), form(one), "{same}");
        }
        assert_eq!(form(one).unwrap(), r#"{"a":"A/","b":[1,{"x":"é","y":null}]}"#);
    }

    #[test]
    fn what_differs_by_value_or_in_unicode_form_differs() {
        for (one, other) in [
            (r#"{"a":1}"#, r#"{"a":1.0}"#),
            (r#"{"a":9007199254740992}"#, r#"{"a":9007199254740993}"#),
            (r#"{"a":1}"#, r#"{"a":"1"}"#),
            (r#"{"a":[1,2]}"#, r#"{"a":[2,1]}"#),
            (r#"{"a":null}"#, "{}"),
            ("{\"k\u{e9}\":1}", "{\"ke\u{301}\":1}"),
            ("{\"a\":\"\u{212b}\"}", "{\"a\":\"\u{c5}\"}"),
            (r#"{"a":true}"#, r#"{"a":false}"#),
            (r#"{"a":{"b":1}}"#, r#"{"a":{},"b":1}"#),
        ] {
            let (one, other) = (form(one).unwrap(), form(other).unwrap());
            assert_ne!(one, other);
        }
    }

    #[test]
    fn what_can_be_read_in_two_ways_has_no_form() {
        for odd in
            ["[1]", "1", "", r#"{"a":1,"a":1}"#, r#"{"x":{"a":1,"\u0061":2}}"#, r#"{"a":"\ud800"}"#, "{"]
        {
            assert_eq!(form(odd), None, "{odd}");
        }
        let nested = |levels: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert!(form(&nested(30)).is_some());
        assert_eq!(form(&nested(100_000)), None);
        assert_eq!(form(&format!(r#"{{"a":"{}"}}"#, "x".repeat(LONGEST))), None);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-cé\"\\\\]{0,3}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn what_has_no_form_stays_as_it_is_spelled_where_anything_is_taken() {
        let form = |raw: &str| String::from_utf8(text(raw.as_bytes())).unwrap();
        assert_eq!(form(r#" {"b":{"y":1, "y":2},"a":"\u0041"} "#), r#"{"a":"A","b":{"y":1, "y":2}}"#);
        assert_eq!(form(r#"{"b":["\ud800", 1],"a":0}"#), r#"{"a":0,"b":["\ud800",1]}"#);
        for raw in ["", "{", "nonsense", "\"", r#"{"a":1,"a":1}"#] {
            assert_eq!(form(raw), raw);
        }
    }

    proptest! {
        #[test]
        fn two_forms_are_equal_exactly_if_the_values_are(one in value(), other in value()) {
            let [one, other] = [one, other].map(|value| json!({"v": value}));
            let pretty = serde_json::to_string_pretty(&one).unwrap();
            prop_assert_eq!(form(&one.to_string()), form(&pretty));
            prop_assert_eq!(form(&one.to_string()) == form(&other.to_string()), one == other);
        }

        #[test]
        fn what_is_seen_to_be_a_form_at_a_glance_is_one(text in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "\"a\"", "\"b\"", "\"\\n\"", "\"é\"", ":", ",", "1", "-", "0", "true", "null", "1.0", " ", "[", "]", "\n",
        ]), 1..9)) {
            let text = format!("{{\"a\":{}", text.concat());
            if is_form(text.as_bytes()) {
                let mut out = Vec::new();
                prop_assert_eq!(write(text.as_bytes(), 0, Odd::Refused, &mut out), Some(()));
                prop_assert_eq!(out, text.as_bytes());
            }
        }

        #[test]
        fn the_order_of_names_makes_no_difference(members in prop::collection::btree_map("[a-z]{1,4}", any::<u8>(), 0..8)) {
            let forward: Map<String, Value> = members.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
            let backward: Vec<String> = members.iter().rev().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            prop_assert_eq!(form(&Value::Object(forward).to_string()), form(&format!("{{{}}}", backward.join(","))));
        }

        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (object(&bytes), text(&bytes));
        }
    }
}
