//! `Keeper`: where the values behind `${secret:NAME}` are kept on this machine, and who is asked for which. It is asked
//! when a connection starts; it keeps nothing in mind.

mod age;
mod command;
mod dbus;
mod keyring;
mod marshal;
mod vault;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use toolcrib::config::{Config, SecretStore, Token};
use toolcrib::{NoSecret, Secret};

use self::keyring::{Keyring, Shut};
use self::vault::Vault;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::place::Place;

/// What to do about a keyring that is locked.
const UNLOCK: &str = "unlock the keyring of your desktop, or write `backend = \"file\"` below `[secrets]` and set the secret there";

/// What to do about one that does not work.
const NO_KEYRING: &str = "write `backend = \"file\"` below `[secrets]`";

/// Where one secret is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kept {
    Keyring,
    File,
    Env,
    Command,
}

impl Kept {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Keyring => "keyring",
            Self::File => "file",
            Self::Env => "env",
            Self::Command => "command",
        }
    }
}

/// Knows where secrets are. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Keeper {
    store: Arc<RwLock<SecretStore>>,
    vault: Vault,
}

impl Keeper {
    /// The one of a config.
    pub(crate) fn new(place: &Place, store: &SecretStore) -> Self {
        let key = std::env::var(vault::KEY).ok().filter(|key| !key.is_empty()).map(Secret::new);
        let vault = Vault::new(place.secrets(), key);
        Self { store: Arc::new(RwLock::new(store.clone())), vault }
    }

    /// Another one, which looks elsewhere.
    pub(crate) fn looking_in(&self, store: &SecretStore) -> Self {
        Self { store: Arc::new(RwLock::new(store.clone())), vault: self.vault.clone() }
    }

    /// Looks elsewhere from now on.
    pub(crate) fn change(&self, store: SecretStore) {
        *self.store.write().unwrap_or_else(PoisonError::into_inner) = store;
    }

    fn store(&self) -> SecretStore {
        self.store.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The value of a secret. It may take seconds to find out.
    pub(crate) fn find(&self, name: &str) -> Result<Secret, NoSecret> {
        match self.store() {
            SecretStore::File => self.vault.find(name),
            SecretStore::Keyring => in_keyring(name)?.ok_or(NoSecret::NotFound),
            // The file is cheaper to ask, and what is in it was put there when there was no keyring.
            SecretStore::Auto => match self.vault.find(name) {
                Err(NoSecret::NotFound) => match in_keyring(name) {
                    Err(Shut::Absent(_)) => Err(NoSecret::NotFound),
                    found => found?.ok_or(NoSecret::NotFound),
                },
                found => found,
            },
            SecretStore::Env(prefix) => variable(&prefix, name).ok_or(NoSecret::NotFound),
            SecretStore::Command(words) => command::ask(&SecretStore::command_for(&words, name)),
        }
    }

    /// Keeps a secret, and says where. It is in one place only.
    pub(crate) fn set(&self, name: &str, value: &Secret) -> Result<Kept, Failure> {
        let store = self.store();
        let keyring = match store {
            SecretStore::Auto | SecretStore::Keyring => Keyring::open(),
            SecretStore::File => Err(Shut::Absent(String::new())),
            store => return Err(read_only(&store, name)),
        };
        match keyring.and_then(|mut keyring| keyring.set(name, value)) {
            Ok(()) if store == SecretStore::Auto && self.vault.exists() => {
                self.vault.remove(name).map(|_| Kept::Keyring)
            }
            Ok(()) => Ok(Kept::Keyring),
            Err(Shut::Absent(_)) if store != SecretStore::Keyring => {
                self.vault.set(name, value).map(|()| Kept::File)
            }
            Err(shut) => Err(shut.into()),
        }
    }

    /// Forgets a secret; whether there was one.
    pub(crate) fn remove(&self, name: &str) -> Result<bool, Failure> {
        let store = self.store();
        let in_file = match store {
            SecretStore::Auto | SecretStore::File => self.vault.exists() && self.vault.remove(name)?,
            SecretStore::Keyring => false,
            store => return Err(read_only(&store, name)),
        };
        if store == SecretStore::File {
            return Ok(in_file);
        }
        match Keyring::open().and_then(|mut keyring| keyring.remove(name)) {
            Ok(in_keyring) => Ok(in_keyring || in_file),
            Err(Shut::Absent(_)) if store == SecretStore::Auto => Ok(in_file),
            Err(shut) => Err(shut.into()),
        }
    }

    /// Every secret that is kept, and where. Of those behind a command nothing is known before they are asked for.
    pub(crate) fn names(&self, used: &Uses) -> Result<BTreeMap<String, Kept>, Failure> {
        let used = || used.0.keys().cloned();
        let mut names = BTreeMap::new();
        let store = self.store();
        if matches!(store, SecretStore::Auto | SecretStore::Keyring) {
            match Keyring::open().and_then(|mut keyring| keyring.names()) {
                Ok(found) => names.extend(found.into_iter().map(|name| (name, Kept::Keyring))),
                Err(Shut::Absent(_)) if store == SecretStore::Auto => {}
                Err(shut) => return Err(shut.into()),
            }
        }
        match store {
            SecretStore::Auto | SecretStore::File => {
                names.extend(self.vault.names()?.into_iter().map(|name| (name, Kept::File)));
            }
            SecretStore::Keyring => {}
            SecretStore::Env(prefix) => {
                let set = used().filter(|name| variable(&prefix, name).is_some());
                names.extend(set.map(|name| (name, Kept::Env)));
            }
            SecretStore::Command(_) => names.extend(used().map(|name| (name, Kept::Command))),
        }
        Ok(names)
    }

    /// What somebody who has just kept a secret should know.
    pub(crate) fn advice(&self, kept: Kept) -> String {
        match kept {
            Kept::File => {
                let (file, key) = (self.vault.file(), self.vault.key_place());
                format!("`{}` is encrypted; whoever has the key in {key} can read it", file.display())
            }
            _ => "the keyring of the desktop has it".to_owned(),
        }
    }
}

fn in_keyring(name: &str) -> Result<Option<Secret>, Shut> {
    Keyring::open()?.find(name)
}

impl From<Shut> for NoSecret {
    fn from(shut: Shut) -> Self {
        match shut {
            Shut::Locked => Self::Locked(UNLOCK.to_owned()),
            Shut::Absent(why) => Self::Failed(format!("there is no keyring here ({why})")),
            Shut::Broken(why) => Self::Failed(why),
        }
    }
}

impl From<Shut> for Failure {
    fn from(shut: Shut) -> Self {
        let (exit, code, message, hint) = match shut {
            Shut::Locked => (Exit::AuthNeeded, "secrets_locked", "the keyring is locked".to_owned(), UNLOCK),
            Shut::Absent(why) => {
                (Exit::Unreachable, "no_keyring", format!("there is no keyring here ({why})"), NO_KEYRING)
            }
            Shut::Broken(why) => (Exit::Unreachable, "no_keyring", why, NO_KEYRING),
        };
        Self::new(exit, code, message).hint(hint)
    }
}

fn variable(prefix: &str, name: &str) -> Option<Secret> {
    std::env::var(variable_of(prefix, name)).ok().filter(|value| !value.is_empty()).map(Secret::new)
}

fn variable_of(prefix: &str, name: &str) -> String {
    let loud = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    format!("{prefix}{}", name.chars().map(loud).collect::<String>())
}

/// The variables without which the secrets of a config cannot be had.
pub(crate) fn variables(config: &Config) -> Vec<String> {
    let uses = Uses::of(config);
    let set = |names: &[&str]| -> Vec<String> {
        let set = names.iter().filter(|name| std::env::var_os(name).is_some());
        set.map(|name| (*name).to_owned()).collect()
    };
    match &config.secrets {
        _ if uses.0.is_empty() => Vec::new(),
        SecretStore::Auto => set(&[vault::KEY, keyring::BUS]),
        SecretStore::File => set(&[vault::KEY]),
        SecretStore::Keyring => set(&[keyring::BUS]),
        SecretStore::Env(prefix) => uses.names().map(|name| variable_of(prefix, name)).collect(),
        SecretStore::Command(_) => Vec::new(),
    }
}

fn read_only(store: &SecretStore, name: &str) -> Failure {
    let (kind, hint) = match store {
        SecretStore::Command(words) => (
            "command",
            format!("keep it where `{}` finds it", SecretStore::command_for(words, name).join(" ")),
        ),
        _ => ("env", "set the variable where toolcrib runs".to_owned()),
    };
    let message = format!("`secrets.backend` is `{kind}`, which toolcrib only reads");
    Failure::new(Exit::Unexpected, "read_only", message).hint(hint)
}

/// Who uses which secret.
#[derive(Debug, Default)]
pub(crate) struct Uses(BTreeMap<String, BTreeSet<String>>);

impl Uses {
    /// All that a config names, of servers that are off here, too.
    pub(crate) fn of(config: &Config) -> Self {
        let mut uses = Self::default();
        for declared in &config.declared {
            let texts = declared.endpoint.iter().flat_map(toolcrib::spec::Endpoint::texts);
            uses.add(texts.flat_map(toolcrib::text::Text::secrets), declared.id.as_str());
        }
        for caller in &config.callers {
            if let Token::Text(text) = &caller.token {
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

    /// Every secret that is used.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.keys()
    }

    /// Who uses this one: servers, and `callers.NAME`.
    pub(crate) fn users(&self, name: &str) -> Vec<&str> {
        self.0.get(name).into_iter().flatten().map(String::as_str).collect()
    }
}
