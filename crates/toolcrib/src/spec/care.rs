//! How a server is looked after: when it starts, how long it stays, how it is restarted, what a call may cost.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

/// When a server starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// When somebody asks for it.
    OnDemand,
    /// With the crib, and again by itself after a crash.
    AtBoot,
}

/// Who shares one instance of a server, with whatever it remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Everybody.
    #[default]
    Shared,
    /// Nobody: every client has its own.
    PerClient,
    /// Everybody who works in the same place.
    PerProject,
    /// Everything that asks under the same name.
    PerCaller,
}

impl Sharing {
    /// Every way to share, under its name in the config.
    pub const ALL: [(&'static str, Self); 4] = [
        ("shared", Self::Shared),
        ("per-client", Self::PerClient),
        ("per-project", Self::PerProject),
        ("per-caller", Self::PerCaller),
    ];

    /// The name in the config and in `status --json`.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, sharing)| *sharing == self).map_or("shared", |(name, _)| name)
    }
}

/// How long a server stays after its last lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// This long; zero stops it at once.
    For(Duration),
    /// Until it is stopped.
    Forever,
}

/// When a server starts, how long it stays, how it is restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifecycle {
    /// When it starts.
    pub start: Start,
    /// How long it stays after its last lease.
    pub keep_alive: KeepAlive,
    /// How long it may take until it has answered its first listing.
    pub start_timeout: Duration,
    /// How many crashes are forgiven.
    pub restarts: Restarts,
    /// How long to wait before a restart.
    pub backoff: BackoffSpec,
    /// When to stop asking a server that does not answer.
    pub breaker: BreakerSpec,
    /// How much memory it may use.
    pub memory: MemoryLimits,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            start: Start::OnDemand,
            keep_alive: KeepAlive::For(Duration::from_secs(5 * 60)),
            start_timeout: Duration::from_secs(30),
            restarts: Restarts { at_most: 5, within: Duration::from_secs(5 * 60) },
            backoff: BackoffSpec { first: Duration::from_millis(100), most: Duration::from_secs(5) },
            breaker: BreakerSpec {
                failures: NonZeroU32::MIN.saturating_add(4),
                cool_off: Duration::from_secs(30),
            },
            memory: MemoryLimits::default(),
        }
    }
}

/// How many crashes are forgiven within a sliding window; one more ejects the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restarts {
    /// Restarts allowed.
    pub at_most: u32,
    /// The length of the window.
    pub within: Duration,
}

/// How long to wait before a restart: doubled each time, with jitter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackoffSpec {
    /// Before the first restart in the window.
    pub first: Duration,
    /// At most.
    pub most: Duration,
}

/// When to stop asking a server that lives but does not answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerSpec {
    /// Failures in a row that trip it.
    pub failures: NonZeroU32,
    /// How long it stays tripped before one call may try.
    pub cool_off: Duration,
}

/// How many bytes of memory a server may use, with everything it started; without a limit as many as it gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Beyond this it is stopped as soon as nobody uses it.
    pub soft: Option<u64>,
    /// Beyond this it is stopped whoever uses it.
    pub hard: Option<u64>,
}

impl MemoryLimits {
    /// Whether there is any.
    pub fn is_some(&self) -> bool {
        self.soft.is_some() || self.hard.is_some()
    }
}

/// What one call may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How long a call may take without a sign of progress.
    pub call_timeout: Duration,
    /// How long a call may take however much progress it reports.
    pub call_timeout_max: Duration,
    /// The most that the host allows any call of any server.
    pub host_max: Option<Duration>,
    /// Calls the server works on at the same time; further ones wait their turn.
    pub in_flight: NonZeroUsize,
    /// The largest message accepted from the server, in bytes.
    pub message: usize,
    /// Instances there may be at the same time of a server that is not shared.
    pub instances: NonZeroUsize,
    /// Results of one tool that are kept at most, and resources; none if it is zero.
    pub cache_entries: usize,
    /// How long one is kept at most, whatever the server says.
    pub cache_ttl_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(60),
            call_timeout_max: Duration::from_secs(10 * 60),
            host_max: None,
            in_flight: NonZeroUsize::MIN.saturating_add(63),
            message: 32 << 20,
            instances: NonZeroUsize::MIN.saturating_add(15),
            cache_entries: 64,
            cache_ttl_max: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// What all servers of a crib together may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Servers that run here at the same time; those that have been idle longest make room for others.
    pub servers: usize,
    /// Bytes of memory. Beyond it idle servers are stopped, and then the heaviest.
    pub memory: Option<u64>,
    /// Bytes of answers that are kept.
    pub cache: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { servers: usize::MAX, memory: None, cache: 32 << 20 }
    }
}
