//! Finds the authorization server of a server.

use hyper::header::WWW_AUTHENTICATE;
use hyper::{StatusCode, Uri};
use serde_json::Value;

use super::challenge::Challenge;
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::Fetcher;
use super::metadata::{
    IssuerMetadata, ResourceMetadata, issuer_metadata_urls, origin, resource_includes, resource_metadata_urls,
};
use super::token_request::shorten;

/// A request that a server with authentication refuses.
const PROBE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"ping"}"#;

/// A server and its authorization server.
#[derive(Debug, Clone)]
pub(super) struct ServerAuthorization {
    pub(super) issuer: IssuerMetadata,
    /// The value of `resource` in requests.
    pub(super) resource: String,
    /// Scopes that the server asks for: those of the challenge, else all that it has.
    pub(super) scopes: Vec<String>,
}

/// Finds the authorization server of a server. The server is asked for a challenge unless one is known.
pub(super) async fn discover(
    fetcher: &Fetcher,
    server: &Uri,
    known: Option<Challenge>,
) -> Result<ServerAuthorization, OAuthError> {
    let challenge = match known {
        Some(challenge) => challenge,
        None => ask_for_challenge(fetcher, server).await?,
    };
    let metadata = find_resource_metadata(fetcher, server, &challenge).await?;
    let issuer = match metadata.as_ref().and_then(|metadata| metadata.authorization_servers.first()) {
        Some(issuer) => find_issuer(fetcher, issuer).await?,
        None => find_issuer_at_origin(fetcher, server).await?,
    };
    let metadata = metadata.unwrap_or_default();
    let scopes = if challenge.scopes.is_empty() { metadata.scopes_supported } else { challenge.scopes };
    let resource = metadata.resource.unwrap_or_else(|| format!("{}{}", origin(server), server.path()));
    Ok(ServerAuthorization { issuer, resource, scopes })
}

/// Sends a request without a token and returns the challenge.
async fn ask_for_challenge(fetcher: &Fetcher, server: &Uri) -> Result<Challenge, OAuthError> {
    let answer = fetcher.post_to_server(server, PROBE).await?;
    let headers = answer.headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
    let challenge = headers.into_iter().find_map(Challenge::parse);
    match (answer.status, challenge) {
        (_, Some(challenge)) => Ok(challenge),
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, None) => Ok(Challenge::default()),
        // Some servers refuse the method or the message before they ask for a token.
        (status, None) if status.is_client_error() => Ok(Challenge::default()),
        (status, None) if status.is_success() => {
            let message = "the server accepts requests without a login";
            Err(OAuthError::new(OAuthErrorKind::NotRequired, message))
        }
        (status, None) => {
            let message = format!("the server answered HTTP {}", status.as_u16());
            Err(OAuthError::new(OAuthErrorKind::Unreachable, message))
        }
    }
}

/// Finds the metadata of the server itself. Servers of 2025-03-26 have none.
async fn find_resource_metadata(
    fetcher: &Fetcher,
    server: &Uri,
    challenge: &Challenge,
) -> Result<Option<ResourceMetadata>, OAuthError> {
    let urls = match &challenge.resource_metadata {
        Some(url) => vec![url.clone()],
        None => resource_metadata_urls(server),
    };
    let Some(FoundDocument { url, document }) = find_document(fetcher, urls).await? else { return Ok(None) };
    let metadata = ResourceMetadata::from_json(&document);
    if let Some(resource) = &metadata.resource
        && !resource_includes(resource, server)
    {
        let message = format!("the metadata at `{url}` is that of another resource, `{}`", shorten(resource));
        return Err(OAuthError::new(OAuthErrorKind::InvalidMetadata, message));
    }
    Ok(Some(metadata))
}

/// A document and its place.
struct FoundDocument {
    url: String,
    document: Value,
}

/// Returns the first document that is at one of these places. A server that fails at one of them may have it there.
async fn find_document(fetcher: &Fetcher, urls: Vec<String>) -> Result<Option<FoundDocument>, OAuthError> {
    let mut failure = None;
    for url in urls {
        let answer = fetcher.get(&url).await?;
        if let Some(document) = answer.document() {
            return Ok(Some(FoundDocument { url, document }));
        }
        let has_failed = answer.status.is_server_error() || answer.status == StatusCode::TOO_MANY_REQUESTS;
        if has_failed && failure.is_none() {
            let message = format!("`{url}` answered HTTP {}", answer.status.as_u16());
            failure = Some(OAuthError::new(OAuthErrorKind::Unreachable, message));
        }
    }
    failure.map_or(Ok(None), Err)
}

/// Returns an error for metadata that names another issuer than the one that was asked for.
fn wrong_issuer(url: &str, named: &str) -> OAuthError {
    let message = format!("the metadata at `{url}` is that of another issuer, `{}`", shorten(named));
    OAuthError::new(OAuthErrorKind::InvalidMetadata, message)
}

/// Finds the metadata of an issuer.
pub(crate) async fn find_issuer(fetcher: &Fetcher, issuer: &str) -> Result<IssuerMetadata, OAuthError> {
    let url = fetcher.check_url(issuer)?;
    let Some(found) = find_document(fetcher, issuer_metadata_urls(&url)).await? else {
        let message = format!("the authorization server `{issuer}` has no metadata");
        return Err(OAuthError::new(OAuthErrorKind::InvalidMetadata, message));
    };
    let metadata = IssuerMetadata::from_json(&found.document);
    match metadata.issuer == issuer {
        true => Ok(metadata),
        false => Err(wrong_issuer(&found.url, &metadata.issuer)),
    }
}

/// Finds the authorization server of a server that names none: the server itself.
async fn find_issuer_at_origin(fetcher: &Fetcher, server: &Uri) -> Result<IssuerMetadata, OAuthError> {
    let origin = origin(server);
    let url = format!("{origin}/.well-known/oauth-authorization-server");
    let Some(found) = find_document(fetcher, vec![url]).await? else {
        return Ok(IssuerMetadata::at_origin(&origin));
    };
    let metadata = IssuerMetadata::from_json(&found.document);
    match metadata.issuer.trim_end_matches('/') == origin {
        true => Ok(metadata),
        false => Err(wrong_issuer(&found.url, &metadata.issuer)),
    }
}
