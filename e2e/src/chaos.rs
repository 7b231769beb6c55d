//! The chaos test: many HTTP callers of one gateway while its servers are killed, frozen and made to misbehave.
//!
//! Every call carries a unique token. The server writes it to a file before it answers with it, so the answers that callers
//! received can be compared with the calls that were executed. The seed selects the targets, not the timing.

pub mod callers;
pub mod cold_start;
pub mod execution_log;
pub mod faults;
pub mod random;
pub mod reloads;
pub mod report;
pub mod resource_monitor;
pub mod soak;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use callers::{CallTracker, Caller};
use execution_log::ExecutionLog;
use faults::{FaultInjector, Faults};
use report::{PhaseFigures, Report};
use resource_monitor::ResourceMonitor;
use test_support::client::Era;
use test_support::gateway::{GatewayProcess, Home, server_config};

/// The size of a run, its seed and its programs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Path of the gateway program.
    pub gateway: String,
    /// Path of the program `fake-server`.
    pub fake: String,
    /// Total number of calls.
    pub calls: u64,
    /// Number of servers.
    pub servers: usize,
    /// Number of concurrent callers; half of them of each era.
    pub callers: usize,
    /// Seed of every random choice.
    pub seed: u64,
    /// Number of repetitions of all phases.
    pub rounds: u64,
}

/// A part of the run with its own faults.
#[derive(Debug, Clone, Copy)]
pub struct Phase {
    /// Its name in the report.
    pub name: &'static str,
    /// Its share of the calls, in percent.
    pub share: u64,
    /// The faults injected during it.
    pub faults: Faults,
}

/// Every fault alone, then all of them together.
pub const PHASES: [Phase; 8] = [
    Phase { name: "calm", share: 10, faults: Faults::NONE },
    Phase { name: "killed", share: 10, faults: Faults { kill: true, ..Faults::NONE } },
    Phase { name: "frozen", share: 10, faults: Faults { freeze: true, late: 500, ..Faults::NONE } },
    Phase { name: "hanging", share: 10, faults: Faults { hang: 10, ..Faults::NONE } },
    Phase { name: "flooding", share: 10, faults: Faults { flood: 200, ..Faults::NONE } },
    Phase { name: "garbage", share: 10, faults: Faults { garbage: 2000, ..Faults::NONE } },
    Phase { name: "reloaded", share: 10, faults: Faults { reload: true, late: 500, ..Faults::NONE } },
    Phase { name: "everything", share: 30, faults: Faults::ALL },
];

/// The home folder of a run: its config and the records of its servers.
#[derive(Debug)]
pub struct TestBed {
    /// The gateway's home folder.
    pub home: Home,
    /// The calls that servers executed.
    pub executions: ExecutionLog,
    fake: String,
    names: Vec<String>,
    /// Additional lines of `[defaults.lifecycle]`.
    lifecycle: &'static str,
    /// Additional lines of each server's entry.
    server_lines: fn(usize) -> &'static str,
}

impl TestBed {
    /// Creates a home folder with a config of this many servers.
    pub fn new(gateway: &str, fake: &str, servers: usize) -> Self {
        let home = Home::new(gateway, "");
        let executions = ExecutionLog::new(home.file("records"));
        let names = (0..servers).map(|number| format!("s{number}")).collect();
        let bed =
            Self { home, executions, fake: fake.to_owned(), names, lifecycle: "", server_lines: |_| "" };
        bed.home.write_config(&bed.config(&BTreeMap::new()));
        bed
    }

    /// Adds lines to `[defaults.lifecycle]` and to each server's entry.
    pub fn with(mut self, lifecycle: &'static str, server_lines: fn(usize) -> &'static str) -> Self {
        self.lifecycle = lifecycle;
        self.server_lines = server_lines;
        self.home.write_config(&self.config(&BTreeMap::new()));
        self
    }

    /// Returns the config. `extra` is the number of additional tools by server; changing it changes the server's entry.
    pub fn config(&self, extra: &BTreeMap<usize, usize>) -> String {
        let mut config = format!(
            "[limits]\nservers-running = {}\n\
             [defaults.lifecycle]\nrestarts = {{ at-most = 100000, within = \"1m\" }}\n\
             backoff = {{ first = \"5ms\", most = \"100ms\" }}\nbreaker = {{ failures = 5, cool-off = \"300ms\" }}\n{}\
             [defaults.limits]\ncall-timeout = \"2s\"\n",
            2 * self.names.len(),
            self.lifecycle
        );
        for (number, name) in self.names.iter().enumerate() {
            let era = ["session", "stateless", "both"][number % 3];
            let records = self.executions.server_folder(name);
            let tools = extra.get(&number).copied().unwrap_or_default().to_string();
            config += &server_config(
                &self.fake,
                name,
                &["--record-dir", &records, "--era", era, "--tools", &tools],
            );
            config += (self.server_lines)(number);
        }
        config
    }

    /// Returns the number of servers.
    pub fn servers(&self) -> usize {
        self.names.len()
    }
}

/// Runs all phases and checks the result.
pub async fn run(plan: &Plan) -> Report {
    // One process for clients of both eras, so that the number of processes at rest is always the same.
    let bed = TestBed::new(&plan.gateway, &plan.fake, plan.servers).with("", |_| "sharing = \"shared\"\n");
    let bed = Arc::new(bed);
    let mut gateway = bed.home.serve();
    let mut report = Report::new(plan);
    let monitor = ResourceMonitor::new(gateway.pid());
    let mut callers = open_callers(&gateway, plan);
    let tracker = CallTracker::new(plan.calls);
    let mut sampling = JoinSet::new();
    sampling.spawn(monitor.clone().sample());
    let mut end = 0;
    let rounds = (0..plan.rounds).flat_map(|_| PHASES.iter());
    for (number, phase) in rounds.enumerate() {
        let last = number + 1 == PHASES.len() * usize::try_from(plan.rounds).unwrap_or_default();
        end = if last { plan.calls } else { end + plan.calls * phase.share / 100 / plan.rounds };
        tracker.allow_until(end);
        let injector = FaultInjector::new(&bed, &gateway, plan.seed ^ number as u64);
        let figures;
        (callers, figures) = run_phase(phase, callers, &tracker, injector).await;
        report.add_phase(&figures, monitor.memory_kib());
        wait_for_all_servers(&bed, &mut callers).await;
        if number == 0 {
            report.record_baseline(&monitor);
        }
    }
    report.check_faults_injected();
    report.compare_with_baseline(&monitor).await;
    sampling.shutdown().await;
    drop(callers);
    report.record_exit(gateway.stop(), &bed.home);
    report.compare(&tracker, &bed.executions.read());
    report
}

/// Opens the callers; every other one uses a session.
fn open_callers(gateway: &GatewayProcess, plan: &Plan) -> Vec<Caller> {
    let era = |number| if number % 2 == 0 { Era::Stateless } else { Era::Session };
    let seed = |number: usize| plan.seed.wrapping_mul(1000).wrapping_add(number as u64);
    (0..plan.callers)
        .map(|number| Caller::new(gateway.address, era(number), seed(number), plan.servers))
        .collect()
}

async fn run_phase(
    phase: &Phase,
    callers: Vec<Caller>,
    tracker: &Arc<CallTracker>,
    mut injector: FaultInjector,
) -> (Vec<Caller>, PhaseFigures) {
    let started = Instant::now();
    let faults = phase.faults;
    let before = tracker.started();
    let mut running = JoinSet::new();
    for mut caller in callers {
        let tracker = tracker.clone();
        running.spawn(async move {
            caller.run(&tracker, faults).await;
            caller
        });
    }
    let mut callers = Vec::new();
    tokio::select! {
        () = injector.run(faults) => {}
        () = async {
            while let Some(caller) = running.join_next().await {
                callers.push(caller.expect("a caller does not panic"));
            }
        } => {}
    }
    let counts = injector.counts();
    injector.restore();
    let duration = started.elapsed();
    let latencies = callers.iter_mut().flat_map(Caller::take_latencies).collect();
    (callers, PhaseFigures::new(phase.name, before, tracker, duration, latencies, counts))
}

/// Calls every server until it answers, so that the gateway's resources can be compared.
async fn wait_for_all_servers(bed: &TestBed, callers: &mut [Caller]) {
    let until = Instant::now() + 3 * test_support::WAIT_LIMIT;
    // The first two are of different eras, for which a server may have different processes.
    for caller in callers.iter_mut().take(2) {
        for server in 0..bed.servers() {
            while !caller.is_answering(server).await {
                assert!(Instant::now() < until, "s{server} does not answer again");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}
