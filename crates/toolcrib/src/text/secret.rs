//! `Secret`: a value that is never shown, what it may be called, and why there may be none. Where it is kept is not known
//! here.

use std::fmt;

use zeroize::Zeroizing;

/// The longest name.
const LONGEST_NAME: usize = 128;

/// The value of a secret. It is never shown, and wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// A secret with this value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(Zeroizing::new(value.into()))
    }

    /// The value itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Why there is no value for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoSecret {
    /// Nobody has set it.
    NotFound,
    /// It cannot be read before somebody unlocks what it is kept in; what to do about that.
    Locked(String),
    /// It cannot be had, and why.
    Failed(String),
}

impl NoSecret {
    /// What is wrong with the secret of this name, for people.
    pub fn of(&self, name: &str) -> String {
        match self {
            Self::NotFound => format!("there is no secret `{name}`"),
            Self::Locked(_) => format!("the secret `{name}` is locked away"),
            Self::Failed(why) => format!("the secret `{name}` cannot be had: {why}"),
        }
    }

    /// What to type next.
    pub fn hint(&self, name: &str) -> String {
        match self {
            Self::NotFound => format!("toolcrib secret set {name}"),
            Self::Locked(hint) => hint.clone(),
            Self::Failed(_) => "toolcrib secret ls".to_owned(),
        }
    }
}

/// Whether a secret can have this name.
pub fn is_secret_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    let begins = name.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
    begins && name.len() <= LONGEST_NAME && name.bytes().all(legal) && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_be_taken_for_anything_else() {
        for name in ["a", "GITHUB_TOKEN", "work/git.token-2", "9"] {
            assert!(is_secret_name(name), "{name}");
        }
        let long = "x".repeat(LONGEST_NAME + 1);
        for name in ["", "-x", "/x", ".x", "a/../b", "a b", "a:-b", "ä", "{name}", &long] {
            assert!(!is_secret_name(name), "{name}");
        }
    }
}
