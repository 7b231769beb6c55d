//! `Fingerprint`: a digest of a definition that does not depend on the order of members. An object with a duplicate
//! member is digested as written, because parsers disagree on its value.

use std::fmt;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use crate::model::pin_status::PinnedKind;
use crate::protocol::json::canonical;
use crate::protocol::json::object::{BorrowedObject, Object};
use crate::util::encoding;

/// The members of a tool that earlier releases pinned.
const BASIC_MEMBERS: [&str; 6] =
    ["name", "title", "description", "inputSchema", "outputSchema", "annotations"];

/// The members of a definition that people and models read, or that decide how the item is used. Of `_meta` only the
/// keys of user interfaces are pinned.
const PINNED_MEMBERS: [&str; 13] = [
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
    "annotations",
    "icons",
    "execution",
    "_meta",
    "arguments",
    "uri",
    "uriTemplate",
    "mimeType",
];

/// A digest of a definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Computes the fingerprint of any JSON.
    pub(crate) fn from_json(json: &Bytes) -> Self {
        Self(Sha256::digest(canonical::canonicalize(json)).into())
    }

    /// Returns the fingerprint as 64 hexadecimal digits.
    pub(super) fn to_hex(self) -> String {
        encoding::to_hex(&self.0)
    }

    /// Parses 64 hexadecimal digits, the `Display` form.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        encoding::parse_hex(text)?.try_into().ok().map(Self)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

/// The fingerprints of one definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ItemFingerprint {
    /// Of the members that earlier releases pinned.
    pub(super) basic: Fingerprint,
    /// Of all pinned members.
    pub(super) full: Fingerprint,
}

impl ItemFingerprint {
    /// Computes the fingerprints of a definition.
    pub(super) fn from_definition(kind: PinnedKind, definition: &Bytes) -> Self {
        let mut is_pinned = true;
        let mut is_basic = true;
        let canonical = canonical::canonicalize_and_visit(definition, |name| {
            is_pinned &= is_pinned_as_a_whole(kind, name);
            is_basic &= is_one_of(&BASIC_MEMBERS, name);
        });
        // Most definitions have only such members, and need not be parsed.
        match is_pinned && (is_basic || kind != PinnedKind::Tool) {
            true => {
                let full = Fingerprint(Sha256::digest(canonical).into());
                Self { basic: full, full }
            }
            false => Self::from_pinned_members(kind, definition),
        }
    }

    /// Computes the fingerprints of a definition without the members that are not pinned.
    fn from_pinned_members(kind: PinnedKind, definition: &Bytes) -> Self {
        let Some(pinned) = pinned_object(kind, definition) else {
            let full = Fingerprint::from_json(definition);
            return Self { basic: full, full };
        };
        let full = Fingerprint::from_json(&pinned.to_bytes());
        let has_more = pinned.iter().any(|(key, _)| !BASIC_MEMBERS.contains(&key));
        let basic = match kind == PinnedKind::Tool && has_more {
            true => Fingerprint::from_json(&basic_members(definition)),
            false => full,
        };
        Self { basic, full }
    }
}

/// Returns whether a member of a definition is pinned, and with everything in it.
fn is_pinned_as_a_whole(kind: PinnedKind, name: &[u8]) -> bool {
    match name {
        b"_meta" => false,
        b"annotations" => kind == PinnedKind::Tool,
        name => is_one_of(&PINNED_MEMBERS, name),
    }
}

fn is_one_of(names: &[&str], name: &[u8]) -> bool {
    names.iter().any(|known| known.as_bytes() == name)
}

fn basic_members(definition: &Bytes) -> Bytes {
    match Object::parse(definition) {
        Ok(mut object) => {
            object.retain(|key| BASIC_MEMBERS.contains(&key));
            object.to_bytes()
        }
        Err(_) => definition.clone(),
    }
}

/// Returns a definition with only its pinned members.
pub(super) fn pinned_members(kind: PinnedKind, definition: &Bytes) -> Bytes {
    let is_whole = |object: &BorrowedObject<'_>| {
        object.members.iter().all(|member| is_pinned_as_a_whole(kind, &member.name))
            && object.compact_len() == definition.len()
    };
    if BorrowedObject::parse(definition).as_ref().is_some_and(is_whole) {
        return definition.clone();
    }
    pinned_object(kind, definition).map_or_else(|| definition.clone(), |object| object.to_bytes())
}

/// Returns the pinned members of a definition, or `None` if it is not an object.
fn pinned_object(kind: PinnedKind, definition: &Bytes) -> Option<Object> {
    let mut object = Object::parse(definition).ok()?;
    object.retain(|key| PINNED_MEMBERS.contains(&key));
    reduce_member(&mut object, "_meta", is_user_interface_key);
    if kind != PinnedKind::Tool {
        // The time of the last change of a resource is not part of its definition.
        reduce_member(&mut object, "annotations", |key| key != "lastModified");
    }
    Some(object)
}

/// Keeps only some members of a member that is an object, and removes it if none is left.
fn reduce_member(object: &mut Object, name: &'static str, keep: impl Fn(&str) -> bool) {
    let Some(Ok(mut member)) = object.get(name).map(Object::parse) else { return };
    if member.iter().all(|(key, _)| keep(key)) && !member.is_empty() {
        return;
    }
    member.retain(|key| keep(key));
    match member.is_empty() {
        true => drop(object.remove(name)),
        false => object.set_unchecked(name, member.to_bytes()),
    }
}

/// Returns whether a key of `_meta` chooses the user interface that a client shows, such as `ui` or `openai/outputTemplate`.
fn is_user_interface_key(key: &str) -> bool {
    key.split(['/', '.']).any(|part| matches!(part, "ui" | "openai"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fingerprint(text: &str) -> Fingerprint {
        ItemFingerprint::from_definition(PinnedKind::Tool, &Bytes::copy_from_slice(text.as_bytes())).full
    }

    #[test]
    fn fingerprint_ignores_order_and_whitespace_only() {
        let expected = fingerprint(
            r#"{"name":"a","description":"d","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}}}"#,
        );
        let same = [
            r#"{ "inputSchema" : {"properties":{"y":{"enum":[1, 2]},"x":{ }},"type":"object"}, "description":"d","name":"a"}"#,
            r#"{"name":"a","description":"\u0064","inputSchema":{"type":"object","properties":{"x":{},"y":{"enum":[1,2]}}},"_meta":{"n":7},"x":[]}"#,
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
    fn icons_execution_and_interface_keys_are_pinned() {
        let plain = fingerprint(r#"{"name":"a"}"#);
        for member in [
            r#""icons":[{"src":"https://x.test/i.png"}]"#,
            r#""execution":{"taskSupport":"required"}"#,
            r#""_meta":{"ui":{"resourceUri":"ui://x"}}"#,
            r#""_meta":{"io.modelcontextprotocol/ui":{}}"#,
            r#""_meta":{"openai/outputTemplate":"ui://x"}"#,
        ] {
            assert_ne!(fingerprint(&format!(r#"{{"name":"a",{member}}}"#)), plain, "{member}");
        }
        let definition = |extra: &str| Bytes::from(format!(r#"{{"name":"a"{extra}}}"#));
        let with_icons = definition(r#","icons":[1]"#);
        let fingerprints = ItemFingerprint::from_definition(PinnedKind::Tool, &with_icons);
        assert_eq!(fingerprints.basic, plain, "the previous release saw the same tool");
        assert_eq!(fingerprint(r#"{"name":"a","_meta":{"traceparent":"1"}}"#), plain);
    }

    #[test]
    fn resource_fingerprint_ignores_time_of_change() {
        let resource = |annotations: &str| {
            let text = format!(r#"{{"uri":"x:1","name":"one","size":1,"annotations":{annotations}}}"#);
            ItemFingerprint::from_definition(PinnedKind::Resource, &Bytes::from(text)).full
        };
        assert_eq!(
            resource(r#"{"lastModified":"1","priority":1}"#),
            resource(r#"{"lastModified":"2","priority":1}"#)
        );
        assert_ne!(resource(r#"{"priority":1}"#), resource(r#"{"priority":2}"#));
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

    proptest! {
        #[test]
        fn fingerprint_is_that_of_the_pinned_members(members in prop::collection::vec(prop::sample::select(vec![
            r#""name":"a""#, r#""n\u0061me":"b""#, r#" "title" : "t""#, r#""inputSchema":{"b":1,"a":{"d":[ ],"c":2}}"#,
            r#""icons":[{"src":"x"}]"#, r#""execution":{}"#, r#""_meta":{"ui":1,"x":2}"#, r#""_meta":{"x":2}"#, r#""_meta":7"#,
            r#""annotations":{"lastModified":"1","priority":1}"#, r#""annotations":{}"#, r#""uri":"x:1""#, r#""size":1"#,
            r#""x":{"a":1,"a":2}"#, r#""\ud800":1"#, r#""description":"\ud800""#,
        ]), 0..6), kind in prop::sample::select(PinnedKind::ALL.to_vec())) {
            let definition = Bytes::from(format!("{{{}}}", members.join(",")));
            let computed = ItemFingerprint::from_definition(kind, &definition);
            prop_assert_eq!(computed, ItemFingerprint::from_pinned_members(kind, &definition));
            let pinned = pinned_object(kind, &definition).map_or(definition.clone(), |pinned| pinned.to_bytes());
            prop_assert_eq!(pinned_members(kind, &definition), pinned);
        }
    }

    #[test]
    fn fingerprint_parses_its_display_form() {
        let original = fingerprint(r#"{"name":"a"}"#);
        assert_eq!(Fingerprint::parse(&original.to_string()), Some(original));
        assert_eq!(Fingerprint::parse("ff"), None);
        assert_eq!(Fingerprint::parse(&"é".repeat(32)), None);
    }
}
