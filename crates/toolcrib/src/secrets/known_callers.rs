//! What callers authenticated with, kept only while servers learn about their callers.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::model::caller::Caller;
use crate::spec::secret::Secret;
use crate::util::locks::IgnorePoison as _;

/// Number of callers that are kept.
const MAX_CALLERS: usize = 10_000;

/// The token and the groups with which each caller authenticated last. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct KnownCallers(Arc<KnownCallersInner>);

#[derive(Debug, Default)]
struct KnownCallersInner {
    is_wanted: AtomicBool,
    callers: Mutex<HashMap<String, KnownCaller>>,
}

#[derive(Debug)]
struct KnownCaller {
    token: Option<Secret>,
    /// The caller with its groups.
    caller: Caller,
}

impl KnownCallers {
    /// Returns whether a server learns about its callers, so that they are to be recorded.
    pub fn is_wanted(&self) -> bool {
        self.0.is_wanted.load(Ordering::Relaxed)
    }

    /// Records a caller that has authenticated, with or without a token.
    pub fn record(&self, caller: &Caller, token: Option<&str>) {
        let mut callers = self.callers();
        if let Some(known) = callers.get_mut(caller.as_str()) {
            known.caller = caller.clone();
            if known.token.as_ref().map(Secret::expose) != token {
                known.token = token.map(Secret::new);
            }
            return;
        }
        let evicted = if callers.len() >= MAX_CALLERS { callers.keys().next().cloned() } else { None };
        evicted.and_then(|name| callers.remove(&name));
        let known = KnownCaller { token: token.map(Secret::new), caller: caller.clone() };
        callers.insert(caller.as_str().to_owned(), known);
    }

    /// Sets whether a server learns about its callers. If none does, all are forgotten.
    pub(crate) fn set_wanted(&self, is_wanted: bool) {
        self.0.is_wanted.store(is_wanted, Ordering::Relaxed);
        if !is_wanted {
            self.callers().clear();
        }
    }

    /// Returns the token with which a caller authenticated last.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only remote servers learn about callers"))]
    pub(crate) fn find_token(&self, caller: &Caller) -> Option<Secret> {
        self.callers().get(caller.as_str())?.token.clone()
    }

    /// Returns a caller as it authenticated last, with its groups at that time.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only remote servers learn about callers"))]
    pub(crate) fn find(&self, caller: &Caller) -> Option<Caller> {
        self.callers().get(caller.as_str()).map(|known| known.caller.clone())
    }

    fn callers(&self) -> MutexGuard<'_, HashMap<String, KnownCaller>> {
        self.0.callers.lock().ignore_poison()
    }
}
