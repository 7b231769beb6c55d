//! Random calls, drops, kills, hangs, freezes, failed starts, restarts, stops, reloads, disconnects and memory changes, with
//! few server slots, and the invariants that must hold. One of the servers is not shared.
//!
//! `TOOLCRIB_STORM_SEEDS=0..5000` runs more seeds than usual, `TOOLCRIB_STORM_SEEDS=17` exactly one.

mod watched;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout};
use toolcrib::protocol::versions::{Era, Revision};
use toolcrib::spec::{BreakerSpec, EraChoice, MemoryLimits, Restarts};
use toolcrib::{
    Call, Capacity, Client, Crib, Error, ErrorKind, KeepAlive, Lifecycle, Roster, ServerLimits, ServerSpec,
    Sharing,
};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, id, roster, settle};
use watched::{Condition, Watched};

const STEPS: usize = 200;
const NAMES: [&str; 3] = ["one", "two", "own"];
/// The server with an instance for each client.
const PER_CLIENT: &str = NAMES[2];
const MAX_RESTARTS: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// Soft and hard memory limit of each server.
const MEMORY: MemoryLimits = MemoryLimits { soft: Some(50), hard: Some(100) };
/// Memory that a server uses: little, above the soft limit, above the hard limit.
const MEMORY_USES: [u64; 3] = [10, 60, 150];
/// The memory limit for all servers when it is low.
const LOW_TOTAL: u64 = 100;
/// The time that a replaced server has to finish its calls.
const DRAIN: Duration = Duration::from_secs(30);

/// A deterministic random number generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

struct Storm {
    random: Random,
    crib: Crib,
    servers: Vec<Watched>,
    specs: Vec<ServerSpec>,
    calls: JoinSet<()>,
    handles: Vec<AbortHandle>,
    orders: JoinSet<()>,
    /// The number of servers that may run.
    slots: usize,
    /// The largest number of slots so far.
    max_slots: usize,
    /// Whether the number of slots changes.
    changes_slots: bool,
    made: u64,
    _watchers: JoinSet<()>,
    violations: Arc<Mutex<Vec<String>>>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let before = Instant::now() - SECOND;
        let low_total = Arc::<Mutex<Condition>>::default();
        let watched = |name: &&str| Watched {
            fake: FakeServer::new(),
            is_per_client: *name == PER_CLIENT,
            reloaded: false,
            orders: Arc::default(),
            stops: Arc::default(),
            freezes: Arc::default(),
            over_limit: Arc::default(),
            low_total: low_total.clone(),
            forgiven: Arc::new(Mutex::new(before)),
        };
        let servers: Vec<Watched> = NAMES.iter().map(watched).collect();
        let specs: Vec<ServerSpec> =
            NAMES.iter().zip(&servers).map(|(name, server)| spec(name, server, &mut random)).collect();
        let slots = 1 + usize::try_from(random.below(4)).unwrap();
        let capacity = Capacity { servers: slots, ..Capacity::default() };
        let crib = Crib::builder().roster(roster(specs.clone())).capacity(capacity).build().unwrap();
        let changes_slots = random.below(4) == 0;
        let watchers =
            NAMES.iter().zip(&servers).map(|(name, server)| server.clone().record_stops(name, crib.events()));
        let _watchers = watchers.collect();
        Self {
            random,
            crib,
            servers,
            specs,
            calls: JoinSet::new(),
            handles: Vec::new(),
            orders: JoinSet::new(),
            slots,
            max_slots: slots,
            changes_slots,
            made: 0,
            _watchers,
            violations: Arc::default(),
        }
    }

    async fn run(&mut self) {
        for _ in 0..STEPS {
            let at = usize::try_from(self.random.below(3)).unwrap();
            match self.random.below(100) {
                0..50 => self.call(at),
                50..62 => self.drop_one(),
                62..67 => self.servers[at].fake.kill(),
                67..70 => self.stop(at),
                70..73 => self.restart(at),
                73..76 => self.reload(at),
                76..80 => {
                    let boots = [
                        FakeStart::Exits,
                        FakeStart::Exits,
                        FakeStart::Silent,
                        FakeStart::Silent,
                        FakeStart::RefusesHandshake,
                        FakeStart::InvalidHandshake,
                    ];
                    let boot = boots[usize::try_from(self.random.below(6)).unwrap()];
                    self.servers[at].fake.clone().next_starts(&[boot]);
                }
                80..82 => self.freeze(at),
                82..84 => self.crib.client_disconnected(self.random.below(4)),
                84..87 => self.change_memory(at),
                87 => self.change_capacity(),
                88 => tokio::task::yield_now().await,
                _ => sleep(Duration::from_millis(self.random.below(4000))).await,
            }
            self.check();
        }
        self.finish().await;
    }

    fn call(&mut self, at: usize) {
        self.made += 1;
        let tool = match self.random.below(20) {
            0..9 => "echo",
            9..14 => "slow",
            14..16 => "hang",
            16 => "fail",
            17 => "die",
            18 => "say",
            _ => "progress",
        };
        let bad = r#"{"jsonrpc":"2.0","id":"$ID","result":{}}"#;
        let arguments =
            json!({"n": self.made, "ms": self.random.below(3000), "lines": [bad], "steps": 3, "every": 10});
        let client = Client { key: self.random.below(4), ..Client::without_capabilities() };
        let mut call = Call::tool_on(id(NAMES[at]), tool).arguments(&arguments).client(client);
        if self.random.below(4) == 0 {
            call = call.timeout(Duration::from_millis(self.random.below(5000)));
        }
        let crib = self.crib.clone();
        let server = self.servers[at].clone();
        let violations = self.violations.clone();
        let handle = self.calls.spawn(async move {
            let began = Instant::now();
            if let Err(error) = crib.call(call).await
                && !is_explained(&error, tool, &server, began)
            {
                violations.lock().unwrap().push(format!("`{tool}` of `{}` ended with {error:?}", NAMES[at]));
            }
        });
        self.handles.push(handle);
    }

    fn drop_one(&mut self) {
        if !self.handles.is_empty() {
            let at = self.random.next() as usize % self.handles.len();
            self.handles.swap_remove(at).abort();
        }
    }

    fn stop(&mut self, at: usize) {
        let crib = self.crib.clone();
        let server = self.servers[at].clone();
        server.record_order();
        self.orders.spawn(async move { crib.stop(&id(NAMES[at])).await.unwrap() });
    }

    fn restart(&mut self, at: usize) {
        let crib = self.crib.clone();
        let server = self.servers[at].clone();
        server.record_order();
        server.forgive(Instant::now());
        self.orders.spawn(async move {
            // It may fail, because the next start can be scripted to fail.
            let _ = crib.restart(&id(NAMES[at])).await;
            server.forgive(Instant::now());
        });
    }

    /// Freezes a server for up to 25 seconds, longer than any timeout.
    fn freeze(&mut self, at: usize) {
        let server = self.servers[at].clone();
        let time = Duration::from_millis(self.random.below(25_000));
        server.freezes.lock().unwrap().push(Instant::now());
        server.fake.freeze();
        self.orders.spawn(async move {
            sleep(time).await;
            server.fake.thaw();
        });
    }

    fn change_memory(&mut self, at: usize) {
        let server = &self.servers[at];
        let bytes = MEMORY_USES[usize::try_from(self.random.below(3)).unwrap()];
        server.over_limit.lock().unwrap().set(MEMORY.hard.is_some_and(|hard| bytes > hard));
        server.fake.set_memory(bytes);
    }

    fn change_capacity(&mut self) {
        let low_total = self.random.below(3) == 0;
        self.servers[0].low_total.lock().unwrap().set(low_total);
        if self.changes_slots {
            self.slots = 1 + usize::try_from(self.random.below(4)).unwrap();
            self.max_slots = self.max_slots.max(self.slots);
        }
        self.crib.set_capacity(Capacity {
            servers: self.slots,
            memory: low_total.then_some(LOW_TOTAL),
            ..Capacity::default()
        });
    }

    fn reload(&mut self, at: usize) {
        self.specs[at] = spec(NAMES[at], &self.servers[at], &mut self.random);
        self.specs[at].limits.message += usize::try_from(self.made).unwrap();
        // Half of the reloads replace the server; the others are taken over by the running one.
        if self.random.below(2) == 0 {
            self.specs[at].era = EraChoice::Revision(Revision::V2025_06_18);
        }
        self.servers[at].reloaded = true;
        self.servers[at].forgive(Instant::now() + DRAIN);
        let (crib, roster): (Crib, Roster) = (self.crib.clone(), roster(self.specs.clone()));
        self.orders.spawn(async move { drop(crib.apply_roster(roster).await) });
    }

    /// Checks what must hold at any time.
    fn check(&mut self) {
        while let Some(ended) = self.calls.try_join_next() {
            if ended.is_err_and(|error| error.is_panic()) {
                self.violations.lock().unwrap().push("a call panicked".to_owned());
            }
        }
        let living: usize = self.servers.iter().map(|server| server.fake.running_and_peak().0).sum();
        if living > self.max_slots {
            self.violations.lock().unwrap().push(format!("{living} servers run in {} slots", self.max_slots));
        }
        // Crashes and processes are counted for each client of a server that is not shared.
        for (name, server) in NAMES.iter().zip(&self.servers).filter(|(name, _)| **name != PER_CLIENT) {
            let crashes = server.crashes();
            if crashes > MAX_RESTARTS + 1 {
                self.violations
                    .lock()
                    .unwrap()
                    .push(format!("`{name}` crashed {crashes} times within the window"));
            }
            // A replaced server finishes its calls while the next one runs.
            if server.fake.running_and_peak().1 > 1 && !server.reloaded {
                self.violations.lock().unwrap().push(format!("two of `{name}` ran at the same time"));
            }
        }
    }

    /// Waits for everything to end and checks that nothing is left.
    async fn finish(&mut self) {
        let quiet = async {
            while self.calls.join_next().await.is_some() {}
            while self.orders.join_next().await.is_some() {}
        };
        let ended = timeout(3600 * SECOND, quiet).await;
        settle().await;
        self.check();
        let mut violations = self.violations.lock().unwrap();
        if ended.is_err() {
            violations.push(format!("some calls or orders never ended: {:?}", self.crib.status()));
        }
        for status in self.crib.status() {
            if (status.leases, status.in_flight) != (0, 0) {
                violations.push(format!("left over: {status:?}"));
            }
        }
        for (name, server) in NAMES.iter().zip(&self.servers) {
            let mut seen = HashSet::new();
            let calls = server.fake.received("tools/call");
            if !calls.iter().all(|call| seen.insert(call["params"]["arguments"]["n"].as_u64())) {
                violations.push(format!("`{name}` ran a call twice"));
            }
        }
    }
}

/// Returns whether a call error is explained by what happened to its server.
fn is_explained(error: &Error, tool: &str, server: &Watched, began: Instant) -> bool {
    match error.kind() {
        ErrorKind::Lost => server.was_disturbed(began),
        ErrorKind::BadReply => tool == "say",
        ErrorKind::OverQuota => server.is_per_client,
        ErrorKind::TimedOut | ErrorKind::Tripped | ErrorKind::Ejected | ErrorKind::CouldNotStart => true,
        _ => false,
    }
}

fn spec(name: &str, server: &Watched, random: &mut Random) -> ServerSpec {
    let keep_alive = match random.below(3) {
        0 => KeepAlive::For(Duration::ZERO),
        1 => KeepAlive::For(2 * SECOND),
        _ => KeepAlive::Forever,
    };
    let lifecycle = Lifecycle {
        keep_alive,
        start_timeout: 5 * SECOND,
        restarts: Restarts { at_most: 3, within: WINDOW },
        breaker: BreakerSpec { failures: 3.try_into().unwrap(), cool_off: 5 * SECOND },
        memory: MEMORY,
        ..Lifecycle::default()
    };
    let limits = ServerLimits {
        call_timeout: 8 * SECOND,
        in_flight: 4.try_into().unwrap(),
        instances: 2.try_into().unwrap(),
        ..ServerLimits::default()
    };
    let sharing = if server.is_per_client { Sharing::PerClient } else { Sharing::Shared };
    let spec = ServerSpec::in_process(id(name), server.fake.clone()).sharing(sharing);
    spec.lifecycle(lifecycle).limits(limits).era(EraChoice::Era(Era::Session))
}

fn seeds() -> Range<u64> {
    let range = std::env::var("TOOLCRIB_STORM_SEEDS").unwrap_or_else(|_| "0..200".to_owned());
    match range.split_once("..") {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => range.parse().unwrap()..range.parse::<u64>().unwrap() + 1,
    }
}

#[test]
fn random_faults_never_break_the_invariants() {
    for seed in seeds() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let violations = runtime.block_on(async {
            let mut storm = Storm::new(seed);
            storm.run().await;
            storm.crib.shutdown(SECOND).await;
            let living = storm.servers.iter().map(|server| server.fake.running_and_peak().0).sum::<usize>();
            assert_eq!(living, 0, "seed {seed}: servers outlive their crib");
            storm.violations.lock().unwrap().clone()
        });
        assert!(violations.is_empty(), "seed {seed}: {violations:#?}");
    }
}
