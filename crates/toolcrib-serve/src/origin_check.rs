//! Checks the `Host` and `Origin` headers, so that web pages cannot use the gateway through a browser (DNS rebinding).

use hyper::HeaderMap;
use hyper::header::{HOST, ORIGIN};
use hyper::{Uri, Version};

/// The host names under which the gateway may be addressed.
#[derive(Debug)]
pub(crate) struct HostAllowList {
    hosts: Vec<String>,
}

impl HostAllowList {
    pub(crate) fn new(mut hosts: Vec<String>) -> Self {
        hosts.iter_mut().for_each(|host| host.make_ascii_lowercase());
        hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        Self { hosts }
    }

    /// Checks the host and origin of a request; the error says which is wrong.
    pub(crate) fn check(&self, version: Version, target: &Uri, headers: &HeaderMap) -> Result<(), String> {
        let mut hosts = headers.get_all(HOST).iter();
        let host_header = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host),
            // HTTP/2 names the host in the target.
            (None, _) if version == Version::HTTP_2 && target.authority().is_some() => None,
            _ => return Err("a request must have exactly one `Host` header".to_owned()),
        };
        if let Some(host) = host_header.filter(|host| !host.to_str().is_ok_and(|host| self.allows(host))) {
            return Err(format!("the host {host:?} is not allowed; add it to `[listen] hosts`"));
        }
        if target.authority().is_some_and(|authority| !self.allows(authority.as_str())) {
            return Err("the host of the request target is not allowed".to_owned());
        }
        for origin in headers.get_all(ORIGIN) {
            let name = origin.to_str().ok().and_then(|origin| {
                origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
            });
            if !name.is_some_and(|name| self.allows(name)) {
                return Err(format!("the origin {origin:?} is not allowed"));
            }
        }
        Ok(())
    }

    /// Returns whether an authority, a host with or without a port, is allowed.
    fn allows(&self, authority: &str) -> bool {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        };
        self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host))
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn is_allowed(headers: &[(hyper::header::HeaderName, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        let hosts = HostAllowList::new(vec!["Crib.local".to_owned()]);
        hosts.check(Version::HTTP_11, &Uri::from_static("/mcp"), &map).is_ok()
    }

    #[test]
    fn http2_target_names_the_host() {
        let hosts = HostAllowList::new(Vec::new());
        let is_allowed = |target: &'static str, version| {
            hosts.check(version, &Uri::from_static(target), &HeaderMap::new()).is_ok()
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
    fn only_allowed_origins_are_served() {
        for allowed in ["http://localhost:3000", "https://crib.local", "http://127.0.0.1"] {
            assert!(is_allowed(&[(HOST, "localhost"), (ORIGIN, allowed)]), "{allowed}");
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
