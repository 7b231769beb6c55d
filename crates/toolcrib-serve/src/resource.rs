//! The gateway as a protected resource (RFC 9728): its URL, its metadata, and the challenges that lead clients there.

use hyper::header::HeaderValue;
use serde_json::json;
use toolcrib::ServerId;

use crate::origin_check::split_port;

/// The path under which the metadata of a resource is found, followed by the path of the resource.
pub(crate) const METADATA_PATH: &str = "/.well-known/oauth-protected-resource";
/// The prefix of the scope that a profile needs.
const PROFILE_SCOPE: &str = "profile:";

/// How clients reach the gateway.
#[derive(Debug, Clone, Default)]
pub(crate) struct PublicAddress {
    /// The URL from the config, without a slash at its end.
    pub(crate) url: Option<String>,
    /// The port that the gateway listens on, if it is known.
    pub(crate) port: Option<u16>,
}

impl PublicAddress {
    /// Returns the URL of the gateway, without a path. Unless it is configured, that is the host of the request, which was
    /// checked, at the gateway's own port: a token that names another port is for another program.
    pub(crate) fn request_url(&self, is_https: bool, authority: &str) -> String {
        let (host, named_port) = split_port(authority);
        let own_port = self.port.map(|port| port.to_string());
        self.url.clone().unwrap_or_else(|| format_url(is_https, host, own_port.as_deref().or(named_port)))
    }

    /// Returns the URL of the gateway, without a path. Unless it is configured, that is the host which a trusted proxy names.
    pub(crate) fn forwarded_url(&self, is_https: bool, authority: &str) -> String {
        let (host, port) = split_port(authority);
        self.url.clone().unwrap_or_else(|| format_url(is_https, host, port))
    }

    /// Returns whether the configured URL is at this host.
    pub(crate) fn is_at(&self, is_https: bool, authority: &str) -> bool {
        let (host, port) = split_port(authority);
        let origin = format_url(is_https, host, port);
        let rest = self.url.as_ref().and_then(|url| url.strip_prefix(&origin));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

fn format_url(is_https: bool, host: &str, port: Option<&str>) -> String {
    let scheme = if is_https { "https" } else { "http" };
    let default_port = if is_https { "443" } else { "80" };
    let host = host.to_ascii_lowercase();
    match port.filter(|port| *port != default_port) {
        Some(port) => format!("{scheme}://{host}:{port}"),
        None => format!("{scheme}://{host}"),
    }
}

/// Returns the path of an endpoint, or that of all servers for any other path.
pub(crate) fn endpoint_path(path: &str) -> &str {
    let name = path.strip_prefix("/mcp/p/").or_else(|| path.strip_prefix("/mcp/s/"));
    if name.is_some_and(|name| name.parse::<ServerId>().is_ok()) { path } else { "/mcp" }
}

/// The URL of one endpoint, as tokens and metadata name it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ResourceUrl {
    /// Scheme and host, and the path under which a proxy publishes the gateway.
    pub(crate) base: String,
    /// The path of the endpoint, or empty for the gateway as a whole.
    pub(crate) path: String,
    /// True if a client on another machine calls this one `localhost`, as each machine calls itself: a token for this URL may be
    /// for a program on the machine of the client.
    pub(crate) is_ambiguous: bool,
}

impl ResourceUrl {
    /// Returns whether one of the audiences of a token is this resource or contains it.
    pub(crate) fn is_named_by(&self, audiences: &[String]) -> bool {
        !self.is_ambiguous
            && audiences.iter().any(|audience| {
                let Some(path) = audience.strip_prefix(&self.base) else { return false };
                let path = path.strip_suffix('/').unwrap_or(path);
                match self.path.strip_prefix(path) {
                    Some(rest) => rest.is_empty() || rest.starts_with('/'),
                    None => false,
                }
            })
    }

    /// Splits the base into scheme and host, and the path under which a proxy publishes the gateway.
    fn split_base(&self) -> (&str, &str) {
        let host_start = self.base.find("://").map_or(0, |scheme| scheme + "://".len());
        let host_end = self.base[host_start..].find('/').map_or(self.base.len(), |slash| host_start + slash);
        self.base.split_at(host_end)
    }

    /// Returns the path under which a proxy publishes the gateway, or an empty text.
    pub(crate) fn proxy_path(&self) -> &str {
        self.split_base().1
    }

    /// Returns the endpoint of a metadata path, without the well-known prefix. A proxy may leave its own path in it.
    pub(crate) fn find_endpoint(self, path: &str) -> Option<Self> {
        let path = path.strip_prefix(self.split_base().1).unwrap_or(path);
        match path.strip_suffix('/').unwrap_or(path) {
            "" => Some(self),
            path if endpoint_path(path) == path => Some(Self { path: path.to_owned(), ..self }),
            _ => None,
        }
    }

    /// Returns the metadata document.
    pub(crate) fn metadata<'a>(&self, issuers: impl Iterator<Item = &'a str>, scopes: &[String]) -> String {
        let mut document = json!({
            "resource": format!("{}{}", self.base, self.path),
            "authorization_servers": issuers.collect::<Vec<_>>(),
            "bearer_methods_supported": ["header"],
            "resource_name": "toolcrib",
        });
        if !scopes.is_empty() {
            document["scopes_supported"] = json!(scopes);
        }
        document.to_string()
    }

    /// Returns the scope that the endpoint needs: that of its profile.
    pub(crate) fn required_scope(&self) -> Option<String> {
        self.path.strip_prefix("/mcp/p/").map(profile_scope)
    }

    /// Returns the value of `WWW-Authenticate`. An error is named only if the request had a token.
    pub(crate) fn challenge(&self, scopes: &[String], error: Option<ChallengeError<'_>>) -> HeaderValue {
        // The well-known path comes directly after the host.
        let (origin, prefix) = self.split_base();
        let path = &self.path;
        let mut challenge = format!("Bearer resource_metadata=\"{origin}{METADATA_PATH}{prefix}{path}\"");
        if !scopes.is_empty() {
            challenge.push_str(&format!(", scope=\"{}\"", scopes.join(" ")));
        }
        if let Some(ChallengeError { code, description }) = error {
            challenge
                .push_str(&format!(", error=\"{code}\", error_description=\"{}\"", quotable(description)));
        }
        HeaderValue::from_str(&challenge).unwrap_or_else(|_| HeaderValue::from_static("Bearer"))
    }
}

/// The reason why a token is not enough.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChallengeError<'a> {
    /// An error code of RFC 6750.
    pub(crate) code: &'static str,
    pub(crate) description: &'a str,
}

/// Returns the scope that a profile needs.
pub(crate) fn profile_scope(profile: &str) -> String {
    format!("{PROFILE_SCOPE}{profile}")
}

/// Replaces the characters that a quoted string of a challenge cannot have.
fn quotable(text: &str) -> String {
    let replace = |letter: char| match letter {
        '"' | '\\' => '\'',
        ' '..='~' => letter,
        _ => '?',
    };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(path: &str) -> ResourceUrl {
        ResourceUrl {
            base: "https://tools.example".to_owned(),
            path: path.to_owned(),
            ..ResourceUrl::default()
        }
    }

    #[test]
    fn audience_is_the_endpoint_or_contains_it() {
        let is_named = |path: &str, audience: &str| resource(path).is_named_by(&[audience.to_owned()]);
        for audience in ["https://tools.example", "https://tools.example/", "https://tools.example/mcp"] {
            assert!(is_named("/mcp", audience) && is_named("/mcp/p/work", audience), "{audience}");
        }
        assert!(is_named("/mcp/p/work", "https://tools.example/mcp/p/work"));
        for audience in [
            "https://tools.example/mcp/p/work",
            "https://tools.example/mc",
            "https://tools.example/mcp2",
            "https://tools.example.evil/mcp",
            "https://tools.example:8443/mcp",
            "http://tools.example/mcp",
            "tools.example",
            "",
        ] {
            assert!(!is_named("/mcp", audience), "{audience}");
        }
        assert!(!is_named("/mcp/p/work2", "https://tools.example/mcp/p/work"));
    }

    #[test]
    fn url_is_the_configured_one_or_that_of_the_request_at_the_own_port() {
        let own = PublicAddress { url: None, port: Some(7717) };
        assert_eq!(own.request_url(false, "LocalHost:7717"), "http://localhost:7717");
        assert_eq!(own.request_url(false, "localhost:9999"), "http://localhost:7717");
        assert_eq!(own.request_url(false, "[::1]:7717"), "http://[::1]:7717");
        assert_eq!(own.forwarded_url(true, "tools.example"), "https://tools.example");
        assert_eq!(own.forwarded_url(true, "tools.example:8443"), "https://tools.example:8443");
        let https = PublicAddress { url: None, port: Some(443) };
        assert_eq!(https.request_url(true, "crib.local"), "https://crib.local");
        let public = PublicAddress { url: Some("https://tools.example".to_owned()), port: Some(7717) };
        assert_eq!(public.request_url(false, "localhost:7717"), "https://tools.example");
        assert_eq!(public.forwarded_url(true, "other.example"), "https://tools.example");
    }

    #[test]
    fn challenge_names_metadata_scope_and_error() {
        assert_eq!(
            resource("/mcp").challenge(&[], None),
            r#"Bearer resource_metadata="https://tools.example/.well-known/oauth-protected-resource/mcp""#
        );
        let published = ResourceUrl { base: "https://tools.example/a".to_owned(), ..resource("/mcp/p/work") };
        let error = ChallengeError { code: "invalid_token", description: "a \"b\"\n" };
        assert_eq!(
            published.challenge(&["profile:work".to_owned(), "openid".to_owned()], Some(error)),
            r#"Bearer resource_metadata="https://tools.example/.well-known/oauth-protected-resource/a/mcp/p/work", scope="profile:work openid", error="invalid_token", error_description="a 'b'?""#
        );
    }
}
