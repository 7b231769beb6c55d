//! Replaces a server's own addresses of pages and skills in results with public ones.

use bytes::Bytes;

use super::Catalog;
use super::resource_uri::{public_page, publish_member, publish_page_meta};
use crate::protocol::era::extensions::{GET_SKILL, LIST_SKILLS};
use crate::protocol::json::object::{Object, parse_array};
use crate::spec::ServerId;

/// Replaces addresses of pages in a result: in its metadata, content, messages and contents. The address that the client
/// `requested` stays. `None` if there are no others.
pub(crate) fn publish_pages(server: &ServerId, requested: &str, result: &Bytes) -> Option<Bytes> {
    let publish = |uri: &str| public_page(server, uri).filter(|_| uri != requested);
    let mut object = Object::parse(result).ok()?;
    let mut changed = publish_page_meta(&mut object, publish);
    for list in ["content", "contents"] {
        changed |= publish_items(&mut object, list, |item| publish_content(item, publish));
    }
    changed |= publish_items(&mut object, "messages", |message| {
        publish_nested(message, "content", |content| publish_content(content, publish))
    });
    changed.then(|| object.to_bytes())
}

/// Replaces the address of a link, of an embedded resource, and in the metadata of either.
fn publish_content(content: &mut Object, publish: impl Fn(&str) -> Option<String> + Copy) -> bool {
    let is_linked = publish_member(content, "uri", publish);
    let is_embedded =
        publish_nested(content, "resource", |resource| publish_member(resource, "uri", publish));
    let has_meta = publish_page_meta(content, publish);
    is_linked || is_embedded || has_meta
}

impl Catalog {
    /// Replaces a server's own URIs in a result about skills or a directory by public ones; `method` is the method of the
    /// request. Returns `None` if that changes nothing.
    pub fn publish_skill_uris(&self, server: &ServerId, method: &str, result: &Bytes) -> Option<Bytes> {
        let publish = |own_uri: &str| {
            let public = self.public_uri(server, own_uri);
            (public != own_uri).then(|| public.into_owned())
        };
        let publish_skill = |skill: &mut Object| {
            let is_renamed = publish_member(skill, "uri", publish);
            let has_files = publish_items(skill, "resources", |file| publish_member(file, "uri", publish));
            is_renamed || has_files
        };
        let mut object = Object::parse(result).ok()?;
        let changed = match method {
            LIST_SKILLS => publish_items(&mut object, "skills", publish_skill),
            GET_SKILL => publish_nested(&mut object, "skill", publish_skill),
            _ => publish_items(&mut object, "resources", |child| publish_member(child, "uri", publish)),
        };
        changed.then(|| object.to_bytes())
    }
}

/// Applies a change to every object in the array under `key`. Returns whether that changed any.
fn publish_items(object: &mut Object, key: &'static str, change: impl Fn(&mut Object) -> bool) -> bool {
    let Some(items) = object.get(key).and_then(|raw| parse_array(raw).ok()) else { return false };
    let mut has_changed = false;
    let items: Vec<Bytes> = items
        .into_iter()
        .map(|raw| {
            let Ok(mut item) = Object::parse(&raw) else { return raw };
            if !change(&mut item) {
                return raw;
            }
            has_changed = true;
            item.to_bytes()
        })
        .collect();
    if has_changed {
        object.set_unchecked(key, [b"[", &*items.join(&b","[..]), b"]"].concat());
    }
    has_changed
}

/// Applies a change to the object under `key`. Returns whether that changed it.
fn publish_nested(object: &mut Object, key: &'static str, change: impl Fn(&mut Object) -> bool) -> bool {
    let Some(mut nested) = object.get(key).and_then(|raw| Object::parse(raw).ok()) else { return false };
    let has_changed = change(&mut nested);
    if has_changed {
        object.set_unchecked(key, nested.to_bytes());
    }
    has_changed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(result: &'static str) -> Option<String> {
        let published =
            publish_pages(&"a".parse().unwrap(), "ui://requested", &Bytes::from_static(result.as_bytes()))?;
        Some(String::from_utf8(published.to_vec()).unwrap())
    }

    #[test]
    fn addresses_of_pages_are_replaced_wherever_results_have_them() {
        let link = r#"{"content":[{"type":"text","text":"ui://x","n":1.0},{"type":"resource_link","uri":"ui://x"},{"type":"resource","resource":{"uri":"ui://y"}}],"_meta":{"ui":{"resourceUri":"ui://z"}}}"#;
        assert_eq!(
            pages(link).unwrap(),
            r#"{"content":[{"type":"text","text":"ui://x","n":1.0},{"type":"resource_link","uri":"ui://toolcrib/a/x"},{"type":"resource","resource":{"uri":"ui://toolcrib/a/y"}}],"_meta":{"ui":{"resourceUri":"ui://toolcrib/a/z"}}}"#
        );
        let prompt = r#"{"messages":[{"role":"user","content":{"type":"resource_link","uri":"ui:\/\/x"}}]}"#;
        assert_eq!(
            pages(prompt).unwrap(),
            r#"{"messages":[{"role":"user","content":{"type":"resource_link","uri":"ui://toolcrib/a/x"}}]}"#
        );
        for unchanged in [
            r#"{"contents":[{"uri":"ui://requested"}]}"#,
            r#"{"content":[{"type":"resource_link","uri":"file:///ui://x"}]}"#,
            "7",
            r#"{"content":7}"#,
        ] {
            assert_eq!(pages(unchanged), None, "{unchanged}");
        }
    }
}
