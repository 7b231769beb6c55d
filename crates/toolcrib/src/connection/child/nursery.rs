//! How children are started here: behind a shim or not, from which thread, and where it is written down.

use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, mpsc};

use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::os::{Entry, Journal};

type Job = Box<dyn FnOnce() + Send>;

/// What all children of a crib have in common.
#[derive(Debug, Default)]
pub(crate) struct Nursery {
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "there are no shims here"))]
    shim: Option<PathBuf>,
    journal: Option<Journal>,
    /// A child without a shim is told to die when the thread that started it ends, so one thread starts them all, and
    /// lives as long as any of them.
    thread: Mutex<Option<mpsc::Sender<Job>>>,
}

impl Nursery {
    /// With a folder for the journal, what a crib that was killed left behind is ended first.
    pub(crate) fn new(shim: Option<PathBuf>, journal: Option<PathBuf>) -> Self {
        let journal = journal.map(Journal::new);
        if let Some(journal) = &journal {
            journal.clear();
        }
        Self { shim, journal, thread: Mutex::default() }
    }

    /// The program to put between us and a server.
    #[cfg(target_os = "linux")]
    pub(super) fn shim(&self) -> Option<&std::path::Path> {
        self.shim.as_deref()
    }

    pub(super) fn note(&self, tree: &str) -> Option<Entry> {
        self.journal.as_ref().map(|journal| journal.open(tree))
    }

    /// Starts a child of our own. If nobody waits for it any more, it is killed.
    pub(super) async fn spawn(&self, command: std::process::Command) -> io::Result<Child> {
        let (runtime, (answer, answered)) = (Handle::current(), oneshot::channel());
        let job: Job = Box::new(move || {
            let _runtime = runtime.enter();
            let _ = answer.send(Command::from(command).kill_on_drop(true).spawn());
        });
        // A thread that is gone drops the job, and whoever waits is told below.
        let _ = self.thread()?.send(job);
        answered.await.unwrap_or_else(|_| Err(io::Error::other("there is no thread to start it from")))
    }

    /// The thread that starts children; one that could not be had is asked for again by whoever needs it next.
    fn thread(&self) -> io::Result<mpsc::Sender<Job>> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = &*thread {
            return Ok(jobs.clone());
        }
        let (jobs, todo) = mpsc::channel::<Job>();
        let work = move || todo.into_iter().for_each(|job| job());
        std::thread::Builder::new().name("toolcrib-spawn".to_owned()).spawn(work)?;
        Ok(thread.insert(jobs).clone())
    }
}
