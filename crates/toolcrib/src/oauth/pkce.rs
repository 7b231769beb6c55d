//! Proof Key for Code Exchange (RFC 7636), and other random texts of a login.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

use super::error::{OAuthError, OAuthErrorKind};

/// The secret that binds a code to the client that asked for it.
pub(super) struct Pkce {
    /// Sent with the code.
    pub(super) verifier: String,
    /// Sent when the code is requested: the digest of the verifier.
    pub(super) challenge: String,
}

impl Pkce {
    pub(super) fn new() -> Result<Self, OAuthError> {
        let verifier = random_text()?;
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&verifier));
        Ok(Self { verifier, challenge })
    }
}

/// Returns 43 random characters.
pub(super) fn random_text() -> Result<String, OAuthError> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).map_err(|error| {
        OAuthError::new(OAuthErrorKind::Settings, format!("the system has no random numbers: {error}"))
    })?;
    Ok(URL_SAFE_NO_PAD.encode(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenge_is_the_digest_of_a_fresh_verifier() {
        let pkce = Pkce::new().unwrap();
        assert_eq!(pkce.challenge, URL_SAFE_NO_PAD.encode(Sha256::digest(pkce.verifier.as_bytes())));
        assert!((43..=128).contains(&pkce.verifier.len()));
        assert_ne!(pkce.verifier, Pkce::new().unwrap().verifier);
    }
}
