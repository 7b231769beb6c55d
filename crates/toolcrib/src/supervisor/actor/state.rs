//! The states of an actor with the data that each owns, and the events of a running server.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use crate::model::caller::Caller;
use crate::model::error::Error;
use crate::model::failure_class::FailureClass;
use crate::supervisor::LeaseRequest;
use crate::supervisor::breaker::{Breaker, CallHealth};
use crate::supervisor::lease::LeasedServer;
use crate::supervisor::lease_gate::LeaseGate;
use crate::upstream::Connection;

/// The state of a server.
pub(super) enum ActorState {
    Asleep,
    Starting,
    Ready(RunningServer),
    /// The circuit breaker is open. `pause` is the class of the failure if the server itself asked for a pause.
    Tripped {
        server: RunningServer,
        until: Instant,
        pause: Option<FailureClass>,
    },
    /// One call tests whether a tripped server has recovered.
    Probing(RunningServer),
    /// Lease requests wait until the next start.
    BackingOff {
        until: Instant,
    },
    /// Lease requests are refused until the next start.
    Paused {
        until: Instant,
        error: Error,
    },
    Draining {
        server: RunningServer,
        until: Instant,
    },
    Stopping {
        connection: Arc<Connection>,
        then: AfterStop,
    },
    Ejected {
        error: Error,
    },
    Ended,
}

impl ActorState {
    /// Returns whether the server runs or is about to.
    pub(super) fn needs_slot(&self) -> bool {
        match self {
            Self::Starting
            | Self::Ready(_)
            | Self::Tripped { .. }
            | Self::Probing(_)
            | Self::Draining { .. }
            | Self::Stopping { .. } => true,
            Self::Asleep
            | Self::BackingOff { .. }
            | Self::Paused { .. }
            | Self::Ejected { .. }
            | Self::Ended => false,
        }
    }
}

/// The next step once the server's processes have ended.
pub(super) enum AfterStop {
    Sleep,
    Start,
    BackOff { until: Instant },
    Pause { until: Instant, error: Error },
    Eject { error: Error },
    End,
}

impl From<AfterStop> for ActorState {
    fn from(then: AfterStop) -> Self {
        match then {
            AfterStop::Sleep => Self::Asleep,
            AfterStop::Start => Self::Starting,
            AfterStop::BackOff { until } => Self::BackingOff { until },
            AfterStop::Pause { until, error } => Self::Paused { until, error },
            AfterStop::Eject { error } => Self::Ejected { error },
            AfterStop::End => Self::Ended,
        }
    }
}

/// A running server.
pub(super) struct RunningServer {
    pub(super) connection: Arc<Connection>,
    pub(super) up_since: Instant,
    /// The server as its leases see it.
    pub(super) leased: Arc<LeasedServer>,
    pub(super) idle_timer: Pin<Box<Sleep>>,
    pub(super) breaker: Breaker,
    /// True if a ping is in flight.
    pub(super) ping_pending: bool,
    /// True if leases wait for the answer to a ping.
    pub(super) ping_required: bool,
    /// True if the server is above its soft memory limit and stops as soon as it is idle.
    pub(super) recycle_when_idle: bool,
}

impl RunningServer {
    pub(super) fn gate(&self) -> &LeaseGate {
        &self.leased.gate
    }

    /// Lets callers take leases by themselves, unless a ping decides about the server first.
    pub(super) fn open_gate(&self) {
        self.gate().set_open(!self.ping_pending && !self.ping_required);
    }
}

/// An event of a running server.
pub(super) enum ActorEvent {
    /// The connection was closed.
    Closed,
    /// The server did not answer a ping.
    Hung,
    PingAnswered,
    /// The server has been idle long enough, or its slot or memory is needed.
    Idle,
    /// The server is idle and above its soft memory limit.
    Recycle,
    /// The server is above a memory limit.
    OverMemory {
        error: Error,
    },
    LeaseRequested(LeaseRequest),
    Released {
        health: Option<CallHealth>,
        caller: Option<Caller>,
        is_probe: bool,
    },
    StopRequested {
        then: AfterStop,
        done: oneshot::Sender<()>,
    },
    RetireRequested {
        drain: Duration,
        done: oneshot::Sender<()>,
    },
    /// All handles on the actor were dropped.
    HandlesDropped,
}
