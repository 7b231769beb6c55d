//! A claim on a running server. Calls are made through a lease, and dropping it releases the server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::breaker::CallHealth;
use super::lease_gate::LeaseGate;
use super::metrics::ServerMetrics;
use super::recent_callers::RecentCallers;
use super::slots::SlotPool;
use super::{ActorCommand, Mailbox, Snapshot};
use crate::access::pins::PinnedItems;
use crate::call::Call;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::{FailureClass, Treatment};
use crate::model::outcome::Outcome;
use crate::upstream::Connection;

/// A call that is cancelled after this time without an answer causes a ping of the server.
const PING_AFTER: Duration = Duration::from_secs(10);

/// A running server as its leases see it.
#[derive(Debug)]
pub(super) struct LeasedServer {
    pub(super) connection: Arc<Connection>,
    pub(super) generation: u64,
    /// True if the instance belongs to one client.
    pub(super) is_for_one_client: bool,
    pub(super) gate: LeaseGate,
    pub(super) recent_callers: RecentCallers,
    pub(super) metrics: Arc<ServerMetrics>,
    pub(super) slots: Arc<SlotPool>,
    /// The state of the server, for leases that are kept for a while.
    pub(super) snapshot: watch::Receiver<Snapshot>,
}

/// The end of a lease, as it is reported to the actor.
#[derive(Debug)]
pub(super) struct ReleaseReport {
    pub(super) generation: u64,
    pub(super) health: Option<CallHealth>,
    /// The caller of a call that failed.
    pub(super) caller: Option<Caller>,
    pub(super) is_probe: bool,
    /// True if the server did not answer in time, so that it is pinged.
    pub(super) timed_out: bool,
    /// True if the gate stays closed until the actor has seen this.
    pub(super) has_failed: bool,
    /// Answered when the status of the server shows the failure.
    pub(super) failure_shown: Option<oneshot::Sender<()>>,
}

/// A claim on a running server. Dropping it releases the server.
#[derive(Debug)]
pub(crate) struct Lease {
    server: Arc<LeasedServer>,
    /// True if this is the one call that tests a tripped server.
    is_probe: bool,
    health: Option<CallHealth>,
    /// The caller of a call that failed.
    failing_caller: Option<Caller>,
    /// Start time of the call that is in flight.
    in_flight_since: Option<Instant>,
    /// True if the server did not answer in time.
    timed_out: bool,
    /// The time of the release, if it is known before the lease is dropped.
    released_at: Option<Instant>,
    /// End time of the last call, unless that was not sent.
    last_call_ended: Option<Instant>,
    /// Answered when the status of the server shows the failure of the call.
    failure_shown: Option<oneshot::Sender<()>>,
    /// The items that may be used, if the server is pinned strictly.
    pinned_items: Option<PinnedItems>,
    mailbox: Arc<Mailbox>,
}

impl Lease {
    /// Returns a lease that the gate of the server has already counted.
    pub(super) fn new(
        server: Arc<LeasedServer>,
        pinned_items: Option<PinnedItems>,
        mailbox: Arc<Mailbox>,
    ) -> Self {
        server.metrics.set_idle_rank(0);
        Self {
            server,
            is_probe: false,
            health: None,
            failing_caller: None,
            in_flight_since: None,
            timed_out: false,
            released_at: None,
            last_call_ended: None,
            failure_shown: None,
            pinned_items,
            mailbox,
        }
    }

    /// Marks this as the one call that tests a tripped server.
    pub(super) fn probe(mut self) -> Self {
        self.is_probe = true;
        self
    }

    pub(crate) fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Returns whether the server is an instance that belongs to one client.
    pub(crate) fn is_for_one_client(&self) -> bool {
        self.server.is_for_one_client
    }

    /// Takes over the items that may be used now. Those of a kept lease may be out of date.
    pub(crate) fn update_pinned_items(&mut self) {
        self.pinned_items.clone_from(&self.server.snapshot.borrow().pinned_items);
    }

    /// Releases the server right after a call. The end of the call is the time of the release, which saves a look at the clock.
    pub(crate) fn release_after_call(mut self) {
        self.released_at = self.last_call_ended;
    }

    /// Releases the server right after a call that failed, and waits until its status shows the failure.
    pub(crate) async fn release_after_failure(mut self) {
        let server = self.server.clone();
        let (sender, failure_shown) = oneshot::channel();
        self.failure_shown = Some(sender);
        self.release_after_call();
        let mut snapshot = server.snapshot.clone();
        let is_left = |snapshot: &Snapshot| !std::ptr::eq(snapshot.leased.as_ptr(), Arc::as_ptr(&server));
        // The release is not reported, or the actor has ended, if one of them fails.
        let left = snapshot.wait_for(is_left);
        if server.connection.is_closed() {
            let _ = left.await;
            return;
        }
        tokio::select! {
            _ = failure_shown => {}
            _ = left => {}
        }
    }

    /// Releases the server and reports it as healthy.
    pub(crate) fn release_healthy(mut self) {
        self.health = Some(CallHealth::Healthy);
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.server.connection
    }

    /// Sends a call that began at `began` and waits for the result. A tool error counts as healthy; a process exit is
    /// counted by the restart budget, not by the breaker.
    pub(crate) async fn send(
        &mut self,
        call: &mut Call,
        tool: &str,
        began: Instant,
    ) -> Result<Outcome, Error> {
        self.last_call_ended = None;
        if let Some(pinned) = &self.pinned_items {
            pinned.check_call(&self.server.connection.server, call.method(), tool).await?;
        }
        self.in_flight_since = Some(began);
        call.trace.record(|facts| {
            facts.begin_attempt(if call.sent_late { Instant::now() } else { began });
            facts.server_transport = self.server.connection.transport();
        });
        let outcome = self.server.connection.call(call, tool, began).await;
        self.in_flight_since = None;
        let ended = Instant::now();
        self.last_call_ended = Some(ended);
        let duration = ended - began;
        let is_error = outcome.as_ref().map_or(true, Outcome::is_error);
        call.trace.record(|facts| {
            match call.sent_late {
                true => facts.end_attempt(ended),
                false => facts.end_attempt_after(duration),
            }
            facts.is_error = Some(is_error);
        });
        self.server.metrics.record_call(duration, is_error);
        match outcome {
            Ok(outcome) => {
                self.health = Some(CallHealth::Healthy);
                self.server.recent_callers.record(&call.caller, ended);
                Ok(outcome)
            }
            Err(error) => {
                self.health = self.call_health(&error, call.sent_late);
                if self.health.is_some() {
                    self.server.recent_callers.record(&call.caller, ended);
                    self.failing_caller = Some(call.caller.clone());
                }
                self.timed_out = error.kind() == ErrorKind::TimedOut && !error.is_not_sent();
                Err(error.mark_dispatched())
            }
        }
    }

    /// Returns what an error says about the server. A timeout says nothing if the server had the call for less than the
    /// whole time limit.
    fn call_health(&self, error: &Error, sent_late: bool) -> Option<CallHealth> {
        let is_rate_limit = error.class() == Some(FailureClass::RateLimited);
        if error.is_not_sent() && !is_rate_limit {
            return None;
        }
        match (error.class(), error.class().map(|class| class.facts().treatment)) {
            (Some(class @ FailureClass::RateLimited), _) => {
                error.retry_in().map(|wait| CallHealth::PauseRequested { class, wait })
            }
            (Some(class @ FailureClass::NeedsAuth), Some(Treatment::Pause(wait))) => {
                Some(CallHealth::PauseRequested { class, wait })
            }
            _ => match error.kind() {
                ErrorKind::TimedOut if sent_late => None,
                ErrorKind::TimedOut | ErrorKind::BadReply => Some(CallHealth::Unhealthy),
                // A remote server can drop one call and stay connected.
                ErrorKind::Lost if !self.server.connection.is_closed() => Some(CallHealth::Unhealthy),
                _ => None,
            },
        }
    }
}

impl Lease {
    /// Returns whether the call was healthy after failed ones, which resets the breaker.
    fn resets_breaker(&self) -> bool {
        let has_failures = || self.server.metrics.consecutive_failures.load(Ordering::Relaxed) > 0;
        self.health == Some(CallHealth::Healthy) && has_failures()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let cancelled_late = self.in_flight_since.is_some_and(|began| began.elapsed() >= PING_AFTER);
        let timed_out = self.timed_out || cancelled_late;
        let is_unhealthy = !matches!(self.health, None | Some(CallHealth::Healthy));
        let has_failed = timed_out || is_unhealthy;
        let server = &self.server;
        let released_at = self.released_at.unwrap_or_else(Instant::now);
        let release = server.gate.leave(released_at, has_failed);
        if release.is_last && !release.needs_notice {
            server.slots.mark_idle(&server.metrics);
        }
        if release.needs_notice || self.is_probe || self.resets_breaker() {
            let report = ReleaseReport {
                generation: server.generation,
                health: self.health,
                caller: self.failing_caller.take(),
                is_probe: self.is_probe,
                timed_out,
                has_failed,
                failure_shown: self.failure_shown.take(),
            };
            // Fails if the actor has ended, which needs no report.
            let _ = self.mailbox.send(ActorCommand::Release(report));
        }
    }
}
