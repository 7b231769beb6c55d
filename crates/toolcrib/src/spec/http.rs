//! `HttpSpec`: URL, headers and transport of a remote server.

use std::collections::BTreeMap;
use std::fmt;

use crate::spec::auth::{AuthSpec, Grant};
use crate::spec::forward::Forward;
use crate::spec::template::TemplateText;

/// URL, headers and transport of a remote server.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct HttpSpec {
    /// URL, `https://…` or `http://…`.
    pub url: TemplateText,
    /// Headers sent with every request.
    pub headers: BTreeMap<String, TemplateText>,
    /// HTTP transport to use.
    pub transport: TransportKind,
    /// How tokens are obtained. Not used if `headers` has `Authorization`.
    pub auth: Box<AuthSpec>,
    /// What the server learns about the caller.
    pub forward: Forward,
}

/// Hides header values and the query of the URL, because they may contain secrets.
impl fmt::Debug for HttpSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.url.source().split('?').next().unwrap_or_default();
        let headers: Vec<_> = self.headers.keys().collect();
        f.debug_struct("HttpSpec")
            .field("url", &url)
            .field("headers", &headers)
            .field("transport", &self.transport)
            .field("grant", &self.auth.grant)
            .finish()
    }
}

/// HTTP transport of a remote server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TransportKind {
    /// Streamable HTTP if the server supports it, else HTTP+SSE.
    #[default]
    Auto,
    /// Streamable HTTP: every message is a separate request.
    Streamable,
    /// HTTP+SSE of revision 2024-11-05: responses arrive on one event stream.
    Sse,
}

impl TransportKind {
    /// Returns the name in the config and in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto | Self::Streamable => "http",
            Self::Sse => "sse",
        }
    }
}

impl HttpSpec {
    /// Creates the spec of a server at a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: TemplateText::literal(url),
            headers: BTreeMap::new(),
            transport: TransportKind::Auto,
            auth: Box::default(),
            forward: Forward::default(),
        }
    }

    /// Adds a header with a literal text. For a text with references, such as `${secret:NAME}`, insert a
    /// [`TemplateText`] in [`HttpSpec::headers`].
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), TemplateText::literal(value));
        self
    }

    /// Sets the transport.
    #[must_use]
    pub fn transport(mut self, transport: TransportKind) -> Self {
        self.transport = transport;
        self
    }

    /// Returns whether the headers contain credentials of their own, which are used instead of a login.
    pub fn has_authorization(&self) -> bool {
        self.headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))
    }

    /// Returns whether a person logs in to the server, if it asks for that.
    pub fn uses_login(&self) -> bool {
        self.auth.grant == Grant::AuthorizationCode && !self.has_authorization()
    }

    /// Passes every part to `add`, with references as written.
    pub(super) fn digest(&self, mut add: impl FnMut(&str)) {
        add(self.transport.as_str());
        add(self.url.source());
        self.headers.iter().for_each(|(name, value)| {
            add(name);
            add(value.source());
        });
        self.auth.digest(&mut add);
        self.forward.digest(&mut add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_header_values_and_query() {
        let spec = HttpSpec::new("https://example.test/mcp?key=k3y").header("Authorization", "Bearer t0ken");
        let shown = format!("{spec:?}");
        assert!(shown.contains("example.test/mcp") && shown.contains("Authorization"), "{shown}");
        assert!(!shown.contains("k3y") && !shown.contains("t0ken"), "{shown}");
    }
}
