//! The token of one connection: loaded from the stored login or requested without a person, and renewed in time.

use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use hyper::Uri;
use hyper::header::HeaderValue;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::attempt::{expand, run_blocking};
use super::challenge::Challenge;
use super::client::{ClientProof, OAuthClient};
use super::discovery::{ServerAuthorization, discover};
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::{Fetcher, Form};
use super::stored_login::{Logins, StoredLogin};
use super::token_exchange::ExchangeSource;
use super::token_request::{MAX_TOKEN_BYTES, TokenEndpoint, Tokens, is_header_safe};
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::FailureClass;
use crate::model::hint::Hint;
use crate::process::environment::inherited_env;
use crate::secrets::{Redactor, ResolvedSecrets};
use crate::spec::auth::{AuthSpec, Grant};
use crate::spec::secret::Secret;
use crate::spec::{HttpSpec, ServerId};
use crate::util::clock;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// Pause before a token that is still valid is renewed again, if the authorization server cannot be reached.
const RENEW_RETRY: Duration = Duration::from_secs(5);
/// Time limit for a program that prints a token.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Supplies the bearer token of the requests to one server.
#[derive(Debug)]
pub(crate) struct BearerTokens {
    server: ServerId,
    url: Uri,
    source: TokenSource,
    tasks: TaskTracker,
    /// Removes the tokens from what the server and the authorization server say.
    redactor: Arc<Redactor>,
    state: Mutex<TokenState>,
    /// Held while a token is loaded, requested or renewed, so that concurrent requests cause one renewal.
    renewing: tokio::sync::Mutex<()>,
}

/// Where tokens come from.
#[derive(Debug)]
enum TokenSource {
    /// A person logged in, or will.
    Login(Logins),
    /// The client itself.
    Client(Box<ClientSource>),
    /// A program that prints a token.
    Command(Vec<String>),
    /// The token of a caller is exchanged.
    Exchange(Box<ExchangeSource>),
}

/// A client that gets tokens for itself.
#[derive(Debug)]
struct ClientSource {
    spec: AuthSpec,
    client: ClientSettings,
}

/// The settings of `auth` with all references resolved.
#[derive(Debug, Default)]
struct ClientSettings {
    id: String,
    secret: Option<Secret>,
    private_key: Option<Secret>,
    provider_client_id: String,
    id_token: Option<Secret>,
}

#[derive(Debug, Default)]
struct TokenState {
    /// Set when the source has been asked.
    is_loaded: bool,
    token: Option<BearerToken>,
    /// A token that the server refused.
    refused: Option<Secret>,
    /// Scopes that the server asked for when it refused that token.
    missing_scopes: Vec<String>,
    last_failure: Option<FetchFailure>,
}

/// An attempt to get a token that failed.
#[derive(Debug)]
struct FetchFailure {
    at: Instant,
    error: Error,
}

#[derive(Debug, Clone)]
struct BearerToken {
    token: Secret,
    header: HeaderValue,
    renew_at: Option<SystemTime>,
}

/// The answer to a request for a token without waiting.
pub(crate) enum ReadyToken {
    /// The `Authorization` header to send.
    Header(HeaderValue),
    /// There is no login; the server decides.
    NoLogin,
    /// The token has to be loaded or renewed.
    NotReady,
}

impl BearerTokens {
    /// Creates the tokens of a server, if it gets any: servers with an `Authorization` header of their own do not.
    pub(crate) fn new(
        server: &ServerId,
        remote: &HttpSpec,
        url: &Uri,
        secrets: &ResolvedSecrets,
        redactor: &Arc<Redactor>,
        logins: Option<&Logins>,
        tasks: &TaskTracker,
    ) -> Result<Option<Self>, OAuthError> {
        if remote.has_authorization() {
            return Ok(None);
        }
        let auth = &remote.auth;
        let source = match auth.grant {
            Grant::AuthorizationCode => logins.cloned().map(TokenSource::Login),
            Grant::Command => {
                let words = auth.command.iter().map(|word| expand(Some(word), secrets));
                let words: Result<Vec<Option<String>>, OAuthError> = words.collect();
                Some(TokenSource::Command(words?.into_iter().flatten().collect()))
            }
            Grant::ClientCredentials | Grant::EnterpriseManaged => {
                let client = ClientSettings::resolve(auth, secrets)?;
                let values = [&client.secret, &client.private_key, &client.id_token];
                values.into_iter().flatten().for_each(|value| redactor.add(value.expose()));
                Some(TokenSource::Client(Box::new(ClientSource { spec: (**auth).clone(), client })))
            }
        };
        Ok(source.map(|source| Self::with_source(server, url, source, redactor, tasks)))
    }

    /// Creates the tokens of a server for which tokens of a caller are exchanged.
    pub(crate) fn exchanged(
        server: &ServerId,
        url: &Uri,
        source: ExchangeSource,
        redactor: &Arc<Redactor>,
        tasks: &TaskTracker,
    ) -> Self {
        Self::with_source(server, url, TokenSource::Exchange(Box::new(source)), redactor, tasks)
    }

    fn with_source(
        server: &ServerId,
        url: &Uri,
        source: TokenSource,
        redactor: &Arc<Redactor>,
        tasks: &TaskTracker,
    ) -> Self {
        Self {
            server: server.clone(),
            url: url.clone(),
            source,
            tasks: tasks.clone(),
            redactor: redactor.clone(),
            state: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the token if it is known and valid.
    pub(crate) fn ready(&self) -> ReadyToken {
        let state = self.state.lock().ignore_poison();
        match &state.token {
            Some(token) if token.renew_at.is_none_or(|at| clock::wall_time() < at) => {
                ReadyToken::Header(token.header.clone())
            }
            None if state.is_loaded && state.refused.is_none() => ReadyToken::NoLogin,
            _ => ReadyToken::NotReady,
        }
    }

    /// Loads, requests or renews the token. Returns `None` if there is no login. The work is done in a task of its own: a
    /// caller that gives up must not lose a refresh token that was just replaced.
    pub(crate) async fn fetch(self: &Arc<Self>) -> Result<Option<HeaderValue>, Error> {
        let tokens = self.clone();
        let done = self.tasks.spawn_boxed(async move { tokens.fetch_in_turn().await }).await;
        done.unwrap_or_else(|_| Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down")))
    }

    /// Fetches the token after those who asked before. What they got is shared with all that waited for it, also an error.
    async fn fetch_in_turn(&self) -> Result<Option<HeaderValue>, Error> {
        let asked = Instant::now();
        let _turn = self.renewing.lock().await;
        match self.ready() {
            ReadyToken::Header(header) => return Ok(Some(header)),
            ReadyToken::NoLogin => return Ok(None),
            ReadyToken::NotReady => {}
        }
        if let Some(failure) = self.failure_since(asked) {
            return Err(failure);
        }
        let fetched = match &self.source {
            TokenSource::Login(logins) => self.load_login(logins).await,
            TokenSource::Client(source) => self.request_token(source).await.map(Some),
            TokenSource::Command(words) => self.run_command(words).await.map(Some),
            TokenSource::Exchange(source) => self.exchange_token(source).await.map(Some),
        };
        let fetched = fetched.map_err(|error| self.to_error(&error));
        let mut state = self.state.lock().ignore_poison();
        if let Err(error) = &fetched {
            state.last_failure = Some(FetchFailure { at: Instant::now(), error: error.clone() });
        }
        let token = fetched?;
        let header = token.as_ref().map(|token| token.header.clone());
        *state = TokenState { is_loaded: true, token, ..TokenState::default() };
        Ok(header)
    }

    /// Returns the error of an attempt that ended after a time.
    fn failure_since(&self, asked: Instant) -> Option<Error> {
        let state = self.state.lock().ignore_poison();
        let failure = state.last_failure.as_ref().filter(|failure| failure.at >= asked)?;
        Some(failure.error.clone())
    }

    /// Records that the server refused a request. Returns whether another token may help.
    pub(crate) fn refuse(&self, sent: Option<&HeaderValue>, challenge: Option<&Challenge>) -> bool {
        let mut state = self.state.lock().ignore_poison();
        let is_login_new = || match &self.source {
            TokenSource::Login(logins) => logins.summary(&self.server).is_some(),
            _ => false,
        };
        match (&state.token, sent) {
            (Some(token), Some(sent)) if token.header == *sent => {
                let refused = token.token.clone();
                let missing = challenge.filter(|challenge| challenge.is_insufficient_scope());
                let scopes = missing.into_iter().flat_map(|challenge| &challenge.scopes);
                state.missing_scopes = scopes.map(|scope| self.redactor.redact(scope).into_owned()).collect();
                state.refused = Some(refused);
                state.token = None;
                true
            }
            (_, Some(_)) => true, // the token was replaced in the meantime
            (None, None) if is_login_new() => {
                state.is_loaded = false;
                true
            }
            _ => false,
        }
    }

    async fn load_login(&self, logins: &Logins) -> Result<Option<BearerToken>, OAuthError> {
        let url = self.url.to_string();
        let login = run_blocking(&self.tasks, logins, &self.server, Logins::load).await?;
        let Some(login) = login.filter(|login| login.server_url == url) else { return Ok(None) };
        self.hide_tokens(&login);
        let (refused, missing) = {
            let state = self.state.lock().ignore_poison();
            (state.refused.clone(), state.missing_scopes.clone())
        };
        let now = clock::wall_time();
        let is_refused = refused.as_ref() == Some(&login.access_token);
        let is_fresh = login.renew_at.is_none_or(|at| at > now);
        if is_fresh && !is_refused {
            return BearerToken::new(login.access_token, login.renew_at).map(Some);
        }
        if is_refused && !missing.is_empty() {
            return Err(self.record_missing_scopes(logins, &login, missing).await);
        }
        if login.is_ended || login.refresh_token.is_none() {
            return Err(login_ended("the login has ended"));
        }
        let stale = refused.unwrap_or_else(|| login.access_token.clone());
        match self.renew_login(logins, stale).await {
            // The token is still valid; renewing it is tried again later.
            Err(error)
                if matches!(error.kind(), OAuthErrorKind::Unreachable | OAuthErrorKind::Store)
                    && !is_refused
                    && login.is_valid(now) =>
            {
                BearerToken::new(login.access_token, Some(now + RENEW_RETRY)).map(Some)
            }
            renewed => renewed.map(Some),
        }
    }

    /// Renews the stored tokens, unless another process has done so. `stale` is the token to replace.
    async fn renew_login(&self, logins: &Logins, stale: Secret) -> Result<BearerToken, OAuthError> {
        let lock = run_blocking(&self.tasks, logins, &self.server, Logins::lock).await?;
        let login = run_blocking(&self.tasks, logins, &self.server, Logins::load).await?;
        // Another process may have logged in for another URL in the meantime.
        let login = login.filter(|login| login.server_url == self.url.to_string());
        let mut login = login.ok_or_else(|| login_ended("the login was removed"))?;
        let now = clock::wall_time();
        let is_renewed = login.access_token != stale && login.is_valid(now);
        let mut end = "the login has ended".to_owned();
        if !is_renewed && !login.is_ended {
            // A refresh token that is replaced and cannot be stored would end the login.
            run_blocking(&self.tasks, logins, &self.server, Logins::check_writable).await?;
            match self.refresh(&login, now).await {
                Ok(tokens) => login.renew(tokens),
                Err(error) if error.ends_login() => {
                    login.is_ended = true;
                    end = format!("the login has ended: {error}");
                }
                Err(error) => return Err(error),
            }
            let stored = login.clone();
            let save = move |logins: &Logins, server: &ServerId| logins.save(server, &stored);
            run_blocking(&self.tasks, logins, &self.server, save).await?;
        }
        drop(lock);
        self.hide_tokens(&login);
        if login.is_ended {
            return Err(login_ended(&end));
        }
        BearerToken::new(login.access_token, login.renew_at)
    }

    /// Adds the tokens of a login to what must not be shown.
    fn hide_tokens(&self, login: &StoredLogin) {
        let others = [login.refresh_token.as_ref(), login.client.proof.secret()];
        let tokens = others.into_iter().flatten().chain([&login.access_token]);
        tokens.for_each(|token| self.redactor.add(token.expose()));
    }

    async fn refresh(&self, login: &StoredLogin, now: SystemTime) -> Result<Tokens, OAuthError> {
        let Some(refresh_token) = &login.refresh_token else {
            return Err(login_ended("the login has expired"));
        };
        let fetcher = Fetcher::new(&self.url, &self.tasks).await?;
        let endpoint = TokenEndpoint { fetcher: &fetcher, url: &login.token_endpoint, client: &login.client };
        let form = Form::default()
            .field("grant_type", "refresh_token")
            .secret("refresh_token", refresh_token.expose())
            .field("resource", &login.resource);
        endpoint.request(form, now).await
    }

    /// Stores which scopes the next login must ask for, and returns the error for the request.
    async fn record_missing_scopes(
        &self,
        logins: &Logins,
        login: &StoredLogin,
        missing: Vec<String>,
    ) -> OAuthError {
        let names = missing.join("`, `");
        if missing.iter().all(|scope| login.scopes.contains(scope)) {
            let message = format!("the server refuses the token, although it has the scopes `{names}`");
            return OAuthError::new(OAuthErrorKind::TokenRefused, message);
        }
        let save = move |logins: &Logins, server: &ServerId| {
            let _lock = logins.lock(server)?;
            match logins.load(server)? {
                Some(login) => logins.save(server, &StoredLogin { missing_scopes: missing, ..login }),
                None => Ok(()),
            }
        };
        match run_blocking(&self.tasks, logins, &self.server, save).await {
            Ok(()) => login_ended(&format!("the login lacks the scopes `{names}`")),
            Err(error) => error,
        }
    }

    async fn request_token(&self, source: &ClientSource) -> Result<BearerToken, OAuthError> {
        let ClientSource { spec, client } = source;
        let fetcher = Fetcher::new(&self.url, &self.tasks).await?;
        let discovered = discover(&fetcher, &self.url, None).await?;
        let oauth_client = client.oauth_client(&discovered);
        let token_endpoint = discovered.issuer.token_endpoint.as_deref().unwrap_or_default();
        let endpoint = TokenEndpoint { fetcher: &fetcher, url: token_endpoint, client: &oauth_client };
        let scopes = if spec.scopes.is_empty() { &discovered.scopes } else { &spec.scopes };
        let scope = scopes.join(" ");
        let scope = Some(scope.as_str()).filter(|scope| !scope.is_empty());
        let form = match spec.grant {
            Grant::EnterpriseManaged => {
                let assertion = client.exchange_id_token(spec, &self.tasks, &discovered, scope).await?;
                Form::default()
                    .field("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer")
                    .secret("assertion", assertion.expose())
            }
            _ => Form::default()
                .field("grant_type", "client_credentials")
                .field("resource", &discovered.resource)
                .optional("scope", scope),
        };
        let tokens = endpoint.request(form, clock::wall_time()).await?;
        self.redactor.add(tokens.access_token.expose());
        BearerToken::new(tokens.access_token, tokens.renew_at)
    }

    async fn exchange_token(&self, source: &ExchangeSource) -> Result<BearerToken, OAuthError> {
        let tokens = source.request(&self.url, &self.tasks).await?;
        self.redactor.add(tokens.access_token.expose());
        BearerToken::new(tokens.access_token, tokens.renew_at)
    }

    async fn run_command(&self, words: &[String]) -> Result<BearerToken, OAuthError> {
        let failed = |reason: String| {
            let program = words.first().map(String::as_str).unwrap_or_default();
            OAuthError::new(OAuthErrorKind::Settings, format!("`auth.command` (`{program}`): {reason}"))
        };
        let (program, args) = words.split_first().ok_or_else(|| failed("it is empty".to_owned()))?;
        let printed = match tokio::time::timeout(COMMAND_TIMEOUT, print_token(program, args)).await {
            Ok(printed) => printed.map_err(failed)?,
            Err(_) => return Err(failed(format!("no token within {} s", COMMAND_TIMEOUT.as_secs()))),
        };
        let token = printed.trim();
        if !is_header_safe(token) {
            return Err(failed("its output is not a token".to_owned()));
        }
        self.redactor.add(token);
        BearerToken::new(Secret::new(token), None)
    }

    fn to_error(&self, error: &OAuthError) -> Error {
        let text = error.to_string();
        let message = format!("`{}`: {}", self.server, self.redactor.redact(&text));
        let made = Error::new(ErrorKind::AuthNeeded, message).with_server(&self.server);
        let hint = match (error.kind(), &self.source) {
            (OAuthErrorKind::LoginNeeded, TokenSource::Login(logins)) => {
                return made.with_class(FailureClass::NeedsAuth).with_hint(logins.hint(&self.server));
            }
            (OAuthErrorKind::Unreachable, _) => {
                "check that the authorization server is up and can be reached from this machine".to_owned()
            }
            (OAuthErrorKind::Store, _) => "make the secret store readable and writable".to_owned(),
            (OAuthErrorKind::Settings, _) => format!("set `servers.{}.auth`", self.server),
            (_, TokenSource::Login(_)) => "try again later, or log in again".to_owned(),
            (_, TokenSource::Client(_) | TokenSource::Command(_) | TokenSource::Exchange(_)) => {
                format!("check `servers.{}.auth`", self.server)
            }
        };
        made.with_hint(Hint::Text(hint))
    }
}

/// Runs a program with the environment of a server and returns what it prints.
async fn print_token(program: &str, args: &[String]) -> Result<String, String> {
    let mut command = tokio::process::Command::new(program);
    command.args(args).env_clear().envs(inherited_env(&[])).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let stdout = read_start(child.stdout.take());
    let stderr = read_start(child.stderr.take());
    let (stdout, stderr) = tokio::join!(stdout, stderr);
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if status.success() {
        return Ok(stdout);
    }
    let last_line = stderr.trim().lines().last().unwrap_or_default();
    let redactor = Redactor::new([stdout.trim()].into_iter());
    Err(format!("{status}: {}", super::token_request::shorten(&redactor.redact(last_line))))
}

/// Reads a pipe to its end, or as much as a token may have.
async fn read_start(pipe: Option<impl tokio::io::AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        // What was read before an error is used.
        let _ = pipe.take(MAX_TOKEN_BYTES as u64).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn login_ended(message: &str) -> OAuthError {
    OAuthError::new(OAuthErrorKind::LoginNeeded, message)
}

impl BearerToken {
    fn new(token: Secret, renew_at: Option<SystemTime>) -> Result<Self, OAuthError> {
        let mut header = HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(|_| {
            OAuthError::new(OAuthErrorKind::TokenRefused, "the token cannot be sent in a header")
        })?;
        header.set_sensitive(true);
        Ok(Self { token, header, renew_at })
    }
}

impl ClientSettings {
    fn resolve(auth: &AuthSpec, secrets: &ResolvedSecrets) -> Result<Self, OAuthError> {
        let provider = auth.identity_provider.as_ref();
        let provider_client = provider.map(|provider| &provider.client_id);
        let id_token = provider.map(|provider| &provider.id_token);
        Ok(Self {
            id: expand(auth.client_id.as_ref(), secrets)?.unwrap_or_default(),
            secret: expand(auth.client_secret.as_ref(), secrets)?.map(Secret::new),
            private_key: expand(auth.private_key.as_ref(), secrets)?.map(Secret::new),
            provider_client_id: expand(provider_client, secrets)?.unwrap_or_default(),
            id_token: expand(id_token, secrets)?.map(Secret::new),
        })
    }

    fn oauth_client(&self, discovered: &ServerAuthorization) -> OAuthClient {
        let issuer = &discovered.issuer;
        let proof = match (&self.private_key, &self.secret) {
            (Some(key), _) => ClientProof::PrivateKey { key: key.clone(), audience: issuer.issuer.clone() },
            (None, Some(secret)) => ClientProof::with_secret(secret.clone(), &issuer.auth_methods),
            (None, None) => ClientProof::None,
        };
        OAuthClient { id: self.id.clone(), proof }
    }

    /// Exchanges the person's ID token for an assertion to the authorization server (RFC 8693, ID-JAG).
    async fn exchange_id_token(
        &self,
        spec: &AuthSpec,
        tasks: &TaskTracker,
        discovered: &ServerAuthorization,
        scope: Option<&str>,
    ) -> Result<Secret, OAuthError> {
        let provider = spec.identity_provider.as_ref();
        let url = provider.map(|provider| provider.token_endpoint.as_str()).unwrap_or_default();
        let client = OAuthClient { id: self.provider_client_id.clone(), proof: ClientProof::None };
        // The config names this URL, so that it may have any address.
        let fetcher = Fetcher::unrestricted(tasks).await?;
        let endpoint = TokenEndpoint { fetcher: &fetcher, url, client: &client };
        let form = Form::default()
            .field("grant_type", "urn:ietf:params:oauth:grant-type:token-exchange")
            .field("requested_token_type", "urn:ietf:params:oauth:token-type:id-jag")
            .field("audience", &discovered.issuer.issuer)
            .field("resource", &discovered.resource)
            .secret("subject_token", self.id_token.as_ref().map(Secret::expose).unwrap_or_default())
            .field("subject_token_type", "urn:ietf:params:oauth:token-type:id_token")
            .optional("scope", scope);
        let answer = endpoint.send(form).await?;
        let assertion = answer.get("access_token").and_then(serde_json::Value::as_str);
        let missing =
            || OAuthError::new(OAuthErrorKind::TokenRefused, "the identity provider issued no assertion");
        assertion.map(Secret::new).ok_or_else(missing)
    }
}
