//! A small chaos run and a small cold start; `scripts/chaos` runs large ones.

use std::time::Duration;

use e2e::chaos::report::Report;
use e2e::chaos::{self, Plan, cold, reloads};
use test_support::deadline::Watchdog;

fn plan(calls: u64, servers: usize) -> Plan {
    let (gateway, fake) =
        (env!("CARGO_BIN_EXE_crib").to_owned(), env!("CARGO_BIN_EXE_fake-server").to_owned());
    Plan { gateway, fake, calls, servers, callers: 64, seed: 1, rounds: 1 }
}

/// Runs of this size take seconds; nothing else limits them.
fn watchdog() -> Watchdog {
    Watchdog::new(Duration::from_secs(600))
}

fn assert_held(report: &Report) {
    assert!(report.broken.is_empty(), "{:#?}\n{:#?}", report.broken, report.lines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_done_to_servers_no_call_is_lost_doubled_or_crossed_and_nothing_is_left() {
    let _watchdog = watchdog();
    assert_held(&chaos::run(&plan(8_000, 10)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_calls_to_many_cold_servers_start_each_of_them_once() {
    let _watchdog = watchdog();
    assert_held(&cold::start(&plan(300, 30)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_without_end_cost_no_call_and_leave_what_did_not_change_alone() {
    let _watchdog = watchdog();
    assert_held(&reloads::run(&plan(1_000_000, 6), 20).await);
}
