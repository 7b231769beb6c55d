//! The reload storm: callers that never stop while every other server gets a new entry again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep};

use super::callers::{Caller, End, Goal};
use super::gauge::Gauge;
use super::mischief::Faults;
use super::report::Report;
use super::{Ground, Plan, at_rest, seated};
use test_support::{PATIENCE, http, process};

/// Half of the calls take their time, so that many are under way whenever something changes.
const CALLS: Faults = Faults { late: 5_000, ..Faults::NONE };

/// Reads the config anew so many times, one change after the other, and says what held. At most as many calls are made
/// as the plan has.
pub async fn run(plan: &Plan, times: u64) -> Report {
    let ground = Ground::new(&plan.gateway, &plan.fake, plan.servers);
    let mut gateway = ground.home.serve();
    let mut report = Report::new(plan);
    let (gauge, goal) = (Gauge::new(gateway.pid()), Goal::new(plan.calls));
    let mut callers = seated(&gateway, plan);
    at_rest(&ground, &mut callers).await;
    report.rested_first(&gauge);
    let (before, began) = (stable(&ground), Instant::now());
    let calling = call(callers, &goal, plan.calls);
    let mut extra = BTreeMap::new();
    for _ in 0..times {
        let changed = (0..plan.servers).step_by(2);
        changed.for_each(|server| *extra.entry(server).or_default() += 1);
        ground.home.write_config(&ground.config(&extra));
        let address = gateway.address;
        let reload = move || http::request(address, "POST", "/api/v1/reload", &[], b"").status;
        let status = spawn_blocking(reload).await.unwrap_or_default();
        report.check(status == 200, || format!("a reload ended with {status}"));
        // Nobody edits faster than servers start; whoever did would have callers wait for the last edit.
        let (some, until) = (goal.ended() + plan.callers / 4, Instant::now() + PATIENCE);
        while goal.ended() < some && Instant::now() < until {
            sleep(Duration::from_millis(5)).await;
        }
    }
    let took = began.elapsed().as_secs_f64();
    goal.stop();
    let mut callers = calling.join_all().await;
    at_rest(&ground, &mut callers).await;
    let made = goal.ended();
    report.lines.push(format!("reloads    {times} in {took:.1} s, {made} calls meanwhile"));
    report.check(made > plan.callers, || "hardly anybody called".to_owned());
    let lost: Vec<End> = goal.ends().filter(|end| *end != End::Answered).collect();
    report.check(lost.is_empty(), || format!("{} calls were lost, the first as {:?}", lost.len(), lost[0]));
    report.check(stable(&ground) == before, || "a server that did not change has another process".to_owned());
    // They had no connections at the first rest, either.
    drop(callers);
    report.rested_last(&gauge).await;
    report.ended(gateway.stop(), &ground.home);
    report.compare(&goal, &ground.books.read());
    report
}

fn call(callers: Vec<Caller>, goal: &Arc<Goal>, most: u64) -> JoinSet<Caller> {
    goal.raise(most);
    let mut calling = JoinSet::new();
    for mut caller in callers {
        let goal = goal.clone();
        calling.spawn(async move {
            caller.call_until(&goal, CALLS).await;
            caller
        });
    }
    calling
}

/// The processes of the servers that never change.
fn stable(ground: &Ground) -> Vec<u32> {
    let odd = (1..ground.servers()).step_by(2);
    odd.flat_map(|server| process::with_words(&ground.books.of(&format!("s{server}"))))
        .map(|(pid, _)| pid)
        .collect()
}
