//! Secret values that are never printed, the rules for their names, and the errors of looking them up.

use std::fmt;

use zeroize::Zeroizing;

/// The maximum length of a name.
const MAX_NAME_LENGTH: usize = 128;

/// The value of a secret. It is never printed, and erased from memory when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Creates a secret.
    pub fn new(value: impl Into<String>) -> Self {
        Self(Zeroizing::new(value.into()))
    }

    /// Returns the value.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The reason why a secret has no value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretError {
    /// It is not set.
    NotFound,
    /// The secret store is locked, with a hint on how to unlock it.
    Locked(String),
    /// It cannot be read, with the reason.
    Failed(String),
}

impl SecretError {
    /// Returns the message for the secret with this name.
    pub fn message(&self, name: &str) -> String {
        match self {
            Self::NotFound => format!("secret `{name}` is not set"),
            Self::Locked(_) => format!("secret `{name}` is locked"),
            Self::Failed(reason) => format!("cannot read secret `{name}`: {reason}"),
        }
    }

    /// Returns what to do next.
    pub fn hint(&self, name: &str) -> String {
        match self {
            Self::NotFound => format!("toolcrib secret set {name}"),
            Self::Locked(hint) => hint.clone(),
            Self::Failed(_) => "toolcrib secret ls".to_owned(),
        }
    }
}

/// Returns whether a secret can have this name.
pub fn is_valid_secret_name(name: &str) -> bool {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    let is_legal_start = name.starts_with(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
    is_legal_start && name.len() <= MAX_NAME_LENGTH && name.bytes().all(is_legal) && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unambiguous_names_are_valid() {
        for name in ["a", "GITHUB_TOKEN", "work/git.token-2", "9"] {
            assert!(is_valid_secret_name(name), "{name}");
        }
        let long = "x".repeat(MAX_NAME_LENGTH + 1);
        for name in ["", "-x", "/x", ".x", "a/../b", "a b", "a:-b", "ä", "{name}", &long] {
            assert!(!is_valid_secret_name(name), "{name}");
        }
    }
}
