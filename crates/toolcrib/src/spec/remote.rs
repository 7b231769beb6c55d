//! `HttpSpec`: a server that somebody else runs, and how it is asked for.

use std::collections::BTreeMap;
use std::fmt;

use hyper::Uri;
use hyper::header::HeaderName;

use crate::text::Text;

/// How to reach a server over HTTP.
#[derive(Clone, PartialEq)]
pub struct HttpSpec {
    /// Its address, `https://…` or `http://…`.
    pub url: Text,
    /// Headers sent with every request.
    pub headers: BTreeMap<String, Text>,
    /// How messages are carried.
    pub transport: Transport,
}

/// Headers and queries are where people write tokens, so neither is shown.
impl fmt::Debug for HttpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.written().split('?').next().unwrap_or_default();
        let headers: Vec<_> = self.headers.keys().collect();
        f.debug_struct("HttpSpec")
            .field("url", &url)
            .field("headers", &headers)
            .field("transport", &self.transport)
            .finish()
    }
}

/// How messages are carried over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// Streamable HTTP, or else HTTP+SSE: whatever the server turns out to speak.
    #[default]
    Auto,
    /// Streamable HTTP: every message is a request of its own.
    Streamable,
    /// HTTP+SSE, as of 2024-11-05: one stream of events back.
    Events,
}

impl Transport {
    /// Its name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto | Self::Streamable => "http",
            Self::Events => "sse",
        }
    }
}

impl HttpSpec {
    /// A server at an address.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: Text::literal(url), headers: BTreeMap::new(), transport: Transport::Auto }
    }

    /// With a header sent along.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), Text::literal(value));
        self
    }

    /// With messages carried in one way only.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// References count as written, so that a secret's value never enters it.
    pub(super) fn digest(&self, mut add: impl FnMut(&str)) {
        add(self.transport.as_str());
        add(self.url.written());
        self.headers.iter().for_each(|(name, value)| {
            add(name);
            add(value.written());
        });
    }
}

/// An address that can be asked, or what is wrong with it. The text may hold a secret, so it is not repeated.
pub(crate) fn address(text: &str) -> Result<Uri, &'static str> {
    let uri: Uri = text.trim().parse().map_err(|_| "it is not a URL")?;
    match (uri.scheme_str(), uri.authority()) {
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            Err("a user and password in it are not supported")
        }
        (Some("http" | "https"), Some(_)) if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        _ => Err("it does not begin with `https://` or `http://` and a host"),
    }
}

/// Whether a text can be the name of a header.
pub(crate) fn is_header(name: &str) -> bool {
    HeaderName::from_bytes(name.as_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
        let spec = HttpSpec::new("https://example.test/mcp?key=k3y").header("Authorization", "Bearer t0ken");
        let shown = format!("{spec:?}");
        assert!(shown.contains("example.test/mcp") && shown.contains("Authorization"), "{shown}");
        assert!(!shown.contains("k3y") && !shown.contains("t0ken"), "{shown}");
    }

    #[test]
    fn only_web_addresses_are_asked() {
        for good in ["https://example.test/mcp", "http://127.0.0.1:80", "http://[::1]:7717/x?y=z"] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "example.test",
            "/mcp",
            "ftp://x/",
            "https://",
            "https://user:pass@x/",
            "http:/x",
            "h ttp://x",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }
}
