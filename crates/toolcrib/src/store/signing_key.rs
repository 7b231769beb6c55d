//! `SigningKey`: the key of states that clients return.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use crate::util::files::create_private_folder;

/// The number of bytes of a generated key, and the least number of any key.
const KEY_BYTES: usize = 32;

/// The key that signs states which are given to clients. Replicas that share a store must have the same key; with a key that
/// survives a restart, states from before the restart are recognized.
#[derive(Clone)]
pub struct SigningKey {
    bytes: Zeroizing<Vec<u8>>,
}

/// A reason why a signing key cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum SigningKeyError {
    /// The key has fewer than 32 bytes.
    TooShort,
    /// The key file can be read by other users.
    NotPrivate(PathBuf),
    /// The key file cannot be read or created.
    Io(PathBuf, io::Error),
    /// The system has no source of random numbers.
    NoRandomNumbers,
}

impl fmt::Display for SigningKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => write!(f, "a signing key needs at least {KEY_BYTES} bytes"),
            Self::NotPrivate(path) => {
                write!(f, "other users can read the signing key in `{}`", path.display())
            }
            Self::Io(path, error) => {
                write!(f, "cannot read or create the signing key `{}`: {error}", path.display())
            }
            Self::NoRandomNumbers => f.write_str("cannot create a signing key: no source of random numbers"),
        }
    }
}

impl std::error::Error for SigningKeyError {}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

impl SigningKey {
    /// Creates a key from at least 32 secret bytes.
    ///
    /// # Errors
    /// Fails if there are fewer bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SigningKeyError> {
        match bytes.len() >= KEY_BYTES {
            true => Ok(Self { bytes: Zeroizing::new(bytes.to_vec()) }),
            false => Err(SigningKeyError::TooShort),
        }
    }

    /// Creates a random key.
    ///
    /// # Errors
    /// Fails without a source of random numbers.
    pub fn random() -> Result<Self, SigningKeyError> {
        let mut bytes = Zeroizing::new(vec![0; KEY_BYTES]);
        getrandom::fill(&mut bytes).map_err(|_| SigningKeyError::NoRandomNumbers)?;
        Ok(Self { bytes })
    }

    /// Reads the key from a file. Creates the file with a random key if there is none; of several processes that do so at
    /// the same time, all get the same key. Only the owner can read the file. Missing folders are created for the owner only. Blocks.
    ///
    /// # Errors
    /// Fails if the file cannot be read or created, is too short, or can be read by other users.
    pub fn open_or_create(path: &Path) -> Result<Self, SigningKeyError> {
        let io_error = |error| SigningKeyError::Io(path.to_owned(), error);
        match read(path)? {
            Some(key) => return Ok(key),
            None => create(path, &Self::random()?).map_err(io_error)?,
        }
        // Another process may have been first.
        read(path)?.ok_or_else(|| io_error(io::ErrorKind::NotFound.into()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Signs several texts together.
    pub(crate) fn sign(&self, parts: &[&str]) -> Option<[u8; 32]> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.bytes).ok()?;
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part.as_bytes());
        }
        Some(mac.finalize().into_bytes().into())
    }
}

fn read(path: &Path) -> Result<Option<SigningKey>, SigningKeyError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => Zeroizing::new(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(SigningKeyError::Io(path.to_owned(), error)),
    };
    if !is_private(path).map_err(|error| SigningKeyError::Io(path.to_owned(), error))? {
        return Err(SigningKeyError::NotPrivate(path.to_owned()));
    }
    SigningKey::from_bytes(&bytes).map(Some)
}

/// Creates the file with its content in one step, or leaves an existing file unchanged.
fn create(path: &Path, key: &SigningKey) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        create_private_folder(folder)?;
    }
    let mut suffix = [0; 8];
    getrandom::fill(&mut suffix).map_err(io::Error::other)?;
    let temporary = path.with_extension(format!("{:016x}.new", u64::from_le_bytes(suffix)));
    let mut options = OpenOptions::new();
    private_file(options.write(true).create_new(true));
    let written = options.open(&temporary).and_then(|mut file| {
        file.write_all(&key.bytes)?;
        file.sync_all()
    });
    // A link fails if the file exists, unlike a rename.
    let created = written.and_then(|()| fs::hard_link(&temporary, path));
    // The file is complete or not there; a failed cleanup changes nothing.
    let _ = fs::remove_file(&temporary);
    match created {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn is_private(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::metadata(path)?.permissions().mode() & 0o077 == 0)
}

#[cfg(unix)]
fn private_file(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt as _;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn is_private(_path: &Path) -> io::Result<bool> {
    Ok(true)
}

#[cfg(not(unix))]
fn private_file(_options: &mut OpenOptions) {}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn file_is_created_once_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state/signing.key");
        let first = SigningKey::open_or_create(&path).unwrap();
        let second = SigningKey::open_or_create(&path).unwrap();
        assert_eq!((first.as_bytes().len(), first.as_bytes()), (KEY_BYTES, second.as_bytes()));
        assert!(is_private(&path).unwrap() && is_private(path.parent().unwrap()).unwrap());
        let files = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "no temporary file is left");
    }

    #[test]
    fn processes_that_start_together_get_the_same_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.key");
        let barrier = Barrier::new(8);
        let open = || {
            barrier.wait();
            SigningKey::open_or_create(&path).unwrap().as_bytes().to_vec()
        };
        let keys: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]));
    }

    #[test]
    fn unusable_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.key");
        create(&path, &SigningKey { bytes: Zeroizing::new(vec![7; KEY_BYTES - 1]) }).unwrap();
        assert!(matches!(SigningKey::open_or_create(&path), Err(SigningKeyError::TooShort)));
        assert!(matches!(SigningKey::open_or_create(folder.path()), Err(SigningKeyError::Io(..))));
        assert!(!format!("{:?}", SigningKey::random().unwrap()).contains(char::is_numeric));
    }

    #[cfg(unix)]
    #[test]
    fn key_file_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("signing.key");
        SigningKey::open_or_create(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(SigningKey::open_or_create(&path), Err(SigningKeyError::NotPrivate(_))));
    }
}
