//! `StoreUrl`: where the servers of a store are.

use std::borrow::Cow;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use zeroize::Zeroizing;

/// Port of servers, if a URL names none.
const SERVER_PORT: u16 = 6379;
/// Port of sentinels, if a URL names none.
const SENTINEL_PORT: u16 = 26379;

/// The address of a store: `valkey://USER:PASSWORD@HOST:PORT/DATABASE`, or one of the forms that [`StoreUrl::from_str`] lists.
#[derive(Clone)]
pub struct StoreUrl {
    pub(crate) servers: Servers,
    pub(crate) uses_tls: bool,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Zeroizing<String>>,
    pub(crate) database: u32,
}

/// The servers of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Servers {
    One(Address),
    /// Sentinels that know which server is the primary of this name.
    Sentinels {
        sentinels: Vec<Address>,
        primary: String,
    },
    /// Some nodes of a cluster.
    Cluster(Vec<Address>),
}

/// The address of one server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Shows the servers, without user and password.
impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.uses_tls { "valkeys" } else { "valkey" };
        let join =
            |addresses: &[Address]| addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
        match &self.servers {
            Servers::One(Address::Unix(path)) => write!(f, "valkey+unix://{}", path.display())?,
            Servers::One(address) => write!(f, "{scheme}://{address}")?,
            Servers::Sentinels { sentinels, primary } => {
                write!(f, "{scheme}-sentinel://{}/{primary}", join(sentinels))?;
            }
            Servers::Cluster(nodes) => write!(f, "{scheme}-cluster://{}", join(nodes))?,
        }
        match self.database {
            0 => Ok(()),
            database => write!(f, "/{database}"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

/// A text that is not the URL of a store. It contains no password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUrlError(String);

impl fmt::Display for StoreUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StoreUrlError {}

fn error(message: impl Into<String>) -> StoreUrlError {
    StoreUrlError(message.into())
}

/// What a scheme says.
struct Scheme {
    uses_tls: bool,
    topology: Topology,
}

enum Topology {
    One,
    Unix,
    Sentinel,
    Cluster,
}

impl Scheme {
    /// Parses a scheme: `valkey` or `redis`, an `s` for TLS, and `-sentinel`, `-cluster` or `+unix`.
    fn parse(scheme: &str) -> Result<Self, StoreUrlError> {
        let unknown = || {
            error(format!(
                "unknown scheme `{scheme}`; use `valkey://`, `valkeys://`, `valkey+unix://`, `valkey-sentinel://` or `valkey-cluster://`, or the same with `redis`"
            ))
        };
        let rest =
            scheme.strip_prefix("valkey").or_else(|| scheme.strip_prefix("redis")).ok_or_else(unknown)?;
        let (uses_tls, rest) = rest.strip_prefix('s').map_or((false, rest), |rest| (true, rest));
        let topology = match rest {
            "" => Topology::One,
            "+unix" if !uses_tls => Topology::Unix,
            "-sentinel" => Topology::Sentinel,
            "-cluster" => Topology::Cluster,
            _ => return Err(unknown()),
        };
        Ok(Self { uses_tls, topology })
    }
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    /// Parses a URL. With `valkeys` instead of `valkey` the connection uses TLS, and `redis` means the same as `valkey`:
    ///
    /// - `valkey://USER:PASSWORD@HOST:PORT/DATABASE`
    /// - `valkey+unix:///PATH`
    /// - `valkey-sentinel://HOST1:PORT,HOST2:PORT/PRIMARY/DATABASE`
    /// - `valkey-cluster://HOST1:PORT,HOST2:PORT`
    fn from_str(url: &str) -> Result<Self, StoreUrlError> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| error("the URL has no scheme, such as `valkey://`"))?;
        let scheme = Scheme::parse(scheme)?;
        if rest.contains(['?', '#']) {
            return Err(error("the URL has options; write them as keys of `[store]`"));
        }
        // A password may contain an `@`, a host cannot.
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let UrlLogin { user, password } = login.map_or(Ok(UrlLogin::default()), parse_login)?;
        let (hosts, path) = match scheme.topology {
            Topology::Unix => ("", rest),
            _ => rest.split_once('/').unwrap_or((rest, "")),
        };
        let (servers, database) = parse_servers(&scheme.topology, hosts, path)?;
        Ok(Self { servers, uses_tls: scheme.uses_tls, user, password, database })
    }
}

/// The part of a URL before the `@`.
#[derive(Default)]
struct UrlLogin {
    user: Option<String>,
    password: Option<Zeroizing<String>>,
}

fn parse_login(login: &str) -> Result<UrlLogin, StoreUrlError> {
    let decode = |text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded.map(Cow::into_owned).map_err(|_| error("the user or password is not UTF-8"))
    };
    let (user, password) = login.split_once(':').ok_or_else(|| {
        error("the URL has a user without a password; write `USER:PASSWORD@`, or `:PASSWORD@` for the default user")
    })?;
    let user = if user.is_empty() { None } else { Some(decode(user)?) };
    Ok(UrlLogin { user, password: Some(Zeroizing::new(decode(password)?)) })
}

fn parse_servers(topology: &Topology, hosts: &str, path: &str) -> Result<(Servers, u32), StoreUrlError> {
    match topology {
        Topology::Unix if path.starts_with('/') => Ok((Servers::One(Address::Unix(path.into())), 0)),
        Topology::Unix => Err(error("the path of the socket is not absolute; write `valkey+unix:///PATH`")),
        Topology::One => match parse_addresses(hosts, SERVER_PORT)?.as_slice() {
            [address] => Ok((Servers::One(address.clone()), parse_database(path)?)),
            _ => Err(error("the URL has several hosts; use `valkey-sentinel://` or `valkey-cluster://`")),
        },
        Topology::Sentinel => {
            let (primary, database) = path.split_once('/').unwrap_or((path, ""));
            if primary.is_empty() {
                return Err(error(
                    "the name of the primary is missing; write `valkey-sentinel://HOST/PRIMARY`",
                ));
            }
            let sentinels = parse_addresses(hosts, SENTINEL_PORT)?;
            let servers = Servers::Sentinels { sentinels, primary: primary.to_owned() };
            Ok((servers, parse_database(database)?))
        }
        Topology::Cluster => match parse_database(path)? {
            0 => Ok((Servers::Cluster(parse_addresses(hosts, SERVER_PORT)?), 0)),
            _ => Err(error("a cluster has only database 0")),
        },
    }
}

fn parse_database(text: &str) -> Result<u32, StoreUrlError> {
    match text {
        "" => Ok(0),
        text => text.parse().map_err(|_| error(format!("`{text}` is not the number of a database"))),
    }
}

fn parse_addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>, StoreUrlError> {
    hosts.split(',').map(|host| parse_address(host, default_port)).collect()
}

/// Parses `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
fn parse_address(text: &str, default_port: u16) -> Result<Address, StoreUrlError> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, port.strip_prefix(':')),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() {
        return Err(error("the URL has no host"));
    }
    let port = port.map_or(Ok(default_port), str::parse);
    let port = port.map_err(|_| error(format!("the port of `{host}` is not a number up to 65535")))?;
    Ok(Address::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_shown_without_password() {
        let cases = [
            ("valkey://localhost", "valkey://localhost:6379"),
            ("redis://ops:p%40ss@db.example:7000/3", "valkey://db.example:7000/3"),
            ("rediss://:a@b@[::1]:6380", "valkeys://[::1]:6380"),
            ("valkey+unix:///run/valkey.sock", "valkey+unix:///run/valkey.sock"),
            ("valkey-sentinel://a,b:1/main/2", "valkey-sentinel://a:26379,b:1/main/2"),
            ("valkeys-cluster://a:1,b", "valkeys-cluster://a:1,b:6379"),
        ];
        for (url, shown) in cases {
            assert_eq!(url.parse::<StoreUrl>().unwrap().to_string(), shown, "{url}");
        }
        let url: StoreUrl = "redis://ops:p%40ss@db".parse().unwrap();
        assert_eq!(
            (url.user.as_deref(), url.password.as_ref().map(|text| text.as_str())),
            (Some("ops"), Some("p@ss"))
        );
        assert!(!format!("{url:?}").contains("ss@"));
    }

    #[test]
    fn unusable_url_is_explained() {
        let cases = [
            ("localhost:6379", "no scheme"),
            ("http://localhost", "unknown scheme `http`"),
            ("valkeyx://localhost", "unknown scheme `valkeyx`"),
            ("valkey://", "no host"),
            ("valkey://user@host", "without a password"),
            ("valkey://host:port", "the port of `host`"),
            ("valkey://host/zero", "`zero` is not the number"),
            ("valkey://a,b", "several hosts"),
            ("valkey-sentinel://a", "name of the primary"),
            ("valkey-cluster://a/1", "only database 0"),
            ("valkey+unix://path", "not absolute"),
            ("valkey://host?db=1", "keys of `[store]`"),
        ];
        for (url, expected) in cases {
            let message = url.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(message.contains(expected), "{url}: {message}");
        }
    }
}
