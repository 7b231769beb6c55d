//! Identifies one instance of a server that is not shared.

use crate::model::caller::Caller;
use crate::util::encoding::percent_decode;
use bytes::Bytes;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Identifies one instance of a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum InstanceKey {
    /// The only instance, shared by all callers.
    #[default]
    Shared,
    /// An instance that was started only to list what the server offers.
    Discovery,
    /// The instance of one client, as long as it declares the same capabilities.
    Client {
        /// The client's number.
        number: u64,
        /// The capabilities that the client declares, as JSON.
        capabilities: Bytes,
    },
    /// The instance of all clients of one caller that work in the same project.
    Project {
        /// The caller.
        caller: Caller,
        /// The project.
        project: Project,
    },
    /// The instance of one caller.
    Caller(Caller),
    /// The instance for the stateless clients of a server that speaks both eras. The inner key is that of the
    /// instance for clients in a session.
    Stateless(Box<InstanceKey>),
}

impl InstanceKey {
    /// Returns whether this is the instance of one client.
    pub fn belongs_to(&self, client: u64) -> bool {
        matches!(self.without_era(), Self::Client { number, .. } if *number == client)
    }

    /// Returns the key that clients of both eras have in common.
    pub fn without_era(&self) -> &Self {
        match self {
            Self::Stateless(key) => key.without_era(),
            key => key,
        }
    }

    /// Returns whether all callers share the instance.
    pub fn is_shared(&self) -> bool {
        *self.without_era() == Self::Shared
    }
}

/// The form in status output.
impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("shared"),
            Self::Discovery => f.write_str("discovery"),
            Self::Client { number, .. } => write!(f, "client {number}"),
            Self::Project { caller, project } => {
                write!(f, "project {}", project.roots.join(", "))?;
                match *caller == Caller::local() {
                    true => Ok(()),
                    false => write!(f, " of {}", caller.as_str()),
                }
            }
            Self::Caller(caller) => write!(f, "caller {}", caller.as_str()),
            Self::Stateless(key) => write!(f, "{key} (modern)"),
        }
    }
}

/// The roots that a client works in, as paths or URIs, normalized and sorted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Project {
    roots: Arc<[String]>,
    /// Whether a server may be started in its folder.
    is_trusted: bool,
}

impl Project {
    /// Creates a project from paths and URIs, or returns `None` if there are none. Servers may be started in its folder, so
    /// the roots must not come from a client that is not trusted to choose one.
    pub fn from_roots(roots: impl IntoIterator<Item: AsRef<str>>) -> Option<Self> {
        let mut roots: Vec<String> = roots.into_iter().map(|root| normalize_root(root.as_ref())).collect();
        roots.retain(|root| !root.is_empty());
        roots.sort_unstable();
        roots.dedup();
        (!roots.is_empty()).then(|| Self { roots: roots.into(), is_trusted: true })
    }

    /// Keeps the roots only to tell projects apart: no server is started in their folder.
    #[must_use]
    pub(crate) fn untrusted(self) -> Self {
        Self { is_trusted: false, ..self }
    }

    /// The folder of a project that consists of exactly one folder, if servers may be started there.
    pub fn folder(&self) -> Option<&Path> {
        match &*self.roots {
            [root] if self.is_trusted && root.starts_with('/') => Some(Path::new(root)),
            _ => None,
        }
    }

    /// The roots, as paths or URIs.
    pub(crate) fn roots(&self) -> &[String] {
        &self.roots
    }
}

/// Converts a `file:` URI to a path and removes trailing slashes. Other URIs stay as they are.
fn normalize_root(root: &str) -> String {
    let path = root.strip_prefix("file://").map(|rest| rest.strip_prefix("localhost").unwrap_or(rest));
    let root = path.and_then(percent_decode).unwrap_or(root.into());
    match root.trim_end_matches('/') {
        "" if root.starts_with('/') => "/".to_owned(),
        trimmed => trimmed.to_owned(),
    }
}
