//! A config file that changes under a running gateway, in every way that files change, and the logs that it keeps.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{Gateway, Home};
use test_support::{http, process, wait_until};

fn server(name: &str) -> String {
    test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), name, &[])
}

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), config)
}

fn status(gateway: &Gateway) -> Value {
    http::request(gateway.address, "GET", "/api/v1/status", &[], b"").message()
}

fn names(gateway: &Gateway) -> Vec<String> {
    let status = status(gateway);
    let servers = status["servers"].as_array().unwrap().iter();
    servers.map(|server| server["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_file_that_changes_is_read_again_however_it_changes() {
    let stays = server("stays");
    let home = home(&stays);
    let gateway = home.serve();
    let pid = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("stays__pid", &json!({}));
    let config = home.file("config.toml");
    let with = |name: &str| stays.clone() + &server(name);
    // Another file in its place.
    fs::write(home.file("new"), with("renamed")).unwrap();
    fs::rename(home.file("new"), &config).unwrap();
    wait_until("a file that took its place is seen", || names(&gateway) == ["renamed", "stays"]);
    // Emptied, then written.
    let mut file = fs::File::create(&config).unwrap();
    std::io::Write::write_all(&mut file, with("written").as_bytes()).unwrap();
    wait_until("a file that was written anew is seen", || names(&gateway) == ["stays", "written"]);
    // A link in its place, which then leads elsewhere.
    for name in ["linked", "swapped"] {
        let target = home.file(name);
        fs::write(&target, with(name)).unwrap();
        std::os::unix::fs::symlink(&target, home.file("link")).unwrap();
        fs::rename(home.file("link"), &config).unwrap();
        wait_until("what a link leads to is seen", || names(&gateway).contains(&name.to_owned()));
    }
    // Removed: said, and served on.
    fs::remove_file(&config).unwrap();
    let problem = |text: &str| status(&gateway)["config"]["problems"].to_string().contains(text);
    wait_until("a file that is gone is said to be", || problem("no such file"));
    assert_eq!(names(&gateway), ["stays", "swapped"]);
    // Broken: said, and served on.
    fs::write(&config, "[servers.broken\n").unwrap();
    wait_until("a file that is broken is said to be", || problem("config.toml") && !problem("no such file"));
    assert_eq!(names(&gateway), ["stays", "swapped"]);
    fs::write(&config, with("good")).unwrap();
    wait_until("the next good one is taken", || names(&gateway) == ["good", "stays"]);
    assert_eq!(status(&gateway)["config"]["problems"], json!([]));
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(client.text("stays__pid", &json!({})), pid, "what did not change keeps its process");
}

#[test]
fn a_hundred_reloads_at_once_are_few_and_the_last_wins() {
    let home = home(&server("first"));
    let gateway = home.serve();
    let address = gateway.address;
    let asking: Vec<_> = (0..4)
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
    asking.into_iter().for_each(|asking| asking.join().unwrap());
    wait_until("the last one wins", || names(&gateway) == ["s19"]);
}

#[test]
fn a_tool_that_a_reload_takes_away_finishes_what_it_was_asked_before() {
    let home = home(&server("fake"));
    let gateway = home.serve();
    let address = gateway.address;
    let client = move || HttpClient::new(address, "/mcp", Era::Stateless);
    let call = std::thread::spawn(move || client().text("fake__sleep", &json!({"ms": 2000})));
    wait_until("it is asked", || status(&gateway)["servers"][0]["in_flight"] == 1);
    home.write_config(&format!("{}[servers.fake.tools]\ndeny = ['sleep']\n", server("fake")));
    gateway.signal(Signal::HUP);
    let params = json!({"name": "fake__sleep", "arguments": {"ms": 0}});
    wait_until("it is denied from now on", || client().request("tools/call", &params).code() == Some(-31010));
    assert_eq!(call.join().unwrap(), "slept");
}

#[test]
fn a_server_that_is_given_up_reloaded_restarted_and_called_in_one_moment_ends_up_as_one() {
    let home = home("");
    let marked = ["--count-file", home.file("starts").to_str().unwrap()].map(str::to_owned);
    let entry = |more: &[&str]| {
        let args: Vec<&str> = marked.iter().map(String::as_str).chain(more.iter().copied()).collect();
        let server = test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), "torn", &args);
        format!("{server}[servers.torn.lifecycle]\nrestarts = {{ at-most = 1, within = \"5m\" }}\n")
    };
    home.write_config(&entry(&["--exit-at-start", "1000"]));
    let gateway = home.serve();
    let address = gateway.address;
    let called = || {
        let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
        client.request("tools/call", &json!({"name": "torn__echo", "arguments": {"text": "well"}})).code()
    };
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8).map(|_| scope.spawn(called)).collect();
        home.write_config(&entry(&["--tools", "1"]));
        gateway.signal(Signal::HUP);
        scope.spawn(|| http::request(address, "POST", "/api/v1/servers/torn/restart", &[], b""));
        for caller in callers {
            // Never sent, or given up; what came after the reload was answered.
            let code = caller.join().unwrap();
            assert!(matches!(code, None | Some(-31013 | -31014)), "{code:?}");
        }
    });
    wait_until("the new one serves", || called().is_none());
    let own = || {
        let all = process::with_words(home.path().to_str().unwrap());
        all.into_iter().filter(|(_, words)| words.contains("fake-server")).count()
    };
    wait_until("there is one process", || own() == 1);
    assert_eq!(status(&gateway)["servers"][0]["state"], "ready");
}

#[test]
fn every_server_has_a_log_file_that_says_what_it_wrote_and_how_it_ended() {
    let home = home(&server("fake"));
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    client.text("fake__log", &json!({"text": "written by the server"}));
    client.call("fake__crash", &json!({}));
    let file = home.file("state/logs/fake.log");
    let holds = |text: &str| fs::read_to_string(&file).unwrap_or_default().contains(text);
    wait_until("its words are there", || holds("written by the server") && holds("the disk is on fire"));
    wait_until("its start and its end are there", || holds("started as pid ") && holds("exit status 101"));
    assert!(gateway.stop().success());
    let without = home.run(&["logs", "fake"]);
    assert_eq!(without.status.code(), Some(4));
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(said.contains("state/logs/fake.log"), "{said}");
}

#[test]
fn a_flood_on_stderr_is_cut_in_its_log_file() {
    let flood = (64 << 20).to_string();
    let home = home(&test_support::gateway::server(
        env!("CARGO_BIN_EXE_fake-server"),
        "loud",
        &["--stderr-flood", &flood],
    ));
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    assert_eq!(client.text("loud__echo", &json!({"text": "heard"})), "heard");
    client.text("loud__log", &json!({"text": "the last word"}));
    assert!(gateway.stop().success());
    let files: Vec<_> = fs::read_dir(home.file("state/logs")).unwrap().map(Result::unwrap).collect();
    let size: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(files.len() <= 3 && size <= 3 << 20, "{size} bytes in {files:?}");
    let text = fs::read_to_string(home.file("state/logs/loud.log")).unwrap();
    assert!(text.contains("lines left out"), "{}", &text[..1000]);
}

#[test]
fn a_state_folder_that_cannot_be_used_keeps_nobody_from_being_served() {
    let home = home(&server("fake"));
    fs::write(home.file("state"), "in the way").unwrap();
    let mut gateway = home.serve();
    let mut client = HttpClient::new(gateway.address, "/mcp", Era::Stateless);
    for text in ["one", "two", "three"] {
        client.text("fake__log", &json!({"text": text}));
    }
    let complaints = || gateway.said().iter().filter(|line| line.contains("cannot write the log")).count();
    wait_until("it says so", || complaints() > 0);
    assert_eq!(client.text("fake__echo", &json!({"text": "well"})), "well");
    assert_eq!(complaints(), 1, "once: {:?}", gateway.said());
    let child: u32 = client.text("fake__pid", &json!({})).parse().unwrap();
    assert!(gateway.stop().success());
    assert!(!process::is_alive(child));
}
