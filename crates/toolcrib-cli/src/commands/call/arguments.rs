//! Arguments of a call: one JSON object, `key=value` pairs typed by the tool's schema, or both.

use bytes::Bytes;
use serde_json::Value;
use toolcrib::wire::object::{self, Object};

use crate::failure::Failure;

/// How deep references and alternatives in a schema are followed.
const DEEPEST: usize = 8;

/// Arguments as they were written.
#[derive(Debug)]
pub(super) struct Arguments {
    object: Option<Bytes>,
    pairs: Vec<(String, String)>,
}

impl Arguments {
    /// Reads pairs, each split at its first `=`, and the object of `--args`.
    pub(super) fn read(pairs: &[String], object: Option<Bytes>) -> Result<Self, Failure> {
        let mut read: Vec<(String, String)> = Vec::new();
        for pair in pairs {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                Failure::usage(format!("`{pair}` is not an argument of the form key=value"))
                    .hint("toolcrib call --help")
            })?;
            if read.iter().any(|(known, _)| known == key) {
                return Err(Failure::usage(format!("the argument `{key}` is given twice")));
            }
            read.push((key.to_owned(), value.to_owned()));
        }
        if let Some(object) = &object {
            let wrong = |why| Failure::usage(format!("`--args` is not a JSON object: {why}"));
            Object::parse(object).map_err(|bad| wrong(bad.why).hint("--args '{\"key\": \"value\"}'"))?;
        }
        Ok(Self { object, pairs: read })
    }

    /// Whether a schema would help.
    pub(super) fn want_types(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// The arguments as JSON. An object alone passes byte for byte; a pair wins over a member of the same name.
    pub(super) fn typed(&self, schema: Option<&Value>) -> Result<Bytes, Failure> {
        let written = match &self.object {
            Some(object) if self.pairs.is_empty() => return Ok(object.clone()),
            Some(object) => Object::parse(object).unwrap_or_default(),
            None => Object::default(),
        };
        let kept = written.iter().filter(|(key, _)| !self.pairs.iter().any(|(pair, _)| pair == key));
        let mut members: Vec<(&str, Bytes)> = kept.map(|(key, value)| (key, value.clone())).collect();
        for (key, text) in &self.pairs {
            let kinds =
                schema.map(|schema| Kinds::of(&schema["properties"][key], schema, 0)).unwrap_or_default();
            members.push((key, kinds.read(key, text)?.into()));
        }
        let mut out = vec![b'{'];
        for (index, (key, value)) in members.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            object::write_string(&mut out, key);
            out.push(b':');
            out.extend_from_slice(value);
        }
        out.push(b'}');
        Ok(out.into())
    }
}

/// The kinds of value that a schema allows; none means that it does not say.
#[derive(Debug, Default, PartialEq)]
struct Kinds(Vec<String>);

impl Kinds {
    fn of(schema: &Value, root: &Value, depth: usize) -> Self {
        if depth > DEEPEST {
            return Self::default();
        }
        if let Some(target) = schema["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?)) {
            return Self::of(target, root, depth + 1);
        }
        match &schema["type"] {
            Value::String(kind) => return Self(vec![kind.clone()]),
            Value::Array(kinds) => {
                return Self(kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect());
            }
            _ => {}
        }
        for word in ["anyOf", "oneOf"] {
            if let Some(choices) = schema[word].as_array() {
                let kinds: Vec<Self> =
                    choices.iter().map(|choice| Self::of(choice, root, depth + 1)).collect();
                // One alternative that says nothing allows anything.
                let open = kinds.iter().any(|kinds| kinds.0.is_empty());
                return if open {
                    Self::default()
                } else {
                    Self(kinds.into_iter().flat_map(|kinds| kinds.0).collect())
                };
            }
        }
        match schema["enum"].as_array() {
            Some(values) => Self(values.iter().map(|value| kind_of(value).to_owned()).collect()),
            None => Self::default(),
        }
    }

    /// The value as JSON: as one of the kinds other than text if it reads as one, else as text if text is allowed.
    fn read(&self, key: &str, text: &str) -> Result<String, Failure> {
        let parsed = raw_kind(text).filter(|kind| self.0.is_empty() || self.allow(kind));
        if parsed.is_some_and(|kind| kind != "string" || self.0.is_empty()) {
            return Ok(text.trim().to_owned());
        }
        if self.0.is_empty() || self.allow("string") {
            return Ok(Value::from(text).to_string());
        }
        Err(Failure::usage(format!(
            "the argument `{key}` must be {}, and `{text}` is not",
            self.0.join(" or ")
        )))
    }

    fn allow(&self, kind: &str) -> bool {
        self.0.iter().any(|allowed| allowed == kind || (allowed == "number" && kind == "integer"))
    }
}

/// What kind of JSON a text is, if it is any. Numbers keep the spelling they have.
fn raw_kind(text: &str) -> Option<&'static str> {
    let raw: &serde_json::value::RawValue = serde_json::from_str(text).ok()?;
    let raw = raw.get();
    Some(match raw.as_bytes().first()? {
        b'{' => "object",
        b'[' => "array",
        b'"' => "string",
        b't' | b'f' => "boolean",
        b'n' => "null",
        _ => match is_whole(raw) {
            true => "integer",
            false => "number",
        },
    })
}

fn is_whole(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.bytes().all(|byte| byte.is_ascii_digit()) || object::as_integer(digits.as_bytes()).is_some()
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn typed(pairs: &[&str], schema: Option<&Value>) -> Result<String, String> {
        let pairs: Vec<String> = pairs.iter().map(|&pair| pair.to_owned()).collect();
        let arguments = Arguments::read(&pairs, None).map_err(|failure| failure.to_string())?;
        let typed = arguments.typed(schema).map_err(|failure| failure.to_string())?;
        Ok(String::from_utf8(typed.to_vec()).unwrap())
    }

    #[test]
    fn values_are_typed_by_the_schema() {
        let schema = json!({"properties": {
            "text": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"},
            "list": {"type": "array"}, "maybe": {"type": ["integer", "null"]}, "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "level": {"enum": ["1", "2"]}, "far": {"$ref": "#/$defs/Far"},
        }, "$defs": {"Far": {"type": "string"}}});
        let good = |pair: &str| typed(&[pair], Some(&schema)).unwrap();
        assert_eq!(good("text=1"), r#"{"text":"1"}"#);
        assert_eq!(good("text=a=b"), r#"{"text":"a=b"}"#);
        assert_eq!(good("text="), r#"{"text":""}"#);
        assert_eq!(good("n=12345678901234567890123"), r#"{"n":12345678901234567890123}"#);
        assert_eq!(good("x=1.10e400"), r#"{"x":1.10e400}"#);
        assert_eq!(good("x=-2"), r#"{"x":-2}"#);
        assert_eq!(good("on=true"), r#"{"on":true}"#);
        assert_eq!(good("list=[1, 2]"), r#"{"list":[1, 2]}"#);
        assert_eq!(good("maybe=null"), r#"{"maybe":null}"#);
        assert_eq!(good("either=7"), r#"{"either":7}"#);
        assert_eq!(good("either=seven"), r#"{"either":"seven"}"#);
        assert_eq!(good("level=1"), r#"{"level":"1"}"#);
        assert_eq!(good("far=1"), r#"{"far":"1"}"#);
        for bad in ["n=x", "n=1.5", "on=yes", "list=a", "maybe=x"] {
            assert!(typed(&[bad], Some(&schema)).is_err(), "{bad}");
        }
    }

    #[test]
    fn without_a_schema_json_is_json_and_the_rest_is_text() {
        let schema = Some(json!({"properties": {"other": {"type": "string"}}}));
        for schema in [None, schema] {
            let good = |pair: &str| typed(&[pair], schema.as_ref()).unwrap();
            assert_eq!(good("a=1"), r#"{"a":1}"#);
            assert_eq!(good("a=\"x\""), r#"{"a":"x"}"#);
            assert_eq!(good("a={\"b\":[]}"), r#"{"a":{"b":[]}}"#);
            assert_eq!(good("a=hello world"), r#"{"a":"hello world"}"#);
            assert_eq!(good("a="), r#"{"a":""}"#);
        }
    }

    #[test]
    fn an_object_passes_as_it_is_and_pairs_win() {
        let object = Bytes::from_static(br#"{ "a": 1.0, "b": 2 }"#);
        let alone = Arguments::read(&[], Some(object.clone())).unwrap();
        assert_eq!(alone.typed(None).unwrap(), object);
        let both = Arguments::read(&["b=x".to_owned()], Some(object)).unwrap();
        assert_eq!(both.typed(None).unwrap(), &br#"{"a":1.0,"b":"x"}"#[..]);
        assert!(Arguments::read(&[], Some(Bytes::from_static(b"[]"))).is_err());
        assert!(typed(&["a=1", "a=2"], None).is_err());
        assert!(typed(&["a"], None).is_err());
        assert_eq!(typed(&[], None).unwrap(), "{}");
    }
}
