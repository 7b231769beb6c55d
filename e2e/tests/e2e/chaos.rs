//! Small versions of the chaos test, the cold start and the reload storm; `scripts/chaos` runs large ones.

use std::time::Duration;

use e2e::chaos::report::Report;
use e2e::chaos::{self, Plan, cold_start, reloads};
use test_support::deadline::Watchdog;

fn plan(calls: u64, servers: usize) -> Plan {
    Plan {
        gateway: env!("CARGO_BIN_EXE_crib").to_owned(),
        fake: env!("CARGO_BIN_EXE_fake-server").to_owned(),
        calls,
        servers,
        callers: 64,
        seed: 1,
        rounds: 1,
    }
}

/// Runs of this size take seconds; nothing else limits them.
fn watchdog() -> Watchdog {
    Watchdog::new(Duration::from_secs(600))
}

fn assert_no_violations(report: &Report) {
    assert!(report.violations.is_empty(), "{:#?}\n{:#?}", report.violations, report.lines);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_lose_duplicate_or_misdeliver_no_call() {
    let _watchdog = watchdog();
    assert_no_violations(&chaos::run(&plan(8_000, 10)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_calls_to_many_servers_start_each_once_per_era() {
    let _watchdog = watchdog();
    assert_no_violations(&cold_start::run(&plan(300, 30)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_reloads_fail_no_call_and_keep_unchanged_servers() {
    let _watchdog = watchdog();
    assert_no_violations(&reloads::run(&plan(1_000_000, 6), 20).await);
}
