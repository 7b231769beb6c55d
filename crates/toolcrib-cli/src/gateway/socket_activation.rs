//! Socket activation as systemd does it: the listening socket stays open between two gateways, so that clients wait instead
//! of being refused.

use std::io;
use std::net::{SocketAddr, TcpListener};

/// Descriptor of the first passed socket, fixed by the protocol.
const FIRST_FD: i32 = 3;

/// Returns the socket that was passed to this process, and its address.
pub(super) fn take_listener(
    env: impl Fn(&str) -> Option<String>,
) -> io::Result<Option<(TcpListener, SocketAddr)>> {
    let is_for_this_process = env("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
    let count = env("LISTEN_FDS").filter(|_| is_for_this_process).unwrap_or_default();
    match count.as_str() {
        "" | "0" => Ok(None),
        "1" => {
            let listener = TcpListener::from(duplicate_fd()?);
            // Fails for a socket of another kind.
            let address = listener.local_addr()?;
            listener.set_nonblocking(true)?;
            Ok(Some((listener, address)))
        }
        _ => Err(io::Error::other("more than one socket was passed")),
    }
}

/// Duplicates the descriptor, because ownership of the original cannot be proven.
#[cfg(target_os = "linux")]
fn duplicate_fd() -> io::Result<std::os::fd::OwnedFd> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let own_process = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(own_process, FIRST_FD, PidfdGetfdFlags::empty())?)
}

#[cfg(not(target_os = "linux"))]
fn duplicate_fd() -> io::Result<std::os::fd::OwnedFd> {
    let _ = FIRST_FD;
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_for_other_processes_are_ignored() {
        let own_pid = std::process::id().to_string();
        let take = |pid: &str, count: &str| {
            let pid = pid.to_owned();
            let count = count.to_owned();
            take_listener(move |name| Some(if name == "LISTEN_PID" { pid.clone() } else { count.clone() }))
        };
        assert!(take_listener(|_| None).unwrap().is_none());
        assert!(take("1", "1").unwrap().is_none() && take(&own_pid, "0").unwrap().is_none());
        assert!(take(&own_pid, "2").is_err() && take(&own_pid, "many").is_err());
    }
}
