//! Counts of calls by server, method, name, caller and end.
//!
//! A call updates atomic counters of its series and takes no lock. The number of series is limited: further callers and names
//! are counted as `other`.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use toolcrib::{CallEnd, CallId, CallRecord, Caller, Decision, ErrorKind, ServerId};

use super::histogram::{Histogram, HistogramSnapshot};

/// The value of labels that are not told apart.
pub(super) const OTHER: &str = "other";

/// Series up to which callers and names are told apart.
const MAX_SERIES: usize = 2000;
/// Series up to which servers are told apart, once callers and names are not.
const MAX_SERVER_SERIES: usize = 3000;
/// Slots of the table: a power of two, and more than it has series, so that searches are short.
const SLOTS: usize = 4096;
/// Remembered slots of earlier calls; a power of two.
const RECENT_SLOTS: usize = 256;
/// Slots that are searched for a series.
const MAX_PROBES: usize = 64;

/// The method of nearly all calls.
const TOOL_CALL: &str = "tools/call";
/// Methods that are told apart.
const METHODS: [&str; 16] = [
    TOOL_CALL,
    "prompts/get",
    "resources/read",
    "completion/complete",
    "resources/subscribe",
    "resources/unsubscribe",
    "tasks/get",
    "tasks/update",
    "tasks/result",
    "tasks/cancel",
    "tasks/list",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "logging/setLevel",
];

/// The labels of a series, borrowed from a call.
#[derive(Debug, Clone, Copy)]
struct SeriesKey<'a> {
    server: Option<&'a ServerId>,
    method: &'static str,
    name: Option<&'a Arc<str>>,
    caller: &'a Caller,
    end: CallEnd,
}

impl<'a> SeriesKey<'a> {
    fn of_call(record: &'a CallRecord) -> Self {
        let method = METHODS.iter().copied().find(|method| *method == record.method).unwrap_or(OTHER);
        // Other names are URIs, or were made up by the caller.
        let is_named = matches!(method, TOOL_CALL | "prompts/get")
            && record.server.is_some()
            && record.end != CallEnd::Failed(ErrorKind::Unknown);
        Self {
            server: record.server.as_ref(),
            method,
            name: is_named.then_some(&record.name),
            caller: &record.caller,
            end: record.end,
        }
    }

    fn server(&self) -> &'a str {
        self.server.map_or("", ServerId::as_str)
    }

    fn name(&self) -> &'a str {
        self.name.map_or("", |name| name)
    }

    /// Hashes the labels that differ most with FNV-1a, which is faster than `std`'s hasher for short texts. Calls that
    /// differ in their end or method only are in neighbouring slots.
    #[expect(clippy::cast_possible_truncation, reason = "the low bits select a slot")]
    fn hash(&self, seed: u64) -> usize {
        let bytes = self.name().bytes().chain(self.server().bytes()).chain(self.caller.as_str().bytes());
        let hash = bytes.fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        (hash ^ (hash >> 32)) as usize
    }

    /// Returns the key of all callers and names together.
    fn without_details(self, other: &'a OtherLabels) -> Self {
        Self { name: self.name.map(|_| &other.name), caller: &other.caller, ..self }
    }
}

/// The labels of calls that are not told apart.
struct OtherLabels {
    name: Arc<str>,
    caller: Caller,
}

/// Counts of calls with the same labels. The labels are those of its first call, which later calls usually share.
#[derive(Debug)]
pub(super) struct CallSeries {
    server: Option<ServerId>,
    pub(super) method: &'static str,
    name: Option<Arc<str>>,
    caller: Caller,
    pub(super) end: CallEnd,
    is_tool_call: bool,
    durations: Histogram,
    server_times: Histogram,
    queue_waits: Histogram,
    request_bytes: AtomicU64,
    response_bytes: AtomicU64,
    decisions: [AtomicU64; DECISIONS.len()],
    last_call: AtomicU64,
}

/// Decisions in the order of their counters.
pub(super) const DECISIONS: [Decision; 4] =
    [Decision::NotEvaluated, Decision::Allowed, Decision::Approved, Decision::Denied];

impl CallSeries {
    fn new(key: &SeriesKey<'_>) -> Self {
        Self {
            server: key.server.cloned(),
            method: key.method,
            name: key.name.cloned(),
            caller: key.caller.clone(),
            end: key.end,
            is_tool_call: key.method == TOOL_CALL,
            durations: Histogram::default(),
            server_times: Histogram::default(),
            queue_waits: Histogram::default(),
            request_bytes: AtomicU64::new(0),
            response_bytes: AtomicU64::new(0),
            decisions: [const { AtomicU64::new(0) }; DECISIONS.len()],
            last_call: AtomicU64::new(0),
        }
    }

    /// Returns whether a tool call has the texts of the first call of this series, at the same addresses. If not, it may still
    /// belong to the series.
    #[inline]
    fn shares_labels(&self, record: &CallRecord) -> bool {
        let (Some(name), Some(server), Some(called)) = (&self.name, &self.server, &record.server) else {
            return false;
        };
        self.end == record.end
            && self.is_tool_call
            && record.method == TOOL_CALL
            && Arc::ptr_eq(name, &record.name)
            && std::ptr::eq(server.as_str(), called.as_str())
            && std::ptr::eq(self.caller(), record.caller.as_str())
    }

    fn has_key(&self, key: &SeriesKey<'_>) -> bool {
        self.end == key.end
            && is_same(self.name(), key.name())
            && is_same(self.server(), key.server())
            && is_same(self.caller(), key.caller.as_str())
            && is_same(self.method, key.method)
    }

    /// Returns the name of the server; empty if none was found.
    pub(super) fn server(&self) -> &str {
        self.server.as_ref().map_or("", ServerId::as_str)
    }

    /// Returns the name of the tool or prompt; empty for other methods.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    pub(super) fn caller(&self) -> &str {
        self.caller.as_str()
    }

    fn record(&self, record: &CallRecord) {
        self.durations.record(record.duration);
        if record.attempts > 0 {
            self.server_times.record(record.timing.server);
            self.queue_waits.record(record.timing.queue);
        }
        self.request_bytes.fetch_add(record.request_bytes as u64, Ordering::Relaxed);
        self.response_bytes.fetch_add(record.response_bytes as u64, Ordering::Relaxed);
        let decision = match record.decision {
            Decision::Allowed => 1,
            Decision::Approved => 2,
            Decision::Denied => 3,
            _ => 0,
        };
        self.decisions[decision].fetch_add(1, Ordering::Relaxed);
        self.last_call.store(record.id.number(), Ordering::Relaxed);
    }

    /// Returns the durations of whole calls.
    pub(super) fn durations(&self) -> HistogramSnapshot {
        self.durations.snapshot()
    }

    /// Returns how long servers had the calls.
    pub(super) fn server_times(&self) -> HistogramSnapshot {
        self.server_times.snapshot()
    }

    /// Returns how long calls waited for a turn at their server.
    pub(super) fn queue_waits(&self) -> HistogramSnapshot {
        self.queue_waits.snapshot()
    }

    pub(super) fn request_bytes(&self) -> u64 {
        self.request_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn response_bytes(&self) -> u64 {
        self.response_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of calls by decision, in the order of [`DECISIONS`].
    pub(super) fn decisions(&self) -> [u64; DECISIONS.len()] {
        self.decisions.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns the id of the call that ended last.
    pub(super) fn last_call(&self) -> CallId {
        CallId::from_number(self.last_call.load(Ordering::Relaxed))
    }
}

/// Compares two texts, which are usually at the same address.
fn is_same(one: &str, other: &str) -> bool {
    std::ptr::eq(one, other) || one == other
}

/// Returns a number by which the slot of an earlier call is remembered, from the addresses of texts that are the same for all
/// calls of a caller to a tool.
fn hash_addresses(record: &CallRecord) -> usize {
    let server = record.server.as_ref().map_or("", ServerId::as_str);
    // The other names are those of requests, and differ in their address from call to call.
    let name = if record.method == TOOL_CALL { &*record.name } else { "" };
    let addresses = [name, server, record.caller.as_str()].map(|text| text.as_ptr().addr() as u64);
    let mixed = addresses[0].rotate_left(16) ^ addresses[1].rotate_left(8) ^ addresses[2];
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize
}

/// A slot of the table; once it has a series, it keeps it.
type SeriesSlot = OnceLock<Box<CallSeries>>;

/// All series.
pub(super) struct CallTable {
    /// Differs between processes, so that names that collide cannot be chosen.
    seed: u64,
    /// Allocated for the first call.
    slots: OnceLock<Box<[SeriesSlot]>>,
    /// Slots of earlier calls by [`hash_addresses`].
    recent: [AtomicUsize; RECENT_SLOTS],
    used: AtomicUsize,
    other: OtherLabels,
    /// Calls whose servers are not told apart.
    rest: CallSeries,
}

impl Default for CallTable {
    fn default() -> Self {
        let other = OtherLabels { name: OTHER.into(), caller: Caller::new(OTHER) };
        let server: Option<ServerId> = OTHER.parse().ok();
        let rest = CallSeries::new(&SeriesKey {
            server: server.as_ref(),
            method: OTHER,
            name: Some(&other.name),
            caller: &other.caller,
            end: CallEnd::Done,
        });
        Self {
            seed: RandomState::new().hash_one(SLOTS),
            slots: OnceLock::new(),
            recent: [const { AtomicUsize::new(0) }; RECENT_SLOTS],
            used: AtomicUsize::new(0),
            other,
            rest,
        }
    }
}

impl CallTable {
    pub(super) fn record(&self, record: &CallRecord) {
        let recent = &self.recent[hash_addresses(record) % RECENT_SLOTS];
        let series = self.series_at(recent.load(Ordering::Relaxed));
        let series = match series.filter(|series| series.shares_labels(record)) {
            Some(series) => series,
            None => {
                let key = SeriesKey::of_call(record);
                series.filter(|series| series.has_key(&key)).unwrap_or_else(|| self.search(&key, recent))
            }
        };
        series.record(record);
    }

    /// Returns the series of a key, and remembers its slot.
    #[cold]
    fn search(&self, key: &SeriesKey<'_>, recent: &AtomicUsize) -> &CallSeries {
        let slot = self.find_or_add(key, MAX_SERIES);
        let slot = slot.or_else(|| self.find_or_add(&key.without_details(&self.other), MAX_SERVER_SERIES));
        let Some(slot) = slot else { return &self.rest };
        recent.store(slot, Ordering::Relaxed);
        self.series_at(slot).unwrap_or(&self.rest)
    }

    /// Returns the series in a slot.
    fn series_at(&self, slot: usize) -> Option<&CallSeries> {
        self.slots.get()?.get(slot)?.get().map(|series| &**series)
    }

    /// Returns the slot of the series of a key, which is added while there are fewer than `limit`.
    fn find_or_add(&self, key: &SeriesKey<'_>, limit: usize) -> Option<usize> {
        let slots = self.slots.get_or_init(|| std::iter::repeat_with(SeriesSlot::new).take(SLOTS).collect());
        let start = key.hash(self.seed);
        for step in 0..MAX_PROBES {
            let slot = start.wrapping_add(step) % SLOTS;
            let series = match slots[slot].get() {
                Some(series) => series,
                None if self.used.load(Ordering::Relaxed) >= limit => return None,
                // Another call may add its own series here first.
                None => slots[slot].get_or_init(|| {
                    self.used.fetch_add(1, Ordering::Relaxed);
                    Box::new(CallSeries::new(key))
                }),
            };
            if series.has_key(key) {
                return Some(slot);
            }
        }
        None
    }

    /// Returns all series with calls.
    pub(super) fn series(&self) -> impl Iterator<Item = &CallSeries> {
        let slots = self.slots.get().into_iter().flat_map(|slots| slots.iter());
        let all = slots.filter_map(|slot| slot.get().map(|series| &**series)).chain([&self.rest]);
        all.filter(|series| series.durations().count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::call_record;
    use super::*;

    fn labels(series: &CallSeries) -> [&str; 5] {
        [series.server(), series.method, series.name(), series.caller(), series.end.name()]
    }

    #[test]
    fn calls_are_told_apart_by_their_labels() {
        let table = CallTable::default();
        let mut record = call_record();
        table.record(&record);
        table.record(&record);
        record.end = CallEnd::Failed(ErrorKind::Unknown);
        table.record(&record);
        record.method = "x/own".into();
        record.server = None;
        table.record(&record);
        let mut all: Vec<([&str; 5], u64)> =
            table.series().map(|series| (labels(series), series.durations().count())).collect();
        all.sort_unstable();
        let expected = [
            (["", "other", "", "ada", "unknown"], 1),
            (["git", "tools/call", "", "ada", "unknown"], 1),
            (["git", "tools/call", "log", "ada", "ok"], 2),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn each_decision_has_its_own_counter() {
        for (index, decision) in DECISIONS.into_iter().enumerate() {
            let table = CallTable::default();
            table.record(&CallRecord { decision, ..call_record() });
            let mut expected = [0; DECISIONS.len()];
            expected[index] = 1;
            assert_eq!(table.series().next().unwrap().decisions(), expected, "{decision:?}");
        }
    }

    #[test]
    fn parts_of_a_call_are_added_up() {
        let table = CallTable::default();
        table.record(&call_record());
        table.record(&CallRecord { attempts: 0, ..call_record() });
        let series = table.series().next().unwrap();
        assert_eq!((series.durations().count(), series.server_times().count()), (2, 1));
        assert_eq!(series.durations().sum(), 0.006);
        assert_eq!(series.server_times().sum(), 0.002);
        assert_eq!((series.request_bytes(), series.response_bytes()), (20, 40));
        assert_eq!(series.decisions(), [0, 2, 0, 0]);
        assert_eq!(series.last_call(), call_record().id);
    }

    #[test]
    fn further_names_and_servers_are_other() {
        let table = CallTable::default();
        let calls = 5000;
        for number in 0..calls {
            let mut record = call_record();
            record.name = format!("tool{number}").into();
            record.duration = Duration::from_millis(1);
            table.record(&record);
            record.server = Some(format!("s{number}").parse().unwrap());
            record.name = "x".into();
            table.record(&record);
        }
        assert!(table.series().count() <= MAX_SERVER_SERIES + 1);
        let total: u64 = table.series().map(|series| series.durations().count()).sum();
        assert_eq!(total, 2 * calls);
        let has = |expected: [&str; 5]| table.series().any(|series| labels(series) == expected);
        assert!(has(["git", "tools/call", "other", "other", "ok"]));
        assert!(has(["other", "other", "other", "other", "ok"]));
    }

    #[test]
    fn threads_share_one_series() {
        let table = CallTable::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| table.record(&call_record())));
            }
        });
        let counts: Vec<u64> = table.series().map(|series| series.durations().count()).collect();
        assert_eq!(counts, [4000]);
    }
}
