//! Callers of requests that other replicas forward.

use std::sync::Arc;

use toolcrib::util::locks::IgnorePoison as _;

use super::{ActiveCallers, AuthenticatedCaller, LOCAL_CREDENTIAL};
use crate::caller_assertion::CallerAssertion;

impl ActiveCallers {
    /// Returns what another replica needs to know about a caller; `None` if the caller has just lost access.
    pub(crate) fn assert_caller(&self, access: &AuthenticatedCaller) -> Option<CallerAssertion> {
        if *access.credential == *LOCAL_CREDENTIAL {
            return Some(CallerAssertion::Local);
        }
        let state = self.state.read().ignore_poison();
        if state.callers.credentials().any(|credential| *credential == access.credential) {
            return Some(CallerAssertion::Declared { credential: access.credential.to_string() });
        }
        state.issued.as_ref()?.assert_login(&access.credential).map(CallerAssertion::Issued)
    }

    /// Returns the access of a caller that another replica has authenticated; `None` if this one does not know the caller, or
    /// knows it with other rights.
    pub(crate) fn find_asserted(&self, assertion: &CallerAssertion) -> Option<Arc<AuthenticatedCaller>> {
        let state = self.state.read().ignore_poison();
        match assertion {
            CallerAssertion::Local => state.callers.is_empty().then(|| state.callers.local.clone()),
            CallerAssertion::Declared { credential } => {
                let entries = state.callers.entries.iter().map(|entry| &entry.authenticated);
                entries.into_iter().find(|found| *found.credential == **credential).cloned()
            }
            CallerAssertion::Issued(login) => state.issued.as_ref()?.log_in_asserted(login),
        }
    }
}
