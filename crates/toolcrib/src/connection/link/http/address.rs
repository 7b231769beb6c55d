//! Where a redirect or an endpoint leads, and whether that is still the same server.

use hyper::Uri;

/// The address that a reference on a page leads to, as long as it is on the same server.
pub(super) fn follow(page: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.trim();
    let (scheme, authority) = (page.scheme_str()?, page.authority()?.as_str());
    let absolute = if reference.starts_with("//") {
        format!("{scheme}:{reference}")
    } else if reference.starts_with('/') {
        format!("{scheme}://{authority}{reference}")
    } else if reference.starts_with('?') {
        format!("{scheme}://{authority}{}{reference}", page.path())
    } else if reference.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?', '#'])) {
        reference.to_owned()
    } else {
        let folder = page.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{reference}")
    };
    let target: Uri = absolute.parse().ok()?;
    same_origin(page, &target).then_some(target)
}

fn same_origin(one: &Uri, other: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().or(if uri.scheme_str()? == "https" { Some(443) } else { Some(80) });
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    let plain = |uri: &Uri| uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    one.scheme() == other.scheme() && host(one) == host(other) && port(one) == port(other) && plain(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_stays_on_its_server_or_leads_nowhere() {
        let page = Uri::from_static("https://Example.test/a/sse?x=1");
        let to = |reference| follow(&page, reference).map(|uri| uri.to_string());
        assert_eq!(to("/message?s=1").as_deref(), Some("https://Example.test/message?s=1"));
        assert_eq!(to("message").as_deref(), Some("https://Example.test/a/message"));
        assert_eq!(to("?s=1").as_deref(), Some("https://Example.test/a/sse?s=1"));
        assert_eq!(to("https://example.TEST:443/b").as_deref(), Some("https://example.TEST:443/b"));
        let along = "https://Example.test/message?to=https://x";
        assert_eq!(to("/message?to=https://x").as_deref(), Some(along));
        assert_eq!(
            to("message?to=https://x").as_deref(),
            Some("https://Example.test/a/message?to=https://x")
        );
        assert_eq!(to("?to=https://x").as_deref(), Some("https://Example.test/a/sse?to=https://x"));
        for away in [
            "http://example.test/b",
            "https://example.test:444/b",
            "//evil.test/b",
            "https://evil.test/",
            "https://a@example.test/",
            "https://example.test.evil.test/",
        ] {
            assert_eq!(to(away), None, "{away}");
        }
    }
}
