//! `Login`: the authorization code grant with a person and a browser.

use subtle::ConstantTimeEq as _;

use super::attempt::LoginAttempt;
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::Form;
use super::pkce::{Pkce, random_text};
use super::registration::LoginFlow;
use super::stored_login::{LoginSummary, Logins};
use super::token_request::shorten;
use crate::spec::ServerSpec;
use crate::util::clock;
use crate::util::encoding::percent_decode;

/// The server to log in to, and where the browser returns to.
#[derive(Debug)]
pub struct LoginRequest<'a> {
    /// The server.
    pub server: &'a ServerSpec,
    /// Where the login is stored.
    pub logins: &'a Logins,
    /// URL of this machine that the browser is sent to at the end: `http://127.0.0.1:PORT/callback`. A login with a device
    /// code does not use it.
    pub redirect_uri: &'a str,
}

/// A login that has been started. A person opens [`Login::url`] in a browser; [`Login::finish`] takes the URL that the
/// browser is sent to at the end.
pub struct Login {
    attempt: LoginAttempt,
    pkce: Pkce,
    state: String,
    url: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("server", self.attempt.server()).finish_non_exhaustive()
    }
}

impl Login {
    /// Finds the authorization server and registers this client if necessary.
    ///
    /// # Errors
    /// Fails if the server needs no login, if its metadata cannot be used, or if the authorization server registers no
    /// client.
    ///
    /// # Cancel safety
    /// Cancel safe, but a client that was registered is not used again.
    pub async fn start(request: LoginRequest<'_>) -> Result<Self, OAuthError> {
        let flow = LoginFlow::Redirect(request.redirect_uri);
        let attempt = LoginAttempt::start(request, flow).await?;
        let pkce = Pkce::new()?;
        let state = random_text()?;
        let url = authorization_url(&attempt, &pkce, &state);
        Ok(Self { attempt, pkce, state, url })
    }

    /// Returns the URL to open in a browser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the authorization server.
    pub fn issuer(&self) -> &str {
        &self.attempt.issuer().issuer
    }

    /// Returns whether the authorization server also offers a [`DeviceLogin`](super::DeviceLogin).
    pub fn offers_device_code(&self) -> bool {
        self.attempt.issuer().device_endpoint.is_some()
    }

    /// Checks the URL that the browser was sent to, requests the tokens and stores them.
    ///
    /// # Errors
    /// Fails if the URL does not belong to this login, if the login was refused, or if the tokens cannot be stored.
    ///
    /// # Cancel safety
    /// Not cancel safe: tokens that were issued and not stored yet are lost.
    pub async fn finish(self, redirect: &str) -> Result<LoginSummary, OAuthError> {
        let code = self.check_redirect(redirect)?;
        let form = Form::default()
            .field("grant_type", "authorization_code")
            .secret("code", &code)
            .field("redirect_uri", &self.attempt.redirect_uri)
            .secret("code_verifier", &self.pkce.verifier)
            .field("resource", &self.attempt.discovered.resource);
        let tokens = self.attempt.token_endpoint().request(form, clock::wall_time()).await?;
        self.attempt.store(tokens).await
    }

    /// Checks that a URL is one that this login can be finished with, without requesting tokens.
    ///
    /// # Errors
    /// Fails if the URL does not belong to this login, or if it says that the login was refused.
    pub fn check(&self, redirect: &str) -> Result<(), OAuthError> {
        self.check_redirect(redirect).map(drop)
    }

    /// Returns whether a redirect has the `state` of this login.
    pub fn has_state(&self, redirect: &str) -> bool {
        let state = RedirectQuery::from_url(redirect).state;
        bool::from(state.unwrap_or_default().as_bytes().ct_eq(self.state.as_bytes()))
    }

    /// Returns the code of a redirect that belongs to this login.
    fn check_redirect(&self, redirect: &str) -> Result<String, OAuthError> {
        let invalid = |message: &str| OAuthError::new(OAuthErrorKind::InvalidRedirect, message);
        let redirect = redirect.trim();
        if redirect.split(['?', '#']).next() != Some(self.attempt.redirect_uri.as_str()) {
            return Err(invalid(&format!("the URL must start with `{}?`", self.attempt.redirect_uri)));
        }
        if !self.has_state(redirect) {
            let message = "the redirect belongs to another login: its `state` is not the one that was sent";
            return Err(OAuthError::new(OAuthErrorKind::WrongState, message));
        }
        let query = RedirectQuery::from_url(redirect);
        self.check_iss(query.iss.as_deref())?;
        if let Some(error) = query.error {
            let description = query.error_description.map(|text| format!(": {text}")).unwrap_or_default();
            let message =
                format!("the login was refused with `{}`{}", shorten(&error), shorten(&description));
            return Err(OAuthError::new(OAuthErrorKind::Denied, message));
        }
        query.code.filter(|code| !code.is_empty()).ok_or_else(|| invalid("the redirect has no `code`"))
    }

    fn check_iss(&self, iss: Option<&str>) -> Result<(), OAuthError> {
        let issuer = self.attempt.issuer();
        let problem = match iss {
            Some(iss) if iss == issuer.issuer => return Ok(()),
            Some(iss) => format!("the redirect comes from `{}`, not from `{}`", shorten(iss), issuer.issuer),
            None if issuer.announces_iss => "the redirect does not name its authorization server".to_owned(),
            None => return Ok(()),
        };
        Err(OAuthError::new(OAuthErrorKind::WrongIssuer, problem))
    }
}

/// Parameters of a redirect.
#[derive(Default)]
struct RedirectQuery {
    code: Option<String>,
    state: Option<String>,
    iss: Option<String>,
    error: Option<String>,
    error_description: Option<String>,
}

impl RedirectQuery {
    fn from_url(url: &str) -> Self {
        let query = url.split_once('?').map(|(_, query)| query).unwrap_or_default();
        Self::parse(query.split('#').next().unwrap_or_default())
    }

    fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for pair in query.split('&') {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let spaced = value.replace('+', " ");
            let value = percent_decode(&spaced).map(std::borrow::Cow::into_owned);
            match name {
                "code" => parsed.code = value,
                "state" => parsed.state = value,
                "iss" => parsed.iss = value,
                "error" => parsed.error = value,
                "error_description" => parsed.error_description = value,
                _ => {}
            }
        }
        parsed
    }
}

fn authorization_url(attempt: &LoginAttempt, pkce: &Pkce, state: &str) -> String {
    let query = Form::default()
        .field("response_type", "code")
        .field("client_id", &attempt.client.id)
        .field("redirect_uri", &attempt.redirect_uri)
        .field("state", state)
        .field("code_challenge", &pkce.challenge)
        .field("code_challenge_method", "S256")
        .field("resource", &attempt.discovered.resource)
        .optional("scope", attempt.scope().as_deref());
    let endpoint = attempt.issuer().authorization_endpoint.as_deref().unwrap_or_default();
    let separator = if endpoint.contains('?') { '&' } else { '?' };
    format!("{endpoint}{separator}{}", query.encoded)
}
