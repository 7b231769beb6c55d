//! Canonical JSON, similar to RFC 8785: equal values get equal bytes.
//!
//! Member names are sorted, whitespace is dropped and escapes are decoded. Numbers keep their spelling, because servers
//! may treat `1` and `1.0` differently and large numbers do not fit a `double`. Text is not normalized.

use std::borrow::Cow;

use super::object::{as_string, for_each_member, write_string};
use super::scan::{Scanner, plain_prefix_len};

/// Longest object that is canonicalized, in bytes.
const MAX_LEN: usize = 64 << 10;
/// Deepest nesting that is canonicalized.
const MAX_DEPTH: usize = 64;

/// Treatment of a value that is ambiguous or nested too deeply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AmbiguityRule {
    /// The whole input is rejected.
    Reject,
    /// The value keeps its spelling.
    KeepSpelling,
}

/// Returns an object in canonical form. Returns `None` if the input is not an object, repeats a member name, contains
/// an unpaired surrogate, or exceeds [`MAX_LEN`] or [`MAX_DEPTH`].
pub(crate) fn canonicalize_object(raw: &[u8]) -> Option<Vec<u8>> {
    let raw = raw.trim_ascii();
    if raw.first() != Some(&b'{') || raw.len() > MAX_LEN {
        return None;
    }
    if is_plainly_canonical(raw) {
        return Some(raw.to_vec());
    }
    let mut out = Vec::with_capacity(raw.len());
    write_value(raw, 0, AmbiguityRule::Reject, &mut out)?;
    Some(out)
}

/// Returns whether an object is obviously canonical already: sorted names, strings without escapes, integers, no
/// whitespace and nothing nested. Most arguments are.
fn is_plainly_canonical(raw: &[u8]) -> bool {
    let is_printable = raw.iter().fold(true, |all, byte| all & (0x20..0x7f).contains(byte));
    let Some(mut rest) = raw.strip_prefix(b"{").filter(|_| is_printable) else { return false };
    let mut previous: Option<&[u8]> = None;
    loop {
        let Some((name, after)) = split_string(rest) else { return false };
        let Some(value) = after.strip_prefix(b":") else { return false };
        if previous.is_some_and(|previous| previous >= name) {
            return false;
        }
        let after = split_string(value).map(|(_, after)| after).or_else(|| skip_literal(value));
        match after {
            Some([b'}']) => return true,
            Some([b',', next @ ..]) => {
                previous = Some(name);
                rest = next;
            }
            _ => return false,
        }
    }
}

/// Splits off the string at the start, without its quotes.
fn split_string(raw: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = raw.strip_prefix(b"\"")?;
    let (text, after) = text.split_at(plain_prefix_len(text));
    Some((text, after.strip_prefix(b"\"")?))
}

/// Returns the rest after the literal or integer at the start.
fn skip_literal(raw: &[u8]) -> Option<&[u8]> {
    let (value, after) = raw.split_at(raw.iter().position(|byte| matches!(byte, b',' | b'}'))?);
    let digits = value.strip_prefix(b"-").unwrap_or(value);
    let is_integer = digits.iter().all(u8::is_ascii_digit) && matches!(digits, [_] | [b'1'..=b'9', ..]);
    (is_integer || matches!(value, b"true" | b"false" | b"null")).then_some(after)
}

/// Returns any text in canonical form. Parts that have none keep their spelling, so that no difference is lost.
pub(crate) fn canonicalize(raw: &[u8]) -> Vec<u8> {
    let raw = raw.trim_ascii();
    let mut out = Vec::with_capacity(raw.len());
    if write_value(raw, 0, AmbiguityRule::KeepSpelling, &mut out).is_none() {
        out.extend_from_slice(raw);
    }
    out
}

fn write_value(raw: &[u8], depth: usize, rule: AmbiguityRule, out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    let written = match raw.first()? {
        b'{' | b'[' if depth >= MAX_DEPTH => None,
        b'{' => write_object(raw, depth, rule, out),
        b'[' => write_array(raw, depth, rule, out),
        // A string without escapes is canonical already.
        b'"' if memchr::memchr(b'\\', raw).is_some() => as_string(raw).map(|text| write_string(out, &text)),
        _ => {
            out.extend_from_slice(raw);
            Some(())
        }
    };
    if written.is_none() && rule == AmbiguityRule::KeepSpelling {
        out.truncate(start);
        out.extend_from_slice(raw);
        return Some(());
    }
    written
}

/// Nesting that the scanner accepts inside one value.
fn depth_limit(rule: AmbiguityRule) -> usize {
    if rule == AmbiguityRule::Reject { MAX_DEPTH } else { usize::MAX }
}

fn write_object(raw: &[u8], depth: usize, rule: AmbiguityRule, out: &mut Vec<u8>) -> Option<()> {
    let mut members: Vec<(Cow<'_, [u8]>, &[u8])> = Vec::new();
    let read = for_each_member(raw, depth_limit(rule), |name, value| {
        members.push((name, value));
        Ok(())
    });
    read.ok()?;
    members.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
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
                out.extend_from_slice(name);
                out.push(b'"');
            }
            Cow::Owned(decoded) => write_string(out, &String::from_utf8_lossy(decoded)),
        }
        out.push(b':');
        write_value(value, depth + 1, rule, out)?;
    }
    out.push(b'}');
    Some(())
}

fn write_array(raw: &[u8], depth: usize, rule: AmbiguityRule, out: &mut Vec<u8>) -> Option<()> {
    let mut elements = Vec::new();
    Scanner::new(raw).max_depth(depth_limit(rule)).scan_array(|element| elements.push(element)).ok()?;
    out.push(b'[');
    for (index, element) in elements.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_value(&raw[element], depth + 1, rule, out)?;
    }
    out.push(b']');
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;

    fn canonical(text: &str) -> Option<String> {
        canonicalize_object(text.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn equal_values_have_the_same_canonical_form() {
        let reference = r#"{"b":[1,{"y":null,"x":"é"}],"a":"A/"}"#;
        for same in [
            " { \"a\" : \"\\u0041\\/\" ,\n\"b\" : [ 1 , { \"x\":\"\\u00e9\", \"y\" : null } ] } ",
            r#"{"\u0062":[1,{"x":"é","y":null}],"a":"A/"}"#,
        ] {
            assert_eq!(canonical(same), canonical(reference), "{same}");
        }
        assert_eq!(canonical(reference).unwrap(), r#"{"a":"A/","b":[1,{"x":"é","y":null}]}"#);
    }

    #[test]
    fn different_values_or_unicode_forms_differ() {
        for (left, right) in [
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
            assert_ne!(canonical(left).unwrap(), canonical(right).unwrap());
        }
    }

    #[test]
    fn ambiguous_input_has_no_canonical_form() {
        for ambiguous in
            ["[1]", "1", "", r#"{"a":1,"a":1}"#, r#"{"x":{"a":1,"\u0061":2}}"#, r#"{"a":"\ud800"}"#, "{"]
        {
            assert_eq!(canonical(ambiguous), None, "{ambiguous}");
        }
        let nested = |levels: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert!(canonical(&nested(30)).is_some());
        assert_eq!(canonical(&nested(100_000)), None);
        assert_eq!(canonical(&format!(r#"{{"a":"{}"}}"#, "x".repeat(MAX_LEN))), None);
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
    fn canonicalize_keeps_the_spelling_of_ambiguous_parts() {
        let canonical = |raw: &str| String::from_utf8(canonicalize(raw.as_bytes())).unwrap();
        assert_eq!(canonical(r#" {"b":{"y":1, "y":2},"a":"\u0041"} "#), r#"{"a":"A","b":{"y":1, "y":2}}"#);
        assert_eq!(canonical(r#"{"b":["\ud800", 1],"a":0}"#), r#"{"a":0,"b":["\ud800",1]}"#);
        for raw in ["", "{", "nonsense", "\"", r#"{"a":1,"a":1}"#] {
            assert_eq!(canonical(raw), raw);
        }
    }

    proptest! {
        #[test]
        fn forms_are_equal_exactly_if_values_are(left in value(), right in value()) {
            let [left, right] = [left, right].map(|value| json!({"v": value}));
            let pretty = serde_json::to_string_pretty(&left).unwrap();
            prop_assert_eq!(canonical(&left.to_string()), canonical(&pretty));
            prop_assert_eq!(canonical(&left.to_string()) == canonical(&right.to_string()), left == right);
        }

        #[test]
        fn plainly_canonical_objects_are_canonical(text in prop::collection::vec(prop::sample::select(vec![
            "{", "}", "\"a\"", "\"b\"", "\"\\n\"", "\"é\"", ":", ",", "1", "-", "0", "true", "null", "1.0", " ", "[", "]", "\n",
        ]), 1..9)) {
            let text = format!("{{\"a\":{}", text.concat());
            if is_plainly_canonical(text.as_bytes()) {
                let mut out = Vec::new();
                prop_assert_eq!(write_value(text.as_bytes(), 0, AmbiguityRule::Reject, &mut out), Some(()));
                prop_assert_eq!(out, text.as_bytes());
            }
        }

        #[test]
        fn member_order_makes_no_difference(members in prop::collection::btree_map("[a-z]{1,4}", any::<u8>(), 0..8)) {
            let forward: Map<String, Value> = members.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
            let backward: Vec<String> = members.iter().rev().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            prop_assert_eq!(canonical(&Value::Object(forward).to_string()), canonical(&format!("{{{}}}", backward.join(","))));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (canonicalize_object(&bytes), canonicalize(&bytes));
        }
    }
}
