//! Random calls, drops, kills, hangs, freezes, refused starts, restarts, stops, reloads, farewells and weights, in a house
//! with few seats, and what must hold whatever happens. One of the servers is not shared.
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
use toolcrib::spec::{BreakerSpec, EraChoice, MemoryLimits, Restarts};
use toolcrib::wire::revision::Era;
use toolcrib::{
    Call, Capacity, Client, Crib, Error, ErrorKind, KeepAlive, Lifecycle, Limits, Roster, ServerSpec, Sharing,
};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, id, roster};
use watched::{Spell, Watched};

const STEPS: usize = 200;
const NAMES: [&str; 3] = ["one", "two", "own"];
/// The one that has an instance for each client.
const OWN: &str = NAMES[2];
const AT_MOST: usize = 3;
const WINDOW: Duration = Duration::from_secs(60);
/// What a server should not, and what it may not weigh.
const MEMORY: MemoryLimits = MemoryLimits { soft: Some(50), hard: Some(100) };
/// What servers weigh: nothing to speak of, more than they should, more than they may.
const WEIGHTS: [u64; 3] = [10, 60, 150];
/// What all of them may weigh when that is little.
const TIGHT: u64 = 100;
/// How long a replaced server goes on with its calls, by their limits.
const DRAIN: Duration = Duration::from_secs(30);

/// A small generator of numbers that are the same for the same seed.
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
    /// How many may run, and the most that ever might.
    seats: (usize, usize),
    /// Whether that changes now and then.
    rebuilt: bool,
    made: u64,
    _ears: JoinSet<()>,
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let before = Instant::now() - SECOND;
        let tight = Arc::<Mutex<Spell>>::default();
        let watched = |name: &&str| Watched {
            fake: Fake::new(),
            own: *name == OWN,
            reloaded: false,
            orders: Arc::default(),
            stops: Arc::default(),
            freezes: Arc::default(),
            heavy: Arc::default(),
            tight: tight.clone(),
            forgiven: Arc::new(Mutex::new(before)),
        };
        let servers: Vec<Watched> = NAMES.iter().map(watched).collect();
        let specs: Vec<ServerSpec> =
            NAMES.iter().zip(&servers).map(|(name, server)| spec(name, server, &mut random)).collect();
        let seats = 1 + usize::try_from(random.below(4)).unwrap();
        let capacity = Capacity { servers: seats, ..Capacity::default() };
        let crib = Crib::builder().roster(roster(specs.clone())).capacity(capacity).build().unwrap();
        let (calls, orders, handles, wrong) = (JoinSet::new(), JoinSet::new(), Vec::new(), Arc::default());
        let (seats, rebuilt, made) = ((seats, seats), random.below(4) == 0, 0);
        let ears = NAMES.iter().zip(&servers).map(|(name, server)| server.clone().hear(name, crib.events()));
        let _ears = ears.collect();
        Self { random, crib, servers, specs, calls, handles, orders, seats, rebuilt, made, _ears, wrong }
    }

    async fn rage(&mut self) {
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
                    let boots =
                        [Boot::Dies, Boot::Dies, Boot::Silent, Boot::Silent, Boot::Refuses, Boot::Babbles];
                    let boot = boots[usize::try_from(self.random.below(6)).unwrap()];
                    self.servers[at].fake.clone().boots(&[boot]);
                }
                80..82 => self.freeze(at),
                82..84 => self.crib.part_with(self.random.below(4)),
                84..87 => self.weigh(at),
                87 => self.resize(),
                88 => tokio::task::yield_now().await,
                _ => sleep(Duration::from_millis(self.random.below(4000))).await,
            }
            self.check();
        }
        self.calm().await;
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
        let client = Client { key: self.random.below(4), ..Client::silent() };
        let mut call = Call::on(id(NAMES[at]), tool).arguments(&arguments).of(client);
        if self.random.below(4) == 0 {
            call = call.timeout(Duration::from_millis(self.random.below(5000)));
        }
        let (crib, server, wrong) = (self.crib.clone(), self.servers[at].clone(), self.wrong.clone());
        let handle = self.calls.spawn(async move {
            let began = Instant::now();
            if let Err(error) = crib.call(call).await
                && !explained(&error, tool, &server, began)
            {
                wrong.lock().unwrap().push(format!("`{tool}` of `{}` ended with {error:?}", NAMES[at]));
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
        let (crib, server) = (self.crib.clone(), self.servers[at].clone());
        server.order();
        self.orders.spawn(async move { crib.stop(&id(NAMES[at])).await.unwrap() });
    }

    fn restart(&mut self, at: usize) {
        let (crib, server) = (self.crib.clone(), self.servers[at].clone());
        server.order();
        server.forgive(Instant::now());
        self.orders.spawn(async move {
            // It may well fail: the next start can be one that dies.
            let _ = crib.restart(&id(NAMES[at])).await;
            server.forgive(Instant::now());
        });
    }

    /// Stands still for a moment, or for longer than anybody is patient.
    fn freeze(&mut self, at: usize) {
        let (server, time) = (self.servers[at].clone(), Duration::from_millis(self.random.below(25_000)));
        server.freezes.lock().unwrap().push(Instant::now());
        server.fake.freeze();
        self.orders.spawn(async move {
            sleep(time).await;
            server.fake.thaw();
        });
    }

    fn weigh(&mut self, at: usize) {
        let (server, weight) = (&self.servers[at], WEIGHTS[usize::try_from(self.random.below(3)).unwrap()]);
        server.heavy.lock().unwrap().set(MEMORY.hard.is_some_and(|hard| weight > hard));
        server.fake.weighs(weight);
    }

    fn resize(&mut self) {
        let tight = self.random.below(3) == 0;
        self.servers[0].tight.lock().unwrap().set(tight);
        if self.rebuilt {
            self.seats.0 = 1 + usize::try_from(self.random.below(4)).unwrap();
            self.seats.1 = self.seats.1.max(self.seats.0);
        }
        self.crib.resize(Capacity {
            servers: self.seats.0,
            memory: tight.then_some(TIGHT),
            ..Capacity::default()
        });
    }

    fn reload(&mut self, at: usize) {
        self.specs[at] = spec(NAMES[at], &self.servers[at], &mut self.random);
        self.specs[at].limits.message += usize::try_from(self.made).unwrap();
        self.servers[at].reloaded = true;
        self.servers[at].forgive(Instant::now() + DRAIN);
        let (crib, roster): (Crib, Roster) = (self.crib.clone(), roster(self.specs.clone()));
        self.orders.spawn(async move { drop(crib.apply(roster).await) });
    }

    /// What must hold at any time.
    fn check(&mut self) {
        while let Some(ended) = self.calls.try_join_next() {
            if ended.is_err_and(|error| error.is_panic()) {
                self.wrong.lock().unwrap().push("a call panicked".to_owned());
            }
        }
        let living: usize = self.servers.iter().map(|server| server.fake.living().0).sum();
        if living > self.seats.1 {
            self.wrong.lock().unwrap().push(format!("{living} run on {} seats", self.seats.1));
        }
        // Crashes and processes are counted for each client of a server that is not shared.
        for (name, server) in NAMES.iter().zip(&self.servers).filter(|(name, _)| **name != OWN) {
            let crashes = server.crashes();
            if crashes > AT_MOST + 1 {
                self.wrong
                    .lock()
                    .unwrap()
                    .push(format!("`{name}` crashed {crashes} times within the window"));
            }
            // One that is replaced finishes its calls beside the next.
            if server.fake.living().1 > 1 && !server.reloaded {
                self.wrong.lock().unwrap().push(format!("two of `{name}` lived at once"));
            }
        }
    }

    /// After the storm nothing is left of it.
    async fn calm(&mut self) {
        let quiet = async {
            while self.calls.join_next().await.is_some() {}
            while self.orders.join_next().await.is_some() {}
        };
        let ended = timeout(3600 * SECOND, quiet).await;
        breath().await;
        self.check();
        let mut wrong = self.wrong.lock().unwrap();
        if ended.is_err() {
            wrong.push(format!("some calls or orders never ended: {:?}", self.crib.status()));
        }
        for status in self.crib.status() {
            if (status.leases, status.in_flight) != (0, 0) {
                wrong.push(format!("left over: {status:?}"));
            }
        }
        for (name, server) in NAMES.iter().zip(&self.servers) {
            let mut seen = HashSet::new();
            let calls = server.fake.heard("tools/call");
            if !calls.iter().all(|call| seen.insert(call["params"]["arguments"]["n"].as_u64())) {
                wrong.push(format!("`{name}` ran a call twice"));
            }
        }
    }
}

/// Whether a call may end like this.
fn explained(error: &Error, tool: &str, server: &Watched, began: Instant) -> bool {
    match error.kind() {
        ErrorKind::Lost => server.was_disturbed(began),
        ErrorKind::BadReply => tool == "say",
        ErrorKind::OverQuota => server.own,
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
    let limits = Limits {
        call_timeout: 8 * SECOND,
        in_flight: 4.try_into().unwrap(),
        instances: 2.try_into().unwrap(),
        ..Limits::default()
    };
    let sharing = if server.own { Sharing::PerClient } else { Sharing::Shared };
    let spec = ServerSpec::in_process(id(name), server.fake.clone()).sharing(sharing);
    spec.lifecycle(lifecycle).limits(limits).era(EraChoice::Era(Era::Session))
}

fn seeds() -> Range<u64> {
    let wanted = std::env::var("TOOLCRIB_STORM_SEEDS").unwrap_or_else(|_| "0..200".to_owned());
    match wanted.split_once("..") {
        Some((from, to)) => from.parse().unwrap()..to.parse().unwrap(),
        None => wanted.parse().unwrap()..wanted.parse::<u64>().unwrap() + 1,
    }
}

#[test]
fn whatever_happens_every_call_ends_and_every_promise_holds() {
    for seed in seeds() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let wrong = runtime.block_on(async {
            let mut storm = Storm::new(seed);
            storm.rage().await;
            storm.crib.shutdown(SECOND).await;
            let living = storm.servers.iter().map(|server| server.fake.living().0).sum::<usize>();
            assert_eq!(living, 0, "seed {seed}: servers outlive their crib");
            storm.wrong.lock().unwrap().clone()
        });
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }
}
