//! Stored logins. The tokens of a login are one secret; a file beside it tells without the secret that there is a login.
//!
//! A lock file per login makes sure that one process at a time renews its tokens: most authorization servers
//! end a login whose refresh token is used twice.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::client::{ClientProof, OAuthClient};
use super::error::{OAuthError, OAuthErrorKind};
use super::token_request::Tokens;
use crate::secrets::SecretStore;
use crate::spec::ServerId;
use crate::spec::secret::{Secret, SecretError};
use crate::util::files::{FileMode, ReplaceOptions, create_private_folder, replace_file};

/// Folder of the files that tell about logins, in the state folder.
const FOLDER: &str = "logins";
/// Beginning of the names of secrets that hold logins.
const SECRET_PREFIX: &str = "login/";

/// The logins of a person: a secret store, and a state folder that all processes share.
#[derive(Clone)]
pub struct Logins {
    secrets: Arc<dyn SecretStore>,
    folder: PathBuf,
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
        Self { secrets, folder: state_dir.join(FOLDER) }
    }

    /// Returns what is known of the login to a server, without reading a secret.
    pub fn summary(&self, server: &ServerId) -> Option<LoginSummary> {
        let text = std::fs::read(self.path(server, "json")).ok()?;
        LoginSummary::from_json(&serde_json::from_slice(&text).ok()?)
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
        let name = secret_name(server);
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
        let name = format!("{}/check", secret_name(server));
        let put = self.secrets.put(&name, &Secret::new("check"));
        put.and_then(|()| self.secrets.delete(&name)).map_err(|error| store_error(error.message(&name)))?;
        Ok(())
    }

    /// Stores the login to a server.
    pub(super) fn save(&self, server: &ServerId, login: &StoredLogin) -> Result<(), OAuthError> {
        create_private_folder(&self.folder).map_err(store_error)?;
        let name = secret_name(server);
        let secret = Secret::new(login.to_json().to_string());
        self.secrets.put(&name, &secret).map_err(|error| store_error(error.message(&name)))?;
        let summary = json!({
            "issuer": login.issuer,
            "scopes": login.scopes,
            "missing_scopes": login.missing_scopes,
            "expires_at": login.expires_at.map(to_seconds),
            "is_renewable": login.refresh_token.is_some(),
            "is_ended": login.is_ended,
        });
        let options = ReplaceOptions { mode: FileMode::Private, sync: false };
        replace_file(&self.path(server, "json"), summary.to_string().as_bytes(), options).map_err(store_error)
    }

    /// Removes the login to a server and returns whether there was one.
    pub(super) fn remove(&self, server: &ServerId) -> Result<bool, OAuthError> {
        let file = std::fs::remove_file(self.path(server, "json"));
        let name = secret_name(server);
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
        self.folder.join(format!("{server}.{extension}"))
    }
}

fn secret_name(server: &ServerId) -> String {
    format!("{SECRET_PREFIX}{server}")
}
