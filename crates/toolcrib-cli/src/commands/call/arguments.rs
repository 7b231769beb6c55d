//! Arguments of a call: a JSON object, `key=value` pairs whose types come from the tool's schema, or both.

use bytes::Bytes;
use serde_json::Value;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::util::format::closest_match;

use crate::command_error::CommandError;

/// The maximum depth of references and alternatives in a schema.
const MAX_SCHEMA_DEPTH: usize = 8;

/// Arguments as written on the command line.
#[derive(Debug)]
pub(super) struct CallArguments {
    object: Option<Bytes>,
    /// In the order of their first occurrence.
    members: Vec<Member>,
}

/// One argument. If it is given several times, it is an array.
#[derive(Debug)]
struct Member {
    key: String,
    values: Vec<WrittenValue>,
}

/// A value as written.
#[derive(Debug)]
enum WrittenValue {
    /// `k=text`: its type is that of the tool's schema.
    Text(String),
    /// `k:=json`.
    Json(String),
}

impl WrittenValue {
    /// Returns whether a value of these types can only be an array that has this text as an item.
    fn is_item(&self, allowed: &AllowedTypes) -> bool {
        let Self::Text(text) = self else { return false };
        let is_whole =
            allowed.allows("string") || json_type_name(text).is_some_and(|name| allowed.allows(name));
        allowed.allows("array") && !is_whole
    }
}

/// Returns whether a word of the command line is an argument and not the name of a tool.
pub(super) fn is_argument(word: &str) -> bool {
    word.contains('=') || word.starts_with(['{', '@'])
}

impl CallArguments {
    /// Parses words of the form `key=text` and `key:=json`, an object that is written out or in a `@FILE`, and the object
    /// of `--args`.
    pub(super) fn parse(words: &[String], args: Option<Bytes>) -> Result<Self, CommandError> {
        let mut parsed = Self { object: None, members: Vec::new() };
        if let Some(args) = args {
            parsed.set_object("`--args`", args)?;
        }
        for word in words {
            if word.starts_with('{') {
                parsed.set_object("the argument", Bytes::copy_from_slice(word.as_bytes()))?;
            } else if let Some(file) = word.strip_prefix('@') {
                let text = std::fs::read(file).map_err(|error| {
                    CommandError::usage(format!("cannot read the arguments from `{file}`: {error}"))
                })?;
                parsed.set_object(&format!("`{file}`"), text.into())?;
            } else {
                parsed.add_member(word)?;
            }
        }
        Ok(parsed)
    }

    fn set_object(&mut self, origin: &str, object: Bytes) -> Result<(), CommandError> {
        if self.object.is_some() {
            return Err(CommandError::usage("the object of all arguments is given twice"));
        }
        Object::parse(&object).map_err(|error| {
            CommandError::usage(format!("{origin} is not a JSON object: {}", error.reason))
                .hint("write it as '{\"key\": \"value\"}'")
        })?;
        self.object = Some(object);
        Ok(())
    }

    /// Adds an argument that is split at its first `=`.
    fn add_member(&mut self, word: &str) -> Result<(), CommandError> {
        let (key, text) = word.split_once('=').ok_or_else(|| {
            CommandError::usage(format!("`{word}` is not an argument of the form key=value"))
                .hint("toolcrib call --help")
        })?;
        let (key, value) = match key.strip_suffix(':') {
            None => (key, WrittenValue::Text(text.to_owned())),
            Some(key) if json_type_name(text).is_some() => (key, WrittenValue::Json(text.trim().to_owned())),
            Some(key) => {
                let error = CommandError::usage(format!("the value of `{key}:=` is not JSON: `{text}`"));
                return Err(error.hint(format!("{key}={text} passes it as text")));
            }
        };
        match self.members.iter_mut().find(|member| member.key == key) {
            Some(member) => member.values.push(value),
            None => self.members.push(Member { key: key.to_owned(), values: vec![value] }),
        }
        Ok(())
    }

    /// Returns the arguments as JSON. An object alone is kept byte for byte; an argument replaces its member of that name.
    pub(super) fn to_json(&self, schema: Option<&Value>) -> Result<Bytes, CommandError> {
        let object = match &self.object {
            Some(object) if self.members.is_empty() => return Ok(object.clone()),
            Some(object) => Object::parse(object).unwrap_or_default(),
            None => Object::default(),
        };
        let kept = object.iter().filter(|(key, _)| !self.members.iter().any(|member| member.key == *key));
        let mut members: Vec<(&str, Bytes)> = kept.map(|(key, value)| (key, value.clone())).collect();
        for member in &self.members {
            members.push((&member.key, member.to_json(schema)?.into()));
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

    /// Describes the `key=value` arguments that the schema does not declare but that resemble one that it does. A schema that
    /// says which other members it takes is left to the check of the schema.
    pub(super) fn find_misspelled(&self, schema: &Value) -> Vec<String> {
        let is_open = ["additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf"]
            .iter()
            .any(|keyword| schema.get(keyword).is_some());
        let Some(properties) = schema["properties"].as_object().filter(|_| !is_open) else {
            return Vec::new();
        };
        let is_given = |name: &str| self.members.iter().any(|member| member.key == name);
        let describe = |member: &Member| {
            let names = properties.keys().map(String::as_str).filter(|name| !is_given(name));
            let near = closest_match(&member.key, names)?;
            Some(format!("/{}: is not a known property; did you mean `{near}`?", member.key))
        };
        let unknown = self.members.iter().filter(|member| !properties.contains_key(&member.key));
        unknown.filter_map(describe).collect()
    }
}

impl Member {
    /// Returns the value as JSON. The values of an array have the type of its items, and a single one may be its only item.
    fn to_json(&self, schema: Option<&Value>) -> Result<String, CommandError> {
        let types = |member: &Value| {
            schema.map(|schema| AllowedTypes::from_schema(member, schema, 0)).unwrap_or_default()
        };
        let convert = |value: &WrittenValue, types: &AllowedTypes| match value {
            WrittenValue::Json(json) => Ok(json.clone()),
            WrittenValue::Text(text) => types.convert(&self.key, text),
        };
        let declared = schema.map_or(&Value::Null, |schema| &schema["properties"][&self.key]);
        let allowed = types(declared);
        match &*self.values {
            [only] if !only.is_item(&allowed) => convert(only, &allowed),
            values => {
                let item_types = types(&declared["items"]);
                let items: Result<Vec<String>, CommandError> =
                    values.iter().map(|value| convert(value, &item_types)).collect();
                Ok(format!("[{}]", items?.join(",")))
            }
        }
    }
}

/// Converts text to JSON of a type that a member of a schema allows.
pub(in crate::commands) fn convert_text(
    key: &str,
    text: &str,
    member: &Value,
    schema: &Value,
) -> Result<String, CommandError> {
    AllowedTypes::from_schema(member, schema, 0).convert(key, text)
}

/// The JSON types that a schema allows. Empty if the schema does not restrict the type.
#[derive(Debug, Default, PartialEq)]
struct AllowedTypes(Vec<String>);

impl AllowedTypes {
    fn from_schema(schema: &Value, root: &Value, depth: usize) -> Self {
        if depth > MAX_SCHEMA_DEPTH {
            return Self::default();
        }
        if let Some(target) = schema["$ref"].as_str().and_then(|path| root.pointer(path.strip_prefix('#')?)) {
            return Self::from_schema(target, root, depth + 1);
        }
        match &schema["type"] {
            Value::String(name) => return Self(vec![name.clone()]),
            Value::Array(names) => {
                return Self(names.iter().filter_map(Value::as_str).map(str::to_owned).collect());
            }
            _ => {}
        }
        for keyword in ["anyOf", "oneOf"] {
            if let Some(choices) = schema[keyword].as_array() {
                let types: Vec<Self> =
                    choices.iter().map(|choice| Self::from_schema(choice, root, depth + 1)).collect();
                let is_unrestricted = types.iter().any(|types| types.0.is_empty());
                return if is_unrestricted {
                    Self::default()
                } else {
                    Self(types.into_iter().flat_map(|types| types.0).collect())
                };
            }
        }
        match schema["enum"].as_array() {
            Some(values) => Self(values.iter().map(|value| type_name(value).to_owned()).collect()),
            None => Self::default(),
        }
    }

    /// Converts a value to JSON: unchanged if it is JSON of an allowed type, else as a string if strings are allowed.
    fn convert(&self, key: &str, text: &str) -> Result<String, CommandError> {
        let json_type = json_type_name(text).filter(|name| self.0.is_empty() || self.allows(name));
        if json_type.is_some_and(|name| name != "string" || self.0.is_empty()) {
            return Ok(text.trim().to_owned());
        }
        if self.0.is_empty() || self.allows("string") {
            return Ok(Value::from(text).to_string());
        }
        Err(CommandError::usage(format!(
            "invalid argument: `{key}` must be {}, not `{text}`",
            self.0.join(" or ")
        )))
    }

    fn allows(&self, name: &str) -> bool {
        self.0.iter().any(|allowed| allowed == name || (allowed == "number" && name == "integer"))
    }
}

/// Returns the JSON type of a text, or `None` if it is not JSON. Numbers of any size are recognized.
fn json_type_name(text: &str) -> Option<&'static str> {
    let raw: &serde_json::value::RawValue = serde_json::from_str(text).ok()?;
    let raw = raw.get();
    Some(match raw.as_bytes().first()? {
        b'{' => "object",
        b'[' => "array",
        b'"' => "string",
        b't' | b'f' => "boolean",
        b'n' => "null",
        _ if is_integer(raw) => "integer",
        _ => "number",
    })
}

fn is_integer(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.bytes().all(|byte| byte.is_ascii_digit()) || object::as_integer(digits.as_bytes()).is_some()
}

fn type_name(value: &Value) -> &'static str {
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

    fn to_json(pairs: &[&str], schema: Option<&Value>) -> Result<String, String> {
        let pairs: Vec<String> = pairs.iter().map(|&pair| pair.to_owned()).collect();
        let arguments = CallArguments::parse(&pairs, None).map_err(|error| error.to_string())?;
        let json = arguments.to_json(schema).map_err(|error| error.to_string())?;
        Ok(String::from_utf8(json.to_vec()).unwrap())
    }

    #[test]
    fn pairs_get_types_of_schema() {
        let schema = json!({"properties": {
            "text": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"}, "on": {"type": "boolean"},
            "list": {"type": "array"}, "maybe": {"type": ["integer", "null"]}, "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "level": {"enum": ["1", "2"]}, "far": {"$ref": "#/$defs/Far"},
        }, "$defs": {"Far": {"type": "string"}}});
        let convert = |pair: &str| to_json(&[pair], Some(&schema)).unwrap();
        assert_eq!(convert("text=1"), r#"{"text":"1"}"#);
        assert_eq!(convert("text=a=b"), r#"{"text":"a=b"}"#);
        assert_eq!(convert("text="), r#"{"text":""}"#);
        assert_eq!(convert("n=12345678901234567890123"), r#"{"n":12345678901234567890123}"#);
        assert_eq!(convert("x=1.10e400"), r#"{"x":1.10e400}"#);
        assert_eq!(convert("x=-2"), r#"{"x":-2}"#);
        assert_eq!(convert("on=true"), r#"{"on":true}"#);
        assert_eq!(convert("list=[1, 2]"), r#"{"list":[1, 2]}"#);
        assert_eq!(convert("maybe=null"), r#"{"maybe":null}"#);
        assert_eq!(convert("either=7"), r#"{"either":7}"#);
        assert_eq!(convert("either=seven"), r#"{"either":"seven"}"#);
        assert_eq!(convert("level=1"), r#"{"level":"1"}"#);
        assert_eq!(convert("far=1"), r#"{"far":"1"}"#);
        for bad in ["n=x", "n=1.5", "on=yes", "maybe=x"] {
            assert!(to_json(&[bad], Some(&schema)).is_err(), "{bad}");
        }
    }

    #[test]
    fn pairs_without_schema_are_json_or_string() {
        let schema = Some(json!({"properties": {"other": {"type": "string"}}}));
        for schema in [None, schema] {
            let convert = |pair: &str| to_json(&[pair], schema.as_ref()).unwrap();
            assert_eq!(convert("a=1"), r#"{"a":1}"#);
            assert_eq!(convert("a=\"x\""), r#"{"a":"x"}"#);
            assert_eq!(convert("a={\"b\":[]}"), r#"{"a":{"b":[]}}"#);
            assert_eq!(convert("a=hello world"), r#"{"a":"hello world"}"#);
            assert_eq!(convert("a="), r#"{"a":""}"#);
        }
    }

    #[test]
    fn repeated_key_is_array_and_colon_equals_is_json() {
        let tags = json!({"properties": {"tag": {"type": "array", "items": {"type": "string"}}, "n": {"type": "string"}}});
        assert_eq!(to_json(&["tag=1", "tag=b"], Some(&tags)).unwrap(), r#"{"tag":["1","b"]}"#);
        assert_eq!(to_json(&["tag=1"], Some(&tags)).unwrap(), r#"{"tag":["1"]}"#, "the only item");
        assert_eq!(to_json(&["tag=[\"a\"]"], Some(&tags)).unwrap(), r#"{"tag":["a"]}"#);
        assert_eq!(to_json(&["tag:=1"], Some(&tags)).unwrap(), r#"{"tag":1}"#);
        assert_eq!(to_json(&["tag=1", "x=y", "tag:=[2]"], None).unwrap(), r#"{"tag":[1,[2]],"x":"y"}"#);
        assert_eq!(to_json(&["n:=1"], Some(&tags)).unwrap(), r#"{"n":1}"#, "the schema does not change it");
        assert_eq!(to_json(&["n:=\"a=b\""], None).unwrap(), r#"{"n":"a=b"}"#);
        assert_eq!(to_json(&["n=@x"], None).unwrap(), r#"{"n":"@x"}"#);
        assert!(to_json(&["n:=x"], None).unwrap_err().contains("not JSON"));
    }

    #[test]
    fn misspelled_key_is_found_unless_schema_takes_other_members() {
        let arguments = |pairs: &[&str]| {
            let pairs: Vec<String> = pairs.iter().map(|&pair| pair.to_owned()).collect();
            CallArguments::parse(&pairs, None).unwrap()
        };
        let mut schema = json!({"properties": {"timezone": {"type": "string"}, "path": {}}});
        let found = arguments(&["timezon=UTC", "other=1", "path=x"]).find_misspelled(&schema);
        assert_eq!(found, ["/timezon: is not a known property; did you mean `timezone`?"]);
        assert!(arguments(&["paths=a", "path=b"]).find_misspelled(&schema).is_empty(), "`path` is given");
        schema["additionalProperties"] = json!(true);
        assert!(arguments(&["timezon=UTC"]).find_misspelled(&schema).is_empty());
    }

    #[test]
    fn object_may_be_argument_or_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"a": 1}"#).unwrap();
        let at_file = format!("@{}", file.path().display());
        assert_eq!(to_json(&[&at_file], None).unwrap(), r#"{"a": 1}"#);
        assert_eq!(to_json(&[&at_file, "b=2"], None).unwrap(), r#"{"a":1,"b":2}"#);
        assert_eq!(to_json(&[r#"{"a":[1]}"#, "b=2"], None).unwrap(), r#"{"a":[1],"b":2}"#);
        for bad in [&["{"][..], &["@/no/such/file"], &["{}", "{}"], &["@"]] {
            assert!(to_json(bad, None).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn object_is_kept_and_pairs_replace_members() {
        let object = Bytes::from_static(br#"{ "a": 1.0, "b": 2 }"#);
        let alone = CallArguments::parse(&[], Some(object.clone())).unwrap();
        assert_eq!(alone.to_json(None).unwrap(), object);
        let both = CallArguments::parse(&["b=x".to_owned()], Some(object)).unwrap();
        assert_eq!(both.to_json(None).unwrap(), &br#"{"a":1.0,"b":"x"}"#[..]);
        assert!(CallArguments::parse(&[], Some(Bytes::from_static(b"[]"))).is_err());
        assert!(to_json(&["a"], None).is_err());
        assert_eq!(to_json(&[], None).unwrap(), "{}");
    }
}
