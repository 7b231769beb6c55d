//! The lifetime of a list that several servers contribute to, for clients that cache it. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::listing::ListTtl;

/// The lifetime and the scope of a list that a client may cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListFreshness {
    /// The remaining lifetime; zero if any server gives none, or if one has expired.
    pub ttl: Duration,
    /// Whether the list is the same for every caller.
    pub public: bool,
}

impl ListFreshness {
    /// Returns the shortest lifetime and the narrowest scope of several lists.
    pub(super) fn combine(parts: impl Iterator<Item = ListTtl>, now: Instant) -> Self {
        let freshness = |ttl| match ttl {
            ListTtl::NoList => None,
            ListTtl::Unspecified => Some(Self { ttl: Duration::ZERO, public: false }),
            ListTtl::Until(until, public) => Some(Self { ttl: until.saturating_duration_since(now), public }),
        };
        let narrower = |first: Self, second: Self| Self {
            ttl: first.ttl.min(second.ttl),
            public: first.public && second.public,
        };
        parts.filter_map(freshness).reduce(narrower).unwrap_or(Self { ttl: Duration::ZERO, public: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn list_takes_shortest_ttl_and_narrowest_scope_of_parts() {
        let now = Instant::now();
        let until = |seconds: u64, public| ListTtl::Until(now + Duration::from_secs(seconds), public);
        let combine = |parts: &[ListTtl]| {
            let ListFreshness { ttl, public } = ListFreshness::combine(parts.iter().copied(), now);
            (ttl.as_secs(), public)
        };
        assert_eq!(combine(&[]), (0, false));
        assert_eq!(combine(&[ListTtl::NoList]), (0, false));
        assert_eq!(combine(&[until(5, true), until(3, true), ListTtl::NoList]), (3, true));
        assert_eq!(combine(&[until(5, true), until(9, false)]), (5, false));
        assert_eq!(combine(&[until(5, true), ListTtl::Unspecified]), (0, false));
        assert_eq!(combine(&[until(0, true), until(5, true)]), (0, true));
    }
}
