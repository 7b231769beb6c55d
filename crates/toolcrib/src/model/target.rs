//! Exactly one item of one server.

use crate::spec::ServerId;
use std::sync::Arc;

/// One item of one server, which a call is sent to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The server.
    pub server: ServerId,
    /// The server's own name for the item.
    pub name: Arc<str>,
}

impl Target {
    pub(crate) fn new(server: &ServerId, name: &str) -> Self {
        Self { server: server.clone(), name: name.into() }
    }
}
