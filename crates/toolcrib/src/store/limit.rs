//! Usage limits as a store counts them.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::caller::Caller;

/// A number of calls per period, and how it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitKind {
    /// A sliding window: at most `calls` in any period of this length.
    Quota {
        /// Number of calls.
        calls: NonZeroU32,
        /// Length of the period.
        per: Duration,
    },
    /// A token bucket: a burst of `calls`, refilled evenly at `calls` per period.
    Rate {
        /// Number of calls.
        calls: NonZeroU32,
        /// Length of the period.
        per: Duration,
        /// The longest time that a call over the rate waits before it fails.
        max_wait: Duration,
    },
}

impl LimitKind {
    /// Returns the number of calls per period.
    pub fn calls(&self) -> NonZeroU32 {
        match *self {
            Self::Quota { calls, .. } | Self::Rate { calls, .. } => calls,
        }
    }

    /// Returns the length of the period.
    pub fn period(&self) -> Duration {
        match *self {
            Self::Quota { per, .. } | Self::Rate { per, .. } => per,
        }
    }

    /// Returns how long a call over the limit waits before it fails. A call over a quota fails immediately.
    pub fn max_wait(&self) -> Duration {
        match *self {
            Self::Quota { .. } => Duration::ZERO,
            Self::Rate { max_wait, .. } => max_wait,
        }
    }

    /// The config key of this kind of limit.
    pub fn config_key(&self) -> &'static str {
        match self {
            Self::Quota { .. } => "quota",
            Self::Rate { .. } => "rate",
        }
    }
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = self.calls();
        let noun = if calls.get() == 1 { "call" } else { "calls" };
        write!(f, "{calls} {noun} per {}", format_period(self.period()))
    }
}

/// Formats a period exactly, as in a config.
fn format_period(period: Duration) -> String {
    let milliseconds = period.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let unit = units.into_iter().find(|(unit, _)| milliseconds > 0 && milliseconds.is_multiple_of(*unit));
    unit.map_or_else(|| format!("{milliseconds}ms"), |(unit, name)| format!("{}{name}", milliseconds / unit))
}

/// The counter of one limit. Each caller has its own usage of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitCounter {
    /// The config key of the limit.
    pub name: Arc<str>,
    /// The position among the limits with the same config key.
    pub ordinal: usize,
    /// The numbers of the limit. They may change while the usage is kept.
    pub kind: LimitKind,
}

impl LimitCounter {
    /// Returns whether both count the same calls. Their numbers may differ.
    pub fn is_same(&self, other: &Self) -> bool {
        self.ordinal == other.ordinal && (Arc::ptr_eq(&self.name, &other.name) || self.name == other.name)
    }
}

/// Counters that a list holds without an allocation.
const INLINE_COUNTERS: usize = 8;

/// The counters of one operation. Short lists need no allocation.
#[derive(Debug, Clone, Default)]
pub struct CounterList<'a> {
    inline: [Option<&'a LimitCounter>; INLINE_COUNTERS],
    rest: Vec<&'a LimitCounter>,
}

impl<'a> CounterList<'a> {
    /// Returns the counters in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a LimitCounter> + '_ {
        self.inline.iter().flatten().chain(&self.rest).copied()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.inline[0].is_none()
    }
}

impl<'a> FromIterator<&'a LimitCounter> for CounterList<'a> {
    fn from_iter<I: IntoIterator<Item = &'a LimitCounter>>(counters: I) -> Self {
        let mut counters = counters.into_iter();
        let mut list = Self::default();
        for slot in &mut list.inline {
            *slot = counters.next();
            if slot.is_none() {
                return list;
            }
        }
        list.rest = counters.collect();
        list
    }
}

/// One call that is to be counted.
#[derive(Debug, Clone)]
pub struct LimitRequest<'a> {
    /// The caller.
    pub caller: &'a Caller,
    /// The counters of all limits that apply to the call.
    pub counters: CounterList<'a>,
    /// The longest time that the call can wait, in addition to what each limit allows.
    pub max_wait: Option<Duration>,
    /// The current time of the replica.
    pub now: Instant,
}

/// The reply to a [`LimitRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Admission {
    /// The call was counted.
    Admitted {
        /// The time that the call must wait before it is sent.
        delay: Duration,
        /// Identifies the reservation.
        token: ReservationToken,
    },
    /// The call was not counted.
    Refused(LimitRefusal),
}

/// A counter that refused a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRefusal {
    /// The counter.
    pub counter: LimitCounter,
    /// Time until the counter allows a call.
    pub wait: Duration,
}

/// Identifies a reservation of one caller. Only the store that created it knows its meaning; two reservations with the same
/// token are interchangeable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReservationToken(pub u64);

/// A reservation that is to be released.
#[derive(Debug, Clone)]
pub struct UsageRelease<'a> {
    /// The caller.
    pub caller: &'a Caller,
    /// The counters of the request.
    pub counters: CounterList<'a>,
    /// The token of the admission.
    pub token: ReservationToken,
}

/// The usage of one counter by one caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterUsage {
    /// Calls that count now.
    pub used: u32,
    /// Time until a call is allowed; zero if it is now.
    pub wait: Duration,
}
