//! Servers on Windows: the processes of a server end with it, and with the program that started it. `scripts/windows` runs
//! these tests with Wine; on other systems there are none.
#![cfg(windows)]
#![expect(clippy::unwrap_used, reason = "a failing test should panic at the cause")]

use std::fs::OpenOptions;
use std::os::windows::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use toolcrib::{Call, CommandSpec, Crib, ServerSpec};

/// The folder in which a test of another process starts its server.
const FOLDER_VARIABLE: &str = "TOOLCRIB_TEST_FOLDER";

/// Returns a crib with a server that is a shell. It runs until the test ends it, and a process of it keeps a file open.
fn crib_with_shell(folder: &Path, command: &str) -> Crib {
    let spec = CommandSpec::new("cmd").args(["/c", command]).cwd(folder);
    Crib::builder().server(ServerSpec::command("shell".parse().unwrap(), spec)).build().unwrap()
}

fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < until, "not within a minute: {condition}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Returns whether another process has the file open, which therefore cannot be opened without sharing it.
fn is_open_elsewhere(file: &Path) -> bool {
    OpenOptions::new().write(true).share_mode(0).open(file).is_err()
}

fn open_file(folder: &Path) -> PathBuf {
    folder.join("open.txt")
}

#[tokio::test]
async fn descendants_end_with_their_server() {
    let folder = tempfile::tempdir().unwrap();
    let file = open_file(folder.path());
    // The shell starts a program in the background and exits.
    let crib = crib_with_shell(folder.path(), "start /b ping -n 1000 127.0.0.1 > open.txt");
    let error = crib.call(Call::tool_on("shell".parse().unwrap(), "any")).await.unwrap_err();
    assert!(file.exists(), "the program did not run: {error}");
    wait_until("the program has ended", || !is_open_elsewhere(&file));
    crib.shutdown(Duration::from_secs(5)).await;
}

/// Run by the next test in a process of its own, which is killed.
#[tokio::test]
#[ignore = "runs until it is killed"]
async fn program_that_is_killed() {
    let folder = PathBuf::from(std::env::var(FOLDER_VARIABLE).unwrap());
    let crib = crib_with_shell(&folder, "ping -n 1000 127.0.0.1 > open.txt");
    let _ = crib.call(Call::tool_on("shell".parse().unwrap(), "any")).await;
}

#[test]
fn servers_end_with_a_program_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = open_file(folder.path());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program_that_is_killed", "--ignored"]).env(FOLDER_VARIABLE, folder.path());
    let mut program = command.spawn().unwrap();
    wait_until("the server runs", || file.exists());
    assert!(is_open_elsewhere(&file));
    program.kill().unwrap();
    program.wait().unwrap();
    wait_until("the server has ended", || !is_open_elsewhere(&file));
}

#[tokio::test]
async fn missing_program_is_reported() {
    let spec = CommandSpec::new("no-such-program");
    let crib = Crib::builder().server(ServerSpec::command("missing".parse().unwrap(), spec)).build().unwrap();
    let error = crib.call(Call::tool_on("missing".parse().unwrap(), "any")).await.unwrap_err();
    assert!(error.to_string().contains("`no-such-program` was not found on the `PATH`"), "{error}");
}
