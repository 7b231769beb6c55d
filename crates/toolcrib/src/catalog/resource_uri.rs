//! Public resource URIs: the server's own URI, or `toolcrib://SERVER/…` where that would be ambiguous.

use std::borrow::Cow;

use crate::spec::ServerId;
use crate::util::encoding;

/// Prefix of the URIs that name their server.
const PREFIX: &str = "toolcrib://";

/// Returns a URI that names the server and its own URI of a resource, percent-encoded.
pub(super) fn qualify_resource(server: &ServerId, own_uri: &str) -> String {
    format!("{PREFIX}{server}/{}", encoding::percent_encode(own_uri))
}

/// Returns a URI template that names its server. The template stays unencoded, so that clients can expand it.
pub(super) fn qualify_template(server: &ServerId, own_template: &str) -> String {
    format!("{PREFIX}{server}/{own_template}")
}

/// Splits a qualified URI into the server and the server's own URI. The own URI is percent-encoded, unless it contains
/// a `:`, which shows that it is an expanded template.
pub(super) fn split_qualified(uri: &str) -> Option<(ServerId, Cow<'_, str>)> {
    let (server, rest) = uri.strip_prefix(PREFIX)?.split_once('/')?;
    let own_uri = if rest.contains(':') { Cow::Borrowed(rest) } else { encoding::percent_decode(rest)? };
    Some((server.parse().ok()?, own_uri))
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
        for other in
            ["file:///x", "toolcrib://", "toolcrib://git", "toolcrib://No/x", "toolcrib://git/%FF", ""]
        {
            assert_eq!(split_qualified(other), None, "{other}");
        }
        assert_eq!(split_qualified("toolcrib://git/%zz%4").unwrap().1, "%zz%4");
    }

    proptest! {
        #[test]
        fn qualified_uris_round_trip(own_uri in ".*") {
            let server: ServerId = "a-b".parse().unwrap();
            let uri = qualify_resource(&server, &own_uri);
            prop_assert_eq!(split_qualified(&uri), Some((server, own_uri.into())));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "(toolcrib://[a-z]/)?.*") {
            let _ = split_qualified(&text);
        }
    }
}
