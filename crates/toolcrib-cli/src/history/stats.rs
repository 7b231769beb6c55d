//! Statistics of calls, computed from the files of the history.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use toolcrib::util::format::format_timestamp;
use toolcrib::util::time_id::{time_of_id, to_time_id};

use super::query::as_call;
use super::record::{CallEntry, CallOutcome, Records, to_millis};
use super::segments;
use crate::report::stats::{
    CallStats, CostReport, DayCost, HISTOGRAM_BOUNDS, StatsPoint, StatsReport, StatsRow, ToolCost,
};

/// Elements of a series if the step is not given.
const DEFAULT_STEPS: u32 = 60;
/// Most elements of a series.
const MAX_STEPS: u64 = 1000;
/// Rows of one kind.
const MAX_ROWS: usize = 1000;
const SECONDS_PER_DAY: u64 = 24 * 60 * 60;

/// The period of statistics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StatsQuery {
    pub(crate) since: SystemTime,
    pub(crate) until: SystemTime,
    pub(crate) step: Option<Duration>,
    /// Only calls of this caller.
    pub(crate) caller: Option<String>,
    /// True if the cost by client, day and tool is wanted.
    pub(crate) with_cost: bool,
}

impl StatsQuery {
    /// Returns the milliseconds of one step.
    fn step_millis(&self) -> u64 {
        let period = self.until.duration_since(self.since).unwrap_or_default();
        let step = self.step.unwrap_or(period / DEFAULT_STEPS);
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        millis(step).max(millis(period).div_ceil(MAX_STEPS)).max(1)
    }
}

/// Reads the history and computes the statistics.
pub(super) fn compute(folder: &Path, query: &StatsQuery) -> io::Result<StatsReport> {
    let mut builder = StatsBuilder::new(query);
    for segment in segments::list_from(folder, builder.from)? {
        let bytes = segment.read()?;
        Records::new(&bytes).filter_map(as_call).for_each(|call| builder.add(&call));
    }
    Ok(builder.finish())
}

/// Counts the calls since a position, by client key, and by client name and caller.
#[derive(Debug, Default)]
pub(crate) struct ClientCalls {
    by_key: HashMap<u64, Vec<u64>>,
    /// By client, then by caller.
    by_name: HashMap<String, HashMap<String, Vec<u64>>>,
}

impl ClientCalls {
    /// Reads the calls since a time.
    pub(super) fn read(folder: &Path, since: SystemTime) -> io::Result<Self> {
        let from = to_time_id(since);
        let mut calls = Self::default();
        for segment in segments::list_from(folder, from)? {
            let bytes = segment.read()?;
            for call in Records::new(&bytes).filter_map(as_call).filter(|call| call.seq >= from) {
                calls.add(&call);
            }
        }
        Ok(calls)
    }

    fn add(&mut self, call: &CallEntry<'_>) {
        self.by_key.entry(call.client_key).or_default().push(call.seq);
        // A name is copied for its first call only.
        let callers = match self.by_name.get_mut(call.client) {
            Some(callers) => callers,
            None => self.by_name.entry(call.client.to_owned()).or_default(),
        };
        match callers.get_mut(call.caller) {
            Some(positions) => positions.push(call.seq),
            None => {
                callers.insert(call.caller.to_owned(), vec![call.seq]);
            }
        }
    }

    /// Returns the calls of a session since a time.
    pub(crate) fn count_by_key(&self, key: u64, since: SystemTime) -> u64 {
        count_from(self.by_key.get(&key), since)
    }

    /// Returns the calls of a stateless client since a time.
    pub(crate) fn count_by_name(&self, client: &str, caller: &str, since: SystemTime) -> u64 {
        let positions = self.by_name.get(client).and_then(|callers| callers.get(caller));
        count_from(positions, since)
    }
}

fn count_from(positions: Option<&Vec<u64>>, since: SystemTime) -> u64 {
    let from = to_time_id(since);
    positions.map_or(0, |positions| positions.iter().filter(|position| **position >= from).count()) as u64
}

/// Collects calls.
struct StatsBuilder<'a> {
    query: &'a StatsQuery,
    from: u64,
    until: u64,
    step_millis: u64,
    totals: CallCounts,
    names: Names,
    servers: HashMap<u32, ServerCounts>,
    tools: HashMap<ToolKey, CallCounts>,
    callers: HashMap<u32, CallCounts>,
    clients: HashMap<u32, CallCounts>,
    points: Vec<CallCounts>,
    days: HashMap<DayKey, CallCounts>,
}

/// Numbers for names, so that each name is copied once.
#[derive(Default)]
struct Names {
    numbers: HashMap<String, u32>,
    names: Vec<String>,
}

impl Names {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        number
    }

    /// Returns the name, or `None` if it is empty.
    fn get(&self, number: u32) -> Option<String> {
        let name = self.names.get(usize::try_from(number).ok()?)?;
        (!name.is_empty()).then(|| name.clone())
    }
}

/// A tool and its server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ToolKey {
    server: u32,
    tool: u32,
}

/// A client and its caller on one day, counted from 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct DayKey {
    day: u64,
    client: u32,
    caller: u32,
}

/// A server's calls, in all and by step.
#[derive(Default)]
struct ServerCounts {
    all: CallCounts,
    points: HashMap<usize, CallCounts>,
}

impl<'a> StatsBuilder<'a> {
    fn new(query: &'a StatsQuery) -> Self {
        let step_millis = query.step_millis();
        let period = query.until.duration_since(query.since).unwrap_or_default();
        let steps = u64::try_from(period.as_millis()).unwrap_or(u64::MAX).div_ceil(step_millis).max(1);
        let steps = usize::try_from(steps.min(MAX_STEPS + 1)).unwrap_or(usize::MAX);
        Self {
            query,
            from: to_time_id(query.since),
            until: to_time_id(query.until + Duration::from_millis(1)),
            step_millis,
            totals: CallCounts::default(),
            names: Names::default(),
            servers: HashMap::new(),
            tools: HashMap::new(),
            callers: HashMap::new(),
            clients: HashMap::new(),
            points: (0..steps).map(|_| CallCounts::default()).collect(),
            days: HashMap::new(),
        }
    }

    fn add(&mut self, call: &CallEntry<'_>) {
        let is_wanted = self.query.caller.as_ref().is_none_or(|caller| caller == call.caller);
        if !is_wanted || !(self.from..self.until).contains(&call.seq) {
            return;
        }
        let step = self.step_of(call.seq);
        self.totals.add(call);
        self.points[step].add(call);
        let server = self.names.number(call.server);
        let tool = self.names.number(call.tool);
        let caller = self.names.number(call.caller);
        let client = self.names.number(call.client);
        let by_server = self.servers.entry(server).or_default();
        by_server.all.add(call);
        by_server.points.entry(step).or_default().add(call);
        self.callers.entry(caller).or_default().add(call);
        self.clients.entry(client).or_default().add(call);
        self.tools.entry(ToolKey { server, tool }).or_default().add(call);
        if self.query.with_cost {
            let since = time_of_id(call.seq).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let day = since.as_secs() / SECONDS_PER_DAY;
            self.days.entry(DayKey { day, client, caller }).or_default().add(call);
        }
    }

    fn step_of(&self, seq: u64) -> usize {
        let after = time_of_id(seq).duration_since(self.query.since).unwrap_or_default();
        let step = u64::try_from(after.as_millis()).unwrap_or(u64::MAX) / self.step_millis;
        usize::try_from(step).unwrap_or(usize::MAX).min(self.points.len() - 1)
    }

    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    fn finish(self) -> StatsReport {
        let step = Duration::from_millis(self.step_millis);
        let starts = (0_u32..).map(|index| format_timestamp(self.query.since + step * index));
        let series = starts.zip(&self.points);
        let named = |groups: &HashMap<u32, CallCounts>| {
            sort_rows(groups.iter().map(|(name, counts)| counts.row(self.names.get(*name))))
        };
        let server_row =
            |(name, server): (&u32, &ServerCounts)| server.row(self.names.get(*name), self.points.len());
        let tool_row = |(key, counts): (&ToolKey, &CallCounts)| StatsRow {
            server: self.names.get(key.server),
            ..counts.row(self.names.get(key.tool))
        };
        StatsReport {
            since: format_timestamp(self.query.since),
            until: format_timestamp(self.query.until),
            step: self.step_millis as f64 / 1000.0,
            dropped: 0,
            totals: self.totals.report(),
            servers: sort_rows(self.servers.iter().map(server_row)),
            tools: sort_rows(self.tools.iter().map(tool_row)),
            callers: named(&self.callers),
            clients: named(&self.clients),
            series: series.map(|(time, counts)| StatsPoint { time, stats: counts.report() }).collect(),
            cost: self.query.with_cost.then(|| self.cost_report()),
        }
    }

    /// Returns what results cost by client and day and by tool. Those who know the definitions add their cost.
    fn cost_report(&self) -> CostReport {
        let day_cost = |(key, counts): (&DayKey, &CallCounts)| DayCost {
            day: format_day(key.day),
            client: self.names.get(key.client),
            caller: self.names.get(key.caller).unwrap_or_default(),
            calls: counts.calls,
            result_tokens: counts.result_tokens,
            definition_tokens: None,
        };
        let tool_cost = |(key, counts): (&ToolKey, &CallCounts)| {
            Some(ToolCost {
                server: self.names.get(key.server)?,
                tool: self.names.get(key.tool)?,
                definition_tokens: None,
                calls: counts.calls,
                result_tokens: counts.result_tokens,
            })
        };
        let mut days: Vec<DayCost> = self.days.iter().map(day_cost).collect();
        days.sort_by(|a, b| {
            let clients = || (&a.client, &a.caller).cmp(&(&b.client, &b.caller));
            b.day.cmp(&a.day).then_with(clients)
        });
        days.truncate(MAX_ROWS);
        CostReport { days, definitions: self.tools.iter().filter_map(tool_cost).collect() }
    }
}

/// Returns a day, counted from 1970, as `2026-11-16`.
fn format_day(day: u64) -> String {
    let start = SystemTime::UNIX_EPOCH + Duration::from_secs(day * SECONDS_PER_DAY);
    let mut text = format_timestamp(start);
    text.truncate("2026-11-16".len());
    text
}

/// Sorts rows by the number of calls, then by name, and keeps the first ones.
fn sort_rows(rows: impl Iterator<Item = StatsRow>) -> Vec<StatsRow> {
    let mut rows: Vec<StatsRow> = rows.collect();
    rows.sort_by(|a, b| {
        let names = || (&a.name, &a.server).cmp(&(&b.name, &b.server));
        b.stats.calls.cmp(&a.stats.calls).then_with(names)
    });
    rows.truncate(MAX_ROWS);
    rows
}

impl ServerCounts {
    fn row(&self, name: Option<String>, steps: usize) -> StatsRow {
        let points = || (0..steps).map(|step| self.points.get(&step));
        StatsRow {
            calls_series: points().map(|counts| counts.map_or(0, |counts| counts.calls)).collect(),
            errors_series: points().map(|counts| counts.map_or(0, |counts| counts.errors)).collect(),
            p95_series: points().map(|counts| counts.and_then(|counts| counts.percentile(95))).collect(),
            ..self.all.row(name)
        }
    }
}

/// Counts of some calls.
#[derive(Debug, Default)]
struct CallCounts {
    calls: u64,
    errors: u64,
    denied: u64,
    request_bytes: u64,
    response_bytes: u64,
    result_tokens: u64,
    /// Calls by the bucket of their duration. There are few, so that a search is faster than a hash.
    durations: Vec<BucketCount>,
}

/// The calls in one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct BucketCount {
    bucket: u16,
    calls: u64,
}

impl CallCounts {
    fn add(&mut self, call: &CallEntry<'_>) {
        self.calls += 1;
        match call.outcome() {
            CallOutcome::Ok => {}
            CallOutcome::Error => self.errors += 1,
            CallOutcome::Denied => self.denied += 1,
        }
        // A damaged record may have any numbers.
        self.request_bytes = self.request_bytes.saturating_add(call.request_bytes);
        self.response_bytes = self.response_bytes.saturating_add(call.response_bytes);
        self.result_tokens = self.result_tokens.saturating_add(call.result_tokens());
        let bucket = bucket(call.duration);
        match self.durations.iter_mut().find(|count| count.bucket == bucket) {
            Some(count) => count.calls += 1,
            None => self.durations.push(BucketCount { bucket, calls: 1 }),
        }
    }

    /// Returns the duration in milliseconds within which this percentage of the calls ended, to about 6 %.
    fn percentile(&self, percent: u64) -> Option<f64> {
        let target = (self.calls * percent).div_ceil(100);
        let mut durations = self.durations.clone();
        durations.sort_unstable();
        let mut seen = 0;
        let found = durations.iter().find(|count| {
            seen += count.calls;
            seen >= target
        });
        found.map(|count| to_millis(upper_bound(count.bucket)))
    }

    fn report(&self) -> CallStats {
        let mut histogram = vec![0; HISTOGRAM_BOUNDS.len() + 1];
        for count in &self.durations {
            let millis = upper_bound(count.bucket).div_ceil(1000);
            let place = HISTOGRAM_BOUNDS.partition_point(|bound| *bound < millis);
            histogram[place] += count.calls;
        }
        CallStats {
            calls: self.calls,
            errors: self.errors,
            denied: self.denied,
            p50_ms: self.percentile(50),
            p95_ms: self.percentile(95),
            p99_ms: self.percentile(99),
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            result_tokens: self.result_tokens,
            histogram,
        }
    }

    fn row(&self, name: Option<String>) -> StatsRow {
        StatsRow { name, stats: self.report(), ..StatsRow::default() }
    }
}

/// Bits of a duration that select a bucket below its highest bit: 16 buckets per power of two.
const BUCKET_BITS: u32 = 4;

/// Returns the bucket of a duration in microseconds.
fn bucket(micros: u64) -> u16 {
    let exponent = micros.max(1).ilog2();
    let shift = exponent.saturating_sub(BUCKET_BITS);
    let place = (u64::from(shift) << BUCKET_BITS) + (micros >> shift);
    u16::try_from(place).unwrap_or(u16::MAX)
}

/// Returns the largest duration of a bucket, in microseconds.
fn upper_bound(bucket: u16) -> u64 {
    let bucket = u64::from(bucket);
    let per_power = 1 << BUCKET_BITS;
    let shift = (bucket / per_power).saturating_sub(1);
    let mantissa = bucket - shift * per_power;
    // The bound of the last bucket is the largest number.
    ((mantissa + 1) << shift).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_close_and_ordered() {
        let mut last = 0;
        for micros in (0..5000).chain([1 << 20, (1 << 33) + 7, 1 << 50]) {
            let found = bucket(micros);
            let bound = upper_bound(found);
            assert!(found >= last && bound >= micros, "{micros}");
            assert!(bound - micros <= micros / 16, "{micros}: {bound}");
            last = found;
        }
    }
    #[test]
    fn any_number_in_a_record_is_counted() {
        let query = StatsQuery {
            since: SystemTime::UNIX_EPOCH,
            until: SystemTime::UNIX_EPOCH + Duration::from_secs(1000),
            step: None,
            caller: None,
            with_cost: true,
        };
        let mut builder = StatsBuilder::new(&query);
        let mut call = CallEntry::default();
        call.duration = u64::MAX;
        call.request_bytes = u64::MAX;
        call.response_bytes = u64::MAX;
        builder.add(&call);
        builder.add(&call);
        let totals = builder.finish().totals;
        assert_eq!((totals.calls, totals.request_bytes, totals.response_bytes), (2, u64::MAX, u64::MAX));
    }
}
