//! What a person wrote → the roster and every problem in it.
//!
//! One file is read: TOML, or JSON in the common `mcpServers` shape. A problem inside one server leaves only that
//! server out; the rest of the file is read to its end, so that one look shows everything there is to repair.

mod audit;
mod callers;
mod care;
mod file;
mod node;
mod page;
mod profiles;
mod quota;
mod reader;
mod remote;
mod root;
mod rules;
mod server;
pub mod units;

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

/// One config file, read: what is good in it, and what is not.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The servers without a problem.
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
    /// Where each server is declared, those left out of the roster included.
    pub origins: BTreeMap<ServerId, Origin>,
    /// Everything there is to repair, in the order of the file.
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
    /// Reads a file. A file that cannot be read, or should not be trusted, is a problem like any other.
    pub fn load(path: &Path) -> Self {
        match file::read(path) {
            Ok((text, warned)) => {
                let mut config = Self::parse(path, &text);
                config.problems.splice(0..0, warned);
                config
            }
            Err(problem) => Self { problems: vec![problem], ..Self::parse(path, "") },
        }
    }

    /// Reads the text of a file. Relative paths in it are below the folder of `path`.
    pub fn parse(path: &Path, text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut page = page::Page::new(path, text);
        let tree = if page.json { node::json(text) } else { node::toml(text) };
        let sections = match tree {
            Ok(tree) => root::read(&mut page, &tree),
            Err(mistakes) => {
                for mistake in mistakes {
                    page.report(mistake.at, &Concern::Whole, mistake.message, mistake.hint);
                }
                root::Sections::default()
            }
        };
        let root::Sections { roster, listen, limits, capacity, policy, quota, callers, audit, origins } =
            sections;
        let (file, problems) = (path.to_owned(), page.problems());
        Self { file, roster, listen, limits, capacity, policy, quota, callers, audit, origins, problems }
    }

    /// Whether some problem forbids serving this file at all.
    pub fn refused(&self) -> bool {
        self.problems.iter().any(|problem| problem.concerns == Concern::Whole)
    }
}
