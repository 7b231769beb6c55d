//! The soak: a steady pace for long with a little of everything that goes wrong, and once a minute a pause, in which the
//! gateway must come to hold no more than it held in the pauses before.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::callers::Goal;
use super::gauge::Gauge;
use super::mischief::{Faults, Mischief};
use super::report::Report;
use super::{Ground, Phase, Plan, one_phase, seated};
use test_support::gateway::Gateway;
use test_support::process;

/// From the first call of one round to the first of the next.
const ROUND: Duration = Duration::from_secs(60);

/// How long calls are made in it; servers fall asleep in the rest.
const BUSY: Duration = Duration::from_secs(50);

/// By how many KiB memory at rest may rise over the second half of the time, whatever that is.
const RISE: f64 = 2048.0;

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

/// What the gateway holds when it has nothing to do.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    /// In KiB.
    memory: u64,
    files: usize,
    threads: u64,
    /// Its children, living and dead.
    processes: usize,
}

impl Rest {
    fn of(gauge: &Gauge, gateway: &Gateway) -> Self {
        let pid = gateway.pid();
        let processes = process::children(pid).len() + process::zombies(pid).len();
        Self { memory: gauge.memory(), files: gauge.files(), threads: gauge.threads(), processes }
    }
}

/// Calls at this pace for so long; every round is told of as it ends.
pub async fn soak(plan: &Plan, length: Duration, pace: Duration, mut tell: impl FnMut(&str)) -> Report {
    let apart = |number| if number % 3 == 0 { "sharing = \"per-client\"\n" } else { "" };
    let ground = Ground::new(&plan.gateway, &plan.fake, plan.servers);
    let ground = Arc::new(ground.with("keep-alive = \"3s\"\n", apart));
    let mut gateway = ground.home.serve();
    let rounds = (length.as_secs() / ROUND.as_secs()).max(1);
    let each = u64::try_from(BUSY.as_micros() / pace.as_micros().max(1)).unwrap_or(u64::MAX);
    let mut report = Report::new(&Plan { calls: rounds * each, ..plan.clone() });
    let gauge = Gauge::new(gateway.pid());
    let goal = Goal::new(rounds * each).paced(pace);
    let mut rests: Vec<Rest> = Vec::new();
    for round in 1..=rounds {
        let next = Instant::now() + ROUND;
        goal.raise(round * each);
        let phase = Phase { name: "round", share: 100, faults: FAULTS };
        let maker = Mischief::new(&ground, &gateway, plan.seed ^ round).paced(Duration::from_secs(1));
        let (callers, figures) = one_phase(&phase, seated(&gateway, plan), &goal, maker).await;
        callers.into_iter().for_each(super::callers::Caller::leave);
        let rest = rested(&gauge, &gateway, &rests, next).await;
        rests.push(rest);
        report.phase(&figures, rest.memory);
        let Rest { memory, files, threads, processes } = rest;
        let line = format!(
            "at rest    {memory} KiB, {files} open files, {threads} threads, {processes} processes below it"
        );
        report.lines.push(line);
        report.lines.drain(..).for_each(|line| tell(&line));
        tokio::time::sleep_until(next).await;
    }
    judge(&mut report, &rests);
    report.disturbed();
    report.ended(gateway.stop(), &ground.home);
    report.compare(&goal, &ground.books.read());
    report
}

/// What it holds when the round is over; sooner, if that is no more than in the rounds before.
async fn rested(gauge: &Gauge, gateway: &Gateway, before: &[Rest], until: Instant) -> Rest {
    let files = before.iter().map(|rest| rest.files).min().unwrap_or_default();
    loop {
        let rest = Rest::of(gauge, gateway);
        if Instant::now() >= until || (rest.processes == 0 && rest.files <= files) {
            return rest;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Holds every pause against the first quarter of them.
fn judge(report: &mut Report, rests: &[Rest]) {
    let (early, late) = rests.split_at(rests.len().div_ceil(4));
    let most = |of: fn(&Rest) -> u64| early.iter().map(of).max().unwrap_or_default();
    let (files, threads) = (most(|rest| rest.files as u64), most(|rest| rest.threads));
    for (number, rest) in late.iter().enumerate() {
        let minute = early.len() + number + 1;
        report.check(rest.files as u64 <= files, || format!("{} files open in minute {minute}", rest.files));
        report.check(rest.threads <= threads, || format!("{} threads in minute {minute}", rest.threads));
    }
    let busy = rests.iter().filter(|rest| rest.processes > 0).count();
    report.check(busy == 0, || format!("in {busy} pauses a process was left"));
    let rise = rise(&rests[rests.len() / 2..]);
    report.lines.push(format!("memory     {rise:+.0} KiB over the second half, in the pauses"));
    report.check(rise <= RISE, || format!("memory rose by {rise:.0} KiB over the second half"));
}

/// By how many KiB the line through these pauses rises from the first to the last.
fn rise(rests: &[Rest]) -> f64 {
    let count = rests.len() as f64;
    let mean = rests.iter().map(|rest| rest.memory as f64).sum::<f64>() / count;
    let middle = (count - 1.0) / 2.0;
    let off = |number: usize| number as f64 - middle;
    let above: f64 =
        rests.iter().enumerate().map(|(number, rest)| off(number) * (rest.memory as f64 - mean)).sum();
    let below: f64 = (0..rests.len()).map(|number| off(number).powi(2)).sum();
    if below > 0.0 { above / below * (count - 1.0) } else { 0.0 }
}
