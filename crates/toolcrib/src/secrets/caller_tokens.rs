//! The tokens with which callers authenticate, kept only while a server exchanges them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::model::caller::Caller;
use crate::spec::secret::Secret;
use crate::util::locks::IgnorePoison as _;

/// Callers whose tokens are kept.
const MAX_CALLERS: usize = 10_000;

/// The token with which each caller authenticated last. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct CallerTokens(Arc<CallerTokensInner>);

#[derive(Debug, Default)]
struct CallerTokensInner {
    is_wanted: AtomicBool,
    tokens: Mutex<HashMap<String, Secret>>,
}

impl CallerTokens {
    /// Returns whether a server exchanges tokens, so that they are to be recorded.
    pub fn is_wanted(&self) -> bool {
        self.0.is_wanted.load(Ordering::Relaxed)
    }

    /// Records the token with which a caller has authenticated.
    pub fn record(&self, caller: &Caller, token: &str) {
        let mut tokens = self.tokens();
        match tokens.get_mut(caller.as_str()) {
            Some(known) if known.expose() == token => {}
            Some(known) => *known = Secret::new(token),
            None => {
                let evicted = if tokens.len() >= MAX_CALLERS { tokens.keys().next().cloned() } else { None };
                evicted.and_then(|caller| tokens.remove(&caller));
                tokens.insert(caller.as_str().to_owned(), Secret::new(token));
            }
        }
    }

    /// Sets whether a server exchanges tokens. If none does, all are forgotten.
    pub(crate) fn set_wanted(&self, is_wanted: bool) {
        self.0.is_wanted.store(is_wanted, Ordering::Relaxed);
        if !is_wanted {
            self.tokens().clear();
        }
    }

    /// Returns the token with which a caller authenticated last.
    #[cfg_attr(not(feature = "http"), expect(dead_code, reason = "only remote servers exchange tokens"))]
    pub(crate) fn find(&self, caller: &Caller) -> Option<Secret> {
        self.tokens().get(caller.as_str()).cloned()
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<String, Secret>> {
        self.0.tokens.lock().ignore_poison()
    }
}
