//! Identity of callers by tokens of authorization servers: JSON Web Tokens (RFC 7519, RFC 9068) and key sets (RFC 7517).
//!
//! `token` and `key_set` are pure. `issuer_keys` has the task that fetches the keys of one issuer.

mod issuer_keys;
mod key_set;
mod token;

use std::sync::Arc;
use std::time::SystemTime;

use tokio_util::task::TaskTracker;

use self::issuer_keys::IssuerKeys;
use self::key_set::KeySet;
use self::token::UnverifiedToken;
pub use self::token::{TokenError, VerifiedToken};
use crate::config::{IssuerSpec, KeySource, Position, Problem, ProblemScope};

/// The declared issuers, each with its keys. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Issuers(Arc<[Issuer]>);

/// An issuer and the keys that its tokens are signed with.
#[derive(Debug, Clone)]
struct Issuer {
    spec: IssuerSpec,
    keys: Arc<IssuerKeys>,
}

impl Issuers {
    /// Starts to fetch the keys of issuers, in tasks that end with the returned value. Issuers that `previous` has too keep
    /// their keys.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime if there is an issuer that `previous` does not have.
    pub fn start(specs: &[IssuerSpec], previous: &Self, tasks: &TaskTracker) -> Self {
        let start = |spec: &IssuerSpec| {
            let known = previous.0.iter().find(|known| has_same_keys(&known.spec, spec));
            let keys = known.map_or_else(|| IssuerKeys::start(spec, tasks), |known| known.keys.clone());
            Issuer { spec: spec.clone(), keys }
        };
        Self(specs.iter().map(start).collect())
    }

    /// Verifies a token: its signature, its issuer, the time in which it is valid and the configured audience. If it names a
    /// key that is not known, the keys are fetched again, at most every few seconds.
    ///
    /// # Errors
    /// Returns the reason why the token is not accepted.
    ///
    /// # Cancel safety
    /// Cancel safe. Keys that are being fetched are fetched nevertheless.
    pub async fn verify(&self, token: &str, now: SystemTime) -> Result<VerifiedToken, TokenError> {
        let token = UnverifiedToken::parse(token)?;
        let issuer = self.0.iter().find(|issuer| token.is_from(&issuer.spec));
        let issuer = issuer.ok_or(TokenError::UnknownIssuer)?;
        token.check_claims(&issuer.spec, now)?;
        let first = issuer.keys.current().and_then(|keys| token.check_signature(&keys));
        if matches!(first, Err(TokenError::UnknownKey | TokenError::KeysUnavailable(_))) {
            issuer.keys.fetch_again().await;
            token.check_signature(&*issuer.keys.current()?)?;
        } else {
            first?;
        }
        token.into_verified(&issuer.spec)
    }
}

/// Returns whether two issuers have their keys from the same place.
fn has_same_keys(one: &IssuerSpec, other: &IssuerSpec) -> bool {
    one.name == other.name && one.issuer == other.issuer && one.keys == other.keys
}

/// Checks that the key files of issuers can be used. Reads them, which may block.
///
/// # Errors
/// Returns a problem of the whole config for the first file that cannot.
pub fn check_key_files(specs: &[IssuerSpec]) -> Result<(), Box<Problem>> {
    for spec in specs {
        let KeySource::File(file) = &spec.keys else { continue };
        KeySet::read_file(file).map_err(|reason| {
            Box::new(Problem {
                file: spec.origin.file.clone(),
                position: Some(Position { line: spec.origin.line, column: 1 }),
                scope: ProblemScope::WholeConfig,
                message: format!("`issuers.{}.jwks`: {reason}", spec.name),
                hint: Some("save what the `jwks_uri` of the issuer returns in this file".to_owned()),
            })
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
