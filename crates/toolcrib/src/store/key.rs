//! Keys of stored values.

/// The kind of a stored value. Values of different kinds never share a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// A client session of the session era, by session id.
    Session,
    /// A call that waits for input from its client, by call id.
    SuspendedCall,
    /// The approved tools of a server, by server name.
    Pin,
    /// A recent decision about a call, by the digest of the call.
    ApprovalDecision,
    /// A call that an operator can decide about, by approval id.
    PendingApproval,
    /// A revoked credential, by its id.
    Revocation,
    /// A cached response, by the digest of its request.
    CachedResponse,
}

impl StoreKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::Session,
        Self::SuspendedCall,
        Self::Pin,
        Self::ApprovalDecision,
        Self::PendingApproval,
        Self::Revocation,
        Self::CachedResponse,
    ];

    /// The number of values after which those that expire first are evicted, or `None` if the kind is bounded by its users.
    pub fn max_values(self) -> Option<usize> {
        match self {
            Self::ApprovalDecision | Self::PendingApproval => Some(1000),
            _ => None,
        }
    }

    /// The name of the kind, for the keys of a store that has one key space.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::SuspendedCall => "suspended-call",
            Self::Pin => "pin",
            Self::ApprovalDecision => "approval-decision",
            Self::PendingApproval => "pending-approval",
            Self::Revocation => "revocation",
            Self::CachedResponse => "cached-response",
        }
    }
}

/// The key of a stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreKey<'a> {
    /// The kind.
    pub kind: StoreKind,
    /// The name, unique within its kind.
    pub name: &'a str,
}

impl<'a> StoreKey<'a> {
    /// Creates a key.
    pub fn new(kind: StoreKind, name: &'a str) -> Self {
        Self { kind, name }
    }
}
