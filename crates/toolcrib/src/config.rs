//! Reads config files and resolves them to the roster, the settings of the gateway, and every problem found.
//!
//! Files are layers: the machine's, the user's, then the project's; a file named on the command line is the only layer.
//! The nearer layer wins key by key, also inside tables. A list is replaced, or appended to if its key is written with a
//! `+`, as in `"+args"`. Two things do not follow this rule. Denials add up: no layer removes `deny` and `ask` of another.
//! And a project, whose author may be someone other than the user, sets only servers, defaults, scopes and denials. If it
//! changes the program or the address of a server, the server does not get what farther layers pass to it. Every value
//! keeps the file and line where it was written.
//!
//! A problem in one server disables only that server. Everything else is still read, so that one run reports all
//! problems. A file is TOML or, as the only layer, JSON with `mcpServers`.

mod audit;
mod auth;
mod callers;
mod card;
mod certificate;
mod changes;
mod declared;
mod expose;
mod facts;
mod file;
mod forward;
mod glob;
mod groups;
mod history;
mod hosts;
mod issuers;
pub mod keys;
mod layer;
mod lifecycle;
mod listen;
mod merge;
mod node;
mod probe;
mod profiles;
mod project;
mod quota;
mod reader;
mod remote;
mod resolve;
mod root;
mod rules;
mod scope;
mod secrets;
mod server;
mod source_map;
mod store;
pub mod units;
mod when;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::access::expose::ExposeSettings;
use crate::access::policy::Policy;
use crate::limits::UsageLimits;
pub use crate::spec::Origin;
use crate::spec::{Capacity, FirstListingSettings, Roster, ServerId};
pub use audit::AuditSpec;
pub use callers::{
    CallerSpec, CallerToken, IssuedCallerSpec, Sha256Digest, find_short_tokens, resolve_token_digests,
};
pub use certificate::{CertificateNames, CertificatePattern, SubjectAttribute};
pub use changes::ConfigChange;
pub use declared::{DeclaredServer, DeclaredValue};
pub use facts::{Fact, HostFacts, InvalidFact, RequiredFacts};
pub use groups::GroupSpec;
pub use history::HistorySpec;
pub use issuers::{IssuerSpec, KeySource, SignatureAlgorithm};
pub use layer::{Layer, LayerKind, text_digest};
#[doc(hidden)]
pub use listen::parse_origin;
pub use listen::{AddressRange, TlsSpec};
pub use resolve::{LayerText, LayeredConfig, Resolved, resolve};
pub use scope::{ActiveTags, ScopeMatch};
pub use secrets::SecretBackend;
pub use store::StoreSpec;
pub use when::TagCondition;

/// A config, resolved for this machine: its valid parts, and its problems.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// File that stands for all layers in messages: the one named on the command line, or the user's.
    pub file: PathBuf,
    /// Every file that was read, the farthest first.
    pub files: Vec<PathBuf>,
    /// Valid servers that are on here, and those disabled with `enabled = false`.
    pub roster: Roster,
    /// Settings of the HTTP listener.
    pub listen: ListenSpec,
    /// Settings of the gateway that `toolcrib stdio` starts.
    pub auto_start: AutoStart,
    /// Limits of the gateway as a whole.
    pub limits: GatewayLimits,
    /// Limits of all servers together.
    pub capacity: Capacity,
    /// Access rules.
    pub policy: Policy,
    /// How tools are listed to clients.
    pub expose: ExposeSettings,
    /// Quotas and rate limits.
    pub usage_limits: UsageLimits,
    /// Callers and their tokens; if there are no issuers either, every local client is accepted.
    pub callers: Vec<CallerSpec>,
    /// Authorization servers whose tokens identify callers.
    pub issuers: Vec<IssuerSpec>,
    /// Rights of single callers that tokens of issuers identify.
    pub issued_callers: Vec<IssuedCallerSpec>,
    /// Groups of callers, in the order of the files.
    pub groups: Vec<GroupSpec>,
    /// Audit settings, if calls are recorded.
    pub audit: Option<AuditSpec>,
    /// True if calls are counted and `/metrics` is served.
    pub metrics: bool,
    /// Settings of the history of calls and events.
    pub history: HistorySpec,
    /// The state that several gateways share.
    pub store: StoreSpec,
    /// URL of the MCP registry, without a slash at its end.
    pub registry: Option<String>,
    /// Storage of secrets.
    pub secrets: SecretBackend,
    /// Place where each server is declared, including servers that are not in the roster.
    pub origins: BTreeMap<ServerId, Origin>,
    /// Every declared server with a valid name, sorted by name.
    pub declared: Vec<DeclaredServer>,
    /// Every scope, in the order of the files.
    pub scopes: Vec<ScopeMatch>,
    /// Active tags.
    pub tags: ActiveTags,
    /// Every problem, in the order of the files.
    pub problems: Vec<Problem>,
}

/// Settings of the HTTP listener.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListenSpec {
    /// `Host` names accepted in addition to the listen address.
    pub hosts: Vec<String>,
    /// Origins of web pages that may use the MCP endpoints, as browsers send them.
    pub origins: Vec<String>,
    /// True if clients of HTTP+SSE are served at `/sse`.
    pub sse: bool,
    /// True if other users of the machine may use a loopback address without a token while no callers are declared.
    pub any_user: bool,
    /// URL by which clients reach the gateway, without a slash at its end, if it differs from the listen address.
    pub public_url: Option<String>,
    /// Files with which it serves TLS; without them it serves plain HTTP.
    pub tls: Option<TlsSpec>,
    /// Peers whose `Forwarded` and `X-Forwarded-…` headers are used.
    pub trusted_proxies: Vec<AddressRange>,
}

/// Settings of the gateway that `toolcrib stdio` starts in the background, from `[gateway]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoStart {
    /// True if `toolcrib stdio` starts a gateway when none is running.
    pub enabled: bool,
    /// Time without clients and calls after which a gateway that was started this way exits.
    pub idle_exit: Duration,
}

impl Default for AutoStart {
    fn default() -> Self {
        Self { enabled: true, idle_exit: Duration::from_secs(5 * 60) }
    }
}

/// Default of `limits.client-memory`, in bytes.
const DEFAULT_CLIENT_MEMORY: usize = 256 << 20;

/// Limits of the gateway as a whole, from `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayLimits {
    /// Largest request body, in bytes.
    pub body: usize,
    /// Sessions open at the same time.
    pub sessions: usize,
    /// Memory that clients may use, in bytes: request bodies, kept events, unread results, declarations of sessions.
    pub client_memory: Option<usize>,
    /// Time a shutdown waits for calls in flight.
    pub drain: Duration,
    /// Upper bound on the time limit of any call.
    pub call_timeout_max: Option<Duration>,
    /// Time that a list waits for lists of running servers that are out of date.
    pub listing_wait: Duration,
    /// How long clients wait for servers that were never listed.
    pub first_listing: FirstListingSettings,
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            body: 32 << 20,
            sessions: 10_000,
            client_memory: None,
            drain: Duration::from_secs(10),
            call_timeout_max: None,
            listing_wait: Duration::from_millis(300),
            first_listing: FirstListingSettings::default(),
        }
    }
}

impl GatewayLimits {
    /// Returns the memory that clients may use, in bytes: if it is not set, 256 MiB or the size of four of the largest
    /// bodies, if that is more.
    pub fn client_memory(&self) -> usize {
        self.client_memory.unwrap_or_else(|| DEFAULT_CLIENT_MEMORY.max(self.body.saturating_mul(4)))
    }
}

/// A problem in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// File with the problem.
    pub file: PathBuf,
    /// Place in the file; absent if the problem is the file as a whole.
    pub position: Option<Position>,
    /// Part of the config that the problem disables.
    pub scope: ProblemScope,
    /// Description of the problem.
    pub message: String,
    /// Suggested fix.
    pub hint: Option<String>,
}

/// A place in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
}

/// Part of a config that a problem disables.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProblemScope {
    /// The server of this name.
    Server(String),
    /// The whole config: it is not served.
    WholeConfig,
    /// One section, without which the rest keeps its meaning.
    Section,
    /// Nothing; the problem is only a note.
    Note,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(Position { line, column }) = self.position {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

impl Config {
    /// Reads a file as the only layer, without facts except the card files that it names: no scope matches. If the file
    /// cannot be read or trusted, that is a problem like any other.
    pub fn load(path: &Path) -> Self {
        let layers = LayeredConfig::read(&[Layer::standalone(path)]);
        let mut facts = HostFacts::default();
        facts.read_card_files(&layers.required_facts());
        layers.resolve(&facts)
    }

    /// Parses a text in the same way. Relative paths in it are resolved against the folder of `path`.
    ///
    /// ```
    /// use std::path::Path;
    /// use toolcrib::{Config, Crib, Settings};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = r#"
    ///     [servers.time]
    ///     command = "uvx"
    ///     args = ["mcp-server-time"]
    ///
    ///     [policy]
    ///     deny = ["time.set_*"]
    /// "#;
    /// let config = Config::parse(Path::new("/etc/my-agent/config.toml"), text);
    /// assert!(config.problems.is_empty(), "{:?}", config.problems);
    /// let settings = Settings::new(config.roster)
    ///     .policy(config.policy)
    ///     .limits(config.usage_limits)
    ///     .capacity(config.capacity);
    /// let crib = Crib::builder().build()?;
    /// assert_eq!(crib.apply(settings).await?.added.len(), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn parse(path: &Path, text: &str) -> Self {
        LayeredConfig::parse(path, text).resolve(&HostFacts::default())
    }

    /// Returns whether clients have to present a token.
    pub fn requires_tokens(&self) -> bool {
        !self.callers.is_empty() || !self.issuers.is_empty()
    }

    /// Returns whether a problem forbids serving this config at all.
    pub fn is_refused(&self) -> bool {
        self.problems.iter().any(|problem| problem.scope == ProblemScope::WholeConfig)
    }
}
