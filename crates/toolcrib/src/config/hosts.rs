//! Reads `[hosts.NAME]` and `run-on`: a server that runs on one host is a child process there and a URL elsewhere.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::ProblemScope;
use super::facts::{HostFacts, RequiredFacts};
use super::node::{ConfigTable, ConfigValue};
use super::reader::TableReader;
use super::root::ServerParseContext;
use super::source_map::SourceMap;
use crate::spec::template::TemplateText;
use crate::spec::{HttpSpec, TransportKind};
use crate::util::format;

/// Port on which gateways listen by default.
const DEFAULT_PORT: u16 = 7717;

/// Suffixes of host names that exist only in private networks.
const PRIVATE_SUFFIXES: [&str; 6] = [".local", ".lan", ".internal", ".home.arpa", ".localhost", ".test"];

/// A machine that runs servers for other machines.
pub(super) struct HostSpec {
    /// A host name, an IP address or an `https://…` URL.
    address: String,
    port: Option<u16>,
    /// Value of the `Authorization` header.
    authorization: Option<TemplateText>,
}

/// Every host by name; `None` for a host with errors.
pub(super) type Hosts = BTreeMap<String, Option<HostSpec>>;

/// Location of a server with `run-on`, seen from this machine.
pub(super) enum RunLocation {
    /// In this process.
    Local,
    /// Behind another gateway.
    Remote(Box<HttpSpec>),
}

/// The evaluated `run-on` of a server.
pub(super) struct RunOn {
    pub(super) location: RunLocation,
    pub(super) reason: String,
    /// Port of this host's gateway, if that gateway runs the server and does not answer.
    pub(super) missing_gateway: Option<u16>,
}

/// Reads every host.
pub(super) fn read(source: &mut SourceMap, root: &ConfigTable) -> Hosts {
    let mut hosts = Hosts::new();
    let mut reader = TableReader::new(source, root, ProblemScope::Section, 0);
    let Some(mut tables) = reader.table("hosts") else { return hosts };
    for entry in tables.entries() {
        let errors_before = tables.source().error_count();
        let host = tables.entry_table(entry).map(|table| read_host(table, &entry.key));
        let is_valid = tables.source().error_count() == errors_before;
        hosts.insert(entry.key.clone(), host.filter(|_| is_valid));
    }
    hosts
}

fn read_host(mut reader: TableReader<'_>, name: &str) -> HostSpec {
    let address = reader.string("address").unwrap_or(name).to_owned();
    if reader.has("address") && !is_host_address(&address) {
        let message = format!("`{address}` is not a host name, IP address or `https://` URL");
        let hint = "write `\"still.local\"`, `\"192.168.1.5\"` or `\"https://…\"`";
        reader.error_at_value("address", message, hint);
    }
    let port = reader.count("port", 1).map(u16::try_from);
    if matches!(port, Some(Err(_))) {
        reader.error_at_value("port", "a port is at most 65535", format!("write `port = {DEFAULT_PORT}`"));
    }
    let token = reader.string("token").zip(reader.peek("token"));
    let authorization = token.and_then(|(token, node)| reader.template(node, &format!("Bearer {token}")));
    reader.finish();
    HostSpec { address, port: port.and_then(Result::ok), authorization }
}

fn is_host_address(address: &str) -> bool {
    let name = address.strip_prefix("https://").unwrap_or(address);
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    name.parse::<IpAddr>().is_ok() || !name.is_empty() && name.chars().all(is_valid)
}

/// Adds the facts that `run-on` depends on: the name of this machine, and whether its gateway accepts connections.
pub(super) fn add_required_facts(hosts: &Hosts, root: &ConfigTable, required: &mut RequiredFacts) {
    let servers = root.entries("servers").filter_map(|entry| entry.value.as_table());
    for server in servers.flat_map(|table| &table.0).filter_map(|entry| entry.value.as_table()) {
        let run_on = server.entries("run-on").next().map(|entry| &entry.value.value);
        let Some(ConfigValue::String(name)) = run_on else { continue };
        required.host = true;
        required.ports.extend(hosts.get(name).and_then(Option::as_ref).map(HostSpec::port));
    }
}

/// Reads `run-on` of a server. Returns `None` if it is absent or invalid; the latter has been reported.
pub(super) fn read_run_on(
    reader: &mut TableReader<'_>,
    server: &str,
    context: &ServerParseContext<'_>,
) -> Option<RunOn> {
    let name = reader.string("run-on")?;
    if reader.has("url") {
        let message = "`run-on` cannot be combined with `url`";
        reader.error_at_value("run-on", message, "remove `run-on` or `url`");
        return None;
    }
    let host = find_host(reader, name, context.hosts)?;
    let facts = context.facts;
    let this_host = match &facts.host {
        Ok(this_host) => this_host,
        Err(why) => {
            let message = format!("cannot tell whether this machine is the host `{name}`: {why}");
            reader.error_at_value("run-on", message, "set `TOOLCRIB_HOST` to the name of this machine");
            return None;
        }
    };
    if is_same_host(name, this_host) || is_same_host(&host.address, this_host) {
        return Some(host.run_on_this_host(name, server, facts));
    }
    if host.is_plaintext_in_public() {
        let message = format!("the connection to `{}` would cross public networks unencrypted", host.address);
        let hint = "write `address = \"https://…\"`, or use an address of a private network";
        reader.error_at_value("run-on", message, hint);
        return None;
    }
    let location = host.server_location(&host.base_url(), server);
    Some(RunOn { location, reason: format!("runs on the host `{name}`"), missing_gateway: None })
}

fn find_host<'a>(reader: &mut TableReader<'_>, name: &str, hosts: &'a Hosts) -> Option<&'a HostSpec> {
    match hosts.get(name) {
        Some(Some(host)) => return Some(host),
        Some(None) => {
            let message = format!("`hosts.{name}` has errors");
            reader.error_at_value("run-on", message, format!("fix the problems of `hosts.{name}`"));
        }
        None => {
            let hint = match format::closest_match(name, hosts.keys().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("declare `[hosts.{name}]` with `address = \"…\"`"),
            };
            reader.error_at_value("run-on", format!("unknown host `{name}`"), hint);
        }
    }
    None
}

/// Returns whether a name is this machine's, complete or up to the first dot.
fn is_same_host(name: &str, this_host: &str) -> bool {
    let name = name.to_lowercase();
    let this_host = this_host.to_lowercase();
    name == this_host || Some(&*name) == this_host.split('.').next()
}

/// Returns the addresses under which other machines reach this one.
pub(super) fn local_addresses(hosts: &Hosts, facts: &HostFacts) -> Vec<String> {
    let Ok(this_host) = &facts.host else { return Vec::new() };
    let valid = hosts.iter().filter_map(|(name, host)| Some((name, host.as_ref()?)));
    let local =
        valid.filter(|(name, host)| is_same_host(name, this_host) || is_same_host(&host.address, this_host));
    local.map(|(_, host)| host.address.trim_start_matches("https://").to_owned()).collect()
}

impl HostSpec {
    fn port(&self) -> u16 {
        self.port.unwrap_or(DEFAULT_PORT)
    }

    /// Returns the location of a server of this host. Only the gateway runs it; every other process uses the gateway, so
    /// that there is one copy.
    fn run_on_this_host(&self, name: &str, server: &str, facts: &HostFacts) -> RunOn {
        if facts.is_gateway {
            let reason = format!("runs here, on `{name}`");
            return RunOn { location: RunLocation::Local, reason, missing_gateway: None };
        }
        let port = self.port();
        let location = self.server_location(&format!("http://127.0.0.1:{port}"), server);
        let missing_gateway = (!facts.open_ports.contains(&port)).then_some(port);
        let state = missing_gateway.map(|port| format!(", which does not answer on port {port}"));
        let reason = format!("runs in the gateway of this host, `{name}`{}", state.unwrap_or_default());
        RunOn { location, reason, missing_gateway }
    }

    /// Returns the URL of its gateway, without a path.
    fn base_url(&self) -> String {
        match (self.address.strip_prefix("https://"), self.address.parse::<Ipv6Addr>()) {
            (Some(_), _) => match self.port {
                Some(port) => format!("{}:{port}", self.address),
                None => self.address.clone(),
            },
            (None, Ok(v6)) => format!("http://[{v6}]:{}", self.port()),
            (None, Err(_)) => format!("http://{}:{}", self.address, self.port()),
        }
    }

    /// Returns the location of a server that the gateway at `base_url` runs.
    fn server_location(&self, base_url: &str, server: &str) -> RunLocation {
        let url = format!("{base_url}/mcp/s/{server}");
        let mut http = HttpSpec::new(url).transport(TransportKind::Streamable);
        http.headers.extend(self.authorization.clone().map(|value| ("Authorization".to_owned(), value)));
        RunLocation::Remote(Box::new(http))
    }

    /// Returns whether connections to it are unencrypted and may cross public networks.
    fn is_plaintext_in_public(&self) -> bool {
        if self.address.starts_with("https://") {
            return false;
        }
        match self.address.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(IpAddr::V4(v4)) => !is_private(v4),
            Ok(IpAddr::V6(v6)) => !v6.is_loopback() && !v6.is_unique_local() && !v6.is_unicast_link_local(),
            Err(_) => {
                let name = self.address.to_lowercase();
                name.contains('.') && !PRIVATE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
            }
        }
    }
}

fn is_private(v4: Ipv4Addr) -> bool {
    // 100.64.0.0/10 is used by carrier-grade NAT and overlay networks.
    let is_shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
    v4.is_loopback() || v4.is_private() || v4.is_link_local() || is_shared
}
