//! A claim on a running server. Calls are made through a lease, and dropping it releases the server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::ActorCommand;
use super::breaker::CallHealth;
use super::metrics::ServerMetrics;
use crate::access::pins::PinnedTools;
use crate::call::Call;
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::{FailureClass, Treatment};
use crate::model::outcome::Outcome;
use crate::upstream::Connection;

/// A call that is cancelled after this time without an answer causes a ping of the server.
const PING_AFTER: Duration = Duration::from_secs(10);

/// A claim on a running server. Dropping it releases the server.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) connection: Arc<Connection>,
    pub(super) generation: u64,
    /// True if this is the one call that tests a tripped server.
    pub(super) is_probe: bool,
    pub(super) health: Option<CallHealth>,
    /// Start time of the call that is in flight.
    pub(super) in_flight_since: Option<Instant>,
    /// True if the server did not answer in time.
    pub(super) timed_out: bool,
    /// The tools that may be called, if the server is pinned strictly.
    pub(super) pinned_tools: Option<PinnedTools>,
    pub(super) mailbox: mpsc::UnboundedSender<ActorCommand>,
    pub(super) metrics: Arc<ServerMetrics>,
    /// The terms under which this was granted; they change with the process and its approved tools.
    pub(super) terms: u64,
    /// The lease that this one reuses for a call. It is released on its own.
    pub(super) reused: Option<Arc<Lease>>,
}

impl Lease {
    pub(crate) fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Returns a lease for one call that reuses this one, without asking the actor. `None` if the actor has to decide about
    /// the call: the server is not ready, its process was replaced, or it is pinned strictly, so that its tools must be
    /// checked again.
    pub(crate) fn for_call(self: &Arc<Self>) -> Option<Self> {
        let is_current = self.metrics.lease_terms.load(Ordering::Acquire) == self.terms;
        if !is_current || self.pinned_tools.is_some() || self.connection.is_closed() {
            return None;
        }
        Some(Self {
            connection: self.connection.clone(),
            generation: self.generation,
            is_probe: false,
            health: None,
            in_flight_since: None,
            timed_out: false,
            pinned_tools: None,
            mailbox: self.mailbox.clone(),
            metrics: self.metrics.clone(),
            terms: self.terms,
            reused: Some(self.clone()),
        })
    }

    /// Returns whether the actor has to know how a call ended: a success changes nothing unless calls failed before.
    fn changes_health(&self) -> bool {
        match self.health {
            Some(CallHealth::Healthy) => self.metrics.consecutive_failures.load(Ordering::Relaxed) > 0,
            Some(_) => true,
            None => false,
        }
    }

    /// Releases the server and reports it as healthy.
    pub(crate) fn release_healthy(mut self) {
        self.health = Some(CallHealth::Healthy);
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Sends a call that began at `began` and waits for the result. A tool error counts as healthy; a process exit is
    /// counted by the restart budget, not by the breaker.
    pub(crate) async fn send(
        &mut self,
        call: &mut Call,
        tool: &str,
        began: Instant,
    ) -> Result<Outcome, Error> {
        if let Some(pinned) = &self.pinned_tools
            && call.method == "tools/call"
        {
            pinned.check_call(&self.connection.server, tool)?;
        }
        self.in_flight_since = Some(began);
        let outcome = self.connection.call(call, tool, began).await;
        self.in_flight_since = None;
        let is_error = outcome.as_ref().map_or(true, Outcome::is_error);
        self.metrics.record_call(began.elapsed(), is_error);
        match outcome {
            Ok(outcome) => {
                self.health = Some(CallHealth::Healthy);
                Ok(outcome)
            }
            Err(error) => {
                self.health = self.call_health(&error);
                self.timed_out = error.kind() == ErrorKind::TimedOut && !error.is_not_sent();
                Err(error.mark_dispatched())
            }
        }
    }

    fn call_health(&self, error: &Error) -> Option<CallHealth> {
        if error.is_not_sent() {
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
                ErrorKind::TimedOut | ErrorKind::BadReply => Some(CallHealth::Unhealthy),
                // A remote server can drop one call and stay connected.
                ErrorKind::Lost if !self.connection.is_closed() => Some(CallHealth::Unhealthy),
                _ => None,
            },
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let cancelled_late = self.in_flight_since.is_some_and(|began| began.elapsed() >= PING_AFTER);
        let timed_out = self.timed_out || cancelled_late;
        let ends_lease = self.reused.is_none();
        if timed_out || self.changes_health() {
            // The breaker may open: the next call asks the actor, which reads this report first.
            self.metrics.lease_terms.store(0, Ordering::Release);
        } else if !ends_lease {
            return;
        }
        let release = ActorCommand::Release {
            generation: self.generation,
            health: self.health,
            is_probe: self.is_probe,
            timed_out,
            ends_lease,
        };
        // Fails if the actor has ended, which needs no release.
        let _ = self.mailbox.send(release);
    }
}
