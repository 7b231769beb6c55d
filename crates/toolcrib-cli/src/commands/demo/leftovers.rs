//! Finds processes that should have ended.

use std::collections::BTreeSet;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process, test_kill_process_group};

/// Returns descriptions of those processes that still exist, and of this process's children. Zombies count as well.
pub(super) fn find(pids: &BTreeSet<u64>) -> Vec<String> {
    let mut remaining = Vec::new();
    for raw_pid in pids {
        let Some(pid) = i32::try_from(*raw_pid).ok().and_then(Pid::from_raw) else { continue };
        let is_gone = |tested: Result<(), Errno>| tested == Err(Errno::SRCH);
        if !is_gone(test_kill_process(pid)) {
            remaining.push(format!("process {raw_pid}"));
        } else if !is_gone(test_kill_process_group(pid)) {
            remaining.push(format!("process group {raw_pid}"));
        }
    }
    remaining.extend(child_pids().into_iter().map(|pid| format!("child {pid}")));
    remaining
}

/// Returns the pids of this process's children, on systems with `/proc`.
fn child_pids() -> Vec<u32> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent_pid(*pid) == Some(own)).collect()
}

/// Reads the parent from `/proc/PID/stat`: the second field after the name. The name is in parentheses and may contain them.
fn parent_pid(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_reports_child_until_it_ends() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let id = child.id();
        let pids = BTreeSet::from([u64::from(id)]);
        assert!(find(&pids).contains(&format!("process {id}")));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!find(&pids).contains(&format!("process {id}")));
    }
}
