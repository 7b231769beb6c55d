//! The client as the authorization server knows it, and how it proves that it is that client.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hyper::header::HeaderValue;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;

use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::Form;
use crate::spec::secret::Secret;
use crate::util::clock;
use crate::util::encoding::percent_encode;

/// Seconds that a signed assertion is valid.
const ASSERTION_SECONDS: u64 = 300;

/// The client's identity at an authorization server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OAuthClient {
    pub(super) id: String,
    pub(super) proof: ClientProof,
}

/// How a client proves its identity at the token endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientProof {
    /// Not at all: a public client.
    None,
    /// A secret in the `Authorization` header.
    Basic(Secret),
    /// A secret in the form.
    Post(Secret),
    /// An assertion that is signed with a private key, as PEM, for this audience.
    PrivateKey { key: Secret, audience: String },
}

impl ClientProof {
    /// Chooses the way to send a secret, of those that the authorization server accepts.
    pub(super) fn with_secret(secret: Secret, accepted: &[String]) -> Self {
        let accepts = |method: &str| accepted.iter().any(|name| name == method);
        // Without a list, servers accept the header.
        if accepts("client_secret_post") && !accepts("client_secret_basic") {
            Self::Post(secret)
        } else {
            Self::Basic(secret)
        }
    }

    /// Returns the name of the method in metadata and registrations.
    pub(super) fn method(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Basic(_) => "client_secret_basic",
            Self::Post(_) => "client_secret_post",
            Self::PrivateKey { .. } => "private_key_jwt",
        }
    }

    /// Creates a proof from its name and its secret.
    pub(super) fn from_method(method: &str, secret: Option<Secret>) -> Self {
        match (method, secret) {
            ("client_secret_basic", Some(secret)) => Self::Basic(secret),
            ("client_secret_post", Some(secret)) => Self::Post(secret),
            _ => Self::None,
        }
    }

    /// Returns the secret, if the proof is one.
    pub(super) fn secret(&self) -> Option<&Secret> {
        match self {
            Self::Basic(secret) | Self::Post(secret) => Some(secret),
            Self::None | Self::PrivateKey { .. } => None,
        }
    }
}

/// A request to the token endpoint with the client's credentials.
pub(super) struct AuthenticatedForm {
    pub(super) authorization: Option<HeaderValue>,
    pub(super) form: Form,
}

impl OAuthClient {
    /// Adds the client's credentials to a form.
    pub(super) fn authenticate(&self, form: Form) -> Result<AuthenticatedForm, OAuthError> {
        let id = &self.id;
        Ok(match &self.proof {
            ClientProof::None => AuthenticatedForm { authorization: None, form: form.field("client_id", id) },
            ClientProof::Post(secret) => {
                let form = form.field("client_id", id).secret("client_secret", secret.expose());
                AuthenticatedForm { authorization: None, form }
            }
            ClientProof::Basic(secret) => {
                let pair = format!("{}:{}", percent_encode(id), percent_encode(secret.expose()));
                let encoded = STANDARD.encode(pair);
                let mut value = HeaderValue::from_str(&format!("Basic {encoded}"))
                    .map_err(|_| bad_key("the client id or secret cannot be sent"))?;
                value.set_sensitive(true);
                // Servers on the official Python SDK look for the id in the form.
                let form = form.field("client_id", id).hide(secret.expose()).hide(&encoded);
                AuthenticatedForm { authorization: Some(value), form }
            }
            ClientProof::PrivateKey { key, audience } => {
                let assertion = sign_assertion(id, audience, key)?;
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
                let form = form.field("client_id", id).field("client_assertion_type", kind);
                AuthenticatedForm { authorization: None, form: form.secret("client_assertion", &assertion) }
            }
        })
    }
}

fn bad_key(reason: impl Into<String>) -> OAuthError {
    OAuthError::new(OAuthErrorKind::Settings, reason)
}

/// Signs the assertion of RFC 7523 that this client sends the request.
fn sign_assertion(client_id: &str, audience: &str, key: &Secret) -> Result<String, OAuthError> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(key.expose().as_bytes())
        .map_err(|_| bad_key("`auth.private-key` is not a PEM file with a private key in PKCS8"))?;
    let random = SystemRandom::new();
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, der.secret_pkcs8_der(), &random)
        .map_err(|_| bad_key("`auth.private-key` is not a P-256 key"))?;
    let now = clock::wall_time().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let claims = json!({
        "iss": client_id, "sub": client_id, "aud": audience, "jti": super::pkce::random_text()?,
        "iat": now, "exp": now + ASSERTION_SECONDS,
    });
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"ES256","typ":"JWT"}"#);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let signature = pair.sign(&random, signed.as_bytes()).map_err(|_| bad_key("signing failed"))?;
    Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
}
