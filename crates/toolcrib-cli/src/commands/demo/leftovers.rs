//! Looks for processes that should be gone.

use std::collections::BTreeSet;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process, test_kill_process_group};

/// Those of these processes, and of our own children, that are still there. A zombie counts: somebody forgot it.
pub(super) fn of(seen: &BTreeSet<u64>) -> Vec<String> {
    let mut left = Vec::new();
    for raw in seen {
        let Some(pid) = i32::try_from(*raw).ok().and_then(Pid::from_raw) else { continue };
        let gone = |tested: Result<(), Errno>| tested == Err(Errno::SRCH);
        if !gone(test_kill_process(pid)) {
            left.push(format!("process {raw}"));
        } else if !gone(test_kill_process_group(pid)) {
            left.push(format!("process group {raw}"));
        }
    }
    left.extend(children().into_iter().map(|pid| format!("child {pid}")));
    left
}

/// Our own children, where the system tells.
fn children() -> Vec<u32> {
    let own = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| parent(*pid) == Some(own)).collect()
}

/// In `/proc/PID/stat`, the parent is the second field after the name, which stands in parentheses and may hold any.
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_while_it_lives() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let id = child.id();
        let seen = BTreeSet::from([u64::from(id)]);
        assert!(of(&seen).contains(&format!("process {id}")));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(!of(&seen).contains(&format!("process {id}")));
    }
}
