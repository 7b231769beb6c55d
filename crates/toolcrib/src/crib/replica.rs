//! This process as one of several gateways on one store.

use std::sync::Arc;

use super::{Crib, CribBuilder};
use crate::pipeline::suspended_calls;
use crate::store::{OwnedKind, Replica};

impl CribBuilder {
    /// Sets the address at which other gateways on the same store reach this process, and the key that all of them have. A
    /// gateway that gets a request for a session or a suspended call of another one then forwards it.
    #[must_use]
    pub fn replica(mut self, replica: Replica) -> Self {
        self.replica = Some(replica);
        self
    }
}

impl Crib {
    /// Returns the address and the key of this process among other gateways on the same store, if it has any.
    pub fn replica(&self) -> Option<&Arc<Replica>> {
        self.inner.suspended.replica()
    }

    /// Returns the address of the replica that has the suspended call of a state; `None` if no replica has signed the state.
    #[doc(hidden)]
    pub fn suspended_call_owner(&self, state: &str) -> Option<String> {
        self.replica()?.owner(OwnedKind::SuspendedCall, suspended_calls::state_id(state)?)
    }
}
