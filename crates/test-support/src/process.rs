//! Processes seen from outside: do they live, who is their parent, how to send them a signal, and how to install a program.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::deadline;

/// Runs the test that it stands in again, alone in a process of its own. `true` in that process; `false` where the test
/// has passed there and is done.
///
/// For tests that measure or change something that all threads of a process share.
#[macro_export]
macro_rules! in_own_process {
    () => {{
        fn here() {}
        $crate::process::in_own_process(std::any::type_name_of_val(&here))
    }};
}

/// Variable that names the test a process was started for.
const OWN_PROCESS: &str = "TEST_IN_OWN_PROCESS";

/// The function of [`in_own_process!`](crate::in_own_process); `here` is the path of an item in the test.
#[track_caller]
pub fn in_own_process(here: &str) -> bool {
    let test = here.trim_end_matches("::here").trim_end_matches("::{{closure}}");
    let test = test.split_once("::").expect("a path").1;
    if std::env::var(OWN_PROCESS).is_ok_and(|name| name == test) {
        return true;
    }
    let mut own = Command::new(std::env::current_exe().unwrap());
    assert_one_passed(&deadline::output(own.args(["--exact", test]).env(OWN_PROCESS, test)));
    false
}

/// Returns the name under which a test program knows a test of this module.
pub fn test_name(module: &str, test: &str) -> String {
    let module = module.split_once("::").expect("a module of a test program").1;
    format!("{module}::{test}")
}

/// Fails unless a test program ran one test, successfully.
#[track_caller]
pub fn assert_one_passed(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stdout.contains("ok. 1 passed"), "{stdout}\n{stderr}");
}

/// A child process that is killed when this is dropped.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes a program. Another process does it: a file that is open for writing cannot be run, and whatever this process
/// forks meanwhile for another test would have it open.
pub fn write_program(file: &Path, script: &str) {
    let mut install = install("/dev/stdin".as_ref(), file).stdin(Stdio::piped()).spawn().unwrap();
    install.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}

/// Copies a program, in the same way.
pub fn copy_program(program: &Path, to: &Path) {
    assert!(install(program.as_os_str(), to).status().unwrap().success());
}

fn install(from: &OsStr, to: &Path) -> Command {
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(from).arg(to);
    install
}

/// Whether a process lives. One that is dead and only waits to be reaped does not.
pub fn is_alive(pid: u32) -> bool {
    if Path::new("/proc/self/stat").exists() {
        return stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'));
    }
    raw(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// The living children of a process.
pub fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| stat(*pid).is_some_and(|(state, its)| its == parent && state != 'Z');
    all().filter(is_child).collect()
}

/// The children of a process, and theirs, that are dead and were not reaped.
pub fn zombies(parent: u32) -> Vec<u32> {
    let is_zombie = |pid: &u32| stat(*pid).is_some_and(|(state, its)| its == parent && state == 'Z');
    let below = children(parent).into_iter().flat_map(zombies);
    all().filter(is_zombie).chain(below).collect()
}

/// The living processes that were given the variable `MARK` with this value, or inherited it.
pub fn marked(mark: &str) -> Vec<u32> {
    let wanted = format!("MARK={mark}");
    let is_marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
    };
    all().filter(|pid| is_alive(*pid) && is_marked(pid)).collect()
}

/// The parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid).map(|(_, parent)| parent)
}

/// What a process is called.
pub fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// The numbers of the files that a process has open.
pub fn files(pid: u32) -> Vec<u32> {
    let mut files = numbers(&format!("/proc/{pid}/fd")).collect::<Vec<_>>();
    files.sort_unstable();
    files
}

/// The session of a process and the number of its terminal, 0 for none.
pub fn session(pid: u32) -> (u32, u32) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let mut fields = fields.skip(3).map(|field| field.parse().unwrap_or(u32::MAX));
    (fields.next().unwrap_or(u32::MAX), fields.next().unwrap_or(u32::MAX))
}

/// The signals that a process has blocked and those that it ignores, as bits.
pub fn signals(pid: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let bits = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(u64::MAX)
    };
    (bits("SigBlk:"), bits("SigIgn:"))
}

fn all() -> impl Iterator<Item = u32> {
    numbers("/proc")
}

fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
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
