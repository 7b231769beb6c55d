//! `ServerId`: a valid server name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A server name: 1 to 32 of `a-z`, `0-9`, `-`, `_`. It starts with a letter or digit, does not end in `_` and does not
/// contain `__`, so that a public tool name can be split in only one way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(Arc<str>);

/// The reason why a text is not a server name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadName {
    /// It is empty or longer than 32 characters.
    Length,
    /// It contains a character other than `a-z`, `0-9`, `-` and `_`, or starts with `-` or `_`.
    Character,
    /// It ends in `_` or contains `__`, which separates server and tool in public names.
    Separator,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "a name has 1 to 32 characters",
            Self::Character => {
                "a name contains only `a-z`, `0-9`, `-` and `_`, and starts with a letter or digit"
            }
            Self::Separator => "a name does not end in `_` and does not contain `__`",
        })
    }
}

impl std::error::Error for BadName {}

impl ServerId {
    /// Creates a name from a text that is known to be valid.
    pub(super) fn from_static(name: &'static str) -> Self {
        Self(name.into())
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the form in which two names must differ: `-` and `_` count as equal.
    pub fn folded(&self) -> String {
        self.0.replace('-', "_")
    }
}

impl FromStr for ServerId {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > 32 {
            return Err(BadName::Length);
        }
        if !name.bytes().all(allowed) || name.starts_with(['-', '_']) {
            return Err(BadName::Character);
        }
        if name.ends_with('_') || name.contains("__") {
            return Err(BadName::Separator);
        }
        Ok(Self(name.into()))
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_rejected_with_the_reason() {
        for name in ["git", "a", "0", "my-server_2", &"x".repeat(32)] {
            assert!(name.parse::<ServerId>().is_ok(), "{name}");
        }
        for (name, reason) in [
            ("", BadName::Length),
            (&*"x".repeat(33), BadName::Length),
            ("Git", BadName::Character),
            ("-a", BadName::Character),
            ("_a", BadName::Character),
            ("a b", BadName::Character),
            ("a_", BadName::Separator),
            ("a__b", BadName::Separator),
        ] {
            assert_eq!(name.parse::<ServerId>(), Err(reason), "{name}");
        }
    }
}
