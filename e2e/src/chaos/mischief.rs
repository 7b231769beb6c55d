//! What goes wrong: servers are killed and frozen from outside, misbehave because a call says so, and the config changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Ground;
use super::random::Random;
use test_support::gateway::Gateway;
use test_support::{http, process};

/// What goes wrong in a phase. Numbers are calls in ten thousand that make their server do so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Servers are killed as by `kill -9`.
    pub kill: bool,
    /// Servers are frozen: most for a moment, one now and then for ever.
    pub freeze: bool,
    /// The config changes, or breaks, and is read again.
    pub reload: bool,
    /// Calls that are never answered.
    pub hang: usize,
    /// Calls that end their server.
    pub crash: usize,
    /// Calls that come with a flood on stderr.
    pub flood: usize,
    /// Calls that come with rubbish on stdout.
    pub garbage: usize,
    /// Calls that are answered late.
    pub late: usize,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self =
        Self { kill: false, freeze: false, reload: false, hang: 0, crash: 0, flood: 0, garbage: 0, late: 0 };

    /// Everything does.
    pub const ALL: Self = Self {
        kill: true,
        freeze: true,
        reload: true,
        hang: 3,
        crash: 10,
        flood: 50,
        garbage: 500,
        late: 500,
    };

    /// What the next call asks its server to do.
    pub fn how(&self, random: &mut Random) -> &'static str {
        let mut drawn = random.below(10_000);
        let shares = [
            ("hang", self.hang),
            ("crash", self.crash),
            ("flood", self.flood),
            ("garbage", self.garbage),
            ("late", self.late),
        ];
        for (how, share) in shares {
            if drawn < share {
                return how;
            }
            drawn -= share;
        }
        ""
    }
}

/// How often something was done.
pub type Acts = BTreeMap<&'static str, usize>;

/// Who does it.
#[derive(Debug)]
pub struct Mischief {
    ground: Arc<Ground>,
    gateway: u32,
    address: SocketAddr,
    random: Random,
    acts: Acts,
    /// Frozen processes, and when they thaw; those that never do are not here.
    frozen: Vec<(u32, Instant)>,
    /// Frozen for ever: its process, its server, and when a person would notice.
    stuck: Vec<(u32, String, Instant)>,
    /// How many more tools each server has than at the beginning.
    extra: BTreeMap<usize, usize>,
    persons: JoinSet<()>,
    beat: Duration,
}

/// How long a person takes to notice that a server is stuck.
const NOTICED: Duration = Duration::from_secs(8);

impl Mischief {
    /// Somebody who does no harm yet.
    pub fn new(ground: &Arc<Ground>, gateway: &Gateway, seed: u64) -> Self {
        Self {
            ground: ground.clone(),
            gateway: gateway.pid(),
            address: gateway.address,
            random: Random::new(seed),
            acts: Acts::new(),
            frozen: Vec::new(),
            stuck: Vec::new(),
            extra: BTreeMap::new(),
            persons: JoinSet::new(),
            beat: Duration::from_millis(50),
        }
    }

    /// The same at this pace: something every third, every seventh and every eleventh beat.
    pub fn paced(self, beat: Duration) -> Self {
        Self { beat, ..self }
    }

    /// Does it, again and again, until the future is dropped.
    pub async fn make(&mut self, faults: Faults) {
        for beat in 1_u64.. {
            sleep(self.beat).await;
            self.thaw();
            if faults.kill && beat % 3 == 0 {
                self.kill();
            }
            if faults.freeze && beat % 7 == 0 {
                self.freeze();
            }
            if faults.freeze && beat % 300 == 10 {
                self.freeze_for_ever();
            }
            if faults.reload && beat % 11 == 0 {
                self.reload();
            }
        }
    }

    /// What was done so far.
    pub fn acts(&self) -> Acts {
        self.acts.clone()
    }

    /// Thaws what was to thaw, and leaves a config that can be read.
    pub fn undo(mut self) {
        for (pid, _) in std::mem::take(&mut self.frozen) {
            process::send(pid, Signal::CONT);
        }
        for (pid, server, _) in std::mem::take(&mut self.stuck) {
            if process::is_alive(pid) {
                restart(self.address, &server);
            }
        }
        self.ground.home.write_config(&self.ground.config(&self.extra));
        process::send(self.gateway, Signal::HUP);
    }

    fn count(&mut self, act: &'static str) {
        *self.acts.entry(act).or_default() += 1;
    }

    /// A server's process, and the server's name.
    fn victim(&mut self) -> Option<(u32, String)> {
        let books = self.ground.home.file("ledger");
        let mut servers = process::with_words(books.to_str()?);
        servers.retain(|(_, words)| words.split(' ').next().is_some_and(|own| own.ends_with("fake-server")));
        let (pid, words) = servers.get(self.random.below(servers.len()))?;
        let name = words.split('/').filter_map(|part| part.split(' ').next()).find(|part| is_name(part))?;
        Some((*pid, name.to_owned()))
    }

    fn kill(&mut self) {
        if let Some((pid, _)) = self.victim() {
            process::kill(pid);
            self.count("killed");
        }
    }

    fn freeze(&mut self) {
        if let Some((pid, _)) = self.victim() {
            process::send(pid, Signal::STOP);
            let length = Duration::from_millis(20 + self.random.draw() % 400);
            self.frozen.push((pid, Instant::now() + length));
            self.count("frozen");
        }
    }

    fn freeze_for_ever(&mut self) {
        if let Some((pid, server)) = self.victim() {
            process::send(pid, Signal::STOP);
            self.frozen.retain(|(frozen, _)| *frozen != pid);
            self.stuck.push((pid, server, Instant::now() + NOTICED));
            self.count("frozen for ever");
        }
    }

    fn thaw(&mut self) {
        let now = Instant::now();
        let stuck: Vec<u32> = self.stuck.iter().map(|(pid, ..)| *pid).collect();
        for (pid, _) in self.frozen.extract_if(.., |(_, until)| *until <= now) {
            if !stuck.contains(&pid) {
                process::send(pid, Signal::CONT);
            }
        }
        for (pid, server, _) in self.stuck.extract_if(.., |(.., until)| *until <= now).collect::<Vec<_>>() {
            if process::is_alive(pid) {
                self.count("restarted by hand");
                let address = self.address;
                self.persons.spawn_blocking(move || restart(address, &server));
            }
        }
    }

    /// One server gets another entry; now and then the file is broken instead, which must change nothing.
    fn reload(&mut self) {
        if self.random.below(4) == 0 {
            self.ground.home.write_config("[servers.broken\n");
            self.count("broken config");
        } else {
            let server = self.random.below(self.ground.servers());
            *self.extra.entry(server).or_default() += 1;
            self.ground.home.write_config(&self.ground.config(&self.extra));
            self.count("reloaded");
        }
        process::send(self.gateway, Signal::HUP);
    }
}

fn is_name(part: &str) -> bool {
    part.strip_prefix('s').is_some_and(|number| number.parse::<usize>().is_ok())
}

fn restart(address: SocketAddr, server: &str) {
    http::request(address, "POST", &format!("/api/v1/servers/{server}/restart"), &[], b"");
}
