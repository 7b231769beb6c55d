//! Facts that are collected about a call while it runs.

use crate::model::denial::Denial;
use crate::model::event::{CacheUse, Decision};
use crate::model::target::Target;
use crate::util::locks::IgnorePoison as _;
use std::sync::{Arc, Mutex};

/// Facts about a call, as far as they are known.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallFacts {
    pub(crate) target: Option<Target>,
    pub(crate) decision: Decision,
    /// The rule that denies the call, even if the error hides it from the caller.
    pub(crate) denial: Option<Denial>,
    pub(crate) cache: Option<CacheUse>,
}

/// The facts that a call and all its clones share; empty if there is no observer.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallTrace(Option<Arc<Mutex<CallFacts>>>);

impl CallTrace {
    pub(crate) fn enabled() -> Self {
        Self(Some(Arc::default()))
    }

    /// Updates the facts, if they are collected.
    pub(crate) fn record(&self, update: impl FnOnce(&mut CallFacts)) {
        if let Some(facts) = &self.0 {
            update(&mut facts.lock().ignore_poison());
        }
    }

    /// Copies the facts of another call that this one continues.
    pub(crate) fn continue_from(&self, earlier: &Self) {
        let facts = earlier.facts();
        self.record(|current| *current = facts);
    }

    pub(crate) fn facts(&self) -> CallFacts {
        match &self.0 {
            Some(facts) => facts.lock().ignore_poison().clone(),
            None => CallFacts::default(),
        }
    }
}
