//! Facts about this machine that scopes and hosts depend on, and the set of facts a config requires.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::scope;

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
    /// True if the name of the project folder is required.
    pub project: bool,
    /// Globs of project files.
    pub files: BTreeSet<String>,
    /// Card files of servers.
    pub card_files: BTreeSet<PathBuf>,
    /// Ports of this machine.
    pub ports: BTreeSet<u16>,
}

impl RequiredFacts {
    /// Returns whether the config may have another meaning in another folder.
    pub fn depend_on_folder(&self) -> bool {
        self.project || !self.files.is_empty()
    }
}

/// The error for an assumed fact that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidFact {
    /// The fact as written.
    pub written: String,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for InvalidFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot assume `{}`: {}", self.written, self.reason)
    }
}

impl std::error::Error for InvalidFact {}

impl HostFacts {
    /// Replaces facts by assumed ones, written as `KEY=VALUE` and separated by commas. The keys are those of
    /// `scopes.NAME.match`: `host`, `user`, `os`, `project`, `env.NAME`, `network` (an address or an address range, of
    /// which one address is assumed), `gateway-mac` and `ssid`, and also `tag`. A key without a value makes the fact absent;
    /// `network` and `tag` may be repeated.
    ///
    /// # Errors
    /// Fails at the first fact that cannot be read; those before it are replaced.
    pub fn assume(&mut self, facts: &str) -> Result<(), InvalidFact> {
        let mut replaced = BTreeSet::new();
        for written in facts.split(',').map(str::trim) {
            let invalid =
                |reason: &str| InvalidFact { written: written.to_owned(), reason: reason.to_owned() };
            let (key, value) = written.split_once('=').ok_or_else(|| invalid("write `KEY=VALUE`"))?;
            let is_first = replaced.insert(key);
            self.assume_one(key, value, is_first).map_err(|reason| invalid(&reason))?;
        }
        Ok(())
    }

    fn assume_one(&mut self, key: &str, value: &str, is_first: bool) -> Result<(), String> {
        let fact = || match value {
            "" => Err("assumed to be unknown".to_owned()),
            value => Ok(value.to_owned()),
        };
        match key {
            "host" => {
                self.host = fact();
                // These belong to the machine that was asked.
                self.open_ports.clear();
            }
            "user" => self.user = fact(),
            "os" => self.os = value.to_lowercase(),
            "project" => self.project = fact().ok(),
            "ssid" => self.ssid = fact(),
            "gateway-mac" => {
                let mac = scope::parse_mac(value).filter(|_| !value.is_empty());
                self.gateway_mac = match value {
                    "" => fact(),
                    _ => Ok(mac.ok_or("a MAC address is written as `00:11:22:aa:bb:cc`")?),
                };
            }
            "network" => {
                let mut addresses = match (&self.addresses, is_first) {
                    (Ok(addresses), false) => addresses.clone(),
                    _ => Vec::new(),
                };
                if !value.is_empty() {
                    let address = scope::address_in_range(value);
                    addresses.push(address.ok_or("an address range is written as `192.168.1.0/24`")?);
                }
                self.addresses = Ok(addresses);
            }
            "tag" => {
                if is_first {
                    self.tags.clear();
                }
                if !value.is_empty() {
                    let tag = Some(value).filter(|tag| scope::is_tag(tag)).ok_or(scope::TAG_HINT)?;
                    self.tags.insert(tag.to_owned());
                }
            }
            _ => match key.strip_prefix("env.").filter(|name| !name.is_empty()) {
                Some(name) if value.is_empty() => drop(self.env.remove(name)),
                Some(name) => drop(self.env.insert(name.to_owned(), value.to_owned())),
                None => {
                    return Err(
                        "the keys are `host`, `user`, `os`, `project`, `network`, `gateway-mac`, `ssid`, `tag` and `env.NAME`"
                            .to_owned(),
                    );
                }
            },
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assumed_facts_replace_the_gathered_ones() {
        let mut facts = HostFacts { tags: ["old".to_owned()].into(), ..HostFacts::default() };
        facts.assume("host=lab, network=10.1.0.0/16,network=fd00::/8,os=macOS,tag=a,tag=b,env.CI=1").unwrap();
        assert_eq!((facts.host.as_deref(), facts.os.as_str()), (Ok("lab"), "macos"));
        let addresses: Vec<String> = facts.addresses.clone().unwrap().iter().map(IpAddr::to_string).collect();
        assert_eq!(addresses, ["10.1.0.1", "fd00::1"]);
        assert_eq!(facts.tags, ["a".to_owned(), "b".to_owned()].into());
        facts
            .assume("network=192.0.2.7,env.CI=,host=,ssid=home,gateway-mac=0-11-22-aa-BB-cc,project=x")
            .unwrap();
        assert_eq!(facts.addresses.as_deref(), Ok(&["192.0.2.7".parse().unwrap()][..]));
        assert!(facts.env.is_empty() && facts.host.is_err());
        assert_eq!(facts.gateway_mac.as_deref(), Ok("00:11:22:aa:bb:cc"));
        assert_eq!((facts.ssid.as_deref(), facts.project.as_deref()), (Ok("home"), Some("x")));
    }

    #[test]
    fn assumed_fact_that_cannot_be_read_is_an_error() {
        for written in ["host", "color=red", "network=here", "gateway-mac=1", "tag=a b", "env.=1", ""] {
            let invalid = HostFacts::default().assume(written).unwrap_err();
            assert_eq!(invalid.written, written, "{invalid}");
        }
    }
}
