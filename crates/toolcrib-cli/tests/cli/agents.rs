//! `import`, `export` and `run` as people and scripts meet them; the agents' home is the test's own.

use super::*;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;

const CLAUDE: &str = "{\n  \"numStartups\": 7\n}\n";

/// A command whose `HOME` is below the test's own, where agents keep their files.
fn command(home: &Home, args: &[&str]) -> Command {
    let mut command = home.command(args);
    for moved in [
        "XDG_CONFIG_HOME",
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "GEMINI_CLI_HOME",
        "COPILOT_HOME",
        "OPENCODE_CONFIG",
    ] {
        command.env_remove(moved);
    }
    fs::create_dir_all(user(home)).unwrap();
    command.env("HOME", user(home)).current_dir(user(home));
    command
}

fn run(home: &Home, args: &[&str]) -> Ended {
    deadline::output(&mut command(home, args)).into()
}

fn user(home: &Home) -> PathBuf {
    home.0.file("user")
}

fn claude(home: &Home, text: &str) -> PathBuf {
    let file = user(home).join(".claude.json");
    fs::create_dir_all(user(home)).unwrap();
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn an_export_is_shown_checked_written_and_taken_back() {
    let home = Home::with_demo_servers();
    let file = claude(&home, CLAUDE);
    let shown = run(&home, &["export", "claude", "--dry-run"]).expect(0);
    assert!(
        shown.stdout.contains("+    \"toolcrib\": {") && shown.stdout.starts_with("--- "),
        "{}",
        shown.stdout
    );
    run(&home, &["export", "claude", "--check"]).expect(2);
    assert_eq!(fs::read_to_string(&file).unwrap(), CLAUDE, "nothing is written before it is asked for");
    let told = run(&home, &["export", "claude", "--json"]).expect(0).json();
    assert_eq!((&told["agent"], &told["changed"]), (&"claude".into(), &true.into()));
    assert_eq!(told["file"], file.canonicalize().unwrap().display().to_string());
    for key in ["diff", "warnings", "next_step"] {
        assert!(!told[key].is_null(), "{key}: {told}");
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
fn the_entry_that_was_written_starts_toolcrib() {
    let home = Home::with_demo_servers();
    claude(&home, CLAUDE);
    run(&home, &["export", "claude"]).expect(0);
    let written: Value =
        serde_json::from_str(&fs::read_to_string(user(&home).join(".claude.json")).unwrap()).unwrap();
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
fn every_agent_that_is_there_is_told_and_no_other() {
    let home = Home::with_demo_servers();
    fs::create_dir_all(user(&home).join(".cursor")).unwrap();
    fs::create_dir_all(user(&home).join(".codex")).unwrap();
    let told = run(&home, &["export", "--all", "--json"]).expect(0).json();
    let agents: Vec<&str> =
        told.as_array().unwrap().iter().map(|agent| agent["agent"].as_str().unwrap()).collect();
    assert_eq!(agents, ["codex", "cursor"]);
    assert!(
        fs::read_to_string(user(&home).join(".codex/config.toml"))
            .unwrap()
            .contains("[mcp_servers.toolcrib]")
    );
    assert!(!user(&home).join(".gemini").exists());
    fs::write(user(&home).join(".codex/config.toml"), "broken = = 1\n").unwrap();
    fs::remove_file(user(&home).join(".cursor/mcp.json")).unwrap();
    let told = run(&home, &["export", "--all", "--json"]).expect(6).json();
    assert_eq!(
        (&told[0]["error"]["code"], &told[1]["changed"]),
        (&"agent_file_invalid".into(), &true.into())
    );
}

#[test]
fn what_cannot_be_an_agents_file_is_refused_at_once() {
    let home = Home::with_demo_servers();
    let file = claude(&home, "{\n  // mine\n}\n");
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

/// A limit on the size of files does what a full disk does: the write fails in the middle.
#[test]
fn a_disk_that_is_full_leaves_the_old_file() {
    let home = Home::with_demo_servers();
    // As large as 40 blocks take: what was there can be kept, what comes in its place cannot be written.
    let frame = "{\n  \"tips\": \"\"\n}\n";
    let old = frame.replace("\"\"", &format!("\"{}\"", "x".repeat(40 * 512 - frame.len())));
    let file = claude(&home, &old);
    for limit in [0, 8, 19, 40] {
        let script = format!("trap '' XFSZ; ulimit -f {limit}; exec \"$0\" export claude");
        let mut limited = command(&home, &[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, PROGRAM]).current_dir(user(&home)).env_clear();
        shell
            .envs(limited.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("PATH", "/usr/bin:/bin");
        limited.stdin(Stdio::null());
        let ended = Ended::from(deadline::output(&mut shell));
        assert_ne!(ended.code, 0, "limit {limit}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(fs::read_to_string(&file).unwrap(), old, "limit {limit}");
        let left: Vec<_> =
            fs::read_dir(user(&home)).unwrap().flatten().map(|found| found.file_name()).collect();
        assert_eq!(left, [".claude.json"], "limit {limit}");
    }
    run(&home, &["export", "claude"]).expect(0);
}

/// The same on a disk that really is: a small one of its own, where there is one to be had.
#[test]
fn a_small_disk_that_fills_during_an_export_leaves_the_old_file() {
    let home = Home::with_demo_servers();
    let old = format!("{{\n  \"tips\": \"{}\"\n}}\n", "x".repeat(40 << 10));
    let kept = home.0.file("old.json");
    fs::write(&kept, &old).unwrap();
    let script = r#"mount -t tmpfs -o size=64k,mode=700 none "$HOME" || exit 77
        cd "$HOME" && cp "$0" .claude.json || exit 78
        "$1" export claude && exit 79
        cmp "$0" .claude.json && test "$(ls -A)" = .claude.json"#;
    let wanted = command(&home, &[]);
    let user = (!rustix::process::geteuid().is_root()).then_some("--map-root-user");
    let mut alone = Command::new("unshare");
    alone.arg("--mount").args(user).args(["sh", "-c", script]).arg(&kept).arg(PROGRAM).env_clear();
    alone.envs(wanted.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let ended = Ended::from(deadline::output(alone.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")));
    if ended.code == 77 || ended.stderr.starts_with("unshare:") {
        return deadline::skip("no tmpfs can be mounted in a namespace of its own");
    }
    assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("cannot write"), "{}", ended.stderr);
}

#[test]
fn what_may_not_be_read_is_said_and_stays() {
    let home = Home::with_demo_servers();
    let file = claude(&home, CLAUDE);
    for file in [&file, &home.0.file("config.toml")] {
        fs::set_permissions(file, fs::Permissions::from_mode(0o000)).unwrap();
    }
    // Root reads everything, unless it may not.
    let limited = |args: &[&str]| {
        let wanted = command(&home, args);
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-dac_override,-dac_read_search", PROGRAM]).args(args);
        command.envs(wanted.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(user(&home)).output().ok().map(Ended::from)
    };
    let root = rustix::process::geteuid().is_root();
    let run = |args: &[&str]| if root { limited(args) } else { Some(run(&home, args)) };
    let Some(checked) = run(&["check"]) else {
        return deadline::skip("root reads every file, and there is no `setpriv` to prevent it");
    };
    let checked = checked.expect(6);
    assert!(
        checked.stdout.contains("may not be read") && checked.stdout.contains("chmod u+r"),
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
fn an_import_tells_of_every_entry_and_keeps_the_config() {
    let home = Home::new("# mine\n[servers.git] # first\ncommand = 'uvx'\n");
    let servers = r#"{"mcpServers": {
        "Files": {"command": "node", "args": ["x.mjs"], "env": {"API_KEY": "sk-abcdefgh12345678"}},
        "remote": {"command": "npx", "args": ["-y", "mcp-remote", "https://example.com/mcp"]},
        "toolcrib": {"command": "toolcrib", "args": ["stdio"]}
    }}"#;
    claude(&home, servers);
    let before = fs::read_to_string(home.config()).unwrap();
    let shown = run(&home, &["import", "--dry-run"]).expect(0);
    assert!(shown.stdout.contains("would import `Files`"), "{}", shown.stdout);
    assert_eq!(fs::read_to_string(home.config()).unwrap(), before);
    let told = run(&home, &["import", "--json"]).expect(0).json();
    let verdicts: Vec<&str> =
        told["entries"].as_array().unwrap().iter().map(|entry| entry["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["imported", "imported", "skipped"]);
    let after = fs::read_to_string(home.config()).unwrap();
    assert!(after.starts_with(&before) && after.contains("[servers.files]"), "{after}");
    assert!(after.contains("url = \"https://example.com/mcp\"") && !after.contains("sk-abcdefgh"), "{after}");
    run(&home, &["check"]).expect(0);
    let again = run(&home, &["import"]).expect(0);
    assert!(
        again.stdout.contains("duplicate `Files`") && again.stderr.contains("0 of 3"),
        "{}",
        again.stdout
    );
    assert_eq!(fs::read_to_string(home.config()).unwrap(), after);
}

/// A program that takes an agent's place on `PATH`.
fn pretend(home: &Home, agent: &str, script: &str) -> Command {
    let bin = home.0.file("bin");
    fs::create_dir_all(&bin).unwrap();
    let program = bin.join(agent);
    process::write_program(&program, &format!("#!/bin/sh\n{script}\n"));
    let mut command = command(home, &["run", agent, "--", "-p", "two words"]);
    command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    command
}

#[test]
fn an_agent_is_run_with_its_arguments_its_exit_code_and_no_file_touched() {
    let home = Home::with_demo_servers();
    let mut command = pretend(&home, "claude", "printf '%s\\n' \"$@\"; exit 42");
    let ended = Ended::from(deadline::output(&mut command)).expect(42);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("--mcp-config={\"mcpServers\":{\"toolcrib\":{"), "{}", ended.stdout);
    assert_eq!(lines[1..], ["-p", "two words"]);
    assert_eq!(fs::read_dir(user(&home)).unwrap().count(), 0);
    let missing = run(&home, &["run", "qwen"]).expect(4);
    assert!(missing.stderr.contains("install Qwen Code"), "{}", missing.stderr);
    run(&home, &["run", "zed"]).expect(1);
}

#[test]
fn a_signal_reaches_the_agent_itself() {
    let home = Home::with_demo_servers();
    let mut command = pretend(&home, "codex", "trap 'exit 17' TERM; echo ready; while :; do sleep 0.1; done");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let output = Lines::new(child.stdout.take().unwrap());
    assert_eq!(output.next_line().unwrap(), "ready");
    process::send(child.id(), Signal::TERM);
    assert_eq!(deadline::wait(&mut child).code(), Some(17));
}
