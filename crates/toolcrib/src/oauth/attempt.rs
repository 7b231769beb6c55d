//! What every way to log in has in common: the server, its authorization server, the client, and the tokens at the end.

use hyper::Uri;
use tokio_util::task::TaskTracker;

use super::client::OAuthClient;
use super::discovery::{ServerAuthorization, discover};
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::Fetcher;
use super::login::LoginRequest;
use super::metadata::IssuerMetadata;
use super::registration::{KnownClient, LoginFlow, find_client};
use super::stored_login::{LoginSummary, Logins, StoredLogin};
use super::token_request::{TokenEndpoint, Tokens};
use crate::secrets::{ResolvedSecrets, SecretStoreHandle};
use crate::spec::secret::Secret;
use crate::spec::template::TemplateText;
use crate::spec::url::parse_url;
use crate::spec::{Endpoint, HttpSpec, ServerId, ServerSpec};

/// The scope that asks for a refresh token.
const OFFLINE_ACCESS: &str = "offline_access";
/// Maximum size of all scopes of a request.
const MAX_SCOPE_BYTES: usize = 8 << 10;

/// A login that has been prepared: the authorization server is known, and this client is registered.
pub(super) struct LoginAttempt {
    server: ServerId,
    logins: Logins,
    tasks: TaskTracker,
    pub(super) fetcher: Fetcher,
    server_url: Uri,
    pub(super) discovered: ServerAuthorization,
    pub(super) client: OAuthClient,
    /// Where the browser returns to; empty for a login without a redirect.
    pub(super) redirect_uri: String,
    pub(super) scopes: Vec<String>,
}

impl LoginAttempt {
    /// Finds the authorization server and registers this client if necessary.
    pub(super) async fn start(request: LoginRequest<'_>, flow: LoginFlow<'_>) -> Result<Self, OAuthError> {
        let LoginRequest { server: spec, logins, .. } = request;
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
        check_issuer(&fetcher, &discovered.issuer, flow)?;
        let redirect_uri = flow.redirect_uri();
        let known = known_client(remote, &secrets, earlier.as_ref(), &discovered, redirect_uri)?;
        let client = find_client(&fetcher, &discovered.issuer, known, flow).await?;
        let scopes = choose_scopes(&remote.auth.scopes, &discovered, earlier.as_ref());
        check_scopes(&scopes)?;
        Ok(Self {
            server: spec.id.clone(),
            logins: logins.clone(),
            tasks,
            fetcher,
            server_url,
            discovered,
            client,
            redirect_uri: redirect_uri.to_owned(),
            scopes,
        })
    }

    /// Returns the name of the server.
    pub(super) fn server(&self) -> &ServerId {
        &self.server
    }

    /// Returns the metadata of the authorization server.
    pub(super) fn issuer(&self) -> &IssuerMetadata {
        &self.discovered.issuer
    }

    /// Returns the scopes to ask for, as they are sent.
    pub(super) fn scope(&self) -> Option<String> {
        Some(self.scopes.join(" ")).filter(|scope| !scope.is_empty())
    }

    /// Returns the endpoint that issues tokens.
    pub(super) fn token_endpoint(&self) -> TokenEndpoint<'_> {
        let url = self.issuer().token_endpoint.as_deref().unwrap_or_default();
        TokenEndpoint { fetcher: &self.fetcher, url, client: &self.client }
    }

    /// Stores the tokens that end the login.
    pub(super) async fn store(self, tokens: Tokens) -> Result<LoginSummary, OAuthError> {
        let issuer = self.discovered.issuer;
        let login = StoredLogin {
            server_url: self.server_url.to_string(),
            issuer: issuer.issuer,
            resource: self.discovered.resource,
            token_endpoint: issuer.token_endpoint.unwrap_or_default(),
            revocation_endpoint: issuer.revocation_endpoint,
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
}

/// Checks that the authorization server can do what a login needs.
fn check_issuer(fetcher: &Fetcher, issuer: &IssuerMetadata, flow: LoginFlow<'_>) -> Result<(), OAuthError> {
    let invalid = |message: String| OAuthError::new(OAuthErrorKind::InvalidMetadata, message);
    let endpoint = match flow {
        LoginFlow::Redirect(_) => &issuer.authorization_endpoint,
        LoginFlow::Device => &issuer.device_endpoint,
    };
    if flow == LoginFlow::Device && endpoint.is_none() {
        let message =
            format!("the authorization server `{}` offers no login with a device code", issuer.issuer);
        return Err(OAuthError::new(OAuthErrorKind::NotOffered, message));
    }
    for endpoint in [endpoint, &issuer.token_endpoint] {
        let missing =
            || invalid(format!("the metadata of `{}` lacks an endpoint for the login", issuer.issuer));
        fetcher.check_url(endpoint.as_deref().ok_or_else(missing)?)?;
    }
    let methods = issuer.code_challenge_methods.as_deref().unwrap_or_default();
    if flow != LoginFlow::Device && !methods.iter().any(|method| method == "S256") {
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

/// Checks that the scopes fit into the URL that a browser opens.
fn check_scopes(scopes: &[String]) -> Result<(), OAuthError> {
    let size: usize = scopes.iter().map(|scope| scope.len() + 1).sum();
    if size <= MAX_SCOPE_BYTES {
        return Ok(());
    }
    let count = scopes.len();
    let message =
        format!("the server asks for {count} scopes, which are too long for a request; set `auth.scopes`");
    Err(OAuthError::new(OAuthErrorKind::InvalidMetadata, message))
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
        secret: expand(auth.client_secret.as_ref(), secrets)?.map(Secret::new),
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
