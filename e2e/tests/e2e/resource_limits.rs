//! Exhausted system resources: open files, processes, threads and disk space. Failed starts leave nothing behind, report
//! the reason, and succeed once there are enough resources.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::chaos::TestBed;
use e2e::chaos::callers::{CallOutcome, Caller};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::deadline::{self, skip};
use test_support::gateway::{GatewayProcess, Home};
use test_support::{call, fake_server, http, process, wait_until};
use toolcrib::ErrorKind;

const CRIB: &str = env!("CARGO_BIN_EXE_crib");
const FAKE: &str = env!("CARGO_BIN_EXE_fake-server");

/// Limits a resource of a process from outside, as its own user; `None` restores the maximum.
fn limit(pid: u32, user: Option<u32>, name: &str, most: Option<u64>) {
    let resource = if name == "nproc" { Resource::Nproc } else { Resource::Nofile };
    let most = most.or(getrlimit(resource).maximum);
    let most = most.map_or("unlimited".to_owned(), |most| most.to_string());
    let mut command = Command::new("prlimit");
    command.args(["--pid", &pid.to_string(), &format!("--{name}={most}:")]);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    assert!(command.status().unwrap().success());
}

/// Stops the server, waits until no process is left and at most `files` files are open, and returns how many are.
fn stop_server(home: &Home, gateway: &GatewayProcess, files: usize) -> usize {
    let stopped = http::request(gateway.address, "POST", "/api/v1/servers/s0/stop", &[], b"");
    assert_eq!(stopped.status, 200, "{}", stopped.text());
    wait_until("the gateway has no children", || {
        gateway.children().is_empty() && process::zombies(gateway.pid()).is_empty()
    });
    assert_eq!(fs::read_dir(home.file("state/trees")).unwrap().count(), 0, "no tree is recorded");
    let open = || process::open_files(gateway.pid()).len();
    wait_until("no file stays open", || open() <= files);
    open()
}

/// Makes a call under a limit. Returns whether it was answered; otherwise the start must have failed for this reason.
async fn call_under_limit(caller: &mut Caller, token: u64, reason: &str) -> bool {
    let (outcome, answer) = caller.record(0, &token.to_string(), "").await;
    let is_answered = outcome == CallOutcome::Answered;
    assert!(is_answered || outcome == CallOutcome::Failed(ErrorKind::CouldNotStart), "{outcome:?}: {answer}");
    assert!(is_answered || answer.contains(reason), "{answer}");
    is_answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_without_enough_open_files_fails_and_leaks_none() {
    let bed = TestBed::new(CRIB, FAKE, 1);
    let gateway = bed.home.serve();
    let mut caller = Caller::new(gateway.address, Era::Stateless, 0, 1);
    assert!(caller.is_answering(0).await);
    let open_files = stop_server(&bed.home, &gateway, usize::MAX);
    let mut served = Vec::new();
    for more in 0..20 {
        limit(gateway.pid(), None, "nofile", Some(open_files as u64 + more));
        served.push(call_under_limit(&mut caller, more, "Too many open files").await);
        limit(gateway.pid(), None, "nofile", None);
        stop_server(&bed.home, &gateway, open_files);
    }
    let first = served.iter().position(|served| *served).unwrap();
    // Three pipes, and a socket to the shim.
    assert!(first >= 6 && served[first..].iter().all(|served| *served), "{served:?}");
    assert!(caller.is_answering(0).await);
}

/// Returns a user without other processes, so that only those of one test count; `None` unless we are root.
fn unused_user(number: u32) -> Option<u32> {
    rustix::process::geteuid().is_root().then(|| 61_000 + 1000 * number + std::process::id() % 1000)
}

/// Copies the programs into a folder that this user can read. Returns the paths of the gateway and the fake server.
fn copy_programs(user: Option<u32>, folder: &Path) -> (String, String) {
    let Some(user) = user else { return (CRIB.to_owned(), FAKE.to_owned()) };
    let programs = [CRIB, FAKE].map(|program| {
        let copy = folder.join(Path::new(program).file_name().unwrap());
        process::copy_program(program.as_ref(), &copy);
        copy.to_str().unwrap().to_owned()
    });
    chown(user, folder);
    programs.into()
}

fn chown(user: u32, path: &Path) {
    std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        chown(user, &entry.path());
    }
}

fn threads(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_without_enough_processes_fails_for_shim_and_server() {
    let user = unused_user(0);
    let dir = tempfile::tempdir().unwrap();
    let (crib, fake) = copy_programs(user, dir.path());
    let bed = TestBed::new(&crib, &fake, 1);
    let gateway = bed.home.serve_with(|command| {
        if let Some(user) = user {
            chown(user, bed.home.path());
            command.uid(user).gid(user);
        }
    });
    let mut caller = Caller::new(gateway.address, Era::Stateless, 0, 1);
    assert!(caller.is_answering(0).await);
    let open_files = stop_server(&bed.home, &gateway, usize::MAX);
    // The process that forks shims has the limits that the gateway had when it was started.
    let wait_for_exit =
        || wait_until("all processes have exited", || process::children(gateway.pid()).is_empty());
    for more in [0, 1, 2] {
        wait_for_exit();
        let most = if user.is_some() { threads(gateway.pid()) + more } else { 0 };
        limit(gateway.pid(), user, "nproc", Some(most));
        let reason = "Resource temporarily unavailable";
        assert!(!call_under_limit(&mut caller, more, reason).await, "{more} more processes allowed");
        limit(gateway.pid(), user, "nproc", None);
        stop_server(&bed.home, &gateway, open_files);
    }
    wait_for_exit();
    assert!(caller.is_answering(0).await);
}

/// The embedder that the next test runs as a user without other processes.
#[tokio::test]
#[ignore = "run by the next test in its own process"]
async fn embedder_process() {
    let Some(fake) = std::env::var_os("EMBEDDER_FAKE") else { return skip("EMBEDDER_FAKE is not set") };
    let crib = test_support::crib([fake_server(fake.to_str().unwrap(), "fake", &[])]);
    let before = getrlimit(Resource::Nproc);
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), ..before }).unwrap();
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart, "{error}");
    setrlimit(Resource::Nproc, before).unwrap();
    let until = tokio::time::Instant::now() + test_support::WAIT_LIMIT;
    while let Err(error) = call(&crib, "fake", "echo", &json!({})).await {
        assert!(tokio::time::Instant::now() < until, "{error}");
        tokio::time::sleep(error.retry_in().unwrap_or(Duration::from_millis(10))).await;
    }
    crib.shutdown(Duration::ZERO).await;
}

#[test]
fn embedder_that_could_not_start_a_thread_recovers() {
    let user = unused_user(1);
    let dir = tempfile::tempdir().unwrap();
    let (_, fake) = copy_programs(user, dir.path());
    let program = dir.path().join("embedder");
    process::copy_program(&std::env::current_exe().unwrap(), &program);
    let mut embedder = Command::new(program);
    let test = process::test_name(module_path!(), "embedder_process");
    embedder.args(["--ignored", "--exact", &test]).env("EMBEDDER_FAKE", fake).current_dir("/");
    if let Some(user) = user {
        embedder.uid(user).gid(user);
    }
    process::assert_one_passed(&deadline::output(&mut embedder));
}

/// Starts a gateway whose state folder is a 64 KiB tmpfs; `None` if it cannot be mounted.
fn with_small_disk(home: &Home) -> Option<GatewayProcess> {
    let mount = r#"mount -t tmpfs -o size=64k,mode=700 none "$TOOLCRIB_HOME/state" && exec "$@""#;
    let in_namespace = |args: &[&str]| {
        let mut command = Command::new("unshare");
        let user = (!rustix::process::geteuid().is_root()).then_some("--map-root-user");
        command.arg("--mount").args(user).args(["sh", "-c", mount, "sh"]).args(args);
        command.env("TOOLCRIB_HOME", home.path());
        command
    };
    fs::create_dir(home.file("state")).unwrap();
    let possible = in_namespace(&["true"]).status().is_ok_and(|status| status.success());
    possible.then(|| home.serve_command(in_namespace(&[CRIB, "serve", "--listen", "127.0.0.1:0"])))
}

/// Writes until the disk is full.
fn fill(file: &Path) {
    let mut file = fs::File::create(file).unwrap();
    for size in [4096, 1] {
        while std::io::Write::write_all(&mut file, &vec![0; size]).is_ok() {}
    }
}

#[test]
fn full_disk_loses_log_lines_but_no_call() {
    let server = |name| test_support::gateway::server_config(FAKE, name, &[]);
    let limits = "[limits]\nlisting-wait = '20s'\nfirst-listing-wait = '0s'\n";
    let home = Home::new(CRIB, &(server("early") + &server("late") + limits));
    let Some(mut gateway) = with_small_disk(&home) else {
        return skip("no tmpfs can be mounted in its own namespace");
    };
    let state = PathBuf::from(format!("/proc/{}/root{}", gateway.pid(), home.file("state").display()));
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    client.text("early__echo", &json!({"text": "hi"}));
    let listings = || fs::read_dir(state.join("listings")).into_iter().flatten().flatten();
    wait_until("its listing is stored", || listings().any(|file| is_json(&file.path())));
    fill(&state.join("filler"));
    for server in ["early", "late"] {
        client.call(&format!("{server}__crash"), &json!({}));
        client.text(&format!("{server}__log"), &json!({"text": "lost line"}));
        assert_eq!(client.text(&format!("{server}__echo"), &json!({"text": "hi"})), "hi");
    }
    let reports = |text: &str| gateway.stderr_lines().iter().any(|line| line.contains(text));
    wait_until("it is reported", || {
        reports("cannot write the log") && reports("cannot write the process journal")
    });
    wait_until("the listing is reported too", || reports("cannot save its listing"));
    assert!(listings().all(|file| is_json(&file.path())), "{:?}", listings().collect::<Vec<_>>());
    fs::remove_file(state.join("filler")).unwrap();
    client.text("late__log", &json!({"text": "written again"}));
    let log = || fs::read_to_string(state.join("logs/late.log")).unwrap_or_default();
    wait_until("logs continue when there is space", || log().contains("written again"));
    let children = gateway.children();
    assert!(gateway.stop().success());
    assert!(!children.into_iter().any(process::is_alive));
}

/// Returns whether a file holds one JSON value and nothing else.
fn is_json(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok())
}

#[test]
fn removed_state_folder_is_created_again() {
    let home = Home::new(CRIB, &test_support::gateway::server_config(FAKE, "fake", &[]));
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    client.text("fake__echo", &json!({"text": "hi"}));
    wait_until("its start is in the log", || home.file("state/logs/fake.log").exists());
    // Renamed first: the gateway could write into the folder while it is emptied.
    fs::rename(home.file("state"), home.file("lost")).unwrap();
    fs::remove_dir_all(home.file("lost")).unwrap();
    client.call("fake__crash", &json!({}));
    assert_eq!(client.text("fake__echo", &json!({"text": "hi"})), "hi");
    let trees = || fs::read_dir(home.file("state/trees")).into_iter().flatten().count();
    wait_until("its process tree is recorded", || trees() == 1);
    let log = || fs::read_to_string(home.file("state/logs/fake.log")).unwrap_or_default();
    wait_until("its exit is in the log", || log().contains("exit status 101"));
    assert!(gateway.stop().success());
    assert_eq!(trees(), 0);
}
