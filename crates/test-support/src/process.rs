//! Processes seen from outside: their state, parents, files and signals, and how to install a program.

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::deadline;

/// Runs the calling test again, alone in its own process. Returns `true` in that process, and `false` in the original
/// one after the test has passed.
///
/// For tests that measure or change something that all threads of a process share.
#[macro_export]
macro_rules! in_own_process {
    () => {{
        fn marker() {}
        $crate::process::in_own_process(std::any::type_name_of_val(&marker))
    }};
}

/// Variable that names the test a process was started for.
const OWN_PROCESS: &str = "TEST_IN_OWN_PROCESS";

/// Implements [`in_own_process!`](crate::in_own_process); `marker` is the path of an item in the test.
#[track_caller]
pub fn in_own_process(marker: &str) -> bool {
    let test = marker.trim_end_matches("::marker").trim_end_matches("::{{closure}}");
    let test = test.split_once("::").expect("a path").1;
    if std::env::var(OWN_PROCESS).is_ok_and(|name| name == test) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    assert_one_passed(&deadline::output(command.args(["--exact", test]).env(OWN_PROCESS, test)));
    false
}

/// Returns the name of a test of this module in its test program.
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

/// Writes an executable file. A child process does it: a file that is open for writing cannot be executed, and processes
/// that other tests fork meanwhile would inherit the open file.
pub fn write_program(file: &Path, script: &str) {
    let mut install = install("/dev/stdin".as_ref(), file).stdin(Stdio::piped()).spawn().unwrap();
    install.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}

/// Copies an executable file, in the same way.
pub fn copy_program(program: &Path, to: &Path) {
    assert!(install(program.as_os_str(), to).status().unwrap().success());
}

fn install(from: &OsStr, to: &Path) -> Command {
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(from).arg(to);
    install
}

/// Returns whether a process is alive. Zombies are not.
pub fn is_alive(pid: u32) -> bool {
    if Path::new("/proc/self/stat").exists() {
        return stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'));
    }
    to_pid(pid).is_some_and(|pid| test_kill_process(pid).is_ok())
}

/// Returns the living children of a process.
pub fn children(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| stat(*pid).is_some_and(|(state, its)| its == parent && state != 'Z');
    all_pids().filter(is_child).collect()
}

/// Returns the living children of a gateway that belong to servers: their shims on Linux, where another child forks these.
pub fn server_children(gateway: u32) -> Vec<u32> {
    let is_shim = |pid: &u32| !cfg!(target_os = "linux") || name(*pid) == "toolcrib-shim";
    children(gateway).into_iter().filter(is_shim).collect()
}

/// Returns the zombies among the children of a process and their descendants.
pub fn zombies(parent: u32) -> Vec<u32> {
    let is_zombie = |pid: &u32| stat(*pid).is_some_and(|(state, its)| its == parent && state == 'Z');
    let below = children(parent).into_iter().flat_map(zombies);
    all_pids().filter(is_zombie).chain(below).collect()
}

/// Returns the living processes with the environment variable `MARK` set to this value.
pub fn find_by_mark(mark: &str) -> Vec<u32> {
    let entry = format!("MARK={mark}");
    let is_marked = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|each| each == entry.as_bytes())
    };
    all_pids().filter(|pid| is_alive(*pid) && is_marked(pid)).collect()
}

/// Returns the parent of a process.
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid).map(|(_, parent)| parent)
}

/// Returns the name of a process.
pub fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// Returns the file descriptors of a process.
pub fn open_files(pid: u32) -> Vec<u32> {
    let mut files = numeric_entries(&format!("/proc/{pid}/fd")).collect::<Vec<_>>();
    files.sort_unstable();
    files
}

/// Returns the session of a process and the number of its terminal, 0 for none.
pub fn session_and_terminal(pid: u32) -> (u32, u32) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace();
    let mut fields = fields.skip(3).map(|field| field.parse().unwrap_or(u32::MAX));
    (fields.next().unwrap_or(u32::MAX), fields.next().unwrap_or(u32::MAX))
}

/// Returns the signals that a process blocks and those that it ignores, as bits.
pub fn blocked_and_ignored_signals(pid: u32) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let bits = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(u64::MAX)
    };
    (bits("SigBlk:"), bits("SigIgn:"))
}

fn all_pids() -> impl Iterator<Item = u32> {
    numeric_entries("/proc")
}

fn numeric_entries(folder: &str) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Kills a process with SIGKILL.
pub fn kill(pid: u32) {
    send_signal(pid, Signal::KILL);
}

/// Sends a signal; does nothing if the process has exited.
pub fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = to_pid(pid) {
        let _ = kill_process(pid, signal);
    }
}

fn to_pid(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

/// Returns the state and the parent of a process. Its name, in parentheses before them, may contain any character.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Returns the living processes whose command line contains this text, with their command lines.
pub fn find_by_command_line(text: &str) -> Vec<(u32, String)> {
    let lines = all_pids().filter_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    });
    lines.filter(|(pid, line)| line.contains(text) && is_alive(*pid)).collect()
}
