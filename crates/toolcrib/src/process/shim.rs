//! The shim: a small parent process for one server, which ensures that the server's process tree ends with the server
//! or with the gateway. The fork server forks it.
//!
//! It has no async runtime and no threads, never reads the server's stdio, and ignores every signal that can be
//! ignored.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};

use super::control::{self, ShimReport};
use super::fork_server;
use super::proc;
use super::raw::CodePages;

/// The first argument of a process that is started as a fork server.
pub(super) const SHIM_ARG: &str = "__toolcrib-shim";

/// Time between SIGTERM and SIGKILL when the tree is shut down.
const TERM_GRACE: Duration = Duration::from_millis(500);
/// Time spent on processes that survive SIGKILL, because they wait for a disk or belong to another user.
const KILL_TIMEOUT: Duration = Duration::from_secs(4);
/// Poll interval during a shutdown, because only the exit of direct children wakes the shim.
const SHUTDOWN_POLL: Duration = Duration::from_millis(20);
/// Interval between checks for growth of the tree.
const GROWTH_CHECK: Duration = Duration::from_secs(1);
/// Growth checks after which the tree is read even if the number of processes in the system is the same.
const CHECKS_PER_COUNT: u32 = 10;
/// Maximum number of processes in a tree.
const MAX_PROCESSES: usize = 512;

/// Whether [`run_shim`] was called in this process, so that the program can run as a shim.
static CAN_BE_SHIM: AtomicBool = AtomicBool::new(false);

/// Runs as a shim, or as the process that forks shims, if this process was started as one, and returns the exit code to end with.
/// Call it first in `main` of the program passed to [`CribBuilder::shim`](crate::CribBuilder::shim).
#[must_use = "a process that was started as a shim must end with this exit code"]
pub fn run_shim() -> Option<ExitCode> {
    if std::env::args_os().nth(1).is_none_or(|first| first != SHIM_ARG) {
        CAN_BE_SHIM.store(true, Ordering::Relaxed);
        return None;
    }
    Some(match fork_server::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

/// Returns a path that runs this program even after its file has been replaced: a descriptor that stays open for the life
/// of the process. `/proc/self/exe` itself is not usable, because under a debugger or profiler it names that program.
pub(crate) fn own_program() -> Option<PathBuf> {
    static PROGRAM: OnceLock<Option<File>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| File::open("/proc/self/exe").ok());
    program.as_ref().map(|program| format!("/proc/self/fd/{}", program.as_raw_fd()).into())
}

/// Returns whether `program` is this one, and would run as another copy of itself instead of as a shim.
pub(crate) fn is_unprepared_shim(program: &Path) -> bool {
    let file_id = |path: &Path| path.metadata().ok().map(|file| (file.dev(), file.ino()));
    let own = file_id(Path::new("/proc/self/exe"));
    !CAN_BE_SHIM.load(Ordering::Relaxed) && own.is_some() && file_id(program) == own
}

/// Starts the server that the request on stdin describes, and watches it until its tree has ended.
pub(super) fn start_and_watch() -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let own_pid = rustix::process::getpid();
    // First of all, because the gateway waits for this process.
    (&control).write_all(&ShimReport::Forked(own_pid.as_raw_nonzero().get()).to_bytes())?;
    rustix::process::setpgid(None, None)?;
    let sigchld = super::raw::watch_sigchld_only()?;
    rustix::process::set_child_subreaper(Some(own_pid))?;
    let _ = std::fs::write("/proc/self/comm", "toolcrib-shim");
    let (request, files) = control::receive_request(&control)?;
    // Before the server runs, because it may kill this process immediately.
    (&control).write_all(&ShimReport::Starting.to_bytes())?;
    let started = request.spawn(&files);
    drop((request, files));
    match started {
        Ok(server) => {
            let mut shim = Shim::new(control, sigchld, server);
            shim.report(ShimReport::Started(server));
            shim.watch();
            shim.report(ShimReport::Finished);
            Ok(())
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            (&control).write_all(&ShimReport::Failed(errno).to_bytes())
        }
    }
}

struct Shim {
    /// `None` once the gateway has closed its end.
    control: Option<UnixStream>,
    /// Readable when a child has exited.
    sigchld: OwnedFd,
    server: i32,
    shutdown: Option<TreeShutdown>,
    /// Time of the next growth check.
    next_check: Duration,
    /// Growth checks since the tree was last read.
    checks_since_count: u32,
    /// Processes and threads of the whole system at the last check.
    system_processes: u16,
    /// Processes in other sessions that were reported.
    reported: BTreeSet<u32>,
}

/// Times at which a tree that is shutting down is killed, and at which the shim exits without the remaining processes.
struct TreeShutdown {
    kill_at: Duration,
    give_up_at: Duration,
}

/// The descriptors that a wait found readable.
struct Readiness {
    control: bool,
    sigchld: bool,
}

impl Shim {
    fn new(control: UnixStream, sigchld: OwnedFd, server: i32) -> Self {
        Self {
            control: Some(control),
            sigchld,
            server,
            shutdown: None,
            next_check: now() + GROWTH_CHECK,
            // The first check reads the tree.
            checks_since_count: CHECKS_PER_COUNT,
            system_processes: rustix::system::sysinfo().procs,
            reported: BTreeSet::new(),
        }
    }

    /// Runs until no process of the tree is left.
    fn watch(&mut self) {
        loop {
            let ready = self.wait();
            if ready.control {
                self.read_commands();
            }
            if ready.sigchld {
                // Only empties the descriptor; reaping finds out which child has exited.
                while rustix::io::read(&self.sigchld, &mut [0; 1024]).is_ok_and(|count| count > 0) {}
            }
            if !self.reap() {
                return;
            }
            match &self.shutdown {
                None if now() >= self.next_check => self.check_growth(),
                None => {}
                Some(shutdown) if now() >= shutdown.give_up_at => return,
                Some(shutdown) if now() >= shutdown.kill_at => Self::signal_tree(Signal::KILL),
                Some(_) => {}
            }
        }
    }

    /// Waits for a command, the exit of a child or the next check.
    fn wait(&self) -> Readiness {
        let timeout = if self.shutdown.is_some() { SHUTDOWN_POLL } else { GROWTH_CHECK };
        let timeout = Timespec::try_from(timeout).ok();
        let mut sigchld = PollFd::new(&self.sigchld, PollFlags::IN);
        // If a wait fails, for example because the shim was suspended, nothing is readable.
        let Some(control) = &self.control else {
            let _ = poll(std::slice::from_mut(&mut sigchld), timeout.as_ref());
            return Readiness { control: false, sigchld: !sigchld.revents().is_empty() };
        };
        let mut files = [sigchld, PollFd::new(control, PollFlags::IN)];
        let _ = poll(&mut files, timeout.as_ref());
        let [sigchld, control] = files.map(|file| !file.revents().is_empty());
        Readiness { control, sigchld }
    }

    fn read_commands(&mut self) {
        let Some(control) = &self.control else { return };
        let mut commands = [0; 16];
        match rustix::io::read(control, &mut commands) {
            Ok(count @ 1..) => {
                for command in &commands[..count] {
                    match *command {
                        control::TERM => Self::signal_tree(Signal::TERM),
                        control::KILL => self.shut_down(Duration::ZERO),
                        _ => {}
                    }
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The gateway has closed its end or has died.
            _ => {
                self.control = None;
                self.shut_down(TERM_GRACE);
            }
        }
    }

    /// Shuts the tree down: sends SIGTERM now, unless `grace` is zero, and SIGKILL after `grace`.
    fn shut_down(&mut self, grace: Duration) {
        if !grace.is_zero() && self.shutdown.is_none() {
            Self::signal_tree(Signal::TERM);
        }
        let kill_at = now() + grace;
        let kill_at = self.shutdown.as_ref().map_or(kill_at, |shutdown| shutdown.kill_at.min(kill_at));
        self.shutdown = Some(TreeShutdown { kill_at, give_up_at: kill_at + KILL_TIMEOUT });
    }

    /// Reaps children that have exited and returns whether any are left. The shim is a subreaper, so orphans of the
    /// tree are its children too.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.server => {
                    let exited = status.exit_status().map(ShimReport::Exited);
                    let killed = status.terminating_signal().map(ShimReport::Killed);
                    self.report(exited.or(killed).unwrap_or(ShimReport::Exited(-1)));
                    self.shut_down(TERM_GRACE);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Signals every descendant, group by group, so that no process of a group can fork in between. A child that has
    /// not yet called `setsid` shares the shim's own group and is signalled alone.
    fn signal_tree(signal: Signal) {
        let own_pid = std::process::id();
        let tree: Vec<_> = proc::descendants(own_pid).into_iter().filter_map(proc::read).collect();
        let own_group = proc::read(own_pid).map_or(0, |own| own.group);
        let to_pid = |number: u32| i32::try_from(number).ok().and_then(Pid::from_raw);
        let groups: BTreeSet<u32> =
            tree.iter().map(|process| process.group).filter(|group| *group != own_group).collect();
        for group in groups.into_iter().filter_map(to_pid) {
            let _ = kill_process_group(group, signal);
        }
        let in_own_group = tree.iter().filter(|process| process.group == own_group);
        for pid in in_own_group.filter_map(|process| to_pid(process.pid)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills a tree that has too many processes, reports its processes in other sessions, and makes pages of code not resident.
    /// Reading the tree is expensive, so after the first time it is skipped while the number of processes in the whole system
    /// stays the same.
    fn check_growth(&mut self) {
        self.next_check = now() + GROWTH_CHECK;
        let total = rustix::system::sysinfo().procs;
        let before = std::mem::replace(&mut self.system_processes, total);
        self.checks_since_count += 1;
        if total == before && self.checks_since_count < CHECKS_PER_COUNT {
            return;
        }
        self.checks_since_count = 0;
        let tree = proc::descendants(std::process::id());
        if tree.len() > MAX_PROCESSES {
            self.report(ShimReport::TooManyProcesses(i32::try_from(tree.len()).unwrap_or(i32::MAX)));
            self.shut_down(Duration::ZERO);
            return;
        }
        self.report_other_sessions(&tree);
        drop(tree);
        CodePages::find().drop_resident();
    }

    /// Reports processes that could not be found without the shim: they have left the server's session, and may have
    /// cleared their environment.
    fn report_other_sessions(&mut self, tree: &[u32]) {
        self.reported.retain(|pid| tree.contains(pid));
        // A child that has not called `setsid` yet is in the shim's own session, which is not part of the tree.
        let own_session = proc::read(std::process::id()).map_or(0, |own| own.session);
        let known_sessions = [self.server.cast_unsigned(), own_session];
        for pid in tree {
            let is_new = !self.reported.contains(pid)
                && proc::read(*pid).is_some_and(|process| !known_sessions.contains(&process.session));
            if is_new && let Ok(number) = i32::try_from(*pid) {
                self.report(ShimReport::InOtherSession(number));
                self.reported.insert(*pid);
            }
        }
    }

    fn report(&self, report: ShimReport) {
        if let Some(mut control) = self.control.as_ref() {
            // A closed socket is noticed by the next read.
            let _ = control.write_all(&report.to_bytes());
        }
    }
}

/// Returns the time of the monotonic clock.
pub(super) fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}
