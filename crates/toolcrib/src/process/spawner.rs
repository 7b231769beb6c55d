//! Starts child processes without a shim, keeps the fork server that starts the others, and opens journal entries.

use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
#[cfg(target_os = "linux")]
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Mutex, mpsc};

use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
#[cfg(target_os = "linux")]
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::util::locks::IgnorePoison as _;

#[cfg(target_os = "linux")]
use super::fork_server::{self, ForkServer};
use super::os::{Journal, JournalEntry};

type SpawnJob = Box<dyn FnOnce() + Send>;

/// Process settings and the spawn thread, shared by all servers of a crib.
#[derive(Debug, Default)]
pub(crate) struct Spawner {
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "shims exist only on Linux"))]
    shim: Option<PathBuf>,
    /// Started for the first shim or before it, and again after it has exited.
    #[cfg(target_os = "linux")]
    fork_server: Mutex<Option<ForkServer>>,
    /// Cancelled to end fork servers.
    #[cfg(target_os = "linux")]
    stop: CancellationToken,
    journal: Option<Journal>,
    /// The parent death signal of a child without a shim is sent when the thread that started it ends. One thread
    /// therefore starts all children and lives as long as the spawner.
    thread: Mutex<Option<mpsc::Sender<SpawnJob>>>,
}

impl Spawner {
    /// Creates a spawner. If there is a journal folder, orphans of a killed gateway are killed first.
    pub(crate) fn new(shim: Option<PathBuf>, journal: Option<PathBuf>) -> Self {
        let journal = journal.map(Journal::new);
        if let Some(journal) = &journal {
            journal.kill_orphans();
        }
        Self { shim, journal, ..Self::default() }
    }

    /// Returns the program to start as shim.
    #[cfg(target_os = "linux")]
    pub(super) fn shim(&self) -> Option<&Path> {
        self.shim.as_deref()
    }

    /// Starts the fork server before the first shim is requested. Without it, the request starts it.
    pub(crate) fn start_fork_server(&self, tasks: &TaskTracker) {
        #[cfg(target_os = "linux")]
        if let Some(program) = &self.shim {
            let mut running = self.fork_server.lock().ignore_poison();
            if running.is_none() {
                *running = ForkServer::start(program, tasks, self.stop.clone()).ok();
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = tasks;
    }

    /// Starts a shim that has this control socket.
    #[cfg(target_os = "linux")]
    pub(super) fn fork_shim(&self, program: &Path, control: &OwnedFd, tasks: &TaskTracker) -> io::Result<()> {
        let mut running = self.fork_server.lock().ignore_poison();
        if let Some(fork_server) = &*running {
            match fork_server.fork_shim(control) {
                Err(error) if fork_server::takes_no_more(&error) => {}
                result => return result,
            }
        }
        let started = ForkServer::start(program, tasks, self.stop.clone())?;
        match running.insert(started).fork_shim(control) {
            // Nothing will be reported through the control socket, which says that there is no shim.
            Err(error) if fork_server::takes_no_more(&error) => Ok(()),
            result => result,
        }
    }

    /// Ends the fork server. No shim starts after that.
    pub(crate) fn close(&self) {
        #[cfg(target_os = "linux")]
        self.stop.cancel();
    }

    pub(super) fn open_journal_entry(&self, tree: &str) -> Option<JournalEntry> {
        self.journal.as_ref().map(|journal| journal.create_entry(tree))
    }

    /// Starts a child without a shim. If the future is dropped, the child is killed.
    pub(super) async fn spawn(&self, command: std::process::Command) -> io::Result<Child> {
        let runtime = Handle::current();
        let (result_tx, result) = oneshot::channel();
        let job: SpawnJob = Box::new(move || {
            let _runtime = runtime.enter();
            let _ = result_tx.send(Command::from(command).kill_on_drop(true).spawn());
        });
        // A thread that has ended drops the job, and the error below is returned.
        let _ = self.spawn_thread()?.send(job);
        result.await.unwrap_or_else(|_| Err(io::Error::other("the spawn thread has ended")))
    }

    /// Returns the queue of the spawn thread and starts the thread if needed.
    fn spawn_thread(&self) -> io::Result<mpsc::Sender<SpawnJob>> {
        let mut thread = self.thread.lock().ignore_poison();
        if let Some(jobs) = &*thread {
            return Ok(jobs.clone());
        }
        let (jobs, queue) = mpsc::channel::<SpawnJob>();
        let run = move || queue.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("toolcrib-spawn".to_owned()).spawn(run)?;
        Ok(thread.insert(jobs).clone())
    }
}
