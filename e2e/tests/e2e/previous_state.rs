//! State on disk that the previous release wrote: it is read unchanged. The files are in `tests/fixtures/previous`.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{GatewayProcess, Home};
use test_support::process::{self, KillOnDrop};
use test_support::wait_until;
use toolcrib::config::text_digest;
use toolcrib::util::encoding::to_hex;

/// The description of the tool when it was approved.
const APPROVED: &str = "Searches the notes.";

fn fixture_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/previous").join(name)
}

fn fixture(name: &str) -> String {
    fs::read_to_string(fixture_path(name)).unwrap()
}

fn write_private(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns a home with the config of the previous release and these files of it.
fn home(files: &[&str]) -> Home {
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), &fixture("config.toml"));
    for name in files {
        write_private(&home.file(name), &fixture(name));
    }
    home
}

/// Makes the server available to commands that search in the `bin` folder of the home.
fn install_server(home: &Home, description: &str) {
    fs::create_dir_all(home.file("bin")).unwrap();
    let script = fixture("notes-server.sh").replace("DESCRIPTION", description);
    process::write_program(&home.file("bin/notes-server"), &script);
}

fn search_path(home: &Home) -> String {
    format!("{}:{}", home.file("bin").display(), std::env::var("PATH").unwrap())
}

fn serve(home: &Home) -> GatewayProcess {
    home.serve_with(|command| {
        command.env("PATH", search_path(home));
    })
}

fn client(gateway: &GatewayProcess) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", Era::Stateless)
}

fn search(gateway: &GatewayProcess) -> Value {
    let params = json!({"name": "notes__search", "arguments": {"text": "milk"}});
    client(gateway).request("tools/call", &params).message()
}

fn status(home: &Home) -> Value {
    parse_stdout(&home.run(&["status", "--json"]))
}

#[track_caller]
fn parse_stdout(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn previous_listing_is_served_without_starting_the_server() {
    let home = home(&["state/listings/notes-98d1ab59d2045656.json"]);
    // The program of the server does not exist, so only the stored listing can answer.
    let listed = parse_stdout(&home.run(&["tools", "--json"]));
    assert_eq!(
        (&listed["tools"][0]["name"], &listed["tools"][0]["description"]),
        (&json!("notes__search"), &json!(APPROVED)),
        "{listed}"
    );
    let gateway = home.serve();
    assert_eq!(client(&gateway).tools(), ["notes__search"]);
    let server = &status(&home)["servers"][0];
    assert_eq!(
        (&server["state"], &server["tools"], &server["protocol_version"]),
        (&json!("asleep"), &json!(1), &json!("2025-06-18")),
        "{server}"
    );
}

#[test]
fn previous_pins_recognize_the_approved_definition() {
    let home = home(&["state/pins/notes.json"]);
    install_server(&home, APPROVED);
    let gateway = serve(&home);
    assert_eq!(search(&gateway)["result"]["content"][0]["text"], "found");
    assert_eq!(status(&home)["servers"][0]["unapproved"], json!([]));
    // What the previous version did not pin is added.
    let approved = |text: &str| {
        let tool = &serde_json::from_str::<Value>(text).unwrap()["tools"]["search"];
        [tool["sha256"].clone(), tool["definition"].clone()]
    };
    let pins = fs::read_to_string(home.file("state/pins/notes.json")).unwrap();
    assert_eq!(approved(&pins), approved(&fixture("state/pins/notes.json")));
}

#[test]
fn previous_pins_report_a_changed_definition() {
    let home = home(&["state/pins/notes.json", "state/listings/notes-98d1ab59d2045656.json"]);
    install_server(&home, "Deletes the notes.");
    let gateway = serve(&home);
    assert_eq!(search(&gateway)["result"]["content"][0]["text"], "found");
    let is_reported =
        || status(&home)["servers"][0]["unapproved"] == json!([{"tool": "search", "change": "changed"}]);
    wait_until("the change is reported", is_reported);
    let shown = home.run(&["approve", "notes", "--json"]);
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    let error = serde_json::from_slice::<Value>(&shown.stderr).unwrap()["error"].clone();
    assert_eq!(error["tools"][0]["before"]["description"], APPROVED, "{error}");
}

#[expect(clippy::disallowed_methods, reason = "the usage file contains the wall time")]
fn unix_time_ms() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()
}

#[test]
fn previous_usage_counts_towards_the_quota() {
    for file in ["quota-killed.json", "quota-stopped.json"] {
        let home = home(&[]);
        install_server(&home, APPROVED);
        write_private(
            &home.file("state/quota.json"),
            &fixture(file).replace("AT", &unix_time_ms().to_string()),
        );
        let gateway = serve(&home);
        assert_eq!(status(&home)["quota"][0]["left"], 1, "{file}: two of three calls are used");
        assert_eq!(search(&gateway)["result"]["content"][0]["text"], "found");
        assert_eq!(search(&gateway)["error"]["code"], -31011, "{file}");
    }
}

#[test]
fn previous_secrets_are_decrypted_with_their_key() {
    let home = home(&["state/secrets/key.txt", "state/secrets/secrets.age"]);
    let fake = env!("CARGO_BIN_EXE_fake-server");
    home.write_config(&format!(
        "[servers.fake]\ncommand = '{fake}'\nenv = {{ A = '${{secret:token}}', B = '${{secret:other}}' }}\n\
         [secrets]\nbackend = 'file'\n"
    ));
    let listed = parse_stdout(&home.run(&["secret", "ls", "--json"]));
    let names: Vec<&Value> = listed.as_array().unwrap().iter().map(|secret| &secret["name"]).collect();
    assert_eq!(names, ["other", "token"], "{listed}");
    let gateway = home.serve();
    for (variable, value) in [("A", "first-secret"), ("B", "zweites=ü")] {
        assert_eq!(client(&gateway).text("fake__env", &json!({"name": variable})), value);
    }
    let removed = home.run(&["secret", "rm", "other"]);
    assert_eq!(removed.status.code(), Some(0), "{removed:?}");
    let listed = parse_stdout(&home.run(&["secret", "ls", "--json"]));
    assert_eq!(listed[0]["set"], false, "{listed}");
    assert_eq!(listed[1]["set"], true, "{listed}");
}

/// Returns the fields that identify a process in the journal: its pid and its start time.
fn identity(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    format!("{pid} {}", fields.split_whitespace().nth(19).unwrap())
}

/// The name of the journal entry, which its processes have in their environment.
const TREE: &str = "6ef1506b97b49d07";

/// The gateway that wrote the journal entry.
const DEAD_OWNER: &str = "18466 600463";

fn spawn_sleeper(tree: &str) -> KillOnDrop {
    KillOnDrop(Command::new("sleep").arg("600").env("TOOLCRIB_TREE", tree).spawn().unwrap())
}

/// Writes the journal entry with this server and returns the path.
fn write_journal_entry(home: &Home, owner: &str, server: u32) -> PathBuf {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let entry = fixture("trees/6ef1506b97b49d07")
        .replace("BOOT", boot.trim())
        .replace(DEAD_OWNER, owner)
        .replace("SERVER", &identity(server));
    let file = home.file("state/trees").join(TREE);
    write_private(&file, &entry);
    file
}

#[test]
fn previous_journal_entry_of_a_killed_gateway_is_swept() {
    let home = home(&[]);
    // One process is found by its pid, the other by its environment.
    let mut server = spawn_sleeper("");
    let mut descendant = spawn_sleeper(TREE);
    let mut unrelated = spawn_sleeper("0123456789abcdef");
    let file = write_journal_entry(&home, DEAD_OWNER, server.0.id());
    let _gateway = home.serve();
    wait_until("the entry is removed", || !file.exists());
    wait_until("the server is killed", || server.0.try_wait().unwrap().is_some());
    wait_until("its descendant is killed", || descendant.0.try_wait().unwrap().is_some());
    assert!(unrelated.0.try_wait().unwrap().is_none(), "a process of another tree is kept");
}

#[test]
fn previous_journal_entry_of_a_living_gateway_is_kept() {
    let home = home(&[]);
    // Not marked with the tree: the test above kills every process that is.
    let mut server = spawn_sleeper("");
    let file = write_journal_entry(&home, &identity(std::process::id()), server.0.id());
    let mut gateway = home.serve();
    gateway.stop();
    assert!(file.exists() && server.0.try_wait().unwrap().is_none());
}

/// Returns a command with the folder of the agents' files in the home.
fn agent_command(home: &Home, args: &[&str]) -> Command {
    let mut command = home.command(args);
    for variable in ["XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"] {
        command.env_remove(variable);
    }
    fs::create_dir_all(home.file("user")).unwrap();
    command.env("HOME", home.file("user")).current_dir(home.file("user"));
    command
}

/// Writes the file of an agent as the previous release left it, with its undo record, and returns the path.
fn write_export(home: &Home, agent: &str, name: &str) -> PathBuf {
    let file = home.path().canonicalize().unwrap().join("user").join(name);
    write_private(&file, &fixture(&format!("exports/{agent}/after")));
    let digest = to_hex(&text_digest(file.to_str().unwrap())[..16]);
    let log = home.file("state/exports").join(digest);
    let record = fixture(&format!("exports/{agent}/record.json"))
        .replace(&format!("/home/user/{name}"), file.to_str().unwrap());
    write_private(&log.join("1.json"), &record);
    let before = fixture_path(&format!("exports/{agent}/before"));
    if before.exists() {
        fs::copy(before, log.join("1.before")).unwrap();
    }
    file
}

#[test]
fn previous_export_is_undone_byte_for_byte() {
    let home = home(&[]);
    for (agent, name) in [("claude", ".claude.json"), ("codex", ".codex/config.toml")] {
        let file = write_export(&home, agent, name);
        let undone = agent_command(&home, &["export", agent, "--undo"]).output().unwrap();
        assert_eq!(undone.status.code(), Some(0), "{undone:?}");
        assert_eq!(fs::read_to_string(file).unwrap(), fixture(&format!("exports/{agent}/before")));
        let again = agent_command(&home, &["export", agent, "--undo"]).output().unwrap();
        assert_eq!(again.status.code(), Some(1), "the record is used up: {again:?}");
    }
    let created = write_export(&home, "cursor", ".cursor/mcp.json");
    let undone = agent_command(&home, &["export", "cursor", "--undo"]).output().unwrap();
    assert_eq!(undone.status.code(), Some(0), "{undone:?}");
    assert!(!created.exists(), "it did not exist before the export");
}

#[test]
fn previous_export_is_replaced_without_a_warning() {
    let home = home(&[]);
    let file = write_export(&home, "codex", ".codex/config.toml");
    let exported = agent_command(&home, &["export", "codex", "--json"]).output().unwrap();
    let result = parse_stdout(&exported);
    assert_eq!((&result["changed"], &result["warnings"]), (&json!(true), &json!([])), "{result}");
    for before in [fixture("exports/codex/after"), fixture("exports/codex/before")] {
        let undone = agent_command(&home, &["export", "codex", "--undo"]).output().unwrap();
        assert_eq!(undone.status.code(), Some(0), "{undone:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
    }
}

#[test]
fn previous_trust_record_allows_the_unchanged_project_file() {
    let home = home(&[]);
    home.write_config("");
    let project = home.path().canonicalize().unwrap().join("project");
    fs::create_dir_all(project.join(".git")).unwrap();
    let file = project.join(".toolcrib.toml");
    fs::write(&file, fixture("project.toml")).unwrap();
    let names = || {
        let listed = home.command(&["ls", "--json"]).current_dir(&project).output().unwrap();
        let listed = parse_stdout(&listed);
        listed.as_array().unwrap().iter().map(|server| server["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(), Vec::<Value>::new(), "not allowed yet");
    let key = to_hex(&text_digest(project.to_str().unwrap())[..8]);
    let record = fixture("allowed").replace("/home/user/notes/.toolcrib.toml", file.to_str().unwrap());
    write_private(&home.file("state/allowed").join(key), &record);
    assert_eq!(names(), ["notes"]);
    fs::write(&file, format!("{}args = [\"more\"]\n", fixture("project.toml"))).unwrap();
    assert_eq!(names(), Vec::<Value>::new(), "the file has changed");
}

#[test]
fn previous_log_and_audit_files_are_continued() {
    let home = home(&["state/logs/notes.log", "audit.jsonl"]);
    install_server(&home, APPROVED);
    let mut gateway = serve(&home);
    assert_eq!(search(&gateway)["result"]["content"][0]["text"], "found");
    gateway.stop();
    let log = fs::read_to_string(home.file("state/logs/notes.log")).unwrap();
    let added: Vec<&str> = log.strip_prefix(&fixture("state/logs/notes.log")).unwrap().lines().collect();
    assert!(added[0].contains(" toolcrib: started as pid "), "{log}");
    let audit = fs::read_to_string(home.file("audit.jsonl")).unwrap();
    let added = audit.strip_prefix(&fixture("audit.jsonl")).unwrap();
    let members = |line: &str| -> Vec<String> {
        let line: Value = serde_json::from_str(line).unwrap();
        // Lines of the previous version have no link and no id.
        let added = ["chain", "hash", "id"];
        line.as_object().unwrap().keys().filter(|name| !added.contains(&name.as_str())).cloned().collect()
    };
    assert_eq!(members(added.trim_end()), members(fixture("audit.jsonl").lines().next().unwrap()));
}
