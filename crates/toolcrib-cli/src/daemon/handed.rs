//! A socket that somebody opened for the gateway before it ran, as systemd does: whoever comes while one gateway takes the
//! place of another waits there, and is not turned away.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// The first file that is handed over.
const FIRST: i32 = 3;

/// The socket that was opened for this very process, and its address.
pub(super) fn listener(
    env: impl Fn(&str) -> Option<String>,
) -> io::Result<Option<(TcpListener, SocketAddr)>> {
    let for_us = env("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
    let count = env("LISTEN_FDS").filter(|_| for_us).unwrap_or_default();
    match count.as_str() {
        "" | "0" => Ok(None),
        "1" => {
            let listener = TcpListener::from(taken()?);
            // A socket of another kind has no such address.
            let address = listener.local_addr()?;
            listener.set_nonblocking(true)?;
            Ok(Some((listener, address)))
        }
        _ => Err(io::Error::other("one socket is enough")),
    }
}

/// Another descriptor of the same socket: whose the first one is cannot be known.
#[cfg(target_os = "linux")]
fn taken() -> io::Result<std::os::fd::OwnedFd> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let us = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(us, FIRST, PidfdGetfdFlags::empty())?)
}

#[cfg(not(target_os = "linux"))]
fn taken() -> io::Result<std::os::fd::OwnedFd> {
    let _ = FIRST;
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_for_somebody_else_is_not_taken() {
        let us = std::process::id().to_string();
        let told = |pid: &str, count: &str| {
            let (pid, count) = (pid.to_owned(), count.to_owned());
            listener(move |name| Some(if name == "LISTEN_PID" { pid.clone() } else { count.clone() }))
        };
        assert!(listener(|_| None).unwrap().is_none());
        assert!(told("1", "1").unwrap().is_none() && told(&us, "0").unwrap().is_none());
        assert!(told(&us, "2").is_err() && told(&us, "many").is_err());
    }
}
