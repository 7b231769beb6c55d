//! Launches a command, owns everything it starts, keeps the tail of its stderr, stops it politely then firmly.

mod birth;
#[cfg(target_os = "linux")]
mod control;
#[cfg(not(target_os = "linux"))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod journal;
mod keep;
#[cfg(target_os = "linux")]
mod linux;
mod nursery;
mod order;
#[cfg(target_os = "linux")]
mod proc;
mod raw;
#[cfg(target_os = "linux")]
mod shim;
#[cfg(target_os = "linux")]
mod sweep;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[cfg(not(target_os = "linux"))]
use self::elsewhere as os;
#[cfg(target_os = "linux")]
use self::linux as os;
pub(crate) use self::nursery::Nursery;
pub use self::os::run_shim;

use self::keep::Keeper;
use self::order::Order;
use super::stderr::{LINGER, StderrTail};
use crate::class::FailureClass;
use crate::last_words::{Exit, LastWords};
use crate::secret::{Mask, Purse};
use crate::spec::CommandSpec;

/// How long a server gets to leave after its input was closed, and again after it was asked to.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long one that answers nothing gets to leave after it was asked to.
const MOMENT: Duration = Duration::from_millis(250);

/// A running server and everything it started. Dropping it kills what is left.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    program: String,
    grip: Grip,
    exit: watch::Receiver<Option<Exit>>,
    /// Nothing is left of it and of what it started.
    gone: CancellationToken,
    stderr: Arc<StderrTail>,
    /// The number of the last stderr line before this process.
    before: u64,
    /// Everything that it wrote to stderr has been read.
    drained: CancellationToken,
}

/// What we hold it by.
#[derive(Debug)]
enum Grip {
    Group,
    #[cfg(target_os = "linux")]
    Shim(os::Control, u32),
}

/// Why a command could not be started at all, and what that says about it.
#[derive(Debug)]
pub(crate) struct SpawnError {
    pub(crate) why: String,
    pub(crate) class: FailureClass,
}

impl SpawnError {
    fn of_command(why: String) -> Self {
        Self { why, class: FailureClass::Misconfigured }
    }

    /// Whoever was to start it died first, which says nothing about the command.
    fn of_shim() -> Self {
        let why = "its shim ended before it could start it".to_owned();
        Self { why, class: FailureClass::Crashed }
    }

    fn of_system(why: String, error: &io::Error) -> Self {
        // No room for it now, or somebody is just writing it: the next try may go better.
        let full = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOSPC];
        let busy = [Errno::TXTBSY, Errno::BUSY, Errno::INTR];
        let class = match Errno::from_io_error(error) {
            Some(errno) if full.contains(&errno) || busy.contains(&errno) => FailureClass::Refused,
            _ => FailureClass::Misconfigured,
        };
        Self { why, class }
    }
}

/// What a process has to do with besides its server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home<'a> {
    pub(crate) nursery: &'a Arc<Nursery>,
    pub(crate) stderr: &'a Arc<StderrTail>,
    /// Owns every task.
    pub(crate) tasks: &'a TaskTracker,
    /// Counts what is not gone yet.
    pub(crate) lives: &'a TaskTracker,
    /// The secrets it needs.
    pub(crate) purse: &'a Purse,
    /// Keeps them out of its stderr.
    pub(crate) mask: &'a Arc<Mask>,
}

impl Process {
    /// Starts the command in a session of its own, with an environment that is built, not inherited. It counts among
    /// the lives of its home until nothing is left of it, also when this future is dropped.
    pub(crate) async fn spawn(
        spec: &CommandSpec,
        home: Home<'_>,
    ) -> Result<(Self, pipe::Sender, pipe::Receiver), SpawnError> {
        let tree = getrandom::u64().map(|number| format!("{number:016x}"));
        let tree = tree.map_err(|error| SpawnError {
            why: format!("no random numbers: {error}"),
            class: FailureClass::Refused,
        })?;
        let order = Order::of(spec, home.purse, &tree).map_err(SpawnError::of_command)?;
        let program = order.name();
        let cannot =
            |error: io::Error| SpawnError::of_system(format!("cannot run `{program}`: {error}"), &error);
        let Pipes { theirs, stdin, stdout, stderr } = Pipes::new().map_err(cannot)?;
        let (exit_tx, exit) = watch::channel(None);
        let gone = CancellationToken::new();
        let (waiting, started) = oneshot::channel();
        let keeper = Keeper {
            entry: home.nursery.note(&tree),
            tree,
            waiting: Some(waiting),
            exit: exit_tx,
            tasks: home.tasks.clone(),
            _gone: gone.clone().drop_guard(),
        };
        let grip = start(order, theirs, keeper, home).await?;
        let pid = started.await.unwrap_or_else(|_| Err(SpawnError::of_shim()))?;
        let (before, drained) = (home.stderr.last(), CancellationToken::new());
        let stderr_tail = home.stderr.clone();
        let process = Self { pid, program, grip, exit, gone, before, stderr: stderr_tail, drained };
        let (tail, exited, drained) = (process.stderr.clone(), process.exited(), process.drained.clone());
        let mask = home.mask.clone();
        home.tasks.spawn(async move {
            tail.drain(stderr, exited, &mask).await;
            drained.cancel();
        });
        Ok((process, stdin, stdout))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Bytes of memory that it and everything it started hold now, where the system tells. Takes about 0.1 ms for each
    /// process, more for large ones.
    pub(crate) fn memory(&self) -> Option<u64> {
        match &self.grip {
            Grip::Group => os::memory(self.pid, true),
            #[cfg(target_os = "linux")]
            Grip::Shim(_, shim) => os::memory(*shim, false),
        }
    }

    /// Ends when the server's own process is no more.
    pub(crate) fn exited(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut exit = self.exit.clone();
        async move {
            // An error means that the keeper itself is gone, and with it the runtime.
            let _ = exit.wait_for(Option::is_some).await;
        }
    }

    /// As `exited`, a moment later: what was written last can still be read.
    pub(crate) fn silent(&self) -> impl Future<Output = ()> + Send + 'static {
        let exited = self.exited();
        async move {
            exited.await;
            tokio::time::sleep(LINGER).await;
        }
    }

    /// How it ended and what it said last, after waiting a moment for both.
    pub(crate) fn farewell(&self) -> impl Future<Output = LastWords> + Send + 'static {
        let (mut exit, stderr) = (self.exit.clone(), self.stderr.clone());
        let (before, program, drained) = (self.before, self.program.clone(), self.drained.clone());
        async move {
            let ended = timeout(LINGER, exit.wait_for(Option::is_some)).await;
            let exit = ended.ok().and_then(Result::ok).and_then(|exit| *exit);
            // What it said last may still be in the pipe, and somebody else may hold that open.
            let _ = timeout(LINGER, drained.cancelled()).await;
            let stderr = stderr.after(before).into_iter().map(|(_, line)| line).collect::<Vec<_>>();
            LastWords { exit, stderr: stderr[stderr.len().saturating_sub(20)..].to_vec(), program }
        }
    }

    /// Its input is closed already: waits, asks everything it started to end, waits, kills. One that answers nothing
    /// any more is not waited for as long.
    pub(crate) async fn stop(&self, hung: bool) {
        let waits = if hung { [Duration::ZERO, MOMENT] } else { [PATIENCE, PATIENCE] };
        for (wait, signal) in waits.into_iter().zip([Signal::TERM, Signal::KILL]) {
            if timeout(wait, self.gone.cancelled()).await.is_ok() {
                return;
            }
            self.signal(signal);
        }
        self.gone.cancelled().await;
    }

    fn signal(&self, signal: Signal) {
        match &self.grip {
            // A group that has lost its leader has been killed, and its number may be somebody else's.
            Grip::Group if self.exit.borrow().is_some() => {}
            Grip::Group => keep::signal_group(self.pid, signal),
            #[cfg(target_os = "linux")]
            Grip::Shim(control, _) => control.signal(signal),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Starts what the keeper then watches over.
async fn start(
    order: Order,
    files: [OwnedFd; 3],
    keeper: Keeper,
    home: Home<'_>,
) -> Result<Grip, SpawnError> {
    #[cfg(target_os = "linux")]
    if let Some(program) = home.nursery.shim() {
        let bytes = order.to_bytes();
        let (shim, mut control) = match os::Shim::start(program, bytes.len(), &files) {
            Ok(started) => started,
            Err(error) => {
                keeper.close();
                let (name, program) = (order.name(), program.display());
                let why = format!("cannot run `{name}`: its shim, `{program}`, cannot be started: {error}");
                return Err(SpawnError::of_system(why, &error));
            }
        };
        let root = shim.root;
        home.tasks.spawn(home.lives.track_future(shim.keep(order, keeper)));
        drop(files);
        // A shim that does not take its order ends, and its keeper tells.
        let _ = control.send(&bytes).await;
        return Ok(Grip::Shim(control, root));
    }
    let nursery = home.nursery.clone();
    home.tasks.spawn(home.lives.track_future(async move {
        let mut keeper = keeper;
        let started = match order.command(files) {
            Ok(command) => nursery.spawn(command).await,
            Err(error) => Err(error),
        };
        match started {
            Ok(child) => keeper.keep(child).await,
            Err(error) => {
                keeper.failed(SpawnError::of_system(order.explain(&error), &error));
                // It may have been started, and then there was nothing to wait for it with.
                if error.kind() != io::ErrorKind::WouldBlock {
                    keeper.sweep().await;
                }
                keeper.close();
            }
        }
    }));
    Ok(Grip::Group)
}

/// The pipes of a server: its ends of them and ours.
struct Pipes {
    theirs: [OwnedFd; 3],
    stdin: pipe::Sender,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

impl Pipes {
    fn new() -> io::Result<Self> {
        let ((in_read, in_write), (out_read, out_write), (err_read, err_write)) =
            (io::pipe()?, io::pipe()?, io::pipe()?);
        Ok(Self {
            theirs: [in_read.into(), out_write.into(), err_write.into()],
            stdin: pipe::Sender::from_owned_fd(in_write.into())?,
            stdout: pipe::Receiver::from_owned_fd(out_read.into())?,
            stderr: pipe::Receiver::from_owned_fd(err_read.into())?,
        })
    }
}
