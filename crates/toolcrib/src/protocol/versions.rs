//! The revisions of the protocol and the two eras they belong to.

use std::fmt;
use std::str::FromStr;

/// A group of revisions: with handshake and sessions, or with self-contained requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Era {
    /// Up to 2025-11-25: a handshake, then a session.
    Session,
    /// Since 2026-07-28: no handshake, every request is self-contained.
    Stateless,
}

impl Era {
    /// Returns the name in the config and in `status --json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "legacy",
            Self::Stateless => "modern",
        }
    }

    /// Returns the other era.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Session => Self::Stateless,
            Self::Stateless => Self::Session,
        }
    }
}

/// A released revision of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the dates are their own documentation")]
#[non_exhaustive]
pub enum Revision {
    V2024_11_05,
    V2025_03_26,
    V2025_06_18,
    V2025_11_25,
    V2026_07_28,
}

impl Revision {
    /// Every revision, oldest first.
    pub const ALL: [Self; 5] =
        [Self::V2024_11_05, Self::V2025_03_26, Self::V2025_06_18, Self::V2025_11_25, Self::V2026_07_28];

    /// Returns the newest revision of an era.
    pub const fn newest(era: Era) -> Self {
        match era {
            Era::Session => Self::V2025_11_25,
            Era::Stateless => Self::V2026_07_28,
        }
    }

    /// Returns the era it belongs to.
    pub const fn era(self) -> Era {
        match self {
            Self::V2026_07_28 => Era::Stateless,
            _ => Era::Session,
        }
    }

    /// Returns its date, which is its name in the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }
}

/// The error for text that is not the date of a known revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownRevision;

impl FromStr for Revision {
    type Err = UnknownRevision;

    fn from_str(date: &str) -> Result<Self, UnknownRevision> {
        Self::ALL.into_iter().find(|revision| revision.as_str() == date).ok_or(UnknownRevision)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
