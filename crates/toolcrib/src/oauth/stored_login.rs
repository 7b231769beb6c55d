//! Stored logins. The tokens of a login are one secret; a file beside it tells without the secret that there is a login.
//!
//! A lock file per login makes sure that one process at a time renews its tokens: most authorization servers
//! end a login whose refresh token is used twice.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::client::{ClientProof, OAuthClient};
use super::error::{OAuthError, OAuthErrorKind};
use super::token_request::Tokens;
use crate::model::caller::Caller;
use crate::model::hint::Hint;
use crate::secrets::SecretStore;
use crate::spec::ServerId;
use crate::spec::secret::{Secret, SecretError};
use crate::util::encoding::to_hex;
use crate::util::files::{FileMode, ReplaceOptions, create_private_folder, replace_file};

/// Folder of the files that tell about logins, in the state folder.
const FOLDER: &str = "logins";
/// Beginning of the names of secrets that hold logins.
const SECRET_PREFIX: &str = "login/";
/// Stands between the name of a server and that of a caller. Names of servers do not contain it.
const CALLER_MARK: char = '@';

/// The logins of a person: a secret store, and a state folder that all processes share. Servers with an instance per caller
/// have a login per caller as well; see [`Logins::for_caller`].
#[derive(Clone)]
pub struct Logins {
    secrets: Arc<dyn SecretStore>,
    folder: PathBuf,
    /// The caller whose logins these are; those of the local user without it.
    caller: Option<Caller>,
}

impl std::fmt::Debug for Logins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logins").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// What is known of a login without its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoginSummary {
    /// The authorization server.
    pub issuer: String,
    /// Scopes that were granted.
    pub scopes: Vec<String>,
    /// Scopes that a request needed and the login does not have.
    pub missing_scopes: Vec<String>,
    /// When the access token expires.
    pub expires_at: Option<SystemTime>,
    /// Whether the access token can be renewed.
    pub is_renewable: bool,
    /// Whether the authorization server has ended the login.
    pub is_ended: bool,
}

/// State of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoginState {
    /// It can be used.
    Ok,
    /// It has ended, or has expired and cannot be renewed.
    Expired,
    /// It lacks a scope.
    Needed,
}

impl LoginState {
    /// Returns the name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Expired => "expired",
            Self::Needed => "needed",
        }
    }
}

impl LoginSummary {
    /// Returns the state at a time.
    pub fn state(&self, now: SystemTime) -> LoginState {
        let is_over = self.expires_at.is_some_and(|end| end <= now) && !self.is_renewable;
        if self.is_ended || is_over {
            LoginState::Expired
        } else if self.missing_scopes.is_empty() {
            LoginState::Ok
        } else {
            LoginState::Needed
        }
    }

    fn from_json(document: &Value) -> Option<Self> {
        let flag = |name: &str| document.get(name).and_then(Value::as_bool).unwrap_or_default();
        Some(Self {
            issuer: document.get("issuer")?.as_str()?.to_owned(),
            scopes: read_texts(document, "scopes"),
            missing_scopes: read_texts(document, "missing_scopes"),
            expires_at: read_time(document, "expires_at"),
            is_renewable: flag("is_renewable"),
            is_ended: flag("is_ended"),
        })
    }
}

/// A login with its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredLogin {
    /// The server's URL. The tokens go nowhere else.
    pub(super) server_url: String,
    pub(super) issuer: String,
    pub(super) resource: String,
    pub(super) token_endpoint: String,
    pub(super) revocation_endpoint: Option<String>,
    pub(super) client: OAuthClient,
    /// Redirect URI that the client was registered with.
    pub(super) redirect_uri: String,
    pub(super) scopes: Vec<String>,
    pub(super) missing_scopes: Vec<String>,
    pub(super) access_token: Secret,
    pub(super) refresh_token: Option<Secret>,
    pub(super) expires_at: Option<SystemTime>,
    pub(super) renew_at: Option<SystemTime>,
    pub(super) is_ended: bool,
}

impl StoredLogin {
    /// Replaces the tokens. A server that sends no new refresh token keeps the old one valid.
    pub(super) fn renew(&mut self, tokens: Tokens) {
        self.access_token = tokens.access_token;
        self.expires_at = tokens.expires_at;
        self.renew_at = tokens.renew_at;
        self.refresh_token = tokens.refresh_token.or(self.refresh_token.take());
        self.scopes = tokens.scopes.unwrap_or_else(|| std::mem::take(&mut self.scopes));
        self.is_ended = false;
    }

    /// Returns whether the access token has not expired.
    pub(super) fn is_valid(&self, now: SystemTime) -> bool {
        self.expires_at.is_none_or(|end| end > now)
    }

    pub(super) fn summary(&self) -> LoginSummary {
        LoginSummary {
            issuer: self.issuer.clone(),
            scopes: self.scopes.clone(),
            missing_scopes: self.missing_scopes.clone(),
            expires_at: self.expires_at,
            is_renewable: self.refresh_token.is_some(),
            is_ended: self.is_ended,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "server_url": self.server_url,
            "issuer": self.issuer,
            "resource": self.resource,
            "token_endpoint": self.token_endpoint,
            "revocation_endpoint": self.revocation_endpoint,
            "client_id": self.client.id,
            "client_method": self.client.proof.method(),
            "client_secret": self.client.proof.secret().map(Secret::expose),
            "redirect_uri": self.redirect_uri,
            "scopes": self.scopes,
            "missing_scopes": self.missing_scopes,
            "access_token": self.access_token.expose(),
            "refresh_token": self.refresh_token.as_ref().map(Secret::expose),
            "expires_at": self.expires_at.map(to_seconds),
            "renew_at": self.renew_at.map(to_seconds),
            "is_ended": self.is_ended,
        })
    }

    fn from_json(document: &Value) -> Option<Self> {
        let text = |name: &str| document.get(name)?.as_str().map(str::to_owned);
        let secret = text("client_secret").map(Secret::new);
        let proof = ClientProof::from_method(&text("client_method")?, secret);
        Some(Self {
            server_url: text("server_url")?,
            issuer: text("issuer")?,
            resource: text("resource")?,
            token_endpoint: text("token_endpoint")?,
            revocation_endpoint: text("revocation_endpoint"),
            client: OAuthClient { id: text("client_id")?, proof },
            redirect_uri: text("redirect_uri")?,
            scopes: read_texts(document, "scopes"),
            missing_scopes: read_texts(document, "missing_scopes"),
            access_token: Secret::new(text("access_token")?),
            refresh_token: text("refresh_token").map(Secret::new),
            expires_at: read_time(document, "expires_at"),
            renew_at: read_time(document, "renew_at"),
            is_ended: document.get("is_ended").and_then(Value::as_bool).unwrap_or_default(),
        })
    }
}

fn read_texts(document: &Value, name: &str) -> Vec<String> {
    let values = document.get(name).and_then(Value::as_array).into_iter().flatten();
    values.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn read_time(document: &Value, name: &str) -> Option<SystemTime> {
    let seconds = document.get(name)?.as_u64()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

fn to_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn store_error(reason: impl std::fmt::Display) -> OAuthError {
    OAuthError::new(OAuthErrorKind::Store, format!("cannot store the login: {reason}"))
}

/// Held while a login is changed.
pub(super) struct LoginLock {
    _file: File,
}

/// All methods block.
impl Logins {
    /// Creates the logins in a secret store. `state_dir` is the state folder of the crib.
    pub fn new(secrets: Arc<dyn SecretStore>, state_dir: &Path) -> Self {
        Self { secrets, folder: state_dir.join(FOLDER), caller: None }
    }

    /// Returns the logins of one caller. Those of the local caller are the ones without a caller.
    #[must_use]
    pub fn for_caller(&self, caller: &Caller) -> Self {
        let caller = Some(caller).filter(|caller| !caller.is_local());
        Self { caller: caller.cloned(), ..self.clone() }
    }

    /// Returns the callers that have logins of their own to a server.
    pub fn callers(&self, server: &ServerId) -> Vec<Caller> {
        let prefix = format!("{server}{CALLER_MARK}");
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut callers: Vec<String> = files
            .filter_map(|file| file.file_name().into_string().ok())
            .filter(|name| name.starts_with(&prefix) && name.ends_with(".json"))
            .filter_map(|name| read_json(&self.folder.join(name))?.get("caller")?.as_str().map(str::to_owned))
            .collect();
        callers.sort();
        callers.iter().map(|name| Caller::new(name)).collect()
    }

    /// Returns the next step for a server that needs a login.
    pub(crate) fn hint(&self, server: &ServerId) -> Hint {
        Hint::login_for(server, self.caller.as_ref().unwrap_or(&Caller::local()))
    }

    /// Returns what is known of the login to a server, without reading a secret.
    pub fn summary(&self, server: &ServerId) -> Option<LoginSummary> {
        LoginSummary::from_json(&read_json(&self.path(server, "json"))?)
    }

    /// Returns the port of the redirect URI that the last login to a server used. Some authorization servers accept only
    /// that one from the client that they registered.
    pub fn redirect_port(&self, server: &ServerId) -> Option<u16> {
        let login = self.load(server).ok()??;
        login.redirect_uri.parse::<hyper::Uri>().ok()?.port_u16()
    }

    /// Returns the secret store.
    pub(super) fn secret_store(&self) -> Arc<dyn SecretStore> {
        self.secrets.clone()
    }

    /// Returns the login to a server.
    pub(super) fn load(&self, server: &ServerId) -> Result<Option<StoredLogin>, OAuthError> {
        if !self.path(server, "json").exists() {
            return Ok(None); // spares a locked keyring
        }
        let name = self.secret_name(server);
        match self.secrets.get(&name) {
            Ok(secret) => {
                let document = serde_json::from_str(secret.expose()).unwrap_or_default();
                Ok(StoredLogin::from_json(&document))
            }
            Err(SecretError::NotFound) => Ok(None),
            Err(error) => Err(OAuthError::new(OAuthErrorKind::Store, error.message(&name))),
        }
    }

    /// Checks that a login can be stored, before a person is asked to log in.
    pub(super) fn check_writable(&self, server: &ServerId) -> Result<(), OAuthError> {
        create_private_folder(&self.folder).map_err(store_error)?;
        let name = format!("{}/check", self.secret_name(server));
        let put = self.secrets.put(&name, &Secret::new("check"));
        put.and_then(|()| self.secrets.delete(&name)).map_err(|error| store_error(error.message(&name)))?;
        Ok(())
    }

    /// Stores the login to a server.
    pub(super) fn save(&self, server: &ServerId, login: &StoredLogin) -> Result<(), OAuthError> {
        create_private_folder(&self.folder).map_err(store_error)?;
        let name = self.secret_name(server);
        let secret = Secret::new(login.to_json().to_string());
        self.secrets.put(&name, &secret).map_err(|error| store_error(error.message(&name)))?;
        let summary = json!({
            "issuer": login.issuer,
            "scopes": login.scopes,
            "missing_scopes": login.missing_scopes,
            "expires_at": login.expires_at.map(to_seconds),
            "is_renewable": login.refresh_token.is_some(),
            "is_ended": login.is_ended,
            "caller": self.caller.as_ref().map(Caller::as_str),
        });
        let options = ReplaceOptions { mode: FileMode::Private, sync: false };
        replace_file(&self.path(server, "json"), summary.to_string().as_bytes(), options).map_err(store_error)
    }

    /// Removes the login to a server and returns whether there was one.
    pub(super) fn remove(&self, server: &ServerId) -> Result<bool, OAuthError> {
        let file = std::fs::remove_file(self.path(server, "json"));
        let name = self.secret_name(server);
        let removed = self.secrets.delete(&name).map_err(|error| store_error(error.message(&name)))?;
        Ok(removed || file.is_ok())
    }

    /// Waits until no other process changes the login to a server.
    pub(super) fn lock(&self, server: &ServerId) -> Result<LoginLock, OAuthError> {
        create_private_folder(&self.folder).map_err(store_error)?;
        let path = self.path(server, "lock");
        let file =
            File::options().create(true).truncate(false).write(true).open(path).map_err(store_error)?;
        file.lock().map_err(store_error)?;
        Ok(LoginLock { _file: file })
    }

    fn path(&self, server: &ServerId, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.login_name(server)))
    }

    fn secret_name(&self, server: &ServerId) -> String {
        format!("{SECRET_PREFIX}{}", self.login_name(server))
    }

    /// Returns the name of a login, which is also the name of a file. Callers may have any names, and names of files may
    /// ignore case, so that the digest of a caller's name is used.
    fn login_name(&self, server: &ServerId) -> String {
        match &self.caller {
            Some(caller) => {
                format!("{server}{CALLER_MARK}{}", to_hex(&Sha256::digest(caller.as_str())[..16]))
            }
            None => server.to_string(),
        }
    }
}

fn read_json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}
