//! The address that the gateway listens on.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::command_error::CommandError;

/// The port of the gateway without `--listen`.
pub(crate) const DEFAULT_PORT: u16 = 7717;

/// The address of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ListenAddr {
    /// A TCP address.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Default for ListenAddr {
    fn default() -> Self {
        Self::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, DEFAULT_PORT)))
    }
}

impl ListenAddr {
    /// Returns whether other machines can reach the address.
    pub(crate) fn is_exposed(&self) -> bool {
        matches!(self, Self::Tcp(address) if !address.ip().to_canonical().is_loopback())
    }

    /// Returns the `Host` by which other machines reach the address, unless it is loopback or unspecified.
    pub(crate) fn host(&self) -> Option<String> {
        match self {
            Self::Tcp(address) if self.is_exposed() && !address.ip().is_unspecified() => {
                Some(match address.ip() {
                    IpAddr::V4(ip) => ip.to_string(),
                    IpAddr::V6(ip) => format!("[{ip}]"),
                })
            }
            _ => None,
        }
    }

    /// Refuses an address that other machines can reach, unless callers must present a token.
    pub(crate) fn check_exposure(&self, requires_tokens: bool) -> Result<(), CommandError> {
        match self {
            Self::Tcp(address) if self.is_exposed() && !requires_tokens => Err(CommandError::usage(format!(
                "`{address}` can be reached from other machines, and no `callers` or `issuers` are declared: \
                 they could call every tool"
            ))
            .hint(format!(
                "declare `[callers.NAME]` with a `token` or `[issuers.NAME]`, or toolcrib serve --listen 127.0.0.1:{}",
                address.port()
            ))),
            _ => Ok(()),
        }
    }
}

/// Returns the host of a URL, as it is written in `Host`.
pub(crate) fn url_host(url: &str) -> Option<String> {
    let url: hyper::Uri = url.parse().ok()?;
    url.host().map(str::to_owned)
}

impl FromStr for ListenAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err("`unix:` needs a path".to_owned())
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
            .ok_or_else(|| "use `127.0.0.1:7717`, `[::1]:0`, `localhost:7717` or `unix:PATH`".to_owned())
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
    fn exposed_address_requires_tokens() {
        for local in [
            "127.0.0.1:0",
            "127.8.8.8:1",
            "[::1]:7717",
            "localhost:7717",
            "unix:/tmp/x",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(local.parse::<ListenAddr>().unwrap().check_exposure(false).is_ok(), "{local}");
        }
        for open in ["0.0.0.0:7717", "[::]:7717", "192.168.1.5:80", "[::ffff:10.0.0.1]:1"] {
            let open: ListenAddr = open.parse().unwrap();
            assert!(open.check_exposure(false).is_err() && open.check_exposure(true).is_ok(), "{open}");
        }
        for bad in ["", "7717", "unix:", "example.org:80", "localhost:x"] {
            assert!(bad.parse::<ListenAddr>().is_err(), "{bad}");
        }
    }
}
