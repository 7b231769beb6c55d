//! Storage of the values behind `${secret:NAME}`: desktop keyring, encrypted file, environment or a command. Values are
//! looked up when a connection starts and are not cached.

mod age;
mod command;
mod dbus;
mod keyring;
mod marshal;
mod secret_file;

pub(crate) mod fuzzing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock, RwLock};

use toolcrib::config::{CallerToken, Config, SecretBackend};
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Secret, SecretError, SecretStore};
use toolcrib_agents::import::StoredSecrets;

use self::keyring::{Keyring, KeyringError};
use self::secret_file::SecretFile;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::paths::Paths;

/// Hint for a locked keyring.
const UNLOCK_HINT: &str =
    "unlock your desktop keyring, or set `backend = \"file\"` in `[secrets]` and set the secret again";

/// Hint for a missing or failing keyring.
const NO_KEYRING_HINT: &str = "set `backend = \"file\"` in `[secrets]`";

/// Place where a secret is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretLocation {
    Keyring,
    File,
    Env,
    Command,
}

impl SecretLocation {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Keyring => "keyring",
            Self::File => "file",
            Self::Env => "env",
            Self::Command => "command",
        }
    }
}

/// Reads and writes secrets in the configured backend. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct SecretLocator {
    backend: Arc<RwLock<SecretBackend>>,
    file: SecretFile,
}

impl SecretLocator {
    /// Creates a locator for the backend of a config.
    pub(crate) fn new(paths: &Paths, backend: &SecretBackend) -> Self {
        let file = SecretFile::new(paths.secrets_path(), find_key());
        Self { backend: Arc::new(RwLock::new(backend.clone())), file }
    }

    /// Returns a locator for another backend and the same secret file.
    pub(crate) fn with_backend(&self, backend: &SecretBackend) -> Self {
        Self { backend: Arc::new(RwLock::new(backend.clone())), file: self.file.clone() }
    }

    /// Changes the backend of this locator and its clones.
    pub(crate) fn set_backend(&self, backend: SecretBackend) {
        *self.backend.write().ignore_poison() = backend;
    }

    fn backend(&self) -> SecretBackend {
        self.backend.read().ignore_poison().clone()
    }

    /// Returns the value of a secret. Blocks, possibly for seconds.
    pub(crate) fn find(&self, name: &str) -> Result<Secret, SecretError> {
        match self.backend() {
            SecretBackend::File => self.file.find(name),
            SecretBackend::Keyring => find_in_keyring(name)?.ok_or(SecretError::NotFound),
            // The file is faster to read. It only has secrets that were set while there was no keyring.
            SecretBackend::Auto => match self.file.find(name) {
                Err(SecretError::NotFound) => match find_in_keyring(name) {
                    Err(KeyringError::Absent(_)) => Err(SecretError::NotFound),
                    found => found?.ok_or(SecretError::NotFound),
                },
                found => found,
            },
            SecretBackend::Env(prefix) => read_env_secret(&prefix, name).ok_or(SecretError::NotFound),
            SecretBackend::Command(argv) => command::read_secret(&SecretBackend::command_for(&argv, name)),
            _ => Err(SecretError::NotFound),
        }
    }

    /// Stores a secret in exactly one place and returns which.
    pub(crate) fn set(&self, name: &str, value: &Secret) -> Result<SecretLocation, CommandError> {
        let backend = self.backend();
        let keyring = match backend {
            SecretBackend::Auto | SecretBackend::Keyring => Keyring::open(),
            SecretBackend::File => Err(KeyringError::Absent(String::new())),
            backend => return Err(read_only_backend_error(&backend, name)),
        };
        match keyring.and_then(|mut keyring| keyring.set(name, value)) {
            Ok(()) if backend == SecretBackend::Auto && self.file.exists() => {
                self.file.remove(name).map(|_| SecretLocation::Keyring)
            }
            Ok(()) => Ok(SecretLocation::Keyring),
            Err(KeyringError::Absent(_)) if backend != SecretBackend::Keyring => {
                self.file.set(name, value).map(|()| SecretLocation::File)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a secret and returns whether there was one.
    pub(crate) fn remove(&self, name: &str) -> Result<bool, CommandError> {
        let backend = self.backend();
        let was_in_file = match backend {
            SecretBackend::Auto | SecretBackend::File => self.file.exists() && self.file.remove(name)?,
            SecretBackend::Keyring => false,
            backend => return Err(read_only_backend_error(&backend, name)),
        };
        if backend == SecretBackend::File {
            return Ok(was_in_file);
        }
        match Keyring::open().and_then(|mut keyring| keyring.remove(name)) {
            Ok(was_in_keyring) => Ok(was_in_keyring || was_in_file),
            Err(KeyringError::Absent(_)) if backend == SecretBackend::Auto => Ok(was_in_file),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the stored secrets and their locations. For a command these are the used secrets, stored or not.
    pub(crate) fn names(&self, uses: &SecretUses) -> Result<BTreeMap<String, SecretLocation>, CommandError> {
        let used = || uses.0.keys().cloned();
        let mut names = BTreeMap::new();
        let backend = self.backend();
        if matches!(backend, SecretBackend::Auto | SecretBackend::Keyring) {
            match Keyring::open().and_then(|mut keyring| keyring.names()) {
                Ok(found) => names.extend(found.into_iter().map(|name| (name, SecretLocation::Keyring))),
                Err(KeyringError::Absent(_)) if backend == SecretBackend::Auto => {}
                Err(error) => return Err(error.into()),
            }
        }
        match backend {
            SecretBackend::Auto | SecretBackend::File => {
                names.extend(self.file.names()?.into_iter().map(|name| (name, SecretLocation::File)));
            }
            SecretBackend::Keyring => {}
            SecretBackend::Env(prefix) => {
                let set = used().filter(|name| read_env_secret(&prefix, name).is_some());
                names.extend(set.map(|name| (name, SecretLocation::Env)));
            }
            SecretBackend::Command(_) => names.extend(used().map(|name| (name, SecretLocation::Command))),
            _ => {}
        }
        Ok(names)
    }

    /// Returns what the user should know about the place of a stored secret.
    pub(crate) fn storage_note(&self, location: SecretLocation) -> String {
        match location {
            SecretLocation::File => {
                let file = self.file.path();
                let key = self.file.describe_key_location();
                format!("`{}` is encrypted with the key in {key}; keep that key private", file.display())
            }
            _ => "stored in the desktop keyring".to_owned(),
        }
    }
}

impl SecretStore for SecretLocator {
    fn get(&self, name: &str) -> Result<Secret, SecretError> {
        self.find(name)
    }

    fn put(&self, name: &str, value: &Secret) -> Result<(), SecretError> {
        self.set(name, value).map(drop).map_err(|error| SecretError::Failed(error.message))
    }

    fn delete(&self, name: &str) -> Result<bool, SecretError> {
        self.remove(name).map_err(|error| SecretError::Failed(error.message))
    }
}

impl StoredSecrets for SecretLocator {
    fn find_stored(&self, name: &str) -> Option<Secret> {
        self.find(name).ok()
    }
}

fn find_in_keyring(name: &str) -> Result<Option<Secret>, KeyringError> {
    Keyring::open()?.find(name)
}

impl From<KeyringError> for SecretError {
    fn from(error: KeyringError) -> Self {
        match error {
            KeyringError::Locked => Self::Locked(UNLOCK_HINT.to_owned()),
            KeyringError::Absent(reason) => Self::Failed(format!("no keyring available: {reason}")),
            KeyringError::Broken(reason) => Self::Failed(reason),
        }
    }
}

impl From<KeyringError> for CommandError {
    fn from(error: KeyringError) -> Self {
        let (exit, code, message, hint) = match error {
            KeyringError::Locked => {
                (ExitStatus::AuthNeeded, "secrets_locked", "the keyring is locked".to_owned(), UNLOCK_HINT)
            }
            KeyringError::Absent(reason) => (
                ExitStatus::Unreachable,
                "no_keyring",
                format!("no keyring available: {reason}"),
                NO_KEYRING_HINT,
            ),
            KeyringError::Broken(reason) => (ExitStatus::Unreachable, "no_keyring", reason, NO_KEYRING_HINT),
        };
        Self::new(exit, code, message).hint(hint)
    }
}

/// The key that was removed from the environment.
static TAKEN_KEY: OnceLock<Secret> = OnceLock::new();

/// Removes the key of the secret file from the environment, where other processes of this user could read it, and keeps it in
/// memory. Has no effect once another thread runs.
pub(crate) fn take_key_from_environment() {
    if let Some(key) = toolcrib::take_variable(secret_file::KEY_VARIABLE) {
        // It is taken once, because it is not in the environment afterwards.
        let _ = TAKEN_KEY.set(key);
    }
}

fn find_key() -> Option<Secret> {
    let from_environment = || std::env::var(secret_file::KEY_VARIABLE).ok().map(Secret::new);
    let key = TAKEN_KEY.get().cloned().or_else(from_environment);
    key.filter(|key| !key.expose().is_empty())
}

fn read_env_secret(prefix: &str, name: &str) -> Option<Secret> {
    std::env::var(env_variable_name(prefix, name)).ok().filter(|value| !value.is_empty()).map(Secret::new)
}

fn env_variable_name(prefix: &str, name: &str) -> String {
    let normalize = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("{prefix}{}", name.chars().map(normalize).collect::<String>())
}

/// Returns the environment variables needed to read the secrets of a config.
pub(crate) fn required_variables(config: &Config) -> Vec<String> {
    let uses = SecretUses::from_config(config);
    let only_set = |names: &[&str]| -> Vec<String> {
        let set_names = names.iter().filter(|name| std::env::var_os(name).is_some());
        set_names.map(|name| (*name).to_owned()).collect()
    };
    match &config.secrets {
        _ if uses.0.is_empty() => Vec::new(),
        SecretBackend::Auto => only_set(&[secret_file::KEY_VARIABLE, keyring::BUS_VARIABLE]),
        SecretBackend::File => only_set(&[secret_file::KEY_VARIABLE]),
        SecretBackend::Keyring => only_set(&[keyring::BUS_VARIABLE]),
        SecretBackend::Env(prefix) => uses.names().map(|name| env_variable_name(prefix, name)).collect(),
        _ => Vec::new(),
    }
}

fn read_only_backend_error(backend: &SecretBackend, name: &str) -> CommandError {
    let (kind, hint) = match backend {
        SecretBackend::Command(argv) => (
            "command",
            format!("store it where `{}` can read it", SecretBackend::command_for(argv, name).join(" ")),
        ),
        _ => ("env", "set the variable where toolcrib runs".to_owned()),
    };
    let message = format!("cannot change secrets: `secrets.backend` is `{kind}`, which is read-only");
    CommandError::new(ExitStatus::Failure, "read_only", message).hint(hint)
}

/// Servers and callers that use each secret.
#[derive(Debug, Default)]
pub(crate) struct SecretUses(BTreeMap<String, BTreeSet<String>>);

impl SecretUses {
    /// Collects the secrets that a config refers to, also those of disabled servers.
    pub(crate) fn from_config(config: &Config) -> Self {
        let mut uses = Self::default();
        for declared in &config.declared {
            let texts = declared.endpoint.iter().flat_map(toolcrib::spec::Endpoint::templates);
            uses.add(texts.flat_map(toolcrib::spec::template::TemplateText::secrets), declared.id.as_str());
        }
        for caller in &config.callers {
            if let Some(CallerToken::Text(text)) = &caller.token {
                uses.add(text.secrets(), &format!("callers.{}", caller.name));
            }
        }
        uses
    }

    fn add<'a>(&mut self, names: impl Iterator<Item = &'a str>, user: &str) {
        for name in names {
            self.0.entry(name.to_owned()).or_default().insert(user.to_owned());
        }
    }

    /// Returns the names of all used secrets.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Returns the users of a secret: server names and `callers.NAME`.
    pub(crate) fn users(&self, name: &str) -> Vec<&str> {
        self.0.get(name).into_iter().flatten().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn env_backend_requires_one_variable_per_secret() {
        let text =
            "[secrets]\nbackend = 'env'\n[servers.a]\ncommand = 'x'\nenv = { TOKEN = '${secret:t}' }\n";
        let config = Config::parse(Path::new("/x/config.toml"), text);
        assert_eq!(required_variables(&config), ["TOOLCRIB_SECRET_T"]);
    }
}
