//! `ToolsSpec`: what is said of a server's tools, by patterns over the server's own names.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What is said of a server's tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolsSpec {
    /// Tools that do no harm if they run twice: a call that was lost is made once more.
    pub idempotent: Vec<Pattern>,
    /// Tools whose results may be kept for as long as the server says that they are good.
    pub cache: Vec<Pattern>,
    /// How long calls of some tools may take without a sign of progress, instead of the server's usual limit.
    pub call_timeout: Vec<(Pattern, Duration)>,
    /// What clients of the whole crib call some tools instead; by the server's own names.
    pub rename: BTreeMap<String, String>,
    /// Whether arguments are held against a tool's schema before they are sent.
    pub check: bool,
}

/// What is done about a tool that is not what was approved, or that nobody has approved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pinning {
    /// It is marked, and can be used.
    #[default]
    Mark,
    /// It is neither listed nor called until a person approves it.
    Strict,
}

impl Pinning {
    /// The words of the config.
    pub const ALL: [(&'static str, Self); 2] = [("mark", Self::Mark), ("strict", Self::Strict)];

    /// As the config spells it.
    pub fn as_str(self) -> &'static str {
        if self == Self::Mark { "mark" } else { "strict" }
    }
}

impl ToolsSpec {
    /// Whether somebody wrote that this tool may run twice.
    pub(crate) fn may_repeat(&self, tool: &str) -> bool {
        self.idempotent.iter().any(|pattern| pattern.matches(tool))
    }

    /// Whether somebody wrote that results of this tool may be kept.
    pub(crate) fn may_keep(&self, tool: &str) -> bool {
        self.cache.iter().any(|pattern| pattern.matches(tool))
    }

    /// A tool's own limit: of the patterns that fit, the longest says most.
    pub(crate) fn call_timeout(&self, tool: &str) -> Option<(&Pattern, Duration)> {
        let fitting = self.call_timeout.iter().filter(|(pattern, _)| pattern.matches(tool));
        fitting.max_by_key(|(pattern, _)| pattern.0.len()).map(|(pattern, limit)| (pattern, *limit))
    }
}

/// Whether what a server says about its tools may be believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Trust {
    /// Its hints are passed on and not acted on.
    #[default]
    Normal,
    /// Its hints count: what it calls read-only or idempotent may run twice, and results of what it calls read-only may be
    /// kept for as long as it says.
    Trusted,
}

/// A name in which `*` stands for any characters, none included.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern(String);

/// A pattern that fits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyPattern;

impl FromStr for Pattern {
    type Err = EmptyPattern;

    fn from_str(written: &str) -> Result<Self, EmptyPattern> {
        if written.is_empty() { Err(EmptyPattern) } else { Ok(Self(written.to_owned())) }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Pattern {
    /// The pattern that every name fits.
    pub fn any() -> Self {
        Self("*".to_owned())
    }

    /// Whether every name fits.
    pub fn is_any(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }

    /// The one name that fits, if there is no `*` in it.
    pub fn literal(&self) -> Option<&str> {
        Some(&*self.0).filter(|name| !name.contains('*'))
    }

    /// Whether a name fits, letter by letter, upper and lower case being different.
    pub fn matches(&self, name: &str) -> bool {
        // Most patterns have one star at most, and calls are held against many: bytes are looked at, and nothing is split.
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let is_star = |byte: &u8| *byte == b'*';
        let Some(star) = pattern.iter().position(is_star) else { return pattern == name };
        let (before, after) = (&pattern[..star], &pattern[star + 1..]);
        let Some(mut rest) = name.strip_prefix(before) else { return false };
        let Some(end) = after.iter().rposition(is_star) else { return rest.ends_with(after) };
        for part in after[..end].split(is_star) {
            let Some(at) = memchr::memmem::find(rest, part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(&after[end + 1..])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_is_any_characters_and_everything_else_is_itself() {
        for (pattern, name, fits) in [
            ("get_log", "get_log", true),
            ("get_log", "get_logs", false),
            ("get_*", "get_", true),
            ("get_*", "get_log", true),
            ("get_*", "forget_log", false),
            ("*", "", true),
            ("*_log", "get_log", true),
            ("*_log", "_log_", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**", "anything", true),
            ("Get", "get", false),
            ("a.c", "abc", false),
        ] {
            assert_eq!(pattern.parse::<Pattern>().unwrap().matches(name), fits, "{pattern} {name}");
        }
        assert!("".parse::<Pattern>().is_err());
    }

    proptest! {
        #[test]
        fn whatever_a_star_is_filled_with_fits(parts in prop::collection::vec("[ab]{0,3}", 1..4), fill in "[ab]{0,3}") {
            let pattern = parts.join("*");
            prop_assume!(!pattern.is_empty());
            prop_assert!(pattern.parse::<Pattern>().unwrap().matches(&parts.join(&fill)));
        }
    }
}
