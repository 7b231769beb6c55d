//! Chaos: many callers over HTTP at one gateway while its servers are killed, frozen and made to misbehave.
//!
//! Every call carries a token of its own. The server writes it into its books before it answers with it, so what
//! callers heard can be compared with what was really done. The same seed makes the same choices, not the same timing.

pub mod books;
pub mod callers;
pub mod cold;
pub mod gauge;
pub mod mischief;
pub mod random;
pub mod reloads;
pub mod report;
pub mod soak;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use books::Books;
use callers::{Caller, Goal};
use gauge::Gauge;
use mischief::{Faults, Mischief};
use report::{PhaseFigures, Report};
use test_support::client::Era;
use test_support::gateway::{Gateway, Home, server};

/// What is done, how often, and with which programs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program `toolcrib`, or one like it.
    pub gateway: String,
    /// The program `fake-server`.
    pub fake: String,
    /// Calls in all.
    pub calls: u64,
    /// Servers there are.
    pub servers: usize,
    /// Callers at the same time, in both eras.
    pub callers: usize,
    /// Where every choice comes from.
    pub seed: u64,
    /// How often all phases come.
    pub rounds: u64,
}

/// A part of the run with faults of its own.
#[derive(Debug, Clone, Copy)]
pub struct Phase {
    /// What it is called.
    pub name: &'static str,
    /// How many of a hundred calls are made in it.
    pub share: u64,
    /// What goes wrong meanwhile.
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

/// The home of a run: its config and its books.
#[derive(Debug)]
pub struct Ground {
    /// Where the gateway is at home.
    pub home: Home,
    /// What was really done.
    pub books: Books,
    fake: String,
    names: Vec<String>,
    /// What else a config says of all servers, as the last words of `[defaults.lifecycle]`.
    care: &'static str,
    /// What else a config says of each server.
    each: fn(usize) -> &'static str,
}

impl Ground {
    /// A home with a config of so many servers.
    pub fn new(gateway: &str, fake: &str, servers: usize) -> Self {
        let home = Home::new(gateway, "");
        let books = Books::new(home.file("ledger"));
        let names = (0..servers).map(|number| format!("s{number}")).collect();
        let ground = Self { home, books, fake: fake.to_owned(), names, care: "", each: |_| "" };
        ground.home.write_config(&ground.config(&BTreeMap::new()));
        ground
    }

    /// The same, with more said of how servers are looked after, all of them and each.
    pub fn with(mut self, care: &'static str, each: fn(usize) -> &'static str) -> Self {
        (self.care, self.each) = (care, each);
        self.home.write_config(&self.config(&BTreeMap::new()));
        self
    }

    /// The config; `extra` says how many more tools a server has, so that its entry is another one.
    pub fn config(&self, extra: &BTreeMap<usize, usize>) -> String {
        let mut config = format!(
            "[limits]\nservers-running = {}\n\
             [defaults.lifecycle]\nrestarts = {{ at-most = 100000, within = \"1m\" }}\n\
             backoff = {{ first = \"5ms\", most = \"100ms\" }}\nbreaker = {{ failures = 5, cool-off = \"300ms\" }}\n{}\
             [defaults.limits]\ncall-timeout = \"2s\"\n",
            2 * self.names.len(),
            self.care
        );
        for (number, name) in self.names.iter().enumerate() {
            let era = ["session", "stateless", "both"][number % 3];
            let ledger = self.books.of(name);
            let tools = extra.get(&number).copied().unwrap_or_default().to_string();
            config += &server(&self.fake, name, &["--ledger", &ledger, "--era", era, "--tools", &tools]);
            config += (self.each)(number);
        }
        config
    }

    /// How many servers there are.
    pub fn servers(&self) -> usize {
        self.names.len()
    }
}

/// Runs all of it and says what held.
pub async fn run(plan: &Plan) -> Report {
    let ground = Arc::new(Ground::new(&plan.gateway, &plan.fake, plan.servers));
    let mut gateway = ground.home.serve();
    let mut report = Report::new(plan);
    let gauge = Gauge::new(gateway.pid());
    let mut callers = seated(&gateway, plan);
    let goal = Goal::new(plan.calls);
    let mut watched = JoinSet::new();
    watched.spawn(gauge.clone().watch());
    let mut end = 0;
    let rounds = (0..plan.rounds).flat_map(|_| PHASES.iter());
    for (number, phase) in rounds.enumerate() {
        let last = number + 1 == PHASES.len() * usize::try_from(plan.rounds).unwrap_or_default();
        end = if last { plan.calls } else { end + plan.calls * phase.share / 100 / plan.rounds };
        goal.raise(end);
        let maker = Mischief::new(&ground, &gateway, plan.seed ^ number as u64);
        let figures;
        (callers, figures) = one_phase(phase, callers, &goal, maker).await;
        report.phase(&figures, gauge.memory());
        at_rest(&ground, &mut callers).await;
        if number == 0 {
            report.rested_first(&gauge);
        }
    }
    report.disturbed();
    report.rested_last(&gauge).await;
    watched.shutdown().await;
    drop(callers);
    report.ended(gateway.stop(), &ground.home);
    report.compare(&goal, &ground.books.read());
    report
}

/// The callers, every other one in a session.
fn seated(gateway: &Gateway, plan: &Plan) -> Vec<Caller> {
    let era = |number| if number % 2 == 0 { Era::Stateless } else { Era::Session };
    let seed = |number: usize| plan.seed.wrapping_mul(1000).wrapping_add(number as u64);
    (0..plan.callers)
        .map(|number| Caller::new(gateway.address, era(number), seed(number), plan.servers))
        .collect()
}

async fn one_phase(
    phase: &Phase,
    callers: Vec<Caller>,
    goal: &Arc<Goal>,
    mut maker: Mischief,
) -> (Vec<Caller>, PhaseFigures) {
    let (began, faults) = (Instant::now(), phase.faults);
    let before = goal.ended();
    let mut calling = JoinSet::new();
    for mut caller in callers {
        let goal = goal.clone();
        calling.spawn(async move {
            caller.call_until(&goal, faults).await;
            caller
        });
    }
    let mut callers = Vec::new();
    tokio::select! {
        () = maker.make(faults) => {}
        () = async {
            while let Some(caller) = calling.join_next().await {
                callers.push(caller.expect("a caller does not panic"));
            }
        } => {}
    }
    let acts = maker.acts();
    maker.undo();
    let took = began.elapsed();
    let waits = callers.iter_mut().flat_map(Caller::take_waits).collect();
    (callers, PhaseFigures::new(phase.name, before, goal, took, waits, acts))
}

/// Calls every server until it answers, so that two moments of rest can be compared.
async fn at_rest(ground: &Ground, callers: &mut [Caller]) {
    let caller = callers.first_mut().expect("a caller");
    let until = Instant::now() + 3 * test_support::PATIENCE;
    for server in 0..ground.servers() {
        while !caller.is_well(server).await {
            assert!(Instant::now() < until, "s{server} does not come back");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
