//! Decides when a server may be started again. All instances of one server share a gate.
//!
//! Until a start has succeeded, only one instance tries at a time and the others wait for its result. Instances that
//! are already running are not affected.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::{Duration, Instant};

use super::restart::RestartBudget;
use crate::model::error::Error;
use crate::model::status::LastError;
use crate::spec::Lifecycle;
use crate::util::locks::IgnorePoison as _;

/// Restart budget, backoff and ejection of one server, shared by its instances.
#[derive(Debug)]
pub(crate) struct StartGate {
    state: Mutex<GateState>,
    /// Notified whenever the answer of [`StartGate::decision`] may have changed.
    changed: Notify,
}

#[derive(Debug)]
struct GateState {
    budget: RestartBudget,
    penalty: Option<Penalty>,
    /// True if the last start succeeded; if so, instances may start in parallel.
    last_start_succeeded: bool,
    /// True if an instance is starting while no start has succeeded yet.
    trial_in_progress: bool,
    /// True if the server exited when either era was tried and has not been up since.
    needs_session_era: bool,
    /// True if the next failure is that exit, which says nothing about the server.
    probe_exited: bool,
    start_failures: StartFailures,
    /// True once a start has succeeded; never reset.
    has_been_ready: bool,
    last_error: Option<LastError>,
    /// Time at which the shim of an instance was last killed.
    shim_killed_at: Option<Instant>,
}

/// The failures since the last successful start.
#[derive(Debug, Default)]
struct StartFailures {
    /// The number of failures since the gate was created; never reset.
    count: u64,
    last: Option<Error>,
}

/// The consequence of the last failure.
#[derive(Debug, Clone)]
pub(super) enum Penalty {
    /// No start before the instant. Callers that waited for the failed start get the error.
    BackOff { until: Instant, error: Error },
    /// Calls are refused until the instant.
    Pause { until: Instant, error: Error },
    /// No start until an operator restarts the server or its spec changes.
    Eject { error: Error },
}

/// The answer to a request to start an instance.
#[derive(Debug)]
pub(super) enum StartDecision {
    Allowed,
    WaitForTrial,
    Denied(Penalty),
}

/// Permission to start one instance. Dropping it ends the trial, if it was one.
#[derive(Debug)]
pub(super) struct StartPermit {
    gate: Arc<StartGate>,
    is_trial: bool,
}

/// Restarts in the current window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RestartCounts {
    pub(crate) spent: u32,
    pub(crate) remaining: u32,
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        if self.is_trial {
            self.gate.lock().trial_in_progress = false;
            self.gate.changed.notify_waiters();
        }
    }
}

impl StartGate {
    pub(crate) fn new(lifecycle: &Lifecycle) -> Self {
        let state = GateState {
            budget: RestartBudget::new(lifecycle.restarts.clone(), lifecycle.backoff.clone()),
            penalty: None,
            last_start_succeeded: false,
            trial_in_progress: false,
            needs_session_era: false,
            probe_exited: false,
            start_failures: StartFailures::default(),
            has_been_ready: false,
            last_error: None,
            shim_killed_at: None,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().ignore_poison()
    }

    /// Waits until the decision may have changed.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Returns whether an instance may start at `now`.
    pub(super) fn decision(&self, now: Instant) -> StartDecision {
        self.lock().decision(now)
    }

    /// Returns a permit if an instance may start at `now`.
    pub(super) fn try_acquire(self: &Arc<Self>, now: Instant) -> Option<StartPermit> {
        let mut state = self.lock();
        if !matches!(state.decision(now), StartDecision::Allowed) {
            return None;
        }
        let is_trial = !state.last_start_succeeded;
        state.trial_in_progress |= is_trial;
        drop(state);
        Some(StartPermit { gate: Arc::clone(self), is_trial })
    }

    /// Records that an instance is up. This does not lift an ejection.
    pub(super) fn record_success(&self) {
        let mut state = self.lock();
        state.last_start_succeeded = true;
        state.has_been_ready = true;
        state.needs_session_era = false;
        state.start_failures.last = None;
        state.penalty.take_if(|penalty| !matches!(penalty, Penalty::Eject { .. }));
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records the penalty for a failure, which applies to every instance that is not running.
    pub(super) fn record_failure(&self, penalty: Penalty) {
        let mut state = self.lock();
        state.last_start_succeeded = false;
        let is_retried_in_a_session = std::mem::take(&mut state.probe_exited);
        if !is_retried_in_a_session || matches!(penalty, Penalty::Eject { .. }) {
            state.start_failures.count += 1;
            state.start_failures.last = Some(penalty.error().clone());
        }
        if !matches!(state.penalty, Some(Penalty::Eject { .. })) {
            state.penalty = Some(penalty);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records a failure that concerns only one instance. The others may start.
    pub(super) fn record_own_failure(&self, error: Error) {
        let mut state = self.lock();
        state.start_failures.count += 1;
        state.start_failures.last = Some(error);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Replaces the settings and keeps the restarts that were spent.
    pub(crate) fn apply_lifecycle(&self, lifecycle: &Lifecycle) {
        self.lock().budget.set_limits(lifecycle.restarts.clone(), lifecycle.backoff.clone());
    }

    /// Refills the restart budget and lifts every penalty.
    pub(crate) fn reset(&self) {
        let mut state = self.lock();
        state.budget.reset();
        state.penalty = None;
        state.last_start_succeeded = false;
        state.needs_session_era = false;
        state.start_failures.last = None;
        state.shim_killed_at = None;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Records that the shim of an instance was killed. Returns whether that had happened before, within `window`.
    pub(super) fn record_killed_shim(&self, now: Instant, window: Duration) -> bool {
        let before = self.lock().shim_killed_at.replace(now);
        before.is_some_and(|before| now.duration_since(before) <= window)
    }

    /// Spends one restart and returns the wait before it; `None` if the budget is exhausted.
    pub(super) fn spend_restart(&self, now: Instant, uptime: Duration, jitter: f64) -> Option<Duration> {
        self.lock().budget.spend(now, uptime, jitter)
    }

    /// Returns the wait before the next start, without spending a restart.
    pub(super) fn next_backoff(&self, uptime: Duration, jitter: f64) -> Duration {
        self.lock().budget.next_wait(uptime, jitter)
    }

    pub(super) fn set_last_error(&self, error: LastError) {
        self.lock().last_error = Some(error);
    }

    pub(crate) fn last_error(&self) -> Option<LastError> {
        self.lock().last_error.clone()
    }

    /// Records that the server exited when either era was tried, so that only a session is tried from now on.
    pub(super) fn require_session_era(&self) {
        let mut state = self.lock();
        state.needs_session_era = true;
        state.probe_exited = true;
    }

    /// Lets the next start try only a session, because the server has exited with the probe for the other era in its input.
    pub(super) fn skip_era_probe(&self) {
        self.lock().needs_session_era = true;
    }

    pub(super) fn needs_session_era(&self) -> bool {
        self.lock().needs_session_era
    }

    pub(crate) fn is_ejected(&self) -> bool {
        matches!(self.lock().penalty, Some(Penalty::Eject { .. }))
    }

    /// Returns the last failure, if the server has not been up since.
    pub(crate) fn start_failure(&self) -> Option<Error> {
        self.lock().start_failures.last.clone()
    }

    /// Returns whether a start has succeeded since the gate was created.
    pub(crate) fn has_been_ready(&self) -> bool {
        self.lock().has_been_ready
    }

    /// Returns the number of failures since the gate was created.
    pub(crate) fn failure_count(&self) -> u64 {
        self.lock().start_failures.count
    }

    /// Waits for a failure after the first `count`, and returns it.
    pub(crate) async fn failure_after(&self, count: u64) -> Error {
        loop {
            let mut changed = std::pin::pin!(self.changed());
            changed.as_mut().enable();
            {
                let failures = &self.lock().start_failures;
                if let Some(error) = failures.last.clone().filter(|_| failures.count > count) {
                    return error;
                }
            }
            changed.await;
        }
    }

    /// Returns the end of the current backoff or pause.
    pub(crate) fn retry_at(&self, now: Instant) -> Option<Instant> {
        match self.decision(now) {
            StartDecision::Denied(Penalty::BackOff { until, .. } | Penalty::Pause { until, .. }) => {
                Some(until)
            }
            _ => None,
        }
    }

    /// Returns the restarts of the window that ends at `now`.
    pub(crate) fn restart_counts(&self, now: Instant) -> RestartCounts {
        let state = self.lock();
        RestartCounts { spent: state.budget.spent(now), remaining: state.budget.remaining(now) }
    }
}

impl GateState {
    fn decision(&self, now: Instant) -> StartDecision {
        match &self.penalty {
            Some(penalty) if penalty.is_active(now) => StartDecision::Denied(penalty.clone()),
            _ if self.trial_in_progress && !self.last_start_succeeded => StartDecision::WaitForTrial,
            _ => StartDecision::Allowed,
        }
    }
}

impl Penalty {
    fn error(&self) -> &Error {
        match self {
            Self::BackOff { error, .. } | Self::Pause { error, .. } | Self::Eject { error } => error,
        }
    }

    fn is_active(&self, now: Instant) -> bool {
        match self {
            Self::BackOff { until, .. } | Self::Pause { until, .. } => now < *until,
            Self::Eject { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::error::ErrorKind;

    const SECOND: Duration = Duration::from_secs(1);

    fn gate() -> Arc<StartGate> {
        Arc::new(StartGate::new(&Lifecycle::default()))
    }

    fn failure() -> Error {
        Error::new(ErrorKind::Lost, "it exited")
    }

    #[tokio::test]
    async fn one_instance_tries_until_a_start_succeeds() {
        let gate = gate();
        let now = Instant::now();
        let first = gate.try_acquire(now).unwrap();
        assert!(gate.try_acquire(now).is_none());
        assert!(matches!(gate.decision(now), StartDecision::WaitForTrial));
        gate.record_success();
        drop(first);
        let parallel: Vec<_> = (0..3).map(|_| gate.try_acquire(now).unwrap()).collect();
        gate.record_failure(Penalty::BackOff { until: now + SECOND, error: failure() });
        assert!(gate.try_acquire(now).is_none());
        let second = gate.try_acquire(now + SECOND).unwrap();
        drop(parallel);
        assert!(gate.try_acquire(now + SECOND).is_none(), "earlier permits do not end the trial");
        drop(second);
        assert!(gate.try_acquire(now + SECOND).is_some(), "dropping the permit ends the trial");
    }

    #[tokio::test]
    async fn exit_on_the_era_probe_is_not_a_start_failure() {
        let gate = gate();
        let penalty = || Penalty::BackOff { until: Instant::now(), error: failure() };
        gate.require_session_era();
        gate.record_failure(penalty());
        assert!(gate.start_failure().is_none() && gate.failure_count() == 0);
        gate.record_failure(penalty());
        assert!(gate.start_failure().is_some() && gate.failure_count() == 1);
        gate.record_success();
        assert!(gate.start_failure().is_none() && gate.failure_count() == 1);
    }

    #[tokio::test]
    async fn ejection_on_the_era_probe_is_a_start_failure() {
        let gate = gate();
        gate.require_session_era();
        gate.record_failure(Penalty::Eject { error: failure() });
        assert!(gate.start_failure().is_some() && gate.failure_count() == 1, "no start follows");
    }

    #[tokio::test]
    async fn only_reset_ends_an_ejection() {
        let gate = gate();
        let now = Instant::now();
        gate.record_failure(Penalty::Eject { error: failure() });
        gate.record_success();
        gate.record_failure(Penalty::Pause { until: now, error: failure() });
        assert!(gate.is_ejected() && gate.try_acquire(now + 3600 * SECOND).is_none());
        gate.reset();
        assert!(!gate.is_ejected() && gate.try_acquire(now).is_some());
    }
}
