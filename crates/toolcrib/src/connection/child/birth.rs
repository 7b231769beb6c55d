//! What a child is on its first day: its own session without a terminal, bound to the life of its parent, first in line
//! when memory runs out, and without files that are not its own.

use std::io;

#[cfg(target_os = "linux")]
use rustix::process::{Pid, Resource, Rlimit, Signal};

/// How much sooner than its neighbours a child is chosen when memory runs out; at 1000 nothing is chosen before it.
#[cfg(target_os = "linux")]
const SOONER: i32 = 300;

/// Worked out before the child exists, because it can only make system calls.
pub(super) struct Birth {
    #[cfg(target_os = "linux")]
    parent: Pid,
    /// What to write to the file that says who goes first.
    #[cfg(target_os = "linux")]
    sooner: String,
    /// Processes and threads that this user may have before the child can start no more: fewer than its parent's.
    #[cfg(target_os = "linux")]
    room: Option<Rlimit>,
}

#[cfg(target_os = "linux")]
impl Birth {
    pub(super) fn new() -> Self {
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let sooner = own.trim().parse::<i32>().unwrap_or(0).saturating_add(SOONER).clamp(0, 1000).to_string();
        let limit = rustix::process::getrlimit(Resource::Nproc);
        let room = limit.current.map(|most| Rlimit { current: Some(most - most / 8), ..limit });
        Self { parent: rustix::process::getpid(), sooner, room }
    }

    /// Runs in the child.
    pub(super) fn happen(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // A parent that died before the line above has sent no signal.
        if rustix::process::getppid() != Some(self.parent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        // None of these is worth failing for.
        if let Some(room) = &self.room {
            let _ = rustix::process::setrlimit(Resource::Nproc, *room);
        }
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, rustix::fs::Mode::empty()) {
            let _ = rustix::io::write(file, self.sooner.as_bytes());
        }
        super::raw::close_others_on_exec();
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
impl Birth {
    pub(super) fn new() -> Self {
        Self {}
    }

    /// Runs in the child.
    pub(super) fn happen(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        Ok(())
    }
}
