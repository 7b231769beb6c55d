//! `Fingerprint`: a digest of a tool definition that does not depend on the order of members. An object with a duplicate
//! member is digested as written, because parsers disagree on its value.

use std::fmt;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::protocol::json::canonical;
use crate::protocol::json::object::Object;
use crate::util::encoding;

/// The members of a definition that people and models read, or that decide how the tool is called.
const PINNED_MEMBERS: [&str; 6] =
    ["name", "title", "description", "inputSchema", "outputSchema", "annotations"];

/// A digest of a tool's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Computes the fingerprint of the pinned members of a definition.
    pub(crate) fn from_definition(definition: &Bytes) -> Self {
        Self::from_json(&pinned_members(definition))
    }

    /// Computes the fingerprint of any JSON.
    pub(crate) fn from_json(json: &Bytes) -> Self {
        Self(Sha256::digest(canonical::canonicalize(json)).into())
    }

    /// Parses 64 hexadecimal digits, the `Display` form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        encoding::parse_hex(text)?.try_into().ok().map(Self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encoding::to_hex(&self.0))
    }
}

/// Returns a definition with only its pinned members.
pub(crate) fn pinned_members(definition: &Bytes) -> Bytes {
    match Object::parse(definition) {
        Ok(mut object) => {
            object.retain(|key| PINNED_MEMBERS.contains(&key));
            object.to_bytes()
        }
        Err(_) => definition.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(text: &str) -> Fingerprint {
        Fingerprint::from_definition(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn fingerprint_ignores_order_and_whitespace_only() {
        let expected = fingerprint(
            r#"{"name":"a","description":"d","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
        );
        let same = [
            r#"{ "inputSchema" : {"properties":{"y":{"enum":[1, 2]},"x":{ }},"type":"object"}, "description":"d","name":"a"}"#,
            r#"{"name":"a","description":"\u0064","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}},"_meta":{"n":7},"icons":[]}"#,
        ];
        for text in same {
            assert_eq!(fingerprint(text), expected, "{text}");
        }
        let different = [
            r#"{"name":"b","description":"d","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
            r#"{"name":"a","description":"D","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
            r#"{"name":"a","description":"d","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[2,1]}}}}"#,
            r#"{"name":"a","description":"d","title":"t","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
            r#"{"name":"a","description":"d","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
            r#"{"name":"a","description":"d","outputSchema":{},"inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
        ];
        for text in different {
            assert_ne!(fingerprint(text), expected, "{text}");
        }
    }

    #[test]
    fn fingerprint_covers_duplicate_members() {
        let definition = |first: &str| {
            fingerprint(&format!(
                r#"{{"name":"a","inputSchema":{{"x":{{"d":"{first}","d":"last"}},"type":"object"}}}}"#
            ))
        };
        assert_ne!(definition("good"), definition("evil"));
    }

    #[test]
    fn fingerprint_handles_deep_nesting() {
        let deep = |end: &str| {
            format!(r#"{{"name":"a","inputSchema":{}{end}{}}}"#, "[".repeat(5000), "]".repeat(5000))
        };
        assert_eq!(fingerprint(&deep("1")), fingerprint(&deep("1")));
        assert_ne!(fingerprint(&deep("1")), fingerprint(&deep("2")));
    }

    #[test]
    fn fingerprint_parses_its_display_form() {
        let original = fingerprint(r#"{"name":"a"}"#);
        assert_eq!(Fingerprint::parse(&original.to_string()), Some(original));
        assert_eq!(Fingerprint::parse("ff"), None);
        assert_eq!(Fingerprint::parse(&"é".repeat(32)), None);
    }
}
