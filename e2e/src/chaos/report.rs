//! The figures of a run, and what did not hold.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::Duration;

use toolcrib::ErrorKind;

use super::Plan;
use super::books::Done;
use super::callers::{End, Goal};
use super::gauge::Gauge;
use super::mischief::Acts;
use test_support::gateway::Home;
use test_support::{PATIENCE, process};

/// How much more memory the gateway may have at the last rest than at the first, in KiB.
const GROWTH: u64 = 24 << 10;

/// Failures that a call may have while servers are killed, frozen, hanging and replaced.
const ALLOWED: [ErrorKind; 4] =
    [ErrorKind::Lost, ErrorKind::TimedOut, ErrorKind::Tripped, ErrorKind::CouldNotStart];

/// Failures after which the server has certainly not worked on the call.
const UNDONE: [ErrorKind; 2] = [ErrorKind::Tripped, ErrorKind::CouldNotStart];

/// What was seen.
#[derive(Debug)]
pub struct Report {
    /// One line for each phase, then the table.
    pub lines: Vec<String>,
    /// What did not hold; empty if all did.
    pub broken: Vec<String>,
    /// Memory in KiB and open files at the first rest.
    first: (u64, usize),
    killed: usize,
    frozen: usize,
}

/// The figures of one phase.
#[derive(Debug)]
pub struct PhaseFigures {
    name: &'static str,
    calls: usize,
    took: Duration,
    waits: Vec<u32>,
    ends: BTreeMap<&'static str, usize>,
    acts: Acts,
}

impl PhaseFigures {
    /// The figures of the calls since `before`.
    pub fn new(
        name: &'static str,
        before: usize,
        goal: &Goal,
        took: Duration,
        mut waits: Vec<u32>,
        acts: Acts,
    ) -> Self {
        waits.sort_unstable();
        let mut ends = BTreeMap::new();
        let all = goal.ends().skip(before);
        all.for_each(|end| *ends.entry(word(end)).or_default() += 1);
        Self { name, calls: goal.ended() - before, took, waits, ends, acts }
    }

    fn wait(&self, share: f64) -> f64 {
        let place = (self.waits.len().saturating_sub(1) as f64 * share) as usize;
        f64::from(self.waits.get(place).copied().unwrap_or_default()) / 1000.0
    }
}

/// What the end of a call is called.
fn word(end: End) -> &'static str {
    match end {
        End::Open => "not ended",
        End::Answered => "answered",
        End::Crossed => "crossed",
        End::Unanswered => "unanswered",
        End::Odd => "odd",
        End::Failed(kind) => kind.facts().name,
    }
}

fn listed(counts: &BTreeMap<&'static str, usize>) -> String {
    let words: Vec<String> = counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
    words.join(", ")
}

impl Report {
    /// A report with nothing in it.
    pub fn new(plan: &Plan) -> Self {
        let Plan { calls, servers, callers, seed, .. } = plan;
        let line = format!("seed {seed}: {calls} calls, {servers} servers, {callers} callers");
        Self { lines: vec![line], broken: Vec::new(), first: (0, 0), killed: 0, frozen: 0 }
    }

    /// Notes a phase.
    pub fn phase(&mut self, figures: &PhaseFigures, memory: u64) {
        let (seconds, mib) = (figures.took.as_secs_f64(), memory / 1024);
        let mut line = format!(
            "{:<10} {:>7} calls in {seconds:>6.1} s ({:>5.0}/s)  p50 {:.1} ms, p99 {:.1} ms, max {:.0} ms  {mib} MiB  {}",
            figures.name,
            figures.calls,
            figures.calls as f64 / seconds,
            figures.wait(0.5),
            figures.wait(0.99),
            figures.wait(1.0),
            listed(&figures.ends),
        );
        let count = |act| figures.acts.get(act).copied().unwrap_or_default();
        self.killed += count("killed");
        self.frozen += count("frozen");
        if !figures.acts.is_empty() {
            line += &format!("  [{}]", listed(&figures.acts));
        }
        self.lines.push(line);
    }

    /// A run in which nothing went wrong shows nothing.
    pub fn disturbed(&mut self) {
        let done = self.killed > 0 && self.frozen > 0;
        self.check(done, || "no server was ever killed, or none was frozen".to_owned());
    }

    /// Notes what the gateway holds when nothing has gone wrong yet.
    pub fn rested_first(&mut self, gauge: &Gauge) {
        self.first = (gauge.memory(), gauge.files());
    }

    /// Compares what the gateway holds at the end with what it held at the first rest.
    pub async fn rested_last(&mut self, gauge: &Gauge) {
        let (memory, files) = self.first;
        let until = tokio::time::Instant::now() + PATIENCE;
        while gauge.files() > files && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let (memory_now, files_now) = (gauge.memory(), gauge.files());
        self.lines.push(format!(
            "memory     {memory} KiB at the first rest, {memory_now} at the last, {} at most; {:+.0} KiB a minute in the second half",
            gauge.peak(),
            gauge.slope()
        ));
        self.lines.push(format!("files      {files} open at the first rest, {files_now} at the last"));
        self.check(memory_now <= memory + GROWTH, || "the gateway's memory grew".to_owned());
        self.check(files_now <= files, || format!("{} files stayed open", files_now - files));
    }

    /// Notes how the gateway ended and what it left behind.
    pub fn ended(&mut self, status: ExitStatus, home: &Home) {
        let left = process::with_words(home.path().to_str().unwrap_or_default());
        self.lines.push(format!("end        {status}, {} processes left", left.len()));
        self.check(status.success(), || format!("the gateway ended with {status}"));
        self.check(left.is_empty(), || format!("left behind: {left:?}"));
    }

    /// Compares what callers heard with what was really done.
    pub fn compare(&mut self, goal: &Goal, done: &Done) {
        let (mut lost, mut crossed, mut undone, mut untrue) = (0, 0, 0, 0);
        let mut wrong_kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (token, end) in goal.ends().enumerate() {
            let times = done.tokens.get(&(token as u64)).copied().unwrap_or_default();
            match end {
                End::Open | End::Unanswered | End::Odd => lost += 1,
                End::Crossed => crossed += 1,
                End::Answered => undone += usize::from(times == 0),
                End::Failed(kind) => {
                    untrue += usize::from(UNDONE.contains(&kind) && times > 0);
                    if !ALLOWED.contains(&kind) {
                        *wrong_kinds.entry(kind.facts().name).or_default() += 1;
                    }
                }
            }
        }
        let twice = done.tokens.values().filter(|times| **times > 1).count();
        let calls = goal.ended() as u64;
        let phantoms = done.tokens.keys().filter(|token| **token >= calls).count() + done.strange.len();
        let ran = done.tokens.len();
        self.lines.push(format!(
            "calls      {calls} made, {ran} executed by {} processes: {lost} lost, {twice} duplicated, {crossed} crossed, \
             {undone} answered but not executed, {untrue} refused but executed, {phantoms} phantoms",
            done.starts
        ));
        let all = [lost, twice, crossed, undone, untrue, phantoms];
        for (token, surprise) in goal.surprises() {
            // A call that was never executed did not get to its server; one that was, its server was slow to answer.
            let times = done.tokens.get(&token).copied().unwrap_or_default();
            self.lines.push(format!("surprise   {token}, executed {times} times, {surprise}"));
        }
        self.check(all.iter().all(|count| *count == 0), || "not every call ended as it must".to_owned());
        self.check(wrong_kinds.is_empty(), || {
            format!("failures that nothing explains: {}", listed(&wrong_kinds))
        });
    }

    /// Notes something that must hold.
    pub fn check(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.broken.push(otherwise());
        }
    }
}
