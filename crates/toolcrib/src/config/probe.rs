//! Finds out where we are: what some scope asks for and nothing else, all at the same time, and none of it for longer than a
//! moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::facts::{Fact, Facts, Wanted};
use super::{glob, scope};

/// How long all of it may take.
const LONGEST: Duration = Duration::from_secs(1);
/// How long a port of our own may take to answer.
const NEAR: Duration = Duration::from_millis(200);
/// How often a program is asked whether it is done, and how many times.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 45;

/// Programs that know the wireless network, and what stands before its name in what they print.
const WIRELESS: [(&str, &[&str], &str); 2] =
    [("iwgetid", &["-r"], ""), ("nmcli", &["-t", "-f", "active,ssid", "device", "wifi"], "yes:")];

/// What one probe found.
enum Found {
    Addresses(Fact<Vec<IpAddr>>),
    Gateway(Fact<String>),
    Ssid(Fact<String>),
    Files(BTreeMap<String, Fact<Option<String>>>),
    Answers(u16, bool),
    TimeIsUp,
}

impl Facts {
    /// Finds out what is wanted. Files are looked for below `folder`; `project` is its name, if there is a project.
    /// `serving` says whether we are the gateway.
    pub fn gather(wanted: &Wanted, folder: &Path, project: Option<String>, serving: bool) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let mut facts = Self { project, serving, ..Self::default() };
        facts.user = variable("USER").or_else(|| variable("LOGNAME")).ok_or("`USER` is not set".to_owned());
        facts.env =
            wanted.env.iter().filter_map(|name| Some((name.clone(), std::env::var(name).ok()?))).collect();
        let tags = variable("TOOLCRIB_TAGS").unwrap_or_default();
        facts.tags =
            tags.split(',').map(str::trim).filter(|tag| scope::is_tag(tag)).map(str::to_owned).collect();
        if wanted.host {
            facts.host = variable("TOOLCRIB_HOST").map_or_else(host, Ok);
        }
        facts.look_around(wanted, folder);
        facts
    }

    fn look_around(&mut self, wanted: &Wanted, folder: &Path) {
        let late = || "it took too long to find out".to_owned();
        (self.addresses, self.gateway_mac, self.ssid) = (Err(late()), Err(late()), Err(late()));
        self.files = wanted.files.iter().map(|glob| (glob.clone(), Err(late()))).collect();
        let (tell, hear) = mpsc::channel();
        let mut under_way = 0;
        let mut probe = |find: Box<dyn FnOnce() -> Found + Send>| {
            let tell = tell.clone();
            let begun = thread::Builder::new().spawn(move || drop(tell.send(find())));
            under_way += usize::from(begun.is_ok());
        };
        if wanted.addresses {
            probe(Box::new(|| Found::Addresses(addresses())));
        }
        if wanted.gateway_mac {
            probe(Box::new(|| Found::Gateway(gateway_mac())));
        }
        if wanted.ssid {
            probe(Box::new(|| Found::Ssid(ssid())));
        }
        if !wanted.files.is_empty() {
            let (globs, folder) = (wanted.files.clone(), folder.to_owned());
            probe(Box::new(move || Found::Files(glob::find(&folder, &globs))));
        }
        if !self.serving {
            for port in wanted.ports.clone() {
                probe(Box::new(move || Found::Answers(port, answers(port))));
            }
        }
        if under_way == 0 {
            return;
        }
        let clock = thread::Builder::new().spawn(move || {
            thread::park_timeout(LONGEST);
            drop(tell.send(Found::TimeIsUp));
        });
        while under_way > 0 {
            under_way -= 1;
            match hear.recv() {
                Ok(Found::Addresses(found)) => self.addresses = found,
                Ok(Found::Gateway(found)) => self.gateway_mac = found,
                Ok(Found::Ssid(found)) => self.ssid = found,
                Ok(Found::Files(found)) => self.files = found,
                Ok(Found::Answers(port, true)) => drop(self.answering.insert(port)),
                Ok(Found::Answers(_, false)) => {}
                Ok(Found::TimeIsUp) | Err(_) => break,
            }
        }
        if let Ok(clock) = clock {
            clock.thread().unpark();
        }
    }
}

#[cfg(unix)]
fn host() -> Fact<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    if name.is_empty() { Err("this machine has no name".to_owned()) } else { Ok(name) }
}

#[cfg(not(unix))]
fn host() -> Fact<String> {
    std::env::var("COMPUTERNAME").map_err(|_| "`COMPUTERNAME` is not set".to_owned())
}

fn answers(port: u16) -> bool {
    TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), NEAR).is_ok()
}

/// The addresses of this machine, without those that mean it wherever it is.
fn addresses() -> Fact<Vec<IpAddr>> {
    let four = fs::read_to_string("/proc/net/fib_trie").map(|text| local_fours(&text)).unwrap_or_default();
    let six = fs::read_to_string("/proc/net/if_inet6").map(|text| sixes(&text)).unwrap_or_default();
    let mut all: BTreeSet<IpAddr> = four.into_iter().chain(six).collect();
    // Elsewhere, at least the one that we would be seen under. Nothing is sent for that.
    for (own, far) in [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")] {
        let seen = UdpSocket::bind(own).and_then(|socket| {
            socket.connect(far)?;
            socket.local_addr()
        });
        all.extend(seen.map(|address| address.ip()));
    }
    all.retain(|address| match address {
        IpAddr::V4(four) => !four.is_loopback() && !four.is_link_local() && !four.is_unspecified(),
        IpAddr::V6(six) => !six.is_loopback() && !six.is_unicast_link_local() && !six.is_unspecified(),
    });
    Ok(all.into_iter().collect())
}

/// From the kernel's table of routes: an address, and in the next line that it is one of ours.
fn local_fours(table: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut last = None;
    for line in table.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(last.map(IpAddr::V4));
        }
    }
    found
}

fn sixes(table: &str) -> Vec<IpAddr> {
    let digits = table.lines().filter_map(|line| line.split_whitespace().next());
    let numbers = digits.filter_map(|digits| u128::from_str_radix(digits, 16).ok());
    numbers.map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))).collect()
}

fn gateway_mac() -> Fact<String> {
    let read = |file: &str| fs::read_to_string(file).map_err(|error| format!("`{file}`: {error}"));
    let gateway = gateway(&read("/proc/net/route")?).ok_or("there is no gateway")?;
    neighbour(&read("/proc/net/arp")?, gateway).ok_or_else(|| format!("`{gateway}` is no neighbour we know"))
}

fn gateway(routes: &str) -> Option<Ipv4Addr> {
    routes.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "00000000", gateway, ..] = fields[..] else { return None };
        let bits = u32::from_str_radix(gateway, 16).ok().filter(|bits| *bits != 0)?;
        Some(Ipv4Addr::from(bits.to_ne_bytes()))
    })
}

fn neighbour(table: &str, address: Ipv4Addr) -> Option<String> {
    table.lines().skip(1).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [of, _, _, mac, ..] = fields[..] else { return None };
        scope::mac(mac).filter(|_| of.parse() == Ok(address))
    })
}

fn ssid() -> Fact<String> {
    let mut why = "there is no `iwgetid` and no `nmcli`".to_owned();
    for (program, args, before) in WIRELESS {
        match ask(program, args) {
            Ok(said) => {
                let name = said.lines().find_map(|line| line.strip_prefix(before)).map(str::trim);
                return name
                    .filter(|name| !name.is_empty())
                    .map(str::to_owned)
                    .ok_or_else(|| "there is no wireless network".to_owned());
            }
            Err(Some(reason)) => why = reason,
            Err(None) => {}
        }
    }
    Err(why)
}

/// What a program prints, if it is there and soon done.
fn ask(program: &str, args: &[&str]) -> Result<String, Option<String>> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|_| None)?;
    let mut looks = 0;
    while !matches!(child.try_wait(), Ok(Some(_))) {
        looks += 1;
        if looks > LOOKS {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Some(format!("`{program}` took too long")));
        }
        thread::park_timeout(LOOK);
    }
    let mut said = String::new();
    let stdout = child.stdout.take().ok_or(None)?;
    stdout.take(1 << 16).read_to_string(&mut said).map_err(|_| None)?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_understood() {
        let routes = "Main:\n  |-- 127.0.0.1\n     /32 host LOCAL\n  |-- 192.168.1.0\n   /24 link UNICAST\n  |-- 192.168.1.7\n    /32 host LOCAL\n";
        assert_eq!(
            local_fours(routes),
            ["127.0.0.1".parse::<IpAddr>().unwrap(), "192.168.1.7".parse().unwrap()]
        );
        let six = "fd000000000000000000000000000001 02 40 00 80 eth0\n";
        assert_eq!(sixes(six), ["fd00::1".parse::<IpAddr>().unwrap()]);
        let route = "Iface Destination Gateway Flags\neth0 000200C0 00000000 1\neth0 00000000 010200C0 3\n";
        assert_eq!(gateway(route), Some(Ipv4Addr::new(192, 0, 2, 1)));
        let arp = "IP HW Flags MAC Mask Device\n192.0.2.9 0x1 0x2 00:00:00:00:00:01 * e\n192.0.2.1 0x1 0x2 02:FC:00:00:00:05 * e\n";
        assert_eq!(neighbour(arp, Ipv4Addr::new(192, 0, 2, 1)).as_deref(), Some("02:fc:00:00:00:05"));
    }

    #[test]
    fn nothing_is_found_out_that_nobody_asks_for() {
        let facts = Facts::gather(&Wanted::default(), Path::new("/nowhere"), None, true);
        assert!(facts.host.is_err() && facts.addresses.is_err() && facts.ssid.is_err());
        assert!(facts.env.is_empty() && facts.files.is_empty());
    }

    #[test]
    fn a_program_that_never_ends_is_not_waited_for() {
        assert_eq!(ask("sleep", &["60"]), Err(Some("`sleep` took too long".to_owned())));
        assert_eq!(ask("echo", &["name"]).as_deref(), Ok("name\n"));
        assert_eq!(ask("no-such-program-here", &[]), Err(None));
    }
}
