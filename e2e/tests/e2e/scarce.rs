//! What the system refuses: open files, processes, threads and room on the disk. Nothing is left of what failed, whoever
//! asked is told, and all is well again when there is enough.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]
#![cfg(target_os = "linux")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use e2e::chaos::Ground;
use e2e::chaos::callers::{Caller, End};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::deadline::{self, skip};
use test_support::gateway::{Gateway, Home};
use test_support::{call, fake_server, http, process, wait_until};
use toolcrib::ErrorKind;

const CRIB: &str = env!("CARGO_BIN_EXE_crib");
const FAKE: &str = env!("CARGO_BIN_EXE_fake-server");

/// Limits a process from outside, as its own user; `None` is as much as it may ever have.
fn limit(pid: u32, user: Option<u32>, what: &str, most: Option<u64>) {
    let resource = if what == "nproc" { Resource::Nproc } else { Resource::Nofile };
    let most = most.or(getrlimit(resource).maximum);
    let most = most.map_or("unlimited".to_owned(), |most| most.to_string());
    let mut command = Command::new("prlimit");
    command.args(["--pid", &pid.to_string(), &format!("--{what}={most}:")]);
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    assert!(command.status().unwrap().success());
}

/// Stops the server and waits until nothing is left of it and no more than so many files are open; how many are.
fn stopped(home: &Home, gateway: &Gateway, files: usize) -> usize {
    let stopped = http::request(gateway.address, "POST", "/api/v1/servers/s0/stop", &[], b"");
    assert_eq!(stopped.status, 200, "{}", stopped.text());
    wait_until("nothing is below the gateway", || {
        gateway.children().is_empty() && process::zombies(gateway.pid()).is_empty()
    });
    assert_eq!(fs::read_dir(home.file("state/trees")).unwrap().count(), 0, "no tree is written down");
    let open = || process::files(gateway.pid()).len();
    wait_until("no file is left open", || open() <= files);
    open()
}

/// A call under a limit: served, or told that it could not be started and why.
async fn under(caller: &mut Caller, token: u64, why: &str) -> bool {
    let (end, said) = caller.stamp(0, &token.to_string(), "").await;
    assert!(matches!(end, End::Answered | End::Failed(ErrorKind::CouldNotStart)), "{end:?}: {said}");
    assert!(end == End::Answered || said.contains(why), "{said}");
    end == End::Answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_for_which_any_one_file_is_missing_is_refused_and_leaves_none_open() {
    let ground = Ground::new(CRIB, FAKE, 1);
    let gateway = ground.home.serve();
    let mut caller = Caller::new(gateway.address, Era::Stateless, 0, 1);
    assert!(caller.is_well(0).await);
    let rest = stopped(&ground.home, &gateway, usize::MAX);
    let mut served = Vec::new();
    for more in 0..20 {
        limit(gateway.pid(), None, "nofile", Some(rest as u64 + more));
        served.push(under(&mut caller, more, "Too many open files").await);
        limit(gateway.pid(), None, "nofile", None);
        stopped(&ground.home, &gateway, rest);
    }
    let first = served.iter().position(|served| *served).unwrap();
    // Three pipes, and a socket to the shim.
    assert!(first >= 6 && served[first..].iter().all(|served| *served), "{served:?}");
    assert!(caller.is_well(0).await);
}

/// A user of nobody's, so that only the processes of one test count; nobody at all if we may not become it.
fn stranger(number: u32) -> Option<u32> {
    rustix::process::geteuid().is_root().then(|| 61_000 + 1000 * number + std::process::id() % 1000)
}

/// A folder that this user owns, with the programs in it: where they were built it may have no business.
fn moved(user: Option<u32>, folder: &Path) -> (String, String) {
    let Some(user) = user else { return (CRIB.to_owned(), FAKE.to_owned()) };
    let programs = [CRIB, FAKE].map(|program| {
        let to = folder.join(Path::new(program).file_name().unwrap());
        process::copy_program(program.as_ref(), &to);
        to.to_str().unwrap().to_owned()
    });
    owned(user, folder);
    programs.into()
}

fn owned(user: u32, path: &Path) {
    std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        owned(user, &entry.path());
    }
}

fn threads(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_for_which_there_is_no_process_is_refused_for_the_shim_and_for_the_server() {
    let (user, dir) = (stranger(0), tempfile::tempdir().unwrap());
    let (crib, fake) = moved(user, dir.path());
    let ground = Ground::new(&crib, &fake, 1);
    let gateway = ground.home.serve_as(|command| {
        if let Some(user) = user {
            owned(user, ground.home.path());
            command.uid(user).gid(user);
        }
    });
    let mut caller = Caller::new(gateway.address, Era::Stateless, 0, 1);
    assert!(caller.is_well(0).await);
    let rest = stopped(&ground.home, &gateway, usize::MAX);
    for more in [0, 1] {
        let room = if user.is_some() { threads(gateway.pid()) + more } else { 0 };
        limit(gateway.pid(), user, "nproc", Some(room));
        let why = "Resource temporarily unavailable";
        assert!(!under(&mut caller, more, why).await, "with room for {more}");
        limit(gateway.pid(), user, "nproc", None);
        stopped(&ground.home, &gateway, rest);
    }
    assert!(caller.is_well(0).await);
}

/// Not a test of its own: the embedder that the next test runs as a user without other processes.
#[tokio::test]
#[ignore = "the next test runs it in a process of its own"]
async fn an_embedder() {
    let Some(fake) = std::env::var_os("EMBEDDER_FAKE") else { return skip("EMBEDDER_FAKE is not set") };
    let crib = test_support::crib([fake_server(fake.to_str().unwrap(), "fake", &[])]);
    let before = getrlimit(Resource::Nproc);
    setrlimit(Resource::Nproc, Rlimit { current: Some(0), ..before }).unwrap();
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart, "{error}");
    setrlimit(Resource::Nproc, before).unwrap();
    let until = tokio::time::Instant::now() + test_support::PATIENCE;
    while let Err(error) = call(&crib, "fake", "echo", &json!({})).await {
        assert!(tokio::time::Instant::now() < until, "{error}");
        tokio::time::sleep(error.wait().unwrap_or(Duration::from_millis(10))).await;
    }
    crib.shutdown(Duration::ZERO).await;
}

#[test]
fn an_embedder_without_a_shim_that_once_could_start_no_thread_can_start_one_later() {
    let (user, dir) = (stranger(1), tempfile::tempdir().unwrap());
    let (_, fake) = moved(user, dir.path());
    let own = dir.path().join("embedder");
    process::copy_program(&std::env::current_exe().unwrap(), &own);
    let mut embedder = Command::new(own);
    let test = process::test_name(module_path!(), "an_embedder");
    embedder.args(["--ignored", "--exact", &test]).env("EMBEDDER_FAKE", fake).current_dir("/");
    if let Some(user) = user {
        embedder.uid(user).gid(user);
    }
    process::assert_one_passed(&deadline::output(&mut embedder));
}

/// A gateway whose state is on a disk of its own, which holds 64 KiB; `None` where there is no such disk to be had.
fn with_small_disk(home: &Home) -> Option<Gateway> {
    let mount = r#"mount -t tmpfs -o size=64k,mode=700 none "$TOOLCRIB_HOME/state" && exec "$@""#;
    let inside = |words: &[&str]| {
        let mut command = Command::new("unshare");
        let user = (!rustix::process::geteuid().is_root()).then_some("--map-root-user");
        command.arg("--mount").args(user).args(["sh", "-c", mount, "sh"]).args(words);
        command.env("TOOLCRIB_HOME", home.path());
        command
    };
    fs::create_dir(home.file("state")).unwrap();
    let possible = inside(&["true"]).status().is_ok_and(|status| status.success());
    possible.then(|| home.serve_by(inside(&[CRIB, "serve", "--listen", "127.0.0.1:0"])))
}

/// Writes until nothing more fits.
fn fill(file: &Path) {
    let mut file = fs::File::create(file).unwrap();
    for size in [4096, 1] {
        while std::io::Write::write_all(&mut file, &vec![0; size]).is_ok() {}
    }
}

#[test]
fn a_full_disk_costs_words_in_logs_and_no_call_and_nothing_is_half_written() {
    let server = |name| test_support::gateway::server(FAKE, name, &[]);
    let home = Home::new(CRIB, &(server("early") + &server("late")));
    let Some(mut gateway) = with_small_disk(&home) else {
        return skip("no tmpfs can be mounted in a namespace of its own");
    };
    let state = PathBuf::from(format!("/proc/{}/root{}", gateway.pid(), home.file("state").display()));
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    client.text("early__echo", &json!({"text": "well"}));
    let listings = || fs::read_dir(state.join("listings")).into_iter().flatten().flatten();
    wait_until("what it offers is remembered", || listings().any(|file| whole(&file.path())));
    fill(&state.join("filler"));
    for server in ["early", "late"] {
        client.call(&format!("{server}__crash"), &json!({}));
        client.text(&format!("{server}__log"), &json!({"text": "heard by nobody"}));
        assert_eq!(client.text(&format!("{server}__echo"), &json!({"text": "well"})), "well");
    }
    let says = |what: &str| gateway.said().iter().any(|line| line.contains(what));
    wait_until("it says so", || says("cannot write the log") && says("cannot note a process"));
    wait_until("and of the listing too", || says("its listing could not be remembered"));
    assert!(listings().all(|file| whole(&file.path())), "{:?}", listings().collect::<Vec<_>>());
    fs::remove_file(state.join("filler")).unwrap();
    client.text("late__log", &json!({"text": "heard again"}));
    let log = || fs::read_to_string(state.join("logs/late.log")).unwrap_or_default();
    wait_until("logs go on when there is room", || log().contains("heard again"));
    let children = gateway.children();
    assert!(gateway.stop().success());
    assert!(!children.into_iter().any(process::is_alive));
}

/// Whether a file holds one JSON value and nothing else.
fn whole(file: &Path) -> bool {
    fs::read(file).is_ok_and(|bytes| serde_json::from_slice::<Value>(&bytes).is_ok())
}

#[test]
fn a_state_folder_that_is_lost_under_a_running_gateway_is_made_again() {
    let home = Home::new(CRIB, &test_support::gateway::server(FAKE, "fake", &[]));
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    client.text("fake__echo", &json!({"text": "well"}));
    wait_until("its start is in the log", || home.file("state/logs/fake.log").exists());
    // Out of the way first: what the gateway still writes would fill the folder while it is emptied.
    fs::rename(home.file("state"), home.file("lost")).unwrap();
    fs::remove_dir_all(home.file("lost")).unwrap();
    client.call("fake__crash", &json!({}));
    assert_eq!(client.text("fake__echo", &json!({"text": "well"})), "well");
    let trees = || fs::read_dir(home.file("state/trees")).into_iter().flatten().count();
    wait_until("its tree is written down", || trees() == 1);
    let log = || fs::read_to_string(home.file("state/logs/fake.log")).unwrap_or_default();
    wait_until("its end is in the log", || log().contains("exit status 101"));
    assert!(gateway.stop().success());
    assert_eq!(trees(), 0);
}
