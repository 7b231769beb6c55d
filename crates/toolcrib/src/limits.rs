//! Quotas, rate limits and budgets, and the usage that counts against them.
//!
//! `limiter` is a step of the pipeline. The usage is counted by the [`store`](crate::store).

mod client_activity;
mod counted_limits;
mod errors;
mod in_flight_limits;
pub(crate) mod limiter;
mod pending_admission;

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::time::Duration;

use crate::access::policy::Rule;
use crate::model::caller::Caller;
use crate::spec::{NamePattern, Origin};
pub use crate::store::LimitKind;
pub(crate) use counted_limits::CountedLimits;
pub use limiter::LimitStatus;

/// All limits for callers and clients. A call must be within every limit that matches it.
///
/// ```
/// use std::num::NonZeroU32;
/// use std::time::Duration;
/// use toolcrib::{Call, Caller, Crib, ErrorKind, ServerSpec, Toolbox, UsageLimit, UsageLimits};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let schema = serde_json::json!({"type": "object"});
/// # let tools = Toolbox::new().tool("search", "", &schema, |_| async { Ok("found".to_owned()) });
/// # let web = ServerSpec::in_process("web".parse()?, tools);
/// let minute = Duration::from_secs(60);
/// let searches = UsageLimit::quota(NonZeroU32::MIN, minute).matching("web.search".parse()?);
/// let burst = UsageLimit::rate(NonZeroU32::MIN.saturating_add(9), minute).max_wait(Duration::from_secs(2));
/// let mut limits = UsageLimits { everyone: vec![burst], ..UsageLimits::default() };
/// limits.callers.insert("ci".to_owned(), vec![searches]);
/// let crib = Crib::builder().server(web).limits(limits).build()?;
///
/// let search = Call::tool("web__search").caller(Caller::new("ci"));
/// crib.call(search.clone()).await?;
/// let refused = crib.call(search).await.unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::OverQuota);
/// assert!(refused.retry_in().is_some_and(|wait| wait <= minute));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageLimits {
    /// Limits for every caller. Usage is counted per caller.
    pub everyone: Vec<UsageLimit>,
    /// Limits for one caller, by name.
    pub callers: HashMap<String, Vec<UsageLimit>>,
    /// Limits for each member of a group, by the name of the group. Usage is counted per caller.
    pub groups: BTreeMap<String, Vec<UsageLimit>>,
    /// Maximum number of calls in flight of one caller, by name. Further calls wait.
    pub callers_in_flight: HashMap<String, NonZeroU32>,
    /// Maximum number of calls in flight of each member of a group that has no number of its own. The least applies.
    pub groups_in_flight: BTreeMap<String, NonZeroU32>,
    /// Maximum number of identical calls in a row of one client.
    pub identical_calls: Option<NonZeroU32>,
    /// Maximum number of result bytes that one client gets while it is connected.
    pub result_bytes: Option<u64>,
}

impl UsageLimits {
    /// Returns whether there are no limits.
    pub fn is_empty(&self) -> bool {
        let mut limits = self.callers.values().chain(self.groups.values()).chain([&self.everyone]);
        limits.all(Vec::is_empty)
            && self.callers_in_flight.is_empty()
            && self.groups_in_flight.is_empty()
            && self.identical_calls.is_none()
            && self.result_bytes.is_none()
    }

    /// Returns the limits of one caller and where each is configured.
    pub fn limits_for<'a>(
        &'a self,
        caller: &'a Caller,
    ) -> impl Iterator<Item = (LimitOwner<'a>, &'a UsageLimit)> {
        let own = self.callers.get(caller.as_str()).into_iter().flatten();
        let own = own.map(move |limit| (LimitOwner::Caller(caller.as_str()), limit));
        let of_groups = caller.groups().iter().flat_map(|group| {
            let limits = self.groups.get(group).into_iter().flatten();
            limits.map(move |limit| (LimitOwner::Group(group), limit))
        });
        self.everyone.iter().map(|limit| (LimitOwner::Everyone, limit)).chain(own).chain(of_groups)
    }
}

/// The part of the config that a limit belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitOwner<'a> {
    /// The limits for every caller.
    Everyone,
    /// The limits of one caller.
    Caller(&'a str),
    /// The limits of each member of a group.
    Group(&'a str),
}

/// A limit on all calls of one caller that a pattern matches, counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageLimit {
    pub(crate) pattern: Rule,
    pub(crate) kind: LimitKind,
    pub(crate) origin: Option<Origin>,
    pub(crate) on_store_failure: OnStoreFailure,
}

/// What happens to a call that cannot be counted because the store does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnStoreFailure {
    /// The call is refused.
    #[default]
    Refuse,
    /// The call is made without being counted, unless another limit refuses it.
    Allow,
}

impl UsageLimit {
    /// Creates a limit of `calls` in any period of this length.
    pub fn quota(calls: NonZeroU32, per: Duration) -> Self {
        Self::new(LimitKind::Quota { calls, per })
    }

    /// Creates a limit of a burst of `calls` that is refilled evenly within the period.
    pub fn rate(calls: NonZeroU32, per: Duration) -> Self {
        Self::new(LimitKind::Rate { calls, per, max_wait: Duration::ZERO })
    }

    fn new(kind: LimitKind) -> Self {
        let pattern = Rule::for_name(NamePattern::any());
        Self { pattern, kind, origin: None, on_store_failure: OnStoreFailure::default() }
    }

    /// Applies the limit only to what a pattern matches.
    #[must_use]
    pub fn matching(mut self, pattern: Rule) -> Self {
        self.pattern = pattern;
        self
    }

    /// Lets a call over the rate wait this long before it fails. Has no effect on a quota.
    #[must_use]
    pub fn max_wait(mut self, duration: Duration) -> Self {
        if let LimitKind::Rate { max_wait, .. } = &mut self.kind {
            *max_wait = duration;
        }
        self
    }

    /// Sets what happens to a call that cannot be counted because the store does not answer.
    #[must_use]
    pub fn on_store_failure(mut self, on_store_failure: OnStoreFailure) -> Self {
        self.on_store_failure = on_store_failure;
        self
    }

    pub(crate) fn with_origin(mut self, origin: Origin) -> Self {
        self.origin = Some(origin);
        self
    }

    /// The calls that count against the limit.
    pub fn pattern(&self) -> &Rule {
        &self.pattern
    }

    /// The number of calls and the period.
    pub fn kind(&self) -> LimitKind {
        self.kind
    }

    /// The location of the limit, if it comes from a file.
    pub fn origin(&self) -> Option<&Origin> {
        self.origin.as_ref()
    }

    /// The full config key that sets the limit.
    pub fn config_key(&self, owner: LimitOwner<'_>) -> String {
        let owner = match owner {
            LimitOwner::Everyone => "policy".to_owned(),
            LimitOwner::Caller(caller) => format!("callers.{caller}"),
            LimitOwner::Group(group) => format!("groups.{group}"),
        };
        let key = self.kind.config_key();
        match self.pattern.to_string().as_str() {
            "*" => format!("{owner}.{key}"),
            pattern => format!("{owner}.limits.\"{pattern}\".{key}"),
        }
    }
}

#[cfg(test)]
mod tests;
