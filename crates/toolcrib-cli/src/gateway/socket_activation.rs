//! Socket activation as systemd does it: the listening sockets stay open between two gateways, so that clients wait instead
//! of being refused.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::net::AddressFamily;

/// Descriptor of the first passed socket, fixed by the protocol.
const FIRST_FD: i32 = 3;
/// A TCP socket and the gateway's own socket.
const MAX_SOCKETS: i32 = 2;

/// The listening sockets that were passed to this process.
#[derive(Debug, Default)]
pub(super) struct InheritedListeners {
    tcp: Option<TcpListener>,
    unix: Option<UnixListener>,
}

impl InheritedListeners {
    /// Takes the sockets that were passed to this process.
    ///
    /// # Errors
    /// If they are not at most one TCP socket and one Unix socket.
    pub(super) fn take(env: impl Fn(&str) -> Option<String>) -> io::Result<Self> {
        let is_for_this_process = env("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
        let count = env("LISTEN_FDS").filter(|_| is_for_this_process).unwrap_or_default();
        let count = match count.as_str() {
            "" => 0,
            count => count.parse().map_err(|_| io::Error::other(format!("`{count}` is not a number")))?,
        };
        if !(0..=MAX_SOCKETS).contains(&count) {
            return Err(io::Error::other(format!("{count} sockets were passed")));
        }
        let mut inherited = Self::default();
        for fd in FIRST_FD..FIRST_FD + count {
            inherited.add(duplicate_fd(fd)?)?;
        }
        Ok(inherited)
    }

    /// Returns whether no socket was passed.
    pub(super) fn is_empty(&self) -> bool {
        self.tcp.is_none() && self.unix.is_none()
    }

    fn add(&mut self, fd: OwnedFd) -> io::Result<()> {
        let is_taken = match rustix::net::getsockname(&fd)?.address_family() {
            AddressFamily::UNIX => {
                let listener = UnixListener::from(fd);
                listener.set_nonblocking(true)?;
                self.unix.replace(listener).is_some()
            }
            _ => {
                let listener = TcpListener::from(fd);
                listener.set_nonblocking(true)?;
                self.tcp.replace(listener).is_some()
            }
        };
        if is_taken { Err(io::Error::other("two sockets of the same kind were passed")) } else { Ok(()) }
    }

    /// Returns the address of the TCP socket.
    ///
    /// # Errors
    /// If it is not a TCP socket.
    pub(super) fn tcp_address(&self) -> io::Result<Option<SocketAddr>> {
        self.tcp.as_ref().map(TcpListener::local_addr).transpose()
    }

    /// Takes the TCP socket.
    pub(super) fn take_tcp(&mut self) -> Option<TcpListener> {
        self.tcp.take()
    }

    /// Takes the Unix socket.
    ///
    /// # Errors
    /// If it does not have this path.
    pub(super) fn take_unix(&mut self, path: &Path) -> io::Result<Option<UnixListener>> {
        let Some(listener) = self.unix.take() else { return Ok(None) };
        match listener.local_addr()?.as_pathname() {
            Some(passed) if passed == path => Ok(Some(listener)),
            _ => Err(io::Error::other(format!("the Unix socket is not `{}`", path.display()))),
        }
    }
}

/// Duplicates a descriptor, because ownership of the original cannot be proven.
#[cfg(target_os = "linux")]
fn duplicate_fd(fd: i32) -> io::Result<OwnedFd> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let own_process = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(own_process, fd, PidfdGetfdFlags::empty())?)
}

#[cfg(not(target_os = "linux"))]
fn duplicate_fd(_fd: i32) -> io::Result<OwnedFd> {
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
            InheritedListeners::take(move |name| {
                Some(if name == "LISTEN_PID" { pid.clone() } else { count.clone() })
            })
        };
        assert!(InheritedListeners::take(|_| None).unwrap().tcp.is_none());
        assert!(take("1", "1").unwrap().tcp.is_none() && take(&own_pid, "0").unwrap().tcp.is_none());
        assert!(take(&own_pid, "3").is_err() && take(&own_pid, "many").is_err());
    }

    #[test]
    fn one_socket_of_each_kind_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let mut inherited = InheritedListeners::default();
        inherited.add(UnixListener::bind(&path).unwrap().into()).unwrap();
        inherited.add(TcpListener::bind("127.0.0.1:0").unwrap().into()).unwrap();
        assert!(inherited.tcp_address().unwrap().is_some());
        assert!(inherited.add(TcpListener::bind("127.0.0.1:0").unwrap().into()).is_err());
        assert!(inherited.take_unix(&path).unwrap().is_some());
        assert!(inherited.take_unix(&path).unwrap().is_none());
        inherited.add(UnixListener::bind(dir.path().join("other")).unwrap().into()).unwrap();
        assert!(inherited.take_unix(&path).is_err());
    }
}
