//! JSON in the one form that all spellings of a value share, in the manner of RFC 8785. Pure.
//!
//! Names are sorted, blanks dropped and escapes undone. Numbers stay as they are spelled: `1` and `1.0` are not the same
//! to every server, and large ones are not the same as the nearest that a `double` can hold. Text is not normalised.

use std::borrow::Cow;

use crate::wire::object::{as_string, each_member, write_string};
use crate::wire::scan::Scanner;

/// The longest text that is brought into the form, and the deepest.
const LONGEST: usize = 64 << 10;
const DEEPEST: usize = 64;

/// An object in canonical form; `None` for whatever has none: what is no object, a name that is there twice, half a
/// character, and what is too long or too deep.
pub(crate) fn object(raw: &[u8]) -> Option<Vec<u8>> {
    let raw = raw.trim_ascii();
    if raw.first() != Some(&b'{') || raw.len() > LONGEST {
        return None;
    }
    let mut out = Vec::with_capacity(raw.len());
    write(raw, 0, &mut out)?;
    Some(out)
}

fn write(raw: &[u8], depth: usize, out: &mut Vec<u8>) -> Option<()> {
    match raw.first()? {
        _ if depth > DEEPEST => return None,
        b'{' => write_object(raw, depth, out)?,
        b'[' => write_array(raw, depth, out)?,
        b'"' => write_string(out, &as_string(raw)?),
        _ => out.extend_from_slice(raw),
    }
    Some(())
}

fn write_object(raw: &[u8], depth: usize, out: &mut Vec<u8>) -> Option<()> {
    let mut members: Vec<(Cow<'_, str>, &str)> = Vec::new();
    let read = each_member(raw, DEEPEST, |name, value| {
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
        write_string(out, name);
        out.push(b':');
        write(value.as_bytes(), depth + 1, out)?;
    }
    out.push(b'}');
    Some(())
}

fn write_array(raw: &[u8], depth: usize, out: &mut Vec<u8>) -> Option<()> {
    let mut elements = Vec::new();
    Scanner::new(raw).at_most(DEEPEST).array(|element| elements.push(element)).ok()?;
    out.push(b'[');
    for (index, element) in elements.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write(&raw[element], depth + 1, out)?;
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

    proptest! {
        #[test]
        fn two_forms_are_equal_exactly_if_the_values_are(one in value(), other in value()) {
            let [one, other] = [one, other].map(|value| json!({"v": value}));
            let pretty = serde_json::to_string_pretty(&one).unwrap();
            prop_assert_eq!(form(&one.to_string()), form(&pretty));
            prop_assert_eq!(form(&one.to_string()) == form(&other.to_string()), one == other);
        }

        #[test]
        fn the_order_of_names_makes_no_difference(members in prop::collection::btree_map("[a-z]{1,4}", any::<u8>(), 0..8)) {
            let forward: Map<String, Value> = members.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
            let backward: Vec<String> = members.iter().rev().map(|(name, value)| format!("\"{name}\":{value}")).collect();
            prop_assert_eq!(form(&Value::Object(forward).to_string()), form(&format!("{{{}}}", backward.join(","))));
        }

        #[test]
        fn no_bytes_break_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = object(&bytes);
        }
    }
}
