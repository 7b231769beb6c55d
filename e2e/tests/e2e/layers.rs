//! Several config files and where we are: what is declared, what is on, who said so, and commands that change it.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::deadline;
use test_support::gateway::{Gateway, Home};
use test_support::{http, wait_until};

fn server(name: &str) -> String {
    test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), name, &[])
}

/// A person's home, and a project beside it.
struct Desk {
    home: Home,
    project: tempfile::TempDir,
}

impl Desk {
    fn new(config: &str) -> Self {
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), config);
        let project = tempfile::TempDir::new().unwrap();
        fs::create_dir(project.path().join(".git")).unwrap();
        Self { home, project }
    }

    fn file(&self) -> PathBuf {
        self.project.path().join(".toolcrib.toml")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(args);
        command.current_dir(self.project.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        deadline::output(&mut self.command(args))
    }

    /// What it prints, if all is well.
    fn says(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.says(&[args, &["--json"]].concat())).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let listed = self.json(&["ls"]);
        let on = listed.as_array().unwrap().iter().filter(|server| server["active"] == true);
        on.map(|server| server["name"].as_str().unwrap().to_owned()).collect()
    }

    fn serve(&self) -> Gateway {
        self.home.serve_as(|command| {
            command.current_dir(self.project.path());
        })
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn served(gateway: &Gateway) -> Vec<String> {
    let status = http::request(gateway.address, "GET", "/api/v1/status", &[], b"").message();
    let servers = status["servers"].as_array().unwrap().iter();
    servers.map(|server| server["name"].as_str().unwrap().to_owned()).collect()
}

fn generation(gateway: &Gateway) -> u64 {
    let status = http::request(gateway.address, "GET", "/api/v1/status", &[], b"").message();
    status["config"]["generation"].as_u64().unwrap()
}

#[test]
fn a_projects_file_does_nothing_until_it_is_allowed_and_nothing_again_when_it_changes() {
    let desk = Desk::new(&server("mine"));
    fs::write(desk.file(), server("theirs")).unwrap();
    assert_eq!(desk.names(), ["mine"]);
    for command in [&["ls"][..], &["why", "mine"], &["tools"], &["status"]] {
        let said = stderr(&desk.run(command));
        assert!(
            said.contains("is not used until it is allowed") && said.contains("toolcrib allow"),
            "{said}"
        );
    }
    let checked = desk.run(&["check"]);
    assert_eq!(checked.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("is not used until it is allowed"));
    desk.says(&["allow"]);
    assert_eq!(desk.names(), ["mine", "theirs"]);
    assert_eq!(stderr(&desk.run(&["ls"])), "");
    fs::write(desk.file(), server("others")).unwrap();
    assert_eq!(desk.names(), ["mine"]);
    assert!(stderr(&desk.run(&["ls"])).contains("changed since it was allowed"));
    desk.says(&["allow"]);
    assert_eq!(desk.names(), ["mine", "others"]);
    desk.says(&["allow", "--revoke"]);
    assert_eq!(desk.names(), ["mine"]);
    let alone = desk.home.file("config.toml");
    desk.says(&["allow"]);
    let named = desk.json(&["ls", "--config", alone.to_str().unwrap()]);
    assert_eq!(named.as_array().unwrap().len(), 1, "a file that is named stands alone");
}

#[test]
fn a_project_patches_a_server_and_why_says_who_said_what() {
    let desk =
        Desk::new(&(server("a") + "[servers.a.lifecycle]\nkeep-alive = '1m'\n[servers.b]\ncommand = 'x'\n"));
    fs::write(desk.file(), "[servers.a]\nlifecycle.keep-alive = '2m'\n[servers.b]\nenabled = false\n")
        .unwrap();
    desk.says(&["allow"]);
    let why = desk.json(&["why", "a"]);
    assert_eq!((&why["active"], &why["name"]), (&json!(true), &json!("a")));
    let values = why["values"].as_array().unwrap();
    let kept = values.iter().find(|value| value["key"] == "lifecycle.keep-alive").unwrap();
    assert_eq!((&kept["value"], &kept["line"]), (&json!("2m"), &json!(2)));
    assert_eq!(kept["file"].as_str().unwrap(), desk.file().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(kept["overrides"][0]["value"], "1m");
    let listed = desk.json(&["ls"]);
    let b = &listed[1];
    assert_eq!((&b["active"], &b["enabled"]), (&json!(false), &json!(false)));
    assert_eq!(b["reason"], desk.json(&["why", "b"])["reason"]);
    assert!(desk.says(&["why", "b"]).starts_with("b: off: switched off in "));
    assert!(desk.says(&["show", "a"]).contains("lifecycle.keep-alive = \"2m\""));
    let unknown = desk.run(&["why", "bb"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("did you mean `b`?"), "{}", stderr(&unknown));
}

#[test]
fn scopes_are_judged_by_where_we_are() {
    let desk = Desk::new(
        "[scopes.rust]\nmatch = { files = 'Cargo.toml' }\ntags = ['code']\n\
         [scopes.ci]\nmatch = { env = { CRIB_CI = 'yes' }, os = 'linux' }\ntags = ['ci']\n\
         [scopes.box]\nmatch = { host = 'box-*' }\ntags = ['box']\n\
         [servers.a]\ncommand = 'x'\nwhen = ['code']\n[servers.b]\ncommand = 'x'\nwhen = { all = ['ci'], not = ['code'] }\n\
         [servers.c]\ncommand = 'x'\nwhen = ['box', 'hand']\n[servers.d]\ncommand = 'x'\n",
    );
    let on = |change: &dyn Fn(&mut Command)| {
        let mut command = desk.command(&["ls", "--json"]);
        change(&mut command);
        let listed: Value = serde_json::from_slice(&deadline::output(&mut command).stdout).unwrap();
        let on = listed.as_array().unwrap().iter().filter(|server| server["active"] == true);
        on.map(|server| server["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(on(&|_| {}), ["d"]);
    assert_eq!(
        on(&|command| {
            command.env("CRIB_CI", "yes");
        }),
        ["b", "d"]
    );
    assert_eq!(
        on(&|command| {
            command.env("TOOLCRIB_HOST", "box-7");
        }),
        ["c", "d"]
    );
    assert_eq!(
        on(&|command| {
            command.env("TOOLCRIB_TAGS", "x, hand");
        }),
        ["c", "d"]
    );
    fs::write(desk.project.path().join("Cargo.toml"), "").unwrap();
    assert_eq!(
        on(&|command| {
            command.env("CRIB_CI", "yes");
        }),
        ["a", "d"]
    );
    let below = desk.project.path().join("src");
    fs::create_dir(&below).unwrap();
    assert_eq!(
        on(&|command| {
            command.current_dir(&below);
        }),
        ["a", "d"],
        "the project is what counts"
    );
    let why = desk.json(&["why", "a"]);
    assert_eq!(
        why["scopes"][0],
        json!({"name": "rust", "matched": true, "fact": "`Cargo.toml` is here", "tags": ["code"],
        "file": desk.home.file("config.toml"), "line": 1})
    );
    assert_eq!(why["tags"]["wanted"]["any"], json!(["code"]));
    let gateway = desk.serve();
    assert_eq!(served(&gateway), ["a", "d"], "what is not for here is not there");
}

#[test]
fn every_layer_is_watched_and_a_bad_one_changes_nothing() {
    let desk = Desk::new(&server("mine"));
    fs::write(desk.file(), server("theirs")).unwrap();
    desk.says(&["allow"]);
    let gateway = desk.serve();
    assert_eq!(served(&gateway), ["mine", "theirs"]);
    let pid = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("mine__pid", &json!({}));
    // The command line in the project finds this gateway, and nobody else's.
    assert_eq!(desk.json(&["status"])["pid"], gateway.pid());
    assert_eq!(desk.home.run(&["status"]).status.code(), Some(4));
    // Changed, and so not allowed: said, and served on.
    fs::write(desk.file(), server("others")).unwrap();
    wait_until("the change is noticed", || {
        desk.json(&["status"])["config"]["problems"].to_string().contains("changed since it was allowed")
    });
    assert_eq!(served(&gateway), ["mine", "theirs"]);
    desk.says(&["allow"]);
    wait_until("what is allowed is taken", || served(&gateway) == ["mine", "others"]);
    desk.home.write_config(&(server("mine") + &server("more")));
    wait_until("the other layer is watched too", || served(&gateway) == ["mine", "more", "others"]);
    let before = generation(&gateway);
    desk.home.write_config("[servers.broken\n");
    wait_until("a broken one is said", || {
        desk.json(&["status"])["config"]["problems"].to_string().contains("config.toml")
    });
    assert_eq!((served(&gateway).len(), generation(&gateway)), (3, before));
    let after = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("mine__pid", &json!({}));
    assert_eq!(after, pid, "what did not change keeps its process");
}

#[test]
fn what_cannot_be_a_projects_file_is_refused_and_never_waited_for() {
    let desk = Desk::new(&server("mine"));
    let file = desk.file();
    let refused = |why: &str| {
        let output = desk.run(&["allow"]);
        assert!(!output.status.success(), "{why}");
        assert!(stderr(&output).contains(why), "{why}: {}", stderr(&output));
        assert_eq!(desk.names(), ["mine"]);
    };
    fs::create_dir(&file).unwrap();
    refused("not a regular file");
    fs::remove_dir(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    refused("not a regular file");
    fs::remove_file(&file).unwrap();
    fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
    refused("is larger than");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(desk.home.file("config.toml"), &file).unwrap();
    refused("leads out of its folder");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&file, &file).unwrap();
    refused("cannot read");
    fs::remove_file(&file).unwrap();
    fs::write(&file, "[servers.half").unwrap();
    refused("cannot be used as it is");
    fs::write(&file, "include = ['.toolcrib.toml']\n").unwrap();
    refused("cannot be used as it is");
    fs::write(&file, "[callers.me]\ntoken = 't'\nadmin = true\n").unwrap();
    refused("cannot be used as it is");
}

const MINE: &str = "\u{feff}# mine\r\n\r\n[servers.a]   # first\r\ncommand = 'x'\r\n\r\n# the end\r\n";

#[test]
fn servers_are_added_switched_and_removed_without_touching_the_rest() {
    let desk = Desk::new(MINE);
    let text = || fs::read_to_string(desk.home.file("config.toml")).unwrap();
    desk.says(&["add", "-e", "K=v=w", "git", "--", "uvx", "mcp-server-git", "--repo", "."]);
    let git = "\r\n[servers.git]\r\ncommand = \"uvx\"\r\nargs = [\"mcp-server-git\", \"--repo\", \".\"]\r\nenv = { K = \"v=w\" }\r\n";
    assert_eq!(text(), format!("{MINE}{git}"));
    desk.says(&["add", "docs", "https://example.test/mcp", "-H", "X-Key: ${env:K}", "-t", "http"]);
    let docs = "\r\n[servers.docs]\r\nurl = \"https://example.test/mcp\"\r\ntype = \"http\"\r\nheaders = { X-Key = \"${env:K}\" }\r\n";
    assert_eq!(text(), format!("{MINE}{git}{docs}"));
    assert_eq!(desk.names(), ["a", "docs", "git"]);
    desk.says(&["disable", "git"]);
    assert_eq!(desk.names(), ["a", "docs"]);
    desk.says(&["disable", "git"]);
    desk.says(&["enable", "git"]);
    assert_eq!(text(), format!("{MINE}{git}{docs}"));
    desk.says(&["rm", "git"]);
    desk.says(&["rm", "docs"]);
    assert_eq!(text(), MINE);
    for bad in [
        &["add", "a", "--", "x"][..],
        &["add", "Bad Name", "--", "x"],
        &["add", "u", "https://x.test/", "extra"],
        &["add", "-e", "novalue", "u", "--", "x"],
        &["add", "u", "--", "two words"],
        &["add", "-t", "http", "u", "nothing"],
        &["rm", "nobody"],
        &["disable", "nobody"],
    ] {
        let output = desk.run(bad);
        assert_eq!(output.status.code(), Some(1), "{bad:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("hint:"), "{bad:?}: {}", stderr(&output));
        assert_eq!(text(), MINE, "{bad:?}");
    }
    desk.home.write_config("[servers.a\n");
    assert_eq!(desk.run(&["add", "b", "--", "x"]).status.code(), Some(6), "a broken file is not made worse");
    assert_eq!(text(), "[servers.a\n");
}

#[test]
fn a_projects_file_that_we_write_ourselves_needs_no_second_look() {
    let desk = Desk::new(&server("mine"));
    desk.says(&["add", "--scope", "project", "db", "--", "./db-server"]);
    assert_eq!(desk.names(), ["db", "mine"]);
    desk.says(&["disable", "mine", "--scope", "project"]);
    assert_eq!(desk.names(), ["db"]);
    let elsewhere = desk.home.run(&["ls", "--json"]);
    assert!(String::from_utf8_lossy(&elsewhere.stdout).contains("\"mine\""));
    desk.says(&["enable", "mine", "--scope", "project"]);
    assert_eq!(desk.names(), ["db", "mine"]);
    desk.says(&["rm", "db", "--scope", "project"]);
    assert_eq!(desk.names(), ["mine"]);
    // One that somebody else wrote is not allowed because we changed it.
    fs::write(desk.file(), "[servers.evil]\ncommand = 'x'\n").unwrap();
    desk.says(&["add", "--scope", "project", "db", "--", "./db-server"]);
    assert_eq!(desk.names(), ["mine"]);
}

/// A port that nobody listens on just now.
fn free_port(address: &str) -> u16 {
    std::net::TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port()
}

fn serve_as(home: &Home, host: &str, listen: &str) -> Gateway {
    let mut command = home.command(&["serve", "--listen", listen]);
    command.env("TOOLCRIB_HOST", host).env("CRIB_TOKEN", "t0ken").current_dir(home.path());
    home.serve_by(command)
}

#[test]
fn a_server_that_one_host_runs_is_used_from_another_by_the_same_names() {
    let port = free_port("127.0.0.2");
    // The example of the guide, with an address and a server that are here.
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/GUIDE.md")).unwrap();
    let (_, section) = guide.split_once("### One host runs it").unwrap();
    let (_, example) =
        section.split_once("args = [\"-y\", \"@modelcontextprotocol/server-memory\"]").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let here =
        example.replace("\"still.local\"", "\"127.0.0.2\"").replace("port = 7717", &format!("port = {port}"));
    let config = server("memory") + &here;
    assert!(here.contains("127.0.0.2") && here.contains(&port.to_string()), "{here}");
    let [still, desk] = [(); 2].map(|()| Home::new(env!("CARGO_BIN_EXE_crib"), &config));
    let runs = serve_as(&still, "still", &format!("127.0.0.2:{port}"));
    let uses = serve_as(&desk, "desk.example", "127.0.0.1:0");
    let call = |home: &Home| {
        let output = deadline::output(home.command(&["call", "memory__pid"]).env("CRIB_TOKEN", "t0ken"));
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let pid = call(&desk);
    assert_eq!(call(&still), pid, "one process, whoever asks");
    assert_eq!((runs.children().len(), uses.children().len()), (1, 0));
    let why = |home: &Home, host: &str| {
        let output = deadline::output(home.command(&["why", "memory"]).env("TOOLCRIB_HOST", host));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(
        why(&still, "still").contains("it runs here, on `still`")
            || why(&still, "still").contains("the gateway of this host")
    );
    assert!(why(&desk, "desk").contains("it runs on `still`, and is reached there"));
    // Without the token, nobody is let in there.
    let stranger =
        Home::new(env!("CARGO_BIN_EXE_crib"), &config.replacen("token = \"${env:CRIB_TOKEN}\"", "", 1));
    let mut call = stranger.command(&["call", "memory__pid"]);
    let output = deadline::output(call.env("TOOLCRIB_HOST", "desk").env("CRIB_TOKEN", "t0ken"));
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn why_answers_at_once_over_a_thousand_servers() {
    let mut config = String::new();
    for n in 0..200 {
        config += &format!("[scopes.s{n}]\nmatch = {{ host = 'h{n}', os = 'linux' }}\ntags = ['t{n}']\n");
    }
    for n in 0..1000 {
        config += &format!("[servers.x{n}]\ncommand = 'x'\nargs = ['a', 'b']\nwhen = ['t{}']\n", n % 200);
    }
    let desk = Desk::new(&config);
    assert_eq!(desk.json(&["ls"]).as_array().unwrap().len(), 1000);
    let why = deadline::output(desk.command(&["why", "x7", "--json"]).env("TOOLCRIB_HOST", "h7"));
    let why: Value = serde_json::from_slice(&why.stdout).unwrap();
    assert_eq!((&why["active"], why["scopes"].as_array().unwrap().len()), (&json!(true), 200));
    assert!(Path::new(why["values"][0]["file"].as_str().unwrap()).ends_with("config.toml"));
}
