//! Lifecycle and limits of a server.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

/// Time at which a server starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartPolicy {
    /// On the first call.
    OnDemand,
    /// With the crib, and again after a crash.
    AtBoot,
}

impl StartPolicy {
    /// Returns the name in the config and in `status --json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::AtBoot => "at-boot",
        }
    }
}

/// Clients that share an instance of a server and its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Sharing {
    /// All clients, with an instance for each protocol era that they use and the server speaks.
    #[default]
    Auto,
    /// All clients. A remote server has a connection for each protocol era.
    Shared,
    /// All clients: exactly one process or connection, in one protocol era.
    One,
    /// None: every client has its own instance.
    PerClient,
    /// Clients with the same project.
    PerProject,
    /// Clients with the same caller.
    PerCaller,
}

impl Sharing {
    /// All values by their name in the config.
    pub const ALL: [(&'static str, Self); 6] = [
        ("auto", Self::Auto),
        ("shared", Self::Shared),
        ("one", Self::One),
        ("per-client", Self::PerClient),
        ("per-project", Self::PerProject),
        ("per-caller", Self::PerCaller),
    ];

    /// Returns the name in the config and in `status --json`.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, sharing)| *sharing == self).map_or("auto", |(name, _)| name)
    }

    /// Returns whether all clients share the server, independent of client, project and caller.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Auto | Self::Shared | Self::One)
    }
}

/// Time that a server keeps running after its last lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeepAlive {
    /// This long; zero stops it immediately.
    For(Duration),
    /// Until it is stopped.
    Forever,
}

/// Start, idle stop, restarts and memory of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifecycle {
    /// Time of the start.
    pub start: StartPolicy,
    /// Time that it keeps running after its last lease.
    pub keep_alive: KeepAlive,
    /// Time limit for a start, including the first listing.
    pub start_timeout: Duration,
    /// Time after which a list without a TTL is fetched again when it is asked for.
    pub list_ttl: Duration,
    /// Restart budget.
    pub restarts: Restarts,
    /// Delay before a restart.
    pub backoff: BackoffSpec,
    /// Circuit breaker.
    pub breaker: BreakerSpec,
    /// Memory limits.
    pub memory: MemoryLimits,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self {
            start: StartPolicy::OnDemand,
            keep_alive: KeepAlive::For(Duration::from_secs(5 * 60)),
            start_timeout: Duration::from_secs(30),
            list_ttl: Duration::from_secs(5 * 60),
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

/// Number of restarts allowed within a sliding window; one more crash ejects the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restarts {
    /// Restarts allowed.
    pub at_most: u32,
    /// Length of the window.
    pub within: Duration,
}

/// Delay before a restart: doubled each time, with jitter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackoffSpec {
    /// Delay before the first restart in the window.
    pub first: Duration,
    /// Longest delay.
    pub most: Duration,
}

/// Circuit breaker for a server that runs but fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerSpec {
    /// Consecutive failures that open the breaker.
    pub failures: NonZeroU32,
    /// Time that the breaker stays open before one call may try again.
    pub cool_off: Duration,
}

/// Memory limits of a server's process tree, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Above this the server is stopped as soon as it is idle.
    pub soft: Option<u64>,
    /// Above this the server is stopped immediately.
    pub hard: Option<u64>,
}

impl MemoryLimits {
    /// Returns whether there is any limit.
    pub fn is_some(&self) -> bool {
        self.soft.is_some() || self.hard.is_some()
    }
}

/// Limits of one server and of each call to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Time limit for a call that reports no progress.
    pub call_timeout: Duration,
    /// Time limit for a call, however much progress it reports.
    pub call_timeout_max: Duration,
    /// Time limit of the gateway for calls of all servers.
    pub gateway_call_timeout_max: Option<Duration>,
    /// Concurrent calls; further calls wait.
    pub in_flight: NonZeroUsize,
    /// Largest message accepted from the server, in bytes.
    pub message: usize,
    /// Tools that are listed, and other items of each kind; further ones are left out.
    pub tools: usize,
    /// Largest definition of a tool or other item, in bytes; larger ones are left out.
    pub definition: usize,
    /// Concurrent instances of a server that is not shared.
    pub instances: NonZeroUsize,
    /// Cached results per tool, and cached resources; zero disables the cache.
    pub cache_entries: usize,
    /// Longest time that a result is cached, even if the server's TTL is longer.
    pub cache_ttl_max: Duration,
    /// Tokens of a tool result that clients of a gateway are sent; the text of a larger one is stored for them to read in parts.
    pub result_tokens: Option<usize>,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(60),
            call_timeout_max: Duration::from_secs(10 * 60),
            gateway_call_timeout_max: None,
            in_flight: NonZeroUsize::MIN.saturating_add(63),
            message: 32 << 20,
            tools: 10_000,
            definition: 256 << 10,
            instances: NonZeroUsize::MIN.saturating_add(15),
            cache_entries: 64,
            cache_ttl_max: Duration::from_secs(24 * 60 * 60),
            result_tokens: None,
        }
    }
}

/// The resources that all servers of a crib share: how many run, and how much memory they and their cached results use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Servers running at the same time; the longest idle are stopped for others.
    pub servers: usize,
    /// Bytes of memory. Above this, idle servers are stopped, then the largest.
    pub memory: Option<u64>,
    /// Bytes of cached results.
    pub cache: usize,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { servers: usize::MAX, memory: None, cache: 32 << 20 }
    }
}
