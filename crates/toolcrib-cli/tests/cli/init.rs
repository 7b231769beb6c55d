//! Tests of `init` with the files of nine agents in a temporary home.

use super::agents::{command, user_home};
use super::*;

use std::collections::BTreeMap;
use std::fs;

const SECRET: &str = "ghp_0123456789abcdefghij";

/// The file of each agent, with `PROGRAM` for a program that has two demo servers.
const FILES: [(&str, &str); 9] = [
    (
        ".claude.json",
        "{\n  \"numStartups\": 7,\n  \"mcpServers\": {\n    \"echo\": {\n      \"type\": \"stdio\",\n      \"command\": \"PROGRAM\",\n      \"args\": [\"demo-server\", \"echo\"],\n      \"env\": {\"GITHUB_TOKEN\": \"SECRET\"}\n    }\n  }\n}\n",
    ),
    (
        ".codex/config.toml",
        "# mine\nmodel = \"m\" # which\n\n[mcp_servers.echo] # echoes\ncommand = \"PROGRAM\"\nargs = [\"demo-server\", \"echo\"]\nenv = { GITHUB_TOKEN = \"SECRET\" }\n\n[projects.\"/p\"]\ntrust_level = \"trusted\"\n",
    ),
    (
        ".gemini/settings.json",
        "{\n  // mine\n  \"theme\": \"x\",\n  \"mcpServers\": {\n    \"counter\": {\"command\": \"PROGRAM\", \"args\": [\"demo-server\", \"counter\"]}, // counts\n  },\n}\n",
    ),
    (
        ".config/opencode/opencode.jsonc",
        "{\"mcp\":{\"counter\":{\"type\":\"local\",\"command\":[\"PROGRAM\",\"demo-server\",\"counter\"],\"enabled\":true}},\"theme\":\"x\"}",
    ),
    (
        ".copilot/mcp-config.json",
        "{\n  \"mcpServers\": {\n    \"counter\": {\"type\": \"local\", \"command\": \"PROGRAM\", \"args\": [\"demo-server\", \"counter\"], \"tools\": [\"*\"]}\n  }\n}\n",
    ),
    (
        ".cursor/mcp.json",
        "{\r\n\t\"mcpServers\": {\r\n\t\t\"Echo\": {\"command\": \"PROGRAM\", \"args\": [\"demo-server\", \"echo\"], \"env\": {\"GITHUB_TOKEN\": \"SECRET\"}}\r\n\t}\r\n}\r\n",
    ),
    (
        ".config/Code/User/mcp.json",
        "{\n    /* all */\n    \"servers\": {\n        \"counter\": {\"type\": \"stdio\", \"command\": \"PROGRAM\", \"args\": [\"demo-server\", \"counter\"]},\n    },\n}\n",
    ),
    (
        ".config/goose/config.yaml",
        "# mine\nextensions:\n  echo: # echoes\n    type: stdio\n    name: echo\n    cmd: PROGRAM\n    args: [demo-server, echo]\n    env_keys: [GITHUB_TOKEN]\n    enabled: true\nOTHER: 1 # kept\n",
    ),
    (
        ".config/zed/settings.json",
        "{\n  \"context_servers\": {\n    \"counter\": {\"command\": \"PROGRAM\", \"args\": [\"demo-server\", \"counter\"], \"env\": {}}\n  },\n  \"vim_mode\": true\n}\n",
    ),
];

/// Returns a home without a config and with the files of all agents, whose `systemctl` records its arguments and exits with
/// this status.
fn home_with_agents(systemctl_status: u8) -> Home {
    let home = Home::new("");
    fs::create_dir(home.0.file("bin")).unwrap();
    write_systemctl(&home, systemctl_status);
    fs::remove_file(home.config()).unwrap();
    let program = home.0.file("demo-program");
    std::os::unix::fs::symlink(PROGRAM, &program).unwrap();
    for (path, text) in FILES {
        write_file(&home, path, &text.replace("PROGRAM", path_text(&program)).replace("SECRET", SECRET));
    }
    home
}

fn write_systemctl(home: &Home, status: u8) {
    let script = format!("#!/bin/sh\necho \"$*\" >> {:?}\nexit {status}\n", home.0.file("systemctl.log"));
    process::write_program(&home.0.file("bin/systemctl"), &script);
}

fn write_file(home: &Home, path: &str, text: &str) {
    let path = user_home(home).join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn read_files(home: &Home) -> BTreeMap<&'static str, String> {
    let read = |path: &str| fs::read_to_string(user_home(home).join(path)).unwrap();
    FILES.iter().map(|(path, _)| (*path, read(path))).collect()
}

/// Runs the program and fails if its output shows the secret.
fn run_discreetly(home: &Home, args: &[&str]) -> RunResult {
    let mut command = command(home, args);
    command.env("PATH", format!("{}:/usr/bin:/bin", home.0.file("bin").display()));
    let result = RunResult::from(deadline::output(&mut command));
    assert!(!result.stdout.contains(SECRET) && !result.stderr.contains(SECRET), "{}", result.stdout);
    result
}

/// Undoes `init` while no manager of services is running, as over ssh: the service is left for the next undo.
fn undo_without_service_manager(home: &Home) {
    write_systemctl(home, 1);
    let left = run_discreetly(home, &["init", "--undo"]).expect(2);
    assert!(left.stderr.contains("the service is still installed: `"), "{}", left.stderr);
    write_systemctl(home, 0);
}

/// Asserts that each file has the entry of toolcrib instead of the servers, and everything else as before.
fn assert_replaced(home: &Home, before: &BTreeMap<&str, String>) {
    for (path, text) in read_files(home) {
        assert!(
            text.contains("toolcrib") && !text.contains("demo-server") && !text.contains(SECRET),
            "{path}: {text}"
        );
        let kept = ["mine", "which", "numStartups", "/p", "theme", "all */", "kept", "vim_mode", "\r\n\t"];
        for word in kept.iter().filter(|word| before[path].contains(**word)) {
            assert!(text.contains(word), "{path} lost {word}: {text}");
        }
    }
}

/// Repeats `init`, and again after another agent was installed.
fn connect_another_agent(home: &Home) {
    let again = run_discreetly(home, &["init"]).expect(0);
    assert!(again.stdout.is_empty() && again.stderr.contains("nothing to do"), "{}", again.stderr);
    fs::create_dir_all(user_home(home).join(".codeium")).unwrap();
    let idle = run_discreetly(home, &["init"]).expect(0);
    assert!(idle.stdout.contains("leave out Windsurf: no servers of its own"), "{}", idle.stdout);
    let share = ["init", "--yes", "--json", "--agent", "windsurf", "--share"];
    let later = run_discreetly(home, &share).expect(0).json();
    assert_eq!(later["proofs"][0]["tools"], 4, "it gets every server: {later}");
    let agents = later["plan"]["agents"].as_array().unwrap();
    assert_eq!((agents.len(), &agents[0]["agent"]), (1, &"windsurf".into()), "only the new agent: {later}");
}

#[test]
fn init_replaces_servers_of_all_agents_and_undo_restores_all_bytes() {
    let home = home_with_agents(0);
    let before = read_files(&home);
    let planned = run_discreetly(&home, &["init"]).expect(2);
    assert!(
        planned.stdout.contains("Cursor: replace `Echo` by `toolcrib` in `~/.cursor/mcp.json`"),
        "{}",
        planned.stdout
    );
    let scope = "only `echo` (`profiles.agent-cursor`)\n    2 tools, ";
    assert!(planned.stdout.contains(scope), "{}", planned.stdout);
    assert!(planned.stdout.contains("install the service `toolcrib` (systemd)"), "{}", planned.stdout);
    assert!(planned.stderr.contains("hint: toolcrib init --yes"), "{}", planned.stderr);
    run_discreetly(&home, &["init", "--json"]).expect(2);
    let shown = run_discreetly(&home, &["init", "--dry-run"]).expect(0);
    assert!(shown.stdout == planned.stdout && shown.stderr.is_empty(), "{}", shown.stderr);
    assert!(read_files(&home) == before && !home.config().exists(), "a plan writes nothing");

    let report = run_discreetly(&home, &["init", "--yes", "--json"]).expect(0).json();
    let servers: Vec<&str> = report["plan"]["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|server| server["name"].as_str().unwrap())
        .collect();
    assert_eq!(servers, ["echo", "counter"], "each server is imported once: {report}");
    let proofs = report["proofs"].as_array().unwrap();
    assert!(proofs.len() == 9 && proofs.iter().all(|proof| proof["tools"] == 2), "{report}");
    assert_eq!(report["tools"], 4);
    assert_eq!(
        (&report["failed"], &report["undo"]),
        (&serde_json::json!([]), &"toolcrib init --undo".into())
    );
    assert_eq!(
        (&report["plan"]["service"]["install"], &report["service_installed"]),
        (&true.into(), &true.into())
    );
    let units = user_home(&home).join(".config/systemd/user");
    assert_eq!(fs::read_dir(&units).unwrap().count(), 2);
    assert!(!fs::read_to_string(home.config()).unwrap().contains(SECRET));
    assert_replaced(&home, &before);

    connect_another_agent(&home);

    undo_without_service_manager(&home);
    assert!(read_files(&home) == before && fs::read_dir(&units).unwrap().count() == 2);
    let undone = run_discreetly(&home, &["init", "--undo", "--json"]).expect(0).json();
    assert_eq!((&undone["service_removed"], fs::read_dir(&units).unwrap().count()), (&true.into(), 0));
    let calls = fs::read_to_string(home.0.file("systemctl.log")).unwrap();
    assert_eq!(calls.matches("restart toolcrib.socket").count(), 1, "{calls}");
    assert_eq!(calls.matches("disable --now toolcrib.socket").count(), 1, "{calls}");
    assert!(read_files(&home) == before && !home.config().exists());
    assert!(!user_home(&home).join(".codeium/windsurf").exists());
    let secrets = run_discreetly(&home, &["secret", "ls", "--json"]).expect(0);
    assert!(!secrets.stdout.contains("github-token"), "{}", secrets.stdout);
    let nothing = run_discreetly(&home, &["init", "--undo", "--json"]).expect(1).error();
    assert_eq!(nothing["code"], "nothing_to_undo");
}

/// Returns the tools that an agent is listed through its entry.
fn listed_tools(home: &Home, agent: &str) -> Vec<String> {
    let mut command = command(home, &["stdio", "--agent", agent]);
    let input = standalone::request(1, "tools/list", "");
    let output = RunResult::from(deadline::output_with_input(&mut command, &input)).expect(0).json();
    let tools = output["result"]["tools"].as_array().unwrap();
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn init_keeps_the_tools_of_each_agent_and_project() {
    let home = home_with_agents(1);
    let project = user_home(&home).canonicalize().unwrap();
    let own = serde_json::json!({"mcpServers": {"local": {"command": home.0.file("demo-program"), "args": ["demo-server", "echo"]}}});
    let claude = fs::read_to_string(project.join(".claude.json")).unwrap();
    let projects = serde_json::json!({path_text(&project): own});
    write_file(&home, ".claude.json", &claude.replacen('{', &format!("{{\n  \"projects\": {projects},"), 1));
    let before = read_files(&home);
    let report = run_discreetly(&home, &["init", "--yes", "--json"]).expect(0).json();
    let plan = &report["plan"];
    let kept = &plan["kept"][0];
    assert_eq!(kept["name"], "local", "{report}");
    assert!(kept["reason"].as_str().unwrap().starts_with("only the project `"), "{report}");
    assert!(fs::read_to_string(project.join(".claude.json")).unwrap().contains("\"local\""));
    let agents = plan["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 9);
    for agent in agents {
        let id = agent["agent"].as_str().unwrap();
        let has_echo = ["claude", "codex", "cursor", "goose"].contains(&id);
        let (server, tools) = match has_echo {
            true => ("echo", ["echo__say", "echo__fail"]),
            false => ("counter", ["counter__add", "counter__ponder"]),
        };
        assert_eq!(listed_tools(&home, id), tools, "{id}");
        assert_eq!(
            (&agent["servers"], &agent["profile"]),
            (&serde_json::json!([server]), &format!("agent-{id}").into())
        );
        let costs = &agent["tools"];
        let tokens = |when: &str| costs[when]["tokens"].as_u64().unwrap();
        assert_eq!((&costs["before"]["tools"], &costs["after"]["tools"]), (&2.into(), &2.into()), "{agent}");
        assert!(tokens("before") > 0 && tokens("after") <= tokens("before") + 6 * 2 + 100, "{agent}");
    }
    assert_eq!(plan["search"], false);
    // A server that is declared later reaches an agent with a profile only if it is named there.
    let added = run_discreetly(&home, &["add", "more", "--", PROGRAM, "demo-server", "counter"]).expect(0);
    assert!(
        added.stderr.contains("get `more` only if it is in `servers` there: `profiles.agent-claude`, "),
        "{}",
        added.stderr
    );
    assert_eq!(listed_tools(&home, "codex").len(), 2);
    assert_eq!(listed_tools(&home, "windsurf").len(), 6);
    let again = run_discreetly(&home, &["init"]).expect(0);
    assert!(again.stderr.contains("nothing to do"), "{}{}", again.stdout, again.stderr);
    run_discreetly(&home, &["rm", "more"]).expect(0);
    run_discreetly(&home, &["init", "--undo"]).expect(0);
    assert!(read_files(&home) == before && !home.config().exists());
}

#[test]
fn init_chooses_search_above_the_budget() {
    let home = home_with_agents(1);
    home.write("[expose]\nbudget = 20\n");
    let shown = run_discreetly(&home, &["init", "--dry-run", "--agent", "claude,codex"]).expect(0);
    assert!(shown.stdout.contains("set `expose.mode = \"auto\"`"), "{}", shown.stdout);
    assert!(shown.stdout.contains("→ 3 tools, "), "{}", shown.stdout);
    let report =
        run_discreetly(&home, &["init", "--yes", "--json", "--agent", "claude,codex"]).expect(0).json();
    let tools: Vec<(&str, u64)> = report["proofs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|proof| (proof["agent"].as_str().unwrap(), proof["tools"].as_u64().unwrap()))
        .collect();
    // Claude Code searches itself.
    assert_eq!(report["plan"]["agents"][0]["tools"]["after"]["search"], false, "{report}");
    assert_eq!(report["plan"]["agents"][1]["tools"]["after"]["search"], true, "{report}");
    assert!(tools.contains(&("codex", 3)), "{tools:?}");
    let untouched = fs::read_to_string(user_home(&home).join(".cursor/mcp.json")).unwrap();
    assert!(untouched.contains("demo-server") && !untouched.contains("toolcrib"), "{untouched}");
    let left = run_discreetly(&home, &["init", "--dry-run", "--except", "goose,counter"]).expect(0);
    assert!(!left.stdout.contains("goose") && !left.stdout.contains("counter:"), "{}", left.stdout);
    let unknown = run_discreetly(&home, &["init", "--except", "countre"]).expect(1);
    assert!(
        unknown.stderr.contains("`countre` is neither an agent nor a server of one"),
        "{}",
        unknown.stderr
    );
}

#[test]
fn init_undo_keeps_what_was_edited_since() {
    let home = home_with_agents(1);
    let before = read_files(&home);
    write_file(&home, ".kiro/settings/mcp.json", "{ broken");
    // Without a place for the previous contents, no agent is changed. The next `init` continues.
    let blocked = home.config().with_file_name("state").join("exports");
    fs::create_dir_all(blocked.parent().unwrap()).unwrap();
    fs::write(&blocked, "").unwrap();
    let stopped = run_discreetly(&home, &["init", "--yes"]).expect(1);
    for part in ["done: ", "config.toml`", "not done: ", "Claude Code", "`toolcrib init --yes` continues"] {
        assert!(stopped.stderr.contains(part), "{part} in {}", stopped.stderr);
    }
    fs::remove_file(&blocked).unwrap();
    let done = run_discreetly(&home, &["init", "--yes"]).expect(0);
    assert!(done.stderr.contains("Kiro is left out"), "{}", done.stderr);
    assert!(done.stdout.contains("the first agent starts the gateway"), "{}", done.stdout);
    assert!(!user_home(&home).join(".config/systemd").exists());
    assert!(done.stderr.contains("undo: toolcrib init --undo"), "{}", done.stderr);
    // What others write into the files stays, as Claude Code and Qwen Code do whenever they run.
    let edit = |path: &str, old: &str, new: &str| {
        let file = user_home(&home).join(path);
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(old), "{text}");
        fs::write(&file, text.replacen(old, new, 1)).unwrap();
    };
    edit(".claude.json", "\"numStartups\": 7", "\"numStartups\": 8");
    edit(".copilot/mcp-config.json", "  }\n}\n", "  },\n  \"$version\": 4\n}\n");
    edit(".config/zed/settings.json", "{", "broken");
    run_discreetly(&home, &["add", "mine", "--", PROGRAM, "demo-server", "echo"]).expect(0);
    let undone = run_discreetly(&home, &["init", "--undo"]).expect(2);
    for line in [
        "`~/.claude.json` was edited since, which stays; the entry of toolcrib is removed",
        "config.toml` was edited since, which stays; what `init` added is removed",
    ] {
        assert!(undone.stdout.contains(line), "{line} in {}", undone.stdout);
    }
    assert!(undone.stderr.contains("`~/.config/zed/settings.json` was edited since"), "{}", undone.stderr);
    let config = fs::read_to_string(home.config()).unwrap();
    assert!(
        config.trim_start().starts_with("[servers.mine]") && config.matches('[').count() == 2,
        "{config}"
    );
    edit(".config/zed/settings.json", "broken", "{");
    let again = run_discreetly(&home, &["init", "--undo", "--json"]).expect(0).json();
    assert_eq!(again["left"], serde_json::json!([]));
    for (path, text) in read_files(&home) {
        let expected = before[path].replace("\"numStartups\": 7", "\"numStartups\": 8");
        let expected = match path {
            ".copilot/mcp-config.json" => expected.replace("  }\n}\n", "  },\n  \"$version\": 4\n}\n"),
            _ => expected,
        };
        assert_eq!(text, expected, "{path}");
    }
    assert_eq!(run_discreetly(&home, &["export", "claude", "--undo"]).expect(1).code, 1);
}

#[test]
fn init_without_an_agent_says_what_to_do() {
    let home = Home::new("");
    let result = deadline::output(&mut command(&home, &["init", "--yes", "--json"]));
    let error = RunResult::from(result).expect(1).error();
    assert_eq!(
        (&error["code"], &error["hint"]),
        (&"no_agent".into(), &"toolcrib add NAME -- COMMAND".into())
    );
}

#[test]
fn init_of_an_agent_without_servers_writes_a_config() {
    let home = Home::new("");
    fs::remove_file(home.config()).unwrap();
    write_file(&home, ".cursor/mcp.json", "{}");
    let done = run_discreetly(&home, &["init", "--yes", "--no-service"]).expect(0);
    assert!(done.stdout.contains("Cursor: 0 tools through toolcrib"), "{}{}", done.stdout, done.stderr);
    run_discreetly(&home, &["check"]).expect(0);
    run_discreetly(&home, &["init", "--undo"]).expect(0);
    let text = fs::read_to_string(user_home(&home).join(".cursor/mcp.json")).unwrap();
    assert!(text == "{}" && !home.config().exists(), "{text}");
}

#[test]
fn init_replaces_a_server_that_is_called_toolcrib() {
    let home = Home::new("");
    fs::remove_file(home.config()).unwrap();
    let program = home.0.file("demo-program");
    std::os::unix::fs::symlink(PROGRAM, &program).unwrap();
    let before = format!(
        r#"{{"mcpServers": {{"toolcrib": {{"command": {program:?}, "args": ["demo-server", "echo"]}}, "crib": {{"command": "toolcrib", "args": ["stdio"]}}}}}}"#
    );
    write_file(&home, ".cursor/mcp.json", &before);
    write_file(&home, ".gemini/settings.json", "[]");
    let done = run_discreetly(&home, &["init", "--yes", "--no-service"]).expect(0);
    assert!(done.stdout.contains("keep `crib` in `~/.cursor/mcp.json`"), "{}", done.stdout);
    assert!(!done.stderr.contains("is not changed"), "{}", done.stderr);
    let read = || fs::read_to_string(user_home(&home).join(".cursor/mcp.json")).unwrap();
    let entries: Value = serde_json::from_str(&read()).unwrap();
    assert_eq!(entries["mcpServers"]["toolcrib"]["args"], serde_json::json!(["stdio", "--agent", "cursor"]));
    let again = run_discreetly(&home, &["init", "--no-service"]).expect(0);
    assert!(again.stderr.contains("nothing was changed: the agents above are left out"), "{}", again.stderr);
    run_discreetly(&home, &["init", "--undo"]).expect(0);
    assert_eq!(read(), before);
}

#[test]
fn undo_accepts_yes() {
    let home = Home::new("");
    let error = home.run(&["init", "--undo", "--yes", "--json"]).expect(1).error();
    assert_eq!(error["code"], "nothing_to_undo", "{error}");
}
