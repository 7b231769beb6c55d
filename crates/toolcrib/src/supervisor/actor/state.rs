//! The states of a server's life with what each owns, and what can happen to a living one.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::class::FailureClass;
use crate::connection::Connection;
use crate::error::Error;
use crate::supervisor::Lease;
use crate::supervisor::breaker::{Breaker, Health};

/// Where the server is in its life, with what only that state may use.
pub(super) enum State {
    Asleep,
    Starting,
    Ready(Alive),
    /// `asked`: it wants to be left alone itself, and why.
    Tripped {
        alive: Alive,
        until: Instant,
        asked: Option<FailureClass>,
    },
    Probing(Alive),
    BackingOff {
        until: Instant,
    },
    Resting {
        until: Instant,
        error: Error,
    },
    Draining {
        alive: Alive,
        until: Instant,
    },
    Stopping {
        connection: Arc<Connection>,
        then: Then,
    },
    Ejected(Error),
    Gone,
}

impl State {
    /// Whether something of the server runs, or is about to.
    pub(super) fn runs(&self) -> bool {
        !matches!(
            self,
            Self::Asleep | Self::BackingOff { .. } | Self::Resting { .. } | Self::Ejected(_) | Self::Gone
        )
    }
}

/// What follows once nothing of the server is left.
pub(super) enum Then {
    Sleep,
    Start,
    BackOff(Instant),
    Rest(Instant, Error),
    Eject(Error),
    Leave,
}

impl From<Then> for State {
    fn from(then: Then) -> Self {
        match then {
            Then::Sleep => Self::Asleep,
            Then::Start => Self::Starting,
            Then::BackOff(until) => Self::BackingOff { until },
            Then::Rest(until, error) => Self::Resting { until, error },
            Then::Eject(error) => Self::Ejected(error),
            Then::Leave => Self::Gone,
        }
    }
}

/// A living server.
pub(super) struct Alive {
    pub(super) connection: Arc<Connection>,
    pub(super) since: Instant,
    pub(super) leases: usize,
    /// Since when nobody uses it; `None` while nobody ever has.
    pub(super) idle_since: Option<Instant>,
    pub(super) idle: Pin<Box<Sleep>>,
    pub(super) breaker: Breaker,
    /// It is being asked whether it is still there.
    pub(super) checked: bool,
    /// Nobody gets it before it has said that it is.
    pub(super) doubted: bool,
    /// How long the machine had slept when it was last looked at.
    pub(super) slept: Duration,
    /// It uses more memory than it should, and goes as soon as nobody uses it.
    pub(super) recycle: bool,
}

/// What happens to a living server.
pub(super) enum Happening {
    Died,
    Hung,
    Answered,
    Idle,
    /// Nobody uses it, and it uses more memory than it should.
    Recycled,
    /// It uses more memory than it may.
    Outgrown(Error),
    Asked(oneshot::Sender<Result<Lease, Error>>),
    Released {
        health: Option<Health>,
        probe: bool,
    },
    Ordered(Then, oneshot::Sender<()>),
    Retired(Duration, oneshot::Sender<()>),
    Abandoned,
}
