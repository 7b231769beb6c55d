//! A server behind a shim, and what else only Linux can do.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

pub(super) use super::journal::{Entry, Journal};
pub use super::shim::run_shim;

use super::SpawnError;
use super::control::{self, REPORT, Report};
use super::keep::Keeper;
use super::order::Order;
use super::proc;
use super::shim::ASKED;
use super::sweep::{self as broom, Lost};
use crate::last_words::Exit;

/// How long a shim may take to kill its tree: longer than it tries. One that was stopped itself never does.
const OVERDUE: Duration = Duration::from_secs(6);

/// A shim that was started and has its order; `root` is its process.
pub(super) struct Shim {
    child: Child,
    heard: OwnedReadHalf,
    pub(super) root: u32,
    /// It was told to kill its tree.
    last_word: CancellationToken,
}

/// The order on its way to a shim, and every word after it. Letting go of it ends the tree.
#[derive(Debug)]
pub(super) struct Control {
    words: OwnedWriteHalf,
    last_word: CancellationToken,
}

impl Control {
    /// Passes the signal on to the whole tree.
    pub(super) fn signal(&self, signal: Signal) {
        let kills = signal == Signal::KILL;
        // A shim that is gone has taken its tree with it, and a few bytes always find room.
        let _ = self.words.try_write(&[if kills { control::KILL } else { control::TERM }]);
        if kills {
            self.last_word.cancel();
        }
    }

    pub(super) async fn send(&mut self, order: &[u8]) -> io::Result<()> {
        self.words.write_all(order).await
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.last_word.cancel();
    }
}

impl Shim {
    /// Starts a shim and gives it the files of its server; the order is still to be sent.
    pub(super) fn start(program: &Path, order: usize, files: &[OwnedFd; 3]) -> io::Result<(Self, Control)> {
        let (ours, theirs) = StdStream::pair()?;
        control::send_files(&ours, order, files)?;
        ours.set_nonblocking(true)?;
        let (heard, control) = UnixStream::from_std(ours)?.into_split();
        let mut command = std::process::Command::new(program);
        // In a group of its own it does not hear what a terminal tells ours.
        command.arg0("toolcrib").arg(ASKED).env_clear().process_group(0);
        command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Command::from(command).spawn()?;
        let root = child.id().ok_or(io::ErrorKind::NotFound)?;
        let last_word = CancellationToken::new();
        let control = Control { words: control, last_word: last_word.clone() };
        Ok((Self { child, heard, root, last_word }, control))
    }

    /// Listens to the shim until it is gone, and nothing is left of the tree.
    pub(super) async fn keep(mut self, order: Order, mut keeper: Keeper) {
        let overdue = async {
            self.last_word.cancelled().await;
            sleep(OVERDUE).await;
        };
        tokio::select! {
            () = listen(&mut self.heard, self.root, &order, &mut keeper) => {}
            () = overdue => drop(self.child.start_kill()),
        }
        let left = self.child.wait().await;
        // A shim that was killed took its server with it and left the rest of the tree to us.
        if !left.is_ok_and(|left| left.success()) {
            keeper.sweep().await;
        }
        keeper.ended(Exit::Signal(Signal::KILL.as_raw()));
        keeper.close();
    }
}

/// Passes on what a shim tells, until it has nothing more to tell.
async fn listen(heard: &mut OwnedReadHalf, shim: u32, order: &Order, keeper: &mut Keeper) {
    let mut bytes = [0; REPORT];
    while heard.read_exact(&mut bytes).await.is_ok() {
        match Report::from_bytes(bytes) {
            Some(Report::Started(pid)) => {
                // If nobody waits for it, nobody holds the control any more, and the shim ends it.
                keeper.started(pid.cast_unsigned(), Some(shim));
            }
            Some(Report::Failed(number)) => {
                let error = io::Error::from_raw_os_error(number);
                keeper.failed(SpawnError::of_system(order.explain(&error), &error));
            }
            Some(Report::Exited(status)) => keeper.ended(Exit::Status(status)),
            Some(Report::Killed(signal)) => keeper.ended(Exit::Signal(signal)),
            Some(Report::Overgrown(count)) => keeper.ended(Exit::Overgrown(count.cast_unsigned())),
            None => return,
        }
    }
}

/// Ends whatever is in the tree of this name.
pub(super) fn sweep(tree: String) {
    broom::sweep(&Lost { trees: [tree].into(), ..Lost::default() });
}

/// Bytes of memory that the descendants of a process hold, and itself if it counts.
pub(super) fn memory(root: u32, with_root: bool) -> Option<u64> {
    let below = proc::descendants(root).into_iter().filter_map(proc::memory).sum::<u64>();
    if with_root { Some(proc::memory(root)? + below) } else { Some(below) }
}
