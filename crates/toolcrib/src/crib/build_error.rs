//! `BuildError`: the reason why a crib was not built.

use std::fmt;

use crate::spec::{NameClash, Roster, ServerId};

/// The reason why [`CribBuilder::build`](crate::CribBuilder::build) failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// Two servers have the same name.
    NameClash(NameClash),
    /// This server is remote, and the library was compiled without the feature `http`.
    RemoteUnsupported(ServerId),
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NameClash(clash) => clash.fmt(f),
            Self::RemoteUnsupported(server) => write!(
                f,
                "`{server}` is a remote server, which needs the feature `http` of the crate `toolcrib`"
            ),
        }
    }
}

impl std::error::Error for BuildError {}

impl From<NameClash> for BuildError {
    fn from(clash: NameClash) -> Self {
        Self::NameClash(clash)
    }
}

/// Fails if a server cannot be reached by this build of the library.
pub(super) fn check_supported(roster: &Roster) -> Result<(), BuildError> {
    match roster.servers().find(|spec| !spec.endpoint.is_supported()) {
        Some(spec) => Err(BuildError::RemoteUnsupported(spec.id.clone())),
        None => Ok(()),
    }
}
