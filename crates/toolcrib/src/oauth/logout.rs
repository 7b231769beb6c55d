//! Removes a login and revokes its tokens.

use tokio_util::task::TaskTracker;

use super::attempt::run_blocking;
use super::client::ClientProof;
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::{Fetcher, Form};
use super::stored_login::{Logins, StoredLogin};
use super::token_request::TokenEndpoint;
use crate::spec::ServerId;
use crate::spec::secret::Secret;
use crate::spec::url::parse_url;

impl Logins {
    /// Removes the login to a server, and revokes its tokens where the authorization server can do that. Returns whether
    /// there was a login.
    ///
    /// # Errors
    /// Fails if the login cannot be removed. A failed revocation is not an error: the tokens are gone from this machine.
    ///
    /// # Cancel safety
    /// Not cancel safe: the tokens may be revoked and still be stored.
    pub async fn log_out(&self, server: &ServerId) -> Result<bool, OAuthError> {
        let tasks = TaskTracker::new();
        // Tokens that another process is just renewing are to be revoked, not those that they replace.
        let lock = run_blocking(&tasks, self, server, Logins::lock).await?;
        let login = run_blocking(&tasks, self, server, Logins::load).await?;
        if let Some(login) = login {
            revoke(&login, &tasks).await;
        }
        let removed = run_blocking(&tasks, self, server, Logins::remove).await;
        drop(lock);
        removed
    }
}

/// Revokes the tokens of a login (RFC 7009), the refresh token first: an authorization server need not revoke the access token
/// with it.
async fn revoke(login: &StoredLogin, tasks: &TaskTracker) {
    let Some(url) = &login.revocation_endpoint else { return };
    let Ok(server_url) = parse_url(&login.server_url) else { return };
    let Ok(fetcher) = Fetcher::new(&server_url, tasks).await else { return };
    let endpoint = TokenEndpoint { fetcher: &fetcher, url, client: &login.client };
    if let Some(token) = &login.refresh_token
        && let Err(error) = revoke_token(&endpoint, "refresh_token", token).await
    {
        tracing::warn!("the refresh token of the login was not revoked: {error}");
    }
    if let Err(error) = revoke_token(&endpoint, "access_token", &login.access_token).await {
        // Some authorization servers revoke only refresh tokens. An access token is then valid until it expires.
        match login.refresh_token {
            Some(_) => tracing::debug!("the access token of the login was not revoked: {error}"),
            None => tracing::warn!("the access token of the login was not revoked: {error}"),
        }
    }
}

async fn revoke_token(endpoint: &TokenEndpoint<'_>, kind: &str, token: &Secret) -> Result<(), OAuthError> {
    let form = || Form::default().secret("token", token.expose()).field("token_type_hint", kind);
    match (endpoint.send(form()).await, &endpoint.client.proof) {
        // Servers on the official Python SDK require the secret in the form as well.
        (Err(error), ClientProof::Basic(secret)) if error.kind() == OAuthErrorKind::TokenRefused => {
            endpoint.send(form().secret("client_secret", secret.expose())).await.map(drop)
        }
        (revoked, _) => revoked.map(drop),
    }
}
