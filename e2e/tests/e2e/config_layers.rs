//! Several config files, project files and scopes: which servers are active and why, and the commands that change it.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::deadline;
use test_support::gateway::{GatewayProcess, Home};
use test_support::{http, wait_until};

fn server(name: &str) -> String {
    test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, &[])
}

/// A user's home folder and a project folder.
struct Workspace {
    home: Home,
    project: tempfile::TempDir,
}

impl Workspace {
    fn new(config: &str) -> Self {
        let home = Home::new(env!("CARGO_BIN_EXE_crib"), config);
        let project = tempfile::TempDir::new().unwrap();
        fs::create_dir(project.path().join(".git")).unwrap();
        Self { home, project }
    }

    fn project_file(&self) -> PathBuf {
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

    /// Runs a command that must succeed and returns its stdout.
    fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(&[args, &["--json"]].concat())).unwrap()
    }

    fn active_servers(&self) -> Vec<String> {
        let listed = self.json(&["ls"]);
        let active = listed.as_array().unwrap().iter().filter(|server| server["active"] == true);
        active.map(|server| server["name"].as_str().unwrap().to_owned()).collect()
    }

    fn serve(&self) -> GatewayProcess {
        self.home.serve_with(|command| {
            command.current_dir(self.project.path());
        })
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn served_names(gateway: &GatewayProcess) -> Vec<String> {
    let status = http::request(gateway.address, "GET", "/api/v1/status", &[], b"").message();
    let servers = status["servers"].as_array().unwrap().iter();
    servers.map(|server| server["name"].as_str().unwrap().to_owned()).collect()
}

fn generation(gateway: &GatewayProcess) -> u64 {
    let status = http::request(gateway.address, "GET", "/api/v1/status", &[], b"").message();
    status["config"]["generation"].as_u64().unwrap()
}

#[test]
fn project_file_is_used_only_while_its_content_is_allowed() {
    let workspace = Workspace::new(&server("mine"));
    fs::write(workspace.project_file(), server("theirs")).unwrap();
    assert_eq!(workspace.active_servers(), ["mine"]);
    for command in [&["ls"][..], &["why", "mine"], &["tools"], &["status"]] {
        let stderr = stderr(&workspace.run(command));
        assert!(stderr.contains("is not allowed yet") && stderr.contains("toolcrib allow"), "{stderr}");
    }
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("is not allowed yet"));
    workspace.stdout(&["allow", "--yes"]);
    assert_eq!(workspace.active_servers(), ["mine", "theirs"]);
    assert_eq!(stderr(&workspace.run(&["ls"])), "");
    fs::write(workspace.project_file(), server("others")).unwrap();
    assert_eq!(workspace.active_servers(), ["mine"]);
    assert!(stderr(&workspace.run(&["ls"])).contains("changed since it was allowed"));
    workspace.stdout(&["allow", "--yes"]);
    assert_eq!(workspace.active_servers(), ["mine", "others"]);
    workspace.stdout(&["allow", "--revoke"]);
    assert_eq!(workspace.active_servers(), ["mine"]);
    let config = workspace.home.file("config.toml");
    workspace.stdout(&["allow", "--yes"]);
    let listed = workspace.json(&["ls", "--config", config.to_str().unwrap()]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "--config reads only that file");
}

#[test]
fn project_file_patches_servers_and_why_shows_the_source() {
    let workspace = Workspace::new(
        &(server("a") + "[servers.a.lifecycle]\nkeep-alive = '1m'\n[servers.b]\ncommand = 'x'\n"),
    );
    fs::write(
        workspace.project_file(),
        "[servers.a]\nlifecycle.keep-alive = '2m'\n[servers.b]\nenabled = false\n",
    )
    .unwrap();
    workspace.stdout(&["allow", "--yes"]);
    let why = workspace.json(&["why", "a"]);
    assert_eq!((&why["active"], &why["name"]), (&json!(true), &json!("a")));
    let values = why["values"].as_array().unwrap();
    let keep_alive = values.iter().find(|value| value["key"] == "lifecycle.keep-alive").unwrap();
    assert_eq!((&keep_alive["value"], &keep_alive["line"]), (&json!("2m"), &json!(2)));
    assert_eq!(
        keep_alive["file"].as_str().unwrap(),
        workspace.project_file().canonicalize().unwrap().to_str().unwrap()
    );
    assert_eq!(keep_alive["overrides"][0]["value"], "1m");
    let listed = workspace.json(&["ls"]);
    let b = &listed[1];
    assert_eq!((&b["active"], &b["enabled"]), (&json!(false), &json!(false)));
    assert_eq!(b["reason"], workspace.json(&["why", "b"])["reason"]);
    assert!(workspace.stdout(&["why", "b"]).starts_with("b: off: disabled in "));
    assert!(workspace.stdout(&["show", "a"]).contains("lifecycle.keep-alive = \"2m\""));
    let unknown = workspace.run(&["why", "bb"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("did you mean `b`?"), "{}", stderr(&unknown));
}

/// A server that writes its environment to a file and exits.
fn environment_dump(file: &Path) -> String {
    format!("command = 'sh'\nargs = ['-c', 'env > {}']\n", file.display())
}

#[test]
fn allow_shows_every_change_and_asks() {
    let workspace = Workspace::new(
        "[servers.docs]\nurl = 'https://docs.test/mcp'\nheaders = { Authorization = 'Bearer c4nary' }\n\
         [servers.known]\ncommand = 'x'\nenv = { API = '${secret:api}', B = 'c4nary' }\n",
    );
    let project = "[servers.docs]\nurl = 'http://127.0.0.1:1/x'\n[servers.known]\ncommand = 'sh'\ntools.deny = ['*']\n\
                   [servers.new]\ncommand = 'sh'\nargs = ['-c', \"\\u001b[2Kls\"]\nenv = { LD_PRELOAD = './x.so' }\n";
    fs::write(workspace.project_file(), project).unwrap();
    let shown = workspace.run(&["allow"]);
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    let stdout = String::from_utf8(shown.stdout.clone()).unwrap();
    for line in [
        r#"- servers.docs.headers.Authorization = "(hidden)""#,
        r#"- servers.docs.url = "https://docs.test/mcp""#,
        r#"+ servers.docs.url = "http://127.0.0.1:1/x""#,
        r#"- servers.known.env.API = "${secret:api}""#,
        r#"+ servers.known.tools.deny = ["*"]"#,
        r#"+ servers.new.env.LD_PRELOAD = "./x.so""#,
        r#"+ servers.new.args = ["-c","\u001b[2Kls"]"#,
    ] {
        assert!(stdout.contains(line), "{line}\n{stdout}");
    }
    assert!(!stdout.contains("c4nary") && !stdout.contains('\u{1b}'), "{stdout}");
    assert!(stderr(&shown).contains("toolcrib allow --yes"), "{}", stderr(&shown));
    let plan: Value = serde_json::from_slice(&workspace.run(&["allow", "--json"]).stdout).unwrap();
    assert_eq!((&plan["allowed"], &plan["changes"][0]["after"]), (&json!(false), &Value::Null));
    assert!(stderr(&workspace.run(&["ls"])).contains("is not allowed yet"), "nothing was recorded");
    assert_eq!(workspace.json(&["allow", "--yes"])["allowed"], true);
    let why = workspace.stdout(&["why", "known"]);
    assert!(why.contains("withholds env.API = \"${secret:api}\""), "{why}");
    assert_eq!(workspace.json(&["why", "known"])["values"][0]["withheld"][0]["key"], "env.API");
}

#[test]
fn credentials_do_not_reach_what_a_project_names() {
    let workspace = Workspace::new("");
    let dump = workspace.home.file("dump");
    workspace.home.write_config(
        "[servers.known]\ncommand = 'true'\nenv = { API = 'c4nary' }\ninherit-env = ['MINE']\n\
         [defaults]\ninherit-env = ['MINE']\n",
    );
    for name in ["known", "theirs"] {
        let project = format!("[servers.{name}]\n{}", environment_dump(&dump));
        fs::write(workspace.project_file(), project).unwrap();
        workspace.stdout(&["allow", "--yes"]);
        let mut command = workspace.command(&["call", &format!("{name}.x")]);
        deadline::output(command.env("MINE", "c4nary"));
        let environment = fs::read_to_string(&dump).unwrap();
        assert!(environment.contains("PATH=") && !environment.contains("c4nary"), "{name}: {environment}");
        fs::remove_file(&dump).unwrap();
    }
}

#[test]
fn hosts_and_profiles_of_a_project_are_refused() {
    let workspace = Workspace::new("");
    for section in ["[hosts.still]\naddress = '127.0.0.1'\n", "[profiles.safe]\ndeny = []\n"] {
        fs::write(workspace.project_file(), section).unwrap();
        let refused = workspace.run(&["allow", "--yes"]);
        assert_eq!(refused.status.code(), Some(6), "{refused:?}");
        assert!(stderr(&refused).contains("a project config cannot set"), "{}", stderr(&refused));
    }
}

#[test]
fn scopes_match_project_environment_and_host() {
    let workspace = Workspace::new(
        "[scopes.rust]\nmatch = { files = 'Cargo.toml' }\ntags = ['code']\n\
         [scopes.ci]\nmatch = { env = { CRIB_CI = 'yes' }, os = 'linux' }\ntags = ['ci']\n\
         [scopes.box]\nmatch = { host = 'box-*' }\ntags = ['box']\n\
         [servers.a]\ncommand = 'x'\nwhen = ['code']\n[servers.b]\ncommand = 'x'\nwhen = { all = ['ci'], not = ['code'] }\n\
         [servers.c]\ncommand = 'x'\nwhen = ['box', 'hand']\n[servers.d]\ncommand = 'x'\n",
    );
    let active = |change: &dyn Fn(&mut Command)| {
        let mut command = workspace.command(&["ls", "--json"]);
        change(&mut command);
        let listed: Value = serde_json::from_slice(&deadline::output(&mut command).stdout).unwrap();
        let active = listed.as_array().unwrap().iter().filter(|server| server["active"] == true);
        active.map(|server| server["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(active(&|_| {}), ["d"]);
    assert_eq!(
        active(&|command| {
            command.env("CRIB_CI", "yes");
        }),
        ["b", "d"]
    );
    assert_eq!(
        active(&|command| {
            command.env("TOOLCRIB_HOST", "box-7");
        }),
        ["c", "d"]
    );
    assert_eq!(
        active(&|command| {
            command.env("TOOLCRIB_TAGS", "x, hand");
        }),
        ["c", "d"]
    );
    fs::write(workspace.project.path().join("Cargo.toml"), "").unwrap();
    assert_eq!(
        active(&|command| {
            command.env("CRIB_CI", "yes");
        }),
        ["a", "d"]
    );
    let below = workspace.project.path().join("src");
    fs::create_dir(&below).unwrap();
    assert_eq!(
        active(&|command| {
            command.current_dir(&below);
        }),
        ["a", "d"],
        "the project folder counts"
    );
    let why = workspace.json(&["why", "a"]);
    assert_eq!(
        why["scopes"][0],
        json!({"name": "rust", "matched": true, "fact": "found `Cargo.toml`", "tags": ["code"],
        "file": workspace.home.file("config.toml"), "line": 1})
    );
    assert_eq!(why["tags"]["wanted"]["any"], json!(["code"]));
    let gateway = workspace.serve();
    assert_eq!(served_names(&gateway), ["a", "d"], "inactive servers are not served");
}

#[test]
fn why_answers_for_assumed_facts() {
    let config = r#"
        [scopes.office]
        match = { host = "desk-*", network = { cidr = "10.1.0.0/16" } }
        tags = ["office"]
        [servers.tickets]
        command = "tickets-server"
        when = ["office"]
    "#;
    let workspace = Workspace::new(config);
    let is_active = |facts: &str| workspace.json(&["why", "tickets", "--as", facts])["active"].clone();
    assert_eq!(is_active("host=desk-7,network=10.1.0.0/16"), json!(true));
    assert_eq!(is_active("host=desk-7,network=10.2.0.0/16"), json!(false));
    assert_eq!(is_active("host=laptop,network=10.1.9.9"), json!(false));
    assert_eq!(is_active("host=laptop,network=10.2.0.1,tag=office"), json!(true));
    let invalid = workspace.run(&["why", "tickets", "--as", "network=here"]);
    assert_eq!(invalid.status.code(), Some(1));
    let message = String::from_utf8_lossy(&invalid.stderr);
    assert!(message.contains("cannot assume `network=here`"), "{message}");
}

#[test]
fn every_layer_is_watched_and_an_invalid_one_changes_nothing() {
    let workspace = Workspace::new(&server("mine"));
    fs::write(workspace.project_file(), server("theirs")).unwrap();
    workspace.stdout(&["allow", "--yes"]);
    let gateway = workspace.serve();
    assert_eq!(served_names(&gateway), ["mine", "theirs"]);
    let pid = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("mine__pid", &json!({}));
    // The command line in the project finds this gateway, and only there.
    assert_eq!(workspace.json(&["status"])["pid"], gateway.pid());
    assert_eq!(workspace.home.run(&["status"]).status.code(), Some(4));
    // A changed project file is not allowed: reported, and the old config stays in effect.
    fs::write(workspace.project_file(), server("others")).unwrap();
    wait_until("the change is noticed", || {
        workspace.json(&["status"])["config"]["problems"].to_string().contains("changed since it was allowed")
    });
    assert_eq!(served_names(&gateway), ["mine", "theirs"]);
    workspace.stdout(&["allow", "--yes"]);
    wait_until("the allowed file is used", || served_names(&gateway) == ["mine", "others"]);
    workspace.home.write_config(&(server("mine") + &server("more")));
    wait_until("the other layer is reloaded", || served_names(&gateway) == ["mine", "more", "others"]);
    let before = generation(&gateway);
    workspace.home.write_config("[servers.broken\n");
    wait_until("the invalid file is reported", || {
        workspace.json(&["status"])["config"]["problems"].to_string().contains("config.toml")
    });
    assert_eq!((served_names(&gateway).len(), generation(&gateway)), (3, before));
    let after = HttpClient::new(gateway.address, "/mcp", Era::Stateless).text("mine__pid", &json!({}));
    assert_eq!(after, pid, "an unchanged server keeps its process");
}

#[test]
fn unsuitable_project_files_are_refused_without_blocking() {
    let workspace = Workspace::new(&server("mine"));
    let file = workspace.project_file();
    let assert_refused = |reason: &str| {
        let output = workspace.run(&["allow", "--yes"]);
        assert!(!output.status.success(), "{reason}");
        assert!(stderr(&output).contains(reason), "{reason}: {}", stderr(&output));
        assert_eq!(workspace.active_servers(), ["mine"]);
    };
    fs::create_dir(&file).unwrap();
    assert_refused("not a regular file");
    fs::remove_dir(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    assert_refused("not a regular file");
    fs::remove_file(&file).unwrap();
    fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
    assert_refused("larger than 64 MiB");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(workspace.home.file("config.toml"), &file).unwrap();
    assert_refused("link to a file in another folder");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&file, &file).unwrap();
    assert_refused("cannot read");
    fs::remove_file(&file).unwrap();
    fs::write(&file, "[servers.half").unwrap();
    assert_refused("is invalid");
    fs::write(&file, "include = ['.toolcrib.toml']\n").unwrap();
    assert_refused("is invalid");
    fs::write(&file, "[callers.me]\ntoken = 't'\nadmin = true\n").unwrap();
    assert_refused("is invalid");
}

const CONFIG: &str = "\u{feff}# mine\r\n\r\n[servers.a]   # first\r\ncommand = 'x'\r\n\r\n# the end\r\n";

#[test]
fn add_enable_and_rm_keep_the_rest_of_the_file() {
    let workspace = Workspace::new(CONFIG);
    let text = || fs::read_to_string(workspace.home.file("config.toml")).unwrap();
    workspace.stdout(&["add", "-e", "K=v=w", "git", "--", "uvx", "mcp-server-git", "--repo", "."]);
    let git = "\r\n[servers.git]\r\ncommand = \"uvx\"\r\nargs = [\"mcp-server-git\", \"--repo\", \".\"]\r\nenv = { K = \"v=w\" }\r\n";
    assert_eq!(text(), format!("{CONFIG}{git}"));
    workspace.stdout(&["add", "docs", "https://example.test/mcp", "-H", "X-Key: ${env:K}", "-t", "http"]);
    let docs = "\r\n[servers.docs]\r\nurl = \"https://example.test/mcp\"\r\ntype = \"http\"\r\nheaders = { X-Key = \"${env:K}\" }\r\n";
    assert_eq!(text(), format!("{CONFIG}{git}{docs}"));
    assert_eq!(workspace.active_servers(), ["a", "docs", "git"]);
    workspace.stdout(&["disable", "git"]);
    assert_eq!(workspace.active_servers(), ["a", "docs"]);
    workspace.stdout(&["disable", "git"]);
    workspace.stdout(&["enable", "git"]);
    assert_eq!(text(), format!("{CONFIG}{git}{docs}"));
    workspace.stdout(&["rm", "git"]);
    workspace.stdout(&["rm", "docs"]);
    assert_eq!(text(), CONFIG);
    for args in [
        &["add", "a", "--", "x"][..],
        &["add", "Bad Name", "--", "x"],
        &["add", "u", "https://x.test/", "extra"],
        &["add", "-e", "novalue", "u", "--", "x"],
        &["add", "u", "--", "two words"],
        &["add", "-t", "http", "u", "nothing"],
        &["rm", "absent"],
        &["disable", "absent"],
    ] {
        let output = workspace.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("hint:"), "{args:?}: {}", stderr(&output));
        assert_eq!(text(), CONFIG, "{args:?}");
    }
    workspace.home.write_config("[servers.a\n");
    assert_eq!(
        workspace.run(&["add", "b", "--", "x"]).status.code(),
        Some(6),
        "an invalid file is not changed"
    );
    assert_eq!(text(), "[servers.a\n");
}

#[test]
fn project_file_written_by_a_command_stays_allowed() {
    let workspace = Workspace::new(&server("mine"));
    workspace.stdout(&["add", "--scope", "project", "db", "--", "./db-server"]);
    assert_eq!(workspace.active_servers(), ["db", "mine"]);
    workspace.stdout(&["disable", "mine", "--scope", "project"]);
    assert_eq!(workspace.active_servers(), ["db"]);
    let outside = workspace.home.run(&["ls", "--json"]);
    assert!(String::from_utf8_lossy(&outside.stdout).contains("\"mine\""));
    workspace.stdout(&["enable", "mine", "--scope", "project"]);
    assert_eq!(workspace.active_servers(), ["db", "mine"]);
    workspace.stdout(&["rm", "db", "--scope", "project"]);
    assert_eq!(workspace.active_servers(), ["mine"]);
    // A file that was not allowed before is not allowed by a command that changes it.
    fs::write(workspace.project_file(), "[servers.evil]\ncommand = 'x'\n").unwrap();
    workspace.stdout(&["add", "--scope", "project", "db", "--", "./db-server"]);
    assert_eq!(workspace.active_servers(), ["mine"]);
}

/// Returns a port that is free at the moment.
fn free_port(address: &str) -> u16 {
    std::net::TcpListener::bind((address, 0)).unwrap().local_addr().unwrap().port()
}

fn serve_on_host(home: &Home, host: &str, listen: &str) -> GatewayProcess {
    let mut command = home.command(&["serve", "--listen", listen]);
    command.env("TOOLCRIB_HOST", host).env("CRIB_TOKEN", "t0ken").current_dir(home.path());
    home.serve_command(command)
}

#[test]
fn server_of_another_host_is_used_under_the_same_names() {
    let port = free_port("127.0.0.2");
    // The example of the configuration page, with a local address and server.
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md")).unwrap();
    let (_, section) = guide.split_once("## Run a server on one host").unwrap();
    let (_, example) =
        section.split_once("args = [\"-y\", \"@modelcontextprotocol/server-memory\"]").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let local =
        example.replace("\"still.local\"", "\"127.0.0.2\"").replace("port = 7717", &format!("port = {port}"));
    let config = server("memory") + &local;
    assert!(local.contains("127.0.0.2") && local.contains(&port.to_string()), "{local}");
    let [still, laptop] = [(); 2].map(|()| Home::new(env!("CARGO_BIN_EXE_crib"), &config));
    let runs = serve_on_host(&still, "still", &format!("127.0.0.2:{port}"));
    let uses = serve_on_host(&laptop, "laptop.example", "127.0.0.1:0");
    let call = |home: &Home| {
        let output = deadline::output(home.command(&["call", "memory__pid"]).env("CRIB_TOKEN", "t0ken"));
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let pid = call(&laptop);
    assert_eq!(call(&still), pid, "both hosts use one process");
    assert_eq!((runs.children().len(), uses.children().len()), (1, 0));
    let why = |home: &Home, host: &str| {
        let output = deadline::output(home.command(&["why", "memory"]).env("TOOLCRIB_HOST", host));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(
        why(&still, "still").contains("runs here, on `still`")
            || why(&still, "still").contains("the gateway of this host")
    );
    assert!(why(&laptop, "laptop").contains("runs on the host `still`"));
    // Without the token, the other host refuses.
    let without_token =
        Home::new(env!("CARGO_BIN_EXE_crib"), &config.replacen("token = \"${env:CRIB_TOKEN}\"", "", 1));
    let mut call = without_token.command(&["call", "memory__pid"]);
    let output = deadline::output(call.env("TOOLCRIB_HOST", "laptop").env("CRIB_TOKEN", "t0ken"));
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn why_works_with_a_thousand_servers() {
    let mut config = String::new();
    for n in 0..200 {
        config += &format!("[scopes.s{n}]\nmatch = {{ host = 'h{n}', os = 'linux' }}\ntags = ['t{n}']\n");
    }
    for n in 0..1000 {
        config += &format!("[servers.x{n}]\ncommand = 'x'\nargs = ['a', 'b']\nwhen = ['t{}']\n", n % 200);
    }
    let workspace = Workspace::new(&config);
    assert_eq!(workspace.json(&["ls"]).as_array().unwrap().len(), 1000);
    let why = deadline::output(workspace.command(&["why", "x7", "--json"]).env("TOOLCRIB_HOST", "h7"));
    let why: Value = serde_json::from_slice(&why.stdout).unwrap();
    assert_eq!((&why["active"], why["scopes"].as_array().unwrap().len()), (&json!(true), 200));
    assert!(Path::new(why["values"][0]["file"].as_str().unwrap()).ends_with("config.toml"));
}
