//! The status of a server, as `toolcrib status` reports it.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::model::error::ErrorKind;
use crate::model::failure_class::FailureClass;
use crate::model::hint::Hint;
use crate::model::instance_key::InstanceKey;
use crate::model::listing::{ListFailure, Listing};
use crate::model::pin_status::ToolPinStatus;
use crate::protocol::era::handshake::error_message;
use crate::protocol::json::object::Object;
use crate::protocol::list_kind::ListKind;
use crate::protocol::versions::{Era, Revision};
use crate::spec::{Pinning, ServerCard, ServerId, Sharing, StartPolicy};

/// The state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerState {
    /// Not running; the next call starts it.
    Asleep,
    /// Being started, initialized or listed.
    Starting,
    /// Running.
    Ready,
    /// Running, but the circuit breaker is open.
    Tripped,
    /// Running; a single call tests whether the circuit breaker can close.
    Probing,
    /// Waiting before a restart.
    BackingOff,
    /// Being stopped.
    Stopping,
    /// Failed too often, or cannot work as declared.
    Ejected,
    /// Disabled in the config.
    Disabled,
}

impl ServerState {
    /// Returns the name in `status --json`.
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

/// States in the order in which they represent a server with several instances: the first that any instance has is shown.
pub(crate) const STATE_PRIORITY: [ServerState; 7] = [
    ServerState::Ready,
    ServerState::Probing,
    ServerState::Tripped,
    ServerState::Starting,
    ServerState::BackingOff,
    ServerState::Ejected,
    ServerState::Stopping,
];

/// The last failure of a server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LastError {
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The failure class, if it is known.
    pub class: Option<FailureClass>,
    /// The error message.
    pub message: String,
    /// The next step.
    pub hint: Hint,
    /// When it happened.
    pub at: SystemTime,
}

impl LastError {
    /// Creates an error without a class.
    pub fn new(kind: ErrorKind, message: impl Into<String>, hint: impl Into<Hint>, at: SystemTime) -> Self {
        Self { kind, class: None, message: message.into(), hint: hint.into(), at }
    }
}

/// A list that could not be read when that was last tried. The last known content of the list stays.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListingError {
    /// The list.
    pub list: ListKind,
    /// The code of the server's error, or of the failure if the server did not answer with an error.
    pub code: Option<i64>,
    /// The message of the error.
    pub message: String,
    /// The `data` of the error, as JSON.
    pub data: Option<Bytes>,
}

impl ListingError {
    /// Creates the error of a list from the error object that answered the request for it.
    pub fn new(list: ListKind, error: &Bytes) -> Self {
        let members = Object::parse(error).unwrap_or_default();
        let code = members.get("code").and_then(|raw| std::str::from_utf8(raw).ok()?.parse().ok());
        let data = members.get("data").map(|data| Bytes::copy_from_slice(data));
        Self { list, code, message: error_message(error), data }
    }

    /// Creates the error of a list that could not be read.
    pub(crate) fn from_failure(failure: &ListFailure) -> Self {
        Self::new(failure.kind, &failure.error)
    }

    /// Returns the errors of the lists that could never be read.
    pub(crate) fn of_unknown_lists(listing: &Listing) -> Vec<Self> {
        listing.unknown.iter().flatten().map(|failure| Self::from_failure(failure)).collect()
    }
}

/// The status of one server.
#[derive(Debug, Clone)]
pub struct ServerStatus {
    /// The name.
    pub server: ServerId,
    /// `stdio`, `http`, `sse` or `in-process`. A remote server is `sse` once it has turned out to speak HTTP+SSE.
    pub transport: &'static str,
    /// The state.
    pub state: ServerState,
    /// The process id.
    pub pid: Option<u32>,
    /// The time since it was started.
    pub uptime: Option<Duration>,
    /// The number of times it has been started.
    pub generation: u64,
    /// The number of leases.
    pub leases: usize,
    /// The number of calls in flight.
    pub in_flight: usize,
    /// Restarts used within the window.
    pub restarts: u32,
    /// Restarts left in the window.
    pub restarts_left: u32,
    /// Failures in a row on the current connection.
    pub consecutive_failures: u32,
    /// The time until the next attempt, if one is scheduled.
    pub next_attempt_in: Option<Duration>,
    /// The last failure.
    pub last_error: Option<LastError>,
    /// The last lines of its stderr.
    pub stderr_tail: Vec<String>,
    /// Lines on its stdout that are not JSON-RPC messages.
    pub garbage_lines: u64,
    /// Cached answers.
    pub cache_entries: usize,
    /// Calls that were answered from the cache.
    pub cache_hits: u64,
    /// Cacheable calls that were sent to the server.
    pub cache_misses: u64,
    /// The number of tools, if its listing is known.
    pub tools: Option<usize>,
    /// Memory of its process tree, in bytes.
    pub memory: Option<u64>,
    /// CPU time that its process tree has used since it was started.
    pub cpu_time: Option<Duration>,
    /// Calls that wait for a turn, because the server works on as many as it may.
    pub queued: usize,
    /// Calls that ended.
    pub calls: u64,
    /// Calls that failed, including tool errors.
    pub errors: u64,
    /// The median duration of calls.
    pub p50: Option<Duration>,
    /// The 99th percentile of call durations.
    pub p99: Option<Duration>,
    /// When the server is started.
    pub start: StartPolicy,
    /// The negotiated protocol revision, the newest one if connections of both eras are open.
    pub protocol: Option<Revision>,
    /// The protocol era; both if processes or connections of both are up.
    pub eras: Vec<Era>,
    /// The `serverInfo` of the handshake, as JSON.
    pub server_info: Option<Bytes>,
    /// Title, description, tags and tools that were declared for it; title and description that it published itself where
    /// none were declared.
    pub card: Option<ServerCard>,
    /// The treatment of unapproved tools.
    pub pin: Pinning,
    /// Unapproved tools, by the server's own names.
    pub unapproved: Vec<ToolPinStatus>,
    /// Mistakes in its definitions that clients would reject a whole list for, which are repaired or left out where all
    /// servers are listed together, and the reasons why items were left out.
    pub problems: Vec<String>,
    /// Lists that could not be read. They are requested again, with growing delays.
    pub listing_errors: Vec<ListingError>,
    /// Which clients share an instance.
    pub sharing: Sharing,
    /// The first request that the server was seen to send to a client during a call, if new clients get instances of their own
    /// for that reason.
    pub asks: Option<&'static str>,
    /// The instances of a server that is not shared, or has several; the other fields then summarize all of them.
    pub instances: Vec<InstanceStatus>,
}

/// One instance of a server that is not shared.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InstanceStatus {
    /// The key of the instance.
    pub key: InstanceKey,
    /// The time since it was last used.
    pub last_used: Duration,
    /// The status of the instance.
    pub status: ServerStatus,
}

impl InstanceStatus {
    /// Creates the status of an instance that was last used this long ago.
    pub fn new(key: InstanceKey, last_used: Duration, status: ServerStatus) -> Self {
        Self { key, last_used, status }
    }
}

impl ServerStatus {
    /// Returns the title of its card, or of its `serverInfo` if it has none.
    pub fn title(&self) -> Option<String> {
        let title = self.card.as_ref().and_then(|card| card.title.clone());
        title.or_else(|| self.server_info_text("title"))
    }

    /// Returns the description of its card, or of its `serverInfo` if it has none.
    pub fn description(&self) -> Option<String> {
        let description = self.card.as_ref().and_then(|card| card.description.clone());
        description.or_else(|| self.server_info_text("description"))
    }

    fn server_info_text(&self, member: &str) -> Option<String> {
        let info = Object::parse(self.server_info.as_ref()?).ok()?;
        info.get_string(member).map(Cow::into_owned)
    }

    /// Returns the state of the circuit breaker: `closed`, `open` or `half_open`. Half open means that the cool-off is over
    /// and a single call tests the server.
    pub fn breaker(&self) -> &'static str {
        match self.state {
            ServerState::Tripped if self.next_attempt_in == Some(Duration::ZERO) => "half_open",
            ServerState::Tripped => "open",
            ServerState::Probing => "half_open",
            _ => "closed",
        }
    }
}
