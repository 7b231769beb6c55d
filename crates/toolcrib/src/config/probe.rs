//! Collects the facts that a config requires, in parallel and within a time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::facts::{Fact, HostFacts, RequiredFacts};
use super::scope::TAGS_VARIABLE;
use super::{file, glob, scope};
use crate::util::maps::collect_map;

/// Time limit for all probes together.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for a connection to a local port.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// Interval at which a child process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Number of polls after which a child process is killed.
const MAX_POLLS: u32 = 45;
/// Bytes of output that are read from a child process.
const MAX_OUTPUT: u64 = 1 << 16;

/// A program that prints the name of the wireless network.
struct SsidCommand {
    program: &'static str,
    args: &'static [&'static str],
    /// Prefix of the line with the name.
    prefix: &'static str,
}

const SSID_COMMANDS: [SsidCommand; 2] = [
    SsidCommand { program: "iwgetid", args: &["-r"], prefix: "" },
    SsidCommand { program: "nmcli", args: &["-t", "-f", "active,ssid", "device", "wifi"], prefix: "yes:" },
];

/// Result of one probe.
enum ProbeResult {
    Addresses(Fact<Vec<IpAddr>>),
    Gateway(Fact<String>),
    Ssid(Fact<String>),
    Files(BTreeMap<String, Fact<Option<String>>>),
    Port { port: u16, is_open: bool },
    Timeout,
}

/// Reason why a program printed nothing usable.
#[derive(Debug, PartialEq, Eq)]
enum ProgramError {
    Unavailable,
    Timeout,
}

impl HostFacts {
    /// Collects the required facts. Files are searched for below `folder`; `project` is its name if there is a project.
    /// `is_gateway` tells whether this process is the gateway.
    pub fn gather(
        required: &RequiredFacts,
        folder: &Path,
        project: Option<String>,
        is_gateway: bool,
    ) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let mut facts = Self { project, is_gateway, ..Self::default() };
        facts.user = variable("USER").or_else(|| variable("LOGNAME")).map_or_else(user_name, Ok);
        facts.env = collect_map(
            required.env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))),
        );
        let tags = variable(TAGS_VARIABLE).unwrap_or_default();
        let tags = tags.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned);
        (facts.tags, facts.invalid_tags) = tags.partition(|tag| scope::is_tag(tag));
        if required.host {
            facts.host = variable("TOOLCRIB_HOST").map_or_else(host_name, Ok);
        }
        facts.read_card_files(required);
        facts.run_probes(required, folder);
        facts
    }

    /// Reads the required card files.
    pub(super) fn read_card_files(&mut self, required: &RequiredFacts) {
        let read = |path: &PathBuf| file::read(path).map(|file| file.text).map_err(|problem| problem.message);
        self.card_files = collect_map(required.card_files.iter().map(|path| (path.clone(), read(path))));
    }

    fn run_probes(&mut self, required: &RequiredFacts, folder: &Path) {
        let timeout = || "the query timed out".to_owned();
        self.addresses = Err(timeout());
        self.gateway_mac = Err(timeout());
        self.ssid = Err(timeout());
        self.files = collect_map(required.files.iter().map(|glob| (glob.clone(), Err(timeout()))));
        let (sender, receiver) = mpsc::channel();
        let mut running = 0;
        let mut spawn = |probe: Box<dyn FnOnce() -> ProbeResult + Send>| {
            let sender = sender.clone();
            let spawned = thread::Builder::new().spawn(move || drop(sender.send(probe())));
            running += usize::from(spawned.is_ok());
        };
        if required.addresses {
            spawn(Box::new(|| ProbeResult::Addresses(local_addresses())));
        }
        if required.gateway_mac {
            spawn(Box::new(|| ProbeResult::Gateway(gateway_mac())));
        }
        if required.ssid {
            spawn(Box::new(|| ProbeResult::Ssid(ssid())));
        }
        if !required.files.is_empty() {
            let globs = required.files.clone();
            let folder = folder.to_owned();
            spawn(Box::new(move || ProbeResult::Files(glob::find(&folder, &globs))));
        }
        if !self.is_gateway {
            for port in required.ports.clone() {
                spawn(Box::new(move || ProbeResult::Port { port, is_open: is_port_open(port) }));
            }
        }
        if running == 0 {
            return;
        }
        let timer = thread::Builder::new().spawn(move || {
            thread::park_timeout(PROBE_TIMEOUT);
            drop(sender.send(ProbeResult::Timeout));
        });
        while running > 0 {
            running -= 1;
            match receiver.recv() {
                Ok(ProbeResult::Timeout) | Err(_) => break,
                Ok(result) => self.set(result),
            }
        }
        if let Ok(timer) = timer {
            timer.thread().unpark();
        }
    }

    fn set(&mut self, result: ProbeResult) {
        match result {
            ProbeResult::Addresses(addresses) => self.addresses = addresses,
            ProbeResult::Gateway(mac) => self.gateway_mac = mac,
            ProbeResult::Ssid(ssid) => self.ssid = ssid,
            ProbeResult::Files(files) => self.files = files,
            ProbeResult::Port { port, is_open: true } => drop(self.open_ports.insert(port)),
            ProbeResult::Port { is_open: false, .. } | ProbeResult::Timeout => {}
        }
    }
}

#[cfg(unix)]
fn host_name() -> Fact<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { Err("this machine has no host name".to_owned()) } else { Ok(name) }
}

#[cfg(not(unix))]
fn host_name() -> Fact<String> {
    std::env::var("COMPUTERNAME").map_err(|_| "`COMPUTERNAME` is not set".to_owned())
}

/// Returns the name of the user that runs this process.
#[cfg(unix)]
fn user_name() -> Fact<String> {
    let uid = rustix::process::getuid().as_raw();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some(name) = find_user(&users, uid) {
        return Ok(name.to_owned());
    }
    // Users of a directory service are not in the file.
    let name = command_output("id", &["-un"]).unwrap_or_default().trim().to_owned();
    if name.is_empty() { Err(format!("`USER` is not set and the user {uid} has no name")) } else { Ok(name) }
}

#[cfg(not(unix))]
fn user_name() -> Fact<String> {
    std::env::var("USERNAME").map_err(|_| "`USERNAME` is not set".to_owned())
}

/// Finds the name of a user in the text of `/etc/passwd`.
#[cfg(unix)]
fn find_user(users: &str, uid: u32) -> Option<&str> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then_some(name)
    })
}

fn is_port_open(port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), CONNECT_TIMEOUT).is_ok()
}

/// Returns the addresses of this machine, without loopback and link-local ones.
fn local_addresses() -> Fact<Vec<IpAddr>> {
    let v4 = fs::read_to_string("/proc/net/fib_trie").map(|text| parse_fib_trie(&text)).unwrap_or_default();
    let v6 = fs::read_to_string("/proc/net/if_inet6").map(|text| parse_if_inet6(&text)).unwrap_or_default();
    let mut addresses: BTreeSet<IpAddr> = v4.into_iter().chain(v6).collect();
    // Without `/proc`, connected UDP sockets show the source addresses of outgoing packets. Nothing is sent.
    for (local, remote) in [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")] {
        let source = UdpSocket::bind(local).and_then(|socket| {
            socket.connect(remote)?;
            socket.local_addr()
        });
        addresses.extend(source.map(|address| address.ip()));
    }
    addresses.retain(|address| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    });
    Ok(addresses.into_iter().collect())
}

/// Parses `/proc/net/fib_trie`, in which the line after an address says whether it is local.
fn parse_fib_trie(table: &str) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    let mut last = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            addresses.extend(last.map(IpAddr::V4));
        }
    }
    addresses
}

/// Parses `/proc/net/if_inet6`, in which each line starts with an address.
fn parse_if_inet6(table: &str) -> Vec<IpAddr> {
    let digits = table.lines().filter_map(|line| line.split_whitespace().next());
    let numbers = digits.filter_map(|digits| u128::from_str_radix(digits, 16).ok());
    numbers.map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))).collect()
}

fn gateway_mac() -> Fact<String> {
    let read = |file: &str| fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}"));
    let gateway = parse_default_gateway(&read("/proc/net/route")?).ok_or("there is no default gateway")?;
    let mac = parse_neighbor_mac(&read("/proc/net/arp")?, gateway);
    mac.ok_or_else(|| format!("the ARP table has no entry for `{gateway}`"))
}

fn parse_default_gateway(routes: &str) -> Option<Ipv4Addr> {
    routes.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "00000000", gateway, ..] = fields[..] else { return None };
        let bits = u32::from_str_radix(gateway, 16).ok().filter(|bits| *bits != 0)?;
        Some(Ipv4Addr::from(bits.to_ne_bytes()))
    })
}

fn parse_neighbor_mac(arp_table: &str, address: Ipv4Addr) -> Option<String> {
    arp_table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [neighbor, _, _, mac, ..] = fields[..] else { return None };
        scope::parse_mac(mac).filter(|_| neighbor.parse() == Ok(address))
    })
}

fn ssid() -> Fact<String> {
    let mut error = "neither `iwgetid` nor `nmcli` is available".to_owned();
    for SsidCommand { program, args, prefix } in &SSID_COMMANDS {
        match command_output(program, args) {
            Ok(output) => {
                let name = output.lines().find_map(|line| line.strip_prefix(prefix)).map(str::trim);
                return name
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .ok_or_else(|| "there is no wireless network".to_owned());
            }
            Err(ProgramError::Timeout) => error = format!("`{program}` took too long"),
            Err(ProgramError::Unavailable) => {}
        }
    }
    Err(error)
}

/// Returns the standard output of a program, which is killed if it runs too long.
fn command_output(program: &str, args: &[&str]) -> Result<String, ProgramError> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|_| ProgramError::Unavailable)?;
    let mut polls = 0;
    while !matches!(child.try_wait(), Ok(Some(_))) {
        polls += 1;
        if polls > MAX_POLLS {
            let _ = child.kill();
            let _ = child.wait();
            return Err(ProgramError::Timeout);
        }
        thread::park_timeout(POLL_INTERVAL);
    }
    let mut output = String::new();
    let stdout = child.stdout.take().ok_or(ProgramError::Unavailable)?;
    stdout.take(MAX_OUTPUT).read_to_string(&mut output).map_err(|_| ProgramError::Unavailable)?;
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_net_files_are_parsed() {
        let routes = "Main:\n  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- 192.168.1.0\n   /24 link UNICAST\n  |-- 192.168.1.7\n    /32 host LOCAL\n";
        assert_eq!(
            parse_fib_trie(routes),
            ["127.0.0.1".parse::<IpAddr>().unwrap(), "192.168.1.7".parse().unwrap()]
        );
        let interfaces = "fd000000000000000000000000000001 02 40 00 80 eth0\n";
        assert_eq!(parse_if_inet6(interfaces), ["fd00::1".parse::<IpAddr>().unwrap()]);
        let route = "Iface Destination Gateway Flags\neth0 000200C0 00000000 1\neth0 00000000 010200C0 3\n";
        assert_eq!(parse_default_gateway(route), Some(Ipv4Addr::new(192, 0, 2, 1)));
        let arp = "IP HW Flags MAC Mask Device\n192.0.2.9 0x1 0x2 00:00:00:00:00:01 * e\n192.0.2.1 0x1 0x2 02:FC:00:00:00:05 * e\n";
        let mac = parse_neighbor_mac(arp, Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(mac.as_deref(), Some("02:fc:00:00:00:05"));
    }

    #[test]
    fn facts_that_are_not_required_are_not_collected() {
        let facts = HostFacts::gather(&RequiredFacts::default(), Path::new("/nowhere"), None, true);
        assert!(facts.host.is_err() && facts.addresses.is_err() && facts.ssid.is_err());
        assert!(facts.env.is_empty() && facts.files.is_empty());
    }

    #[test]
    fn program_that_does_not_end_is_killed() {
        assert_eq!(command_output("sleep", &["60"]), Err(ProgramError::Timeout));
        assert_eq!(command_output("echo", &["name"]).as_deref(), Ok("name\n"));
        assert_eq!(command_output("no-such-program-here", &[]), Err(ProgramError::Unavailable));
    }
}
