//! `Freshness`: how long a list is good that several servers made together. Pure.

use std::time::Duration;

use tokio::time::Instant;

use crate::connection::listing::Good;

/// How long a list is good, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freshness {
    /// For how long; zero if any server does not say, or said so too long ago.
    pub left: Duration,
    /// Whether it is the same for every caller.
    pub public: bool,
}

impl Freshness {
    /// Of a list as good as the worst of its parts.
    pub(super) fn of(parts: impl Iterator<Item = Good>, now: Instant) -> Self {
        let part = |good| match good {
            Good::NoList => None,
            Good::Unsaid => Some(Self { left: Duration::ZERO, public: false }),
            Good::Until(until, public) => Some(Self { left: until.saturating_duration_since(now), public }),
        };
        let worse = |one: Self, other: Self| Self {
            left: one.left.min(other.left),
            public: one.public && other.public,
        };
        parts.filter_map(part).reduce(worse).unwrap_or(Self { left: Duration::ZERO, public: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_is_as_good_as_the_worst_of_its_parts() {
        let now = Instant::now();
        let until = |seconds: u64, public| Good::Until(now + Duration::from_secs(seconds), public);
        let of = |parts: &[Good]| {
            let Freshness { left, public } = Freshness::of(parts.iter().copied(), now);
            (left.as_secs(), public)
        };
        assert_eq!(of(&[]), (0, false));
        assert_eq!(of(&[Good::NoList]), (0, false));
        assert_eq!(of(&[until(5, true), until(3, true), Good::NoList]), (3, true));
        assert_eq!(of(&[until(5, true), until(9, false)]), (5, false));
        assert_eq!(of(&[until(5, true), Good::Unsaid]), (0, false));
        assert_eq!(of(&[until(0, true), until(5, true)]), (0, true));
    }
}
