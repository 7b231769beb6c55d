//! `ToolsSpec`: settings for the tools of a server, by patterns over the server's own tool names.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Settings for the tools of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolsSpec {
    /// Tools that may run twice: a call is retried once if the server is lost.
    pub idempotent: Vec<NamePattern>,
    /// Tools whose results may be cached for as long as the server's TTL hint allows.
    pub cache: Vec<NamePattern>,
    /// Time limits of calls that report no progress, instead of the server's limit.
    pub call_timeout: Vec<(NamePattern, Duration)>,
    /// Tokens of a result that clients of a gateway are sent, instead of the server's limit; zero for no limit.
    pub result_tokens: Vec<(NamePattern, usize)>,
    /// New tool names for clients of the crib, by the server's own names.
    pub rename: BTreeMap<String, String>,
    /// True if arguments are validated against the tool's input schema before they are sent.
    pub check_arguments: bool,
}

/// Handling of a tool that has not been approved, or differs from its approved definition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pinning {
    /// It is marked, and remains usable.
    #[default]
    Mark,
    /// It is neither listed nor callable until a person approves it.
    Strict,
}

impl Pinning {
    /// All values by their name in the config.
    pub const ALL: [(&'static str, Self); 2] = [("mark", Self::Mark), ("strict", Self::Strict)];

    /// Returns the name in the config.
    pub fn as_str(self) -> &'static str {
        if self == Self::Mark { "mark" } else { "strict" }
    }
}

impl ToolsSpec {
    /// Returns whether the config declares this tool idempotent.
    pub(crate) fn is_idempotent(&self, tool: &str) -> bool {
        self.idempotent.iter().any(|pattern| pattern.matches(tool))
    }

    /// Returns the server's own name of a tool, by its name for clients.
    pub(crate) fn own_name<'a>(&'a self, name: &'a str) -> &'a str {
        let renamed = self.rename.iter().find(|(_, new)| *new == name);
        renamed.map_or(name, |(own, _)| own.as_str())
    }

    /// Returns whether the config declares results of this tool cacheable.
    pub(crate) fn is_cacheable(&self, tool: &str) -> bool {
        self.cache.iter().any(|pattern| pattern.matches(tool))
    }

    /// Returns the time limit of a tool: that of the longest matching pattern.
    pub(crate) fn find_call_timeout(&self, tool: &str) -> Option<(&NamePattern, Duration)> {
        let matching = self.call_timeout.iter().filter(|(pattern, _)| pattern.matches(tool));
        matching.max_by_key(|(pattern, _)| pattern.0.len()).map(|(pattern, limit)| (pattern, *limit))
    }

    /// Returns the tokens of a result of a tool that clients are sent, zero for no limit: those of the longest matching pattern.
    pub(crate) fn find_result_tokens(&self, tool: &str) -> Option<usize> {
        let matching = self.result_tokens.iter().filter(|(pattern, _)| pattern.matches(tool));
        matching.max_by_key(|(pattern, _)| pattern.0.len()).map(|(_, tokens)| *tokens)
    }
}

/// Trust in a server's hints about its tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trust {
    /// Hints are passed on, but not acted on.
    #[default]
    Normal,
    /// Tools with a read-only or idempotent hint may run twice, and results of read-only tools are cached for as long as
    /// the server's TTL hint allows.
    Trusted,
}

/// A name in which `*` stands for any number of characters, including none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamePattern(String);

/// Error for an empty pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmptyPattern;

impl FromStr for NamePattern {
    type Err = EmptyPattern;

    fn from_str(written: &str) -> Result<Self, EmptyPattern> {
        if written.is_empty() { Err(EmptyPattern) } else { Ok(Self(written.to_owned())) }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl NamePattern {
    /// Returns the pattern that matches every name.
    pub fn any() -> Self {
        Self("*".to_owned())
    }

    /// Returns whether every name matches.
    pub fn is_any(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }

    /// Returns the only name that matches, if the pattern has no `*`.
    pub fn literal(&self) -> Option<&str> {
        Some(&*self.0).filter(|name| !name.contains('*'))
    }

    /// Returns whether a name matches, case-sensitively.
    pub fn matches(&self, name: &str) -> bool {
        // Every call is matched against many patterns, most with at most one star, so this does not allocate.
        let pattern = self.0.as_bytes();
        let name = name.as_bytes();
        let is_star = |byte: &u8| *byte == b'*';
        let Some(star) = pattern.iter().position(is_star) else { return pattern == name };
        let after = &pattern[star + 1..];
        let Some(mut rest) = name.strip_prefix(&pattern[..star]) else { return false };
        let Some(end) = after.iter().rposition(is_star) else { return rest.ends_with(after) };
        for part in after[..end].split(is_star) {
            let Some(at) = memchr::memmem::find(rest, part) else { return false };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(&after[end + 1..])
    }

    /// Returns whether some name matches both patterns.
    #[cfg(feature = "config")]
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let own = self.0.as_bytes();
        let other = other.0.as_bytes();
        // Whether the ends of both patterns overlap: for each end of `other`, with the end of `own` one byte shorter, and then
        // with the current one.
        let mut shorter = vec![false; other.len() + 1];
        let is_stars = |pattern: &[u8]| pattern.iter().all(|byte| *byte == b'*');
        for (end, overlaps) in shorter.iter_mut().enumerate() {
            *overlaps = is_stars(&other[end..]);
        }
        for start in (0..own.len()).rev() {
            let mut current = vec![is_stars(&own[start..]); other.len() + 1];
            for end in (0..other.len()).rev() {
                current[end] = match (own[start], other[end]) {
                    (b'*', _) | (_, b'*') => shorter[end] || current[end + 1],
                    (one, two) => one == two && shorter[end + 1],
                };
            }
            shorter = current;
        }
        shorter[0]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn star_matches_any_characters_and_others_themselves() {
        for (pattern, name, matches) in [
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
            assert_eq!(pattern.parse::<NamePattern>().unwrap().matches(name), matches, "{pattern} {name}");
        }
        assert!("".parse::<NamePattern>().is_err());
    }

    proptest! {
        #[test]
        fn star_matches_any_replacement(parts in prop::collection::vec("[ab]{0,3}", 1..4), fill in "[ab]{0,3}") {
            let pattern = parts.join("*");
            prop_assume!(!pattern.is_empty());
            prop_assert!(pattern.parse::<NamePattern>().unwrap().matches(&parts.join(&fill)));
        }
    }
}
