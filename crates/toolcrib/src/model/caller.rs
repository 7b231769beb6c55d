//! The authenticated identity behind a call.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::util::maps::collect_map;

/// An authenticated identity with its groups, and optionally the profile that restricts it. Callers are equal if their names
/// are.
#[derive(Debug, Clone)]
pub struct Caller {
    identity: Arc<CallerIdentity>,
    profile: Option<Arc<str>>,
    is_admin: bool,
    reads_metrics: bool,
}

/// The part of a caller that its clones share.
#[derive(Debug)]
struct CallerIdentity {
    name: Cow<'static, str>,
    /// The groups it is in, sorted; absent if there are none.
    groups: Option<Arc<[String]>>,
    /// Whether it is the local user, or an agent of the local user.
    is_local: bool,
    revoked: AtomicBool,
}

/// The start of the names of agents.
pub(crate) const AGENT_PREFIX: &str = "agent:";

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.identity.name == other.identity.name
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity.name.hash(state);
    }
}

impl Caller {
    /// Creates a caller without a profile.
    pub fn new(name: &str) -> Self {
        Self::with_name(Cow::Owned(name.to_owned()))
    }

    /// Creates a caller without a profile that is in groups. Their order has no meaning.
    pub fn with_groups(name: &str, groups: impl IntoIterator<Item = String>) -> Self {
        let groups: BTreeSet<String> = collect_map(groups);
        let groups = Some(groups).filter(|groups| !groups.is_empty());
        Self::from_identity(Cow::Owned(name.to_owned()), groups.map(|groups| groups.into_iter().collect()))
    }

    fn with_name(name: Cow<'static, str>) -> Self {
        Self::from_identity(name, None)
    }

    fn from_identity(name: Cow<'static, str>, groups: Option<Arc<[String]>>) -> Self {
        let is_local = name == "local";
        Self::from_parts(CallerIdentity { name, groups, is_local, revoked: AtomicBool::new(false) })
    }

    fn from_parts(identity: CallerIdentity) -> Self {
        Self { identity: Arc::new(identity), profile: None, is_admin: false, reads_metrics: false }
    }

    /// Returns the caller for local use by the same user.
    pub fn local() -> Self {
        Self::with_name(Cow::Borrowed("local"))
    }

    /// Creates the caller for an agent of the local user, `agent:NAME`. It has the rights of the local caller, narrowed by the
    /// rules for its own name. Use it only for clients that are as trusted as the local user: nothing proves which agent it is.
    pub fn agent(name: &str) -> Self {
        let name = Cow::Owned(format!("{AGENT_PREFIX}{name}"));
        let revoked = AtomicBool::new(false);
        Self::from_parts(CallerIdentity { name, groups: None, is_local: true, revoked })
    }

    /// Returns whether this is the local user, also through an agent.
    pub fn is_local(&self) -> bool {
        self.identity.is_local
    }

    /// Returns the name of the agent, without `agent:`, if this is one.
    pub fn agent_name(&self) -> Option<&str> {
        self.as_str().strip_prefix(AGENT_PREFIX).filter(|_| self.is_local())
    }

    /// Returns the caller that owns what a caller keeps at servers, such as logins: the local user for its agents.
    pub(crate) fn owner(&self) -> Self {
        match self.agent_name() {
            Some(_) => Self::local(),
            None => self.clone(),
        }
    }

    /// Restricts the caller to what a profile contains.
    #[must_use]
    pub fn with_profile(mut self, profile: &str) -> Self {
        self.profile = Some(profile.into());
        self
    }

    /// Makes the caller an administrator, who may see what servers write about all callers.
    #[must_use]
    pub fn with_admin(mut self, is_admin: bool) -> Self {
        self.is_admin = is_admin;
        self
    }

    /// Lets the caller read the metrics of the gateway.
    #[must_use]
    pub fn with_metrics(mut self, reads_metrics: bool) -> Self {
        self.reads_metrics = reads_metrics;
        self
    }

    /// Returns whether the caller may read the metrics of the gateway: it is allowed to, is local or is an administrator.
    pub fn can_read_metrics(&self) -> bool {
        self.reads_metrics || self.can_see_all()
    }

    /// Returns whether the caller may see what servers write about all callers: it is local or an administrator.
    pub(crate) fn can_see_all(&self) -> bool {
        self.is_admin || self.is_local()
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.identity.name
    }

    /// Returns the groups that the caller is in, sorted.
    pub fn groups(&self) -> &[String] {
        self.identity.groups.as_deref().unwrap_or_default()
    }

    /// Returns the name of the profile, if there is one.
    pub fn profile(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    /// Revokes the access of this caller and its clones: every later decision about it is a denial. Another caller of the
    /// same name is not affected.
    ///
    /// Revoke a caller before the rules that were made for it change. A request that was authenticated earlier is then
    /// decided by the earlier rules or denied, but never decided by rules that were made without its caller.
    pub fn revoke(&self) {
        self.identity.revoked.store(true, Ordering::Release);
    }

    /// Returns whether the access was revoked.
    pub fn is_revoked(&self) -> bool {
        self.identity.revoked.load(Ordering::Acquire)
    }

    pub(crate) fn shared_groups(&self) -> &Option<Arc<[String]>> {
        &self.identity.groups
    }

    pub(crate) fn shared_profile(&self) -> &Option<Arc<str>> {
        &self.profile
    }
}
