//! `ServerStatus`: one server as people and scripts see it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::class::FailureClass;
use crate::error::ErrorKind;
use crate::pins::Mark;
use crate::sharing::SharingKey;
use crate::spec::{Pinning, ServerId, Sharing, Start};
use crate::wire::revision::Revision;

/// Where a server is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StateName {
    /// Not running, and nothing is wrong with that.
    Asleep,
    /// Being launched, greeted or listed.
    Starting,
    /// Answering.
    Ready,
    /// Alive, failing, left alone.
    Tripped,
    /// One call is finding out whether it is well again.
    Probing,
    /// Waiting before a restart.
    BackingOff,
    /// Being stopped.
    Stopping,
    /// Died too often.
    Ejected,
    /// Switched off in the config.
    Disabled,
}

impl StateName {
    /// The name in `status --json`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asleep => "asleep",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Tripped => "tripped",
            Self::Probing => "probing",
            Self::BackingOff => "backing_off",
            Self::Stopping => "stopping",
            Self::Ejected => "ejected",
            Self::Disabled => "disabled",
        }
    }
}

/// The last thing that went wrong with a server.
#[derive(Debug, Clone)]
pub struct LastError {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// What is wrong with the server, where that is known.
    pub class: Option<FailureClass>,
    /// What happened.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// When.
    pub at: SystemTime,
}

/// One server as people and scripts see it.
#[derive(Debug, Clone)]
pub struct ServerStatus {
    /// Its name.
    pub server: ServerId,
    /// `stdio` or `in-process`.
    pub transport: &'static str,
    /// Where it is in its life.
    pub state: StateName,
    /// Its process.
    pub pid: Option<u32>,
    /// How long it has been running.
    pub uptime: Option<Duration>,
    /// How many times it has been started.
    pub generation: u64,
    /// Claims on it now.
    pub leases: usize,
    /// Calls it is working on.
    pub in_flight: usize,
    /// Restarts spent within the window.
    pub restarts: u32,
    /// Restarts left in the window.
    pub restarts_left: u32,
    /// Failures in a row on the living connection.
    pub consecutive_failures: u32,
    /// When the next attempt will be made, if one is waiting.
    pub next_attempt_in: Option<Duration>,
    /// The last thing that went wrong.
    pub last_error: Option<LastError>,
    /// The last lines of its stderr.
    pub stderr_tail: Vec<String>,
    /// Lines on its stdout that were not messages.
    pub noise: u64,
    /// Answers of its that are kept and may be given again.
    pub cache_entries: usize,
    /// Calls that were answered without it.
    pub cache_hits: u64,
    /// Calls that could have been, and were not.
    pub cache_misses: u64,
    /// How many tools it offers, if it was ever asked.
    pub tools: Option<usize>,
    /// Bytes of memory that it uses, with everything it started.
    pub memory: Option<u64>,
    /// Calls that came to an end.
    pub calls: u64,
    /// Those of them that failed, tool errors included.
    pub errors: u64,
    /// Half of its calls took no longer.
    pub p50: Option<Duration>,
    /// All but one in a hundred took no longer.
    pub p99: Option<Duration>,
    /// When it starts.
    pub start: Start,
    /// The protocol revision spoken with it.
    pub protocol: Option<Revision>,
    /// What it says it is, as JSON.
    pub server_info: Option<Bytes>,
    /// What is done about tools that are not what was approved.
    pub pin: Pinning,
    /// Those, by the server's own names.
    pub unapproved: Vec<(Arc<str>, Mark)>,
    /// Who shares one instance of it.
    pub sharing: Sharing,
    /// Its instances, if it is not shared: everything above is then about all of them together.
    pub instances: Vec<InstanceStatus>,
}

/// One instance of a server that is not shared.
#[derive(Debug, Clone)]
pub struct InstanceStatus {
    /// Whose it is.
    pub key: SharingKey,
    /// How long ago somebody asked for it last.
    pub asked: Duration,
    /// How it is.
    pub status: ServerStatus,
}

impl ServerStatus {
    /// `closed`, `open` or `half_open`: the cool-off is over and the next call, or one under way, finds out.
    pub fn breaker(&self) -> &'static str {
        match self.state {
            StateName::Tripped if self.next_attempt_in == Some(Duration::ZERO) => "half_open",
            StateName::Tripped => "open",
            StateName::Probing => "half_open",
            _ => "closed",
        }
    }
}
