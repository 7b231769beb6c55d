//! What the stateless era repeats of a request in HTTP headers, and how.
//!
//! A request's method and the name of what it wants stand in headers of their own; a tool may ask for some of its
//! arguments there too, with `x-mcp-header` in its schema.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use super::object::{Object, as_string};

/// How a schema marks an argument.
const MARK: &str = "x-mcp-header";

/// Keywords whose members are named by the author, each a schema.
const NAMED: [&str; 4] = ["$defs", "definitions", "patternProperties", "dependentSchemas"];

/// Keywords whose value is data.
const DATA: [&str; 4] = ["default", "const", "enum", "examples"];

/// An argument that is repeated in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirrored {
    /// The header's name, in lower case.
    pub header: String,
    /// Where the argument is: the names of the properties that lead to it.
    path: Vec<String>,
}

/// Which arguments a tool wants in headers, or why its definition breaks the rules for that.
pub fn mirrored(definition: &Bytes) -> Result<Vec<Mirrored>, String> {
    let mut found = Vec::new();
    if memchr::memmem::find(definition, MARK.as_bytes()).is_none() {
        return Ok(found);
    }
    let schema = Object::parse(definition).ok().and_then(|tool| tool.get("inputSchema").cloned());
    let schema = schema.and_then(|raw| serde_json::from_slice::<Value>(&raw).ok());
    let schema = schema.ok_or("its `inputSchema` cannot be read")?;
    walk(&schema, Some(&mut Vec::new()), &mut found)?;
    Ok(found)
}

/// `path` leads here through `properties` alone; without one, a mark is in a place where it may not be.
fn walk(schema: &Value, mut path: Option<&mut Vec<String>>, found: &mut Vec<Mirrored>) -> Result<(), String> {
    let Value::Object(members) = schema else { return Ok(()) };
    if let Some(mark) = members.get(MARK) {
        let path = path.as_deref().filter(|path| !path.is_empty());
        let path = path.ok_or_else(|| format!("`{MARK}` stands where it can name no argument"))?;
        mark_found(mark, members.get("type"), path, found)?;
    }
    for (keyword, value) in members.iter().filter(|(keyword, _)| !DATA.contains(&keyword.as_str())) {
        match value {
            Value::Object(properties) if keyword == "properties" => {
                for (name, schema) in properties {
                    if let Some(path) = path.as_deref_mut() {
                        path.push(name.clone());
                        walk(schema, Some(path), found)?;
                        path.pop();
                    } else {
                        walk(schema, None, found)?;
                    }
                }
            }
            Value::Object(named) if NAMED.contains(&keyword.as_str()) => {
                named.values().try_for_each(|schema| walk(schema, None, found))?;
            }
            Value::Array(schemas) => schemas.iter().try_for_each(|schema| walk(schema, None, found))?,
            schema => walk(schema, None, found)?,
        }
    }
    Ok(())
}

fn mark_found(
    mark: &Value,
    kind: Option<&Value>,
    path: &[String],
    found: &mut Vec<Mirrored>,
) -> Result<(), String> {
    let name = mark.as_str().ok_or_else(|| format!("`{MARK}` must be a string"))?;
    if name.is_empty() || !name.bytes().all(of_token) {
        return Err(format!("`{}` cannot be part of a header's name", name.escape_default()));
    }
    if !kind.is_some_and(is_simple) {
        return Err(format!(
            "only strings, integers and booleans can be in a header, not `{}`",
            path.join(".")
        ));
    }
    let header = format!("mcp-param-{}", name.to_ascii_lowercase());
    if found.iter().any(|other| other.header == header) {
        return Err(format!("two arguments want the header `Mcp-Param-{name}`"));
    }
    found.push(Mirrored { header, path: path.to_vec() });
    Ok(())
}

fn of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A simple type, or one of them or nothing.
fn is_simple(kind: &Value) -> bool {
    let simple = |kind: &Value| matches!(kind.as_str(), Some("string" | "integer" | "boolean"));
    match kind {
        Value::Array(kinds) => {
            let mut kinds = kinds.iter().filter(|kind| kind.as_str() != Some("null")).peekable();
            kinds.peek().is_some() && kinds.all(simple)
        }
        kind => simple(kind),
    }
}

impl Mirrored {
    /// The header's value for a call with these arguments; `None` if the argument is not among them.
    pub fn value(&self, arguments: &Bytes) -> Option<String> {
        let raw = self.argument(arguments)?;
        Some(encoded(&plain(&raw)?).into_owned())
    }

    /// Whether a header says what the arguments say; else what is wrong with it.
    pub fn check(&self, header: Option<&str>, arguments: Option<&Bytes>) -> Result<(), &'static str> {
        let raw = arguments.and_then(|arguments| self.argument(arguments));
        let wanted = raw.as_ref().and_then(plain);
        match (header, wanted) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err("is missing"),
            (Some(_), None) => Err("repeats an argument that is not there"),
            (Some(header), Some(wanted)) => {
                let said = decoded(header).ok_or("is not well-formed")?;
                let is_number =
                    raw.as_ref().is_some_and(|raw| matches!(raw.first(), Some(b'-' | b'0'..=b'9')));
                let same = said == wanted || is_number && integer(&said) == wanted;
                if same { Ok(()) } else { Err("and the body disagree") }
            }
        }
    }

    /// The argument as it is written.
    fn argument(&self, arguments: &Bytes) -> Option<Bytes> {
        let mut raw = arguments.clone();
        for name in &self.path {
            raw = Object::parse(&raw).ok()?.get(name)?.clone();
        }
        Some(raw)
    }
}

/// The text of an argument, if it is of a kind that a header can hold.
fn plain(raw: &Bytes) -> Option<Cow<'_, str>> {
    match raw.first()? {
        b'"' => as_string(raw),
        b't' | b'f' => std::str::from_utf8(raw).ok().map(Cow::Borrowed),
        b'-' | b'0'..=b'9' => std::str::from_utf8(raw).ok().map(|text| Cow::Owned(integer(text))),
        _ => None,
    }
}

/// A whole number in plain digits, however it was spelled; anything else as it was.
fn integer(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(number) if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 => {
            format!("{number:.0}")
        }
        _ => text.to_owned(),
    }
}

/// The name of what a request wants, where the era has a header for it.
pub fn name<'a>(method: &str, params: &'a Object) -> Option<Cow<'a, str>> {
    params.string(match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    })
}

/// A text as a header can carry it: as it is, or in base64 between marks.
pub fn encoded(text: &str) -> Cow<'_, str> {
    let plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && text.trim_matches([' ', '\t']).len() == text.len()
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    if plain { Cow::Borrowed(text) } else { Cow::Owned(format!("=?base64?{}?=", base64(text.as_bytes()))) }
}

/// The text that a header carries; `None` if it is marked as base64 and is none.
pub fn decoded(value: &str) -> Option<Cow<'_, str>> {
    let Some(coded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(Cow::Borrowed(value));
    };
    String::from_utf8(from_base64(coded)?).ok().map(Cow::Owned)
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let bits =
            three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let value = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap_or_default();
            out.push(if digit <= three.len() { char::from(DIGITS[value]) } else { '=' });
        }
    }
    out
}

fn from_base64(coded: &str) -> Option<Vec<u8>> {
    let digits = coded.trim_end_matches('=');
    if !coded.len().is_multiple_of(4) || coded.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(digits.len());
    let (mut bits, mut count) = (0u32, 0);
    for digit in digits.bytes() {
        let value = DIGITS.iter().position(|known| *known == digit)?;
        bits = bits << 6 | u32::try_from(value).ok()?;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push(u8::try_from(bits >> count & 0xff).unwrap_or_default());
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(schema: &Value) -> Bytes {
        json!({"name": "t", "inputSchema": schema}).to_string().into()
    }

    fn marked(kind: &Value, mark: &Value) -> Result<Vec<Mirrored>, String> {
        mirrored(&tool(&json!({"properties": {"a": {"type": kind, "x-mcp-header": mark}}})))
    }

    #[test]
    fn values_are_written_so_that_a_header_can_carry_them() {
        for (text, header) in [
            ("us-west1", "us-west1"),
            ("a b", "a b"),
            ("", ""),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encoded(text), header);
            assert_eq!(decoded(header).unwrap(), text, "and back");
        }
        for bad in ["=?base64?a?=", "=?base64?!!!!?=", "=?base64?////?=", "=?base64?ZXU?="] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_header_says_what_the_argument_says() {
        let found = mirrored(&tool(&json!({"properties": {
            "n": {"type": ["integer", "string", "null"], "x-mcp-header": "N"},
        }})));
        let check = |header, arguments: &'static str| {
            found.as_ref().unwrap()[0].check(header, Some(&Bytes::from_static(arguments.as_bytes())))
        };
        for (header, arguments) in [
            (Some("eu"), r#"{"n":"eu"}"#),
            (Some("=?base64?ZXU=?="), r#"{"n":"eu"}"#),
            (Some("7"), r#"{"n":7.0}"#),
            (Some("7.0"), r#"{"n":7}"#),
            (None, r#"{"n":null}"#),
            (None, "{}"),
        ] {
            assert_eq!(check(header, arguments), Ok(()), "{header:?} {arguments}");
        }
        for (header, arguments, why) in [
            (Some("us"), r#"{"n":"eu"}"#, "and the body disagree"),
            (Some("7.0"), r#"{"n":"7"}"#, "and the body disagree"),
            (Some("1"), r#"{"n":true}"#, "and the body disagree"),
            (None, r#"{"n":7}"#, "is missing"),
            (Some("eu"), r#"{"n":null}"#, "repeats an argument that is not there"),
            (Some("=?base64?ZXU?="), r#"{"n":"eu"}"#, "is not well-formed"),
        ] {
            assert_eq!(check(header, arguments), Err(why), "{header:?} {arguments}");
        }
        assert_eq!(found.unwrap()[0].check(None, None), Ok(()));
    }

    #[test]
    fn marked_arguments_are_found_by_their_path() {
        let schema = json!({"properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
            "flag": {"type": ["boolean", "null"], "x-mcp-header": "Flag"},
            "x-mcp-header": {"type": "string", "default": {"x-mcp-header": ""}},
        }});
        let found = mirrored(&tool(&schema)).unwrap();
        let values = |arguments: &str| -> Vec<(String, Option<String>)> {
            let arguments = Bytes::copy_from_slice(arguments.as_bytes());
            let mut values: Vec<_> =
                found.iter().map(|one| (one.header.clone(), one.value(&arguments))).collect();
            values.sort();
            values
        };
        let header =
            |name: &str, value: Option<&str>| (format!("mcp-param-{name}"), value.map(str::to_owned));
        assert_eq!(
            values(r#"{"region":"eu\n","deep":{"n":-42.0},"flag":true}"#),
            [
                header("flag", Some("true")),
                header("n", Some("-42")),
                header("region", Some("=?base64?ZXUK?=")),
            ]
        );
        assert_eq!(
            values(r#"{"region":null,"deep":7}"#),
            [header("flag", None), header("n", None), header("region", None)]
        );
    }

    #[test]
    fn a_mark_that_breaks_the_rules_is_refused() {
        assert!(marked(&json!("string"), &json!("Ok")).is_ok());
        for mark in [json!(""), json!("a b"), json!("a:b"), json!("a\r\nb"), json!("é"), json!(7)] {
            assert!(marked(&json!("string"), &mark).is_err(), "{mark}");
        }
        for kind in [json!("number"), json!("object"), json!("array"), json!(["null"]), json!(null)] {
            assert!(marked(&kind, &json!("Ok")).is_err(), "{kind}");
        }
        let mark = json!({"type": "string", "x-mcp-header": "A"});
        for schema in [
            json!({"x-mcp-header": "A"}),
            json!({"properties": {"a": mark, "b": {"type": "string", "x-mcp-header": "a"}}}),
            json!({"properties": {"a": {"type": "array", "items": mark}}}),
            json!({"anyOf": [{"properties": {"a": mark}}]}),
            json!({"if": {"properties": {"a": mark}}}),
            json!({"$defs": {"a": mark}}),
        ] {
            assert!(mirrored(&tool(&schema)).is_err(), "{schema}");
        }
    }

    #[test]
    fn names_come_from_where_the_method_has_them() {
        let params = Object::parse(&Bytes::from_static(br#"{"name":"n","uri":"u","taskId":"t"}"#)).unwrap();
        let named = |method| name(method, &params).map(Cow::into_owned);
        assert_eq!(named("tools/call").as_deref(), Some("n"));
        assert_eq!(named("resources/read").as_deref(), Some("u"));
        assert_eq!(named("tasks/get").as_deref(), Some("t"));
        assert_eq!(named("tools/list"), None);
    }
}
