//! `Policy`: who may use what, by patterns over servers and their own names for things.
//!
//! Nothing here waits, reads a clock or knows a public name: it is asked about a thing that has been found already.

mod rule;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::call::Caller;
use crate::error::{Error, ErrorKind};
use crate::spec::{Origin, ServerId};
pub use rule::{AllowList, BadRule, Rule, Rules};

/// What an embedder's own guard says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing against it; the rules still hold.
    Allow,
    /// Not this, and why.
    Deny(String),
}

/// Decides about a caller, a server and one of its names; without a name, about the server as such.
pub(crate) type Guard = Arc<dyn Fn(&Caller, &ServerId, Option<&str>) -> Verdict + Send + Sync>;

/// Every rule there is. At each level deny wins over allow, and all levels must agree: those for everyone, those of the
/// profile that the caller looks through, those of the server and those of the caller. What is let through may still need a
/// person's yes, if any level asks for one.
#[derive(Clone, Default)]
pub struct Policy {
    /// For everyone.
    pub everyone: Rules,
    /// For whoever looks through one, by name.
    pub profiles: BTreeMap<String, Profile>,
    /// Over the names of one server.
    pub servers: BTreeMap<ServerId, Rules>,
    /// For one caller, by name.
    pub callers: HashMap<String, Rules>,
    pub(crate) guard: Option<Guard>,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("everyone", &self.everyone)
            .field("profiles", &self.profiles)
            .field("servers", &self.servers)
            .field("callers", &self.callers)
            .field("guard", &self.guard.is_some())
            .finish()
    }
}

/// The rules alone; two guards cannot be compared.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        (&self.everyone, &self.profiles, &self.servers, &self.callers)
            == (&other.everyone, &other.profiles, &other.servers, &other.callers)
    }
}

/// A part of everything, for some purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// The servers in it, if it does not have all of them.
    pub servers: Rules,
    /// What it has of them.
    pub rules: Rules,
}

/// Whose rules these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level<'a> {
    /// Everyone's.
    Everyone,
    /// The servers of a profile.
    ServersOf(&'a str),
    /// A profile's.
    Profile(&'a str),
    /// A server's.
    Server(&'a ServerId),
    /// A caller's.
    Caller(&'a str),
}

impl fmt::Display for Level<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("policy"),
            Self::ServersOf(profile) | Self::Profile(profile) => write!(f, "profiles.{profile}"),
            Self::Server(server) => write!(f, "servers.{server}.tools"),
            Self::Caller(caller) => write!(f, "callers.{caller}"),
        }
    }
}

/// What one level has to say about something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding<'a> {
    /// This rule forbids it.
    Denied(Level<'a>, &'a Rule),
    /// This rule lets it through.
    Allowed(Level<'a>, &'a Rule),
    /// This rule has a person asked each time.
    Asked(Level<'a>, &'a Rule),
    /// Only what is in this list is let through, and it is not.
    Unlisted(Level<'a>, &'a AllowList),
}

impl<'a> Finding<'a> {
    /// Whether it is a no.
    pub fn denies(&self) -> bool {
        !matches!(self, Self::Allowed(..) | Self::Asked(..))
    }

    /// Where the rule is written, if it is in a file.
    pub fn origin(&self) -> Option<&'a Origin> {
        match self {
            Self::Denied(_, rule) | Self::Allowed(_, rule) | Self::Asked(_, rule) => rule.origin.as_ref(),
            Self::Unlisted(_, list) => list.origin.as_ref(),
        }
    }
}

impl fmt::Display for Finding<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed(level @ Level::ServersOf(_), rule) => {
                write!(f, "`{level}.{}` has `{rule}`", if rule.by_tag { "tags" } else { "servers" })
            }
            Self::Unlisted(level @ Level::ServersOf(_), list) => {
                let key = if list.by_tags { "tags" } else { "servers" };
                write!(f, "nothing in `{level}.{key}` lets it through")
            }
            Self::Denied(level, rule) => write!(f, "`{level}.deny` has `{rule}`"),
            Self::Allowed(level, rule) => write!(f, "`{level}.allow` has `{rule}`"),
            Self::Asked(level, rule) => write!(f, "`{level}.ask` has `{rule}`"),
            Self::Unlisted(level, _) => write!(f, "nothing in `{level}.allow` lets it through"),
        }
    }
}

/// A no, and the rule behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// The rule, in words.
    pub rule: String,
    /// Where it is written, if it is in a file.
    pub origin: Option<Origin>,
}

impl Policy {
    /// These rules, for everyone and everything.
    pub fn for_everyone(everyone: Rules) -> Self {
        Self { everyone, ..Self::default() }
    }

    /// Whether there is nothing to ask it about.
    pub fn is_empty(&self) -> bool {
        let mut rules = self.servers.values().chain(self.callers.values());
        self.guard.is_none()
            && self.everyone.is_empty()
            && self.profiles.is_empty()
            && rules.all(Rules::is_empty)
    }

    /// Whether the rules say all there is to say: neither a guard nor a person is asked about any call.
    pub(crate) fn asks_nobody(&self) -> bool {
        let of_profiles = self.profiles.values().flat_map(|profile| [&profile.servers, &profile.rules]);
        let mut rules = self.servers.values().chain(self.callers.values()).chain(of_profiles);
        self.guard.is_none() && self.everyone.ask.is_empty() && rules.all(|rules| rules.ask.is_empty())
    }

    /// The profile that a caller looks through and that is not there: nothing can be seen through it.
    pub fn lost_profile<'a>(&self, caller: &'a Caller) -> Option<&'a str> {
        caller.profile().filter(|profile| !self.profiles.contains_key(*profile))
    }

    /// Whether a caller may use a server's own name for something; without a name, whether the caller may know of the
    /// server at all.
    pub fn judge(&self, caller: &Caller, server: &ServerId, name: Option<&str>) -> Result<(), Denial> {
        if let Some(profile) = self.lost_profile(caller) {
            return Err(Denial { rule: format!("there is no profile `{profile}`"), origin: None });
        }
        let mut findings = self.denials(caller, server, name).chain(self.lists(caller, server, name));
        if let Some(no) = findings.find(Finding::denies) {
            return Err(Denial { rule: no.to_string(), origin: no.origin().cloned() });
        }
        match self.guard.as_ref().map(|guard| guard(caller, server, name)) {
            Some(Verdict::Deny(rule)) => Err(Denial { rule, origin: None }),
            Some(Verdict::Allow) | None => Ok(()),
        }
    }

    /// Whether a caller may know of a server.
    pub fn sees(&self, caller: &Caller, server: &ServerId) -> bool {
        self.judge(caller, server, None).is_ok()
    }

    /// The rule by which a person must say yes, if something is let through at all.
    pub fn asks<'a>(&'a self, caller: &'a Caller, server: &'a ServerId, name: &str) -> Option<Finding<'a>> {
        self.levels(caller, server).find_map(|(level, rules)| {
            let rule = rules.ask.iter().find(|rule| rule.allows(server, Some(name)))?;
            Some(Finding::Asked(level, rule))
        })
    }

    /// Whether nothing at all of a server is kept from a caller, or asked about.
    pub fn is_open(&self, caller: &Caller, server: &ServerId) -> bool {
        let open = |rules: &Rules| {
            !rules.deny.iter().chain(&rules.ask).any(|rule| rule.concerns(server))
                && rules.allow.as_ref().is_none_or(|list| list.rules.iter().any(|rule| rule.covers(server)))
        };
        self.guard.is_none()
            && self.lost_profile(caller).is_none()
            && self.levels(caller, server).all(|(_, rules)| open(rules))
    }

    /// What each level has to say, denials first, then what is asked about: the first no is the answer.
    pub fn findings<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = Finding<'a>> {
        let asked = name.and_then(|name| self.asks(caller, server, name));
        self.denials(caller, server, name).chain(asked).chain(self.lists(caller, server, name))
    }

    fn denials<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = Finding<'a>> {
        self.levels(caller, server).filter_map(move |(level, rules)| {
            let rule = rules.deny.iter().find(|rule| rule.denies(server, name))?;
            Some(Finding::Denied(level, rule))
        })
    }

    /// What the lists of what is let through say.
    fn lists<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = Finding<'a>> {
        self.levels(caller, server).filter_map(move |(level, rules)| {
            let list = rules.allow.as_ref()?;
            let rule = list.rules.iter().find(|rule| rule.allows(server, name));
            Some(rule.map_or(Finding::Unlisted(level, list), |rule| Finding::Allowed(level, rule)))
        })
    }

    fn levels<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
    ) -> impl Iterator<Item = (Level<'a>, &'a Rules)> {
        let of_server = self.servers.get(server).map(|rules| (Level::Server(server), rules));
        let of_caller =
            self.callers.get(caller.as_str()).map(|rules| (Level::Caller(caller.as_str()), rules));
        let profile = caller.profile().and_then(|name| Some((name, self.profiles.get(name)?)));
        let of_profile = profile.into_iter().flat_map(|(name, profile)| {
            [(Level::ServersOf(name), &profile.servers), (Level::Profile(name), &profile.rules)]
        });
        std::iter::once((Level::Everyone, &self.everyone)).chain(of_profile).chain(of_server).chain(of_caller)
    }
}

impl Denial {
    /// The failure that a caller gets to see; only whoever is on this machine learns where the rule is written.
    pub(crate) fn error(self, caller: &Caller, server: &ServerId, name: &str) -> Error {
        self.error_because(caller, server, name, "")
    }

    /// The same, and what else there is to say.
    pub(crate) fn error_because(self, caller: &Caller, server: &ServerId, name: &str, why: &str) -> Error {
        let Self { rule, origin } = self;
        let origin = origin.filter(|_| *caller == Caller::local());
        let place = origin.as_ref().map(|at| format!(" ({}:{})", at.file.display(), at.line));
        let message = format!(
            "`{}` may not use `{server}.{name}`: {why}{}{rule}{}",
            caller.as_str(),
            if why.is_empty() { "" } else { ": " },
            place.unwrap_or_default()
        );
        Error::new(ErrorKind::Denied, message).at(server).denied_by(Self { rule, origin })
    }
}
