//! Decides which calls are traced, and creates the ids of their spans.

use std::sync::atomic::{AtomicU64, Ordering};

use toolcrib::model::trace_context::{CallSpans, TraceContext};

/// Which calls are traced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler {
    /// Decides about calls that do not continue a trace.
    pub(crate) root: RootSampler,
    /// True if a call that continues a trace is traced exactly if that trace is.
    pub(crate) follows_parent: bool,
}

/// Which calls are traced, regardless of the traces that they continue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum RootSampler {
    All,
    None,
    /// A part of all traces, chosen by their id.
    Ratio(f64),
}

impl Default for Sampler {
    fn default() -> Self {
        Self { root: RootSampler::All, follows_parent: true }
    }
}

impl Sampler {
    /// Decides about a call from the trace that it continues and the random part of its trace id.
    fn is_sampled(self, parent: Option<&TraceContext>, random: u64) -> bool {
        match (parent, self.root) {
            (Some(parent), _) if self.follows_parent => parent.is_sampled(),
            (_, RootSampler::All) => true,
            (_, RootSampler::None) => false,
            (_, RootSampler::Ratio(ratio)) => is_below(random, ratio),
        }
    }
}

/// Returns whether the part of all numbers that `random` stands for is below a ratio.
#[expect(clippy::cast_precision_loss, reason = "an id has more bits than the ratio needs")]
fn is_below(random: u64, ratio: f64) -> bool {
    // As other implementations do it: the last 63 bits are compared.
    ((random & i64::MAX as u64) as f64) < ratio * (1u64 << 63) as f64
}

/// Creates ids that look random and do not repeat within a process.
#[derive(Debug)]
struct IdSource {
    state: AtomicU64,
}

impl IdSource {
    fn new() -> Self {
        // Ids are not secrets; without random numbers they start at the same one in every process.
        let mut seed = [0; 8];
        let _ = getrandom::fill(&mut seed);
        Self { state: AtomicU64::new(u64::from_le_bytes(seed)) }
    }

    /// Returns the next number of SplitMix64, except zero, which is not a valid id.
    fn next(&self) -> u64 {
        let mut number = self.state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (number ^ (number >> 31)).max(1)
    }
}

/// Starts the spans of calls.
#[derive(Debug)]
pub(super) struct SpanStarter {
    sampler: Sampler,
    ids: IdSource,
}

impl SpanStarter {
    pub(super) fn new(sampler: Sampler) -> Self {
        Self { sampler, ids: IdSource::new() }
    }

    /// Returns the spans of a call, if it is traced.
    pub(super) fn start(&self, parent: Option<TraceContext>) -> Option<CallSpans> {
        #[expect(clippy::cast_possible_truncation, reason = "the last half of the id is the random part")]
        let random = parent.as_ref().map_or_else(|| self.ids.next(), |parent| parent.trace_id as u64);
        if !self.sampler.is_sampled(parent.as_ref(), random) {
            return None;
        }
        let new_trace = || u128::from(self.ids.next()) << 64 | u128::from(random);
        let trace_id = parent.as_ref().map_or_else(new_trace, |parent| parent.trace_id);
        Some(CallSpans::new(trace_id, parent, self.ids.next()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn parent(flags: u8) -> TraceContext {
        TraceContext { trace_id: 7, span_id: 9, flags, state: None }
    }

    #[test]
    fn parent_decides_if_the_sampler_follows_it() {
        for (root, follows_parent, flags, expected) in [
            (RootSampler::None, true, 1, true),
            (RootSampler::All, true, 0, false),
            (RootSampler::None, false, 1, false),
            (RootSampler::All, false, 0, true),
        ] {
            let starter = SpanStarter::new(Sampler { root, follows_parent });
            let spans = starter.start(Some(parent(flags)));
            assert_eq!(spans.is_some(), expected, "{root:?} {follows_parent} {flags}");
            assert!(spans.is_none_or(|spans| spans.trace_id == 7 && spans.client_span != 9));
            assert_eq!(starter.start(None).is_some(), root == RootSampler::All);
        }
    }

    #[test]
    fn ratio_is_a_part_of_all_traces() {
        let starter = SpanStarter::new(Sampler { root: RootSampler::Ratio(0.1), follows_parent: true });
        let traces: HashSet<u128> =
            (0..10_000).filter_map(|_| starter.start(None)).map(|spans| spans.trace_id).collect();
        assert!((850..1150).contains(&traces.len()), "{}", traces.len());
        for (ratio, expected) in [(0.0, 0), (1.0, 1000)] {
            let starter = SpanStarter::new(Sampler { root: RootSampler::Ratio(ratio), follows_parent: true });
            assert_eq!((0..1000).filter(|_| starter.start(None).is_some()).count(), expected);
        }
    }
}
