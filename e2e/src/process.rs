//! Processes seen from outside: do they live, who is their parent, and how to send them a signal.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

/// Whether a process lives. One that is dead and only waits to be reaped does not.
pub fn is_alive(pid: u32) -> bool {
    if Path::new("/proc/self/stat").exists() {
        return stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'));
    }
    raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// The living children of a process.
pub fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(state, its_parent)| its_parent == parent && state != 'Z'))
        .collect()
}

/// Kills a process as `kill -9` does.
pub fn kill(pid: u32) {
    send(pid, Signal::KILL);
}

/// Sends a signal; a process that is gone already does not mind.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn raw(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// State and parent of a process. Its name, in brackets before them, may hold anything.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The living processes with this text on their command line, and what is on it.
pub fn with_words(text: &str) -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let words = pids.filter_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    words.filter(|(pid, words)| words.contains(text) && is_alive(*pid)).collect()
}
