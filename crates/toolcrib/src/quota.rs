//! `Quota`: how much of what each caller and each client may use, and what was used of it.
//!
//! `meter.rs` is the step in the pipeline, and `memory.rs` keeps a file; everything else here takes `now` and waits for
//! nothing.

mod accounts;
mod bucket;
mod budget;
mod clients;
pub(crate) mod memory;
pub(crate) mod meter;
mod window;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::policy::Rule;
use crate::spec::{Origin, Pattern};
pub use accounts::Standing;
pub use budget::Budget;

/// How much callers and clients may use. Every limit that is about a call must have room for it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Quota {
    /// For each caller: everybody has a count of its own.
    pub everyone: Vec<Limit>,
    /// For one caller, by name.
    pub callers: HashMap<String, Vec<Limit>>,
    /// Calls in a row of one client that are the same in everything, at most.
    pub identical_calls: Option<NonZeroU32>,
    /// Bytes that a client gets as answers, from when it comes until it leaves, at most.
    pub results: Option<u64>,
}

impl Quota {
    /// Whether there is nothing to count.
    pub fn is_empty(&self) -> bool {
        let mut limits = self.callers.values().chain([&self.everyone]);
        limits.all(Vec::is_empty) && self.identical_calls.is_none() && self.results.is_none()
    }

    /// The limits that one caller has, with whose they are.
    pub fn of<'a>(&'a self, caller: &'a str) -> impl Iterator<Item = (Owner<'a>, &'a Limit)> {
        let own =
            self.callers.get(caller).into_iter().flatten().map(move |limit| (Owner::Caller(caller), limit));
        self.everyone.iter().map(|limit| (Owner::Everyone, limit)).chain(own)
    }
}

/// In whose part of the config a limit stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner<'a> {
    /// Everyone's; each caller has a count of its own.
    Everyone,
    /// A caller's.
    Caller(&'a str),
}

/// How often a caller may use what a pattern matches, all of it counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    pub(crate) what: Rule,
    pub(crate) share: Share,
    pub(crate) origin: Option<Origin>,
}

/// So much in so much time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// At most so many calls in any span of this length.
    Quota {
        /// How many.
        calls: NonZeroU32,
        /// In how long.
        per: Duration,
    },
    /// As many at once, and then as they come back, evenly, as many in this time.
    Rate {
        /// How many.
        calls: NonZeroU32,
        /// In how long.
        per: Duration,
        /// How long a call waits for its turn rather than fail.
        wait: Duration,
    },
}

impl Share {
    /// How many, and in how long.
    pub fn measure(&self) -> (NonZeroU32, Duration) {
        match *self {
            Self::Quota { calls, per } | Self::Rate { calls, per, .. } => (calls, per),
        }
    }

    /// The key that it is written with.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Quota { .. } => "quota",
            Self::Rate { .. } => "rate",
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (calls, per) = self.measure();
        let noun = if calls.get() == 1 { "call" } else { "calls" };
        write!(f, "{calls} {noun} per {}", written(per))
    }
}

impl Limit {
    /// At most so many calls in any span of this length.
    pub fn quota(calls: NonZeroU32, per: Duration) -> Self {
        Self::new(Share::Quota { calls, per })
    }

    /// As many at once, and then as they come back, evenly, as many in this time.
    pub fn rate(calls: NonZeroU32, per: Duration) -> Self {
        Self::new(Share::Rate { calls, per, wait: Duration::ZERO })
    }

    fn new(share: Share) -> Self {
        Self { what: Rule::bare(Pattern::any()), share, origin: None }
    }

    /// Only for what a pattern matches.
    #[must_use]
    pub fn of(mut self, what: Rule) -> Self {
        self.what = what;
        self
    }

    /// A call over the rate waits this long for its turn rather than fail; a quota knows no waiting.
    #[must_use]
    pub fn waiting(mut self, patience: Duration) -> Self {
        if let Share::Rate { wait, .. } = &mut self.share {
            *wait = patience;
        }
        self
    }

    pub(crate) fn at(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// What it is about.
    pub fn what(&self) -> &Rule {
        &self.what
    }

    /// How much.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Where it is written, if it is in a file.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// The key that sets it.
    pub fn name(&self, owner: Owner<'_>) -> String {
        let owner = match owner {
            Owner::Everyone => "policy".to_owned(),
            Owner::Caller(caller) => format!("callers.{caller}"),
        };
        let key = self.share.key();
        match self.what.to_string().as_str() {
            "*" => format!("{owner}.{key}"),
            what => format!("{owner}.limits.\"{what}\".{key}"),
        }
    }
}

/// A duration as people write it in a config.
fn written(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let unit = units.into_iter().find(|(unit, _)| milliseconds > 0 && milliseconds.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{milliseconds}ms"), |(unit, name)| format!("{}{name}", milliseconds / unit))
}

#[cfg(test)]
mod tests;
