//! `Object`: a JSON object read one level deep.
//!
//! Values are slices of the bytes they arrived in: validated, never decoded, written again exactly as they were, so
//! number spelling, member order and members nobody here knows all survive.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;

use super::scan::{self, Fault, Scanner};

/// A JSON object whose values stay raw JSON.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Object {
    members: Vec<(Key, Bytes)>,
}

/// A member's name, decoded.
type Key = Cow<'static, str>;

/// A name to be kept. Those that most calls and results have are not copied.
fn kept(name: Cow<'_, str>) -> Key {
    Cow::Borrowed(match &*name {
        "name" => "name",
        "arguments" => "arguments",
        "_meta" => "_meta",
        "content" => "content",
        "isError" => "isError",
        "structuredContent" => "structuredContent",
        "resultType" => "resultType",
        "ttlMs" => "ttlMs",
        "cacheScope" => "cacheScope",
        _ => return Cow::Owned(name.into_owned()),
    })
}

/// Why bytes are not the object that was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadJson {
    /// What is wrong, and where.
    pub why: String,
    /// Whether the bytes are JSON at all.
    pub is_json: bool,
}

impl BadJson {
    pub(crate) fn shape(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_json: true }
    }
}

impl From<Fault> for BadJson {
    fn from(fault: Fault) -> Self {
        Self { why: format!("{} was expected at byte {}", fault.expected, fault.at), is_json: false }
    }
}

impl fmt::Display for BadJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for BadJson {}

impl Object {
    /// Reads one object. Everything in it is checked to be JSON; a name that appears twice is refused, because two
    /// readers could see two different values.
    pub fn parse(source: &Bytes) -> Result<Self, BadJson> {
        let mut members = Vec::new();
        each_member(source, usize::MAX, |key, value| {
            members.push((kept(key), source.slice_ref(value.as_bytes())));
            Ok(())
        })?;
        let object = Self { members };
        match object.repeated() {
            Some(key) => Err(BadJson::shape(format!("the member `{key}` appears twice"))),
            None => Ok(object),
        }
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// A member's raw value.
    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.members.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// A member's value, if it is a string.
    pub fn string(&self, key: &str) -> Option<Cow<'_, str>> {
        as_string(self.get(key)?)
    }

    /// Names and raw values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.members.iter().map(|(key, value)| (&**key, value))
    }

    /// Replaces a member in its place, or adds it at the end. `value` must be JSON.
    pub fn set(&mut self, key: &'static str, value: impl Into<Bytes>) {
        let value = value.into();
        match self.members.iter_mut().find(|(name, _)| name == key) {
            Some(member) => member.1 = value,
            None => self.members.push((Cow::Borrowed(key), value)),
        }
    }

    /// Takes a member out.
    pub fn remove(&mut self, key: &str) -> Option<Bytes> {
        let at = self.members.iter().position(|(name, _)| name == key)?;
        Some(self.members.remove(at).1)
    }

    /// Keeps the members that `keep` says yes to.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.members.retain(|(key, _)| keep(key));
    }

    /// Appends the object as JSON without added blanks.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        for (index, (key, value)) in self.members.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            write_string(out, key);
            out.push(b':');
            out.extend_from_slice(value);
        }
        out.push(b'}');
    }

    /// The object as JSON.
    pub fn to_bytes(&self) -> Bytes {
        let mut out =
            Vec::with_capacity(self.members.iter().map(|(key, value)| key.len() + value.len() + 4).sum());
        self.write(&mut out);
        out.into()
    }

    fn repeated(&self) -> Option<&str> {
        let mut keys = self.members.iter().map(|(key, _)| &**key);
        if self.members.len() <= 16 {
            return keys
                .enumerate()
                .find(|(at, key)| self.members[..*at].iter().any(|(name, _)| name == key))
                .map(|(_, key)| key);
        }
        let mut seen = HashSet::new();
        keys.find(|key| !seen.insert(*key))
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.members.iter().map(|(key, value)| (key, String::from_utf8_lossy(value))))
            .finish()
    }
}

/// Calls `visit` with every member of the one object in `source`: its decoded name and its raw value, which is nested
/// no deeper than `deepest`.
pub(crate) fn each_member<'a>(
    source: &'a [u8],
    deepest: usize,
    mut visit: impl FnMut(Cow<'a, str>, &'a str) -> Result<(), BadJson>,
) -> Result<(), BadJson> {
    let text = utf8(source)?;
    if source.trim_ascii_start().first() != Some(&b'{') && scan::is_json(source) {
        return Err(BadJson::shape("an object was expected"));
    }
    Scanner::new(source).at_most(deepest).object(|name, value| {
        let inner = name.range.start + 1..name.range.end - 1;
        let decoded = match name.escaped {
            false => Cow::Borrowed(&text[inner]),
            true => {
                as_string(&source[name.range]).ok_or_else(|| BadJson::shape("a name cannot be decoded"))?
            }
        };
        visit(decoded, &text[value])
    })
}

/// The elements of a raw JSON array.
pub fn elements(array: &Bytes) -> Result<Vec<Bytes>, BadJson> {
    utf8(array)?;
    let mut elements = Vec::new();
    Scanner::new(array).array(|element| elements.push(array.slice(element)))?;
    Ok(elements)
}

fn utf8(source: &[u8]) -> Result<&str, BadJson> {
    std::str::from_utf8(source).map_err(|error| BadJson {
        why: format!("it is not UTF-8 from byte {} on", error.valid_up_to()),
        is_json: false,
    })
}

/// The text of a raw JSON string, `None` for any other value.
pub fn as_string(raw: &[u8]) -> Option<Cow<'_, str>> {
    let inner = raw.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    if memchr::memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner).ok().map(Cow::Borrowed);
    }
    serde_json::from_slice(raw).ok().map(Cow::Owned)
}

/// The value of a raw JSON integer that is not negative; `1.0` and `1e0` are integers too.
pub fn as_integer(raw: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(raw).ok()?;
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let number: f64 = text.parse().ok().filter(|_| raw.first().is_some_and(u8::is_ascii_digit))?;
    let whole = number.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&number);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be a whole number in range"
    )]
    whole.then_some(number as u64)
}

/// Appends `text` as a JSON string.
pub fn write_string(out: &mut Vec<u8>, text: &str) {
    // Without an early end, so that many bytes are looked at at once.
    let plain = |plain: bool, byte: u8| plain & (byte >= 0x20) & (byte != b'"') & (byte != b'\\');
    if text.bytes().fold(true, plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    } else {
        out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
    }
}

/// Appends a number.
pub fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(digits(number, &mut [0; 20]));
}

/// A number as it is written: every call has a few of them, and a formatter takes several times as long.
pub(crate) fn digits(mut number: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &room[at..];
        }
    }
}

/// `text` as a JSON string.
pub fn string(text: &str) -> Bytes {
    let mut out = Vec::with_capacity(text.len() + 2);
    write_string(&mut out, text);
    out.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Object, BadJson> {
        Object::parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn values_keep_their_bytes_and_order() {
        let text =
            r#"{"z":1e400,"a":{"b":1.10,"b":2,"n":[ 1 , 2 ]},"é\"":"\u0041","big":12345678901234567890123}"#;
        let mut object = parse(text).unwrap();
        assert_eq!(object.to_bytes(), text.as_bytes());
        object.set("z", "7");
        assert_eq!(object.to_bytes(), text.replace("1e400", "7").as_bytes());
    }

    #[test]
    fn a_name_that_appears_twice_is_refused_however_it_is_spelled() {
        assert!(parse(r#"{"name":1,"n\u0061me":2}"#).unwrap_err().why.contains("`name` appears twice"));
        let many: String = (0..100).map(|n| format!("\"k{n}\":0,")).collect();
        assert!(parse(&format!("{{{many}\"k7\":1}}")).is_err());
        assert!(parse(&format!("{{{many}\"k\":1}}")).is_ok());
    }

    #[test]
    fn what_is_not_one_object_is_refused() {
        for bad in ["", "[]", "1", "{", r#"{"a":tru}"#, r#"{"a":1}x"#, "{\"a\":\"\n\"}", r#"{"a":1,}"#] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("[]").unwrap_err().is_json);
        assert!(!parse("{").unwrap_err().is_json);
    }

    #[test]
    fn deep_values_are_carried_without_recursion() {
        let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(parse(&deep).unwrap().to_bytes().len(), deep.len());
    }

    #[test]
    fn integers_match_in_every_spelling() {
        for one in ["1", "1.0", "1e0", "10e-1"] {
            assert_eq!(as_integer(one.as_bytes()), Some(1), "{one}");
        }
        for not in ["\"1\"", "1.5", "-1", "null", "1e400", "true", "NaN", "inf"] {
            assert_eq!(as_integer(not.as_bytes()), None, "{not}");
        }
    }

    proptest! {
        #[test]
        fn any_object_is_written_as_it_was_read(members in prop::collection::btree_map(".{0,8}", json(), 0..20)) {
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
        fn numbers_are_written_as_anybody_would(number in prop_oneof![any::<u64>(), 0u64..1000, Just(u64::MAX)]) {
            let mut out = Vec::new();
            write_number(&mut out, number);
            prop_assert_eq!(out, number.to_string().into_bytes());
        }

        #[test]
        fn strings_survive(text in ".*") {
            let raw = string(&text);
            prop_assert_eq!(as_string(&raw).unwrap(), text);
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
}
