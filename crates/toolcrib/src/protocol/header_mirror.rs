//! HTTP headers of the stateless era that mirror parts of a request.
//!
//! A request's method and the name of its target are mirrored in headers. A tool can have arguments mirrored too, by
//! marking them with `x-mcp-header` in its schema.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::Value;

use crate::protocol::json::object::{Object, as_string};
use crate::util::encoding;

/// The schema keyword that marks a mirrored argument.
const KEYWORD: &str = "x-mcp-header";

/// Keywords whose value is an object of schemas under arbitrary names.
const SCHEMA_MAPS: [&str; 4] = ["$defs", "definitions", "patternProperties", "dependentSchemas"];

/// Keywords whose value is data, not a schema.
const DATA_KEYWORDS: [&str; 4] = ["default", "const", "enum", "examples"];

/// An argument that is mirrored in a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderParam {
    /// The header's name, in lower case.
    pub header: String,
    /// Property names that lead to the argument.
    path: Vec<String>,
}

/// Returns the arguments that a tool's definition marks for headers.
///
/// # Errors
/// If the definition breaks the rules for marks; the message says which.
pub fn header_params(definition: &Bytes) -> Result<Vec<HeaderParam>, String> {
    let mut found = Vec::new();
    if memchr::memmem::find(definition, KEYWORD.as_bytes()).is_none() {
        return Ok(found);
    }
    let schema = Object::parse(definition).ok().and_then(|tool| tool.get("inputSchema").cloned());
    let schema = schema.and_then(|raw| serde_json::from_slice::<Value>(&raw).ok());
    let schema = schema.ok_or("its `inputSchema` cannot be parsed")?;
    collect_params(&schema, Some(&mut Vec::new()), &mut found)?;
    Ok(found)
}

/// Collects the marked arguments of a schema. `path` is the way here through `properties` alone; where there is none,
/// marks are not allowed.
fn collect_params(
    schema: &Value,
    mut path: Option<&mut Vec<String>>,
    found: &mut Vec<HeaderParam>,
) -> Result<(), String> {
    let Value::Object(members) = schema else { return Ok(()) };
    if let Some(mark) = members.get(KEYWORD) {
        let path = path.as_deref().filter(|path| !path.is_empty());
        let path =
            path.ok_or_else(|| format!("`{KEYWORD}` is in a place where it does not mark an argument"))?;
        add_param(mark, members.get("type"), path, found)?;
    }
    for (keyword, value) in members.iter().filter(|(keyword, _)| !DATA_KEYWORDS.contains(&keyword.as_str())) {
        match value {
            Value::Object(properties) if keyword == "properties" => {
                for (name, schema) in properties {
                    if let Some(path) = path.as_deref_mut() {
                        path.push(name.clone());
                        collect_params(schema, Some(path), found)?;
                        path.pop();
                    } else {
                        collect_params(schema, None, found)?;
                    }
                }
            }
            Value::Object(schemas) if SCHEMA_MAPS.contains(&keyword.as_str()) => {
                schemas.values().try_for_each(|schema| collect_params(schema, None, found))?;
            }
            Value::Array(schemas) => {
                schemas.iter().try_for_each(|schema| collect_params(schema, None, found))?;
            }
            schema => collect_params(schema, None, found)?,
        }
    }
    Ok(())
}

fn add_param(
    mark: &Value,
    schema_type: Option<&Value>,
    path: &[String],
    found: &mut Vec<HeaderParam>,
) -> Result<(), String> {
    let name = mark.as_str().ok_or_else(|| format!("`{KEYWORD}` must be a string"))?;
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Err(format!("`{}` cannot be part of a header name", name.escape_default()));
    }
    if !schema_type.is_some_and(is_simple) {
        return Err(format!(
            "only strings, integers and booleans can be mirrored in a header, not `{}`",
            path.join(".")
        ));
    }
    let header = format!("mcp-param-{}", name.to_ascii_lowercase());
    if found.iter().any(|other| other.header == header) {
        return Err(format!("two arguments use the header `Mcp-Param-{name}`"));
    }
    found.push(HeaderParam { header, path: path.to_vec() });
    Ok(())
}

/// Returns whether a byte is allowed in an HTTP token.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Returns whether a schema type allows only values that fit in a header, and possibly `null`.
fn is_simple(schema_type: &Value) -> bool {
    let is_scalar = |name: &Value| matches!(name.as_str(), Some("string" | "integer" | "boolean"));
    match schema_type {
        Value::Array(names) => {
            let mut names = names.iter().filter(|name| name.as_str() != Some("null")).peekable();
            names.peek().is_some() && names.all(is_scalar)
        }
        name => is_scalar(name),
    }
}

impl HeaderParam {
    /// Returns the header value for a call with these arguments; `None` if the argument is absent.
    pub fn header_value(&self, arguments: &Bytes) -> Option<String> {
        let raw = self.find_argument(arguments)?;
        Some(encode_header(&argument_text(&raw)?).into_owned())
    }

    /// Checks that a header matches the arguments.
    ///
    /// # Errors
    /// If it does not; the message continues the header's name.
    pub fn check(&self, header: Option<&str>, arguments: Option<&Bytes>) -> Result<(), &'static str> {
        let raw = arguments.and_then(|arguments| self.find_argument(arguments));
        let expected = raw.as_ref().and_then(argument_text);
        match (header, expected) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err("is missing"),
            (Some(_), None) => Err("mirrors an argument that is absent"),
            (Some(header), Some(expected)) => {
                let actual = decode_header(header).ok_or("is malformed")?;
                let is_number =
                    raw.as_ref().is_some_and(|raw| matches!(raw.first(), Some(b'-' | b'0'..=b'9')));
                let is_same = actual == expected || is_number && normalize_integer(&actual) == expected;
                if is_same { Ok(()) } else { Err("does not match the body") }
            }
        }
    }

    /// Returns the raw argument.
    fn find_argument(&self, arguments: &Bytes) -> Option<Bytes> {
        let mut raw = arguments.clone();
        for name in &self.path {
            raw = Object::parse(&raw).ok()?.get(name)?.clone();
        }
        Some(raw)
    }
}

/// Returns the text of a raw argument, if its type can be mirrored.
fn argument_text(raw: &Bytes) -> Option<Cow<'_, str>> {
    match raw.first()? {
        b'"' => as_string(raw),
        b't' | b'f' => std::str::from_utf8(raw).ok().map(Cow::Borrowed),
        b'-' | b'0'..=b'9' => std::str::from_utf8(raw).ok().map(|text| Cow::Owned(normalize_integer(text))),
        _ => None,
    }
}

/// Returns an integer in plain digits, and any other text unchanged.
fn normalize_integer(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(number) if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 => {
            format!("{number:.0}")
        }
        _ => text.to_owned(),
    }
}

/// Returns the value of the `Mcp-Name` header of a request, for the methods that have one.
pub fn name_header<'a>(method: &str, params: &'a Object) -> Option<Cow<'a, str>> {
    params.get_string(match method {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    })
}

/// Encodes text for a header: unchanged if possible, otherwise base64 between markers.
pub fn encode_header(text: &str) -> Cow<'_, str> {
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
        && text.trim_matches([' ', '\t']).len() == text.len()
        && !(text.starts_with("=?base64?") && text.ends_with("?="));
    if is_plain {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("=?base64?{}?=", encoding::to_base64(text.as_bytes())))
    }
}

/// Decodes a header value. Returns `None` if it is marked as base64 and is not valid.
pub fn decode_header(value: &str) -> Option<Cow<'_, str>> {
    let Some(encoded) = value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) else {
        return Some(Cow::Borrowed(value));
    };
    String::from_utf8(encoding::parse_base64(encoded)?).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn tool(schema: &Value) -> Bytes {
        json!({"name": "t", "inputSchema": schema}).to_string().into()
    }

    fn marked(kind: &Value, mark: &Value) -> Result<Vec<HeaderParam>, String> {
        header_params(&tool(&json!({"properties": {"a": {"type": kind, "x-mcp-header": mark}}})))
    }

    #[test]
    fn header_values_round_trip() {
        for (text, header) in [
            ("us-west1", "us-west1"),
            ("a b", "a b"),
            ("", ""),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
        ] {
            assert_eq!(encode_header(text), header);
            assert_eq!(decode_header(header).unwrap(), text, "and back");
        }
        for bad in ["=?base64?a?=", "=?base64?!!!!?=", "=?base64?////?=", "=?base64?ZXU?="] {
            assert_eq!(decode_header(bad), None, "{bad}");
        }
    }

    #[test]
    fn check_compares_header_and_argument() {
        let found = header_params(&tool(&json!({"properties": {
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
        for (header, arguments, error) in [
            (Some("us"), r#"{"n":"eu"}"#, "does not match the body"),
            (Some("7.0"), r#"{"n":"7"}"#, "does not match the body"),
            (Some("1"), r#"{"n":true}"#, "does not match the body"),
            (None, r#"{"n":7}"#, "is missing"),
            (Some("eu"), r#"{"n":null}"#, "mirrors an argument that is absent"),
            (Some("=?base64?ZXU?="), r#"{"n":"eu"}"#, "is malformed"),
        ] {
            assert_eq!(check(header, arguments), Err(error), "{header:?} {arguments}");
        }
        assert_eq!(found.unwrap()[0].check(None, None), Ok(()));
    }

    #[test]
    fn marked_arguments_are_found_by_path() {
        let schema = json!({"properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
            "flag": {"type": ["boolean", "null"], "x-mcp-header": "Flag"},
            "x-mcp-header": {"type": "string", "default": {"x-mcp-header": ""}},
        }});
        let found = header_params(&tool(&schema)).unwrap();
        let values = |arguments: &str| -> Vec<(String, Option<String>)> {
            let arguments = Bytes::copy_from_slice(arguments.as_bytes());
            let mut values: Vec<_> =
                found.iter().map(|param| (param.header.clone(), param.header_value(&arguments))).collect();
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
    fn invalid_marks_are_rejected() {
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
            assert!(header_params(&tool(&schema)).is_err(), "{schema}");
        }
    }

    #[test]
    fn name_header_depends_on_the_method() {
        let params = Object::parse(&Bytes::from_static(br#"{"name":"n","uri":"u","taskId":"t"}"#)).unwrap();
        let name = |method| name_header(method, &params).map(Cow::into_owned);
        assert_eq!(name("tools/call").as_deref(), Some("n"));
        assert_eq!(name("resources/read").as_deref(), Some("u"));
        assert_eq!(name("tasks/get").as_deref(), Some("t"));
        assert_eq!(name("tools/list"), None);
    }
}
