//! Reads process information from `/proc`: parents, start times, environments, memory and CPU time.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

/// A snapshot of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessEntry {
    pub(super) pid: u32,
    pub(super) parent: u32,
    /// Its process group.
    pub(super) group: u32,
    /// Its session: the pid of the process that created it.
    pub(super) session: u32,
    /// True if it has ended and waits to be reaped.
    pub(super) is_zombie: bool,
    /// In clock ticks since boot. Together with the pid it identifies the process.
    pub(super) start_time: u64,
}

/// Reads a file of up to 1 KiB with two reads. `fs::read` needs six, because the size of files in `/proc` is said to be zero.
fn read_file(path: &str) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(1024);
    File::open(path)?.take(u64::MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Reads one process; `None` if it does not exist.
pub(super) fn read(pid: u32) -> Option<ProcessEntry> {
    let text = read_file(&format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may itself contain parentheses.
    let rest = &text[memchr::memrchr(b')', &text)? + 1..];
    let fields: Vec<&str> = std::str::from_utf8(rest).ok()?.split_ascii_whitespace().take(20).collect();
    Some(ProcessEntry {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
        start_time: fields.get(19)?.parse().ok()?,
    })
}

/// Reads all processes.
pub(super) fn read_all() -> Vec<ProcessEntry> {
    numeric_entries("/proc").into_iter().filter_map(read).collect()
}

/// Returns a variable of the environment that the process was started with.
pub(super) fn environment_variable(pid: u32, variable: &str) -> Option<String> {
    let environment = read_file(&format!("/proc/{pid}/environ")).ok()?;
    let value = |entry: &[u8]| Some(entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?.to_vec());
    String::from_utf8(environment.split(|byte| *byte == 0).find_map(value)?).ok()
}

/// Returns the descendants of `root`, without `root`. Processes that start or end meanwhile may be missed.
pub(super) fn descendants(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let Some(children) = children(*pid) else { return descendants_in(&read_all(), root) };
        // A pid that is reused during the walk must not create a cycle.
        let new: Vec<u32> = children.into_iter().filter(|child| !found.contains(child)).collect();
        found.extend(new);
        next += 1;
    }
    found.split_off(1)
}

/// Returns the children of all threads of a process; `None` if the kernel does not list them.
fn children(pid: u32) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for thread in numeric_entries(&format!("/proc/{pid}/task")) {
        match read_file(&format!("/proc/{pid}/task/{thread}/children")) {
            Ok(text) => {
                let pids = str::from_utf8(&text).unwrap_or_default().split_ascii_whitespace();
                found.extend(pids.filter_map(|pid| pid.parse::<u32>().ok()));
            }
            Err(_) if fs::exists(format!("/proc/{pid}/task/{thread}")).unwrap_or(false) => return None,
            Err(_) => {}
        }
    }
    Some(found)
}

/// Returns the descendants of `root` according to a list of all processes.
fn descendants_in(all: &[ProcessEntry], root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let new = all.iter().filter(|process| process.parent == parent && !found.contains(&process.pid));
        let new: Vec<u32> = new.map(|process| process.pid).collect();
        found.extend(new);
        next += 1;
    }
    found.split_off(1)
}

/// Returns the bytes of memory a process uses. Shared pages count proportionally, so values of several processes can be
/// added up.
pub(super) fn memory_usage(pid: u32) -> Option<u64> {
    let rollup = read_file(&format!("/proc/{pid}/smaps_rollup"));
    let proportional = rollup.ok().and_then(|text| parse_kilobytes(&text, b"Pss:"));
    proportional.or_else(|| parse_kilobytes(&read_file(&format!("/proc/{pid}/status")).ok()?, b"VmRSS:"))
}

/// Returns the CPU time of a process and of its children that have ended and were waited for.
pub(super) fn cpu_time(pid: u32) -> Option<Duration> {
    let text = read_file(&format!("/proc/{pid}/stat")).ok()?;
    let rest = &text[memchr::memrchr(b')', &text)? + 1..];
    // User and system time, and those of the children.
    let times = std::str::from_utf8(rest).ok()?.split_ascii_whitespace().skip(11).take(4);
    let ticks: u64 = times.map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
    let millis = ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_millis(millis))
}

/// Finds the line `NAME  123 kB` and returns its value in bytes.
fn parse_kilobytes(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    let number = line.split(u8::is_ascii_whitespace).find(|field| !field.is_empty())?;
    Some(std::str::from_utf8(number).ok()?.parse::<u64>().ok()? << 10)
}

/// Returns the entries of a folder whose names are numbers.
fn numeric_entries(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let parse = |name: &OsStr| std::str::from_utf8(name.as_bytes()).ok()?.parse().ok();
    entries.filter_map(|entry| parse(&entry.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts a shell within a shell. Both exit when the child's stdin is closed.
    fn spawn_nested_shells() -> Child {
        let script = "sh -c 'cat; true'; true";
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until the process has `count` descendants.
    fn wait_for_descendants(root: u32, count: usize) -> Vec<u32> {
        loop {
            let found = descendants(root);
            if found.len() == count {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn own_process_is_read_and_listed() {
        let own = read(std::process::id()).unwrap();
        assert_eq!(read(own.pid), Some(own));
        assert!(!own.is_zombie && own.start_time > 0 && own.parent > 0 && own.group > 0);
        assert!(read_all().contains(&own));
        assert_eq!(read(u32::MAX), None);
    }

    #[test]
    fn both_descendant_searches_agree() {
        let mut child = spawn_nested_shells();
        let mut by_children = wait_for_descendants(child.id(), 2);
        let mut by_parents = descendants_in(&read_all(), child.id());
        by_children.sort_unstable();
        by_parents.sort_unstable();
        assert_eq!(by_children, by_parents);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(descendants(child.id()).is_empty());
    }

    #[test]
    fn memory_usage_is_none_for_missing_process() {
        let own = memory_usage(std::process::id()).unwrap();
        assert!((100 << 10..64 << 30).contains(&own), "{own}");
        assert_eq!(memory_usage(u32::MAX), None);
        assert_eq!(parse_kilobytes(b"Rss:  5 kB\nPss:   7 kB\n", b"Pss:"), Some(7 << 10));
    }

    #[test]
    fn cpu_time_includes_children_that_were_waited_for() {
        let before = cpu_time(std::process::id()).unwrap();
        let spin = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", spin]).status().unwrap().success());
        assert!(cpu_time(std::process::id()).unwrap() > before);
        assert_eq!(cpu_time(u32::MAX), None);
    }

    #[test]
    fn environment_variable_needs_full_name() {
        let mut child = Command::new("cat").env("TREE", "a=b").stdin(Stdio::piped()).spawn().unwrap();
        // The environment is the child's own only after exec.
        while environment_variable(child.id(), "TREE").is_none() {
            std::thread::yield_now();
        }
        assert_eq!(environment_variable(child.id(), "TREE").as_deref(), Some("a=b"));
        assert_eq!(environment_variable(child.id(), "TRE"), None);
        assert_eq!(environment_variable(child.id(), "REE"), None);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
