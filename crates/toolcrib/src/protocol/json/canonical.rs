//! Canonical JSON, similar to RFC 8785: equal values get equal bytes.
//!
//! Member names are sorted, whitespace is dropped and escapes are decoded. Numbers keep their spelling, because servers
//! may treat `1` and `1.0` differently and large numbers do not fit a `double`. Text is not normalized.

use std::borrow::Cow;
use std::ops::Range;

use super::object::{as_string, decode_name, write_string};
use super::scan::{QuotedString, ScanError, ScanResult, Scanner, plain_prefix_len};

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
    write_text(raw, AmbiguityRule::Reject, &mut |_| {})
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
    canonicalize_and_visit(raw, |_| {})
}

/// Like [`canonicalize`]. If the text is an object, `visit` is called with the decoded name of each of its members.
pub(crate) fn canonicalize_and_visit(raw: &[u8], mut visit: impl FnMut(&[u8])) -> Vec<u8> {
    let raw = raw.trim_ascii();
    write_text(raw, AmbiguityRule::KeepSpelling, &mut visit).unwrap_or_else(|| raw.to_vec())
}

/// Returns a text in canonical form. Returns `None` if it is not JSON, or if it is ambiguous and the rule rejects that.
fn write_text(raw: &[u8], rule: AmbiguityRule, visit_name: &mut dyn FnMut(&[u8])) -> Option<Vec<u8>> {
    let mut scanner = Scanner::new(raw);
    if !scanner.is_ascii() {
        std::str::from_utf8(raw).ok()?;
    }
    let out = Vec::with_capacity(raw.len());
    let members = Vec::with_capacity(16);
    let mut writer = CanonicalWriter { raw, rule, out, members, unsorted: Vec::new(), visit_name };
    writer.write_value(&mut scanner, 0).ok()?;
    scanner.expect_end().ok()?;
    Some(writer.out)
}

/// Writes values while they are scanned, so that a text is read once however deep it is nested. A usual definition of a tool
/// takes 12,000 instructions, and 22,000 if each level is read for itself.
struct CanonicalWriter<'a, 'v> {
    raw: &'a [u8],
    rule: AmbiguityRule,
    out: Vec<u8>,
    /// The members so far of the objects around the current value, innermost last.
    members: Vec<WrittenMember<'a>>,
    /// A copy of an object whose members are to be sorted.
    unsorted: Vec<u8>,
    /// Called with the name of each member of the outermost object.
    visit_name: &'v mut dyn FnMut(&[u8]),
}

/// A member that was written.
struct WrittenMember<'a> {
    name: Cow<'a, [u8]>,
    /// Its name and value in the output.
    written: Range<usize>,
}

impl<'a> CanonicalWriter<'a, '_> {
    fn write_value(&mut self, scanner: &mut Scanner<'a>, depth: usize) -> ScanResult<()> {
        match scanner.peek_value() {
            Some(b'"') => {
                let text = scanner.scan_string()?;
                self.write_string_value(text)
            }
            Some(b'{' | b'[') if depth >= MAX_DEPTH => {
                let value = scanner.scan_value()?;
                self.keep_spelling(value)
            }
            Some(b'{') => self.write_object(scanner, depth),
            Some(b'[') => self.write_array(scanner, depth),
            _ => {
                let value = scanner.scan_value()?;
                self.out.extend_from_slice(&self.raw[value]);
                Ok(())
            }
        }
    }

    fn write_string_value(&mut self, text: QuotedString) -> ScanResult<()> {
        let raw = &self.raw[text.range.clone()];
        // A string without escapes is canonical already.
        if !text.has_escapes {
            self.out.extend_from_slice(raw);
            return Ok(());
        }
        match as_string(raw) {
            Some(text) => {
                write_string(&mut self.out, &text);
                Ok(())
            }
            None => self.keep_spelling(text.range),
        }
    }

    fn write_array(&mut self, scanner: &mut Scanner<'a>, depth: usize) -> ScanResult<()> {
        self.out.push(b'[');
        let mut is_first = true;
        scanner.scan_elements(|scanner| {
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            self.write_value(scanner, depth + 1)
        })?;
        self.out.push(b']');
        Ok(())
    }

    fn write_object(&mut self, scanner: &mut Scanner<'a>, depth: usize) -> ScanResult<()> {
        let start = self.out.len();
        let first_member = self.members.len();
        let mut is_ambiguous = false;
        self.out.push(b'{');
        let object = scanner.scan_object_value(|scanner, quoted| {
            if self.members.len() > first_member {
                self.out.push(b',');
            }
            let member_start = self.out.len();
            let quoted_range = quoted.range.clone();
            let name = decode_name(self.raw, quoted).unwrap_or_else(|_| {
                is_ambiguous = true;
                Cow::default()
            });
            if depth == 0 {
                (self.visit_name)(&name);
            }
            match &name {
                Cow::Borrowed(_) => self.out.extend_from_slice(&self.raw[quoted_range]),
                Cow::Owned(decoded) => write_string(&mut self.out, &String::from_utf8_lossy(decoded)),
            }
            self.out.push(b':');
            self.write_value(scanner, depth + 1)?;
            self.members.push(WrittenMember { name, written: member_start..self.out.len() });
            Ok(())
        })?;
        self.out.push(b'}');
        is_ambiguous |= !self.sort_members(start, first_member);
        self.members.truncate(first_member);
        if is_ambiguous {
            self.out.truncate(start);
            return self.keep_spelling(object);
        }
        Ok(())
    }

    /// Sorts the members of the object that was written last, which begins at `start`. Returns `false` if two have the same
    /// name.
    fn sort_members(&mut self, start: usize, first_member: usize) -> bool {
        let members = &mut self.members[first_member..];
        if members.is_sorted_by(|left, right| left.name < right.name) {
            return true;
        }
        members.sort_unstable_by(|left, right| left.name.cmp(&right.name));
        if members.windows(2).any(|pair| pair[0].name == pair[1].name) {
            return false;
        }
        self.unsorted.clear();
        // Enough for every object of the text.
        self.unsorted.reserve(self.raw.len());
        self.unsorted.extend_from_slice(&self.out[start..]);
        self.out.truncate(start + 1);
        for (index, member) in members.iter().enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            let written = member.written.start - start..member.written.end - start;
            self.out.extend_from_slice(&self.unsorted[written]);
        }
        self.out.push(b'}');
        true
    }

    /// Writes an ambiguous value as it is, unless the rule rejects it.
    fn keep_spelling(&mut self, value: Range<usize>) -> ScanResult<()> {
        if self.rule == AmbiguityRule::Reject {
            return Err(ScanError { offset: value.start, expected: "an unambiguous value" });
        }
        self.out.extend_from_slice(&self.raw[value]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::super::object::{Object, parse_array, to_json_string};
    use super::super::scan;
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

    /// Canonicalizes each level for itself.
    fn canonicalize_by_level(raw: &Bytes, depth: usize) -> Vec<u8> {
        let is_too_deep = depth >= MAX_DEPTH;
        if let Some(object) = Object::parse(raw).ok().filter(|_| !is_too_deep) {
            let sorted: BTreeMap<&str, &Bytes> = object.iter().collect();
            let member = |(name, value): (&str, &Bytes)| {
                [&*to_json_string(name), b":", &canonicalize_by_level(value, depth + 1)].concat()
            };
            let members: Vec<Vec<u8>> = sorted.into_iter().map(member).collect();
            return [b"{", &*members.join(&b","[..]), b"}"].concat();
        }
        if let Some(elements) = parse_array(raw).ok().filter(|_| !is_too_deep) {
            let elements: Vec<Vec<u8>> =
                elements.iter().map(|element| canonicalize_by_level(element, depth + 1)).collect();
            return [b"[", &*elements.join(&b","[..]), b"]"].concat();
        }
        as_string(raw).map_or_else(|| raw.to_vec(), |text| to_json_string(&text).to_vec())
    }

    #[test]
    fn values_that_are_nested_too_deep_keep_their_spelling() {
        for depth in [62, 63, 64, 65, 200] {
            let text = format!(r#"{{"b":{}{{"y":1, "x":2}}{},"a":0}}"#, "[".repeat(depth), "]".repeat(depth));
            let expected = canonicalize_by_level(&Bytes::from(text.clone()), 0);
            assert_eq!(canonicalize(text.as_bytes()), expected, "{depth}");
            assert_eq!(canonical(&text).is_some(), depth + 1 < MAX_DEPTH, "{depth}");
        }
    }

    #[test]
    fn visit_gets_the_decoded_names_of_the_outermost_object() {
        let mut names = Vec::new();
        canonicalize_and_visit(br#" {"b":{"x":1},"\u0061":[{"y":2}]}"#, |name| names.push(name.to_vec()));
        assert_eq!(names, [b"b", b"a"]);
    }

    proptest! {
        #[test]
        fn one_scan_writes_what_one_scan_per_level_writes(parts in prop::collection::vec(prop::sample::select(vec![
            "{", "{\"a\":", "}", "[", "]", ",", ",\"b\":", ", \"\\u0061\" :", ",\"\\ud800\":", ":", "\"é\"", "\"a\\n\"",
            "\"\\u0041\"", "\"\\ud800\"", "\"", "1.0", "-", "true", " ", "\n", "{\"b\":1,\"a\":[ 2 ]}", "[1, {}]", "{\"x\":1, \"x\":2}",
        ]), 1..12)) {
            let text = Bytes::from(parts.concat().trim_ascii().to_owned());
            // Parts of a text that is not JSON may be JSON.
            let expected = if scan::is_json(&text) { canonicalize_by_level(&text, 0) } else { text.to_vec() };
            prop_assert_eq!(canonicalize(&text), expected);
        }

        #[test]
        fn one_scan_writes_nested_values(value in value()) {
            let pretty = Bytes::from(serde_json::to_string_pretty(&value).unwrap());
            prop_assert_eq!(canonicalize(&pretty), canonicalize_by_level(&pretty, 0));
        }

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
                let written = write_text(text.as_bytes(), AmbiguityRule::Reject, &mut |_| {});
                prop_assert_eq!(written.as_deref(), Some(text.as_bytes()));
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
