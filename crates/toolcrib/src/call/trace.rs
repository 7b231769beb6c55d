//! Facts that are collected about a call while it runs.

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use crate::model::denial::Denial;
use crate::model::event::{CacheUse, CallTiming, Decision};
use crate::model::target::Target;
use crate::model::trace_context::NetworkTransport;
use crate::util::locks::IgnorePoison as _;

/// Facts about a call, as far as they are known.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallFacts {
    pub(crate) target: Option<Target>,
    pub(crate) decision: Decision,
    /// The rule that denies the call, even if the error hides it from the caller.
    pub(crate) denial: Option<Denial>,
    pub(crate) cache: Option<CacheUse>,
    /// When the access rules had decided.
    pub(crate) decided: Option<Instant>,
    pub(crate) timing: CallTiming,
    /// How often the call was sent to a server.
    pub(crate) attempts: u32,
    /// Whether the answer of the server is an error, if it was looked for.
    pub(crate) is_error: Option<bool>,
    /// How the server is connected that has or had the call.
    pub(crate) server_transport: Option<NetworkTransport>,
    /// The attempt in progress.
    attempt: Option<Attempt>,
}

/// A call that a server has, or that waits for its turn.
#[derive(Debug, Clone)]
struct Attempt {
    began: Instant,
    queue: Duration,
}

impl CallFacts {
    /// Records that the call is sent to a server.
    pub(crate) fn begin_attempt(&mut self, began: Instant) {
        self.attempts += 1;
        self.attempt = Some(Attempt { began, queue: Duration::ZERO });
    }

    /// Records how long the call waited for its turn.
    pub(crate) fn end_queue_wait(&mut self, now: Instant) {
        if let Some(attempt) = &mut self.attempt {
            attempt.queue = now.saturating_duration_since(attempt.began);
        }
    }

    /// Records that the server answered or failed, if it had the call.
    pub(crate) fn end_attempt(&mut self, now: Instant) {
        if let Some(attempt) = self.attempt.take() {
            self.add_attempt(now.saturating_duration_since(attempt.began), attempt.queue);
        }
    }

    /// Like [`CallFacts::end_attempt`], for an attempt whose duration is known.
    pub(crate) fn end_attempt_after(&mut self, duration: Duration) {
        if let Some(attempt) = self.attempt.take() {
            self.add_attempt(duration, attempt.queue);
        }
    }

    fn add_attempt(&mut self, duration: Duration, queue: Duration) {
        // Few calls wait.
        if queue.is_zero() {
            self.timing.server += duration;
            return;
        }
        self.timing.queue += queue;
        self.timing.server += duration.saturating_sub(queue);
    }
}

/// The facts that a call and all its clones share; empty if there is no observer.
#[derive(Debug, Clone, Default)]
pub(crate) struct CallTrace(Option<Arc<Mutex<CallFacts>>>);

thread_local! {
    /// The memory of a call that ended on this thread, for the next one that starts on it.
    static SPARE: Cell<Option<Arc<Mutex<CallFacts>>>> = const { Cell::new(None) };
}

impl CallTrace {
    pub(crate) fn enabled() -> Self {
        // A call may start or end while its thread ends.
        Self(Some(SPARE.try_with(Cell::take).ok().flatten().unwrap_or_default()))
    }

    /// Keeps the memory for the next call, unless a call that goes on still uses it.
    pub(crate) fn recycle(self) {
        let Some(mut facts) = self.0 else { return };
        if let Some(Ok(unused)) = Arc::get_mut(&mut facts).map(Mutex::get_mut) {
            *unused = CallFacts::default();
            let _ = SPARE.try_with(|spare| spare.set(Some(facts)));
        }
    }

    /// Updates the facts, if they are collected.
    pub(crate) fn record(&self, update: impl FnOnce(&mut CallFacts)) {
        if let Some(facts) = &self.0 {
            update(&mut facts.lock().ignore_poison());
        }
    }

    /// Copies the facts of another call that this one continues.
    pub(crate) fn continue_from(&self, earlier: &Self) {
        let facts = earlier.facts().map(|facts| facts.clone()).unwrap_or_default();
        self.record(|current| *current = facts);
    }

    /// Returns the facts, if they are collected and no other call shares them.
    pub(crate) fn unshared_facts(&mut self) -> Option<&mut CallFacts> {
        Arc::get_mut(self.0.as_mut()?)?.get_mut().ok()
    }

    /// Returns a copy of the facts that a call shares with one that goes on. The attempt of both has ended.
    #[cold]
    pub(crate) fn copy_at_end(&self, now: Instant) -> Option<CallFacts> {
        let mut facts = self.facts()?;
        facts.end_attempt(now);
        Some(facts.clone())
    }

    /// Returns the facts, if they are collected.
    pub(crate) fn facts(&self) -> Option<MutexGuard<'_, CallFacts>> {
        self.0.as_ref().map(|facts| facts.lock().ignore_poison())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_call_of_a_thread_gets_empty_facts() {
        let address = |trace: &CallTrace| trace.0.as_ref().map(Arc::as_ptr);
        let first = CallTrace::enabled();
        first.record(|facts| facts.attempts = 3);
        let memory = address(&first);
        first.recycle();
        let second = CallTrace::enabled();
        assert_eq!(address(&second), memory);
        assert_eq!(second.facts().unwrap().attempts, 0);
        // A call that was suspended goes on with its facts.
        second.record(|facts| facts.attempts = 2);
        let suspended = second.clone();
        second.recycle();
        assert_ne!(address(&CallTrace::enabled()), memory);
        assert_eq!(suspended.facts().unwrap().attempts, 2);
    }
}
