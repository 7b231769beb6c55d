//! `Usage`: what each caller has used of each of its limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::token_bucket::TokenBucket;
use super::window::{SlidingWindow, UsagePart};
use crate::model::caller::Caller;
use crate::store::{CounterList, CounterUsage, LimitCounter, LimitKind, LimitRefusal, LimitRequest};

/// Callers that are remembered before those without recent usage are pruned.
const PRUNE_THRESHOLD: usize = 1000;

/// One part in this many of a quota counts as used if the latest usage may not have been saved.
const SAFETY_DIVISOR: u32 = 64;

/// The usage of each caller.
#[derive(Debug, Default)]
pub(super) struct Usage {
    by_caller: HashMap<Caller, CallerUsage>,
    /// Number of callers at which those without recent usage are pruned, if above [`PRUNE_THRESHOLD`].
    prune_at: usize,
}

/// The usage of one caller, for the counters that it has used.
#[derive(Debug, Default)]
struct CallerUsage {
    counters: Vec<CounterState>,
}

/// The usage of one counter by one caller.
#[derive(Debug)]
struct CounterState {
    counter: LimitCounter,
    calls: CountedCalls,
}

#[derive(Debug)]
enum CountedCalls {
    Window(SlidingWindow),
    Bucket(TokenBucket),
}

/// The usage of one quota by one caller, as saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedUsage {
    pub(super) caller: String,
    /// The config key of the limit.
    pub(super) limit: String,
    pub(super) parts: Vec<UsagePart>,
}

/// The usage read from a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RestoredUsage {
    pub(super) limits: Vec<SavedUsage>,
    /// Whether the file was written at shutdown, so that no usage is missing.
    pub(super) is_complete: bool,
}

impl CounterState {
    fn new(counter: &LimitCounter) -> Self {
        let calls = match counter.kind {
            LimitKind::Quota { .. } => CountedCalls::Window(SlidingWindow::default()),
            LimitKind::Rate { .. } => CountedCalls::Bucket(TokenBucket::default()),
        };
        Self { counter: counter.clone(), calls }
    }

    /// Applies the current numbers of the limit.
    fn update(&mut self, counter: &LimitCounter) {
        if self.counter.kind != counter.kind || !Arc::ptr_eq(&self.counter.name, &counter.name) {
            self.counter = counter.clone();
        }
    }

    /// Time until the limit allows a call; zero if it does now.
    fn wait(&mut self, now: Instant) -> Duration {
        let max = self.counter.kind.calls();
        let per = self.counter.kind.period();
        match &mut self.calls {
            CountedCalls::Window(window) => window.wait(max, per, now),
            CountedCalls::Bucket(bucket) => bucket.wait(max, per, now),
        }
    }

    /// Counts a call that is made at `now` and sent at `send_at`.
    fn take(&mut self, now: Instant, send_at: Instant) {
        let max = self.counter.kind.calls();
        let per = self.counter.kind.period();
        match &mut self.calls {
            CountedCalls::Window(window) => window.take(per, send_at),
            CountedCalls::Bucket(bucket) => bucket.take(max, per, now),
        }
    }

    fn release(&mut self, send_at: Instant) {
        let max = self.counter.kind.calls();
        let per = self.counter.kind.period();
        match &mut self.calls {
            CountedCalls::Window(window) => window.release(send_at),
            CountedCalls::Bucket(bucket) => bucket.release(max, per),
        }
    }

    fn used(&mut self, now: Instant) -> u32 {
        let max = self.counter.kind.calls();
        let per = self.counter.kind.period();
        match &mut self.calls {
            CountedCalls::Window(window) => window.used(per, now),
            CountedCalls::Bucket(bucket) => bucket.used(max, per, now),
        }
    }
}

impl CallerUsage {
    /// Returns the state of a counter, if it was used.
    fn find_mut(&mut self, counter: &LimitCounter) -> Option<&mut CounterState> {
        let state = self.counters.iter_mut().find(|state| state.counter.is_same(counter))?;
        state.update(counter);
        Some(state)
    }

    fn find_or_add(&mut self, counter: &LimitCounter) -> &mut CounterState {
        let known = self.counters.iter().position(|state| state.counter.is_same(counter));
        let index = known.unwrap_or(self.counters.len());
        if known.is_none() {
            self.counters.push(CounterState::new(counter));
        }
        let state = &mut self.counters[index];
        state.update(counter);
        state
    }
}

impl Usage {
    /// Reserves one call in every counter of the request, or in none. Returns when the call may be sent.
    pub(super) fn reserve(&mut self, request: &LimitRequest<'_>) -> Result<Instant, LimitRefusal> {
        let now = request.now;
        let max_wait = request.max_wait.unwrap_or(Duration::MAX);
        let usage = self.caller_mut(request.caller, now);
        let mut send_at = now;
        let mut refusal = None::<(Duration, &LimitCounter)>;
        for counter in request.counters.iter() {
            let wait = usage.find_or_add(counter).wait(now);
            if wait.is_zero() {
                continue;
            }
            if wait <= counter.kind.max_wait().min(max_wait) {
                send_at = send_at.max(now + wait);
            } else if refusal.is_none_or(|(longest, _)| wait > longest) {
                refusal = Some((wait, counter));
            }
        }
        if let Some((wait, counter)) = refusal {
            return Err(LimitRefusal { counter: counter.clone(), wait });
        }
        for counter in request.counters.iter() {
            usage.find_or_add(counter).take(now, send_at);
        }
        Ok(send_at)
    }

    /// Releases what was reserved for a call that was to be sent at `send_at`.
    pub(super) fn release(&mut self, caller: &Caller, counters: &CounterList<'_>, send_at: Instant) {
        let Some(usage) = self.by_caller.get_mut(caller) else { return };
        for counter in counters.iter() {
            if let Some(state) = usage.find_mut(counter) {
                state.release(send_at);
            }
        }
    }

    /// Returns the usage of a caller. Prunes callers without recent usage before it adds one.
    fn caller_mut(&mut self, caller: &Caller, now: Instant) -> &mut CallerUsage {
        if self.by_caller.len() >= self.prune_at.max(PRUNE_THRESHOLD) && !self.by_caller.contains_key(caller)
        {
            self.by_caller.retain(|_, usage| usage.counters.iter_mut().any(|state| state.used(now) > 0));
            self.prune_at = self.by_caller.len() * 2;
        }
        self.by_caller.entry(caller.clone()).or_default()
    }

    /// Returns the usage of each counter.
    pub(super) fn usage(
        &mut self,
        caller: &Caller,
        counters: &CounterList<'_>,
        now: Instant,
    ) -> Vec<CounterUsage> {
        let mut known = self.by_caller.get_mut(caller);
        let mut usage = Vec::new();
        for counter in counters.iter() {
            let state = known.as_mut().and_then(|known| known.find_mut(counter));
            usage.push(state.map_or(CounterUsage::default(), |state| CounterUsage {
                used: state.used(now),
                wait: state.wait(now),
            }));
        }
        usage
    }

    /// Returns every remembered caller.
    pub(super) fn callers(&self) -> Vec<Caller> {
        self.by_caller.keys().cloned().collect()
    }

    /// Drops the usage of counters, and a caller that has no others.
    pub(super) fn clear(&mut self, caller: &Caller, counters: &CounterList<'_>) {
        let Some(usage) = self.by_caller.get_mut(caller) else { return };
        usage.counters.retain(|state| !counters.iter().any(|counter| state.counter.is_same(counter)));
        if usage.counters.is_empty() {
            self.by_caller.remove(caller);
        }
    }

    /// Returns the usage of every quota. Rates are left out: their buckets are full again soon.
    pub(super) fn snapshot(&mut self, now: Instant) -> Vec<SavedUsage> {
        let mut snapshot = Vec::new();
        for (caller, usage) in &mut self.by_caller {
            for state in &mut usage.counters {
                let per = state.counter.kind.period();
                if let CountedCalls::Window(window) = &mut state.calls {
                    let parts = window.parts(per, now);
                    let limit = state.counter.name.to_string();
                    snapshot.push(SavedUsage { caller: caller.as_str().to_owned(), limit, parts });
                }
            }
        }
        snapshot.retain(|saved| !saved.parts.is_empty());
        snapshot
    }

    /// Continues from saved usage. Adds a small margin if some usage may be missing.
    pub(super) fn restore(
        &mut self,
        restored: RestoredUsage,
        find_counters: impl Fn(&str, &str) -> Vec<LimitCounter>,
        now: Instant,
    ) {
        let is_complete = restored.is_complete;
        for SavedUsage { caller, limit, parts } in restored.limits {
            for counter in find_counters(&caller, &limit) {
                let mut parts = parts.clone();
                let latest = parts.iter().map(|part| part.last_ago).min();
                if let Some(latest) = latest.filter(|_| !is_complete) {
                    let margin = counter.kind.calls().get() / SAFETY_DIVISOR;
                    parts.push(UsagePart { first_ago: latest, last_ago: latest, calls: margin });
                }
                let state = self.caller_mut(&Caller::new(&caller), now).find_or_add(&counter);
                if let CountedCalls::Window(window) = &mut state.calls {
                    *window = SlidingWindow::from_parts(&parts, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
