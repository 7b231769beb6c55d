//! Access policy: which caller may use which items of which server.
//!
//! Nothing here waits, reads a clock or knows public names. A policy decides about an item that has already been found.

#[cfg_attr(not(feature = "config"), expect(dead_code, reason = "config files use more of it"))]
mod rule;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::access::uri_forms::UriForms;
use crate::model::caller::Caller;
use crate::model::denial::Denial;
use crate::spec::{Origin, ServerId};
use crate::util::panics;
pub use rule::{AllowList, InvalidRule, Rule, Rules};

/// The verdict of an embedder's guard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardVerdict {
    /// The guard has no objection. The rules still apply.
    Allow,
    /// Denied, with the reason.
    Deny(String),
}

/// Decides about a caller, a server and one of its own names, or about the server itself without a name.
pub(crate) type Guard = Arc<dyn Fn(&Caller, &ServerId, Option<&str>) -> GuardVerdict + Send + Sync>;

/// All access rules. Every level must allow an item: the rules for everyone, those of the caller's profile, those of the
/// server, those of the caller and those of its groups. Within a level deny wins over allow. The groups of a caller are one
/// level: what any of them denies is denied, and of those with an allow list, one must allow the item. An allowed item may
/// still need approval, if any level asks for it.
///
/// ```
/// use toolcrib::{Call, Caller, Crib, ErrorKind, Policy, Rules, ServerSpec, Toolbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let schema = serde_json::json!({"type": "object"});
/// let tools = Toolbox::new()
///     .tool("log", "", &schema, |_| async { Ok("one commit".to_owned()) })
///     .tool("push", "", &schema, |_| async { Ok("pushed".to_owned()) });
/// let mut policy = Policy::for_everyone(Rules::default().denying(["git.force_*".parse()?]));
/// policy.callers.insert("ci".to_owned(), Rules::default().allowing(["git.log".parse()?]));
/// let git = ServerSpec::in_process("git".parse()?, tools);
/// let crib = Crib::builder().server(git).policy(policy).build()?;
///
/// let ci = Caller::new("ci");
/// assert_eq!(crib.call(Call::tool("git__log").caller(ci.clone())).await?.text(), "one commit");
/// let denied = crib.call(Call::tool("git__push").caller(ci.clone())).await.unwrap_err();
/// assert_eq!(denied.kind(), ErrorKind::Denied);
/// assert_eq!(crib.list_for(&ci).await.tools().len(), 1);
/// // No rule concerns the other callers.
/// assert_eq!(crib.call(Call::tool("git__push")).await?.text(), "pushed");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Policy {
    /// Rules for every caller.
    pub everyone: Rules,
    /// Profiles by name.
    pub profiles: BTreeMap<String, Profile>,
    /// Rules for the items of one server.
    pub servers: BTreeMap<ServerId, Rules>,
    /// Rules for one caller, by name.
    pub callers: HashMap<String, Rules>,
    /// Rules for the members of a group, by name.
    pub groups: BTreeMap<String, Rules>,
    /// Profiles of agents of the local user, by name of the agent. The others have the profile `agent-NAME`, if there is one.
    pub agents: BTreeMap<String, String>,
    pub(crate) guard: Option<Guard>,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("everyone", &self.everyone)
            .field("profiles", &self.profiles)
            .field("servers", &self.servers)
            .field("callers", &self.callers)
            .field("groups", &self.groups)
            .field("agents", &self.agents)
            .field("guard", &self.guard.is_some())
            .finish()
    }
}

/// Compares the rules only; guards cannot be compared.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        (&self.everyone, &self.profiles, &self.servers, &self.callers, &self.groups, &self.agents)
            == (
                &other.everyone,
                &other.profiles,
                &other.servers,
                &other.callers,
                &other.groups,
                &other.agents,
            )
    }
}

/// A named selection of servers and items.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// The servers of the profile. Without an allow list, all servers.
    pub servers: Rules,
    /// Rules for the items of these servers.
    pub rules: Rules,
    /// The groups that may use the profile; everyone if there are none.
    pub groups: Vec<String>,
}

/// The part of a policy that a rule belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyLevel<'a> {
    /// The rules for every caller.
    Everyone,
    /// The servers of a profile.
    ProfileServers(&'a str),
    /// The rules of a profile.
    Profile(&'a str),
    /// The rules of a server.
    Server(&'a ServerId),
    /// The rules of a caller.
    Caller(&'a str),
    /// The rules of a group that the caller is in.
    Group(&'a str),
}

impl fmt::Display for PolicyLevel<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everyone => f.write_str("policy"),
            Self::ProfileServers(profile) | Self::Profile(profile) => write!(f, "profiles.{profile}"),
            Self::Server(server) => write!(f, "servers.{server}.tools"),
            Self::Caller(caller) => write!(f, "callers.{caller}"),
            Self::Group(group) => write!(f, "groups.{group}"),
        }
    }
}

/// The verdict of one level about an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PolicyVerdict<'a> {
    /// This rule denies it.
    Denied(PolicyLevel<'a>, &'a Rule),
    /// This rule allows it.
    Allowed(PolicyLevel<'a>, &'a Rule),
    /// This rule requires approval of each call.
    NeedsApproval(PolicyLevel<'a>, &'a Rule),
    /// The level has this allow list, and no rule in it matches.
    Unlisted(PolicyLevel<'a>, &'a AllowList),
}

impl<'a> PolicyVerdict<'a> {
    /// Returns whether the verdict denies the item.
    pub fn is_denial(&self) -> bool {
        !matches!(self, Self::Allowed(..) | Self::NeedsApproval(..))
    }

    /// The location of the rule, if it comes from a file.
    pub fn origin(&self) -> Option<&'a Origin> {
        match self {
            Self::Denied(_, rule) | Self::Allowed(_, rule) | Self::NeedsApproval(_, rule) => {
                rule.origin.as_ref()
            }
            Self::Unlisted(_, list) => list.origin.as_ref(),
        }
    }
}

impl fmt::Display for PolicyVerdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed(level @ PolicyLevel::ProfileServers(_), rule) => {
                write!(f, "`{level}.{}` has `{rule}`", if rule.is_from_tag { "tags" } else { "servers" })
            }
            Self::Unlisted(level @ PolicyLevel::ProfileServers(_), list) => {
                let key = if list.has_tags { "tags" } else { "servers" };
                write!(f, "nothing in `{level}.{key}` matches")
            }
            Self::Denied(level, rule) => write!(f, "`{level}.deny` has `{rule}`"),
            Self::Allowed(level, rule) => write!(f, "`{level}.allow` has `{rule}`"),
            Self::NeedsApproval(level, rule) => write!(f, "`{level}.ask` has `{rule}`"),
            Self::Unlisted(level, _) => write!(f, "nothing in `{level}.allow` matches"),
        }
    }
}

impl Policy {
    /// Creates a policy with rules for every caller.
    pub fn for_everyone(everyone: Rules) -> Self {
        Self { everyone, ..Self::default() }
    }

    /// Returns whether the policy has neither rules nor a guard.
    pub fn is_empty(&self) -> bool {
        let mut rules = self.servers.values().chain(self.callers.values()).chain(self.groups.values());
        self.guard.is_none()
            && self.everyone.is_empty()
            && self.profiles.is_empty()
            && rules.all(Rules::is_empty)
    }

    /// Returns whether the rules alone decide: there is no guard, and no call needs approval.
    pub(crate) fn is_rules_only(&self) -> bool {
        let of_profiles = self.profiles.values().flat_map(|profile| [&profile.servers, &profile.rules]);
        let of_callers = self.callers.values().chain(self.groups.values());
        let mut rules = self.servers.values().chain(of_callers).chain(of_profiles);
        self.guard.is_none() && self.everyone.ask.is_empty() && rules.all(|rules| rules.ask.is_empty())
    }

    /// Returns the name of the caller's profile if there is no such profile. Such a caller is denied everything.
    pub fn missing_profile<'a>(&self, caller: &'a Caller) -> Option<&'a str> {
        caller.profile().filter(|profile| !self.profiles.contains_key(*profile))
    }

    /// Returns the local caller, or one of its agents, with its profile: the one that is given, else that of the agent.
    pub fn local_caller(&self, agent: Option<&str>, profile: Option<&str>) -> Caller {
        let caller = agent.map_or_else(Caller::local, Caller::agent);
        let own_profile = || self.agent_profile(agent?);
        match profile.or_else(own_profile) {
            Some(profile) => caller.with_profile(profile),
            None => caller,
        }
    }

    /// Returns the profile of an agent, if it has one.
    fn agent_profile(&self, agent: &str) -> Option<&str> {
        let by_name = || self.profiles.get_key_value(&format!("agent-{agent}")).map(|(name, _)| name);
        self.agents.get(agent).or_else(by_name).map(String::as_str)
    }

    /// Returns whether a caller may use a profile: it exists, and the caller is local or in one of its groups if it has any.
    pub fn can_use_profile(&self, caller: &Caller, profile: &str) -> bool {
        self.profiles.get(profile).is_some_and(|profile| {
            profile.groups.is_empty()
                || caller.is_local()
                || profile.groups.iter().any(|group| caller.groups().contains(group))
        })
    }

    /// Checks whether a caller may use an item, by the server's own name, or may know of the server, without a name.
    ///
    /// # Errors
    /// Returns the denial and its rule.
    pub fn authorize(&self, caller: &Caller, server: &ServerId, name: Option<&str>) -> Result<(), Denial> {
        self.authorize_by_rules(caller, server, name)?;
        self.ask_guard(caller, server, name)
    }

    /// Asks the embedder's guard about an item, or about the server without a name. Its verdict may differ next time.
    pub(crate) fn ask_guard(
        &self,
        caller: &Caller,
        server: &ServerId,
        name: Option<&str>,
    ) -> Result<(), Denial> {
        let verdict = self.guard.as_ref().map(|guard| {
            panics::contain("guard", || guard(caller, server, name))
                .unwrap_or_else(|| GuardVerdict::Deny("the guard panicked".to_owned()))
        });
        match verdict {
            Some(GuardVerdict::Deny(rule)) => Err(Denial { rule, origin: None }),
            Some(GuardVerdict::Allow) | None => Ok(()),
        }
    }

    /// Returns whether the embedder has set a guard.
    pub(crate) fn has_guard(&self) -> bool {
        self.guard.is_some()
    }

    /// Returns whether the guard allows an item and its server.
    pub(crate) fn guard_allows(&self, caller: &Caller, server: &ServerId, name: &str) -> bool {
        self.ask_guard(caller, server, None).is_ok() && self.ask_guard(caller, server, Some(name)).is_ok()
    }

    /// Like [`Policy::authorize`], without the guard. The result is the same as long as the policy is.
    pub(crate) fn authorize_by_rules(
        &self,
        caller: &Caller,
        server: &ServerId,
        name: Option<&str>,
    ) -> Result<(), Denial> {
        if let Some(profile) = self.missing_profile(caller) {
            return Err(Denial { rule: format!("there is no profile `{profile}`"), origin: None });
        }
        if let Some(profile) = caller.profile().filter(|profile| !self.can_use_profile(caller, profile)) {
            let rule = format!("`profiles.{profile}.groups` has no group of the caller");
            return Err(Denial { rule, origin: None });
        }
        let mut verdicts =
            self.deny_verdicts(caller, server, name).chain(self.allow_verdicts(caller, server, name));
        if let Some(denial) = verdicts.find(PolicyVerdict::is_denial) {
            return Err(Denial { rule: denial.to_string(), origin: denial.origin().cloned() });
        }
        Ok(())
    }

    /// Returns whether a server may start without a call: not if the rules for every caller or the guard deny the whole
    /// server.
    pub(crate) fn can_start_unasked(&self, server: &ServerId) -> bool {
        let anyone = Caller::new("");
        self.authorize_by_rules(&anyone, server, None).is_ok()
            && self.ask_guard(&Caller::local(), server, None).is_ok()
    }

    /// Returns whether a caller may know of a server.
    pub fn can_see(&self, caller: &Caller, server: &ServerId) -> bool {
        self.authorize(caller, server, None).is_ok()
    }

    /// Returns the verdict that requires approval, if there is one. It applies only to an allowed item.
    pub fn required_approval<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
        name: &str,
    ) -> Option<PolicyVerdict<'a>> {
        let forms = UriForms::new(Some(name));
        self.levels(caller, server).find_map(|(level, rules)| {
            let rule = rules.ask.iter().find(|rule| rule.matches_any_form(server, name, &forms))?;
            Some(PolicyVerdict::NeedsApproval(level, rule))
        })
    }

    /// Returns whether a caller may use every item of a server without approval.
    pub fn is_unrestricted(&self, caller: &Caller, server: &ServerId) -> bool {
        let is_unrestricted = |rules: &Rules| {
            let mut restrictions = rules.deny.iter().chain(&rules.ask);
            !restrictions.any(|rule| rule.matches_server(server))
                && rules
                    .allow
                    .as_ref()
                    .is_none_or(|list| list.rules.iter().any(|rule| rule.covers_server(server)))
        };
        self.guard.is_none()
            && self.missing_profile(caller).is_none()
            && self.levels(caller, server).all(|(_, rules)| is_unrestricted(rules))
    }

    /// Returns whether URIs of a server are denied to a caller.
    pub(crate) fn denies_uris(&self, caller: &Caller, server: &ServerId) -> bool {
        let denies = |rules: &Rules| rules.deny.iter().any(|rule| rule.concerns_uris_of(server));
        self.levels(caller, server).any(|(_, rules)| denies(rules))
    }

    /// Returns the verdicts of all levels: denials first, then required approval, then allow lists. The first denial
    /// decides.
    pub fn verdicts<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = PolicyVerdict<'a>> {
        let approval = name.and_then(|name| self.required_approval(caller, server, name));
        self.deny_verdicts(caller, server, name)
            .chain(approval)
            .chain(self.allow_verdicts(caller, server, name))
    }

    fn deny_verdicts<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = PolicyVerdict<'a>> {
        let forms = UriForms::new(name);
        self.levels(caller, server).filter_map(move |(level, rules)| {
            let rule = rules.deny.iter().find(|rule| rule.denies(server, name, &forms))?;
            Some(PolicyVerdict::Denied(level, rule))
        })
    }

    fn allow_verdicts<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
        name: Option<&'a str>,
    ) -> impl Iterator<Item = PolicyVerdict<'a>> {
        let verdict = move |(level, rules): (PolicyLevel<'a>, &'a Rules)| {
            let list = rules.allow.as_ref()?;
            let rule = list.rules.iter().find(|rule| rule.allows(server, name));
            Some(
                rule.map_or(PolicyVerdict::Unlisted(level, list), |rule| PolicyVerdict::Allowed(level, rule)),
            )
        };
        // One group that allows the item is enough.
        let of_groups = self.group_levels(caller).filter_map(verdict);
        let of_groups = of_groups.reduce(|first, next| if first.is_denial() { next } else { first });
        self.own_levels(caller, server).filter_map(verdict).chain(of_groups)
    }

    /// Returns the rules that apply to a caller and a server, level by level, and those of each group of the caller.
    fn levels<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
    ) -> impl Iterator<Item = (PolicyLevel<'a>, &'a Rules)> {
        self.own_levels(caller, server).chain(self.group_levels(caller))
    }

    fn group_levels<'a>(&'a self, caller: &'a Caller) -> impl Iterator<Item = (PolicyLevel<'a>, &'a Rules)> {
        let rules = |group: &'a String| Some((PolicyLevel::Group(group), self.groups.get(group)?));
        caller.groups().iter().filter_map(rules)
    }

    /// Returns the rules that apply to a caller and a server, without those of groups.
    fn own_levels<'a>(
        &'a self,
        caller: &'a Caller,
        server: &'a ServerId,
    ) -> impl Iterator<Item = (PolicyLevel<'a>, &'a Rules)> {
        let of_server = self.servers.get(server).map(|rules| (PolicyLevel::Server(server), rules));
        let of_caller =
            self.callers.get(caller.as_str()).map(|rules| (PolicyLevel::Caller(caller.as_str()), rules));
        let profile = caller.profile().and_then(|name| Some((name, self.profiles.get(name)?)));
        let of_profile = profile.into_iter().flat_map(|(name, profile)| {
            [
                (PolicyLevel::ProfileServers(name), &profile.servers),
                (PolicyLevel::Profile(name), &profile.rules),
            ]
        });
        std::iter::once((PolicyLevel::Everyone, &self.everyone))
            .chain(of_profile)
            .chain(of_server)
            .chain(of_caller)
    }
}
