//! Arguments that a tool wants repeated in headers: which they are, and whether a header says what the body says.

use std::sync::Arc;

use bytes::Bytes;
use toolcrib::wire::object::{Object, as_string};

/// How deep schemas are searched.
const DEEPEST: usize = 16;

/// One argument that is repeated in a header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mirrored {
    /// The last part of the header's name: `Mcp-Param-…`.
    pub(crate) header: String,
    /// Where the argument is, from the outside in.
    path: Vec<String>,
}

/// The arguments that a tool's definition marks; `None` if there are none.
pub(super) fn mirrored(definition: &Bytes) -> Option<Arc<[Mirrored]>> {
    if !std::str::from_utf8(definition).is_ok_and(|text| text.contains("x-mcp-header")) {
        return None;
    }
    let mut found = Vec::new();
    let schema = Object::parse(definition).ok()?.get("inputSchema").cloned()?;
    search(&schema, &mut Vec::new(), &mut found);
    (!found.is_empty()).then(|| found.into())
}

/// Only what can be reached by `properties` alone is there in every call.
fn search(schema: &Bytes, path: &mut Vec<String>, found: &mut Vec<Mirrored>) {
    let Ok(schema) = Object::parse(schema) else { return };
    if let Some(header) = schema.string("x-mcp-header").filter(|_| !path.is_empty()) {
        found.push(Mirrored { header: header.into_owned(), path: path.clone() });
    }
    let Some(Ok(properties)) = schema.get("properties").map(Object::parse) else { return };
    if path.len() < DEEPEST {
        for (name, property) in properties.iter() {
            path.push(name.to_owned());
            search(property, path, found);
            path.pop();
        }
    }
}

impl Mirrored {
    /// The argument as a header says it; `None` if it is not there or `null`.
    pub(crate) fn value(&self, arguments: Option<&Bytes>) -> Option<Bytes> {
        let mut value = arguments?.clone();
        for name in &self.path {
            value = Object::parse(&value).ok()?.get(name)?.clone();
        }
        (&*value != b"null").then_some(value)
    }
}

/// Whether a header's text, decoded, stands for a JSON value.
pub(crate) fn says(text: &str, value: &[u8]) -> bool {
    match as_string(value) {
        Some(wanted) => text == wanted,
        None => {
            let wanted = String::from_utf8_lossy(value);
            text == wanted || same_number(text, &wanted)
        }
    }
}

/// `1` and `1.0` are one number.
fn same_number(text: &str, wanted: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    number(text).is_some_and(|text| Some(text) == number(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_arguments_are_found_and_compared() {
        let definition = Bytes::from_static(
            br#"{"name":"q","inputSchema":{"type":"object","properties":{"region":{"type":"string","x-mcp-header":"Region"},"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}},"plain":{"type":"string"}}}}"#,
        );
        let marked = mirrored(&definition).unwrap();
        let names: Vec<&str> = marked.iter().map(|marked| marked.header.as_str()).collect();
        assert_eq!(names, ["Region", "N"]);
        let arguments = Bytes::from_static(br#"{"region":"eu","deep":{"n":7}}"#);
        assert!(says("eu", &marked[0].value(Some(&arguments)).unwrap()));
        assert!(says("7", &marked[1].value(Some(&arguments)).unwrap()));
        assert!(!says("8", &marked[1].value(Some(&arguments)).unwrap()));
        assert_eq!(marked[0].value(Some(&Bytes::from_static(br#"{"region":null}"#))), None);
        assert_eq!(marked[0].value(None), None);
        assert!(mirrored(&Bytes::from_static(br#"{"name":"x"}"#)).is_none());
        assert!(says("true", b"true") && says("1.0", b"1") && !says("1", b"true"));
    }
}
