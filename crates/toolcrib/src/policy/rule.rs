//! `Rule`: one pattern `SERVER.NAME`, and the lists that rules stand in.

use std::fmt;
use std::str::FromStr;

use crate::spec::{Origin, Pattern, ServerId};

/// A pattern over servers and their own names: split at the first `.`, and a lone `*` is everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    server: Pattern,
    name: Pattern,
    written: String,
    /// Whether a tag chose the server; the tag is what is written then.
    pub(super) by_tag: bool,
    pub(crate) origin: Option<Origin>,
}

/// Why a text is no rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadRule {
    /// It has no dot.
    NoDot,
    /// There is nothing on one side of the dot.
    Empty,
    /// No server can have such a name.
    NoServer,
}

impl fmt::Display for BadRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoDot => "it has no `.` between the server and the name",
            Self::Empty => "there is nothing on one side of its first `.`",
            Self::NoServer => "no server can be called what stands before its first `.`",
        })
    }
}

impl std::error::Error for BadRule {}

impl FromStr for Rule {
    type Err = BadRule;

    fn from_str(written: &str) -> Result<Self, BadRule> {
        let (server, name) = match written {
            "*" => ("*", "*"),
            _ => written.split_once('.').ok_or(BadRule::NoDot)?,
        };
        let of_a_server =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-_*".contains(letter);
        if !server.chars().all(of_a_server) {
            return Err(BadRule::NoServer);
        }
        let pattern = |text: &str| text.parse::<Pattern>().map_err(|_| BadRule::Empty);
        let (server, name) = (pattern(server)?, pattern(name)?);
        Ok(Self { server, name, written: written.to_owned(), by_tag: false, origin: None })
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl Rule {
    /// A rule over the names of the server whose list it stands in.
    pub fn bare(name: Pattern) -> Self {
        Self { server: Pattern::any(), written: name.to_string(), name, by_tag: false, origin: None }
    }

    /// A rule over everything of the servers of such names.
    pub fn server(written: &str) -> Result<Self, BadRule> {
        match written.contains('.') {
            true => Err(BadRule::NoServer),
            false => Ok(Self { written: written.to_owned(), ..format!("{written}.*").parse()? }),
        }
    }

    /// A rule over everything of one server, which has a tag.
    pub(crate) fn tagged(server: &ServerId, tag: &str) -> Result<Self, BadRule> {
        Ok(Self { written: tag.to_owned(), by_tag: true, ..Self::server(server.as_str())? })
    }

    /// The rule with the place it is written at.
    #[must_use]
    pub(crate) fn at(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// The one server it names, if it names one.
    pub(crate) fn only_server(&self) -> Option<&str> {
        self.server.literal()
    }

    /// Whether it says anything about a server.
    pub(crate) fn concerns(&self, server: &ServerId) -> bool {
        self.server.matches(server.as_str())
    }

    /// Whether it says something about everything of a server.
    pub(crate) fn covers(&self, server: &ServerId) -> bool {
        self.name.is_any() && self.concerns(server)
    }

    /// Whether it is about a name of a server.
    pub fn matches(&self, server: &ServerId, name: &str) -> bool {
        self.name.matches(name) && self.concerns(server)
    }

    /// Whether it forbids a name; a server as such is forbidden only with everything of it.
    pub(super) fn denies(&self, server: &ServerId, name: Option<&str>) -> bool {
        match name {
            Some(name) => self.matches(server, name),
            None => self.covers(server),
        }
    }

    /// Whether it lets a name through; a server as such, with anything of it.
    pub(super) fn allows(&self, server: &ServerId, name: Option<&str>) -> bool {
        name.is_none_or(|name| self.name.matches(name)) && self.concerns(server)
    }
}

/// The only things that are let through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowList {
    /// Any of these lets something through.
    pub rules: Vec<Rule>,
    /// Whether tags have a say in it.
    pub(crate) by_tags: bool,
    pub(crate) origin: Option<Origin>,
}

/// What one level allows, denies and asks about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// The only things that are let through; everything, if there is no such list.
    pub allow: Option<AllowList>,
    /// What is not, whoever allows it.
    pub deny: Vec<Rule>,
    /// What a person must say yes to each time, if it is let through.
    pub ask: Vec<Rule>,
}

impl Rules {
    /// Whether they say nothing.
    pub fn is_empty(&self) -> bool {
        self.allow.is_none() && self.deny.is_empty() && self.ask.is_empty()
    }

    /// With nothing let through but this.
    #[must_use]
    pub fn allowing(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.allow = Some(AllowList { rules: rules.into_iter().collect(), ..AllowList::default() });
        self
    }

    /// With this not let through.
    #[must_use]
    pub fn denying(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.deny.extend(rules);
        self
    }

    /// With a person asked about this each time.
    #[must_use]
    pub fn asking(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.ask.extend(rules);
        self
    }
}
