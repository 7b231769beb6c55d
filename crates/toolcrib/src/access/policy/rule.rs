//! `Rule`: one pattern `SERVER.NAME`, and the lists of rules of one policy level.

use std::fmt;
use std::str::FromStr;

use crate::access::uri_forms::{self, UriForms};
use crate::spec::{NamePattern, Origin, ServerId};
use crate::util::unicode_fold::fold;

/// A pattern `SERVER.NAME` over servers and their own names of items, split at the first `.`. `*` alone matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    server: NamePattern,
    name: NamePattern,
    /// Whether the name is a pattern over URIs, which is compared with every form of a URI.
    is_uri: bool,
    /// The canonical form of such a pattern.
    canonical: Option<NamePattern>,
    /// Both, folded: some servers distinguish neither case nor the composition of letters.
    folded: Vec<NamePattern>,
    /// The rule as written in the config; a tag, if the rule was made from one.
    text: String,
    /// Whether the rule was made from a tag.
    pub(super) is_from_tag: bool,
    pub(crate) origin: Option<Origin>,
}

/// The reason why a text is not a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidRule {
    /// There is no dot.
    MissingDot,
    /// One side of the first dot is empty.
    EmptyPart,
    /// The part before the first dot cannot match a server name.
    InvalidServer,
}

impl fmt::Display for InvalidRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MissingDot => "it has no `.` between the server and the name",
            Self::EmptyPart => "one side of its first `.` is empty",
            Self::InvalidServer => "the part before its first `.` cannot be a server name",
        })
    }
}

impl std::error::Error for InvalidRule {}

impl FromStr for Rule {
    type Err = InvalidRule;

    fn from_str(text: &str) -> Result<Self, InvalidRule> {
        let (server, name) = match text {
            "*" => ("*", "*"),
            _ => text.split_once('.').ok_or(InvalidRule::MissingDot)?,
        };
        let is_server_char =
            |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || "-_*".contains(char);
        if !server.chars().all(is_server_char) {
            return Err(InvalidRule::InvalidServer);
        }
        let pattern = |text: &str| text.parse::<NamePattern>().map_err(|_| InvalidRule::EmptyPart);
        let rule = Self::for_name(pattern(name)?);
        Ok(Self { server: pattern(server)?, text: text.to_owned(), ..rule })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Rule {
    /// Creates a rule over names for the list of one server.
    pub fn for_name(name: NamePattern) -> Self {
        let text = name.to_string();
        let is_uri = text.contains([':', '/', '\\']);
        let canonical = uri_forms::canonical_pattern(&text);
        let patterns = [Some(&text), canonical.as_ref()].into_iter().flatten().filter(|_| is_uri);
        Self {
            server: NamePattern::any(),
            is_uri,
            folded: patterns.filter_map(|pattern| fold(pattern).parse().ok()).collect(),
            canonical: canonical.and_then(|pattern| pattern.parse().ok()),
            name,
            text,
            is_from_tag: false,
            origin: None,
        }
    }

    /// Creates a rule over every item of the servers that a pattern matches.
    ///
    /// # Errors
    /// Fails if the pattern cannot match a server name.
    pub fn for_servers(pattern: &str) -> Result<Self, InvalidRule> {
        if pattern.contains('.') {
            return Err(InvalidRule::InvalidServer);
        }
        Ok(Self { text: pattern.to_owned(), ..format!("{pattern}.*").parse()? })
    }

    /// Creates a rule over every item of a server that has the tag.
    pub(crate) fn for_tagged_server(server: &ServerId, tag: &str) -> Result<Self, InvalidRule> {
        Ok(Self { text: tag.to_owned(), is_from_tag: true, ..Self::for_servers(server.as_str())? })
    }

    /// Sets the location of the rule in a file.
    #[must_use]
    pub(crate) fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// The server, if the rule names exactly one.
    pub(crate) fn literal_server(&self) -> Option<&str> {
        self.server.literal()
    }

    /// Returns whether the rule matches a server.
    pub(crate) fn matches_server(&self, server: &ServerId) -> bool {
        self.server.matches(server.as_str())
    }

    /// Returns whether the rule is about URIs of a server.
    pub(super) fn concerns_uris_of(&self, server: &ServerId) -> bool {
        self.is_uri && self.matches_server(server)
    }

    /// Returns whether the rule matches every item of a server.
    pub(crate) fn covers_server(&self, server: &ServerId) -> bool {
        self.name.is_any() && self.matches_server(server)
    }

    /// Returns whether the rule matches an item of a server.
    pub fn matches(&self, server: &ServerId, name: &str) -> bool {
        self.name.matches(name) && self.matches_server(server)
    }

    /// Returns whether the rule, in a deny list, denies an item in any of its forms. It denies the server itself only if it
    /// covers all its items.
    pub(super) fn denies(&self, server: &ServerId, name: Option<&str>, forms: &UriForms<'_>) -> bool {
        match name {
            Some(name) => self.matches_any_form(server, name, forms),
            None => self.covers_server(server),
        }
    }

    /// Returns whether the rule matches an item of a server in any form that servers may take for the same.
    pub(super) fn matches_any_form(&self, server: &ServerId, name: &str, forms: &UriForms<'_>) -> bool {
        let matches_form = |form: &String| {
            self.name.matches(form) || self.canonical.as_ref().is_some_and(|pattern| pattern.matches(form))
        };
        let matches_folded = |form: &String| self.folded.iter().any(|pattern| pattern.matches(form));
        let matches_uri =
            || forms.get().iter().any(matches_form) || forms.folded().iter().any(matches_folded);
        self.matches_server(server) && (self.name.matches(name) || (self.is_uri && matches_uri()))
    }

    /// Returns whether the rule, in an allow list, allows an item. It allows the server itself if it may match any of
    /// its items.
    pub(super) fn allows(&self, server: &ServerId, name: Option<&str>) -> bool {
        name.is_none_or(|name| self.name.matches(name)) && self.matches_server(server)
    }
}

/// A list that denies everything it does not match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    /// An item is allowed if one of these matches.
    pub rules: Vec<Rule>,
    /// Whether the list was extended by tags.
    pub(crate) has_tags: bool,
    pub(crate) origin: Option<Origin>,
}

/// The rules of one policy level.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The allowed items. Without a list, everything is allowed.
    pub allow: Option<AllowList>,
    /// The denied items, even if they are allowed.
    pub deny: Vec<Rule>,
    /// The items that need approval of each call.
    pub ask: Vec<Rule>,
}

impl Rules {
    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.allow.is_none() && self.deny.is_empty() && self.ask.is_empty()
    }

    /// Allows only what these rules match.
    #[must_use]
    pub fn allowing(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.allow = Some(AllowList { rules: rules.into_iter().collect(), ..AllowList::default() });
        self
    }

    /// Denies what these rules match.
    #[must_use]
    pub fn denying(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.deny.extend(rules);
        self
    }

    /// Requires approval for what these rules match.
    #[must_use]
    pub fn asking(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.ask.extend(rules);
        self
    }
}
