//! Exchanges the token of a caller for a token of a server (RFC 8693).

use hyper::Uri;
use tokio_util::task::TaskTracker;

use super::attempt::expand;
use super::client::{ClientProof, OAuthClient};
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::{Fetcher, Form};
use super::token_request::{TokenEndpoint, Tokens};
use crate::model::caller::Caller;
use crate::secrets::{KnownCallers, ResolvedSecrets};
use crate::spec::TokenExchange;
use crate::spec::secret::Secret;
use crate::util::clock;

/// The exchange of one caller's tokens.
#[derive(Debug)]
pub(crate) struct ExchangeSource {
    exchange: TokenExchange,
    client: OAuthClient,
    caller: Caller,
    known_callers: KnownCallers,
}

impl ExchangeSource {
    pub(crate) fn new(
        exchange: &TokenExchange,
        secrets: &ResolvedSecrets,
        caller: &Caller,
        known_callers: &KnownCallers,
    ) -> Result<Self, OAuthError> {
        let id = expand(Some(&exchange.client_id), secrets)?.unwrap_or_default();
        let secret = expand(exchange.client_secret.as_ref(), secrets)?;
        let proof = secret.map_or(ClientProof::None, |secret| ClientProof::Basic(Secret::new(secret)));
        Ok(Self {
            exchange: exchange.clone(),
            client: OAuthClient { id, proof },
            caller: caller.clone(),
            known_callers: known_callers.clone(),
        })
    }

    /// Requests a token for the server at a URL.
    pub(super) async fn request(&self, server: &Uri, tasks: &TaskTracker) -> Result<Tokens, OAuthError> {
        let subject_token = self.known_callers.find_token(&self.caller).ok_or_else(|| {
            let caller = self.caller.as_str();
            let message =
                format!("the caller `{caller}` has not authenticated with a token that can be exchanged");
            OAuthError::new(OAuthErrorKind::TokenRefused, message)
        })?;
        // The config names this URL, so that it may have any address.
        let fetcher = Fetcher::unrestricted(tasks).await?;
        let endpoint =
            TokenEndpoint { fetcher: &fetcher, url: &self.exchange.token_endpoint, client: &self.client };
        let audience = self.exchange.audience.as_deref();
        let resource = server.to_string();
        let scope = self.exchange.scopes.join(" ");
        let access_token = "urn:ietf:params:oauth:token-type:access_token";
        let form = Form::default()
            .field("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange")
            .field("subject_token", subject_token.expose())
            .field("subject_token_type", access_token)
            .field("requested_token_type", access_token)
            .optional("audience", audience)
            .optional("resource", audience.is_none().then_some(resource.as_str()))
            .optional("scope", Some(scope.as_str()).filter(|scope| !scope.is_empty()));
        endpoint.request(form, clock::wall_time()).await
    }
}
