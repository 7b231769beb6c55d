//! The client id for an authorization server: registered before, a metadata document, or registered now.

use serde_json::json;

use super::client::{ClientProof, OAuthClient};
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::Fetcher;
use super::metadata::IssuerMetadata;
use super::token_request::shorten;
use crate::spec::secret::Secret;

/// The grant of a login with a device code.
pub(super) const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Name that people see when they are asked for their consent.
const CLIENT_NAME: &str = "toolcrib";

/// The way in which a person logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoginFlow<'a> {
    /// In a browser that is sent to this URI at the end.
    Redirect(&'a str),
    /// In a browser on any machine, with a code (RFC 8628).
    Device,
}

impl LoginFlow<'_> {
    /// Returns where the browser is sent to; an empty text if it is not.
    pub(super) fn redirect_uri(&self) -> &str {
        match self {
            Self::Redirect(uri) => uri,
            Self::Device => "",
        }
    }
}

/// What is known of the client before the authorization server is asked.
#[derive(Debug, Default)]
pub(super) struct KnownClient {
    /// The client that the config names.
    pub(super) id: Option<String>,
    pub(super) secret: Option<Secret>,
    pub(super) metadata_url: Option<String>,
    /// The client that an earlier login registered with the same authorization server and redirect URI.
    pub(super) registered: Option<OAuthClient>,
}

/// Returns the client for an authorization server, in the order of the specification.
pub(super) async fn find_client(
    fetcher: &Fetcher,
    issuer: &IssuerMetadata,
    known: KnownClient,
    flow: LoginFlow<'_>,
) -> Result<OAuthClient, OAuthError> {
    if let Some(id) = known.id {
        let proof = match known.secret {
            Some(secret) => ClientProof::with_secret(secret, &issuer.auth_methods),
            None => ClientProof::None,
        };
        return Ok(OAuthClient { id, proof });
    }
    if let Some(url) = known.metadata_url.filter(|_| issuer.accepts_metadata_url) {
        return Ok(OAuthClient { id: url, proof: ClientProof::None });
    }
    if let Some(client) = known.registered {
        return Ok(client);
    }
    match &issuer.registration_endpoint {
        Some(endpoint) => register(fetcher, issuer, endpoint, flow).await,
        None => {
            let message = format!(
                "the authorization server `{}` registers no clients; register one there and set `auth.client-id`",
                issuer.issuer
            );
            Err(OAuthError::new(OAuthErrorKind::Registration, message))
        }
    }
}

/// Registers a client (RFC 7591).
async fn register(
    fetcher: &Fetcher,
    issuer: &IssuerMetadata,
    endpoint: &str,
    flow: LoginFlow<'_>,
) -> Result<OAuthClient, OAuthError> {
    let mut request = match flow {
        LoginFlow::Redirect(uri) => json!({
            "redirect_uris": [uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }),
        LoginFlow::Device => json!({
            "redirect_uris": [],
            "grant_types": [DEVICE_GRANT, "refresh_token"],
            "response_types": [],
        }),
    };
    request["client_name"] = CLIENT_NAME.into();
    request["application_type"] = "native".into();
    request["token_endpoint_auth_method"] = preferred_method(&issuer.auth_methods).into();
    let answer = fetcher.post_json(endpoint, &request).await?;
    let document = answer.json().unwrap_or_default();
    let member = |name: &str| document.get(name).and_then(serde_json::Value::as_str);
    let Some(id) = member("client_id").filter(|_| answer.status.is_success()) else {
        let detail = member("error_description").or_else(|| member("error")).map(shorten).unwrap_or_default();
        let message = format!("the client was not registered: HTTP {} {detail}", answer.status.as_u16());
        return Err(OAuthError::new(OAuthErrorKind::Registration, message.trim_end()));
    };
    let secret = member("client_secret").map(Secret::new);
    let proof = match (member("token_endpoint_auth_method"), secret) {
        (Some(method), secret) => ClientProof::from_method(method, secret),
        (None, Some(secret)) => ClientProof::with_secret(secret, &issuer.auth_methods),
        (None, None) => ClientProof::None,
    };
    Ok(OAuthClient { id: id.to_owned(), proof })
}

/// Returns the method to register with. A program on a person's machine keeps no secret if it need not.
fn preferred_method(accepted: &[String]) -> &str {
    let order = ["none", "client_secret_basic", "client_secret_post"];
    let supported = order.into_iter().find(|method| accepted.iter().any(|name| name == method));
    supported.unwrap_or("none")
}
