//! Secrets in one encrypted file, and the key that decrypts it. Both files are readable by their owner only.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use toolcrib::util::files::{self, FileMode, ReplaceOptions};
use toolcrib::util::maps::collect_map;
use toolcrib::{Secret, SecretError};
use toolcrib_agents::edit::file::OriginalFile;
use zeroize::Zeroizing;

use super::age::{self, AgeIdentity};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;

/// Variable that holds the key instead of the key file.
pub(crate) const KEY_VARIABLE: &str = "TOOLCRIB_KEY";

/// Secrets by name.
type SecretMap = BTreeMap<String, Secret>;

/// An encrypted file of secrets.
#[derive(Debug, Clone)]
pub(super) struct SecretFile {
    dir: PathBuf,
    /// Key from the environment, if set.
    key: Option<Secret>,
}

impl SecretFile {
    /// Creates a handle for the file in a directory, which does not have to exist.
    pub(super) fn new(dir: PathBuf, key: Option<Secret>) -> Self {
        Self { dir, key }
    }

    /// Returns the path of the encrypted file.
    pub(super) fn path(&self) -> PathBuf {
        self.dir.join("secrets.age")
    }

    /// Returns whether the file exists.
    pub(super) fn exists(&self) -> bool {
        self.path().exists()
    }

    fn key_path(&self) -> PathBuf {
        self.dir.join("key.txt")
    }

    /// Returns the location of the key for messages.
    pub(super) fn describe_key_location(&self) -> String {
        match self.key {
            Some(_) => format!("`{KEY_VARIABLE}`"),
            None => format!("`{}`", self.key_path().display()),
        }
    }

    pub(super) fn find(&self, name: &str) -> Result<Secret, SecretError> {
        let failed = |failure: CommandError| match failure.hint {
            Some(hint) if failure.code == "secrets_locked" => SecretError::Locked(hint),
            _ => SecretError::Failed(failure.message),
        };
        self.read().map_err(failed)?.1.remove(name).ok_or(SecretError::NotFound)
    }

    /// Returns the names of all secrets, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>, CommandError> {
        self.read().map(|(_, secrets)| secrets.into_keys().collect())
    }

    pub(super) fn set(&self, name: &str, value: &Secret) -> Result<(), CommandError> {
        self.update(|secrets| secrets.insert(name.to_owned(), value.clone()) != Some(value.clone()))
            .map(|_| ())
    }

    /// Removes a secret and returns whether there was one.
    pub(super) fn remove(&self, name: &str) -> Result<bool, CommandError> {
        self.update(|secrets| secrets.remove(name).is_some())
    }

    /// Changes the secrets under a lock and writes the file if `change` returns true. Returns whether it did.
    fn update(&self, change: impl Fn(&mut SecretMap) -> bool) -> Result<bool, CommandError> {
        let _lock =
            self.lock().map_err(|error| self.unusable_error(&format!("cannot be locked: {error}")))?;
        let (original, mut secrets) = self.read()?;
        if !change(&mut secrets) {
            return Ok(false);
        }
        let encrypted = age::encrypt(&to_bytes(&secrets), &self.load_identity(!original.exists())?);
        let encrypted =
            encrypted.map_err(|reason| self.unusable_error(&format!("cannot be encrypted: {reason}")))?;
        original.replace(&encrypted)?;
        Ok(true)
    }

    /// Takes the lock for changes. The lock file is never removed, because two processes could then lock different files.
    fn lock(&self) -> io::Result<File> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let options = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).to_owned();
        let lock = options.open(self.dir.join("lock"))?;
        lock.lock().map(|()| lock)
    }

    /// Reads and decrypts the file.
    fn read(&self) -> Result<(OriginalFile, SecretMap), CommandError> {
        let original = OriginalFile::read(&self.path())?;
        if !original.exists() {
            return Ok((original, SecretMap::new()));
        }
        let key = self.load_identity(false)?;
        let plain = age::decrypt(original.text(), &key).map_err(|error| {
            let failure =
                self.unusable_error(&format!("cannot be decrypted with the key in {}: {error}", self.describe_key_location()));
            failure.hint(format!(
                "set `{KEY_VARIABLE}` to the key it was encrypted with, or remove the file and set each secret again"
            ))
        })?;
        let secrets = from_bytes(&plain).ok_or_else(|| self.unusable_error("has invalid contents"))?;
        Ok((original, secrets))
    }

    fn unusable_error(&self, problem: &str) -> CommandError {
        CommandError::new(
            ExitStatus::Failure,
            "secrets_unusable",
            format!("`{}` {problem}", self.path().display()),
        )
    }

    /// Returns the key. Creates one if there is none and `create` is true.
    fn load_identity(&self, create: bool) -> Result<AgeIdentity, CommandError> {
        if let Some(key) = &self.key {
            let hint = format!("set `{KEY_VARIABLE}` to a key from `age-keygen`, or unset it");
            let invalid_key = || {
                CommandError::new(
                    ExitStatus::Failure,
                    "bad_key",
                    format!("`{KEY_VARIABLE}` is not an age key"),
                )
                .hint(hint)
            };
            return AgeIdentity::parse(key.expose()).ok_or_else(invalid_key);
        }
        let file = self.key_path();
        let text = match fs::read_to_string(&file) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == ErrorKind::NotFound && create => return self.create_key(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message = format!("cannot decrypt `{}`: the key is missing", self.path().display());
                let hint = format!("set `{KEY_VARIABLE}`, or restore the key file `{}`", file.display());
                return Err(CommandError::new(ExitStatus::AuthNeeded, "secrets_locked", message).hint(hint));
            }
            Err(error) => return Err(self.bad_key_error(&error.to_string())),
        };
        if !is_private(&file) {
            let hint = format!("chmod 600 {}", file.display());
            return Err(self.bad_key_error("other users can read it").hint(hint));
        }
        AgeIdentity::parse(&text).ok_or_else(|| self.bad_key_error("it is not an age key"))
    }

    fn bad_key_error(&self, reason: &str) -> CommandError {
        let message = format!("the key in `{}` cannot be used: {reason}", self.key_path().display());
        CommandError::new(ExitStatus::Failure, "bad_key", message)
    }

    fn create_key(&self) -> Result<AgeIdentity, CommandError> {
        let key = AgeIdentity::generate().map_err(|error| self.bad_key_error(&error.to_string()))?;
        let text = format!("# decrypts secrets.age; keep it private\n{}\n", &*key.to_text());
        let options = ReplaceOptions { mode: FileMode::Private, sync: true };
        let written = files::replace_file(&self.key_path(), Zeroizing::new(text).as_bytes(), options);
        written.map(|()| key).map_err(|error| self.bad_key_error(&error.to_string()))
    }
}

fn is_private(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|metadata| metadata.mode() & 0o077 == 0)
}

fn to_bytes(secrets: &SecretMap) -> Zeroizing<Vec<u8>> {
    let plain: BTreeMap<&str, &str> =
        collect_map(secrets.iter().map(|(name, value)| (name.as_str(), value.expose())));
    // Maps of strings always serialize.
    Zeroizing::new(serde_json::to_vec(&plain).unwrap_or_default())
}

fn from_bytes(bytes: &[u8]) -> Option<SecretMap> {
    let plain: BTreeMap<String, String> = serde_json::from_slice(bytes).ok()?;
    Some(collect_map(plain.into_iter().map(|(name, value)| (name, Secret::new(value)))))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn secret(value: &str) -> Secret {
        Secret::new(value)
    }

    #[test]
    fn secrets_are_encrypted_and_private_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let file = SecretFile::new(dir.path().join("secrets"), None);
        assert_eq!(file.find("a"), Err(SecretError::NotFound));
        assert!(!dir.path().join("secrets").exists(), "reading creates nothing");
        file.set("a", &secret("one-can4ry")).unwrap();
        file.set("b", &secret("two\nlines")).unwrap();
        file.set("a", &secret("three-can4ry")).unwrap();
        assert_eq!(file.find("a"), Ok(secret("three-can4ry")));
        assert_eq!(file.find("b"), Ok(secret("two\nlines")));
        assert_eq!(file.names().unwrap(), ["a", "b"]);
        for entry in fs::read_dir(&file.dir).unwrap() {
            let entry = entry.unwrap();
            assert!(is_private(&entry.path()), "{entry:?}");
            assert!(!fs::read_to_string(entry.path()).unwrap().contains("can4ry"), "{entry:?}");
        }
        assert_eq!(fs::metadata(&file.dir).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&file.dir).unwrap().count(), 3);
        assert!(!file.remove("c").unwrap());
        assert!(file.remove("a").unwrap() && !file.remove("a").unwrap());
        assert_eq!(file.find("a"), Err(SecretError::NotFound));
    }

    #[test]
    fn environment_key_is_never_written() {
        let dir = tempfile::tempdir().unwrap();
        let key = secret(&AgeIdentity::generate().unwrap().to_text());
        let file = SecretFile::new(dir.path().to_owned(), Some(key));
        file.set("a", &secret("x")).unwrap();
        assert_eq!(file.find("a"), Ok(secret("x")));
        assert!(!file.key_path().exists());
        let keyless = SecretFile::new(dir.path().to_owned(), None);
        assert!(matches!(keyless.find("a"), Err(SecretError::Locked(_))), "no new key is created");
        assert_eq!(keyless.set("b", &secret("y")).unwrap_err().code, "secrets_locked");
        let other =
            SecretFile::new(dir.path().to_owned(), Some(secret(&AgeIdentity::generate().unwrap().to_text())));
        assert!(
            matches!(other.find("a"), Err(SecretError::Failed(reason)) if reason.contains("different key"))
        );
        let wrong = SecretFile::new(dir.path().to_owned(), Some(secret("hunter2")));
        let error = wrong.set("a", &secret("x")).unwrap_err();
        assert!(error.code == "bad_key" && !error.to_string().contains("hunter2"), "{error}");
    }

    #[test]
    fn readable_key_or_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = SecretFile::new(dir.path().to_owned(), None);
        file.set("a", &secret("x")).unwrap();
        let set_mode = |mode| fs::set_permissions(file.key_path(), fs::Permissions::from_mode(mode)).unwrap();
        set_mode(0o644);
        assert!(file.set("a", &secret("y")).unwrap_err().hint.unwrap().starts_with("chmod 600"));
        set_mode(0o600);
        fs::write(file.path(), "not age").unwrap();
        assert!(file.set("a", &secret("y")).is_err());
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "not age");
    }

    #[test]
    fn concurrent_changes_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = SecretFile::new(dir.path().join("new"), None);
        std::thread::scope(|scope| {
            for number in 0..6 {
                let file = &file;
                scope.spawn(move || file.set(&format!("s{number}"), &secret("x")).unwrap());
            }
        });
        assert_eq!(file.names().unwrap().len(), 6);
    }
}
