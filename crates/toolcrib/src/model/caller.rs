//! The authenticated identity behind a call.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// An authenticated identity, and optionally the profile that restricts it. Callers are equal if their names are.
#[derive(Debug, Clone)]
pub struct Caller {
    name: Arc<str>,
    profile: Option<Arc<str>>,
    is_admin: bool,
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Caller {
    /// Creates a caller without a profile.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), profile: None, is_admin: false }
    }

    /// Returns the caller for local use by the same user.
    pub fn local() -> Self {
        Self::new("local")
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
        &self.name
    }

    /// Returns the name of the profile, if there is one.
    pub fn profile(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    pub(crate) fn shared_profile(&self) -> &Option<Arc<str>> {
        &self.profile
    }
}
