//! `BuildError`: the reason why a crib was not built.

use std::fmt;

use crate::spec::{NameClash, Roster, ServerId};

/// The reason why [`CribBuilder::build`](crate::CribBuilder::build) failed.
///
/// ```
/// use tokio::runtime::Builder;
/// use toolcrib::{BuildError, Crib};
///
/// # fn main() -> std::io::Result<()> {
/// assert_eq!(Crib::builder().build().unwrap_err(), BuildError::NoRuntime);
///
/// let without_io = Builder::new_current_thread().enable_time().build()?;
/// assert_eq!(without_io.block_on(async { Crib::builder().build() }).unwrap_err(), BuildError::NoIo);
///
/// let complete = Builder::new_current_thread().enable_all().build()?;
/// assert!(complete.block_on(async { Crib::builder().build() }).is_ok());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildError {
    /// Two servers have the same name.
    NameClash(NameClash),
    /// This server is remote, and the library was compiled without the feature `http`.
    RemoteUnsupported(ServerId),
    /// There is no tokio runtime.
    NoRuntime,
    /// The tokio runtime has no timer.
    NoTimer,
    /// The tokio runtime has no I/O driver.
    NoIo,
    /// The program of [`CribBuilder::shim`](crate::CribBuilder::shim) is this one, and it does not call
    /// [`run_shim`](crate::run_shim).
    ShimNotRun,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NameClash(clash) => return clash.fmt(f),
            Self::RemoteUnsupported(server) => {
                let needs = "needs the feature `http` of the crate `toolcrib`";
                return write!(f, "`{server}` is a remote server, which {needs}");
            }
            Self::NoRuntime => "there is no tokio runtime: call `build` within one, for example in `block_on`",
            Self::NoTimer => "the tokio runtime has no timer: build the runtime with `enable_all`",
            Self::NoIo => "the tokio runtime has no I/O driver: build the runtime with `enable_all`",
            Self::ShimNotRun => {
                "this program cannot be its own shim: `main` must first call `toolcrib::run_shim` and end with \
                 the exit code that it returns"
            }
        })
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NameClash(clash) => Some(clash),
            _ => None,
        }
    }
}

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
