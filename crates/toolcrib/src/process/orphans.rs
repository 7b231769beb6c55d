//! Finds and kills processes whose supervisor is gone. A process is killed only if its start time matches as well as
//! its pid.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::proc::{self, ProcessEntry};
use super::spawn_request::TREE_VARIABLE;

/// Maximum number of search rounds. Each waits for the processes it killed.
const MAX_ROUNDS: u32 = 20;
/// Longest wait for killed processes in one round.
const ROUND_WAIT: Duration = Duration::from_millis(100);

/// A pid and a start time, which together identify a process even after its pid is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessIdentity {
    pub(super) pid: u32,
    pub(super) start_time: u64,
}

impl ProcessIdentity {
    /// Returns the identity of the process that has this pid now.
    pub(super) fn from_pid(pid: u32) -> Option<Self> {
        proc::read(pid).map(|process| Self { pid, start_time: process.start_time })
    }

    pub(super) fn is_alive(self) -> bool {
        proc::read(self.pid).is_some_and(|process| !process.is_zombie && self.matches(&process))
    }

    fn matches(self, process: &ProcessEntry) -> bool {
        process.pid == self.pid && process.start_time == self.start_time
    }
}

/// A process of a tree that was seen outside of the server's session. Its session outlives it, so that the processes it
/// started are found too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SeenProcess {
    pub(super) identity: ProcessIdentity,
    pub(super) session: u32,
}

impl SeenProcess {
    /// Returns the process that has this pid now.
    pub(super) fn from_pid(pid: u32) -> Option<Self> {
        let process = proc::read(pid)?;
        let identity = ProcessIdentity { pid, start_time: process.start_time };
        Some(Self { identity, session: process.session })
    }

    /// Returns the root process of a server, which creates a session.
    pub(super) fn from_server(server: ProcessIdentity) -> Self {
        Self { identity: server, session: server.pid }
    }

    /// Returns whether `process` is this one or in its session. A session whose creator is younger than this process is
    /// another one with the same number.
    fn matches(self, process: &ProcessEntry, all: &[ProcessEntry]) -> bool {
        let creator = all.iter().find(|other| other.pid == self.session);
        let is_reused = creator.is_some_and(|creator| creator.start_time > self.identity.start_time);
        let is_own = || all.iter().any(|own| own.pid == std::process::id() && own.session == self.session);
        self.identity.matches(process) || process.session == self.session && !is_reused && !is_own()
    }
}

/// The process trees to kill.
#[derive(Debug, Default)]
pub(super) struct OrphanQuery {
    /// Tree ids, as in the environment variable [`TREE_VARIABLE`].
    pub(super) trees: HashSet<String>,
    /// Root processes of the trees.
    pub(super) roots: Vec<ProcessIdentity>,
    /// Shims, which exit by themselves; only their descendants are killed.
    pub(super) shims: Vec<ProcessIdentity>,
    /// Processes whose sessions belong to the trees.
    pub(super) seen: Vec<SeenProcess>,
}

impl OrphanQuery {
    /// Adds the trees of another query.
    pub(super) fn extend(&mut self, other: &Self) {
        self.trees.extend(other.trees.iter().cloned());
        self.roots.extend(&other.roots);
        self.shims.extend(&other.shims);
        self.seen.extend(&other.seen);
    }

    /// Returns whether a process of the trees is left.
    pub(super) fn has_survivors(&self) -> bool {
        !find_members(&proc::read_all(), self).is_empty()
    }
}

/// Kills every process of the trees and returns how many were found.
pub(super) fn kill_orphans(query: &OrphanQuery) -> usize {
    let mut found = HashMap::new();
    for _ in 0..MAX_ROUNDS {
        let members = find_members(&proc::read_all(), query);
        if members.is_empty() {
            break;
        }
        let handles: Vec<OwnedFd> = members.iter().filter_map(kill).collect();
        found.extend(members.into_iter().map(|process| (process.pid, process.start_time)));
        let mut ended: Vec<_> = handles.iter().map(|handle| PollFd::new(handle, PollFlags::IN)).collect();
        // Continues as soon as one of them has ended.
        let _ = poll(&mut ended, Timespec::try_from(ROUND_WAIT).ok().as_ref());
    }
    found.len()
}

/// Returns the processes that carry a tree id, the roots, and the descendants of either.
fn find_members(all: &[ProcessEntry], query: &OrphanQuery) -> Vec<ProcessEntry> {
    let is_root = |process: &ProcessEntry| {
        query.roots.iter().chain(&query.shims).any(|root| root.matches(process))
            || query.seen.iter().any(|seen| seen.matches(process, all))
            || proc::environment_variable(process.pid, TREE_VARIABLE)
                .is_some_and(|tree| query.trees.contains(&tree))
    };
    let mut found: Vec<ProcessEntry> = all.iter().filter(|process| is_root(process)).copied().collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let is_child =
            |process: &&ProcessEntry| process.parent == parent.pid && process.start_time >= parent.start_time;
        let new: Vec<ProcessEntry> =
            all.iter().filter(is_child).filter(|process| !found.contains(process)).copied().collect();
        found.extend(new);
        next += 1;
    }
    let own_pid = std::process::id();
    let is_exempt = |process: &ProcessEntry| {
        process.pid == own_pid || query.shims.iter().any(|shim| shim.matches(process))
    };
    found.retain(|process| !process.is_zombie && !is_exempt(process));
    found
}

/// Kills the process and returns a descriptor that becomes readable when it has ended.
fn kill(process: &ProcessEntry) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
    let handle = pidfd_open(pid, PidfdFlags::empty());
    // The handle refers to one process from here on. Check that it is the one that was found.
    if proc::read(process.pid)?.start_time != process.start_time {
        return None;
    }
    match handle {
        Ok(handle) => pidfd_send_signal(&handle, Signal::KILL).is_ok().then_some(handle),
        Err(Errno::NOSYS) => kill_process(pid, Signal::KILL).ok().and(None),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a shell with one child, in the given tree.
    fn spawn_shell(tree: Option<&str>) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600; true"]).stdin(Stdio::null());
        command.env_clear().envs(tree.map(|tree| (TREE_VARIABLE, tree)));
        let child = command.spawn().unwrap();
        // Once it has a child, it has executed the shell and its environment is readable.
        while proc::descendants(child.id()).is_empty() {
            std::thread::yield_now();
        }
        child
    }

    fn kill_tree(tree: &str, roots: &[ProcessIdentity], shim: Option<ProcessIdentity>) -> usize {
        let trees = HashSet::from([tree.to_owned()]);
        let shims = shim.into_iter().collect();
        kill_orphans(&OrphanQuery { trees, roots: roots.to_vec(), shims, seen: Vec::new() })
    }

    fn was_killed(mut child: Child) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        child.wait().unwrap().signal() == Some(9)
    }

    #[test]
    fn session_of_a_seen_process_is_killed_after_its_end() {
        let mut command = Command::new("setsid");
        command.args(["sh", "-c", "sleep 601 & sleep 602"]).stdin(Stdio::null()).env_clear();
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        while proc::descendants(pid).len() < 2 {
            std::thread::yield_now();
        }
        let seen = SeenProcess::from_pid(pid).unwrap();
        assert_eq!(seen.session, pid);
        let members = || proc::read_all().into_iter().filter(|process| process.session == pid).count();
        assert_eq!(members(), 3);
        child.kill().unwrap();
        child.wait().unwrap();
        let later = ProcessIdentity { pid: 0, start_time: 0 };
        let other = SeenProcess { identity: later, session: proc::read(std::process::id()).unwrap().session };
        let query = OrphanQuery { seen: vec![seen, other], ..OrphanQuery::default() };
        assert!(query.has_survivors());
        assert_eq!(kill_orphans(&query), 2, "the own session is never killed");
        assert!(!query.has_survivors());
    }

    #[test]
    fn tree_is_killed_by_id_or_by_root() {
        let named = spawn_shell(Some("sweep-named"));
        let child = ProcessIdentity::from_pid(proc::descendants(named.id())[0]).unwrap();
        assert!(child.is_alive());
        assert_eq!(kill_tree("sweep-named", &[], None), 2);
        assert!(was_killed(named) && !child.is_alive());
        let unnamed = spawn_shell(None);
        assert_eq!(kill_tree("sweep-none", &[ProcessIdentity::from_pid(unnamed.id()).unwrap()], None), 2);
        assert!(was_killed(unnamed));
    }

    #[test]
    fn process_with_reused_pid_is_not_killed() {
        let mut other = spawn_shell(Some("sweep-other"));
        let current = ProcessIdentity::from_pid(other.id()).unwrap();
        let previous = ProcessIdentity { start_time: current.start_time - 1, ..current };
        assert!(!previous.is_alive());
        assert_eq!(kill_tree("sweep-reused", &[previous], None), 0);
        assert!(current.is_alive());
        assert_eq!(kill_tree("sweep-other", &[], None), 2);
        other.wait().unwrap();
    }

    #[test]
    fn shim_is_spared_and_its_descendants_are_killed() {
        let mut shim = spawn_shell(None);
        let identity = ProcessIdentity::from_pid(shim.id()).unwrap();
        assert_eq!(kill_tree("sweep-shim", &[], Some(identity)), 1);
        // Without its child, the shell exits by itself.
        assert!(shim.wait().unwrap().success());
    }
}
