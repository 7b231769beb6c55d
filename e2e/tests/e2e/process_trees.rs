//! Process trees of servers: wrappers, grandchildren, and processes in other sessions. Nothing is left when they end.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use test_support::client::{Era, HttpClient};
use test_support::deadline::skip;
use test_support::gateway::{GatewayProcess, Home};
use test_support::process::{self, find_by_mark, is_alive};
use test_support::{call, eventually, server_id, status, text, wait_until};
use toolcrib::{CommandSpec, Crib, ServerSpec};

const FAKE: &str = env!("CARGO_BIN_EXE_fake-server");
const CRIB: &str = env!("CARGO_BIN_EXE_crib");

/// A shell script that starts an orphan in its own session, with a child, which ignores SIGTERM; then it waits for a
/// server that ignores EOF and SIGTERM and has a child too.
const SCRIPT: &str = r#"setsid sh -c '(trap "" TERM; sleep 1000; true) &'; "$0" --ignore-eof --ignore-term --grandchild; true"#;
/// The number of processes of the complete tree.
const TREE_SIZE: usize = 5;

/// Returns a value that only processes of one test have in their environment.
fn mark(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

fn home(mark: &str) -> Home {
    let table = format!("[servers.fake]\ncommand = 'sh'\nargs = ['-c', '''{SCRIPT}''', '{FAKE}']\n");
    // No server is started unasked.
    let limits = "[limits]\nlisting-wait = '20s'\nfirst-listing-wait = '0s'\n";
    Home::new(CRIB, &format!("{table}env = {{ MARK = '{mark}' }}\n{limits}"))
}

/// Starts the server and returns its process id.
fn start_server(gateway: &GatewayProcess, mark: &str) -> u32 {
    let pid = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("fake__pid", &json!({}));
    wait_until("the tree is complete", || find_by_mark(mark).len() == TREE_SIZE);
    pid.parse().unwrap()
}

fn wait_until_gone(mark: &str) {
    wait_until("the tree has exited", || find_by_mark(mark).is_empty());
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn sigkill_of_the_gateway_leaves_nothing_at_any_moment() {
    let mark = mark("killed");
    let home = home(&mark);
    // Before the shim has its request, while the server starts, and long after.
    for wait in [0, 2, 5, 10, 20, 40, 80, 160] {
        let mut gateway = home.serve();
        let address = gateway.address;
        let calling = std::thread::spawn(move || {
            std::panic::catch_unwind(|| {
                HttpClient::new(address, "/mcp", Era::Stateless).text("fake__pid", &json!({}))
            })
        });
        std::thread::park_timeout(Duration::from_millis(wait));
        gateway.signal(Signal::KILL);
        gateway.wait();
        drop(calling.join());
        wait_until_gone(&mark);
    }
    let mut gateway = home.serve();
    start_server(&gateway, &mark);
    gateway.signal(Signal::KILL);
    gateway.wait();
    wait_until_gone(&mark);
    drop(home.serve());
    assert!(is_empty(&home.file("state/trees")));
}

#[test]
fn stopped_gateway_has_ended_the_whole_tree() {
    let mark = mark("stopped");
    let home = home(&mark);
    let mut gateway = home.serve();
    start_server(&gateway, &mark);
    assert!(gateway.stop().success());
    assert_eq!(find_by_mark(&mark), [0_u32; 0]);
    assert!(is_empty(&home.file("state/trees")));
}

#[test]
fn stopped_or_killed_server_ends_with_its_tree() {
    let mark = mark("ended");
    let home = home(&mark);
    let gateway = home.serve();
    start_server(&gateway, &mark);
    assert!(home.run(&["stop", "fake"]).status.success());
    assert_eq!(find_by_mark(&mark), [0_u32; 0]);
    let first = start_server(&gateway, &mark);
    let wrapper = process::children(gateway.children()[0]);
    // A shell does not change the signals it inherits; bit 12 is SIGPIPE.
    let (blocked, ignored) = process::blocked_and_ignored_signals(wrapper[0]);
    assert_eq!((blocked, ignored & (1 << 12)), (0, 0), "no signal is blocked");
    wrapper.iter().for_each(|pid| process::kill(*pid));
    wait_until("the old server has exited", || !is_alive(first));
    assert_ne!(start_server(&gateway, &mark), first, "the next call starts a new tree");
    assert_eq!(process::zombies(gateway.pid()), [0_u32; 0]);
}

#[test]
fn sigkill_of_a_shim_affects_only_its_server() {
    let mark = mark("shim");
    let home = home(&mark);
    let gateway = home.serve();
    let first = start_server(&gateway, &mark);
    let shims = gateway.children();
    assert_eq!((shims.len(), process::name(shims[0])), (1, "toolcrib-shim".to_owned()));
    process::kill(shims[0]);
    wait_until_gone(&mark);
    let second = start_server(&gateway, &mark);
    assert_ne!(first, second);
    assert_eq!(process::zombies(gateway.pid()), [0_u32; 0]);
}

/// Returns the children of the gateway that fork shims.
fn fork_servers(gateway: &GatewayProcess) -> Vec<u32> {
    process::children(gateway.pid())
        .into_iter()
        .filter(|pid| process::name(*pid) == "toolcrib-fork")
        .collect()
}

#[test]
fn fork_server_that_ends_affects_no_server() {
    let mark = mark("fork-server");
    let home = home(&mark);
    let mut gateway = home.serve();
    let pid = || HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("fake__pid", &json!({}));
    let mut servers = BTreeSet::new();
    for is_killed in [true, false, true] {
        servers.insert(start_server(&gateway, &mark));
        let running = pid();
        if is_killed {
            fork_servers(&gateway).into_iter().for_each(process::kill);
        }
        wait_until("the fork server has exited", || fork_servers(&gateway).is_empty());
        assert_eq!(pid(), running, "the server runs on");
        assert!(home.run(&["stop", "fake"]).status.success());
        assert_eq!(find_by_mark(&mark), [0_u32; 0]);
    }
    assert_eq!(servers.len(), 3);
    assert_eq!(process::zombies(gateway.pid()), [0_u32; 0]);
    start_server(&gateway, &mark);
    fork_servers(&gateway).into_iter().for_each(|pid| process::send_signal(pid, Signal::STOP));
    assert!(gateway.stop().success(), "one that does not run delays nothing");
    assert_eq!(find_by_mark(&mark), [0_u32; 0]);
}

#[test]
fn frozen_shim_does_not_delay_shutdown() {
    let mark = mark("frozen");
    let home = home(&mark);
    let mut gateway = home.serve();
    start_server(&gateway, &mark);
    process::send_signal(gateway.children()[0], Signal::STOP);
    assert!(gateway.stop().success());
    wait_until_gone(&mark);
}

#[test]
fn next_gateway_ends_what_outlived_gateway_and_shim() {
    let mark = mark("journal");
    let home = home(&mark);
    let mut gateway = home.serve();
    start_server(&gateway, &mark);
    let shim = gateway.children()[0];
    gateway.signal(Signal::STOP);
    process::kill(shim);
    gateway.signal(Signal::KILL);
    gateway.wait();
    wait_until("the shim has exited", || !is_alive(shim));
    assert!(!find_by_mark(&mark).is_empty(), "processes in other sessions are left");
    assert!(!is_empty(&home.file("state/trees")));
    let gateway = home.serve();
    assert_eq!(find_by_mark(&mark), [0_u32; 0], "they were ended before the gateway listened");
    assert!(is_empty(&home.file("state/trees")));
    start_server(&gateway, &mark);
}

/// Returns the processes with this argument.
fn find_by_argument(argument: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let has_argument = |pid: &u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    };
    pids.filter(|pid| is_alive(*pid) && has_argument(pid)).collect()
}

#[test]
fn next_gateway_ends_a_daemon_without_environment() {
    // A daemon in a session of its own, without the variable of its tree, whose first process exits.
    let seconds = format!("1000.{}", std::process::id());
    let script =
        format!("env -i setsid sh -c '(sleep {seconds} & sleep {seconds}; true) & sleep 1' & exec \"$0\"");
    let table = format!("[servers.fake]\ncommand = 'sh'\nargs = ['-c', '''{script}''', '{FAKE}']\n");
    let home = Home::new(CRIB, &table);
    let mut gateway = home.serve();
    HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("fake__pid", &json!({}));
    wait_until("the daemon runs", || find_by_argument(&seconds).len() == 2);
    let journal = home.file("state/trees");
    let recorded = || {
        let files = std::fs::read_dir(&journal).unwrap().flatten();
        let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
        texts.collect::<String>()
    };
    let is_recorded =
        || find_by_argument(&seconds).iter().all(|pid| recorded().contains(&format!("\nseen {pid} ")));
    wait_until("it is in the journal", is_recorded);
    let shim = gateway.children()[0];
    gateway.signal(Signal::STOP);
    process::kill(shim);
    gateway.signal(Signal::KILL);
    gateway.wait();
    wait_until("the shim has exited", || !is_alive(shim));
    assert_eq!(find_by_argument(&seconds).len(), 2, "they are in a session of their own");
    let _gateway = home.serve();
    let left = find_by_argument(&seconds);
    left.iter().for_each(|pid| process::kill(*pid));
    assert_eq!(left, [0_u32; 0], "they were ended before the gateway listened");
    assert!(is_empty(&journal));
}

#[test]
fn ctrl_c_lets_calls_finish_first() {
    use std::os::unix::process::CommandExt as _;
    let home = Home::new(CRIB, &test_support::gateway::server_config(FAKE, "fake", &[]));
    let mut gateway = home.serve_with(|command| {
        command.process_group(0);
    });
    let address = gateway.address;
    let call = std::thread::spawn(move || {
        HttpClient::new(address, "/mcp", Era::Stateless).text("fake__sleep", &json!({"ms": 1000}))
    });
    wait_until("the call is in flight", || {
        String::from_utf8_lossy(&home.run(&["status", "--json"]).stdout).contains(r#""in_flight":1"#)
    });
    // Like a terminal: every process of the group gets the signal.
    kill_process_group(Pid::from_raw(gateway.pid().cast_signed()).unwrap(), Signal::INT).unwrap();
    assert_eq!(call.join().unwrap(), "slept");
    assert!(gateway.wait().success());
}

#[test]
fn server_gets_its_own_session_and_a_clean_environment() {
    let home = Home::new(CRIB, &test_support::gateway::server_config(FAKE, "fake", &[]));
    let gateway = home.serve_with(|command| {
        // The parent of the gateway may have left files open.
        *command = {
            let mut shell = Command::new("sh");
            shell.args([
                "-c",
                r#"exec 9</dev/null; exec "$@""#,
                "sh",
                CRIB,
                "serve",
                "--listen",
                "127.0.0.1:0",
            ]);
            shell.env("TOOLCRIB_HOME", home.path()).env("SECRET", "x");
            shell
        };
    });
    let server = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("fake__pid", &json!({}));
    let server: u32 = server.parse().unwrap();
    assert_eq!(process::open_files(server), [0, 1, 2]);
    let (session, terminal) = process::session_and_terminal(server);
    assert_eq!((session, terminal), (server, 0));
    let environment = std::fs::read_to_string(format!("/proc/{server}/environ")).unwrap();
    let names: BTreeSet<&str> =
        environment.split('\0').filter_map(|entry| Some(entry.split_once('=')?.0)).collect();
    assert!(names.contains("TOOLCRIB_TREE") && names.contains("PATH"), "{names:?}");
    assert!(!names.contains("SECRET") && !names.contains("TOOLCRIB_HOME"), "{names:?}");
    let score = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    let score = |pid: u32| score(pid).trim().parse::<i32>().unwrap();
    assert!(score(server) > score(gateway.pid()), "the server is killed before the gateway");
    let shim = gateway.children()[0];
    assert_eq!(score(shim), score(gateway.pid()), "the shim is as important as the gateway");
}

/// How much remains depends on the build and on the page cache: Linux maps a large folio as a whole. So the test only
/// asserts that it gets less.
#[test]
fn shim_gives_back_code_that_it_does_not_run_again() {
    let home = Home::new(CRIB, &test_support::gateway::server_config(FAKE, "fake", &[]));
    let gateway = home.serve();
    let address = gateway.address;
    // Called in another thread, so that the shim is seen before its first check.
    let call = std::thread::spawn(move || {
        HttpClient::new(address, "/mcp", Era::Stateless).text("fake__echo", &json!({"text": "hi"}))
    });
    let mut shim = None;
    wait_until("there is a shim", || {
        shim = gateway.children().first().copied();
        shim.is_some()
    });
    let mut highest = 0;
    wait_until("less of the program and its libraries is resident", || {
        let resident = resident_file_kib(shim.unwrap());
        highest = highest.max(resident);
        resident + 128 < highest
    });
    assert_eq!(call.join().unwrap(), "hi");
}

/// Returns how much of the program and its libraries is resident in a living process.
fn resident_file_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn shim_that_dies_before_the_start_costs_a_restart_and_no_call() {
    let dir = tempfile::TempDir::new().unwrap();
    let shim = dir.path().join("shim");
    let starts = dir.path().join("starts");
    let starts = starts.display();
    let script = format!(
        "#!/bin/sh\necho >>{starts}\n{{ read one; read two; read three; }} <{starts} && exec {CRIB} \"$@\"\nkill -9 $$\n"
    );
    process::write_program(&shim, &script);
    let spec = test_support::fake_server(FAKE, "fake", &[]);
    let crib = Crib::builder().server(spec).shim(&shim).build().unwrap();
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "hi"})).await, "hi");
    // The first process is started with the crib, and may be dead before the server is requested.
    assert!((1..=2).contains(&status(&crib, "fake").restarts));
    assert_eq!(std::fs::read_to_string(dir.path().join("starts")).unwrap().lines().count(), 3);
    crib.shutdown(Duration::ZERO).await;
}

/// Returns a crib that starts servers through this program's shim.
fn crib_with_shim(spec: ServerSpec) -> Crib {
    Crib::builder().server(spec).shim(CRIB).build().unwrap()
}

fn behind_shell(script: &str, mark: &str) -> ServerSpec {
    let command = CommandSpec::new("sh").args(["-c", script, FAKE]).env("MARK", mark);
    ServerSpec::command(server_id("fake"), command)
}

/// A server that kills its shim is not started again and again, because each start may leave processes behind.
#[tokio::test]
async fn server_that_kills_its_shim_is_ejected() {
    let mark = mark("shim-killer");
    let crib = crib_with_shim(behind_shell("kill -9 $PPID; sleep 1000", &mark));
    let _ = call(&crib, "fake", "echo", &json!({})).await;
    eventually("it is ejected", || status(&crib, "fake").state == toolcrib::ServerState::Ejected).await;
    assert!(status(&crib, "fake").restarts <= 2, "one start may try both eras");
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert_eq!(error.class().map(toolcrib::FailureClass::name), Some("shim_killed"));
    assert!(error.to_string().contains("its shim process was killed twice"), "{error}");
    eventually("the tree has exited", || find_by_mark(&mark).is_empty()).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn fork_bomb_is_killed_and_reported() {
    let mark = mark("bomb");
    let script = r#"i=0; while [ $i -lt 700 ]; do sleep 1000 & i=$((i+1)); done; exec "$0""#;
    let crib = crib_with_shim(behind_shell(script, &mark).lifecycle(test_support::quick_lifecycle(0)));
    // The server may or may not answer before it is killed.
    let _ = call(&crib, "fake", "echo", &json!({})).await;
    eventually("it is ejected", || status(&crib, "fake").state == toolcrib::ServerState::Ejected).await;
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert!(error.to_string().contains("processes"), "{error}");
    eventually("the tree has exited", || find_by_mark(&mark).is_empty()).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn orphans_that_exit_are_reaped() {
    let mark = mark("zombies");
    let script = r#"(sh -c 'exit 3' & sleep 0.1 & sh -c 'sleep 0.2 & exit' &); exec "$0""#;
    let crib = crib_with_shim(behind_shell(script, &mark));
    let server: u32 = text(&crib, "fake", "pid", &json!({})).await.parse().unwrap();
    let shim = process::parent(server).unwrap();
    eventually("only the server is left", || process::children(shim) == [server]).await;
    eventually("no zombie is left", || process::zombies(shim).is_empty()).await;
    crib.shutdown(Duration::ZERO).await;
    assert!(!is_alive(shim) && !is_alive(server));
}

#[tokio::test]
async fn start_errors_are_the_same_with_and_without_a_shim() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, write: fn(&Path, &str), text: &str| {
        let path = dir.path().join(name);
        write(&path, text);
        path.to_str().unwrap().to_owned()
    };
    let plain = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    let missing_folder = CommandSpec::new("cat").cwd("/no/such/folder");
    let not_a_folder = CommandSpec::new("cat").cwd("/dev/null");
    let long_argument = CommandSpec::new("cat").arg("x".repeat(4 << 20));
    let cases = [
        (
            CommandSpec::new("no-such-command-anywhere"),
            "`no-such-command-anywhere` was not found on the `PATH`",
        ),
        (CommandSpec::new(file("plain", plain, "#!/bin/sh\n")), "is not executable"),
        (
            CommandSpec::new(file("script", process::write_program, "#!/no/such/python -u\n")),
            "the interpreter `/no/such/python` of",
        ),
        (
            CommandSpec::new(file("text", process::write_program, "echo hello\n")),
            "neither a program for this machine nor a script",
        ),
        (missing_folder, "the working directory `/no/such/folder` does not exist"),
        (not_a_folder, "the working directory `/dev/null` is not a folder"),
        (long_argument, "cannot run `cat`: Argument list too long"),
    ];
    for (command, expected) in cases {
        for shim in [true, false] {
            let spec = ServerSpec::command(server_id("fake"), command.clone());
            let crib = if shim { crib_with_shim(spec) } else { test_support::crib([spec]) };
            let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
            assert!(error.to_string().contains(expected), "shim {shim}: {error}");
            assert_eq!(status(&crib, "fake").pid, None);
            crib.shutdown(Duration::ZERO).await;
        }
    }
}

#[tokio::test]
async fn stop_without_a_shim_ends_other_sessions_too() {
    let mark = mark("plain");
    let crib = test_support::crib([behind_shell(SCRIPT, &mark)]);
    text(&crib, "fake", "pid", &json!({})).await;
    eventually("the tree is complete", || find_by_mark(&mark).len() == TREE_SIZE).await;
    crib.stop(&server_id("fake")).await.unwrap();
    assert_eq!(find_by_mark(&mark), [0_u32; 0]);
    crib.shutdown(Duration::ZERO).await;
}

/// The embedder that the next test kills.
#[tokio::test]
#[ignore = "run by the next test in its own process"]
async fn embedder_process() {
    let Some(state) = std::env::var_os("EMBEDDER_STATE") else { return skip("EMBEDDER_STATE is not set") };
    let spec = behind_shell(SCRIPT, &std::env::var("EMBEDDER_MARK").unwrap());
    let crib = Crib::builder().server(spec).state_dir(&state).build().unwrap();
    text(&crib, "fake", "pid", &json!({})).await;
    std::fs::write(Path::new(&state).join("ready"), "").unwrap();
    std::future::pending::<()>().await;
}

#[test]
fn next_embedder_ends_what_a_killed_one_left() {
    let mark = mark("embedder");
    let dir = tempfile::tempdir().unwrap();
    let mut embedder = Command::new(std::env::current_exe().unwrap());
    let test = process::test_name(module_path!(), "embedder_process");
    embedder.args(["--ignored", "--exact", &test]).stdout(Stdio::piped());
    embedder.env("EMBEDDER_STATE", dir.path()).env("EMBEDDER_MARK", &mark);
    let mut embedder = process::KillOnDrop(embedder.spawn().unwrap());
    wait_until("its server is up", || {
        dir.path().join("ready").exists() && find_by_mark(&mark).len() == TREE_SIZE
    });
    let server = process::children(embedder.0.id());
    assert_eq!(server.len(), 1);
    embedder.0.kill().unwrap();
    embedder.0.wait().unwrap();
    wait_until("its server has exited", || !is_alive(server[0]));
    assert!(!find_by_mark(&mark).is_empty(), "processes in other sessions are left");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _runtime = runtime.enter();
    drop(Crib::builder().state_dir(dir.path()).build().unwrap());
    assert_eq!(find_by_mark(&mark), [0_u32; 0]);
    embedder.0.stdout.take().unwrap().read_to_string(&mut String::new()).unwrap();
}
