//! Servers behind a shim, and other process features that exist only on Linux.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(super) use super::journal::{Journal, JournalEntry};
pub(super) use super::orphans::SeenProcess;
pub use super::shim::run_shim;
pub(crate) use super::shim::{is_unprepared_shim, own_program};

use super::control::{self, REPORT_LEN, ShimReport};
use super::orphans::{self, OrphanQuery};
use super::proc;
use super::spawn_request::SpawnRequest;
use super::tree_tracker::{StartedTree, TreeTracker};
use super::{SpawnContext, SpawnError, StopSignal};
use crate::model::exit_report::ProcessExit;

/// Time a shim has to kill its tree, longer than its own limit. A shim that is itself stopped never finishes.
const SHIM_TIMEOUT: Duration = Duration::from_secs(6);

/// A shim that was requested.
pub(super) struct ShimProcess {
    reports: OwnedReadHalf,
    /// Absent until it was reported, and after the process was waited for.
    pid: Option<Pid>,
    /// True once the server may run, or may have run.
    may_run: bool,
    /// True once no process of the tree is left that the shim can end.
    has_finished: bool,
    /// Cancelled when the shim was told to kill its tree.
    kill_sent: CancellationToken,
}

/// The two ends of a shim that was requested.
pub(super) struct RequestedShim {
    pub(super) process: ShimProcess,
    pub(super) control: ShimControl,
    /// Bytes of the request that were sent; the others must follow.
    pub(super) sent: usize,
}

/// The sending half of a shim's control socket. Dropping it ends the tree.
#[derive(Debug)]
pub(super) struct ShimControl {
    socket: OwnedWriteHalf,
    kill_sent: CancellationToken,
}

impl ShimControl {
    /// Sends the signal to the whole tree.
    pub(super) fn signal(&self, signal: StopSignal) {
        let is_kill = signal == StopSignal::Kill;
        // A shim that has exited has ended its tree, and the socket buffer always has space for one byte.
        let _ = self.socket.try_write(&[if is_kill { control::KILL } else { control::TERM }]);
        if is_kill {
            self.kill_sent.cancel();
        }
    }

    /// Sends the rest of the encoded spawn request.
    pub(super) async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.socket.write_all(request).await
    }
}

impl Drop for ShimControl {
    fn drop(&mut self) {
        self.kill_sent.cancel();
    }
}

impl ShimProcess {
    /// Starts a shim that gets the server's stdio files and the start of the request, so that it need not wait for this
    /// process.
    pub(super) fn start(
        program: &Path,
        request: &[u8],
        files: &[OwnedFd; 3],
        context: SpawnContext<'_>,
    ) -> io::Result<RequestedShim> {
        let (ours, theirs) = StdStream::pair()?;
        let sent = control::send_files(&ours, request, files)?;
        ours.set_nonblocking(true)?;
        let (reports, socket) = UnixStream::from_std(ours)?.into_split();
        context.spawner.fork_shim(program, &theirs.into(), context.tasks)?;
        let kill_sent = CancellationToken::new();
        let control = ShimControl { socket, kill_sent: kill_sent.clone() };
        let process = Self { reports, pid: None, may_run: false, has_finished: false, kill_sent };
        Ok(RequestedShim { process, control, sent })
    }

    /// Forwards the shim's reports until it has exited and no process of the tree is left.
    pub(super) async fn watch(mut self, request: SpawnRequest, mut tracker: TreeTracker) {
        let kill_sent = self.kill_sent.clone();
        let overdue = async {
            kill_sent.cancelled().await;
            sleep(SHIM_TIMEOUT).await;
        };
        let is_overdue = tokio::select! {
            () = self.forward_reports(&request, &mut tracker) => false,
            () = overdue => true,
        };
        let is_unasked = !self.kill_sent.is_cancelled();
        self.wait(is_overdue, &tracker).await;
        if self.may_run && !self.has_finished {
            if is_unasked {
                tracker.report_exit(ProcessExit::ShimKilled);
                tracker.report_failure(SpawnError::shim_killed());
            }
            // The server dies with a killed shim, but the rest of the tree does not.
            tracker.kill_orphans().await;
        }
        tracker.report_exit(ProcessExit::Signal(Signal::KILL.as_raw()));
        tracker.finish();
    }

    /// Forwards the reports of the shim until it closes the socket.
    async fn forward_reports(&mut self, request: &SpawnRequest, tracker: &mut TreeTracker) {
        let mut bytes = [0; REPORT_LEN];
        while self.reports.read_exact(&mut bytes).await.is_ok() {
            match ShimReport::from_bytes(bytes) {
                Some(ShimReport::Forked(pid)) => self.pid = Pid::from_raw(pid),
                Some(ShimReport::Starting) => self.may_run = true,
                Some(ShimReport::Finished) => self.has_finished = true,
                Some(ShimReport::Started(pid)) => {
                    let shim = self.pid.map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
                    // If the spawning future was dropped, so was the control socket, and the shim ends the server.
                    tracker.report_started(StartedTree { server: pid.cast_unsigned(), shim });
                }
                Some(ShimReport::Failed(errno)) => {
                    self.has_finished = true;
                    let error = io::Error::from_raw_os_error(errno);
                    tracker.report_failure(SpawnError::from_request(request, &error));
                }
                Some(ShimReport::Exited(status)) => tracker.report_exit(ProcessExit::Status(status)),
                Some(ShimReport::Killed(signal)) => tracker.report_exit(ProcessExit::Signal(signal)),
                Some(ShimReport::InOtherSession(pid)) => tracker.record_seen(pid.cast_unsigned()),
                Some(ShimReport::TooManyProcesses(count)) => {
                    tracker.report_exit(ProcessExit::TooManyProcesses(count.cast_unsigned()));
                }
                None => return,
            }
        }
    }

    /// Waits until the shim has exited, which it does when it has closed the socket; one that is overdue is killed first.
    async fn wait(&mut self, is_overdue: bool, tracker: &TreeTracker) {
        let Some(pid) = self.pid.take() else { return };
        if is_overdue {
            let _ = kill_process(pid, Signal::KILL);
        }
        // Fails only when the runtime shuts down.
        let _ = tracker.tasks.spawn_blocking(move || wait_for_child(pid)).await;
    }
}

impl Drop for ShimProcess {
    fn drop(&mut self) {
        // The runtime has ended before the shim, which ends because its control socket is closed.
        if let Some(pid) = self.pid {
            std::thread::spawn(move || wait_for_child(pid));
        }
    }
}

/// Waits for a child. Fails only if it is not a child, or another part of the program has waited for it.
fn wait_for_child(pid: Pid) {
    let _ = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
}

/// Kills every process that carries this tree id or was seen in the tree. Returns whether all of them have ended.
pub(super) fn kill_tree(tree_id: String, seen: Vec<SeenProcess>) -> bool {
    let query = OrphanQuery { trees: [tree_id].into(), seen, ..OrphanQuery::default() };
    orphans::kill_orphans(&query);
    !query.has_survivors()
}

/// Whether [`tree_memory`] can tell.
pub(crate) const MEASURES_MEMORY: bool = true;

/// Returns the CPU time of the descendants of a process, plus its own if `include_root` is set. The time of a process that has
/// ended counts once its parent has waited for it.
pub(super) fn tree_cpu_time(root: u32, include_root: bool) -> Option<Duration> {
    let descendants: Duration = proc::descendants(root).into_iter().filter_map(proc::cpu_time).sum();
    if include_root { Some(proc::cpu_time(root)? + descendants) } else { Some(descendants) }
}

/// Returns the bytes of memory that the descendants of a process use, plus its own if `include_root` is set.
pub(super) fn tree_memory(root: u32, include_root: bool) -> Option<u64> {
    let descendants: u64 = proc::descendants(root).into_iter().filter_map(proc::memory_usage).sum();
    if include_root { Some(proc::memory_usage(root)? + descendants) } else { Some(descendants) }
}
