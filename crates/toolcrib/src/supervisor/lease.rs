//! `Lease`: a claim on a living server; calls are made through it, and dropping it is the release.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Command;
use super::breaker::Health;
use super::gauges::Gauges;
use crate::call::{Call, Outcome};
use crate::class::{FailureClass, Treatment};
use crate::connection::Connection;
use crate::error::{Error, ErrorKind};
use crate::pins::Held;

/// A call that was given up after this long without an answer is reason enough to ask whether the server is there.
const SILENCE: Duration = Duration::from_secs(10);

/// A claim on a living server; dropping it is the release.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(super) connection: Arc<Connection>,
    pub(super) generation: u64,
    /// Whether this is the one call that finds out if a tripped server is well again.
    pub(super) probe: bool,
    pub(super) health: Option<Health>,
    /// Since when the server has owed an answer.
    pub(super) asked: Option<Instant>,
    /// The server did not answer in time.
    pub(super) silent: bool,
    /// What it may be used for, if the server is held to what was approved.
    pub(super) held: Option<Held>,
    pub(super) mailbox: mpsc::UnboundedSender<Command>,
    pub(super) gauges: Arc<Gauges>,
}

impl Lease {
    /// Whether this one finds out if a tripped server is well again.
    pub(crate) fn is_probe(&self) -> bool {
        self.probe
    }

    /// Gives it back with the word that the server is well.
    pub(crate) fn take_for_well(mut self) {
        self.health = Some(Health::Well);
    }

    /// The wire to the server.
    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// Asks the server, within the limits of a call that began then. A tool that says "error" is healthy; a death is
    /// the budget's affair, not the breaker's.
    pub(crate) async fn send(
        &mut self,
        call: &mut Call,
        tool: &str,
        began: Instant,
    ) -> Result<Outcome, Error> {
        if let Some(held) = &self.held
            && call.method == "tools/call"
        {
            held.permits(&self.connection.server, tool)?;
        }
        self.asked = Some(began);
        let outcome = self.connection.call(call, tool, began).await;
        self.asked = None;
        self.gauges.count(began.elapsed(), outcome.as_ref().map_or(true, Outcome::is_error));
        match outcome {
            Ok(outcome) => {
                self.health = Some(Health::Well);
                Ok(outcome)
            }
            Err(error) => {
                self.health = self.judge(&error);
                self.silent = error.kind() == ErrorKind::TimedOut && !error.is_unsent();
                Err(error.left())
            }
        }
    }

    fn judge(&self, error: &Error) -> Option<Health> {
        match error.kind() {
            _ if error.is_unsent() => None,
            _ => match (error.class(), error.class().map(|class| class.facts().treatment)) {
                (Some(class @ FailureClass::RateLimited), _) => {
                    error.wait().map(|wait| Health::Away(class, wait))
                }
                (Some(class @ FailureClass::NeedsAuth), Some(Treatment::Pause(wait))) => {
                    Some(Health::Away(class, wait))
                }
                _ => self.judge_kind(error.kind()),
            },
        }
    }

    fn judge_kind(&self, kind: ErrorKind) -> Option<Health> {
        match kind {
            ErrorKind::TimedOut | ErrorKind::BadReply => Some(Health::Unwell),
            // A remote server can break off in the middle of a call and live on.
            ErrorKind::Lost if !self.connection.is_closed() => Some(Health::Unwell),
            _ => None,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Self { generation, health, probe, .. } = *self;
        let silent = self.silent || self.asked.is_some_and(|asked| asked.elapsed() >= SILENCE);
        // An actor that is gone counts nothing any more.
        let _ = self.mailbox.send(Command::Release { generation, health, probe, silent });
    }
}
