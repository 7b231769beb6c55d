//! What people wrote → the roster and every problem in it.
//!
//! **Who wins.** Files are layers: the machine's, then the person's, then the project's; a file that is named on the command
//! line stands alone. The nearer layer wins key by key, also inside tables; a list is replaced, and added to if its key is
//! written with a `+`, as in `"+args"`. `enabled = false` in any layer can be overruled by a nearer one. Two things are not
//! for the nearest to decide: what `policy` denies in one layer, no other allows; and a project does not say who may come in
//! or what the gateway may take. Whatever wins keeps the file and line where it was written.
//!
//! A problem inside one server leaves only that server out; everything else is read to its end, so that one look shows all
//! there is to repair. A file is TOML, or, when it stands alone, JSON in the common `mcpServers` shape.

mod audit;
mod callers;
mod care;
mod declared;
mod facts;
mod file;
mod glob;
mod hosts;
pub mod keys;
mod layer;
mod merge;
mod node;
mod page;
mod probe;
mod profiles;
mod quota;
mod reader;
mod remote;
mod resolve;
mod root;
mod rules;
mod scope;
mod secrets;
mod server;
pub mod units;
mod when;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::policy::Policy;
use crate::quota::Quota;
pub use crate::spec::Origin;
use crate::spec::{Capacity, Roster, ServerId};
pub use audit::AuditSpec;
pub use callers::{CallerSpec, Digest, Token, digests};
pub use declared::{Declared, Setting};
pub use facts::{Fact, Facts, Wanted};
pub use layer::{Layer, Rank, digest};
pub use resolve::Draft;
pub use scope::{ScopeFinding, Tags};
pub use secrets::SecretStore;
pub use when::When;

/// The config that holds here and now: what is good in it, and what is not.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file that stands for all layers in messages: the one that was named, or the person's.
    pub file: PathBuf,
    /// Every file that was read, the farthest first.
    pub files: Vec<PathBuf>,
    /// The servers that are on here, and those that are switched off by name; none that has a problem.
    pub roster: Roster,
    /// Who may be addressed over HTTP.
    pub listen: Listen,
    /// What the whole gateway may take.
    pub limits: HostLimits,
    /// What all servers together may take.
    pub capacity: Capacity,
    /// Who may see and use what.
    pub policy: Policy,
    /// How much.
    pub quota: Quota,
    /// Who may come in, if not everybody on this machine may.
    pub callers: Vec<CallerSpec>,
    /// Whether and where calls are recorded.
    pub audit: Option<AuditSpec>,
    /// Where secrets are kept.
    pub secrets: SecretStore,
    /// Where each server is declared, those left out of the roster included.
    pub origins: BTreeMap<ServerId, Origin>,
    /// Every server that is declared and has a name, on or off, by name.
    pub declared: Vec<Declared>,
    /// Every scope, matched or not, in the order of the files.
    pub scopes: Vec<ScopeFinding>,
    /// The tags that are active.
    pub tags: Tags,
    /// Everything there is to repair, in the order of the files.
    pub problems: Vec<Problem>,
}

/// Who may be addressed over HTTP.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listen {
    /// `Host` names accepted beyond the address itself.
    pub hosts: Vec<String>,
}

/// What the whole gateway may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLimits {
    /// The largest request body accepted, in bytes.
    pub body: usize,
    /// Sessions open at the same time.
    pub sessions: usize,
    /// How long a stop waits for calls in flight.
    pub drain: Duration,
    /// The most that any call of any server may take.
    pub call_timeout_max: Option<Duration>,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self { body: 32 << 20, sessions: 10_000, drain: Duration::from_secs(10), call_timeout_max: None }
    }
}

/// Something to repair in a config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub file: PathBuf,
    /// The place in it; absent when the file as such is the problem.
    pub at: Option<Position>,
    /// What it switches off.
    pub concerns: Concern,
    /// What is wrong.
    pub message: String,
    /// What to type instead.
    pub hint: Option<String>,
}

/// A place in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

/// What a problem switches off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concern {
    /// This one server.
    Server(String),
    /// Everything: such a file is not served.
    Whole,
    /// A part without which the rest still means what it says.
    Part,
    /// Nothing; it is only worth knowing.
    Note,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(Position { line, column }) = self.at {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}", self.message)
    }
}

impl Config {
    /// Reads a file that stands alone, without looking around: no scope matches. One that cannot be read, or should not be
    /// trusted, is a problem like any other.
    pub fn load(path: &Path) -> Self {
        Draft::read(&[Layer::alone(path)]).resolve(&Facts::default())
    }

    /// Reads the text of a file in the same way. Relative paths in it are below the folder of `path`.
    pub fn parse(path: &Path, text: &str) -> Self {
        Draft::parse(path, text).resolve(&Facts::default())
    }

    /// Whether some problem forbids serving this file at all.
    pub fn refused(&self) -> bool {
        self.problems.iter().any(|problem| problem.concerns == Concern::Whole)
    }
}
