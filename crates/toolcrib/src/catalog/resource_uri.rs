//! Public resource URIs: the server's own URI, or a qualified one that names the server.
//!
//! A URI is qualified where the own URI would be ambiguous. Pages of tools (`ui:`) are always qualified, because most of them
//! are not listed, and an address must not change when another server comes or goes. Hosts recognise pages and skills by
//! their scheme, and skills by the end of the path too, so their qualified form keeps both.

use std::borrow::Cow;

use crate::protocol::json::object::{Object, to_json_string};
use crate::spec::ServerId;
use crate::util::encoding;

/// Prefix of the URIs that name their server.
const PREFIX: &str = "toolcrib://";

/// Schemes whose qualified form is `SCHEME://toolcrib/SERVER/…`, with the rest of the own URI unchanged.
const KEPT_SCHEMES: [&str; 2] = [PAGE_SCHEME, "skill://"];

/// The scheme of the pages of tools.
const PAGE_SCHEME: &str = "ui://";

/// The first part of a qualified URI that keeps its scheme.
const AUTHORITY: &str = "toolcrib/";

/// The member of `_meta` with the URI of a page, in the older form.
const OLD_PAGE_KEY: &str = "ui/resourceUri";
/// The member of `_meta.ui` with the URI of a page.
pub(super) const PAGE_KEY: &str = "resourceUri";

/// Returns a URI that names the server and its own URI of a resource.
pub(super) fn qualify_resource(server: &ServerId, own_uri: &str) -> String {
    let kept = qualify_kept_scheme(server, own_uri);
    kept.unwrap_or_else(|| format!("{PREFIX}{server}/{}", encoding::percent_encode(own_uri)))
}

/// Returns a URI template that names its server. The template stays unencoded, so that clients can expand it.
pub(super) fn qualify_template(server: &ServerId, own_template: &str) -> String {
    qualify_kept_scheme(server, own_template).unwrap_or_else(|| format!("{PREFIX}{server}/{own_template}"))
}

fn qualify_kept_scheme(server: &ServerId, own_uri: &str) -> Option<String> {
    KEPT_SCHEMES.iter().find_map(|scheme| {
        let rest = own_uri.strip_prefix(scheme)?;
        Some(format!("{scheme}{AUTHORITY}{server}/{rest}"))
    })
}

/// Splits a qualified URI into the server and the server's own URI. The own URI is percent-encoded, unless its scheme is
/// kept, or it contains a `:`, which shows that it is an expanded template.
pub(super) fn split_qualified(uri: &str) -> Option<(ServerId, Cow<'_, str>)> {
    for scheme in KEPT_SCHEMES {
        if let Some(rest) = uri.strip_prefix(scheme) {
            let (server, rest) = rest.strip_prefix(AUTHORITY)?.split_once('/')?;
            return Some((server.parse().ok()?, Cow::Owned(format!("{scheme}{rest}"))));
        }
    }
    let (server, rest) = uri.strip_prefix(PREFIX)?.split_once('/')?;
    let own_uri = if rest.contains(':') { Cow::Borrowed(rest) } else { encoding::percent_decode(rest)? };
    Some((server.parse().ok()?, own_uri))
}

/// Returns whether a URI is the address of a tool's page.
pub(super) fn is_page(uri: &str) -> bool {
    uri.starts_with(PAGE_SCHEME)
}

/// Returns the public address of a server's page; `None` if the URI is not the address of a page.
pub(super) fn public_page(server: &ServerId, own_uri: &str) -> Option<String> {
    is_page(own_uri).then(|| qualify_resource(server, own_uri))
}

/// Replaces the addresses of pages in the `_meta` of `object` by their public form, which `publish` returns if it differs.
/// Returns whether that changed anything.
pub(super) fn publish_page_meta(object: &mut Object, publish: impl Fn(&str) -> Option<String>) -> bool {
    let nested = |object: &Object, key: &str| Object::parse(object.get(key)?).ok();
    let Some(mut meta) = nested(object, "_meta") else { return false };
    let mut changed = publish_member(&mut meta, OLD_PAGE_KEY, &publish);
    if let Some(mut ui) = nested(&meta, "ui")
        && publish_member(&mut ui, PAGE_KEY, &publish)
    {
        meta.set_unchecked("ui", ui.to_bytes());
        changed = true;
    }
    if changed {
        object.set_unchecked("_meta", meta.to_bytes());
    }
    changed
}

/// Replaces the URI under `key` by its public form. Returns whether that changed it.
pub(super) fn publish_member(
    object: &mut Object,
    key: &'static str,
    publish: impl Fn(&str) -> Option<String>,
) -> bool {
    let public = object.get_string(key).and_then(|own_uri| publish(&own_uri));
    let changed = public.is_some();
    if let Some(public) = public {
        object.set_unchecked(key, to_json_string(&public));
    }
    changed
}

/// Returns the part before the first `:`.
pub(super) fn scheme(uri: &str) -> Option<&str> {
    uri.split_once(':').map(|(scheme, _)| scheme)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn qualified_uri_names_its_server() {
        let server: ServerId = "git".parse().unwrap();
        let uri = qualify_resource(&server, "file:///a b/ü%20?x#y");
        assert_eq!(uri, "toolcrib://git/file%3A%2F%2F%2Fa%20b%2F%C3%BC%2520%3Fx%23y");
        assert_eq!(split_qualified(&uri), Some((server.clone(), "file:///a b/ü%20?x#y".into())));
        assert_eq!(qualify_template(&server, "file:///{x}"), "toolcrib://git/file:///{x}");
        assert_eq!(split_qualified("toolcrib://git/file:///a%20b"), Some((server, "file:///a%20b".into())));
    }

    #[test]
    fn other_uris_are_not_qualified() {
        for other in [
            "file:///x",
            "toolcrib://",
            "toolcrib://git",
            "toolcrib://No/x",
            "toolcrib://git/%FF",
            "",
            "ui://x/y",
        ] {
            assert_eq!(split_qualified(other), None, "{other}");
        }
        assert_eq!(split_qualified("toolcrib://git/%zz%4").unwrap().1, "%zz%4");
    }

    #[test]
    fn pages_and_skills_keep_their_scheme_and_path() {
        let server: ServerId = "git".parse().unwrap();
        let uri = qualify_resource(&server, "skill://acme/refunds/SKILL.md");
        assert_eq!(uri, "skill://toolcrib/git/acme/refunds/SKILL.md");
        assert_eq!(split_qualified(&uri), Some((server.clone(), "skill://acme/refunds/SKILL.md".into())));
        assert_eq!(qualify_template(&server, "ui://x/{id}"), "ui://toolcrib/git/x/{id}");
        assert_eq!(public_page(&server, "ui://x").as_deref(), Some("ui://toolcrib/git/x"));
        assert_eq!(public_page(&server, "skill://x"), None);
        assert_eq!(split_qualified("ui://toolcrib/git"), None);
    }

    proptest! {
        #[test]
        fn qualified_uris_round_trip(own_uri in "(ui://|skill://|ui:)?.*") {
            let server: ServerId = "a-b".parse().unwrap();
            let uri = qualify_resource(&server, &own_uri);
            prop_assert_eq!(split_qualified(&uri), Some((server, own_uri.into())));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "((toolcrib|ui|skill)://(toolcrib/)?[a-z]/)?.*") {
            let _ = split_qualified(&text);
        }
    }
}
