//! Whole trees of real processes: wrappers, grandchildren, and those that left their session. Whatever ends, nothing is
//! left behind.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]
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
use test_support::gateway::{Gateway, Home};
use test_support::process::{self, is_alive, marked};
use test_support::{call, eventually, server_id, status, text, wait_until};
use toolcrib::{CommandSpec, Crib, ServerSpec};

const FAKE: &str = env!("CARGO_BIN_EXE_fake-server");
const CRIB: &str = env!("CARGO_BIN_EXE_crib");

/// A shell that leaves a process with a child of its own in a session of their own, whose parent is gone and which does
/// not care for SIGTERM, and then waits for a server that is no better and has a child too.
const WILD: &str = r#"setsid sh -c '(trap "" TERM; sleep 1000; true) &'; "$0" --ignore-eof --ignore-term --grandchild; true"#;
/// How many processes that is, when all are there.
const WHOLE: usize = 5;

/// A name that only the processes of one test have in their environment.
fn mark(test: &str) -> String {
    format!("{test}-{}", std::process::id())
}

fn wild_home(mark: &str) -> Home {
    let table = format!("[servers.fake]\ncommand = 'sh'\nargs = ['-c', '''{WILD}''', '{FAKE}']\n");
    Home::new(CRIB, &format!("{table}env = {{ MARK = '{mark}' }}\n"))
}

/// Starts the server and gives its own process.
fn woken(gateway: &Gateway, mark: &str) -> u32 {
    let pid = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("fake__pid", &json!({}));
    wait_until("the tree is whole", || marked(mark).len() == WHOLE);
    pid.parse().unwrap()
}

fn gone(mark: &str) {
    wait_until("the whole tree is gone", || marked(mark).is_empty());
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[test]
fn kill_9_of_the_gateway_leaves_nothing_at_any_moment() {
    let mark = mark("killed");
    let home = wild_home(&mark);
    // Before the shim has its order, while the server starts, and long after.
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
        gone(&mark);
    }
    let mut gateway = home.serve();
    woken(&gateway, &mark);
    gateway.signal(Signal::KILL);
    gateway.wait();
    gone(&mark);
    drop(home.serve());
    assert!(is_empty(&home.file("state/trees")));
}

#[test]
fn when_the_gateway_has_stopped_the_whole_tree_is_gone_already() {
    let mark = mark("stopped");
    let home = wild_home(&mark);
    let mut gateway = home.serve();
    woken(&gateway, &mark);
    assert!(gateway.stop().success());
    assert_eq!(marked(&mark), [0_u32; 0]);
    assert!(is_empty(&home.file("state/trees")));
}

#[test]
fn a_server_that_was_stopped_or_killed_takes_its_tree_along() {
    let mark = mark("ended");
    let home = wild_home(&mark);
    let gateway = home.serve();
    woken(&gateway, &mark);
    assert!(home.run(&["stop", "fake"]).status.success());
    assert_eq!(marked(&mark), [0_u32; 0]);
    let first = woken(&gateway, &mark);
    let wrapper = process::children(gateway.children()[0]);
    // A shell is born with what it was given; bit 12 is SIGPIPE.
    let (blocked, ignored) = process::signals(wrapper[0]);
    assert_eq!((blocked, ignored & (1 << 12)), (0, 0), "it hears every signal");
    wrapper.iter().for_each(|pid| process::kill(*pid));
    wait_until("the old tree is gone", || !is_alive(first));
    assert_ne!(woken(&gateway, &mark), first, "the next call finds a new one");
    assert_eq!(process::zombies(gateway.pid()), [0_u32; 0]);
}

#[test]
fn kill_9_of_a_shim_costs_its_own_server_and_nobody_else() {
    let mark = mark("shim");
    let home = wild_home(&mark);
    let gateway = home.serve();
    let first = woken(&gateway, &mark);
    let shims = gateway.children();
    assert_eq!((shims.len(), process::name(shims[0])), (1, "toolcrib-shim".to_owned()));
    process::kill(shims[0]);
    gone(&mark);
    let second = woken(&gateway, &mark);
    assert_ne!(first, second);
    assert_eq!(process::zombies(gateway.pid()), [0_u32; 0]);
}

#[test]
fn a_shim_that_was_stopped_keeps_nobody_from_leaving() {
    let mark = mark("frozen");
    let home = wild_home(&mark);
    let mut gateway = home.serve();
    woken(&gateway, &mark);
    process::send(gateway.children()[0], Signal::STOP);
    assert!(gateway.stop().success());
    gone(&mark);
}

#[test]
fn what_outlived_the_gateway_and_its_shim_is_ended_by_the_next_gateway() {
    let mark = mark("journal");
    let home = wild_home(&mark);
    let mut gateway = home.serve();
    woken(&gateway, &mark);
    let shim = gateway.children()[0];
    gateway.signal(Signal::STOP);
    process::kill(shim);
    gateway.signal(Signal::KILL);
    gateway.wait();
    wait_until("the shim is gone", || !is_alive(shim));
    assert!(
        !marked(&mark).is_empty(),
        "some of them left their session, and nobody is there to look for them"
    );
    assert!(!is_empty(&home.file("state/trees")));
    let gateway = home.serve();
    assert_eq!(marked(&mark), [0_u32; 0], "it was swept before anybody was answered");
    assert!(is_empty(&home.file("state/trees")));
    woken(&gateway, &mark);
}

#[test]
fn ctrl_c_lets_calls_finish_first() {
    use std::os::unix::process::CommandExt as _;
    let home = Home::new(CRIB, &test_support::gateway::server(FAKE, "fake", &[]));
    let mut gateway = home.serve_as(|command| {
        command.process_group(0);
    });
    let address = gateway.address;
    let call = std::thread::spawn(move || {
        HttpClient::new(address, "/mcp", Era::Stateless).text("fake__sleep", &json!({"ms": 1000}))
    });
    wait_until("it is in flight", || {
        String::from_utf8_lossy(&home.run(&["status", "--json"]).stdout).contains(r#""in_flight":1"#)
    });
    // As a terminal does it: every process of the group hears it.
    kill_process_group(Pid::from_raw(gateway.pid().cast_signed()).unwrap(), Signal::INT).unwrap();
    assert_eq!(call.join().unwrap(), "slept");
    assert!(gateway.wait().success());
}

#[test]
fn a_server_gets_a_session_of_its_own_three_files_and_one_variable() {
    let home = Home::new(CRIB, &test_support::gateway::server(FAKE, "fake", &[]));
    let gateway = home.serve_as(|command| {
        // Whoever starts the gateway may have left files open.
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
    assert_eq!(process::files(server), [0, 1, 2]);
    let (session, terminal) = process::session(server);
    assert_eq!((session, terminal), (server, 0));
    let environment = std::fs::read_to_string(format!("/proc/{server}/environ")).unwrap();
    let names: BTreeSet<&str> =
        environment.split('\0').filter_map(|entry| Some(entry.split_once('=')?.0)).collect();
    assert!(names.contains("TOOLCRIB_TREE") && names.contains("PATH"), "{names:?}");
    assert!(!names.contains("SECRET") && !names.contains("TOOLCRIB_HOME"), "{names:?}");
    let score = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    let score = |pid: u32| score(pid).trim().parse::<i32>().unwrap();
    assert!(score(server) > score(gateway.pid()), "it goes before the gateway does");
    assert_eq!(score(gateway.children()[0]), score(gateway.pid()), "and so does not its shim");
}

#[tokio::test]
async fn a_shim_that_dies_before_it_could_start_its_server_costs_a_restart_and_no_call() {
    let dir = tempfile::TempDir::new().unwrap();
    let (shim, starts) = (dir.path().join("shim"), dir.path().join("starts"));
    let starts = starts.display();
    let script = format!(
        "#!/bin/sh\necho >>{starts}\n{{ read one; read two; read three; }} <{starts} && exec {CRIB} \"$@\"\nkill -9 $$\n"
    );
    process::write_program(&shim, &script);
    let spec = test_support::fake_server(FAKE, "fake", &[]);
    let crib = Crib::builder().server(spec).shim(&shim).build().unwrap();
    assert_eq!(text(&crib, "fake", "echo", &json!({"text": "well"})).await, "well");
    assert_eq!(status(&crib, "fake").restarts, 2);
    crib.shutdown(Duration::ZERO).await;
}

/// A crib whose servers have this program's shim.
fn shimmed(spec: ServerSpec) -> Crib {
    Crib::builder().server(spec).shim(CRIB).build().unwrap()
}

fn behind_shell(script: &str, mark: &str) -> ServerSpec {
    let command = CommandSpec::new("sh").args(["-c", script, FAKE]).env("MARK", mark);
    ServerSpec::command(server_id("fake"), command)
}

#[tokio::test]
async fn processes_without_end_are_ended_and_the_caller_is_told() {
    let mark = mark("bomb");
    let script = r#"i=0; while [ $i -lt 700 ]; do sleep 1000 & i=$((i+1)); done; exec "$0""#;
    let crib = shimmed(behind_shell(script, &mark).lifecycle(test_support::quick(0)));
    // Whether it could answer first is a matter of luck.
    let _ = call(&crib, "fake", "echo", &json!({})).await;
    eventually("it is given up", || status(&crib, "fake").state == toolcrib::StateName::Ejected).await;
    let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
    assert!(error.to_string().contains("processes"), "{error}");
    eventually("all of them are gone", || marked(&mark).is_empty()).await;
    crib.shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn orphans_that_end_by_themselves_are_no_zombies() {
    let mark = mark("zombies");
    let script = r#"(sh -c 'exit 3' & sleep 0.1 & sh -c 'sleep 0.2 & exit' &); exec "$0""#;
    let crib = shimmed(behind_shell(script, &mark));
    let server: u32 = text(&crib, "fake", "pid", &json!({})).await.parse().unwrap();
    let shim = process::parent(server).unwrap();
    eventually("only the server is left", || process::children(shim) == [server]).await;
    eventually("and nobody unreaped", || process::zombies(shim).is_empty()).await;
    crib.shutdown(Duration::ZERO).await;
    assert!(!is_alive(shim) && !is_alive(server));
}

#[tokio::test]
async fn what_cannot_be_run_is_named_for_what_it_is_with_a_shim_and_without() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, write: fn(&Path, &str), text: &str| {
        let path = dir.path().join(name);
        write(&path, text);
        path.to_str().unwrap().to_owned()
    };
    let plain = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    let nowhere = CommandSpec::new("cat").cwd("/no/such/folder");
    let no_folder = CommandSpec::new("cat").cwd("/dev/null");
    let endless = CommandSpec::new("cat").arg("x".repeat(4 << 20));
    let cases = [
        (
            CommandSpec::new("no-such-command-anywhere"),
            "`no-such-command-anywhere` was not found on the `PATH`",
        ),
        (CommandSpec::new(file("plain", plain, "#!/bin/sh\n")), "is not executable"),
        (
            CommandSpec::new(file("alien", process::write_program, "#!/no/such/python -u\n")),
            "wants to be run by `/no/such/python`",
        ),
        (
            CommandSpec::new(file("text", process::write_program, "echo hello\n")),
            "neither a program for this machine nor a script",
        ),
        (nowhere, "the working directory `/no/such/folder` does not exist"),
        (no_folder, "the working directory `/dev/null` is not a folder"),
        (endless, "cannot run `cat`: Argument list too long"),
    ];
    for (command, wanted) in cases {
        for shim in [true, false] {
            let spec = ServerSpec::command(server_id("fake"), command.clone());
            let crib = if shim { shimmed(spec) } else { test_support::crib([spec]) };
            let error = call(&crib, "fake", "echo", &json!({})).await.unwrap_err();
            assert!(error.to_string().contains(wanted), "shim {shim}: {error}");
            assert_eq!(status(&crib, "fake").pid, None);
            crib.shutdown(Duration::ZERO).await;
        }
    }
}

#[tokio::test]
async fn without_a_shim_a_stop_ends_those_who_left_their_session_too() {
    let mark = mark("plain");
    let crib = test_support::crib([behind_shell(WILD, &mark)]);
    text(&crib, "fake", "pid", &json!({})).await;
    eventually("the tree is whole", || marked(&mark).len() == WHOLE).await;
    crib.stop(&server_id("fake")).await.unwrap();
    assert_eq!(marked(&mark), [0_u32; 0]);
    crib.shutdown(Duration::ZERO).await;
}

/// Not a test of its own: the embedder that the next test kills.
#[tokio::test]
#[ignore = "the next test runs it in a process of its own"]
async fn an_embedder() {
    let Some(state) = std::env::var_os("EMBEDDER_STATE") else { return skip("EMBEDDER_STATE is not set") };
    let spec = behind_shell(WILD, &std::env::var("EMBEDDER_MARK").unwrap());
    let crib = Crib::builder().server(spec).state_dir(&state).build().unwrap();
    text(&crib, "fake", "pid", &json!({})).await;
    std::fs::write(Path::new(&state).join("ready"), "").unwrap();
    std::future::pending::<()>().await;
}

#[test]
fn an_embedder_without_a_shim_takes_its_servers_along_and_the_next_one_finds_the_rest() {
    let (mark, dir) = (mark("embedder"), tempfile::tempdir().unwrap());
    let mut embedder = Command::new(std::env::current_exe().unwrap());
    let test = process::test_name(module_path!(), "an_embedder");
    embedder.args(["--ignored", "--exact", &test]).stdout(Stdio::piped());
    embedder.env("EMBEDDER_STATE", dir.path()).env("EMBEDDER_MARK", &mark);
    let mut embedder = process::KillOnDrop(embedder.spawn().unwrap());
    wait_until("its server is up", || dir.path().join("ready").exists() && marked(&mark).len() == WHOLE);
    let server = process::children(embedder.0.id());
    assert_eq!(server.len(), 1);
    embedder.0.kill().unwrap();
    embedder.0.wait().unwrap();
    wait_until("its server is gone", || !is_alive(server[0]));
    assert!(!marked(&mark).is_empty(), "the rest waits for the next one");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _runtime = runtime.enter();
    drop(Crib::builder().state_dir(dir.path()).build().unwrap());
    assert_eq!(marked(&mark), [0_u32; 0]);
    embedder.0.stdout.take().unwrap().read_to_string(&mut String::new()).unwrap();
}
