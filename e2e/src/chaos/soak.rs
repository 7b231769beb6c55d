//! The soak test: a constant call rate over hours with all faults. Once a minute there is a pause, in which the gateway
//! must not hold more than in earlier pauses.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::callers::CallTracker;
use super::faults::{FaultInjector, Faults};
use super::report::Report;
use super::resource_monitor::ResourceMonitor;
use super::{Phase, Plan, TestBed, open_callers, run_phase};
use test_support::gateway::GatewayProcess;
use test_support::process;

/// Time between the starts of two rounds.
const ROUND: Duration = Duration::from_secs(60);

/// Part of each round in which calls are made; servers stop when idle in the rest.
const BUSY: Duration = Duration::from_secs(50);

/// Limit on the growth of anonymous memory over the second half of the run, in KiB.
const MAX_GROWTH: f64 = 1024.0;

const FAULTS: Faults = Faults {
    kill: true,
    freeze: true,
    reload: true,
    hang: 10,
    crash: 20,
    flood: 100,
    garbage: 500,
    late: 500,
};

/// The gateway's resources in a pause.
#[derive(Debug, Clone, Copy, Default)]
struct Pause {
    /// Resident memory in KiB.
    memory: u64,
    /// The part of it that is not mapped from a file.
    anonymous: u64,
    files: usize,
    threads: u64,
    /// Its child processes and zombies.
    processes: usize,
}

impl Pause {
    fn read(monitor: &ResourceMonitor, gateway: &GatewayProcess) -> Self {
        let pid = gateway.pid();
        let processes = process::children(pid).len() + process::zombies(pid).len();
        Self {
            memory: monitor.memory_kib(),
            anonymous: monitor.anonymous_kib(),
            files: monitor.open_files(),
            threads: monitor.threads(),
            processes,
        }
    }
}

/// Makes calls for `length` with `interval` between them; `print` gets the lines of each round when it ends.
pub async fn run(plan: &Plan, length: Duration, interval: Duration, mut print: impl FnMut(&str)) -> Report {
    let sharing = |number| if number % 3 == 0 { "sharing = \"per-client\"\n" } else { "" };
    let bed = TestBed::new(&plan.gateway, &plan.fake, plan.servers);
    let bed = Arc::new(bed.with("keep-alive = \"3s\"\n", sharing));
    let mut gateway = bed.home.serve();
    let rounds = (length.as_secs() / ROUND.as_secs()).max(1);
    let calls_per_round = u64::try_from(BUSY.as_micros() / interval.as_micros().max(1)).unwrap_or(u64::MAX);
    let mut report = Report::new(&Plan { calls: rounds * calls_per_round, ..plan.clone() });
    let monitor = ResourceMonitor::new(gateway.pid());
    let tracker = CallTracker::new(rounds * calls_per_round).with_interval(interval);
    let mut pauses: Vec<Pause> = Vec::new();
    for round in 1..=rounds {
        let next = Instant::now() + ROUND;
        tracker.allow_until(round * calls_per_round);
        let phase = Phase { name: "round", share: 100, faults: FAULTS };
        let injector = FaultInjector::new(&bed, &gateway, plan.seed ^ round).tick(Duration::from_secs(1));
        let (callers, figures) = run_phase(&phase, open_callers(&gateway, plan), &tracker, injector).await;
        callers.into_iter().for_each(super::callers::Caller::close_session);
        let pause = wait_for_pause(&monitor, &gateway, &pauses, next).await;
        pauses.push(pause);
        report.add_phase(&figures, pause.memory);
        let Pause { memory, anonymous, files, threads, processes } = pause;
        let line = format!(
            "at rest    {memory} KiB, {anonymous} of them anonymous, {files} open files, {threads} threads, {processes} child processes"
        );
        report.lines.push(line);
        report.lines.drain(..).for_each(|line| print(&line));
        tokio::time::sleep_until(next).await;
    }
    check_pauses(&mut report, &pauses);
    report.check_faults_injected();
    report.record_exit(gateway.stop(), &bed.home);
    report.compare(&tracker, &bed.executions.read());
    report
}

/// Waits until no child process is left and no more files are open than in earlier pauses, at most until the round ends.
async fn wait_for_pause(
    monitor: &ResourceMonitor,
    gateway: &GatewayProcess,
    before: &[Pause],
    deadline: Instant,
) -> Pause {
    let files = before.iter().map(|pause| pause.files).min().unwrap_or_default();
    loop {
        let pause = Pause::read(monitor, gateway);
        if Instant::now() >= deadline || (pause.processes == 0 && pause.files <= files) {
            return pause;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Compares every pause with the first quarter of them.
fn check_pauses(report: &mut Report, pauses: &[Pause]) {
    let (early, late) = pauses.split_at(pauses.len().div_ceil(4));
    let most = |field: fn(&Pause) -> u64| early.iter().map(field).max().unwrap_or_default();
    let files = most(|pause| pause.files as u64);
    let threads = most(|pause| pause.threads);
    for (number, pause) in late.iter().enumerate() {
        let minute = early.len() + number + 1;
        report
            .check(pause.files as u64 <= files, || format!("{} files open in minute {minute}", pause.files));
        report.check(pause.threads <= threads, || format!("{} threads in minute {minute}", pause.threads));
    }
    let busy = pauses.iter().filter(|pause| pause.processes > 0).count();
    report.check(busy == 0, || format!("in {busy} pauses a process was left"));
    let growth = growth(&pauses[pauses.len() / 2..]);
    report.lines.push(format!("memory     {growth:+.0} KiB anonymous over the second half, in the pauses"));
    report.check(growth <= MAX_GROWTH, || {
        format!("anonymous memory rose by {growth:.0} KiB over the second half")
    });
}

/// Returns the growth of anonymous memory from the first to the last pause by linear regression, in KiB.
fn growth(pauses: &[Pause]) -> f64 {
    let count = pauses.len() as f64;
    let mean = pauses.iter().map(|pause| pause.anonymous as f64).sum::<f64>() / count;
    let middle = (count - 1.0) / 2.0;
    let deviation = |number: usize| number as f64 - middle;
    let covariance: f64 = pauses
        .iter()
        .enumerate()
        .map(|(number, pause)| deviation(number) * (pause.anonymous as f64 - mean))
        .sum();
    let variance: f64 = (0..pauses.len()).map(|number| deviation(number).powi(2)).sum();
    if variance > 0.0 { covariance / variance * (count - 1.0) } else { 0.0 }
}
