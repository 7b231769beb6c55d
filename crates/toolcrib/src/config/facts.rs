//! Facts about this machine that scopes and hosts depend on, and the set of facts a config requires.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

/// A fact, or the reason why it is unknown.
pub type Fact<T> = Result<T, String>;

/// Facts about this machine, its user and the current project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// Host name.
    pub host: Fact<String>,
    /// User that runs toolcrib.
    pub user: Fact<String>,
    /// Operating system: `linux`, `macos`, `windows` …
    pub os: String,
    /// Required environment variables that are set.
    pub env: BTreeMap<String, String>,
    /// Addresses at which other machines can reach this one.
    pub addresses: Fact<Vec<IpAddr>>,
    /// MAC address of the default gateway, in lower case with colons.
    pub gateway_mac: Fact<String>,
    /// Name of the wireless network.
    pub ssid: Fact<String>,
    /// First matching file of each required glob.
    pub files: BTreeMap<String, Fact<Option<String>>>,
    /// Contents of each required card file.
    pub card_files: BTreeMap<PathBuf, Fact<String>>,
    /// Name of the project folder.
    pub project: Option<String>,
    /// Tags that are active regardless of scopes.
    pub tags: BTreeSet<String>,
    /// Words that were given as such tags and are not valid.
    pub invalid_tags: BTreeSet<String>,
    /// True if this process is the gateway, which runs the servers of this host.
    pub is_gateway: bool,
    /// Required ports of this machine that accept connections.
    pub open_ports: BTreeSet<u16>,
}

/// Facts in which everything but the operating system is unknown.
impl Default for HostFacts {
    fn default() -> Self {
        let unknown = || "not collected".to_owned();
        Self {
            host: Err(unknown()),
            user: Err(unknown()),
            os: std::env::consts::OS.to_owned(),
            env: BTreeMap::new(),
            addresses: Err(unknown()),
            gateway_mac: Err(unknown()),
            ssid: Err(unknown()),
            files: BTreeMap::new(),
            card_files: BTreeMap::new(),
            project: None,
            tags: BTreeSet::new(),
            invalid_tags: BTreeSet::new(),
            is_gateway: true,
            open_ports: BTreeSet::new(),
        }
    }
}

/// The facts that a config requires. No others are collected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequiredFacts {
    /// True if the host name is required.
    pub host: bool,
    /// Environment variables.
    pub env: BTreeSet<String>,
    /// True if the addresses of this machine are required.
    pub addresses: bool,
    /// True if the MAC address of the default gateway is required.
    pub gateway_mac: bool,
    /// True if the name of the wireless network is required.
    pub ssid: bool,
    /// Globs of project files.
    pub files: BTreeSet<String>,
    /// Card files of servers.
    pub card_files: BTreeSet<PathBuf>,
    /// Ports of this machine.
    pub ports: BTreeSet<u16>,
}
