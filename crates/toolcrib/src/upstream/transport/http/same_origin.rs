//! Resolves redirects and SSE endpoints within the same origin.

use hyper::Uri;

/// Resolves a reference against `base`; `None` if it leaves the origin.
pub(super) fn resolve_same_origin(base: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.trim();
    let (scheme, authority) = (base.scheme_str()?, base.authority()?.as_str());
    let absolute = if reference.starts_with("//") {
        format!("{scheme}:{reference}")
    } else if reference.starts_with('/') {
        format!("{scheme}://{authority}{reference}")
    } else if reference.starts_with('?') {
        format!("{scheme}://{authority}{}{reference}", base.path())
    } else if reference.split_once("://").is_some_and(|(scheme, _)| !scheme.contains(['/', '?', '#'])) {
        reference.to_owned()
    } else {
        let folder = base.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{reference}")
    };
    let target: Uri = absolute.parse().ok()?;
    is_same_origin(base, &target).then_some(target)
}

fn is_same_origin(left: &Uri, right: &Uri) -> bool {
    let port = |uri: &Uri| uri.port_u16().or(if uri.scheme_str()? == "https" { Some(443) } else { Some(80) });
    let host = |uri: &Uri| uri.host().map(str::to_ascii_lowercase);
    let has_no_userinfo =
        |uri: &Uri| uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    left.scheme() == right.scheme()
        && host(left) == host(right)
        && port(left) == port(right)
        && has_no_userinfo(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_resolve_only_within_the_same_origin() {
        let base = Uri::from_static("https://Example.test/a/sse?x=1");
        let resolve = |reference| resolve_same_origin(&base, reference).map(|uri| uri.to_string());
        assert_eq!(resolve("/message?s=1").as_deref(), Some("https://Example.test/message?s=1"));
        assert_eq!(resolve("message").as_deref(), Some("https://Example.test/a/message"));
        assert_eq!(resolve("?s=1").as_deref(), Some("https://Example.test/a/sse?s=1"));
        assert_eq!(resolve("https://example.TEST:443/b").as_deref(), Some("https://example.TEST:443/b"));
        let with_nested_url = "https://Example.test/message?to=https://x";
        assert_eq!(resolve("/message?to=https://x").as_deref(), Some(with_nested_url));
        assert_eq!(
            resolve("message?to=https://x").as_deref(),
            Some("https://Example.test/a/message?to=https://x")
        );
        assert_eq!(resolve("?to=https://x").as_deref(), Some("https://Example.test/a/sse?to=https://x"));
        for foreign in [
            "http://example.test/b",
            "https://example.test:444/b",
            "//evil.test/b",
            "https://evil.test/",
            "https://a@example.test/",
            "https://example.test.evil.test/",
        ] {
            assert_eq!(resolve(foreign), None, "{foreign}");
        }
    }
}
