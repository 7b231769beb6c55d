//! A config file that changes under a running gateway in every way that files change, and the log files.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{GatewayProcess, Home};
use test_support::{http, process, wait_until};

fn server(name: &str) -> String {
    test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, &[])
}

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), config)
}

fn status(gateway: &GatewayProcess) -> Value {
    http::request(gateway.address, "GET", "/api/v1/status", &[], b"").message()
}

fn server_names(gateway: &GatewayProcess) -> Vec<String> {
    let status = status(gateway);
    let servers = status["servers"].as_array().unwrap().iter();
    servers.map(|server| server["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn config_change_is_noticed_however_it_is_made() {
    let kept = server("kept");
    let home = home(&kept);
    let gateway = home.serve();
    let pid = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("kept__pid", &json!({}));
    let config = home.file("config.toml");
    let with = |name: &str| kept.clone() + &server(name);
    // Replaced by a rename.
    fs::write(home.file("new"), with("renamed")).unwrap();
    fs::rename(home.file("new"), &config).unwrap();
    wait_until("the replaced file is read", || server_names(&gateway) == ["kept", "renamed"]);
    // Truncated, then written.
    let mut file = fs::File::create(&config).unwrap();
    std::io::Write::write_all(&mut file, with("written").as_bytes()).unwrap();
    wait_until("the rewritten file is read", || server_names(&gateway) == ["kept", "written"]);
    // Replaced by a link whose target changes.
    for name in ["linked", "swapped"] {
        let target = home.file(name);
        fs::write(&target, with(name)).unwrap();
        std::os::unix::fs::symlink(&target, home.file("link")).unwrap();
        fs::rename(home.file("link"), &config).unwrap();
        wait_until("the target of the link is read", || server_names(&gateway).contains(&name.to_owned()));
    }
    // Removed: reported, and the old config stays in effect.
    fs::remove_file(&config).unwrap();
    let problem = |text: &str| status(&gateway)["config"]["problems"].to_string().contains(text);
    wait_until("the missing file is reported", || problem("file not found"));
    assert_eq!(server_names(&gateway), ["kept", "swapped"]);
    // Invalid: reported, and the old config stays in effect.
    fs::write(&config, "[servers.broken\n").unwrap();
    wait_until("the invalid file is reported", || problem("config.toml") && !problem("file not found"));
    assert_eq!(server_names(&gateway), ["kept", "swapped"]);
    fs::write(&config, with("valid")).unwrap();
    wait_until("the next valid file is read", || server_names(&gateway) == ["kept", "valid"]);
    assert_eq!(status(&gateway)["config"]["problems"], json!([]));
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(client.text("kept__pid", &json!({})), pid, "an unchanged server keeps its process");
}

#[test]
fn last_of_many_concurrent_reloads_wins() {
    let home = home(&server("first"));
    let gateway = home.serve();
    let address = gateway.address;
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..25 {
                    assert_eq!(http::request(address, "POST", "/api/v1/reload", &[], b"").status, 200);
                }
            })
        })
        .collect();
    for number in 0..20 {
        fs::write(home.file("new"), server(&format!("s{number}"))).unwrap();
        fs::rename(home.file("new"), home.file("config.toml")).unwrap();
        gateway.signal(Signal::HUP);
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    wait_until("the last config is in effect", || server_names(&gateway) == ["s19"]);
}

#[test]
fn call_in_flight_finishes_after_a_reload_denies_its_tool() {
    let home = home(&server("fake"));
    let gateway = home.serve();
    let address = gateway.address;
    let client = move || HttpClient::new(address, "/mcp", Era::Stateless);
    let call = std::thread::spawn(move || client().text("fake__sleep", &json!({"ms": 2000})));
    wait_until("the call is in flight", || status(&gateway)["servers"][0]["in_flight"] == 1);
    home.write_config(&format!("{}[servers.fake.tools]\ndeny = ['sleep']\n", server("fake")));
    gateway.signal(Signal::HUP);
    let params = json!({"name": "fake__sleep", "arguments": {"ms": 0}});
    wait_until("new calls are denied", || client().request("tools/call", &params).code() == Some(-31010));
    assert_eq!(call.join().unwrap(), "slept");
}

#[test]
fn ejection_reload_restart_and_calls_leave_one_process() {
    let home = home("");
    let count_file = ["--count-file", home.file("starts").to_str().unwrap()].map(str::to_owned);
    let entry = |more: &[&str]| {
        let args: Vec<&str> = count_file.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let server = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "busy", &args);
        format!(
            "{server}sharing = 'one'\n[servers.busy.lifecycle]\nrestarts = {{ at-most = 1, within = \"5m\" }}\n"
        )
    };
    home.write_config(&entry(&["--exit-at-start", "1000"]));
    let gateway = home.serve();
    let address = gateway.address;
    let call = || {
        let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
        client.request("tools/call", &json!({"name": "busy__echo", "arguments": {"text": "hi"}})).code()
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8).map(|_| scope.spawn(call)).collect();
        home.write_config(&entry(&["--tools", "1"]));
        gateway.signal(Signal::HUP);
        scope.spawn(|| http::request(address, "POST", "/api/v1/servers/busy/restart", &[], b""));
        for caller in callers {
            // Could not start, or ejected; calls after the reload are answered.
            let code = caller.join().unwrap();
            assert!(matches!(code, None | Some(-31013 | -31014)), "{code:?}");
        }
    });
    wait_until("the new entry serves", || call().is_none());
    let count_processes = || {
        let all = process::find_by_command_line(home.path().to_str().unwrap());
        all.into_iter().filter(|(_, line)| line.contains("fake-server")).count()
    };
    wait_until("there is one process", || count_processes() == 1);
    assert_eq!(status(&gateway)["servers"][0]["state"], "ready");
}

#[test]
fn log_file_of_a_server_has_its_stderr_and_its_exits() {
    let home = home(&server("fake"));
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    client.text("fake__log", &json!({"text": "written by the server"}));
    client.call("fake__crash", &json!({}));
    let file = home.file("state/logs/fake.log");
    let holds = |text: &str| fs::read_to_string(&file).unwrap_or_default().contains(text);
    wait_until("its stderr is logged", || holds("written by the server") && holds("crashing on purpose"));
    wait_until("its start and exit are logged", || holds("started as pid ") && holds("exit status 101"));
    assert!(gateway.stop().success());
    let without_gateway = home.run(&["logs", "fake"]);
    assert_eq!(without_gateway.status.code(), Some(0));
    let stdout = String::from_utf8_lossy(&without_gateway.stdout).into_owned();
    assert!(stdout.contains("written by the server") && stdout.contains("exit status 101"), "{stdout}");
    fs::remove_file(&file).unwrap();
    assert_eq!(home.run(&["logs", "fake"]).status.code(), Some(4));
}

#[test]
fn log_file_of_a_flood_on_stderr_is_limited() {
    let flood = (64 << 20).to_string();
    let home = home(&test_support::gateway::server_config(
        env!("CARGO_BIN_EXE_fake-server"),
        "loud",
        &["--stderr-flood", &flood],
    ));
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(client.text("loud__echo", &json!({"text": "hi"})), "hi");
    client.text("loud__log", &json!({"text": "last line"}));
    assert!(gateway.stop().success());
    let files: Vec<_> = fs::read_dir(home.file("state/logs")).unwrap().map(Result::unwrap).collect();
    let size: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(files.len() <= 3 && size <= 3 << 20, "{size} bytes in {files:?}");
    // The current file may just have been started: a slow machine writes more than one.
    let has_gap = |file: &fs::DirEntry| fs::read_to_string(file.path()).unwrap().contains("lines dropped");
    assert!(files.iter().any(has_gap), "no gap in {files:?}");
}

#[test]
fn unusable_state_folder_does_not_stop_the_gateway() {
    let home = home(&server("fake"));
    fs::write(home.file("state"), "in the way").unwrap();
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    for text in ["one", "two", "three"] {
        client.text("fake__log", &json!({"text": text}));
    }
    let count_errors =
        || gateway.stderr_lines().iter().filter(|line| line.contains("cannot write the log")).count();
    wait_until("the error is reported", || count_errors() > 0);
    assert_eq!(client.text("fake__echo", &json!({"text": "hi"})), "hi");
    assert_eq!(count_errors(), 1, "reported once: {:?}", gateway.stderr_lines());
    let child: u32 = client.text("fake__pid", &json!({})).parse().unwrap();
    assert!(gateway.stop().success());
    assert!(!process::is_alive(child));
}
