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
    /// The instance of all clients that work in the same project.
    Project(Project),
    /// The instance of one caller.
    Caller(Caller),
}

impl InstanceKey {
    /// Returns whether this is the instance of one client.
    pub fn belongs_to(&self, client: u64) -> bool {
        matches!(self, Self::Client { number, .. } if *number == client)
    }
}

/// The form in status output.
impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("shared"),
            Self::Discovery => f.write_str("discovery"),
            Self::Client { number, .. } => write!(f, "client {number}"),
            Self::Project(project) => write!(f, "project {}", project.0.join(", ")),
            Self::Caller(caller) => write!(f, "caller {}", caller.as_str()),
        }
    }
}

/// The roots that a client works in, as paths or URIs, normalized and sorted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Project(Arc<[String]>);

impl Project {
    /// Creates a project from paths and URIs, or returns `None` if there are none.
    pub fn from_roots(roots: impl IntoIterator<Item: AsRef<str>>) -> Option<Self> {
        let mut roots: Vec<String> = roots.into_iter().map(|root| normalize_root(root.as_ref())).collect();
        roots.retain(|root| !root.is_empty());
        roots.sort_unstable();
        roots.dedup();
        (!roots.is_empty()).then(|| Self(roots.into()))
    }

    /// The folder of a project that consists of exactly one folder.
    pub fn folder(&self) -> Option<&Path> {
        match &*self.0 {
            [root] if root.starts_with('/') => Some(Path::new(root)),
            _ => None,
        }
    }

    /// The roots, as paths or URIs.
    pub(crate) fn roots(&self) -> &[String] {
        &self.0
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
