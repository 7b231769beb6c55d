//! A claim on a running server. Calls are made through a lease, and dropping it releases the server.

use std::sync::Arc;
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
    /// True if the call waited for the server, so that the server has much less than the time limit to answer it.
    pub(super) is_delayed: bool,
    /// The tools that may be called, if the server is pinned strictly.
    pub(super) pinned_tools: Option<PinnedTools>,
    pub(super) mailbox: mpsc::UnboundedSender<ActorCommand>,
    pub(super) metrics: Arc<ServerMetrics>,
}

impl Lease {
    pub(crate) fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Records that the call waited for the server. A timeout then says nothing about the server's health.
    pub(crate) fn mark_delayed(&mut self) {
        self.is_delayed = true;
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
                ErrorKind::TimedOut if self.is_delayed => None,
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
        let release = ActorCommand::Release {
            generation: self.generation,
            health: self.health,
            is_probe: self.is_probe,
            timed_out: self.timed_out || cancelled_late,
        };
        // Fails if the actor has ended, which needs no release.
        let _ = self.mailbox.send(release);
    }
}
