//! What the system tells of processes: who their parent is, when they began, what they hold. Linux has it in `/proc`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;

/// One process as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) pid: u32,
    pub(super) parent: u32,
    /// Its process group.
    pub(super) group: u32,
    /// It is dead and only waits to be reaped.
    pub(super) zombie: bool,
    /// In ticks since the system came up; with the pid it names a process for good.
    pub(super) began: u64,
}

/// The process of this number; `None` if there is none.
pub(super) fn look(pid: u32) -> Option<Seen> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // Its name stands in brackets and may hold anything, brackets too.
    let rest = &text[memchr::memrchr(b')', &text)? + 1..];
    let fields: Vec<&str> = std::str::from_utf8(rest).ok()?.split_ascii_whitespace().take(20).collect();
    Some(Seen {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        zombie: matches!(*fields.first()?, "Z" | "X"),
        began: fields.get(19)?.parse().ok()?,
    })
}

/// Every process.
pub(super) fn all() -> Vec<Seen> {
    numbers("/proc").into_iter().filter_map(look).collect()
}

/// The value of a variable in the environment that the process was given.
pub(super) fn given(pid: u32, variable: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let value = |entry: &[u8]| Some(entry.strip_prefix(variable.as_bytes())?.strip_prefix(b"=")?.to_vec());
    String::from_utf8(environment.split(|byte| *byte == 0).find_map(value)?).ok()
}

/// What `root` started and what that started, without `root`. Processes that come or go meanwhile may be missed.
pub(super) fn descendants(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        let Some(children) = children(*pid) else { return among(&all(), root) };
        // A number that was given away again while we looked must not lead in circles.
        let new: Vec<u32> = children.into_iter().filter(|child| !found.contains(child)).collect();
        found.extend(new);
        next += 1;
    }
    found.split_off(1)
}

/// The children of all threads of a process; `None` where the system does not list them.
fn children(pid: u32) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for thread in numbers(&format!("/proc/{pid}/task")) {
        match fs::read_to_string(format!("/proc/{pid}/task/{thread}/children")) {
            Ok(text) => {
                found.extend(text.split_ascii_whitespace().filter_map(|word| word.parse::<u32>().ok()));
            }
            Err(_) if fs::exists(format!("/proc/{pid}/task/{thread}")).unwrap_or(false) => return None,
            Err(_) => {}
        }
    }
    Some(found)
}

/// The descendants of `root`, from a look at all processes.
fn among(all: &[Seen], root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let new = all.iter().filter(|seen| seen.parent == parent && !found.contains(&seen.pid));
        let new: Vec<u32> = new.map(|seen| seen.pid).collect();
        found.extend(new);
        next += 1;
    }
    found.split_off(1)
}

/// Bytes of memory that a process holds. What it shares with others counts in parts, so that a tree of processes can
/// be added up.
pub(super) fn memory(pid: u32) -> Option<u64> {
    let rollup = fs::read(format!("/proc/{pid}/smaps_rollup"));
    let share = rollup.ok().and_then(|text| field(&text, b"Pss:"));
    share.or_else(|| field(&fs::read(format!("/proc/{pid}/status")).ok()?, b"VmRSS:"))
}

/// The number of kilobytes behind a name, in bytes.
fn field(text: &[u8], name: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(name))?;
    let number = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty())?;
    Some(std::str::from_utf8(number).ok()?.parse::<u64>().ok()? << 10)
}

/// The entries of a folder that are numbers.
fn numbers(folder: &str) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let number = |name: &OsStr| std::str::from_utf8(name.as_bytes()).ok()?.parse().ok();
    entries.filter_map(|entry| number(&entry.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A shell that started a shell that waits for the end of its input; both end when the child's input is closed.
    fn family() -> Child {
        let script = "sh -c 'cat; true'; true";
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until the process has this many descendants.
    fn grown(root: u32, count: usize) -> Vec<u32> {
        loop {
            let found = descendants(root);
            if found.len() == count {
                return found;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_is_known_by_its_number_and_its_beginning() {
        let own = look(std::process::id()).unwrap();
        assert_eq!(look(own.pid), Some(own));
        assert!(!own.zombie && own.began > 0 && own.parent > 0 && own.group > 0);
        assert!(all().contains(&own));
        assert_eq!(look(u32::MAX), None);
    }

    #[test]
    fn both_ways_of_finding_descendants_find_the_same() {
        let mut child = family();
        let mut found = grown(child.id(), 2);
        let mut also = among(&all(), child.id());
        found.sort_unstable();
        also.sort_unstable();
        assert_eq!(found, also);
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(descendants(child.id()).is_empty());
    }

    #[test]
    fn memory_is_counted_for_the_living_only() {
        let own = memory(std::process::id()).unwrap();
        assert!((100 << 10..64 << 30).contains(&own), "{own}");
        assert_eq!(memory(u32::MAX), None);
        assert_eq!(field(b"Rss:  5 kB\nPss:   7 kB\n", b"Pss:"), Some(7 << 10));
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let mut child = Command::new("cat").env("TREE", "a=b").stdin(Stdio::piped()).spawn().unwrap();
        // The environment is the new program's once it runs.
        while given(child.id(), "TREE").is_none() {
            std::thread::yield_now();
        }
        assert_eq!(given(child.id(), "TREE").as_deref(), Some("a=b"));
        assert_eq!((given(child.id(), "TRE"), given(child.id(), "REE")), (None, None));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
