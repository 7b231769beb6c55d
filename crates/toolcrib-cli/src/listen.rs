//! `ListenAddr`: where the gateway listens, and where it refuses to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::failure::Failure;

/// Where the gateway listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddr {
    /// A port of this machine.
    Tcp(SocketAddr),
    /// A socket file.
    Unix(PathBuf),
}

impl ListenAddr {
    /// Whether other machines can reach it.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().to_canonical().is_loopback())
    }

    /// The name by which other machines ask for it, if it is one address of this machine.
    pub(crate) fn host(&self) -> Option<String> {
        match self {
            Self::Tcp(address) if self.is_open() && !address.ip().is_unspecified() => {
                Some(match address.ip() {
                    IpAddr::V4(ip) => ip.to_string(),
                    IpAddr::V6(ip) => format!("[{ip}]"),
                })
            }
            _ => None,
        }
    }

    /// Refuses an address that others can reach when nobody has to show a token there: anybody could call anything.
    pub(crate) fn guarded(&self, tokens: bool) -> Result<(), Failure> {
        match self {
            Self::Tcp(address) if self.is_open() && !tokens => Err(Failure::usage(format!(
                "`{address}` can be reached from other machines, and no `callers` are declared: \
                 anybody there could call every tool"
            ))
            .hint(format!(
                "declare `[callers.NAME]` with a `token`, or toolcrib serve --listen 127.0.0.1:{}",
                address.port()
            ))),
            _ => Ok(()),
        }
    }
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("`unix:` wants a path".to_owned())
            } else {
                Ok(Self::Unix(path.into()))
            };
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Tcp(address));
        }
        let port = text.strip_prefix("localhost:").and_then(|port| port.parse().ok());
        let local = |port| Self::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
        port.map(local)
            .ok_or_else(|| "`127.0.0.1:7717`, `[::1]:0`, `localhost:7717` or `unix:PATH`".to_owned())
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_may_be_listened_on_without_tokens() {
        for good in [
            "127.0.0.1:0",
            "127.8.8.8:1",
            "[::1]:7717",
            "localhost:7717",
            "unix:/tmp/x",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(good.parse::<ListenAddr>().unwrap().guarded(false).is_ok(), "{good}");
        }
        for open in ["0.0.0.0:7717", "[::]:7717", "192.168.1.5:80", "[::ffff:10.0.0.1]:1"] {
            let open: ListenAddr = open.parse().unwrap();
            assert!(open.guarded(false).is_err() && open.guarded(true).is_ok(), "{open}");
        }
        for bad in ["", "7717", "unix:", "example.org:80", "localhost:x"] {
            assert!(bad.parse::<ListenAddr>().is_err(), "{bad}");
        }
    }
}
