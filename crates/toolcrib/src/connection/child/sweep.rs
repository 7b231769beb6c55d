//! Ends processes that have nobody left to end them: found by the name of their tree, killed only if they are the same.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

use super::order::TREE;
use super::proc::{self, Seen};

/// How often to look again; each look waits for those that were killed in the one before.
const LOOKS: u32 = 20;
/// How long one look waits for them.
const WAIT: Duration = Duration::from_millis(100);

/// A process for good: numbers are given out again, a number and a beginning are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) pid: u32,
    pub(super) began: u64,
}

impl Known {
    pub(super) fn now(pid: u32) -> Option<Self> {
        proc::look(pid).map(|seen| Self { pid, began: seen.began })
    }

    /// Whether it still lives.
    pub(super) fn lives(self) -> bool {
        proc::look(self.pid).is_some_and(|seen| !seen.zombie && seen.began == self.began)
    }
}

/// What to look for.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// The names of trees.
    pub(super) trees: HashSet<String>,
    /// Processes from which they grew.
    pub(super) roots: Vec<Known>,
    /// Those that see to their own end, but not to that of all they started.
    pub(super) spared: Vec<Known>,
}

/// Kills everything that is in one of the trees and whatever that started. Gives how many were found.
pub(super) fn sweep(lost: &Lost) -> usize {
    let mut found = HashMap::new();
    for _ in 0..LOOKS {
        let left = members(&proc::all(), lost);
        if left.is_empty() {
            break;
        }
        let ends: Vec<_> = left.iter().filter_map(kill).collect();
        found.extend(left.into_iter().map(|seen| (seen.pid, seen.began)));
        let mut ends: Vec<_> = ends.iter().map(|end| PollFd::new(end, PollFlags::IN)).collect();
        // One that is gone makes the others worth another look.
        let _ = poll(&mut ends, Timespec::try_from(WAIT).ok().as_ref());
    }
    found.len()
}

/// Who belongs to a tree: those that were given its name, its roots, and the descendants of either.
fn members(all: &[Seen], lost: &Lost) -> Vec<Seen> {
    let is = |seen: &Seen, known: &Known| seen.pid == known.pid && seen.began == known.began;
    let own = std::process::id();
    let is_root = |seen: &Seen| {
        lost.roots.iter().chain(&lost.spared).any(|known| is(seen, known))
            || proc::given(seen.pid, TREE).is_some_and(|tree| lost.trees.contains(&tree))
    };
    let mut found: Vec<Seen> = all.iter().filter(|seen| is_root(seen)).copied().collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let below = |seen: &&Seen| seen.parent == parent.pid && seen.began >= parent.began;
        let new = all.iter().filter(below).filter(|seen| !found.contains(seen)).copied();
        let new: Vec<Seen> = new.collect();
        found.extend(new);
        next += 1;
    }
    let spared = |seen: &Seen| seen.pid == own || lost.spared.iter().any(|known| is(seen, known));
    found.retain(|seen| !seen.zombie && !spared(seen));
    found
}

/// Kills this very process; the file can be read when it is gone.
fn kill(seen: &Seen) -> Option<std::os::fd::OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(seen.pid).ok()?)?;
    let handle = pidfd_open(pid, PidfdFlags::empty());
    // From here on the handle means one process for good: is it the one that was seen?
    if proc::look(seen.pid)?.began != seen.began {
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

    fn sleeper(tree: Option<&str>) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600; true"]).stdin(Stdio::null());
        command.env_clear().envs(tree.map(|tree| (TREE, tree)));
        let child = command.spawn().unwrap();
        // Its environment is its own once it runs, and it is whole once it has its child.
        while proc::descendants(child.id()).is_empty() {
            std::thread::yield_now();
        }
        child
    }

    fn sweep(tree: &str, roots: &[Known], spared: Option<Known>) -> usize {
        let trees = HashSet::from([tree.to_owned()]);
        super::sweep(&Lost { trees, roots: roots.to_vec(), spared: spared.into_iter().collect() })
    }

    fn ended(mut child: Child) -> bool {
        use std::os::unix::process::ExitStatusExt as _;
        child.wait().unwrap().signal() == Some(9)
    }

    #[test]
    fn a_tree_is_found_by_its_name_or_by_its_root_and_ends_whole() {
        let named = sleeper(Some("sweep-named"));
        let below = Known::now(proc::descendants(named.id())[0]).unwrap();
        assert!(below.lives());
        assert_eq!(sweep("sweep-named", &[], None), 2);
        assert!(ended(named) && !below.lives());
        let rooted = sleeper(None);
        assert_eq!(sweep("sweep-nobody", &[Known::now(rooted.id()).unwrap()], None), 2);
        assert!(ended(rooted));
    }

    #[test]
    fn a_stranger_who_got_the_number_of_a_dead_process_is_left_alone() {
        let mut stranger = sleeper(Some("sweep-stranger"));
        let now = Known::now(stranger.id()).unwrap();
        let before = Known { began: now.began - 1, ..now };
        assert!(!before.lives());
        assert_eq!(sweep("sweep-strange", &[before], None), 0);
        assert!(now.lives());
        assert_eq!(sweep("sweep-stranger", &[], None), 2);
        stranger.wait().unwrap();
    }

    #[test]
    fn the_one_who_is_spared_loses_what_is_below() {
        let mut spared = sleeper(None);
        let known = Known::now(spared.id()).unwrap();
        assert_eq!(sweep("sweep-spared", &[], Some(known)), 1);
        // With its sleep gone, the shell comes to its own end.
        assert!(spared.wait().unwrap().success());
    }
}
