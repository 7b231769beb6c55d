//! The cold start: very many first calls at the same time to servers of which none runs yet.

use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::callers::{Caller, End};
use super::report::Report;
use super::{Ground, Plan};
use test_support::client::Era;

/// Calls every server of the plan equally often, all at once, and says how many processes that took.
pub async fn start(plan: &Plan) -> Report {
    let ground = Ground::new(&plan.gateway, &plan.fake, plan.servers);
    let mut gateway = ground.home.serve();
    let mut report = Report::new(plan);
    let calls = usize::try_from(plan.calls).unwrap_or_default();
    let ready = Arc::new(Barrier::new(calls + 1));
    let mut calling = JoinSet::new();
    for number in 0..calls {
        let era = if number % 2 == 0 { Era::Stateless } else { Era::Session };
        let mut caller = Caller::new(gateway.address, era, plan.seed, plan.servers);
        let (ready, server) = (ready.clone(), number % plan.servers);
        calling.spawn(async move {
            ready.wait().await;
            caller.stamp(server, &number.to_string(), "").await
        });
    }
    ready.wait().await;
    let began = Instant::now();
    let ends = calling.join_all().await;
    let took = began.elapsed().as_secs_f64();
    let answered = ends.iter().filter(|(end, _)| *end == End::Answered).count();
    let failed = ends.iter().find(|(end, _)| *end != End::Answered);
    report.ended(gateway.stop(), &ground.home);
    let done = ground.books.read();
    report.lines.push(format!(
        "cold       {answered} of {calls} first calls answered in {took:.1} s by {} processes",
        done.starts
    ));
    report.check(answered == calls, || format!("not every call was answered: {failed:?}"));
    report.check(done.starts == plan.servers, || {
        format!("{} processes for {} servers", done.starts, plan.servers)
    });
    let once = done.tokens.len() == calls && done.tokens.values().all(|times| *times == 1);
    report.check(once, || "a call was not executed exactly once".to_owned());
    report
}
