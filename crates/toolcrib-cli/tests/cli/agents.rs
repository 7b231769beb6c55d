//! Tests of `import`, `export` and `run` with a temporary home for the agents' files.

use super::*;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

const CLAUDE: &str = "{\n  \"numStartups\": 7\n}\n";

/// Returns a command whose `HOME` is in the temporary home.
pub(super) fn command(home: &Home, args: &[&str]) -> Command {
    let mut command = home.command(args);
    for variable in [
        "XDG_CONFIG_HOME",
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "GEMINI_CLI_HOME",
        "COPILOT_HOME",
        "OPENCODE_CONFIG",
    ] {
        command.env_remove(variable);
    }
    fs::create_dir_all(user_home(home)).unwrap();
    command.env("HOME", user_home(home)).current_dir(user_home(home));
    command
}

pub(super) fn run(home: &Home, args: &[&str]) -> RunResult {
    deadline::output(&mut command(home, args)).into()
}

pub(super) fn user_home(home: &Home) -> PathBuf {
    home.0.file("user")
}

fn write_claude_file(home: &Home, text: &str) -> PathBuf {
    let file = user_home(home).join(".claude.json");
    fs::create_dir_all(user_home(home)).unwrap();
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn export_from_the_cache_of_a_package_runner_warns() {
    let home = Home::with_demo_servers();
    let file = write_claude_file(&home, CLAUDE);
    let folder = user_home(&home).join(".cache/uv/archive-v0/x/bin");
    fs::create_dir_all(&folder).unwrap();
    let program = folder.join("toolcrib");
    fs::hard_link(PROGRAM, &program).or_else(|_| fs::copy(PROGRAM, &program).map(drop)).unwrap();
    let settings = command(&home, &[]);
    let mut export = Command::new(&program);
    for (name, value) in settings.get_envs() {
        match value {
            Some(value) => export.env(name, value),
            None => export.env_remove(name),
        };
    }
    // The runner puts its cache on the `PATH` of the program that it runs.
    let result: RunResult = deadline::output(export.env("PATH", &folder).args(["export", "claude"])).into();
    let result = result.expect(0);
    assert!(result.stderr.contains("in the cache of `uvx`"), "{}", result.stderr);
    assert!(result.stderr.contains("`uv tool install toolcrib`"), "{}", result.stderr);
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(written["mcpServers"]["toolcrib"]["command"], path_text(&program));
}

#[test]
fn export_dry_run_check_write_and_undo() {
    let home = Home::with_demo_servers();
    let file = write_claude_file(&home, CLAUDE);
    let shown = run(&home, &["export", "claude", "--dry-run"]).expect(0);
    assert!(
        shown.stdout.contains("+    \"toolcrib\": {") && shown.stdout.starts_with("--- "),
        "{}",
        shown.stdout
    );
    run(&home, &["export", "claude", "--check"]).expect(2);
    assert_eq!(fs::read_to_string(&file).unwrap(), CLAUDE, "dry run and check write nothing");
    let report = run(&home, &["export", "claude", "--json"]).expect(0).json();
    assert_eq!((&report["agent"], &report["changed"]), (&"claude".into(), &true.into()));
    assert_eq!(report["file"], file.canonicalize().unwrap().display().to_string());
    for key in ["diff", "warnings", "next_step"] {
        assert!(!report[key].is_null(), "{key}: {report}");
    }
    run(&home, &["export", "claude", "--check"]).expect(0);
    let again = run(&home, &["export", "claude"]).expect(0);
    assert!(again.stderr.contains("needs no change"), "{}", again.stderr);
    let written: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(written["mcpServers"]["toolcrib"]["args"][0], "stdio");
    run(&home, &["export", "claude", "--undo"]).expect(0);
    assert_eq!(fs::read_to_string(&file).unwrap(), CLAUDE);
    let nothing = run(&home, &["export", "claude", "--undo", "--json"]).expect(1);
    assert_eq!(nothing.error()["code"], "nothing_to_undo");
}

#[test]
fn exported_entry_starts_toolcrib() {
    let home = Home::with_demo_servers();
    write_claude_file(&home, CLAUDE);
    run(&home, &["export", "claude"]).expect(0);
    let written: Value =
        serde_json::from_str(&fs::read_to_string(user_home(&home).join(".claude.json")).unwrap()).unwrap();
    let entry = &written["mcpServers"]["toolcrib"];
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let mut child = Command::new(entry["command"].as_str().unwrap())
        .args(entry["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()))
        .envs(entry["env"].as_object().unwrap().iter().map(|(name, value)| (name, value.as_str().unwrap())))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{list}").unwrap();
    let line = Lines::new(child.stdout.take().unwrap()).next_line().unwrap();
    drop(stdin);
    deadline::wait(&mut child);
    assert!(line.contains("echo__"), "{line}");
}

#[test]
fn export_all_writes_only_detected_agents() {
    let home = Home::with_demo_servers();
    fs::create_dir_all(user_home(&home).join(".cursor")).unwrap();
    fs::create_dir_all(user_home(&home).join(".codex")).unwrap();
    let report = run(&home, &["export", "--all", "--json"]).expect(0).json();
    let agents: Vec<&str> =
        report.as_array().unwrap().iter().map(|agent| agent["agent"].as_str().unwrap()).collect();
    assert_eq!(agents, ["codex", "cursor"]);
    assert!(
        fs::read_to_string(user_home(&home).join(".codex/config.toml"))
            .unwrap()
            .contains("[mcp_servers.toolcrib]")
    );
    assert!(!user_home(&home).join(".gemini").exists());
    fs::write(user_home(&home).join(".codex/config.toml"), "broken = = 1\n").unwrap();
    fs::remove_file(user_home(&home).join(".cursor/mcp.json")).unwrap();
    let report = run(&home, &["export", "--all", "--json"]).expect(6).json();
    assert_eq!(
        (&report[0]["error"]["code"], &report[1]["changed"]),
        (&"agent_file_invalid".into(), &true.into())
    );
}

#[test]
fn export_refuses_invalid_agent_file() {
    let home = Home::with_demo_servers();
    let file = write_claude_file(&home, "{\n  // mine\n}\n");
    let refused = run(&home, &["export", "claude"]).expect(6);
    assert!(
        refused.stderr.contains(":2:3:") && refused.stderr.contains("nothing was changed"),
        "{}",
        refused.stderr
    );
    fs::remove_file(&file).unwrap();
    let made = Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    run(&home, &["export", "claude"]).expect(1);
    run(&home, &["import", "--from", "claude"]).expect(1);
    fs::remove_file(&file).unwrap();
    fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
    let large = run(&home, &["export", "claude"]).expect(1);
    assert!(large.stderr.contains("larger than"), "{}", large.stderr);
    let unknown = run(&home, &["export", "cladue", "--json"]).expect(1).error();
    assert_eq!(unknown["hint"], "did you mean `claude`?");
    run(&home, &["export", "windsurf", "--scope", "project"]).expect(1);
}

/// A limit on the file size fails in the middle of a write, like a full disk.
#[test]
fn failed_write_keeps_old_agent_file() {
    let home = Home::with_demo_servers();
    // The old file has exactly 40 blocks, so the new file, which is larger, cannot be written.
    let frame = "{\n  \"tips\": \"\"\n}\n";
    let old = frame.replace("\"\"", &format!("\"{}\"", "x".repeat(40 * 512 - frame.len())));
    let file = write_claude_file(&home, &old);
    for limit in [0, 8, 19, 40] {
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" export claude");
        let mut limited = command(&home, &[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, PROGRAM]).current_dir(user_home(&home)).env_clear();
        shell
            .envs(limited.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("PATH", "/usr/bin:/bin");
        limited.stdin(Stdio::null());
        let result = RunResult::from(deadline::output(&mut shell));
        assert_ne!(result.code, 0, "limit {limit}: {}{}", result.stdout, result.stderr);
        assert_eq!(fs::read_to_string(&file).unwrap(), old, "limit {limit}");
        let files: Vec<_> =
            fs::read_dir(user_home(&home)).unwrap().flatten().map(|found| found.file_name()).collect();
        assert_eq!(files, [".claude.json"], "limit {limit}");
    }
    run(&home, &["export", "claude"]).expect(0);
}

/// Tests the same with a small tmpfs that is really full, where one can be mounted.
#[test]
fn full_disk_keeps_old_agent_file() {
    let home = Home::with_demo_servers();
    let old = format!("{{\n  \"tips\": \"{}\"\n}}\n", "x".repeat(40 << 10));
    let kept = home.0.file("old.json");
    fs::write(&kept, &old).unwrap();
    let script = r#"mount -t tmpfs -o size=64k,mode=700 none "$HOME" || exit 77
        cd "$HOME" && cp "$0" .claude.json || exit 78
        "$1" export claude && exit 79
        cmp "$0" .claude.json && test "$(ls -A)" = .claude.json"#;
    let template = command(&home, &[]);
    let user = (!rustix::process::geteuid().is_root()).then_some("--map-root-user");
    let mut unshare = Command::new("unshare");
    unshare.arg("--mount").args(user).args(["sh", "-c", script]).arg(&kept).arg(PROGRAM).env_clear();
    unshare.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let result = RunResult::from(deadline::output(unshare.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")));
    if result.code == 77 || result.stderr.starts_with("unshare:") {
        return deadline::skip("cannot mount a tmpfs in a new namespace");
    }
    assert_eq!(result.code, 0, "{}{}", result.stdout, result.stderr);
    assert!(result.stderr.contains("cannot write"), "{}", result.stderr);
}

#[test]
fn unreadable_file_is_reported_and_kept() {
    let home = Home::with_demo_servers();
    let file = write_claude_file(&home, CLAUDE);
    for file in [&file, &home.0.file("config.toml")] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o000)).unwrap();
    }
    // Root can read every file, so the capabilities for that are dropped.
    let limited = |args: &[&str]| {
        let template = command(&home, args);
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-dac_override,-dac_read_search", PROGRAM]).args(args);
        command.envs(template.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(user_home(&home)).output().ok().map(RunResult::from)
    };
    let root = rustix::process::geteuid().is_root();
    let run = |args: &[&str]| if root { limited(args) } else { Some(run(&home, args)) };
    let Some(checked) = run(&["check"]) else {
        return deadline::skip("running as root without `setpriv`");
    };
    let checked = checked.expect(6);
    assert!(
        checked.stdout.contains("no permission to read") && checked.stdout.contains("chmod u+r"),
        "{}",
        checked.stdout
    );
    assert!(checked.stderr.contains("config.toml: 0 servers, 1 problem"), "{}", checked.stderr);
    let refused = run(&["export", "claude"]).unwrap().expect(1);
    assert!(
        refused.stderr.contains("cannot read") && refused.stderr.contains(".claude.json"),
        "{}",
        refused.stderr
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), CLAUDE);
}

#[test]
fn import_reports_every_entry_and_keeps_config() {
    let home = Home::new("# mine\n[servers.git] # first\ncommand = 'uvx'\n");
    let servers = r#"{"mcpServers": {
        "Files": {"command": "node", "args": ["x.mjs"], "env": {"API_KEY": "sk-abcdefgh12345678"}},
        "remote": {"command": "npx", "args": ["-y", "mcp-remote", "https://example.com/mcp"]},
        "toolcrib": {"command": "toolcrib", "args": ["stdio"]}
    }}"#;
    write_claude_file(&home, servers);
    let before = fs::read_to_string(home.config()).unwrap();
    let shown = run(&home, &["import", "--dry-run"]).expect(0);
    assert!(shown.stdout.contains("would import `Files`"), "{}", shown.stdout);
    assert!(shown.stdout.contains("`${secret:files-api-key}`"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("was stored"), "{}", shown.stdout);
    assert_eq!(fs::read_to_string(home.config()).unwrap(), before);
    let asked = run(&home, &["import"]).expect(2);
    assert!(asked.stdout.contains("would import `Files`"), "{}", asked.stdout);
    assert!(asked.stdout.contains("+ servers.files.command = \"node\""), "{}", asked.stdout);
    assert!(asked.stdout.contains("+ servers.files.args = [\"x.mjs\"]"), "{}", asked.stdout);
    assert!(
        asked.stderr.contains("nothing was imported") && asked.stderr.contains("--yes"),
        "{}",
        asked.stderr
    );
    let asked = run(&home, &["import", "--json"]).expect(2);
    assert_eq!(asked.json()["written"], false);
    assert_eq!(fs::read_to_string(home.config()).unwrap(), before);
    let report = run(&home, &["import", "--json", "--yes"]).expect(0).json();
    assert_eq!((&report["written"], &report["changed"]), (&true.into(), &true.into()));
    let verdicts: Vec<&str> = report["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["imported", "imported", "skipped"]);
    let after = fs::read_to_string(home.config()).unwrap();
    assert!(after.starts_with(&before) && after.contains("[servers.files]"), "{after}");
    assert!(after.contains("url = \"https://example.com/mcp\"") && !after.contains("sk-abcdefgh"), "{after}");
    assert!(report["entries"][1]["notes"].to_string().contains("`toolcrib login remote`"), "{report}");
    run(&home, &["check"]).expect(0);
    let again = run(&home, &["import"]).expect(0);
    assert!(
        again.stdout.contains("duplicate `Files`") && again.stderr.contains("0 of 3"),
        "{}",
        again.stdout
    );
    assert_eq!(fs::read_to_string(home.config()).unwrap(), after);
}

/// Returns a `toolcrib run` command with a script in place of the agent on `PATH`.
fn run_fake_agent(home: &Home, agent: &str, script: &str) -> Command {
    let bin = home.0.file("bin");
    fs::create_dir_all(&bin).unwrap();
    let program = bin.join(agent);
    process::write_program(&program, &format!("#!/bin/sh\n{script}\n"));
    let mut command = command(home, &["run", agent, "--", "-p", "two words"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    command
}

#[test]
fn run_passes_arguments_and_exit_code() {
    let home = Home::with_demo_servers();
    let mut command = run_fake_agent(&home, "claude", "printf '%s\\n' \"$@\"; exit 42");
    let result = RunResult::from(deadline::output(&mut command)).expect(42);
    let lines: Vec<&str> = result.stdout.lines().collect();
    assert!(lines[0].starts_with("--mcp-config={\"mcpServers\":{\"toolcrib\":{"), "{}", result.stdout);
    assert_eq!(lines[1..], ["-p", "two words"]);
    assert_eq!(fs::read_dir(user_home(&home)).unwrap().count(), 0);
    let missing = run(&home, &["run", "qwen"]).expect(4);
    assert!(missing.stderr.contains("install Qwen Code"), "{}", missing.stderr);
    run(&home, &["run", "zed"]).expect(1);
}

#[test]
fn commands_without_a_config_say_what_to_do() {
    let home = Home::new("");
    fs::remove_file(home.config()).unwrap();
    let mut agent = run_fake_agent(&home, "claude", "echo started");
    let ran = RunResult::from(deadline::output(&mut agent)).expect(6);
    assert!(!ran.stdout.contains("started"), "{}", ran.stdout);
    let results = [
        ran,
        home.run_with_input(&["stdio"], "").expect(6),
        run(&home, &["ui"]).expect(6),
        run(&home, &["tools"]).expect(6),
        run(&home, &["ls"]).expect(6),
    ];
    for RunResult { stderr, .. } in results {
        assert!(stderr.contains("config file not found") && stderr.contains("`toolcrib init`"), "{stderr}");
        assert!(stderr.contains("`toolcrib add "), "{stderr}");
    }
    let input = standalone::request(7, "initialize", "");
    let refused = home.run_with_input(&["stdio"], &input).expect(6).json();
    assert_eq!(refused["id"], 7, "an agent shows the answer, and no stderr");
    assert!(refused["error"]["message"].as_str().unwrap().contains("`toolcrib init`"), "{refused}");
    let exported = run(&home, &["export", "claude"]).expect(0);
    assert!(exported.stderr.contains("`toolcrib init`"), "{}", exported.stderr);
}

#[test]
fn entry_names_the_agent_and_the_profile() {
    let home = Home::new(&format!("[profiles.work]\nservers = [\"echo\"]\n{}", server("echo", "echo")));
    let file = write_claude_file(&home, CLAUDE);
    run(&home, &["export", "claude", "--profile", "work"]).expect(0);
    let args = || -> Value {
        let text = fs::read_to_string(&file).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["mcpServers"]["toolcrib"]["args"].clone()
    };
    let expected = serde_json::json!(["stdio", "--agent", "claude", "--profile", "work"]);
    assert_eq!(args(), expected);
    run(&home, &["export", "claude"]).expect(0);
    run(&home, &["export", "claude", "--check"]).expect(0);
    assert_eq!(args(), expected, "the profile stays");
    let mut agent = run_fake_agent(&home, "claude", "printf '%s\\n' \"$1\"");
    let shown = RunResult::from(deadline::output(&mut agent)).expect(0);
    assert!(shown.stdout.contains(r#""args":["stdio","--agent","claude"]"#), "{}", shown.stdout);
    for command in [&["export", "claude", "--profile", "wrok"][..], &["run", "claude", "--profile", "wrok"]] {
        let error = run(&home, command).expect(1);
        assert!(error.stderr.contains("did you mean `work`?"), "{}", error.stderr);
    }
}

#[test]
fn signal_reaches_agent() {
    let home = Home::with_demo_servers();
    let mut command =
        run_fake_agent(&home, "codex", "trap 'exit 17' TERM; echo ready; while :; do sleep 0.1; done");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = Lines::new(child.stdout.take().unwrap());
    assert_eq!(output.next_line().unwrap(), "ready");
    process::send_signal(child.id(), Signal::TERM);
    assert_eq!(deadline::wait(&mut child).code(), Some(17));
}

#[test]
fn export_replace_removes_only_servers_of_the_config() {
    let home = Home::new(&format!(
        "[servers.own]\ncommand = {PROGRAM:?}\nargs = [\"demo-server\", \"echo\"]\nenv = {{ API_TOKEN = \"${{secret:api-token}}\" }}\n"
    ));
    home.run_with_input(&["secret", "set", "api-token"], "abc-def-123\n").expect(0);
    let program = home.0.file("demo-program");
    std::os::unix::fs::symlink(PROGRAM, &program).unwrap();
    home.write(&fs::read_to_string(home.config()).unwrap().replace(PROGRAM, path_text(&program)));
    let entry = |args: &[&str], token: &str| serde_json::json!({"command": path_text(&program), "args": args, "env": {"API_TOKEN": token}});
    let before = serde_json::json!({"mcpServers": {
        "same": entry(&["demo-server", "echo"], "abc-def-123"),
        "other-token": entry(&["demo-server", "echo"], "xyz"),
        "other": entry(&["demo-server", "counter"], "abc-def-123"),
    }})
    .to_string();
    let file = write_claude_file(&home, &before);
    let shown = run(&home, &["export", "claude", "--replace", "--dry-run", "--json"]).expect(0).json();
    assert_eq!(shown["removed"], serde_json::json!(["same"]));
    assert!(!shown["diff"].as_str().unwrap().contains("abc-def-123"), "{shown}");
    let written = run(&home, &["export", "claude", "--replace"]).expect(0);
    assert!(written.stderr.contains("removed `same`, which toolcrib runs now"), "{}", written.stderr);
    let after: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    let names: Vec<&String> = after["mcpServers"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["other", "other-token", "toolcrib"]);
    run(&home, &["export", "claude", "--replace", "--check"]).expect(0);
    run(&home, &["export", "claude", "--undo"]).expect(0);
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    run(&home, &["export", "claude", "--replace", "--expand"]).expect(1);
}
