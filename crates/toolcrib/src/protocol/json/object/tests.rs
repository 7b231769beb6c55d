//! Tests of objects, strings and numbers.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Object, BadJson> {
    Object::parse(&Bytes::copy_from_slice(text.as_bytes()))
}

#[test]
fn object_keeps_bytes_and_order_of_values() {
    let text =
        r#"{"z":1e400,"a":{"b":1.10,"b":2,"n":[ 1 , 2 ]},"é\"":"\u0041","big":12345678901234567890123}"#;
    let mut object = parse(text).unwrap();
    assert_eq!(object.to_bytes(), text.as_bytes());
    object.set("z", "7").unwrap();
    assert_eq!(object.to_bytes(), text.replace("1e400", "7").as_bytes());
}

#[test]
fn set_refuses_anything_but_one_value() {
    let mut object = parse(r#"{"a":1}"#).unwrap();
    for bad in ["", "1,", r#"1,"name":"env""#, "{}}", "{} {}", "\"", "nul"] {
        assert!(object.set("a", bad).is_err() && object.set("b", bad).is_err(), "{bad}");
    }
    assert!(object.set("a", &b"\"\xff\""[..]).is_err());
    assert_eq!(object.to_bytes(), r#"{"a":1}"#.as_bytes());
    object.set("a", " [ 2 ] ").unwrap();
    object.set("b", "null").unwrap();
    assert_eq!(object.to_bytes(), r#"{"a": [ 2 ] ,"b":null}"#.as_bytes());
}

#[test]
fn parse_rejects_a_repeated_name_in_any_spelling() {
    assert!(parse(r#"{"name":1,"n\u0061me":2}"#).unwrap_err().reason.contains("`name` appears twice"));
    let many: String = (0..100).map(|n| format!("\"k{n}\":0,")).collect();
    assert!(parse(&format!("{{{many}\"k7\":1}}")).is_err());
    assert!(parse(&format!("{{{many}\"k\":1}}")).is_ok());
}

#[test]
fn parse_rejects_anything_but_one_object() {
    for bad in ["", "[]", "1", "{", r#"{"a":tru}"#, r#"{"a":1}x"#, "{\"a\":\"\n\"}", r#"{"a":1,}"#] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    assert!(parse("[]").unwrap_err().is_json);
    assert!(!parse("{").unwrap_err().is_json);
}

#[test]
fn parse_handles_deep_nesting_without_recursion() {
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(parse(&deep).unwrap().to_bytes().len(), deep.len());
}

#[test]
fn as_integer_accepts_every_spelling() {
    for spelling in ["1", "1.0", "1e0", "10e-1"] {
        assert_eq!(as_integer(spelling.as_bytes()), Some(1), "{spelling}");
    }
    assert_eq!(as_integer(b"18446744073709551615"), Some(u64::MAX));
    for other in ["", "18446744073709551616", "\"1\"", "1.5", "-1", "null", "1e400", "true", "NaN", "inf"] {
        assert_eq!(as_integer(other.as_bytes()), None, "{other}");
    }
}

proptest! {
    #[test]
    fn objects_round_trip(members in prop::collection::btree_map(".{0,8}", json(), 0..20)) {
        let mut text = Vec::new();
        text.push(b'{');
        for (index, (key, value)) in members.iter().enumerate() {
            if index > 0 { text.push(b','); }
            write_string(&mut text, key);
            text.push(b':');
            text.extend_from_slice(value.as_bytes());
        }
        text.push(b'}');
        let source = Bytes::from(text);
        prop_assert_eq!(Object::parse(&source).unwrap().to_bytes(), source);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Object::parse(&bytes.into());
    }

    #[test]
    fn list_is_parsed_as_without_its_object(parts in prop::collection::vec(prop::sample::select(vec![
        "{", "}", "[", "]", ",", ":", "\"list\":[", "\"l\\u0069st\"", "\"a\":1", "\"a\":{ \"x\":[] }", "\"\\ud800\":2", "7", " ",
        "{\"a\":1}", "{\"a\":1,\"a\":2}", "{\"\\ud800\":1}", "\"é\"", "tru",
    ]), 0..10)) {
        let text = parts.concat();
        for source in [text.clone(), format!("{{{text}}}"), format!("{{\"list\":[{text}]}}")].map(Bytes::from) {
            let expected = Object::parse(&source);
            let parsed = Object::parse_with_list(&source, "list");
            prop_assert_eq!(parsed.as_ref().map(|parsed| &parsed.object), expected.as_ref());
            let Ok(ObjectWithList { object, elements }) = parsed else { continue };
            let list = object.get("list").and_then(|list| parse_array(list).ok());
            let parse = |raw: Bytes| (Object::parse(&raw).ok(), raw);
            let expected: Option<Vec<_>> = list.map(|list| list.into_iter().map(parse).collect());
            let split = |element: ListElement| (element.object, element.raw);
            let elements: Option<Vec<_>> = elements.map(|elements| elements.into_iter().map(split).collect());
            prop_assert_eq!(elements, expected);
        }
    }

    #[test]
    fn borrowed_object_has_the_same_members(text in prop::collection::vec(prop::sample::select(vec![
        "{", "}", ",", "\"a\":1", "\"b\":[ 2 ]", "\"\\u0061\":3", "\"\\ud800\":4", "\"é\":{}", " ",
    ]), 0..8)) {
        let source = Bytes::from(format!("{{{}}}", text.concat()));
        let object = Object::parse(&source).ok();
        let borrowed = BorrowedObject::parse(&source);
        prop_assert_eq!(object.is_some(), borrowed.is_some());
        let members = borrowed.iter().flat_map(|borrowed| &borrowed.members);
        let members: Vec<(&[u8], &[u8])> = members.map(|member| (&*member.name, member.value)).collect();
        let expected = object.iter().flat_map(Object::iter);
        let expected: Vec<(&[u8], &[u8])> = expected.map(|(name, value)| (name.as_bytes(), &**value)).collect();
        prop_assert_eq!(members, expected);
    }

    #[test]
    fn write_number_matches_display(number in prop_oneof![any::<u64>(), 0u64..1000, Just(u64::MAX)]) {
        let mut out = Vec::new();
        write_number(&mut out, number);
        prop_assert_eq!(out, number.to_string().into_bytes());
    }

    #[test]
    fn strings_round_trip(text in ".*") {
        let raw = to_json_string(&text);
        prop_assert!(is_string(&raw, &text));
        prop_assert_eq!(as_string(&raw).unwrap(), text);
    }

    #[test]
    fn strings_are_written_as_by_serde(text in "[ -~\\u{0}-\\u{1f}\"\\\\é\u{7f}]{0,40}") {
        prop_assert_eq!(to_json_string(&text), serde_json::Value::from(text).to_string());
    }

    #[test]
    fn is_string_matches_as_string(raw in "\"[ab\\\\u061]{0,8}\"", text in "[ab\\\\]{0,2}") {
        prop_assert_eq!(is_string(raw.as_bytes(), &text), as_string(raw.as_bytes()).as_deref() == Some(&*text));
    }
}

fn json() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("null".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u16>().prop_map(|n| format!("{n}.10e+400")),
        ".{0,10}".prop_map(|text| serde_json::Value::from(text).to_string()),
        prop::collection::vec(any::<bool>(), 0..4)
            .prop_map(|list| format!("[ {} ]", serde_json::json!(list))),
    ]
}
