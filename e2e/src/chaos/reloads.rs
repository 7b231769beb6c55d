//! The reload storm: callers keep running while every other server gets a new entry again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep};

use super::callers::{CallOutcome, CallTracker, Caller};
use super::faults::Faults;
use super::report::Report;
use super::resource_monitor::ResourceMonitor;
use super::{Plan, TestBed, open_callers, wait_for_all_servers};
use test_support::{WAIT_LIMIT, http, process};

/// Half of the calls are answered late, so that calls are in flight during every reload.
const CALLS: Faults = Faults { late: 5_000, ..Faults::NONE };

/// Reloads the config `times` times, one change after the other, and checks the result. Makes at most as many calls as
/// the plan has.
pub async fn run(plan: &Plan, times: u64) -> Report {
    // One process for clients of both eras, so that those of unchanged servers are known before the first reload.
    let bed = TestBed::new(&plan.gateway, &plan.fake, plan.servers).with("", |_| "sharing = \"shared\"\n");
    let mut gateway = bed.home.serve();
    let mut report = Report::new(plan);
    let monitor = ResourceMonitor::new(gateway.pid());
    let tracker = CallTracker::new(plan.calls);
    let mut callers = open_callers(&gateway, plan);
    wait_for_all_servers(&bed, &mut callers).await;
    report.record_baseline(&monitor);
    let before = unchanged_pids(&bed);
    let started = Instant::now();
    let running = start_callers(callers, &tracker, plan.calls);
    let mut extra = BTreeMap::new();
    for _ in 0..times {
        let changed = (0..plan.servers).step_by(2);
        changed.for_each(|server| *extra.entry(server).or_default() += 1);
        bed.home.write_config(&bed.config(&extra));
        let address = gateway.address;
        let reload = move || http::request(address, "POST", "/api/v1/reload", &[], b"").status;
        let status = spawn_blocking(reload).await.unwrap_or_default();
        report.check(status == 200, || format!("a reload ended with {status}"));
        // Waits for some calls between two reloads, so that servers have time to start.
        let enough = tracker.started() + plan.callers / 4;
        let until = Instant::now() + WAIT_LIMIT;
        while tracker.started() < enough && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
    }
    let took = started.elapsed().as_secs_f64();
    tracker.stop();
    let mut callers = running.join_all().await;
    wait_for_all_servers(&bed, &mut callers).await;
    let made = tracker.started();
    report.lines.push(format!("reloads    {times} in {took:.1} s, {made} calls meanwhile"));
    report.check(made > plan.callers, || "too few calls were made".to_owned());
    let lost: Vec<CallOutcome> = tracker.outcomes().filter(|end| *end != CallOutcome::Answered).collect();
    report.check(lost.is_empty(), || format!("{} calls failed, the first one as {:?}", lost.len(), lost[0]));
    report.check(unchanged_pids(&bed) == before, || "a server that did not change was restarted".to_owned());
    // The baseline was taken without these connections.
    drop(callers);
    report.compare_with_baseline(&monitor).await;
    report.record_exit(gateway.stop(), &bed.home);
    report.compare(&tracker, &bed.executions.read());
    report
}

fn start_callers(callers: Vec<Caller>, tracker: &Arc<CallTracker>, limit: u64) -> JoinSet<Caller> {
    tracker.allow_until(limit);
    let mut running = JoinSet::new();
    for mut caller in callers {
        let tracker = tracker.clone();
        running.spawn(async move {
            caller.run(&tracker, CALLS).await;
            caller
        });
    }
    running
}

/// Returns the processes of the servers whose entries never change.
fn unchanged_pids(bed: &TestBed) -> Vec<u32> {
    let odd = (1..bed.servers()).step_by(2);
    odd.flat_map(|server| process::find_by_command_line(&bed.executions.server_folder(&format!("s{server}"))))
        .map(|(pid, _)| pid)
        .collect()
}
