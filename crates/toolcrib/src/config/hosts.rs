//! `[hosts.NAME]` and `run-on`: a server that one host runs is a child there, and an address everywhere else.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Concern;
use super::facts::{Facts, Wanted};
use super::node::{Table, Value};
use super::page::Page;
use super::reader::Reader;
use crate::spec::{HttpSpec, Transport};
use crate::spelling;
use crate::text::Text;

/// Where gateways listen.
const PORT: u16 = 7717;

/// Ends of names that lead nowhere but to our own network.
const PRIVATE: [&str; 6] = [".local", ".lan", ".internal", ".home.arpa", ".localhost", ".test"];

/// A machine that runs servers for others.
pub(super) struct Host {
    /// A name, an address, or a whole `https://…`.
    address: String,
    port: Option<u16>,
    /// What to show there.
    token: Option<Text>,
}

/// Every host; those that something is wrong with are `None`.
pub(super) type Hosts = BTreeMap<String, Option<Host>>;

/// Where a server with `run-on` is, from here.
pub(super) enum RunsAt {
    /// It is ours to run.
    Here,
    /// Somebody else runs it.
    There(Box<HttpSpec>),
}

/// Reads every host.
pub(super) fn read(page: &mut Page, root: &Table) -> Hosts {
    let mut hosts = Hosts::new();
    let mut reader = Reader::new(page, root, Concern::Part, 0);
    let Some(mut all) = reader.table("hosts") else { return hosts };
    for entry in all.entries() {
        let before = all.page().errors();
        let host = all.table_at(entry).and_then(|table| one(table, &entry.key));
        let good = all.page().errors() == before;
        hosts.insert(entry.key.clone(), host.filter(|_| good));
    }
    hosts
}

fn one(mut reader: Reader<'_>, name: &str) -> Option<Host> {
    let address = reader.string("address").unwrap_or(name).to_owned();
    if reader.has("address") && !is_address(&address) {
        let message = format!("`{address}` is no address of a host");
        reader.wrong_value(
            "address",
            message,
            "write `\"still.local\"`, `\"192.168.1.5\"` or `\"https://…\"`",
        );
    }
    let port = reader.count("port", 1).map(u16::try_from);
    if matches!(port, Some(Err(_))) {
        reader.wrong_value("port", "a port is at most 65535", format!("write `port = {PORT}`"));
    }
    let token = reader.string("token").zip(reader.value("token"));
    let token = token.and_then(|(written, node)| reader.text(node, &format!("Bearer {written}")));
    reader.finish();
    Some(Host { address, port: port.and_then(Result::ok), token })
}

fn is_address(address: &str) -> bool {
    let name = address.strip_prefix("https://").unwrap_or(address);
    let of_a_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    name.parse::<IpAddr>().is_ok() || !name.is_empty() && name.chars().all(of_a_name)
}

/// Adds what has to be known about hosts: whether this is one, and whether its gateway answers.
pub(super) fn ask(hosts: &Hosts, root: &Table, wanted: &mut Wanted) {
    let servers = root.entries("servers").filter_map(|entry| match &entry.value.value {
        Value::Table(table) => Some(table),
        _ => None,
    });
    let of = |table: &Table| match table.entries("run-on").next().map(|entry| entry.value.value.clone()) {
        Some(Value::String(host)) => Some(host),
        _ => None,
    };
    for entry in servers.flat_map(|table| &table.0) {
        let Value::Table(table) = &entry.value.value else { continue };
        let Some(name) = of(table) else { continue };
        wanted.host = true;
        wanted.ports.extend(hosts.get(&name).and_then(Option::as_ref).map(Host::port));
    }
}

/// Reads `run-on`: where the server is from here, and why. `None` if it has none, or a bad one, which has been reported.
pub(super) fn run_on(
    reader: &mut Reader<'_>,
    server: &str,
    (hosts, facts): (&Hosts, &Facts),
) -> Option<(RunsAt, String)> {
    let name = reader.string("run-on")?;
    if reader.has("url") {
        reader.wrong_value("run-on", "`run-on` wants a `command`", "leave `run-on` out, or `url`");
        return None;
    }
    let host = match hosts.get(name) {
        Some(Some(host)) => host,
        Some(None) => {
            let message = format!("something is wrong with `hosts.{name}`");
            reader.wrong_value("run-on", message, "repair it; the other problems say how");
            return None;
        }
        None => {
            let hint = match spelling::nearest(name, hosts.keys().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("write `[hosts.{name}]` with `address = \"…\"`"),
            };
            reader.wrong_value("run-on", format!("no host is called `{name}`"), hint);
            return None;
        }
    };
    let us = match &facts.host {
        Ok(us) => us.to_lowercase(),
        Err(why) => {
            let message = format!("nobody can say whether this is the host `{name}`: {why}");
            reader.wrong_value("run-on", message, "set `TOOLCRIB_HOST` to the name of this host");
            return None;
        }
    };
    let short = us.split('.').next().unwrap_or_default();
    let is_us = |name: &str| name.to_lowercase() == us || name.to_lowercase() == short;
    if is_us(name) || is_us(&host.address) {
        if facts.serving || !facts.answering.contains(&host.port()) {
            return Some((RunsAt::Here, format!("it runs here, on `{name}`")));
        }
        let url = format!("http://127.0.0.1:{}", host.port());
        return Some((there(&url, server, host), format!("the gateway of this host, `{name}`, runs it")));
    }
    if host.is_open() {
        let message = format!("what is said to `{}` could be read on the way", host.address);
        let hint = "write `address = \"https://…\"`, or an address of your own network";
        reader.wrong_value("run-on", message, hint);
        return None;
    }
    Some((there(&host.base(), server, host), format!("it runs on `{name}`, and is reached there")))
}

fn there(base: &str, server: &str, host: &Host) -> RunsAt {
    let mut http = HttpSpec::new(format!("{base}/mcp/s/{server}")).transport(Transport::Streamable);
    http.headers.extend(host.token.clone().map(|token| ("Authorization".to_owned(), token)));
    RunsAt::There(Box::new(http))
}

/// Names under which others ask for this host.
pub(super) fn names_of_us(hosts: &Hosts, facts: &Facts) -> Vec<String> {
    let Ok(us) = &facts.host else { return Vec::new() };
    let us = us.to_lowercase();
    let is_us = |name: &str| name.to_lowercase() == us || Some(&*name.to_lowercase()) == us.split('.').next();
    let ours = hosts.iter().filter_map(|(name, host)| Some((name, host.as_ref()?)));
    let ours = ours.filter(|(name, host)| is_us(name) || is_us(&host.address));
    ours.map(|(_, host)| host.address.trim_start_matches("https://").to_owned()).collect()
}

impl Host {
    fn port(&self) -> u16 {
        self.port.unwrap_or(PORT)
    }

    /// The address in front of every path.
    fn base(&self) -> String {
        match (self.address.strip_prefix("https://"), self.address.parse::<Ipv6Addr>()) {
            (Some(_), _) => match self.port {
                Some(port) => format!("{}:{port}", self.address),
                None => self.address.clone(),
            },
            (None, Ok(six)) => format!("http://[{six}]:{}", self.port()),
            (None, Err(_)) => format!("http://{}:{}", self.address, self.port()),
        }
    }

    /// Whether what is said to it without encryption would pass through other people's networks.
    fn is_open(&self) -> bool {
        if self.address.starts_with("https://") {
            return false;
        }
        match self.address.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(IpAddr::V4(four)) => !is_private(four),
            Ok(IpAddr::V6(six)) => {
                !six.is_loopback() && !six.is_unique_local() && !six.is_unicast_link_local()
            }
            Err(_) => {
                let name = self.address.to_lowercase();
                name.contains('.') && !PRIVATE.iter().any(|end| name.ends_with(end))
            }
        }
    }
}

fn is_private(four: Ipv4Addr) -> bool {
    // 100.64/10 is for networks behind a carrier or an overlay of one's own.
    let shared = four.octets()[0] == 100 && four.octets()[1] & 0xc0 == 64;
    four.is_loopback() || four.is_private() || four.is_link_local() || shared
}
