//! `Facts`: where we are, as far as some scope asks. Facts are found out elsewhere and only looked at here.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Something that was found out, or why it could not be.
pub type Fact<T> = Result<T, String>;

/// Where we are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The name of this machine.
    pub host: Fact<String>,
    /// Who we are.
    pub user: Fact<String>,
    /// `linux`, `macos`, `windows` …
    pub os: String,
    /// The variables that were asked for, if they are set.
    pub env: BTreeMap<String, String>,
    /// The addresses of this machine that others can reach it by.
    pub addresses: Fact<Vec<IpAddr>>,
    /// The hardware address of the gateway to everywhere else: lower case, colons.
    pub gateway_mac: Fact<String>,
    /// The name of the wireless network.
    pub ssid: Fact<String>,
    /// For each glob, a file that fits it, if there is one.
    pub files: BTreeMap<String, Fact<Option<String>>>,
    /// The name of the folder that the project is in.
    pub project: Option<String>,
    /// Tags that are active whatever the scopes say.
    pub tags: BTreeSet<String>,
    /// Whether we are the gateway of this machine, which runs what is to run on it.
    pub serving: bool,
    /// Ports of this machine on which somebody answers, of those that were asked for.
    pub answering: BTreeSet<u16>,
}

/// Nothing is known of anywhere.
impl Default for Facts {
    fn default() -> Self {
        let unknown = || "nobody looked".to_owned();
        Self {
            host: Err(unknown()),
            user: Err(unknown()),
            os: std::env::consts::OS.to_owned(),
            env: BTreeMap::new(),
            addresses: Err(unknown()),
            gateway_mac: Err(unknown()),
            ssid: Err(unknown()),
            files: BTreeMap::new(),
            project: None,
            tags: BTreeSet::new(),
            serving: true,
            answering: BTreeSet::new(),
        }
    }
}

/// Which facts some scope asks for. Nothing else is found out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The name of this machine.
    pub host: bool,
    /// Variables.
    pub env: BTreeSet<String>,
    /// The addresses of this machine.
    pub addresses: bool,
    /// The gateway.
    pub gateway_mac: bool,
    /// The wireless network.
    pub ssid: bool,
    /// Globs.
    pub files: BTreeSet<String>,
    /// Ports of this machine.
    pub ports: BTreeSet<u16>,
}
