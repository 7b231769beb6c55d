//! `ServerSpec`: how to reach one MCP server and how to supervise it.
//!
//! Specs are validated and immutable, and comparing two of them tells whether a reload changes a server, and whether it
//! has to be restarted for that.
//! References to secrets and variables are resolved when a connection starts.

pub mod auth;
mod card;
mod first_listing;
mod forward;
mod http;
mod lifecycle;
mod name;
pub mod public_name;
mod roster;
pub mod secret;
pub mod template;
mod tools;
#[cfg(any(feature = "config", feature = "http"))]
pub(crate) mod url;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::io::DuplexStream;

use crate::protocol::versions::{Era, Revision};
use crate::spec::template::{TemplatePiece, TemplateText};
use crate::util::encoding;
use crate::util::maps::collect_map;

pub use card::{CardTool, InvalidCard, ServerCard};
pub use first_listing::{FirstListingSettings, FirstListingWait};
pub use forward::{Forward, TokenExchange};
pub use http::{HttpSpec, TransportKind};
pub use lifecycle::{
    BackoffSpec, BreakerSpec, Capacity, KeepAlive, Lifecycle, MemoryLimits, Restarts, ServerLimits, Sharing,
    StartPolicy,
};
pub use name::{BadName, ServerId};
pub use roster::{NameClash, Roster};
pub use tools::{EmptyPattern, NamePattern, Pinning, ToolsSpec, Trust};

/// Place in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// File.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: u32,
}

/// Declaration of one MCP server: how to reach it and how to supervise it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ServerSpec {
    /// Name of the server.
    pub id: ServerId,
    /// True if it may run; a disabled server is still listed.
    pub enabled: bool,
    /// Endpoint that connections are opened to.
    pub endpoint: Endpoint,
    /// Protocol era to use.
    pub era: EraChoice,
    /// Start, idle stop, restarts and memory.
    pub lifecycle: Lifecycle,
    /// Limits per call and per server.
    pub limits: ServerLimits,
    /// Settings for its tools.
    pub tools: ToolsSpec,
    /// True if its hints about tools are acted on.
    pub trust: Trust,
    /// Handling of tools that differ from their approved definition.
    pub pin: Pinning,
    /// Clients that share an instance.
    pub sharing: Sharing,
    /// Description that is shown and listed before the server has been started.
    pub card: Option<ServerCard>,
}

impl ServerSpec {
    /// Creates the spec of a child process, with default settings.
    pub fn command(id: ServerId, command: CommandSpec) -> Self {
        Self::new(id, Endpoint::Command(command))
    }

    /// Creates the spec of a remote server, with default settings.
    pub fn http(id: ServerId, http: HttpSpec) -> Self {
        Self::new(id, Endpoint::Http(http))
    }

    /// Creates the spec of a server in this process, with default settings.
    pub fn in_process(id: ServerId, server: impl InProcess) -> Self {
        Self::new(id, Endpoint::InProcess(InProcessServer(Arc::new(server))))
    }

    fn new(id: ServerId, endpoint: Endpoint) -> Self {
        Self {
            id,
            enabled: true,
            endpoint,
            era: EraChoice::Auto,
            lifecycle: Lifecycle::default(),
            limits: ServerLimits::default(),
            tools: ToolsSpec::default(),
            trust: Trust::Normal,
            pin: Pinning::Mark,
            sharing: Sharing::Auto,
            card: None,
        }
    }

    /// Sets the lifecycle.
    #[must_use]
    pub fn lifecycle(mut self, lifecycle: Lifecycle) -> Self {
        self.lifecycle = lifecycle;
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the settings for its tools.
    #[must_use]
    pub fn tools(mut self, tools: ToolsSpec) -> Self {
        self.tools = tools;
        self
    }

    /// Sets whether its hints about tools are acted on.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Sets the handling of tools that differ from their approved definition.
    #[must_use]
    pub fn pin(mut self, pin: Pinning) -> Self {
        self.pin = pin;
        self
    }

    /// Sets which clients share an instance.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Sets the description that is shown and listed before the server has been started.
    #[must_use]
    pub fn card(mut self, card: ServerCard) -> Self {
        self.card = Some(card);
        self
    }

    /// Sets the protocol era.
    #[must_use]
    pub fn era(mut self, era: EraChoice) -> Self {
        self.era = era;
        self
    }

    /// Returns whether a process or connection of this spec cannot serve `new`, so that it has to be replaced. All other
    /// settings are taken over while the server runs.
    pub(crate) fn needs_restart(&self, new: &Self) -> bool {
        // Names every field, so that a new one must be assigned to a side.
        let Self {
            id,
            enabled,
            endpoint,
            era,
            sharing,
            lifecycle: _,
            limits: _,
            tools: _,
            trust: _,
            pin: _,
            card: _,
        } = self;
        *id != new.id
            || *enabled != new.enabled
            || *endpoint != new.endpoint
            || *era != new.era
            || *sharing != new.sharing
    }

    /// Returns whether a connection that lists what the server offers belongs to a caller too, because of its credentials.
    pub(crate) fn is_listed_per_caller(&self) -> bool {
        self.has_login_per_caller() || self.forwards_callers() && self.sharing == Sharing::PerCaller
    }

    /// Returns whether the server learns about its callers.
    pub(crate) fn forwards_callers(&self) -> bool {
        matches!(&self.endpoint, Endpoint::Http(http) if http.forward != Forward::Nothing)
    }

    /// Returns whether clients of each era get their own process or connection, if the server speaks both.
    pub(crate) fn has_instance_per_era(&self) -> bool {
        let may_have = match &self.endpoint {
            Endpoint::Http(http) => http.transport != TransportKind::Sse && self.sharing != Sharing::One,
            Endpoint::Command(_) | Endpoint::InProcess(_) => self.sharing == Sharing::Auto,
        };
        may_have && self.era == EraChoice::Auto
    }

    /// Returns whether this is a remote server.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.endpoint, Endpoint::Http(_))
    }

    /// Returns whether each caller has a login of its own to the server.
    pub fn has_login_per_caller(&self) -> bool {
        let uses_login = matches!(&self.endpoint, Endpoint::Http(http) if http.uses_login());
        uses_login && self.sharing == Sharing::PerCaller
    }

    /// Returns whether results of any of its tools may be shortened for clients.
    pub(crate) fn limits_results(&self) -> bool {
        self.limits.result_tokens.is_some() || self.tools.result_tokens.iter().any(|(_, tokens)| *tokens > 0)
    }

    /// Returns whether results of any of its tools may be cached.
    pub(crate) fn can_cache_results(&self) -> bool {
        !self.tools.cache.is_empty() || self.trust == Trust::Trusted
    }

    /// Returns a stable digest of the endpoint and the era, which decide the tools that the server offers. References
    /// count as written, so the digest does not depend on secrets. Returns `None` for a server in this process, whose
    /// listing is not remembered.
    pub fn digest(&self) -> Option<SpecDigest> {
        let mut hasher = Sha256::new();
        let mut add = |part: &str| {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        };
        add(match self.era {
            EraChoice::Auto => "auto",
            EraChoice::Era(Era::Session) => "legacy",
            EraChoice::Era(Era::Stateless) => "modern",
            EraChoice::Revision(revision) => revision.as_str(),
        });
        match &self.endpoint {
            Endpoint::Command(command) => command.digest(add),
            Endpoint::Http(http) => http.digest(add),
            Endpoint::InProcess(_) => return None,
        }
        let digest = hasher.finalize();
        Some(SpecDigest(encoding::to_hex(&digest[..8])))
    }
}

/// The name of a spec that was made from a command or URL alone; [`Crib::call_spec`](crate::Crib::call_spec) replaces it.
fn unnamed() -> ServerId {
    ServerId::from_static("adhoc")
}

impl From<CommandSpec> for ServerSpec {
    /// Creates a spec called `adhoc`, with default settings.
    fn from(command: CommandSpec) -> Self {
        Self::command(unnamed(), command)
    }
}

impl From<HttpSpec> for ServerSpec {
    /// Creates a spec called `adhoc`, with default settings.
    fn from(http: HttpSpec) -> Self {
        Self::http(unnamed(), http)
    }
}

/// Digest of a server's endpoint and era: sixteen hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SpecDigest(String);

impl SpecDigest {
    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Endpoint of a server.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Endpoint {
    /// A child process that speaks MCP on its stdin and stdout.
    Command(CommandSpec),
    /// A remote server, reached over HTTP.
    Http(HttpSpec),
    /// A server in this process.
    InProcess(InProcessServer),
}

impl Endpoint {
    /// Returns whether this build of the library can connect to it. A remote server needs the feature `http`.
    pub fn is_supported(&self) -> bool {
        cfg!(feature = "http") || !matches!(self, Self::Http(_))
    }

    /// Returns every string that may contain references.
    pub fn templates(&self) -> impl Iterator<Item = &TemplateText> {
        let (command, http) = match self {
            Self::Command(command) => (Some(command), None),
            Self::Http(http) => (None, Some(http)),
            Self::InProcess(_) => (None, None),
        };
        let command = command.into_iter().flat_map(|command| {
            std::iter::once(&command.program).chain(&command.args).chain(command.env.values())
        });
        let http = http.into_iter().flat_map(|http| {
            std::iter::once(&http.url)
                .chain(http.headers.values())
                .chain(http.auth.templates())
                .chain(http.forward.templates())
        });
        command.chain(http)
    }

    /// Returns the environment variables whose values it uses: those in `${env:X}` and in `inherit-env`.
    pub fn environment_variables(&self) -> BTreeSet<String> {
        let references = self.templates().flat_map(TemplateText::pieces).filter_map(|piece| match piece {
            TemplatePiece::Env { name, .. } => Some(name.to_owned()),
            _ => None,
        });
        let inherited = match self {
            Self::Command(command) => command.inherit_env.as_slice(),
            Self::Http(_) | Self::InProcess(_) => &[],
        };
        collect_map(references.chain(inherited.iter().cloned()))
    }
}

/// Command line of a child process. No shell is involved: `program` and `args` are passed unchanged.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct CommandSpec {
    /// Program, looked up on `PATH` unless it contains a slash.
    pub program: TemplateText,
    /// Arguments.
    pub args: Vec<TemplateText>,
    /// Environment variables to set.
    pub env: BTreeMap<String, TemplateText>,
    /// Variables to pass on from the environment of this process, in addition to the standard ones.
    pub inherit_env: Vec<String>,
    /// Working directory; that of this process if absent.
    pub cwd: Option<PathBuf>,
}

/// Shows only the names of environment variables, because their values may be secrets.
impl fmt::Debug for CommandSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<_> = self.env.keys().collect();
        f.debug_struct("CommandSpec")
            .field("program", &self.program)
            .field("args", &self.args)
            .field("env", &env)
            .field("inherit_env", &self.inherit_env)
            .field("cwd", &self.cwd)
            .finish()
    }
}

impl CommandSpec {
    /// Creates a command without arguments.
    pub fn new(program: impl Into<String>) -> Self {
        Self {
            program: TemplateText::literal(program),
            args: Vec::new(),
            env: BTreeMap::new(),
            inherit_env: Vec::new(),
            cwd: None,
        }
    }

    /// Creates a command from its argument vector. Returns `None` if it is empty.
    pub fn argv<I: IntoIterator<Item: Into<String>>>(argv: I) -> Option<Self> {
        let mut argv = argv.into_iter();
        Some(Self::new(argv.next()?).args(argv))
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(TemplateText::literal(arg));
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item: Into<String>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(TemplateText::literal));
        self
    }

    /// Sets an environment variable to a literal text. For a text with references, such as `${secret:NAME}`, insert a
    /// [`TemplateText`] in [`CommandSpec::env`](CommandSpec#structfield.env).
    #[must_use]
    pub fn env(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(key.into(), TemplateText::literal(value));
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        self.cwd = Some(path.into());
        self
    }

    /// Passes every part to `add`, with references as written.
    fn digest(&self, mut add: impl FnMut(&str)) {
        add(self.program.source());
        add(&self.args.len().to_string());
        self.args.iter().for_each(|arg| add(arg.source()));
        add(&self.env.len().to_string());
        self.env.iter().for_each(|(key, value)| {
            add(key);
            add(value.source());
        });
        self.inherit_env.iter().for_each(|key| add(key));
        add(&self.cwd.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default());
    }
}

/// A server in this process. [`InProcess::serve`] gets one end of a byte pipe and speaks MCP on it, one JSON message per
/// line, until the pipe is closed.
pub trait InProcess: Send + Sync + 'static {
    /// Serves one connection until it is closed.
    ///
    /// # Cancel safety
    /// The future is dropped when the connection ends, also while calls are running.
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Returns whether every request of a client carries its caller and deadline in `_meta`, as
    /// `"toolcrib/call": {"caller", "profile", "id", "timeoutMs"}`, and log messages may name the request that they belong
    /// to, as `"toolcrib/request": ID` in their `_meta`.
    fn wants_call_context(&self) -> bool {
        false
    }

    /// Returns the bytes of memory in use, if known; the memory limits apply to this number.
    fn memory(&self) -> Option<u64> {
        None
    }
}

/// A shared handle on a server in this process. Handles are equal if they share the server.
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

/// Protocol era to use with a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EraChoice {
    /// Detect it once and remember the result.
    Auto,
    /// The newest revision of this era.
    Era(Era),
    /// This revision.
    Revision(Revision),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_values_of_variables() {
        let spec =
            ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x").arg("y").env("TOKEN", "s3cret"));
        let shown = format!("{spec:?} {spec:#?}");
        assert!(shown.contains("TOKEN") && shown.contains("\"y\""), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    /// Listings that were remembered by an earlier release are found by these digests.
    #[test]
    fn digests_are_those_of_earlier_releases() {
        let id = || "a".parse().unwrap();
        let command = CommandSpec::argv(["uvx", "mcp-server-time"]).unwrap().env("TZ", "UTC").cwd("/tmp");
        let digest = |spec: ServerSpec| spec.digest().unwrap().as_str().to_owned();
        assert_eq!(digest(ServerSpec::command(id(), command)), "6519d4c7bec0b54e");
        let http = HttpSpec::new("https://example.test/mcp").header("X-Key", "1");
        assert_eq!(
            digest(ServerSpec::http(id(), http).era(EraChoice::Era(Era::Session))),
            "9b65d1f6d5f6f31b"
        );
    }

    #[test]
    fn digest_depends_on_endpoint_but_not_on_lifecycle() {
        let spec = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x").arg("y"));
        let other = ServerSpec::command("a".parse().unwrap(), CommandSpec::new("xy"));
        let at_boot =
            spec.clone().lifecycle(Lifecycle { start: StartPolicy::AtBoot, ..Lifecycle::default() });
        assert_ne!(spec.digest(), other.digest());
        assert_eq!(spec.digest(), at_boot.digest());
    }
}
