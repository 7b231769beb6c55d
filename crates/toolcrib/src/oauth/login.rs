//! `Login`: the authorization code grant with a person and a browser.

use hyper::Uri;
use subtle::ConstantTimeEq as _;
use tokio_util::task::TaskTracker;

use super::client::OAuthClient;
use super::discovery::{ServerAuthorization, discover};
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::{Fetcher, Form};
use super::pkce::{Pkce, random_text};
use super::registration::{KnownClient, find_client};
use super::stored_login::{LoginSummary, Logins, StoredLogin};
use super::token_request::{TokenEndpoint, shorten};
use crate::secrets::{ResolvedSecrets, SecretStoreHandle};
use crate::spec::template::TemplateText;
use crate::spec::url::parse_url;
use crate::spec::{Endpoint, HttpSpec, ServerId, ServerSpec};
use crate::util::clock;
use crate::util::encoding::percent_decode;

/// The scope that asks for a refresh token.
const OFFLINE_ACCESS: &str = "offline_access";

/// The server to log in to, and where the browser returns to.
#[derive(Debug)]
pub struct LoginRequest<'a> {
    /// The server.
    pub server: &'a ServerSpec,
    /// Where the login is stored.
    pub logins: &'a Logins,
    /// URL of this machine that the browser is sent to at the end: `http://127.0.0.1:PORT/callback`.
    pub redirect_uri: &'a str,
}

/// A login that has been started. A person opens [`Login::url`] in a browser; [`Login::finish`] takes the URL that the
/// browser is sent to at the end.
pub struct Login {
    server: ServerId,
    logins: Logins,
    tasks: TaskTracker,
    fetcher: Fetcher,
    server_url: Uri,
    discovered: ServerAuthorization,
    client: OAuthClient,
    redirect_uri: String,
    scopes: Vec<String>,
    pkce: Pkce,
    state: String,
    url: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("server", &self.server).finish_non_exhaustive()
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
        let LoginRequest { server: spec, logins, redirect_uri } = request;
        let tasks = TaskTracker::new();
        let remote = remote_spec(spec)?;
        let secrets = resolve_secrets(spec, logins, &tasks).await?;
        let server_url = server_url(remote, &secrets)?;
        let fetcher = Fetcher::new(&server_url, &tasks).await?;
        let check_and_load = |logins: &Logins, server: &ServerId| {
            logins.check_writable(server)?;
            logins.load(server)
        };
        let earlier = run_blocking(&tasks, logins, &spec.id, check_and_load).await?;
        let earlier = earlier.filter(|login| login.server_url == server_url.to_string());
        let discovered = discover(&fetcher, &server_url, None).await?;
        check_issuer(&fetcher, &discovered)?;
        let known = known_client(remote, &secrets, earlier.as_ref(), &discovered, redirect_uri)?;
        let client = find_client(&fetcher, &discovered.issuer, known, redirect_uri).await?;
        let scopes = choose_scopes(&remote.auth.scopes, &discovered, earlier.as_ref());
        let pkce = Pkce::new()?;
        let state = random_text()?;
        let url = authorization_url(&discovered, &client, redirect_uri, &scopes, &pkce, &state);
        let (server, logins) = (spec.id.clone(), logins.clone());
        let redirect_uri = redirect_uri.to_owned();
        Ok(Self {
            server,
            logins,
            tasks,
            fetcher,
            server_url,
            discovered,
            client,
            redirect_uri,
            scopes,
            pkce,
            state,
            url,
        })
    }

    /// Returns the URL to open in a browser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the authorization server.
    pub fn issuer(&self) -> &str {
        &self.discovered.issuer.issuer
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
        let issuer = &self.discovered.issuer;
        let form = Form::default()
            .field("grant_type", "authorization_code")
            .field("code", &code)
            .field("redirect_uri", &self.redirect_uri)
            .field("code_verifier", &self.pkce.verifier)
            .field("resource", &self.discovered.resource);
        let token_endpoint = issuer.token_endpoint.clone().unwrap_or_default();
        let endpoint = TokenEndpoint { fetcher: &self.fetcher, url: &token_endpoint, client: &self.client };
        let tokens = endpoint.request(form, clock::wall_time()).await?;
        let login = StoredLogin {
            server_url: self.server_url.to_string(),
            issuer: issuer.issuer.clone(),
            resource: self.discovered.resource,
            token_endpoint,
            revocation_endpoint: issuer.revocation_endpoint.clone(),
            client: self.client,
            redirect_uri: self.redirect_uri,
            scopes: tokens.scopes.unwrap_or(self.scopes),
            missing_scopes: Vec::new(),
            access_token: tokens.access_token,
            refresh_token: tokens.refresh_token,
            expires_at: tokens.expires_at,
            renew_at: tokens.renew_at,
            is_ended: false,
        };
        let summary = login.summary();
        run_blocking(&self.tasks, &self.logins, &self.server, move |logins, server| {
            let _lock = logins.lock(server)?;
            logins.save(server, &login)
        })
        .await?;
        Ok(summary)
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
        if redirect.split(['?', '#']).next() != Some(self.redirect_uri.as_str()) {
            return Err(invalid(&format!("the URL must start with `{}?`", self.redirect_uri)));
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
        let issuer = &self.discovered.issuer;
        let problem = match iss {
            Some(iss) if iss == issuer.issuer => return Ok(()),
            Some(iss) => format!("the redirect comes from `{}`, not from `{}`", shorten(iss), issuer.issuer),
            None if issuer.announces_iss => "the redirect does not name its authorization server".to_owned(),
            None => return Ok(()),
        };
        Err(OAuthError::new(OAuthErrorKind::WrongIssuer, problem))
    }
}

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
        let login = run_blocking(&tasks, self, server, Logins::load).await?;
        if let Some(login) = login {
            revoke(&login, &tasks).await;
        }
        run_blocking(&tasks, self, server, |logins, server| {
            let _lock = logins.lock(server)?;
            logins.remove(server)
        })
        .await
    }
}

/// Revokes the tokens of a login (RFC 7009).
async fn revoke(login: &StoredLogin, tasks: &TaskTracker) {
    let Some(url) = &login.revocation_endpoint else { return };
    let Ok(server_url) = parse_url(&login.server_url) else { return };
    let Ok(fetcher) = Fetcher::new(&server_url, tasks).await else { return };
    let endpoint = TokenEndpoint { fetcher: &fetcher, url, client: &login.client };
    let token = login.refresh_token.as_ref().unwrap_or(&login.access_token);
    let hint = if login.refresh_token.is_some() { "refresh_token" } else { "access_token" };
    let form = Form::default().field("token", token.expose()).field("token_type_hint", hint);
    if let Err(error) = endpoint.send(form).await {
        tracing::warn!("the tokens of the login were not revoked: {error}");
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

/// Checks that the authorization server can do what a login needs.
fn check_issuer(fetcher: &Fetcher, discovered: &ServerAuthorization) -> Result<(), OAuthError> {
    let issuer = &discovered.issuer;
    let invalid = |message: String| OAuthError::new(OAuthErrorKind::InvalidMetadata, message);
    for endpoint in [&issuer.authorization_endpoint, &issuer.token_endpoint] {
        let missing =
            || invalid(format!("the metadata of `{}` lacks an endpoint for the login", issuer.issuer));
        fetcher.check_url(endpoint.as_deref().ok_or_else(missing)?)?;
    }
    let methods = issuer.code_challenge_methods.as_deref().unwrap_or_default();
    if !methods.iter().any(|method| method == "S256") {
        let message = format!("the authorization server `{}` does not support PKCE with S256", issuer.issuer);
        return Err(invalid(message));
    }
    Ok(())
}

/// Returns the scopes to ask for: those of the config, else those of the server, and those that earlier requests needed.
fn choose_scopes(
    configured: &[String],
    discovered: &ServerAuthorization,
    earlier: Option<&StoredLogin>,
) -> Vec<String> {
    let mut scopes: Vec<String> =
        if configured.is_empty() { discovered.scopes.clone() } else { configured.to_vec() };
    let step_up = earlier.filter(|login| !login.missing_scopes.is_empty());
    let more = step_up.into_iter().flat_map(|login| login.scopes.iter().chain(&login.missing_scopes));
    let offers_offline = discovered.issuer.scopes_supported.iter().any(|scope| scope == OFFLINE_ACCESS);
    let offline = offers_offline.then(|| OFFLINE_ACCESS.to_owned());
    for scope in more.cloned().chain(offline) {
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    scopes
}

fn authorization_url(
    discovered: &ServerAuthorization,
    client: &OAuthClient,
    redirect_uri: &str,
    scopes: &[String],
    pkce: &Pkce,
    state: &str,
) -> String {
    let scope = scopes.join(" ");
    let query = Form::default()
        .field("response_type", "code")
        .field("client_id", &client.id)
        .field("redirect_uri", redirect_uri)
        .field("state", state)
        .field("code_challenge", &pkce.challenge)
        .field("code_challenge_method", "S256")
        .field("resource", &discovered.resource)
        .optional("scope", Some(scope.as_str()).filter(|scope| !scope.is_empty()));
    let endpoint = discovered.issuer.authorization_endpoint.as_deref().unwrap_or_default();
    let separator = if endpoint.contains('?') { '&' } else { '?' };
    format!("{endpoint}{separator}{}", query.0)
}

fn known_client(
    remote: &HttpSpec,
    secrets: &ResolvedSecrets,
    earlier: Option<&StoredLogin>,
    discovered: &ServerAuthorization,
    redirect_uri: &str,
) -> Result<KnownClient, OAuthError> {
    let auth = &remote.auth;
    let is_same = |login: &&StoredLogin| {
        login.issuer == discovered.issuer.issuer && login.redirect_uri == redirect_uri && !login.is_ended
    };
    Ok(KnownClient {
        id: expand(auth.client_id.as_ref(), secrets)?,
        secret: expand(auth.client_secret.as_ref(), secrets)?.map(crate::spec::secret::Secret::new),
        metadata_url: auth.client_metadata_url.clone(),
        registered: earlier.filter(is_same).map(|login| login.client.clone()),
    })
}

/// Resolves the references of a text.
pub(super) fn expand(
    text: Option<&TemplateText>,
    secrets: &ResolvedSecrets,
) -> Result<Option<String>, OAuthError> {
    let expanded = text.map(|text| text.expand(|name| secrets.get(name))).transpose();
    expanded.map_err(|missing| OAuthError::new(OAuthErrorKind::Settings, missing.to_string()))
}

fn remote_spec(spec: &ServerSpec) -> Result<&HttpSpec, OAuthError> {
    match &spec.endpoint {
        Endpoint::Http(remote) => Ok(remote),
        _ => {
            let message = format!("`{}` is not a remote server; it needs no login", spec.id);
            Err(OAuthError::new(OAuthErrorKind::NotRequired, message))
        }
    }
}

async fn resolve_secrets(
    spec: &ServerSpec,
    logins: &Logins,
    tasks: &TaskTracker,
) -> Result<ResolvedSecrets, OAuthError> {
    let store = SecretStoreHandle(logins.secret_store());
    ResolvedSecrets::resolve(spec, Some(&store), tasks)
        .await
        .map_err(|(name, error)| OAuthError::new(OAuthErrorKind::Settings, error.message(&name)))
}

/// Returns the URL of a server with all references resolved.
fn server_url(remote: &HttpSpec, secrets: &ResolvedSecrets) -> Result<Uri, OAuthError> {
    let settings = |message: String| OAuthError::new(OAuthErrorKind::Settings, message);
    let text =
        remote.url.expand(|name| secrets.get(name)).map_err(|missing| settings(missing.to_string()))?;
    parse_url(&text).map_err(|reason| settings(format!("its `url` cannot be used: {reason}")))
}

/// Runs a function that blocks on a thread where that is allowed.
pub(super) async fn run_blocking<T: Send + 'static>(
    tasks: &TaskTracker,
    logins: &Logins,
    server: &ServerId,
    work: impl FnOnce(&Logins, &ServerId) -> Result<T, OAuthError> + Send + 'static,
) -> Result<T, OAuthError> {
    let (logins, server) = (logins.clone(), server.clone());
    let done = tasks.spawn_blocking(move || work(&logins, &server)).await;
    done.map_err(|_| OAuthError::new(OAuthErrorKind::Store, "the secret store failed"))?
}
