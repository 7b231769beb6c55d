//! The shim: a tiny parent for one server, which sees to it that nothing of the server's tree outlives the server or us.
//!
//! It has no runtime and no threads, touches none of the server's bytes, and ignores every signal that can be ignored.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};

use super::control::{self, Report};
use super::proc;

/// The first argument of a program that is to be a shim.
pub(super) const ASKED: &str = "__toolcrib-shim";

/// How long a tree has between being asked to end and being killed.
const MOMENT: Duration = Duration::from_millis(500);
/// How long to go on killing what does not die: it waits for a disk, or belongs to another user.
const STUBBORN: Duration = Duration::from_secs(4);
/// How often to look while a tree ends; only deaths of our own children wake us.
const WATCH: Duration = Duration::from_millis(20);
/// How often to look whether a tree has grown.
const TICK: Duration = Duration::from_secs(1);
/// Ticks between two counts of a tree when the system as a whole has not grown.
const COUNT: u32 = 10;
/// Growth of the whole system within a tick that makes a tree worth counting.
const GROWTH: u16 = 64;
/// Processes that a tree may have.
const PROCESSES: usize = 512;

/// Is a shim, if that is what this process was started for, and tells how that ended. Call it first thing in `main` of
/// a program that is named to [`CribBuilder::shim`](crate::CribBuilder::shim).
pub fn run_shim() -> Option<ExitCode> {
    (std::env::args_os().nth(1)? == ASKED).then(|| match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn serve() -> io::Result<()> {
    let deaths = super::raw::deaths_only()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let _ = std::fs::write("/proc/self/comm", "toolcrib-shim");
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (order, files) = control::receive(&control)?;
    let started = order.command(files).and_then(|mut command| command.spawn());
    drop(order);
    match started {
        Ok(server) => {
            let server = i32::try_from(server.id()).map_err(io::Error::other)?;
            let mut shim = Shim::new(control, deaths, server);
            shim.report(Report::Started(server));
            shim.watch();
            Ok(())
        }
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error());
            (&control).write_all(&Report::Failed(number).to_bytes())
        }
    }
}

struct Shim {
    /// `None` when nobody is at the other end any more.
    control: Option<UnixStream>,
    deaths: OwnedFd,
    server: i32,
    ending: Option<Ending>,
    /// When to look whether the tree has grown.
    next_count: Duration,
    /// Ticks since the tree was counted.
    uncounted: u32,
    /// Processes and threads of the whole system at the last tick.
    crowd: u16,
}

/// When a tree that is ending is killed, and when to give up on what is left.
struct Ending {
    kill: Duration,
    give_up: Duration,
}

impl Shim {
    fn new(control: UnixStream, deaths: OwnedFd, server: i32) -> Self {
        let crowd = rustix::system::sysinfo().procs;
        Self {
            control: Some(control),
            deaths,
            server,
            ending: None,
            next_count: now() + TICK,
            uncounted: 0,
            crowd,
        }
    }

    /// Until nothing is left of the tree.
    fn watch(&mut self) {
        loop {
            let (heard, died) = self.wait();
            if heard {
                self.obey();
            }
            if died {
                // The file is empty again when it has been read; who died is found out by reaping.
                while rustix::io::read(&self.deaths, &mut [0; 1024]).is_ok_and(|count| count > 0) {}
            }
            if !self.reap() {
                return;
            }
            match &self.ending {
                None if now() >= self.next_count => self.count(),
                None => {}
                Some(ending) if now() >= ending.give_up => return,
                Some(ending) if now() >= ending.kill => Self::signal(Signal::KILL),
                Some(_) => {}
            }
        }
    }

    /// Waits for a word, a death or the time to look again.
    fn wait(&self) -> (bool, bool) {
        let most = if self.ending.is_some() { WATCH } else { TICK };
        let mut files = vec![PollFd::new(&self.deaths, PollFlags::IN)];
        files.extend(self.control.iter().map(|control| PollFd::new(control, PollFlags::IN)));
        // If it fails, which it may when we were frozen meanwhile, there is nothing to read.
        let _ = poll(&mut files, Timespec::try_from(most).ok().as_ref());
        let ready = |file: Option<&PollFd<'_>>| file.is_some_and(|file| !file.revents().is_empty());
        (ready(files.get(1)), ready(files.first()))
    }

    fn obey(&mut self) {
        let Some(control) = &self.control else { return };
        let mut words = [0; 16];
        match rustix::io::read(control, &mut words) {
            Ok(count @ 1..) => {
                for word in &words[..count] {
                    match *word {
                        control::TERM => Self::signal(Signal::TERM),
                        control::KILL => self.end(Duration::ZERO),
                        _ => {}
                    }
                }
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            // Whoever started us let go or is no more.
            _ => {
                self.control = None;
                self.end(MOMENT);
            }
        }
    }

    /// Ends the tree: asks at once, kills when `patience` is over.
    fn end(&mut self, patience: Duration) {
        if !patience.is_zero() && self.ending.is_none() {
            Self::signal(Signal::TERM);
        }
        let kill = now() + patience;
        let kill = self.ending.as_ref().map_or(kill, |ending| ending.kill.min(kill));
        self.ending = Some(Ending { kill, give_up: kill + STUBBORN });
    }

    /// Reaps who died; `false` when nobody is left. Orphans of the tree are our children, so nobody is missed.
    fn reap(&mut self) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.server => {
                    let ended = status.exit_status().map(Report::Exited);
                    let killed = status.terminating_signal().map(Report::Killed);
                    self.report(ended.or(killed).unwrap_or(Report::Exited(-1)));
                    self.end(MOMENT);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Signals every descendant, each group as one: none of it can start another process meanwhile. Their groups are all
    /// ours, but for that of a child which is not yet a session of its own.
    fn signal(signal: Signal) {
        let own = std::process::id();
        let tree: Vec<_> = proc::descendants(own).into_iter().filter_map(proc::look).collect();
        let shared = proc::look(own).map_or(0, |own| own.group);
        let raw = |number: u32| i32::try_from(number).ok().and_then(Pid::from_raw);
        let groups: BTreeSet<u32> =
            tree.iter().map(|seen| seen.group).filter(|group| *group != shared).collect();
        for group in groups.into_iter().filter_map(raw) {
            let _ = kill_process_group(group, signal);
        }
        for pid in tree.iter().filter(|seen| seen.group == shared).filter_map(|seen| raw(seen.pid)) {
            let _ = kill_process(pid, signal);
        }
    }

    /// A tree that starts processes without end is ended before the system is full. Counting costs more than asking
    /// whether the system has grown at all.
    fn count(&mut self) {
        self.next_count = now() + TICK;
        let crowd = rustix::system::sysinfo().procs;
        let grown = crowd.saturating_sub(std::mem::replace(&mut self.crowd, crowd));
        self.uncounted += 1;
        if grown < GROWTH && self.uncounted < COUNT {
            return;
        }
        self.uncounted = 0;
        let processes = proc::descendants(std::process::id()).len();
        if processes > PROCESSES {
            self.report(Report::Overgrown(i32::try_from(processes).unwrap_or(i32::MAX)));
            self.end(Duration::ZERO);
        }
    }

    fn report(&self, report: Report) {
        if let Some(mut control) = self.control.as_ref() {
            // If nobody hears it, that is about to be noticed.
            let _ = control.write_all(&report.to_bytes());
        }
    }
}

/// On a clock that only goes forward.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::try_from(now).unwrap_or_default()
}
