//! `Fingerprint`: what a definition comes to, whatever order its members are written in. An object in which a name appears
//! twice counts as it is spelled: two readers could see two different values in it.

use std::fmt;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::wire::canonical;
use crate::wire::object::Object;

/// The members of a tool that people and models read, or that decide how it is called.
const KEPT: [&str; 6] = ["name", "title", "description", "inputSchema", "outputSchema", "annotations"];

/// A digest of a tool's definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of everything in a definition that is pinned.
    pub(crate) fn of(definition: &Bytes) -> Self {
        Self::of_text(&kept(definition))
    }

    /// Of any JSON.
    pub(crate) fn of_text(json: &Bytes) -> Self {
        Self(Sha256::digest(canonical::text(json)).into())
    }

    /// As `Display` writes it.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, two) in bytes.iter_mut().zip(digits.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What is pinned of a definition.
pub(crate) fn kept(definition: &Bytes) -> Bytes {
    match Object::parse(definition) {
        Ok(mut object) => {
            object.retain(|key| KEPT.contains(&key));
            object.to_bytes()
        }
        Err(_) => definition.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Fingerprint {
        Fingerprint::of(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn order_and_blanks_make_no_difference_and_everything_that_is_read_does() {
        let plain = of(
            r#"{"name":"a","description":"d","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
        );
        let same = [
            r#"{ "inputSchema" : {"properties":{"y":{"enum":[1, 2]},"x":{ }},"type":"object"}, "description":"d","name":"a"}"#,
            r#"{"name":"a","description":"\u0064","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}},"_meta":{"n":7},"icons":[]}"#,
        ];
        for text in same {
            assert_eq!(of(text), plain, "{text}");
        }
        let others = [
            r#"{"name":"b","description":"d","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
            r#"{"name":"a","description":"D","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
            r#"{"name":"a","description":"d","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[2,1]}}}}"#,
            r#"{"name":"a","description":"d","title":"t","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
            r#"{"name":"a","description":"d","annotations":{"readOnlyHint":true},"inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
            r#"{"name":"a","description":"d","outputSchema":{},"inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
        ];
        for text in others {
            assert_ne!(of(text), plain, "{text}");
        }
    }

    #[test]
    fn a_member_that_is_there_twice_hides_nothing() {
        let twice = |first: &str| {
            of(&format!(
                r#"{{"name":"a","inputSchema":{{"x":{{"d":"{first}","d":"last"}},"type":"object"}}}}"#
            ))
        };
        assert_ne!(twice("good"), twice("evil"));
    }

    #[test]
    fn depth_has_an_end() {
        let deep = |end: &str| {
            format!(r#"{{"name":"a","inputSchema":{}{end}{}}}"#, "[".repeat(5000), "]".repeat(5000))
        };
        assert_eq!(of(&deep("1")), of(&deep("1")));
        assert_ne!(of(&deep("1")), of(&deep("2")));
    }

    #[test]
    fn a_fingerprint_is_read_as_it_is_written() {
        let print = of(r#"{"name":"a"}"#);
        assert_eq!(Fingerprint::read(&print.to_string()), Some(print));
        assert_eq!(Fingerprint::read("ff"), None);
        assert_eq!(Fingerprint::read(&"é".repeat(32)), None);
    }
}
