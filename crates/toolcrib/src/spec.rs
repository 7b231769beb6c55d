//! `ServerSpec`: how to reach one MCP server and how to look after it.
//!
//! Specs are parsed, validated and immutable. Two equal specs mean "nothing to do", so a reload restarts only
//! what really changed. Values that name a secret or a variable stay references until a connection starts.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::connection::memory::InProcess;
use crate::text::Text;
use crate::wire::revision::{Era, Revision};

/// The name of a server: 1 to 32 of `a-z`, `0-9`, `-`, `_`; it starts with a letter or digit, does not end in `_`
/// and holds no `__`, so that a public tool name can be split in one way only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(Arc<str>);

/// Why a text is not a server name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadName {
    /// It is empty or longer than 32 characters.
    Length,
    /// It holds a character other than `a-z`, `0-9`, `-` and `_`, or starts with `-` or `_`.
    Character,
    /// It ends in `_` or holds `__`, which separates server and tool in public names.
    Separator,
}

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "a server name has 1 to 32 characters",
            Self::Character => {
                "a server name holds only `a-z`, `0-9`, `-` and `_`, and starts with a letter or digit"
            }
            Self::Separator => "a server name does not end in `_` and holds no `__`",
        })
    }
}

impl std::error::Error for BadName {}

impl ServerId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The form in which two names must differ: `-` and `_` are the same here.
    pub fn folded(&self) -> String {
        self.0.replace('-', "_")
    }
}

impl FromStr for ServerId {
    type Err = BadName;

    fn from_str(name: &str) -> Result<Self, BadName> {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if name.is_empty() || name.len() > 32 {
            return Err(BadName::Length);
        }
        if !name.bytes().all(allowed) || name.starts_with(['-', '_']) {
            return Err(BadName::Character);
        }
        if name.ends_with('_') || name.contains("__") {
            return Err(BadName::Separator);
        }
        Ok(Self(name.into()))
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// How to reach one MCP server and how to look after it.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSpec {
    /// Its name here.
    pub id: ServerId,
    /// Whether it may run; a server that is off is still shown.
    pub enabled: bool,
    /// Where it is.
    pub endpoint: Endpoint,
    /// Which protocol era to speak with it.
    pub era: EraChoice,
    /// When it starts, how long it stays, how it is restarted.
    pub lifecycle: Lifecycle,
    /// What one call may cost.
    pub limits: Limits,
}

impl ServerSpec {
    /// A server that is a child process, looked after with the defaults.
    pub fn command(id: ServerId, command: CommandSpec) -> Self {
        Self::new(id, Endpoint::Command(command))
    }

    /// A server that lives in this process.
    pub fn in_process(id: ServerId, server: impl InProcess) -> Self {
        Self::new(id, Endpoint::InProcess(InProcessServer(Arc::new(server))))
    }

    fn new(id: ServerId, endpoint: Endpoint) -> Self {
        let (lifecycle, limits) = (Lifecycle::default(), Limits::default());
        Self { id, enabled: true, endpoint, era: EraChoice::Auto, lifecycle, limits }
    }

    /// The same server, looked after in another way.
    #[must_use]
    pub fn lifecycle(mut self, lifecycle: Lifecycle) -> Self {
        self.lifecycle = lifecycle;
        self
    }

    /// The same server with other limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The same server, spoken to in a fixed era.
    #[must_use]
    pub fn era(mut self, era: EraChoice) -> Self {
        self.era = era;
        self
    }

    /// A stable digest of what decides which tools the server offers: where it is and the era spoken. References
    /// count as written, so a secret's value never enters it. `None` for servers that live in this process: their
    /// listing is not worth remembering.
    pub fn digest(&self) -> Option<SpecDigest> {
        let Endpoint::Command(command) = &self.endpoint else { return None };
        let mut hasher = Sha256::new();
        let mut add = |part: &str| {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        };
        add(&format!("{:?}", self.era));
        add(command.program.written());
        add(&command.args.len().to_string());
        command.args.iter().for_each(|arg| add(arg.written()));
        command.env.iter().for_each(|(key, value)| {
            add(key);
            add(value.written());
        });
        command.inherit_env.iter().for_each(|key| add(key));
        add(&command.cwd.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default());
        let digest = hasher.finalize();
        Some(SpecDigest(digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// Sixteen hexadecimal digits that change when a server's endpoint changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpecDigest(String);

impl SpecDigest {
    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Where a server is.
#[derive(Debug, Clone, PartialEq)]
pub enum Endpoint {
    /// A child process that speaks MCP on its stdin and stdout.
    Command(CommandSpec),
    /// A server in this very process.
    InProcess(InProcessServer),
}

/// How to start a child process. There is no shell: `program` and `args` are passed as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandSpec {
    /// The program, looked up on `PATH` unless it holds a slash.
    pub program: Text,
    /// Its arguments.
    pub args: Vec<Text>,
    /// Variables set for it.
    pub env: BTreeMap<String, Text>,
    /// Variables it gets from our own environment, beyond the usual few.
    pub inherit_env: Vec<String>,
    /// Its working directory; ours when absent.
    pub cwd: Option<PathBuf>,
}

impl CommandSpec {
    /// A command without arguments.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            program: Text::literal(program),
            args: Vec::new(),
            env: BTreeMap::new(),
            inherit_env: Vec::new(),
            cwd: None,
        }
    }

    /// A command given as its whole argument vector.
    pub fn argv<I: IntoIterator<Item: Into<String>>>(argv: I) -> Option<Self> {
        let mut argv = argv.into_iter();
        Some(Self::new(argv.next()?).args(argv))
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(Text::literal(arg));
        self
    }

    /// With more arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item: Into<String>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Text::literal));
        self
    }

    /// With a variable set.
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(key.into(), Text::literal(value));
        self
    }

    /// In a working directory.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        self.cwd = Some(path.into());
        self
    }
}

/// A shared handle on a server of the embedder's own; equal only to itself.
#[derive(Clone)]
pub struct InProcessServer(pub(crate) Arc<dyn InProcess>);

impl PartialEq for InProcessServer {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for InProcessServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InProcessServer")
    }
}

/// Which protocol era to speak with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EraChoice {
    /// Ask it once and remember the answer.
    Auto,
    /// This era, in its newest revision.
    Era(Era),
    /// Exactly this revision.
    Revision(Revision),
}

/// When a server starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// When somebody asks for it.
    OnDemand,
    /// With the crib, and again by itself after a crash.
    AtBoot,
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

/// What one call may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How long a call may take without a sign of progress.
    pub call_timeout: Duration,
    /// How long a call may take however much progress it reports.
    pub call_timeout_max: Duration,
    /// Calls the server works on at the same time; further ones wait their turn.
    pub in_flight: NonZeroUsize,
    /// The largest message accepted from the server, in bytes.
    pub message: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            call_timeout: Duration::from_secs(60),
            call_timeout_max: Duration::from_secs(10 * 60),
            in_flight: NonZeroUsize::MIN.saturating_add(63),
            message: 32 << 20,
        }
    }
}

/// The list of specs that apply here and now, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Roster {
    servers: BTreeMap<ServerId, ServerSpec>,
    /// The names in the form in which they must differ.
    folded: BTreeMap<String, ServerId>,
}

/// Two servers whose names are the same, or differ only in `-` and `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameClash(pub ServerId, pub ServerId);

impl fmt::Display for NameClash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "servers `{}` and `{}` have the same name (`-` and `_` count as one)", self.0, self.1)
    }
}

impl std::error::Error for NameClash {}

impl Roster {
    /// Adds a server, unless one of the same name is there.
    pub fn add(&mut self, spec: ServerSpec) -> Result<(), NameClash> {
        let folded = spec.id.folded();
        if let Some(taken) = self.folded.get(&folded) {
            return Err(NameClash(taken.clone(), spec.id));
        }
        self.folded.insert(folded, spec.id.clone());
        self.servers.insert(spec.id.clone(), spec);
        Ok(())
    }

    /// The servers, by name.
    pub fn servers(&self) -> impl Iterator<Item = &ServerSpec> {
        self.servers.values()
    }

    /// The servers themselves, by name.
    pub fn into_servers(self) -> impl Iterator<Item = ServerSpec> {
        self.servers.into_values()
    }

    /// One server's spec.
    pub fn get(&self, id: &ServerId) -> Option<&ServerSpec> {
        self.servers.get(id)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_rules() {
        for good in ["git", "a", "0", "my-server_2", &"x".repeat(32)] {
            assert!(good.parse::<ServerId>().is_ok(), "{good}");
        }
        for (bad, why) in [
            ("", BadName::Length),
            (&*"x".repeat(33), BadName::Length),
            ("Git", BadName::Character),
            ("-a", BadName::Character),
            ("_a", BadName::Character),
            ("a b", BadName::Character),
            ("a_", BadName::Separator),
            ("a__b", BadName::Separator),
        ] {
            assert_eq!(bad.parse::<ServerId>(), Err(why), "{bad}");
        }
    }

    #[test]
    fn names_that_differ_only_in_dashes_clash() {
        let spec = |name: &str| ServerSpec::command(name.parse().unwrap(), CommandSpec::new("true"));
        let mut roster = Roster::default();
        roster.add(spec("a-b")).unwrap();
        assert!(roster.add(spec("a_b")).is_err());
        assert!(roster.add(spec("a-b")).is_err());
        assert_eq!(roster.servers().count(), 1);
    }

    #[test]
    fn the_digest_changes_with_the_endpoint_and_not_with_the_care() {
        let spec = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x").arg("y"));
        let other = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("xy"));
        let patient = spec.clone().lifecycle(Lifecycle { start: Start::AtBoot, ..Lifecycle::default() });
        assert_ne!(spec.digest(), other.digest());
        assert_eq!(spec.digest(), patient.digest());
    }
}
