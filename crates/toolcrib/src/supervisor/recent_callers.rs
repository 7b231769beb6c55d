//! The callers that used a running server last.
//!
//! Every call records its use here, so that calls that succeed need not be reported to the actor.

use std::sync::Mutex;

use tokio::time::Instant;

use crate::model::caller::Caller;
use crate::util::locks::IgnorePoison as _;

/// The last use of a server, and the last one by another caller. This tells for every caller when another one used it.
#[derive(Debug, Default)]
pub(super) struct RecentCallers(Mutex<RecentUses>);

#[derive(Debug, Default)]
struct RecentUses {
    last: Option<LastUse>,
    last_of_other: Option<LastUse>,
}

#[derive(Debug)]
struct LastUse {
    caller: Caller,
    at: Instant,
}

impl RecentCallers {
    /// Records a call that the server answered, or should have answered, at `now`.
    pub(super) fn record(&self, caller: &Caller, now: Instant) {
        let mut uses = self.0.lock().ignore_poison();
        match &mut uses.last {
            Some(last) if last.caller == *caller => last.at = now,
            last => {
                let previous = last.replace(LastUse { caller: caller.clone(), at: now });
                uses.last_of_other = previous;
            }
        }
    }

    /// Returns whether another caller has used the server after `since`; `None` is a time before any use.
    pub(super) fn has_other(&self, caller: &Caller, since: Option<Instant>) -> bool {
        let uses = self.0.lock().ignore_poison();
        let mut last_uses = uses.last.iter().chain(&uses.last_of_other);
        last_uses.any(|last| last.caller != *caller && since.is_none_or(|since| last.at > since))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn other_caller_is_found_until_its_last_use_is_too_old() {
        let ann = Caller::new("ann");
        let ben = Caller::new("ben");
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let callers = RecentCallers::default();
        assert!(!callers.has_other(&ben, None));
        callers.record(&ann, at(0));
        assert!(callers.has_other(&ben, None) && !callers.has_other(&ann, None));
        callers.record(&ben, at(1));
        callers.record(&ann, at(5));
        (6..20).for_each(|second| callers.record(&ben, at(second)));
        assert!(callers.has_other(&ben, Some(at(4))) && !callers.has_other(&ben, Some(at(5))));
        assert!(callers.has_other(&ann, Some(at(18))) && !callers.has_other(&ann, Some(at(19))));
        assert!(callers.has_other(&Caller::new("cid"), Some(at(18))));
    }
}
