//! Commands, and the keys of what they read and change.

use std::time::Duration;

use bytes::Bytes;
use toolcrib::store::{StoreKey, StoreKind};

/// A script that the server runs as one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreScript {
    Values,
    Usage,
}

impl StoreScript {
    pub(crate) const ALL: [Self; 2] = [Self::Values, Self::Usage];

    pub(crate) fn source(self) -> &'static str {
        match self {
            Self::Values => include_str!("scripts/values.lua"),
            Self::Usage => include_str!("scripts/usage.lua"),
        }
    }
}

/// One operation of the store as a command of the server.
#[derive(Debug, Clone)]
pub(crate) struct StoreCommand {
    pub(crate) name: CommandName,
    /// The keys of a script.
    pub(crate) keys: Vec<Bytes>,
    pub(crate) arguments: Vec<Bytes>,
    /// The slot of its keys, by the text in braces that they share, or `None` if every node of a cluster can run it.
    pub(crate) slot: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandName {
    /// A command of the server.
    Plain(&'static str),
    Script(StoreScript),
}

impl StoreCommand {
    /// Creates a command without keys.
    pub(crate) fn plain(name: &'static str, arguments: Vec<Bytes>) -> Self {
        Self { name: CommandName::Plain(name), keys: Vec::new(), arguments, slot: None }
    }

    /// Creates the run of a script.
    pub(crate) fn script(
        script: StoreScript,
        slot: &'static str,
        keys: Vec<Bytes>,
        arguments: Vec<Bytes>,
    ) -> Self {
        Self { name: CommandName::Script(script), keys, arguments, slot: Some(slot) }
    }

    /// Returns the bytes of its keys and arguments.
    pub(crate) fn size(&self) -> usize {
        self.keys.iter().chain(&self.arguments).map(Bytes::len).sum()
    }

    /// Returns the command for keys of one slot.
    pub(crate) fn in_slot(self, slot: &'static str) -> Self {
        Self { slot: Some(slot), ..self }
    }
}

/// The slot of the usage of limits.
pub(crate) const USAGE_SLOT: &str = "usage";

/// Returns the slot of a kind. A pending approval and the decision about it are exchanged in one operation.
pub(crate) fn kind_slot(kind: StoreKind) -> &'static str {
    match kind {
        StoreKind::ApprovalDecision | StoreKind::PendingApproval => "approvals",
        kind => kind.as_str(),
    }
}

/// Builds keys, all of which start with a prefix.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) prefix: String,
}

impl Keys {
    /// Returns the start of the keys of a kind. The slot in braces decides the node of a cluster.
    pub(crate) fn kind(&self, kind: StoreKind) -> String {
        format!("{}:{{{}}}:{}:", self.prefix, kind_slot(kind), kind.as_str())
    }

    pub(crate) fn value(&self, key: StoreKey<'_>) -> Bytes {
        Bytes::from(self.kind(key.kind) + key.name)
    }

    /// Returns the key of the names of a kind.
    pub(crate) fn index(&self, kind: StoreKind) -> Bytes {
        Bytes::from(format!("{}:{{{}}}:index:{}", self.prefix, kind_slot(kind), kind.as_str()))
    }

    pub(crate) fn usage(&self, caller: &str) -> Bytes {
        Bytes::from(format!("{}:{{{USAGE_SLOT}}}:caller:{caller}", self.prefix))
    }

    pub(crate) fn callers(&self) -> Bytes {
        Bytes::from(format!("{}:{{{USAGE_SLOT}}}:callers", self.prefix))
    }

    /// Returns the channel of the notices of a kind.
    pub(crate) fn channel(&self, kind: StoreKind) -> Bytes {
        Bytes::from(format!("{}:notices:{}", self.prefix, kind.as_str()))
    }
}

/// Formats a lifetime in milliseconds, rounded up. The empty text means that a value does not expire.
pub(crate) fn format_ttl(ttl: Option<Duration>) -> Bytes {
    ttl.map_or_else(Bytes::new, |ttl| {
        let milliseconds = ttl.as_nanos().div_ceil(1_000_000).max(1);
        Bytes::from(milliseconds.to_string())
    })
}
