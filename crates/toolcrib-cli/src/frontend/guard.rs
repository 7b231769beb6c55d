//! Who may talk to the gateway at all: a web page must not, whatever name it makes its browser use.

use hyper::HeaderMap;
use hyper::header::{HOST, ORIGIN};
use hyper::{Uri, Version};

/// The names under which the gateway may be asked for.
#[derive(Debug)]
pub(crate) struct Guard {
    hosts: Vec<String>,
}

impl Guard {
    pub(crate) fn new(mut hosts: Vec<String>) -> Self {
        hosts.iter_mut().for_each(|host| host.make_ascii_lowercase());
        hosts.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        Self { hosts }
    }

    /// Checks `Host` and `Origin` before anything else is read; `Err` says which is wrong.
    pub(crate) fn admit(&self, version: Version, target: &Uri, headers: &HeaderMap) -> Result<(), String> {
        let mut hosts = headers.get_all(HOST).iter();
        let named = match (hosts.next(), hosts.next()) {
            (Some(host), None) => Some(host),
            // HTTP/2 says it in the target.
            (None, _) if version == Version::HTTP_2 && target.authority().is_some() => None,
            _ => return Err("a request has exactly one `Host`".to_owned()),
        };
        if let Some(host) = named.filter(|host| !host.to_str().is_ok_and(|host| self.knows(host))) {
            return Err(format!("the host {host:?} is not served here; `[listen] hosts` allows more names"));
        }
        if target.authority().is_some_and(|authority| !self.knows(authority.as_str())) {
            return Err("the request's target is on another host".to_owned());
        }
        for origin in headers.get_all(ORIGIN) {
            let name = origin.to_str().ok().and_then(|origin| {
                origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"))
            });
            if !name.is_some_and(|name| self.knows(name)) {
                return Err(format!("the origin {origin:?} is not allowed here"));
            }
        }
        Ok(())
    }

    /// Whether `authority`, a host with or without a port, is one of ours.
    fn knows(&self, authority: &str) -> bool {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            _ => authority,
        };
        self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn admitted(headers: &[(hyper::header::HeaderName, &str)]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.clone(), HeaderValue::from_str(value).unwrap());
        }
        let (guard, target) = (Guard::new(vec!["Crib.local".to_owned()]), Uri::from_static("/mcp"));
        guard.admit(Version::HTTP_11, &target, &map).is_ok()
    }

    #[test]
    fn the_target_of_a_newer_request_is_its_host() {
        let guard = Guard::new(Vec::new());
        let admitted = |target: &'static str, version| {
            guard.admit(version, &Uri::from_static(target), &HeaderMap::new()).is_ok()
        };
        assert!(admitted("http://localhost:7717/mcp", Version::HTTP_2));
        assert!(!admitted("http://evil.example/mcp", Version::HTTP_2));
        assert!(!admitted("/mcp", Version::HTTP_2));
        assert!(!admitted("http://localhost:7717/mcp", Version::HTTP_11));
    }

    #[test]
    fn only_known_hosts_are_served() {
        for good in
            ["localhost", "localhost:7717", "127.0.0.1:1", "[::1]:80", "[::1]", "crib.local:9", "LOCALHOST"]
        {
            assert!(admitted(&[(HOST, good)]), "{good}");
        }
        for bad in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "user@localhost",
            "",
            "localhost:",
            "::1",
        ] {
            assert!(!admitted(&[(HOST, bad)]), "{bad}");
        }
        assert!(!admitted(&[]));
        assert!(!admitted(&[(HOST, "localhost"), (HOST, "localhost")]));
    }

    #[test]
    fn only_known_origins_are_served() {
        for good in ["http://localhost:3000", "https://crib.local", "http://127.0.0.1"] {
            assert!(admitted(&[(HOST, "localhost"), (ORIGIN, good)]), "{good}");
        }
        for bad in [
            "null",
            "https://evil.example",
            "http://localhost.evil.example",
            "file://localhost",
            "http://localhost@evil",
        ] {
            assert!(!admitted(&[(HOST, "localhost"), (ORIGIN, bad)]), "{bad}");
        }
    }
}
