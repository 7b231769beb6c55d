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
}

/// The part of a caller that its clones share.
#[derive(Debug)]
struct CallerIdentity {
    name: Cow<'static, str>,
    /// The groups it is in, sorted; absent if there are none.
    groups: Option<Arc<[String]>>,
    revoked: AtomicBool,
}

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
        let identity = Arc::new(CallerIdentity { name, groups, revoked: AtomicBool::new(false) });
        Self { identity, profile: None, is_admin: false }
    }

    /// Returns the caller for local use by the same user.
    pub fn local() -> Self {
        Self::with_name(Cow::Borrowed("local"))
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

    /// Returns whether the caller may see what servers write about all callers: it is local or an administrator.
    pub(crate) fn can_see_all(&self) -> bool {
        self.is_admin || *self == Self::local()
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
