//! `Vault`: secrets in one encrypted file, and the key that opens it. Both are this person's alone; whoever can read both
//! can read the secrets.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use toolcrib::{NoSecret, Secret};
use zeroize::Zeroizing;

use super::age::{self, Identity};
use crate::edit::file::Original;
use crate::exit::Exit;
use crate::failure::Failure;

/// The variable that holds the key, if it is not to be in a file.
pub(crate) const KEY: &str = "TOOLCRIB_KEY";

/// Every secret by its name.
type Secrets = BTreeMap<String, Secret>;

/// Secrets in an encrypted file.
#[derive(Debug, Clone)]
pub(super) struct Vault {
    folder: PathBuf,
    /// The key of the environment, if it has one.
    key: Option<Secret>,
}

impl Vault {
    /// The vault in this folder, which need not be there; `key` opens it if it is given.
    pub(super) fn new(folder: PathBuf, key: Option<Secret>) -> Self {
        Self { folder, key }
    }

    /// The file that is encrypted.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.join("secrets.age")
    }

    /// Whether anything was ever kept here.
    pub(super) fn exists(&self) -> bool {
        self.file().exists()
    }

    fn key_file(&self) -> PathBuf {
        self.folder.join("key.txt")
    }

    /// Where the key is, for people.
    pub(super) fn key_place(&self) -> String {
        match self.key {
            Some(_) => format!("`{KEY}`"),
            None => format!("`{}`", self.key_file().display()),
        }
    }

    pub(super) fn find(&self, name: &str) -> Result<Secret, NoSecret> {
        let failed = |failure: Failure| match failure.hint {
            Some(hint) if failure.code == "secrets_locked" => NoSecret::Locked(hint),
            _ => NoSecret::Failed(failure.message),
        };
        self.read().map_err(failed)?.1.remove(name).ok_or(NoSecret::NotFound)
    }

    /// Every name, in order.
    pub(super) fn names(&self) -> Result<Vec<String>, Failure> {
        self.read().map(|(_, secrets)| secrets.into_keys().collect())
    }

    pub(super) fn set(&self, name: &str, value: &Secret) -> Result<(), Failure> {
        self.change(|secrets| secrets.insert(name.to_owned(), value.clone()) != Some(value.clone()))
            .map(|_| ())
    }

    /// Whether it was there.
    pub(super) fn remove(&self, name: &str) -> Result<bool, Failure> {
        self.change(|secrets| secrets.remove(name).is_some())
    }

    /// Changes the file unless nothing changes in it; says whether something did. One after the other.
    fn change(&self, change: impl Fn(&mut Secrets) -> bool) -> Result<bool, Failure> {
        let _turn = self.turn().map_err(|error| self.cannot(&format!("cannot be locked: {error}")))?;
        let (original, mut secrets) = self.read()?;
        if !change(&mut secrets) {
            return Ok(false);
        }
        let sealed = age::seal(&to_bytes(&secrets), &self.identity(!original.exists())?);
        let sealed = sealed.map_err(|why| self.cannot(&format!("cannot be written: {why}")))?;
        original.replace(&sealed).map(|()| true)
    }

    /// Held while something is changed. The file stays, or two could hold two files of one name.
    fn turn(&self) -> io::Result<File> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let options = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).to_owned();
        let turn = options.open(self.folder.join("lock"))?;
        turn.lock().map(|()| turn)
    }

    /// The file as it is, and what is in it.
    fn read(&self) -> Result<(Original, Secrets), Failure> {
        let original = Original::read(&self.file())?;
        if !original.exists() {
            return Ok((original, Secrets::new()));
        }
        let key = self.identity(false)?;
        let plain = age::open(original.text(), &key).map_err(|closed| {
            let failure =
                self.cannot(&format!("cannot be opened with the key in {}: {closed}", self.key_place()));
            failure.hint(format!(
                "set `{KEY}` to the key it was written with, or remove the file and set each secret again"
            ))
        })?;
        let secrets = from_bytes(&plain).ok_or_else(|| self.cannot("holds something else than secrets"))?;
        Ok((original, secrets))
    }

    fn cannot(&self, what: &str) -> Failure {
        Failure::new(Exit::Unexpected, "secrets_unusable", format!("`{}` {what}", self.file().display()))
    }

    /// The key; a new one if there is none yet and `make` allows it.
    fn identity(&self, make: bool) -> Result<Identity, Failure> {
        if let Some(key) = &self.key {
            let hint = format!("set `{KEY}` to what `age-keygen` prints, or unset it");
            let bad =
                || Failure::new(Exit::Unexpected, "bad_key", format!("`{KEY}` is no key of age")).hint(hint);
            return Identity::parse(key.expose()).ok_or_else(bad);
        }
        let file = self.key_file();
        let text = match fs::read_to_string(&file) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == ErrorKind::NotFound && make => return self.make_key(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message = format!("`{}` is locked: there is no key", self.file().display());
                let hint = format!("set `{KEY}`, or put the key back into `{}`", file.display());
                return Err(Failure::new(Exit::AuthNeeded, "secrets_locked", message).hint(hint));
            }
            Err(error) => return Err(self.bad_key(&error.to_string())),
        };
        if !is_private(&file) {
            let hint = format!("chmod 600 {}", file.display());
            return Err(self.bad_key("others can read it").hint(hint));
        }
        Identity::parse(&text).ok_or_else(|| self.bad_key("it is no key of age"))
    }

    fn bad_key(&self, why: &str) -> Failure {
        let message = format!("the key in `{}` cannot be used: {why}", self.key_file().display());
        Failure::new(Exit::Unexpected, "bad_key", message)
    }

    fn make_key(&self) -> Result<Identity, Failure> {
        let key = Identity::new().map_err(|error| self.bad_key(&error.to_string()))?;
        let new = self.folder.join("key.new");
        let options = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).to_owned();
        let written = options.open(&new).and_then(|mut file| {
            writeln!(file, "# opens secrets.age; whoever has both has the secrets\n{}", &*key.to_text())?;
            file.sync_all()
        });
        let placed = written.and_then(|()| fs::rename(&new, self.key_file()));
        placed.map(|()| key).map_err(|error| self.bad_key(&error.to_string()))
    }
}

fn is_private(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.mode() & 0o077 == 0)
}

fn to_bytes(secrets: &Secrets) -> Zeroizing<Vec<u8>> {
    let plain: BTreeMap<&str, &str> =
        secrets.iter().map(|(name, value)| (name.as_str(), value.expose())).collect();
    // Names and values are strings, which JSON has all of.
    Zeroizing::new(serde_json::to_vec(&plain).unwrap_or_default())
}

fn from_bytes(bytes: &[u8]) -> Option<Secrets> {
    let plain: BTreeMap<String, String> = serde_json::from_slice(bytes).ok()?;
    Some(plain.into_iter().map(|(name, value)| (name, Secret::new(value))).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn secret(value: &str) -> Secret {
        Secret::new(value)
    }

    #[test]
    fn what_is_set_is_found_again_and_nothing_of_it_can_be_read_on_disk() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(dir.path().join("secrets"), None);
        assert_eq!(vault.find("a"), Err(NoSecret::NotFound));
        assert!(!dir.path().join("secrets").exists(), "looking makes nothing");
        vault.set("a", &secret("one-can4ry")).unwrap();
        vault.set("b", &secret("two\nlines")).unwrap();
        vault.set("a", &secret("three-can4ry")).unwrap();
        assert_eq!(vault.find("a"), Ok(secret("three-can4ry")));
        assert_eq!(vault.find("b"), Ok(secret("two\nlines")));
        assert_eq!(vault.names().unwrap(), ["a", "b"]);
        for entry in fs::read_dir(&vault.folder).unwrap() {
            let entry = entry.unwrap();
            assert!(is_private(&entry.path()), "{entry:?}");
            assert!(!fs::read_to_string(entry.path()).unwrap().contains("can4ry"), "{entry:?}");
        }
        assert_eq!(fs::metadata(&vault.folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&vault.folder).unwrap().count(), 3);
        assert!(!vault.remove("c").unwrap());
        assert!(vault.remove("a").unwrap() && !vault.remove("a").unwrap());
        assert_eq!(vault.find("a"), Err(NoSecret::NotFound));
    }

    #[test]
    fn a_key_in_the_environment_is_written_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let key = secret(&Identity::new().unwrap().to_text());
        let vault = Vault::new(dir.path().to_owned(), Some(key));
        vault.set("a", &secret("x")).unwrap();
        assert_eq!(vault.find("a"), Ok(secret("x")));
        assert!(!vault.key_file().exists());
        let keyless = Vault::new(dir.path().to_owned(), None);
        assert!(matches!(keyless.find("a"), Err(NoSecret::Locked(_))), "no other key is made");
        assert_eq!(keyless.set("b", &secret("y")).unwrap_err().code, "secrets_locked");
        let other = Vault::new(dir.path().to_owned(), Some(secret(&Identity::new().unwrap().to_text())));
        assert!(matches!(other.find("a"), Err(NoSecret::Failed(why)) if why.contains("another key")));
        let wrong = Vault::new(dir.path().to_owned(), Some(secret("hunter2")));
        let refused = wrong.set("a", &secret("x")).unwrap_err();
        assert!(refused.code == "bad_key" && !refused.to_string().contains("hunter2"), "{refused}");
    }

    #[test]
    fn a_key_that_others_can_read_or_a_damaged_file_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(dir.path().to_owned(), None);
        vault.set("a", &secret("x")).unwrap();
        let open = |mode| fs::set_permissions(vault.key_file(), fs::Permissions::from_mode(mode)).unwrap();
        open(0o644);
        assert!(vault.set("a", &secret("y")).unwrap_err().hint.unwrap().starts_with("chmod 600"));
        open(0o600);
        fs::write(vault.file(), "not age").unwrap();
        assert!(vault.set("a", &secret("y")).is_err());
        assert_eq!(fs::read_to_string(vault.file()).unwrap(), "not age");
    }

    #[test]
    fn those_who_set_at_the_same_time_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let vault = Vault::new(dir.path().join("new"), None);
        std::thread::scope(|scope| {
            for number in 0..6 {
                let vault = &vault;
                scope.spawn(move || vault.set(&format!("s{number}"), &secret("x")).unwrap());
            }
        });
        assert_eq!(vault.names().unwrap().len(), 6);
    }
}
