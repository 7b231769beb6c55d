//! The fork server: a process that forks the shims of a crib.
//!
//! A shim is a copy of the program that embeds the library. To execute that program takes 1.4 ms of CPU time, of which the dynamic
//! loader and page faults are most; a fork of a process that has just been executed needs no loader. Servers often start
//! together, so the program is executed once, and exits when no shim was requested for a while. Each shim becomes a child of the
//! process that requested it, as if it had been executed by it.

use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::control::{self, ShimReport};
use super::raw::{self, ForkedProcess};
use super::shim::{self, SHIM_ARG};
use crate::util::tasks::SpawnBoxed as _;

/// Time without a request after which the process exits.
const IDLE_TIME: Duration = Duration::from_millis(500);

/// A fork server. Dropping it ends the process after it has forked the shims that were requested.
#[derive(Debug)]
pub(super) struct ForkServer {
    requests: OwnedWriteHalf,
}

impl ForkServer {
    /// Executes a program that calls [`run_shim`](super::run_shim). A task of `tasks` waits for it, and kills it when `stop` is
    /// cancelled.
    pub(super) fn start(program: &Path, tasks: &TaskTracker, stop: CancellationToken) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let (end, requests) = tokio::net::UnixStream::from_std(ours)?.into_split();
        let mut command = Command::new(program);
        // In its own process group it does not receive signals from our terminal.
        command.arg0("toolcrib").arg(SHIM_ARG).env_clear().process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
        let process = RunningProcess(Some(command.spawn()?));
        tasks.spawn_boxed(wait_for_exit(process, end, stop));
        Ok(Self { requests })
    }

    /// Requests a shim that has this control socket.
    ///
    /// # Errors
    /// If the fork server takes no more requests ([`takes_no_more`]), or too many requests wait.
    pub(super) fn fork_shim(&self, control: &OwnedFd) -> io::Result<()> {
        control::send_control(self.requests.as_ref(), control)
    }
}

/// The process of a fork server. Dropping it kills it and waits for it on a thread of its own.
struct RunningProcess(Option<Child>);

impl Drop for RunningProcess {
    fn drop(&mut self) {
        if let Some(process) = self.0.take() {
            std::thread::spawn(|| end(process));
        }
    }
}

/// Waits until the process has closed its end of the socket, which it does when it exits, or until `stop` is cancelled; then ends
/// it.
async fn wait_for_exit(
    mut process: RunningProcess,
    mut end_of_requests: OwnedReadHalf,
    stop: CancellationToken,
) {
    stop.run_until_cancelled(end_of_requests.read_u8()).await;
    if let Some(process) = process.0.take() {
        // Fails only when the runtime shuts down.
        let _ = spawn_blocking(|| end(process)).await;
    }
}

/// Kills a process and waits for it. Fails only if another part of the program has waited for it.
fn end(mut process: Child) {
    let _ = process.kill();
    let _ = process.wait();
}

/// Returns whether a request failed because the fork server exits or has exited.
pub(super) fn takes_no_more(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// Forks a shim for each request on stdin until there is none for a while, and runs as a shim in the forked processes.
pub(super) fn run() -> io::Result<()> {
    raw::block_signals();
    raw::discard_children();
    let _ = std::fs::write("/proc/self/comm", "toolcrib-fork");
    let requests = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    // The first reading looks up the function of the clock, which takes 60 µs. Shims inherit it.
    let _ = shim::now();
    loop {
        if !has_request(&requests) {
            // Later requests fail, and those that came meanwhile are read before the end.
            requests.shutdown(Shutdown::Read)?;
        }
        let Some(control) = control::receive_control(&requests)? else { return Ok(()) };
        match raw::fork_sibling() {
            Ok(ForkedProcess::Child) => {
                drop(requests);
                rustix::stdio::dup2_stdin(&control)?;
                drop(control);
                return shim::start_and_watch();
            }
            // The shim reports its pid too, before it does anything else, unless it is killed before that.
            Ok(ForkedProcess::Parent { child }) => {
                let _ = UnixStream::from(control).write_all(&ShimReport::Forked(child).to_bytes());
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(Errno::AGAIN.raw_os_error());
                // The other end may be closed already.
                let _ = UnixStream::from(control).write_all(&ShimReport::Failed(errno).to_bytes());
                // The next attempt has the limits that the gateway has then.
                requests.shutdown(Shutdown::Read)?;
            }
        }
    }
}

/// Waits for a request, or for the end of requests. Returns false if there is none for a while.
fn has_request(requests: &UnixStream) -> bool {
    let timeout = Timespec::try_from(IDLE_TIME).ok();
    let mut requests = [PollFd::new(requests, PollFlags::IN)];
    // After an error the request is read without waiting for it here.
    poll(&mut requests, timeout.as_ref()).map_or(true, |ready| ready > 0)
}
