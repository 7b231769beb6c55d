//! Injected faults: servers are killed and frozen from outside, calls make them misbehave, and the config changes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::TestBed;
use super::random::Random;
use test_support::gateway::GatewayProcess;
use test_support::{http, process};

/// The faults of a phase. Numbers are calls in ten thousand that cause the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// Servers are killed with SIGKILL.
    pub kill: bool,
    /// Servers are frozen with SIGSTOP: most of them briefly, a few permanently.
    pub freeze: bool,
    /// The config changes, or is made invalid, and is reloaded.
    pub reload: bool,
    /// Calls that are never answered.
    pub hang: usize,
    /// Calls that end their server.
    pub crash: usize,
    /// Calls that write 256 KiB of binary data to stderr.
    pub flood: usize,
    /// Calls that write garbage to stdout.
    pub garbage: usize,
    /// Calls that are answered late.
    pub late: usize,
}

impl Faults {
    /// No faults.
    pub const NONE: Self =
        Self { kill: false, freeze: false, reload: false, hang: 0, crash: 0, flood: 0, garbage: 0, late: 0 };

    /// Every fault.
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

    /// Returns the fault that the next call causes; empty for none.
    pub fn draw_call_fault(&self, random: &mut Random) -> &'static str {
        let mut number = random.below(10_000);
        let shares = [
            ("hang", self.hang),
            ("crash", self.crash),
            ("flood", self.flood),
            ("garbage", self.garbage),
            ("late", self.late),
        ];
        for (fault, share) in shares {
            if number < share {
                return fault;
            }
            number -= share;
        }
        ""
    }
}

/// Number of injections of each fault.
pub type FaultCounts = BTreeMap<&'static str, usize>;

/// Injects the faults of a phase into a running gateway.
#[derive(Debug)]
pub struct FaultInjector {
    bed: Arc<TestBed>,
    gateway: u32,
    address: SocketAddr,
    random: Random,
    counts: FaultCounts,
    frozen: Vec<Frozen>,
    stuck: Vec<Stuck>,
    /// Number of additional tools of each server.
    extra: BTreeMap<usize, usize>,
    restarts: JoinSet<()>,
    tick: Duration,
}

/// A process that is frozen briefly.
#[derive(Debug)]
struct Frozen {
    pid: u32,
    until: Instant,
}

/// A process that is frozen permanently. Its server is restarted through the admin API if the gateway has not replaced
/// it by then.
#[derive(Debug)]
struct Stuck {
    pid: u32,
    server: String,
    restart_at: Instant,
}

/// Time after which a server that is frozen permanently is restarted.
const RESTART_AFTER: Duration = Duration::from_secs(8);

impl FaultInjector {
    /// Creates an injector that has not injected anything.
    pub fn new(bed: &Arc<TestBed>, gateway: &GatewayProcess, seed: u64) -> Self {
        Self {
            bed: bed.clone(),
            gateway: gateway.pid(),
            address: gateway.address,
            random: Random::new(seed),
            counts: FaultCounts::new(),
            frozen: Vec::new(),
            stuck: Vec::new(),
            extra: BTreeMap::new(),
            restarts: JoinSet::new(),
            tick: Duration::from_millis(50),
        }
    }

    /// Sets the length of a tick: faults come every third, every seventh and every eleventh tick.
    pub fn tick(self, tick: Duration) -> Self {
        Self { tick, ..self }
    }

    /// Injects faults until the future is dropped.
    pub async fn run(&mut self, faults: Faults) {
        for tick in 1_u64.. {
            sleep(self.tick).await;
            self.resume();
            if faults.kill && tick % 3 == 0 {
                self.kill();
            }
            if faults.freeze && tick % 7 == 0 {
                self.freeze();
            }
            if faults.freeze && tick % 300 == 10 {
                self.freeze_permanently();
            }
            if faults.reload && tick % 11 == 0 {
                self.reload();
            }
        }
    }

    /// Returns how often each fault was injected so far.
    pub fn counts(&self) -> FaultCounts {
        self.counts.clone()
    }

    /// Resumes frozen servers and writes a valid config.
    pub fn restore(mut self) {
        for frozen in std::mem::take(&mut self.frozen) {
            process::send_signal(frozen.pid, Signal::CONT);
        }
        for stuck in std::mem::take(&mut self.stuck) {
            if process::is_alive(stuck.pid) {
                restart(self.address, &stuck.server);
            }
        }
        self.bed.home.write_config(&self.bed.config(&self.extra));
        process::send_signal(self.gateway, Signal::HUP);
    }

    fn count(&mut self, act: &'static str) {
        *self.counts.entry(act).or_default() += 1;
    }

    /// Returns a random server process and the name of its server.
    fn pick_process(&mut self) -> Option<(u32, String)> {
        let folder = self.bed.home.file("records");
        let mut servers = process::find_by_command_line(folder.to_str()?);
        servers.retain(|(_, line)| {
            line.split(' ').next().is_some_and(|program| program.ends_with("fake-server"))
        });
        let (pid, line) = servers.get(self.random.below(servers.len()))?;
        let name =
            line.split('/').filter_map(|part| part.split(' ').next()).find(|part| is_server_name(part))?;
        Some((*pid, name.to_owned()))
    }

    fn kill(&mut self) {
        if let Some((pid, _)) = self.pick_process() {
            process::kill(pid);
            self.count("killed");
        }
    }

    fn freeze(&mut self) {
        if let Some((pid, _)) = self.pick_process() {
            process::send_signal(pid, Signal::STOP);
            let length = Duration::from_millis(20 + self.random.next_u64() % 400);
            self.frozen.push(Frozen { pid, until: Instant::now() + length });
            self.count("frozen");
        }
    }

    fn freeze_permanently(&mut self) {
        if let Some((pid, server)) = self.pick_process() {
            process::send_signal(pid, Signal::STOP);
            self.frozen.retain(|frozen| frozen.pid != pid);
            self.stuck.push(Stuck { pid, server, restart_at: Instant::now() + RESTART_AFTER });
            self.count("frozen permanently");
        }
    }

    fn resume(&mut self) {
        let now = Instant::now();
        let stuck: Vec<u32> = self.stuck.iter().map(|stuck| stuck.pid).collect();
        for frozen in self.frozen.extract_if(.., |frozen| frozen.until <= now) {
            if !stuck.contains(&frozen.pid) {
                process::send_signal(frozen.pid, Signal::CONT);
            }
        }
        for stuck in self.stuck.extract_if(.., |stuck| stuck.restart_at <= now).collect::<Vec<_>>() {
            if process::is_alive(stuck.pid) {
                self.count("restarted by admin");
                let address = self.address;
                self.restarts.spawn_blocking(move || restart(address, &stuck.server));
            }
        }
    }

    /// Changes the entry of one server, or makes the file invalid, which must not change anything.
    fn reload(&mut self) {
        if self.random.below(4) == 0 {
            self.bed.home.write_config("[servers.broken\n");
            self.count("invalid config");
        } else {
            let server = self.random.below(self.bed.servers());
            *self.extra.entry(server).or_default() += 1;
            self.bed.home.write_config(&self.bed.config(&self.extra));
            self.count("reloaded");
        }
        process::send_signal(self.gateway, Signal::HUP);
    }
}

fn is_server_name(part: &str) -> bool {
    part.strip_prefix('s').is_some_and(|number| number.parse::<usize>().is_ok())
}

fn restart(address: SocketAddr, server: &str) {
    http::request(address, "POST", &format!("/api/v1/servers/{server}/restart"), &[], b"");
}
