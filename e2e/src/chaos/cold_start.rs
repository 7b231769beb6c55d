//! The cold start: many concurrent first calls to servers that are not running.

use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::callers::{CallOutcome, Caller};
use super::report::Report;
use super::{Plan, TestBed};
use test_support::client::Era;

/// Calls every server of the plan equally often, all at the same time, and reports how many processes that started.
pub async fn run(plan: &Plan) -> Report {
    let bed = TestBed::new(&plan.gateway, &plan.fake, plan.servers);
    let mut gateway = bed.home.serve();
    let mut report = Report::new(plan);
    let calls = usize::try_from(plan.calls).unwrap_or_default();
    let ready = Arc::new(Barrier::new(calls + 1));
    let mut running = JoinSet::new();
    for number in 0..calls {
        let era = if number % 2 == 0 { Era::Stateless } else { Era::Session };
        let mut caller = Caller::new(gateway.address, era, plan.seed, plan.servers);
        let ready = ready.clone();
        let server = number % plan.servers;
        running.spawn(async move {
            ready.wait().await;
            caller.record(server, &number.to_string(), "").await
        });
    }
    ready.wait().await;
    let started = Instant::now();
    let ends = running.join_all().await;
    let took = started.elapsed().as_secs_f64();
    let answered = ends.iter().filter(|(end, _)| *end == CallOutcome::Answered).count();
    let failed = ends.iter().find(|(end, _)| *end != CallOutcome::Answered);
    report.record_exit(gateway.stop(), &bed.home);
    let executions = bed.executions.read();
    report.lines.push(format!(
        "cold       {answered} of {calls} first calls answered in {took:.1} s by {} processes",
        executions.starts
    ));
    report.check(answered == calls, || format!("not every call was answered: {failed:?}"));
    // Calls of both eras wake each server.
    report.check(executions.starts <= 2 * plan.servers, || {
        format!("{} processes for {} servers", executions.starts, plan.servers)
    });
    let once = executions.tokens.len() == calls && executions.tokens.values().all(|times| *times == 1);
    report.check(once, || "a call was not executed exactly once".to_owned());
    report
}
