//! Metadata documents: of a protected resource (RFC 9728) and of an authorization server (RFC 8414, OpenID discovery).

use hyper::Uri;
use serde_json::Value;

/// Metadata of a server that requires tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ResourceMetadata {
    pub(super) resource: Option<String>,
    pub(super) authorization_servers: Vec<String>,
    pub(super) scopes_supported: Vec<String>,
}

impl ResourceMetadata {
    pub(super) fn from_json(document: &Value) -> Self {
        Self {
            resource: text(document, "resource"),
            authorization_servers: texts(document, "authorization_servers"),
            scopes_supported: texts(document, "scopes_supported"),
        }
    }
}

/// Metadata of an authorization server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IssuerMetadata {
    pub(super) issuer: String,
    pub(super) authorization_endpoint: Option<String>,
    pub(super) token_endpoint: Option<String>,
    pub(super) registration_endpoint: Option<String>,
    pub(super) revocation_endpoint: Option<String>,
    /// URL of its public keys.
    pub(crate) jwks_uri: Option<String>,
    /// Issues device codes (RFC 8628).
    pub(super) device_endpoint: Option<String>,
    pub(super) scopes_supported: Vec<String>,
    /// Absent if the document does not say, in which case the server may ignore the proof key.
    pub(super) code_challenge_methods: Option<Vec<String>>,
    pub(super) auth_methods: Vec<String>,
    /// The `iss` parameter is in every redirect.
    pub(super) announces_iss: bool,
    /// A URL of a metadata document is accepted as client id.
    pub(super) accepts_metadata_url: bool,
}

impl IssuerMetadata {
    pub(super) fn from_json(document: &Value) -> Self {
        let flag = |name: &str| document.get(name).and_then(Value::as_bool).unwrap_or_default();
        Self {
            issuer: text(document, "issuer").unwrap_or_default(),
            authorization_endpoint: text(document, "authorization_endpoint"),
            token_endpoint: text(document, "token_endpoint"),
            registration_endpoint: text(document, "registration_endpoint"),
            revocation_endpoint: text(document, "revocation_endpoint"),
            jwks_uri: text(document, "jwks_uri"),
            device_endpoint: text(document, "device_authorization_endpoint"),
            scopes_supported: texts(document, "scopes_supported"),
            code_challenge_methods: document
                .get("code_challenge_methods_supported")
                .map(|_| texts(document, "code_challenge_methods_supported")),
            auth_methods: texts(document, "token_endpoint_auth_methods_supported"),
            announces_iss: flag("authorization_response_iss_parameter_supported"),
            accepts_metadata_url: flag("client_id_metadata_document_supported"),
        }
    }

    /// Returns the endpoints that a server of 2025-03-26 without metadata has at its own origin.
    pub(super) fn at_origin(origin: &str) -> Self {
        Self {
            issuer: origin.to_owned(),
            authorization_endpoint: Some(format!("{origin}/authorize")),
            token_endpoint: Some(format!("{origin}/token")),
            registration_endpoint: Some(format!("{origin}/register")),
            code_challenge_methods: Some(vec!["S256".to_owned()]),
            auth_methods: vec!["none".to_owned(), "client_secret_post".to_owned()],
            ..Self::default()
        }
    }
}

fn text(document: &Value, name: &str) -> Option<String> {
    document.get(name)?.as_str().map(str::to_owned)
}

fn texts(document: &Value, name: &str) -> Vec<String> {
    let values = document.get(name).and_then(Value::as_array).into_iter().flatten();
    values.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns scheme, host and port of a URL.
pub(super) fn origin(url: &Uri) -> String {
    let authority = url.authority().map_or("", |authority| authority.as_str());
    format!("{}://{authority}", url.scheme_str().unwrap_or_default())
}

/// Returns the places of a server's metadata, in the order in which they are tried.
pub(super) fn resource_metadata_urls(server: &Uri) -> Vec<String> {
    let root = format!("{}/.well-known/oauth-protected-resource", origin(server));
    match server.path() {
        "" | "/" => vec![root],
        path => vec![format!("{root}{path}"), root],
    }
}

/// Returns the places of an authorization server's metadata, in the order in which they are tried.
pub(super) fn issuer_metadata_urls(issuer: &Uri) -> Vec<String> {
    let origin = origin(issuer);
    let path = issuer.path().trim_end_matches('/');
    let mut urls = vec![
        format!("{origin}/.well-known/oauth-authorization-server{path}"),
        format!("{origin}/.well-known/openid-configuration{path}"),
    ];
    if !path.is_empty() {
        urls.push(format!("{origin}{path}/.well-known/openid-configuration"));
    }
    urls
}

/// Returns whether the resource that a server's metadata names includes the server: the same origin, and a path that the
/// server's path starts with.
pub(super) fn resource_includes(resource: &str, server: &Uri) -> bool {
    let Ok(resource) = resource.parse::<Uri>() else { return false };
    let lower = |uri: &Uri| origin(uri).to_ascii_lowercase();
    let default_port = |uri: &Uri| {
        let default = if uri.scheme_str() == Some("http") { 80 } else { 443 };
        uri.port_u16().unwrap_or(default)
    };
    let same_host =
        resource.host().map(str::to_ascii_lowercase) == server.host().map(str::to_ascii_lowercase);
    let same_origin = lower(&resource) == lower(server)
        || (resource.scheme() == server.scheme()
            && same_host
            && default_port(&resource) == default_port(server));
    let prefix = resource.path().trim_end_matches('/');
    let below = server.path().strip_prefix(prefix);
    same_origin && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn metadata_is_looked_up_below_the_path_first() {
        assert_eq!(
            resource_metadata_urls(&uri("https://s.example/a/mcp?x=1")),
            [
                "https://s.example/.well-known/oauth-protected-resource/a/mcp",
                "https://s.example/.well-known/oauth-protected-resource"
            ]
        );
        assert_eq!(
            issuer_metadata_urls(&uri("https://as.example/tenant1/")),
            [
                "https://as.example/.well-known/oauth-authorization-server/tenant1",
                "https://as.example/.well-known/openid-configuration/tenant1",
                "https://as.example/tenant1/.well-known/openid-configuration"
            ]
        );
        assert_eq!(issuer_metadata_urls(&uri("https://as.example")).len(), 2);
    }

    #[test]
    fn resource_must_include_the_server() {
        let server = uri("https://s.example/a/mcp");
        for good in
            ["https://s.example", "https://S.example/", "https://s.example:443/a", "https://s.example/a/mcp"]
        {
            assert!(resource_includes(good, &server), "{good}");
        }
        for bad in [
            "https://evil.example/a/mcp",
            "http://s.example/a/mcp",
            "https://s.example/b",
            "https://s.example/a/m",
            "x y",
        ] {
            assert!(!resource_includes(bad, &server), "{bad}");
        }
    }
}
