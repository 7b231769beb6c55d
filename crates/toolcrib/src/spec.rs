//! `ServerSpec`: how to reach one MCP server and how to look after it.
//!
//! Specs are parsed, validated and immutable. Two equal specs mean "nothing to do", so a reload restarts only
//! what really changed. Values that name a secret or a variable stay references until a connection starts.

mod care;
mod name;
pub mod public_name;
mod remote;
mod roster;
mod tools;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tokio::io::DuplexStream;

use crate::text::Text;
use crate::wire::revision::{Era, Revision};

pub use care::{
    BackoffSpec, BreakerSpec, Capacity, KeepAlive, Lifecycle, Limits, MemoryLimits, Restarts, Sharing, Start,
};
pub use name::{BadName, ServerId};
pub use remote::{HttpSpec, Transport};
pub(crate) use remote::{address, is_header};
pub use roster::{NameClash, Roster};
pub use tools::{EmptyPattern, Pattern, Pinning, ToolsSpec, Trust};

/// Where something is declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: u32,
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
    /// What is said of its tools.
    pub tools: ToolsSpec,
    /// Whether what it says of its tools may be believed.
    pub trust: Trust,
    /// What is done about tools that are not what was approved.
    pub pin: Pinning,
    /// Who shares one instance of it.
    pub sharing: Sharing,
}

impl ServerSpec {
    /// A server that is a child process, looked after with the defaults.
    pub fn command(id: ServerId, command: CommandSpec) -> Self {
        Self::new(id, Endpoint::Command(command))
    }

    /// A server that is reached over HTTP.
    pub fn http(id: ServerId, http: HttpSpec) -> Self {
        Self::new(id, Endpoint::Http(http))
    }

    /// A server that lives in this process.
    pub fn in_process(id: ServerId, server: impl InProcess) -> Self {
        Self::new(id, Endpoint::InProcess(InProcessServer(Arc::new(server))))
    }

    fn new(id: ServerId, endpoint: Endpoint) -> Self {
        let (lifecycle, limits) = (Lifecycle::default(), Limits::default());
        let (tools, trust, pin, sharing) =
            (ToolsSpec::default(), Trust::Normal, Pinning::Mark, Sharing::Shared);
        let (enabled, era) = (true, EraChoice::Auto);
        Self { id, enabled, endpoint, era, lifecycle, limits, tools, trust, pin, sharing }
    }

    /// The same server, looked after in another way.
    #[must_use]
    pub fn lifecycle(mut self, lifecycle: Lifecycle) -> Self {
        self.lifecycle = lifecycle;
        self
    }

    /// Whether results of any of its tools may be kept.
    pub(crate) fn may_keep_results(&self) -> bool {
        !self.tools.cache.is_empty() || self.trust == Trust::Trusted
    }

    /// The same server with other limits.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The same server with something said of its tools.
    #[must_use]
    pub fn tools(mut self, tools: ToolsSpec) -> Self {
        self.tools = tools;
        self
    }

    /// The same server, whose word about its tools counts this much.
    #[must_use]
    pub fn trust(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// The same server, whose tools are held to what was approved in another way.
    #[must_use]
    pub fn pin(mut self, pin: Pinning) -> Self {
        self.pin = pin;
        self
    }

    /// The same server, shared in another way.
    #[must_use]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
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
    /// A server that is reached over HTTP.
    Http(HttpSpec),
    /// A server in this very process.
    InProcess(InProcessServer),
}

impl Endpoint {
    /// Every string in it that may hold references.
    pub fn texts(&self) -> impl Iterator<Item = &Text> {
        let (command, http) = match self {
            Self::Command(command) => (Some(command), None),
            Self::Http(http) => (None, Some(http)),
            Self::InProcess(_) => (None, None),
        };
        let command = command.into_iter().flat_map(|command| {
            std::iter::once(&command.program).chain(&command.args).chain(command.env.values())
        });
        let http = http.into_iter().flat_map(|http| std::iter::once(&http.url).chain(http.headers.values()));
        command.chain(http)
    }
}

/// How to start a child process. There is no shell: `program` and `args` are passed as they are.
#[derive(Clone, PartialEq)]
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

/// Variables are where people write tokens, so only their names are shown.
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

    fn digest(&self, mut add: impl FnMut(&str)) {
        add(self.program.written());
        add(&self.args.len().to_string());
        self.args.iter().for_each(|arg| add(arg.written()));
        add(&self.env.len().to_string());
        self.env.iter().for_each(|(key, value)| {
            add(key);
            add(value.written());
        });
        self.inherit_env.iter().for_each(|key| add(key));
        add(&self.cwd.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default());
    }

    /// In a working directory.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<PathBuf>) -> Self {
        self.cwd = Some(path.into());
        self
    }
}

/// A server in this process. `serve` gets one end of a byte pipe and speaks MCP on it, one JSON message a line, until
/// the pipe ends.
pub trait InProcess: Send + Sync + 'static {
    /// Serves one connection to its end.
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Bytes of memory it uses now, if it keeps count; its limits are held against that.
    fn memory(&self) -> Option<u64> {
        None
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_a_variable_is_not_shown() {
        let spec =
            ServerSpec::command("a".parse().unwrap(), CommandSpec::new("x").arg("y").env("TOKEN", "s3cret"));
        let shown = format!("{spec:?} {spec:#?}");
        assert!(shown.contains("TOKEN") && shown.contains("\"y\""), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
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
