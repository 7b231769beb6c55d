//! Checks the `Host` and `Origin` headers, so that web pages cannot use the gateway through a browser (DNS rebinding).

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderValue, ORIGIN};
use hyper::{Uri, Version};

/// The host names under which the gateway may be addressed.
#[derive(Debug)]
pub(crate) struct HostAllowList {
    /// Host names from the config, in lower case.
    configured: Vec<String>,
}

/// The names of this machine for itself.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The headers that say which site a request is sent to and from. They are found in one pass, which costs less than a lookup of
/// each.
#[derive(Default)]
struct SiteHeaders<'a> {
    /// The first `Host` header.
    host: Option<&'a HeaderValue>,
    /// Number of `Host` headers.
    hosts: usize,
    /// The kind of page that sent the request, which browsers add.
    fetch_site: Option<&'a HeaderValue>,
    has_origin: bool,
}

impl<'a> SiteHeaders<'a> {
    fn find(headers: &'a HeaderMap) -> Self {
        let mut found = Self::default();
        for (name, value) in headers {
            match name.as_str() {
                "host" => {
                    found.host = found.host.or(Some(value));
                    found.hosts += 1;
                }
                "sec-fetch-site" => found.fetch_site = found.fetch_site.or(Some(value)),
                "origin" => found.has_origin = true,
                _ => {}
            }
        }
        found
    }
}

/// Returns the authority that a request addresses. It was checked before.
pub(crate) fn request_authority<'a>(target: &'a Uri, headers: &'a HeaderMap) -> &'a str {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    host.or_else(|| Some(target.authority()?.as_str())).unwrap_or_default()
}

impl HostAllowList {
    pub(crate) fn new(mut hosts: Vec<String>) -> Self {
        hosts.iter_mut().for_each(|host| host.make_ascii_lowercase());
        Self { configured: hosts }
    }

    /// Checks the host and origin of a request, and the host that its client addressed if a proxy passed it on; the error says
    /// which is wrong.
    pub(crate) fn check(
        &self,
        version: Version,
        target: &Uri,
        headers: &HeaderMap,
        forwarded_host: Option<&str>,
    ) -> Result<(), String> {
        let SiteHeaders { host: host_header, hosts, fetch_site, has_origin } = SiteHeaders::find(headers);
        // HTTP/2 names the host in the target.
        let may_lack_host = version == Version::HTTP_2 && target.authority().is_some();
        if hosts != 1 && !(hosts == 0 && may_lack_host) {
            return Err("a request must have exactly one `Host` header".to_owned());
        }
        if let Some(host) = host_header.filter(|host| !host.to_str().is_ok_and(|host| self.allows(host))) {
            return Err(format!("the host {host:?} is not allowed; add it to `[listen] hosts`"));
        }
        if target.authority().is_some_and(|authority| !self.allows(authority.as_str())) {
            return Err("the host of the request target is not allowed".to_owned());
        }
        if let Some(host) = forwarded_host.filter(|host| !self.allows(host)) {
            return Err(format!("the forwarded host {host:?} is not allowed; add it to `[listen] hosts`"));
        }
        if fetch_site.is_some_and(|site| site == "cross-site" || site == "same-site") {
            return Err("requests of web pages from elsewhere are not allowed".to_owned());
        }
        if !has_origin {
            return Ok(());
        }
        let host_header = host_header.and_then(|host| host.to_str().ok());
        let authority = forwarded_host.or(host_header).or_else(|| Some(target.authority()?.as_str()));
        let authority = authority.unwrap_or_default();
        for origin in headers.get_all(ORIGIN) {
            if !origin.to_str().is_ok_and(|origin| self.allows_origin(origin, authority)) {
                return Err(format!("the origin {origin:?} is not allowed"));
            }
        }
        Ok(())
    }

    /// Returns whether an authority, a host with or without a port, is allowed.
    fn allows(&self, authority: &str) -> bool {
        is_loopback(authority) || self.is_configured(split_port(authority).0)
    }

    fn is_configured(&self, host: &str) -> bool {
        self.configured.iter().any(|allowed| allowed.eq_ignore_ascii_case(host))
    }

    /// Returns whether web pages of an origin may send requests to `authority`. On this machine any program can serve pages,
    /// so an origin here must have the gateway's own port.
    fn allows_origin(&self, origin: &str, authority: &str) -> bool {
        let (name, default_port) = match (origin.strip_prefix("http://"), origin.strip_prefix("https://")) {
            (Some(name), _) => (name, "80"),
            (_, Some(name)) => (name, "443"),
            _ => return false,
        };
        let (host, port) = split_port(name);
        let own_port = split_port(authority).1.unwrap_or(default_port);
        self.is_configured(host) || (self.allows(name) && port.unwrap_or(default_port) == own_port)
    }
}

/// Returns whether an authority is a name of this machine for itself.
pub(crate) fn is_loopback(authority: &str) -> bool {
    LOOPBACK.iter().any(|name| match authority.split_at_checked(name.len()) {
        Some((host, rest)) => host.eq_ignore_ascii_case(name) && (rest.is_empty() || is_port(rest)),
        None => false,
    })
}

/// Returns whether a text is a colon and a port.
fn is_port(text: &str) -> bool {
    let port = text.strip_prefix(':').unwrap_or_default();
    !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Splits an authority into host and port.
pub(crate) fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rfind(':') {
        Some(colon) if is_port(&authority[colon..]) => (&authority[..colon], Some(&authority[colon + 1..])),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

    fn is_allowed(headers: &[(HeaderName, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        let hosts = HostAllowList::new(vec!["Crib.local".to_owned()]);
        hosts.check(Version::HTTP_11, &Uri::from_static("/mcp"), &map, None).is_ok()
    }

    #[test]
    fn http2_target_names_the_host() {
        let hosts = HostAllowList::new(Vec::new());
        let is_allowed = |target: &'static str, version| {
            hosts.check(version, &Uri::from_static(target), &HeaderMap::new(), None).is_ok()
        };
        assert!(is_allowed("http://localhost:7717/mcp", Version::HTTP_2));
        assert!(!is_allowed("http://evil.example/mcp", Version::HTTP_2));
        assert!(!is_allowed("/mcp", Version::HTTP_2));
        assert!(!is_allowed("http://localhost:7717/mcp", Version::HTTP_11));
    }

    #[test]
    fn only_allowed_hosts_are_served() {
        for allowed in
            ["localhost", "localhost:7717", "127.0.0.1:1", "[::1]:80", "[::1]", "crib.local:9", "LOCALHOST"]
        {
            assert!(is_allowed(&[(HOST, allowed)]), "{allowed}");
        }
        for refused in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "user@localhost",
            "",
            "localhost:",
            "::1",
        ] {
            assert!(!is_allowed(&[(HOST, refused)]), "{refused}");
        }
        assert!(!is_allowed(&[]));
        assert!(!is_allowed(&[(HOST, "localhost"), (HOST, "localhost")]));
    }

    #[test]
    fn forwarded_host_must_be_allowed_and_decides_about_origins() {
        let hosts = HostAllowList::new(vec!["crib.local".to_owned()]);
        let is_allowed = |forwarded: &str, origin: &str| {
            let headers = [(HOST, "127.0.0.1:7717"), (ORIGIN, origin)];
            let headers = headers.map(|(name, value)| (name, HeaderValue::from_str(value).unwrap()));
            let headers = HeaderMap::from_iter(headers);
            hosts.check(Version::HTTP_11, &Uri::from_static("/mcp"), &headers, Some(forwarded)).is_ok()
        };
        assert!(is_allowed("crib.local", "https://crib.local"));
        assert!(is_allowed("localhost:8443", "https://localhost:8443"));
        assert!(!is_allowed("localhost:8443", "http://localhost:7717"));
        assert!(!is_allowed("evil.example", "https://crib.local"));
    }

    #[test]
    fn only_allowed_origins_are_served() {
        for allowed in ["http://localhost:7717", "https://crib.local", "http://127.0.0.1:7717"] {
            assert!(is_allowed(&[(HOST, "localhost:7717"), (ORIGIN, allowed)]), "{allowed}");
        }
        assert!(is_allowed(&[(HOST, "localhost"), (ORIGIN, "http://localhost")]));
        for refused in ["http://localhost:3000", "http://localhost", "https://127.0.0.1"] {
            assert!(!is_allowed(&[(HOST, "localhost:7717"), (ORIGIN, refused)]), "{refused}");
        }
        for (site, is_served) in
            [("cross-site", false), ("same-site", false), ("same-origin", true), ("none", true)]
        {
            assert_eq!(is_allowed(&[(HOST, "localhost"), (FETCH_SITE, site)]), is_served, "{site}");
        }
        for refused in [
            "null",
            "https://evil.example",
            "http://localhost.evil.example",
            "file://localhost",
            "http://localhost@evil",
        ] {
            assert!(!is_allowed(&[(HOST, "localhost"), (ORIGIN, refused)]), "{refused}");
        }
    }
}
