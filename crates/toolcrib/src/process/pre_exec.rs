//! Steps that a child process runs between fork and exec: new session, parent death signal, limits and file
//! descriptors.

use std::io;

#[cfg(target_os = "linux")]
use rustix::process::{Pid, Resource, Rlimit, Signal};

/// Added to the parent's OOM score, so that the kernel kills a server before its gateway. The maximum is 1000.
#[cfg(target_os = "linux")]
const OOM_SCORE_INCREASE: i32 = 300;

/// Values computed before the fork, because the child may only make system calls.
pub(super) struct PreExec {
    #[cfg(target_os = "linux")]
    parent: Pid,
    /// Written to `oom_score_adj`.
    #[cfg(target_os = "linux")]
    oom_score: String,
    /// Limit on the user's processes and threads, below the parent's own limit.
    #[cfg(target_os = "linux")]
    process_limit: Option<Rlimit>,
}

#[cfg(target_os = "linux")]
impl PreExec {
    pub(super) fn new() -> Self {
        let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let own: i32 = own.trim().parse().unwrap_or(0);
        let oom_score = own.saturating_add(OOM_SCORE_INCREASE).clamp(0, 1000).to_string();
        let limit = rustix::process::getrlimit(Resource::Nproc);
        let process_limit =
            limit.current.map(|current| Rlimit { current: Some(current - current / 8), ..limit });
        Self { parent: rustix::process::getpid(), oom_score, process_limit }
    }

    /// Runs in the child.
    pub(super) fn run(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent died before the call above, no signal was sent.
        if rustix::process::getppid() != Some(self.parent) {
            return Err(rustix::io::Errno::SRCH.into());
        }
        // The remaining steps are best effort.
        if let Some(limit) = &self.process_limit {
            let _ = rustix::process::setrlimit(Resource::Nproc, *limit);
        }
        let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
        if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, rustix::fs::Mode::empty()) {
            let _ = rustix::io::write(file, self.oom_score.as_bytes());
        }
        super::raw::close_others_on_exec();
        Ok(())
    }
}

#[cfg(not(target_os = "linux"))]
impl PreExec {
    pub(super) fn new() -> Self {
        Self {}
    }

    /// Runs in the child.
    pub(super) fn run(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        Ok(())
    }
}
