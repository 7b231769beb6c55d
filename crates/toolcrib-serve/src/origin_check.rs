//! Checks the `Host` and `Origin` headers, so that web pages cannot use the gateway through a browser (DNS rebinding).

use hyper::HeaderMap;
use hyper::header::{HOST, HeaderValue, ORIGIN};
use hyper::{Uri, Version};
use toolcrib::config::parse_origin;

/// The host names under which the gateway may be addressed, and the web pages that may use it.
#[derive(Debug)]
pub(crate) struct HostAllowList {
    /// Host names from the config, in lower case.
    configured: Vec<String>,
    /// Origins of web pages from the config, as browsers send them.
    origins: Vec<String>,
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
        Self { configured: hosts, origins: Vec::new() }
    }

    /// Sets the origins whose web pages may use the MCP endpoints.
    pub(crate) fn with_origins(self, origins: Vec<String>) -> Self {
        Self { origins, ..self }
    }

    /// Checks the host and origin of a request, and the host that its client addressed if a proxy passed it on; the error says
    /// which is wrong. Returns the origin of an allowed page that is not the gateway's own.
    pub(crate) fn check<'h>(
        &self,
        version: Version,
        target: &Uri,
        headers: &'h HeaderMap,
        forwarded_host: Option<&str>,
    ) -> Result<Option<&'h HeaderValue>, String> {
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
        let is_from_elsewhere = fetch_site.is_some_and(|site| site == "cross-site" || site == "same-site");
        if !has_origin {
            return match is_from_elsewhere {
                true => Err("requests of web pages from elsewhere are not allowed".to_owned()),
                false => Ok(None),
            };
        }
        let host_header = host_header.and_then(|host| host.to_str().ok());
        let authority = forwarded_host.or(host_header).or_else(|| Some(target.authority()?.as_str()));
        let authority = authority.unwrap_or_default();
        let mut page = None;
        for origin in headers.get_all(ORIGIN) {
            let name = origin.to_str().unwrap_or_default();
            if self.origins.iter().any(|allowed| allowed == name) {
                page = Some(origin);
            } else if is_from_elsewhere || !self.allows_origin(name, authority) {
                return Err(refused_origin(name));
            }
        }
        Ok(page)
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

/// Returns the reason why an origin is refused, with the config that allows it.
fn refused_origin(name: &str) -> String {
    match parse_origin(name) {
        Some(origin) => {
            format!("the origin `{name}` is not allowed; add `origins = [\"{origin}\"]` to `[listen]`")
        }
        None => format!("the origin `{}` is not allowed", name.escape_debug()),
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
    fn configured_origin_is_allowed_as_it_is_written() {
        let page = "http://localhost:6274";
        let hosts = HostAllowList::new(Vec::new()).with_origins(vec![page.to_owned()]);
        let check = |origin: &'static str| {
            let headers = [(HOST, "localhost:7717"), (ORIGIN, origin), (FETCH_SITE, "same-site")];
            let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
            let headers = HeaderMap::from_iter(headers);
            let found = hosts.check(Version::HTTP_11, &Uri::from_static("/mcp"), &headers, None);
            found.map(Option::<&HeaderValue>::cloned)
        };
        assert_eq!(check(page), Ok(Some(HeaderValue::from_static(page))));
        for origin in
            ["http://localhost:6275", "https://localhost:6274", "http://localhost:6274.evil.example"]
        {
            assert!(check(origin).is_err(), "{origin}");
        }
    }

    #[test]
    fn refusal_of_an_origin_names_key_and_value() {
        let hosts = HostAllowList::new(Vec::new());
        let refusal = |headers: &[(HeaderName, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            let headers =
                HeaderMap::from_iter(headers.chain([(HOST, HeaderValue::from_static("localhost"))]));
            hosts.check(Version::HTTP_11, &Uri::from_static("/mcp"), &headers, None).unwrap_err()
        };
        let page = "http://localhost:6274";
        let expected = "the origin `http://localhost:6274` is not allowed; \
                        add `origins = [\"http://localhost:6274\"]` to `[listen]`";
        assert_eq!(refusal(&[(ORIGIN, page)]), expected);
        assert_eq!(refusal(&[(ORIGIN, page), (FETCH_SITE, "same-site")]), expected);
        assert_eq!(refusal(&[(ORIGIN, "null")]), "the origin `null` is not allowed");
        assert_eq!(
            refusal(&[(FETCH_SITE, "cross-site")]),
            "requests of web pages from elsewhere are not allowed"
        );
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
