//! The figures of a run, and the violations found.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Duration;

use toolcrib::ErrorKind;

use super::Plan;
use super::callers::{CallOutcome, CallTracker};
use super::execution_log::Executions;
use super::faults::FaultCounts;
use super::resource_monitor::ResourceMonitor;
use test_support::gateway::Home;
use test_support::{WAIT_LIMIT, process};

/// Limit on memory growth between the baseline and the end, in KiB.
const GROWTH: u64 = 24 << 10;

/// Error kinds that a call may end with while servers are killed, frozen, hanging and replaced.
const ALLOWED_KINDS: [ErrorKind; 4] =
    [ErrorKind::Lost, ErrorKind::TimedOut, ErrorKind::Tripped, ErrorKind::CouldNotStart];

/// Error kinds after which the server has certainly not executed the call.
const NOT_EXECUTED_KINDS: [ErrorKind; 2] = [ErrorKind::Tripped, ErrorKind::CouldNotStart];

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// One line per phase, then the totals.
    pub lines: Vec<String>,
    /// Properties that did not hold; empty if all did.
    pub violations: Vec<String>,
    baseline: Baseline,
    killed: usize,
    frozen: usize,
}

/// The gateway's resources before the first fault.
#[derive(Debug, Clone, Copy, Default)]
struct Baseline {
    memory_kib: u64,
    open_files: usize,
}

/// The figures of one phase.
#[derive(Debug)]
pub struct PhaseFigures {
    name: &'static str,
    calls: usize,
    duration: Duration,
    latencies: Vec<u32>,
    outcomes: BTreeMap<&'static str, usize>,
    faults: FaultCounts,
}

impl PhaseFigures {
    /// Computes the figures of the calls from number `first_call` on.
    pub fn new(
        name: &'static str,
        first_call: usize,
        tracker: &CallTracker,
        duration: Duration,
        mut latencies: Vec<u32>,
        faults: FaultCounts,
    ) -> Self {
        latencies.sort_unstable();
        let mut outcomes = BTreeMap::new();
        tracker.outcomes().skip(first_call).for_each(|end| *outcomes.entry(label(end)).or_default() += 1);
        Self { name, calls: tracker.started() - first_call, duration, latencies, outcomes, faults }
    }

    /// Returns a percentile of the latencies in milliseconds.
    fn latency_ms(&self, percentile: f64) -> f64 {
        let index = (self.latencies.len().saturating_sub(1) as f64 * percentile) as usize;
        f64::from(self.latencies.get(index).copied().unwrap_or_default()) / 1000.0
    }
}

fn label(end: CallOutcome) -> &'static str {
    match end {
        CallOutcome::Open => "not ended",
        CallOutcome::Answered => "answered",
        CallOutcome::Misdelivered => "misdelivered",
        CallOutcome::Unanswered => "unanswered",
        CallOutcome::Malformed => "malformed",
        CallOutcome::Failed(kind) => kind.facts().name,
    }
}

fn format_counts(counts: &BTreeMap<&'static str, usize>) -> String {
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} {name}")).collect();
    parts.join(", ")
}

impl Report {
    /// Creates an empty report.
    pub fn new(plan: &Plan) -> Self {
        let Plan { calls, servers, callers, seed, .. } = plan;
        let line = format!("seed {seed}: {calls} calls, {servers} servers, {callers} callers");
        Self {
            lines: vec![line],
            violations: Vec::new(),
            baseline: Baseline::default(),
            killed: 0,
            frozen: 0,
        }
    }

    /// Adds the line of a phase.
    pub fn add_phase(&mut self, figures: &PhaseFigures, memory_kib: u64) {
        let seconds = figures.duration.as_secs_f64();
        let mib = memory_kib / 1024;
        let mut line = format!(
            "{:<10} {:>7} calls in {seconds:>6.1} s ({:>5.0}/s)  p50 {:.1} ms, p99 {:.1} ms, max {:.0} ms  {mib} MiB  {}",
            figures.name,
            figures.calls,
            figures.calls as f64 / seconds,
            figures.latency_ms(0.5),
            figures.latency_ms(0.99),
            figures.latency_ms(1.0),
            format_counts(&figures.outcomes),
        );
        let count = |fault| figures.faults.get(fault).copied().unwrap_or_default();
        self.killed += count("killed");
        self.frozen += count("frozen");
        if !figures.faults.is_empty() {
            line += &format!("  [{}]", format_counts(&figures.faults));
        }
        self.lines.push(line);
    }

    /// Checks that faults were injected: a run without them proves nothing.
    pub fn check_faults_injected(&mut self) {
        let injected = self.killed > 0 && self.frozen > 0;
        self.check(injected, || "no server was killed, or none was frozen".to_owned());
    }

    /// Records the gateway's resources before the first fault.
    pub fn record_baseline(&mut self, monitor: &ResourceMonitor) {
        self.baseline = Baseline { memory_kib: monitor.memory_kib(), open_files: monitor.open_files() };
    }

    /// Compares the gateway's resources at the end with the baseline.
    pub async fn compare_with_baseline(&mut self, monitor: &ResourceMonitor) {
        let Baseline { memory_kib, open_files } = self.baseline;
        let deadline = tokio::time::Instant::now() + WAIT_LIMIT;
        while monitor.open_files() > open_files && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let memory_now = monitor.memory_kib();
        let files_now = monitor.open_files();
        self.lines.push(format!(
            "memory     {memory_kib} KiB at the first rest, {memory_now} at the last, {} at most; {:+.0} KiB per minute in the second half",
            monitor.peak_kib(),
            monitor.growth_per_minute()
        ));
        self.lines.push(format!("files      {open_files} open at the first rest, {files_now} at the last"));
        self.check(memory_now <= memory_kib + GROWTH, || "the gateway's memory grew".to_owned());
        self.check(files_now <= open_files, || format!("{} files stayed open", files_now - open_files));
    }

    /// Records how the gateway exited and which processes it left behind.
    pub fn record_exit(&mut self, status: ExitStatus, home: &Home) {
        let left = process::find_by_command_line(home.path().to_str().unwrap_or_default());
        self.lines.push(format!("end        {status}, {} processes left", left.len()));
        self.check(status.success(), || format!("the gateway exited with {status}"));
        self.check(left.is_empty(), || format!("processes left: {left:?}"));
    }

    /// Compares what callers received with what servers executed.
    pub fn compare(&mut self, tracker: &CallTracker, executions: &Executions) {
        let mut lost = 0;
        let mut misdelivered = 0;
        let mut not_executed = 0;
        let mut refused_but_executed = 0;
        let mut wrong_kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (token, end) in tracker.outcomes().enumerate() {
            let times = executions.tokens.get(&(token as u64)).copied().unwrap_or_default();
            match end {
                CallOutcome::Open | CallOutcome::Unanswered | CallOutcome::Malformed => lost += 1,
                CallOutcome::Misdelivered => misdelivered += 1,
                CallOutcome::Answered => not_executed += usize::from(times == 0),
                CallOutcome::Failed(kind) => {
                    refused_but_executed += usize::from(NOT_EXECUTED_KINDS.contains(&kind) && times > 0);
                    if !ALLOWED_KINDS.contains(&kind) {
                        *wrong_kinds.entry(kind.facts().name).or_default() += 1;
                    }
                }
            }
        }
        let duplicated = executions.tokens.values().filter(|times| **times > 1).count();
        let calls = tracker.started() as u64;
        let unknown =
            executions.tokens.keys().filter(|token| **token >= calls).count() + executions.unknown.len();
        let executed = executions.tokens.len();
        self.lines.push(format!(
            "calls      {calls} made, {executed} executed by {} processes: {lost} lost, {duplicated} duplicated, \
             {misdelivered} misdelivered, {not_executed} answered but not executed, \
             {refused_but_executed} refused but executed, {unknown} executed with an unknown token",
            executions.starts
        ));
        let violations = [lost, duplicated, misdelivered, not_executed, refused_but_executed, unknown];
        for (token, description) in tracker.unexpected() {
            // The count tells whether the call reached its server.
            let times = executions.tokens.get(&token).copied().unwrap_or_default();
            self.lines.push(format!("unexpected {token}, executed {times} times, {description}"));
        }
        let none = violations.iter().all(|count| *count == 0);
        self.check(none, || "calls were lost, duplicated or answered wrongly".to_owned());
        self.check(wrong_kinds.is_empty(), || {
            format!("unexpected error kinds: {}", format_counts(&wrong_kinds))
        });
    }

    /// Adds a violation unless `holds`.
    pub fn check(&mut self, holds: bool, violation: impl FnOnce() -> String) {
        if !holds {
            self.violations.push(violation());
        }
    }
}
