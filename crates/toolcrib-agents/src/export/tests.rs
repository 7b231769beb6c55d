//! Exports to every agent, compared with golden files: the written file, a second export without changes, and undo.
//! `UPDATE_GOLDEN=1` rewrites the golden files.

mod edited_files;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use toolcrib::{CommandSpec, Config, Endpoint};

use super::*;
use crate::agents;

const SECRET: &str = "sk-abcdefgh12345678";

fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// A temporary home directory with a project in it.
struct Home {
    dir: TempDir,
    paths: AgentPaths,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("project");
        fs::create_dir_all(project.join(".git")).unwrap();
        let home = ("HOME".to_owned(), OsString::from(dir.path()));
        let paths = AgentPaths::new(vec![home], &project).unwrap();
        Self { dir, paths }
    }

    fn plan(
        &self,
        agent: &Agent,
        scope: AgentFileScope,
        servers: &[ExportedServer<'_>],
    ) -> Result<ExportPlan, Error> {
        plan(agent, scope, &self.paths, &self.dir.path().join("state"), servers)
    }

    fn undo(&self, agent: &Agent, scope: AgentFileScope) -> Result<UndoResult, Error> {
        undo(agent, scope, &self.paths, &self.dir.path().join("state")).map(|undone| undone.result)
    }

    /// Writes an agent's file.
    fn file(&self, agent: &Agent, scope: AgentFileScope, text: &str) -> PathBuf {
        let file = agent.config_file(scope, &self.paths).unwrap();
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file
    }
}

fn gateway() -> ServerSpec {
    ServerSpec::command("toolcrib".parse().unwrap(), CommandSpec::new("toolcrib").arg("stdio"))
}

/// Returns the entry of an agent, whose program is on the `PATH`.
fn gateway_of(agent: &Agent) -> ServerSpec {
    let command = CommandSpec::new("toolcrib").arg("stdio").arg("--agent").arg(agent.id);
    ServerSpec::command("toolcrib".parse().unwrap(), command)
}

fn find_agent(id: &str) -> &'static Agent {
    Agent::find(id).unwrap()
}

fn load_config() -> Config {
    let config = Config::load(&golden_dir().join("servers.toml"));
    assert_eq!(config.problems, []);
    config
}

fn assert_golden(file: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(file, text).unwrap();
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    assert_eq!(text, expected, "{}", file.display());
}

/// Exports, exports again without changes, and undoes. Returns the written file and the warnings.
fn check_round_trip(
    home: &Home,
    agent: &Agent,
    before: Option<&str>,
    servers: &[ExportedServer<'_>],
) -> (String, Vec<String>) {
    let plan = home.plan(agent, AgentFileScope::User, servers).unwrap();
    assert!(plan.has_changes(), "{}", agent.id);
    plan.write().unwrap();
    let file = agent.config_file(AgentFileScope::User, &home.paths).unwrap();
    let written = fs::read_to_string(&file).unwrap();
    let again = home.plan(agent, AgentFileScope::User, servers).unwrap();
    assert!(!again.has_changes(), "{}: {}", agent.id, again.diff());
    assert_eq!(again.diff(), "");
    home.undo(agent, AgentFileScope::User).unwrap();
    assert_eq!(fs::read_to_string(&file).ok().as_deref(), before, "{}", agent.id);
    (written, plan.warnings)
}

#[test]
fn export_matches_golden_files_of_every_agent() {
    let config = load_config();
    let servers: Vec<ExportedServer<'_>> = config
        .roster
        .servers()
        .map(|spec| ExportedServer::new(spec, config.policy.servers.get(&spec.id)))
        .collect();
    for agent in agents::all() {
        let gateway = gateway_of(agent);
        let home = Home::new();
        let dir = golden_dir().join(agent.id);
        let file = agent.config_file(AgentFileScope::User, &home.paths).unwrap();
        let extension = file.extension().unwrap().to_str().unwrap();
        let before = fs::read_to_string(dir.join(format!("before.{extension}"))).ok();
        if let Some(before) = &before {
            home.file(agent, AgentFileScope::User, before);
        }
        let (written, warnings) =
            check_round_trip(&home, agent, before.as_deref(), &[ExportedServer::new(&gateway, None)]);
        assert_golden(&dir.join(format!("gateway.{extension}")), &written);
        assert_eq!(warnings, Vec::<String>::new(), "{}", agent.id);
        let (written, warnings) = check_round_trip(&home, agent, before.as_deref(), &servers);
        assert_golden(&dir.join(format!("expanded.{extension}")), &written);
        assert_golden(&dir.join("expanded.txt"), &(warnings.join("\n") + "\n"));
        assert!(!written.contains(SECRET), "{}", agent.id);
    }
}

#[test]
fn export_removes_entries_that_are_no_longer_exported() {
    let home = Home::new();
    let codex = find_agent("codex");
    let config = load_config();
    let file = home.file(codex, AgentFileScope::User, "[mcp_servers.mine]\ncommand = 'x'\n");
    let gateway = gateway();
    let servers: Vec<ExportedServer<'_>> =
        config.roster.servers().map(|spec| ExportedServer::new(spec, None)).collect();
    home.plan(codex, AgentFileScope::User, &servers).unwrap().write().unwrap();
    home.plan(codex, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap().write().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.matches("[mcp_servers.").count(), 2, "{text}");
    assert!(text.contains("mcp_servers.mine") && text.contains("mcp_servers.toolcrib"));
    assert_eq!(home.undo(codex, AgentFileScope::User).unwrap(), UndoResult::Restored);
    assert_eq!(home.undo(codex, AgentFileScope::User).unwrap(), UndoResult::Restored);
    assert_eq!(fs::read_to_string(&file).unwrap(), "[mcp_servers.mine]\ncommand = 'x'\n");
    assert_eq!(home.undo(codex, AgentFileScope::User).unwrap_err().code(), "nothing_to_undo");
}

#[test]
fn export_does_not_change_foreign_entry() {
    let home = Home::new();
    let cursor = find_agent("cursor");
    let config = load_config();
    let before = "{\"mcpServers\": {\"files\": {\"command\": \"theirs\"}}}";
    home.file(cursor, AgentFileScope::User, before);
    let files: Vec<ExportedServer<'_>> = config
        .roster
        .servers()
        .filter(|spec| spec.id.as_str() == "files")
        .map(|spec| ExportedServer::new(spec, None))
        .collect();
    let plan = home.plan(cursor, AgentFileScope::User, &files).unwrap();
    assert!(!plan.has_changes());
    assert!(
        plan.warnings.iter().any(|warning| warning.contains("`files` is not changed")),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn undo_of_changed_file_removes_only_own_entries() {
    let home = Home::new();
    let claude = find_agent("claude");
    let gateway = gateway();
    let file = home.file(claude, AgentFileScope::User, "{\n  \"numStartups\": 1\n}\n");
    home.plan(claude, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap().write().unwrap();
    let text = fs::read_to_string(&file).unwrap().replace("\"numStartups\": 1", "\"numStartups\": 2");
    fs::write(&file, text).unwrap();
    assert_eq!(home.undo(claude, AgentFileScope::User).unwrap(), UndoResult::EntriesRemoved);
    let now: Json = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(now, serde_json::json!({"numStartups": 2, "mcpServers": {}}));
}

#[test]
fn undo_does_not_restore_removed_or_own_file() {
    let home = Home::new();
    let gateway = gateway();
    let kiro = find_agent("kiro");
    let own_file_agent = find_agent("continue");
    let file = home.file(kiro, AgentFileScope::User, "{}");
    home.plan(kiro, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap().write().unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(home.undo(kiro, AgentFileScope::User).unwrap(), UndoResult::Removed);
    assert!(!file.exists());
    home.plan(own_file_agent, AgentFileScope::User, &[ExportedServer::new(&gateway, None)])
        .unwrap()
        .write()
        .unwrap();
    let file = own_file_agent.config_file(AgentFileScope::User, &home.paths).unwrap();
    fs::write(&file, "name: changed\n").unwrap();
    assert_eq!(home.undo(own_file_agent, AgentFileScope::User).unwrap(), UndoResult::Removed);
    assert!(!file.exists());
}

#[test]
fn export_to_invalid_file_reports_position() {
    let home = Home::new();
    let gateway = gateway();
    for (agent, text, expected) in [
        ("claude", "{\n  // mine\n  \"a\": 1\n}", ":2:3:"),
        ("cursor", "{\n  \"a\": 1", ":"),
        ("codex", "a = 1\nb = = 2\n", ":2:5:"),
        ("goose", "a: [1\nb: 2\n", ":"),
        ("gemini", "{\"mcpServers\": []}", "`mcpServers` is not"),
        ("opencode", "[]", "not a JSON object"),
    ] {
        let agent = find_agent(agent);
        let file = home.file(agent, AgentFileScope::User, text);
        let failure =
            home.plan(agent, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap_err();
        assert_eq!(failure.kind(), AgentErrorKind::InvalidFile);
        assert!(
            failure.message().contains(expected) && failure.message().contains("nothing was changed"),
            "{failure}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

#[test]
fn export_reports_foreign_entry_the_agent_rejects() {
    let home = Home::new();
    let opencode = find_agent("opencode");
    let gateway = gateway();
    let text = "{\"mcp\": {\"bad\": {\"command\": \"node\", \"args\": [\"x\"]}}}";
    let file = home.file(opencode, AgentFileScope::User, text);
    let failure =
        home.plan(opencode, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap_err();
    assert_eq!(failure.kind(), AgentErrorKind::InvalidFile);
    assert!(failure.message().contains("would reject `mcp.bad`: it has no `type`"), "{failure}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    // opencode also accepts an entry that only disables a server, and servers nested below `servers`.
    let fine = "{\"mcp\": {\"off\": {\"enabled\": false}, \"servers\": {\"a\": {\"command\": \"x\"}}}}";
    home.file(opencode, AgentFileScope::User, fine);
    home.plan(opencode, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap();
    // Other agents skip an invalid entry, so it is not reported.
    home.file(find_agent("cursor"), AgentFileScope::User, "{\"mcpServers\": {\"bad\": {\"command\": 5}}}");
    home.plan(find_agent("cursor"), AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap();
}

#[test]
fn export_rejects_entry_invalid_for_agent() {
    let home = Home::new();
    let vscode = find_agent("vscode");
    let text = "[servers.docs]\nurl = '${env:BASE}/mcp'\ntype = 'http'\n";
    let config = Config::parse(Path::new("/c/config.toml"), text);
    let servers: Vec<ExportedServer<'_>> =
        config.roster.servers().map(|spec| ExportedServer::new(spec, None)).collect();
    assert_eq!(servers.len(), 1);
    let file = home.file(vscode, AgentFileScope::User, "{\"servers\": {}}");
    let failure = home.plan(vscode, AgentFileScope::User, &servers).unwrap_err();
    assert_eq!(failure.kind(), AgentErrorKind::InvalidFile);
    assert!(failure.message().contains("`servers.docs`: `url` is not an HTTP URL"), "{failure}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"servers\": {}}");
}

#[test]
fn export_follows_links_but_not_out_of_project() {
    let home = Home::new();
    let gateway = gateway();
    let real = home.dir.path().join("dotfiles.json");
    fs::write(&real, "{}").unwrap();
    let cursor = find_agent("cursor");
    let link = home.file(cursor, AgentFileScope::User, "");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    home.plan(cursor, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap().write().unwrap();
    assert!(fs::read_to_string(&real).unwrap().contains("toolcrib"));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let outside_link = cursor.config_file(AgentFileScope::Project, &home.paths).unwrap();
    fs::create_dir_all(outside_link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&real, &outside_link).unwrap();
    assert_eq!(
        home.plan(cursor, AgentFileScope::Project, &[ExportedServer::new(&gateway, None)])
            .unwrap_err()
            .code(),
        "leads_out"
    );
    let outside = home.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, home.paths.project.join(".kiro")).unwrap();
    assert_eq!(
        home.plan(find_agent("kiro"), AgentFileScope::Project, &[ExportedServer::new(&gateway, None)])
            .unwrap_err()
            .code(),
        "leads_out"
    );
    fs::remove_file(&real).unwrap();
    assert_eq!(
        home.plan(cursor, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap_err().code(),
        "cannot_edit"
    );
}

#[test]
fn failed_write_leaves_file_unchanged() {
    let home = Home::new();
    let gateway = gateway();
    let kiro = find_agent("kiro");
    let file = home.file(kiro, AgentFileScope::User, "{}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    let plan = home.plan(kiro, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap();
    assert_eq!(plan.write().unwrap_err().code(), "read_only");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "{ }").unwrap();
    assert_eq!(plan.write().unwrap_err().code(), "changed_meanwhile");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{ }");
    assert_eq!(
        home.undo(kiro, AgentFileScope::User).unwrap_err().code(),
        "nothing_to_undo",
        "the failed write is not recorded"
    );
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(
        home.plan(kiro, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).is_err(),
        "a directory is not a regular file"
    );
}

#[test]
fn export_does_not_hide_file_of_other_agent() {
    let home = Home::new();
    let gateway = gateway();
    let claude = find_agent("claude");
    let copilot = find_agent("copilot");
    let hidden = home.paths.project.join(".github/mcp.json");
    fs::create_dir_all(hidden.parent().unwrap()).unwrap();
    fs::write(&hidden, "{}").unwrap();
    assert_eq!(
        home.plan(claude, AgentFileScope::Project, &[ExportedServer::new(&gateway, None)])
            .unwrap_err()
            .code(),
        "would_hide"
    );
    assert_eq!(
        home.plan(copilot, AgentFileScope::Project, &[ExportedServer::new(&gateway, None)]).unwrap().file(),
        hidden.canonicalize().unwrap()
    );
}

#[test]
fn diff_masks_secrets_of_the_file() {
    let home = Home::new();
    let cursor = find_agent("cursor");
    let gateway = gateway();
    let before = format!(
        "{{\n  \"mcpServers\": {{\n    \"a\": {{\"command\": \"x\", \"env\": {{\"API_KEY\": \"{SECRET}\"}}}}\n  }}\n}}\n"
    );
    home.file(cursor, AgentFileScope::User, &before);
    let diff =
        home.plan(cursor, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap().diff();
    assert!(!diff.contains(SECRET) && diff.contains("+    \"toolcrib\": {"), "{diff}");
}

#[test]
fn stored_secrets_are_omitted_with_warning() {
    let text = "[secrets]\nbackend = 'env'\n[servers.a]\ncommand = 'x'\nenv = { TOKEN = '${secret:t}' }\n\
        [servers.b]\nurl = 'https://h/mcp'\nheaders = { Authorization = 'Bearer ${secret:t}' }\n\
        [servers.c]\ncommand = 'x'\nargs = ['${secret:t}']\n";
    let config = Config::parse(Path::new("/x/config.toml"), text);
    for agent in agents::all() {
        for spec in config.roster.servers() {
            let rendered = render::render_entry(agent, spec, None);
            let written = format!("{:?}", rendered.members);
            assert!(!written.contains("secret") && !written.contains("TOKEN"), "{}: {written}", agent.id);
            assert_eq!(rendered.warnings.len(), 1, "{} {}", agent.id, spec.id);
        }
    }
    let home = Home::new();
    let program = gateway::GatewayProgram {
        path: Path::new("/bin/toolcrib"),
        config_flag: None,
        config: Some(&config),
        secret_variables: &["TOOLCRIB_SECRET_T".to_owned()],
        profile: None,
    };
    let entry =
        gateway::gateway_spec(find_agent("codex"), AgentFileScope::User, &home.paths, &program).unwrap();
    let Endpoint::Command(command) = entry.endpoint else { panic!("not a command") };
    assert!(command.inherit_env.contains(&"TOOLCRIB_SECRET_T".to_owned()), "{command:?}");
}

#[test]
fn server_with_a_secret_in_its_command_is_omitted_with_the_reason() {
    let text = format!(
        "[servers.a]\ncommand = 'x'\nargs = ['--key', '{SECRET}']\n[servers.b]\nurl = 'https://h/mcp?key={SECRET}'\n\
         [servers.c]\ncommand = 'x'\nargs = ['${{secret:t}}']\n[servers.d]\ncommand = 'x'\nargs = ['${{env:A}}']\n"
    );
    let config = Config::parse(Path::new("/x/config.toml"), &text);
    let warnings = config.roster.servers().map(|spec| {
        let rendered = render::render_entry(find_agent("windsurf"), spec, None);
        assert!(!format!("{rendered:?}").contains(SECRET), "{rendered:?}");
        rendered.warnings
    });
    let literal =
        "Windsurf would get a secret in its file; replace the value with a reference such as `${env:…}`";
    let stored = "Windsurf cannot read the secret `t`; export without `--expand` to use it";
    let expected = [
        vec![format!("`a` is omitted: {literal}")],
        vec![format!("`b` is omitted: {literal}")],
        vec![format!("`c` is omitted: {stored}")],
        vec![],
    ];
    assert_eq!(warnings.collect::<Vec<_>>(), expected);
}

#[test]
fn export_never_grants_trust() {
    for agent in agents::all() {
        for file in ["gateway", "expanded"] {
            let text = ["json", "jsonc", "toml", "yaml"].iter().find_map(|extension| {
                fs::read_to_string(golden_dir().join(agent.id).join(format!("{file}.{extension}"))).ok()
            });
            let text = text.unwrap();
            for key in
                ["\"trust\"", "autoApprove", "alwaysAllow", "approval_mode", "enableAllProjectMcpServers"]
            {
                assert!(!text.contains(key), "{} {key}", agent.id);
            }
        }
    }
}

#[test]
fn diff_shows_no_secret_in_any_form() {
    let one_line = r#"{"mcpServers":{"a":{"command":"x","args":["postgres://me:pw12@db/x","--token","abc"],"env":{"PLAIN":"hunter-two","URL":"host=db password=pw34"},"headers":{"X-Team":"blue-green","Authorization":"Bearer q"}}}}"#;
    let long = one_line.replace("\"x\",", &format!("\"x\",\"description\":\"{}\",", "word ".repeat(80)));
    let inline = one_line.replacen("{\"mcpServers\":", "{\n  \"theme\": 1,\n  \"mcpServers\":", 1);
    let spread = serde_json::to_string_pretty(&serde_json::from_str::<Json>(one_line).unwrap()).unwrap();
    let gateway = gateway();
    for before in [one_line, &long, &inline, &spread] {
        for replace in [false, true] {
            let home = Home::new();
            let cursor = find_agent("cursor");
            home.file(cursor, AgentFileScope::User, before);
            let mut plan =
                home.plan(cursor, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap();
            if replace {
                plan.remove_entries(cursor, &[vec!["mcpServers".to_owned(), "a".to_owned()]]).unwrap();
            }
            let diff = plan.diff();
            for secret in ["pw12", "abc", "hunter-two", "pw34", "blue-green", "Bearer q", "q\""] {
                assert!(!diff.contains(secret), "{secret}: {diff}");
            }
            let entry_is_shown = diff.contains("toolcrib") && diff.contains("stdio");
            assert!(entry_is_shown, "{diff}");
        }
    }
}

#[test]
fn originals_are_removed_and_put_back_by_undo() {
    let gateway = gateway();
    for (id, before, keys) in [
        (
            "cursor",
            "{\n  // all\n  \"mcpServers\": {\n    // one\n    \"a\": {\"command\": \"x\", \"args\": [\"-q\"]},\n    \"b\": {\"command\": \"y\"} // two\n  },\n}\n",
            ["mcpServers", "a"],
        ),
        (
            "codex",
            "# all\nmodel = 'm'\n\n[mcp_servers.a] # one\ncommand = 'x'\nargs = ['-q']\n[mcp_servers.a.env]\nK = 'v'\n\n# two\n[mcp_servers.b]\ncommand = 'y'\n",
            ["mcp_servers", "a"],
        ),
        (
            "goose",
            "# all\nextensions:\n  a: # one\n    type: stdio\n    name: a\n    cmd: x\n    args: [-q]\n  b: {type: stdio, name: b, cmd: y}\nOTHER: 1 # two\n",
            ["extensions", "a"],
        ),
    ] {
        let home = Home::new();
        let agent = find_agent(id);
        let file = home.file(agent, AgentFileScope::User, before);
        let keys = keys.map(str::to_owned).to_vec();
        let write = || {
            let mut plan =
                home.plan(agent, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap();
            plan.remove_entries(agent, std::slice::from_ref(&keys)).unwrap();
            plan.write().unwrap();
            fs::read_to_string(&file).unwrap()
        };
        let names = |text: &str| {
            let document = agent.language.parse(text).unwrap();
            named_entries(agent, &document).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let written = write();
        assert_eq!(names(&written), ["b", "toolcrib"], "{written}");
        assert!(written.contains("all") && written.contains("two"), "{written}");
        assert_eq!(home.undo(agent, AgentFileScope::User).unwrap(), UndoResult::Restored);
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
        let edited = write().replace("two", "2");
        fs::write(&file, &edited).unwrap();
        assert_eq!(home.undo(agent, AgentFileScope::User).unwrap(), UndoResult::EntriesRemoved);
        let undone = fs::read_to_string(&file).unwrap();
        assert_eq!(names(&undone), ["a", "b"], "{undone}");
        let document = agent.language.parse(&undone).unwrap();
        assert_eq!(
            get_path(&document, &["mcpServers", "a", "args"])
                .map_or(1, |args| args.as_array().unwrap().len()),
            1
        );
    }
}

#[test]
fn desktop_agents_get_the_absolute_path_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("lib/toolcrib");
    let link = dir.path().join("bin/toolcrib");
    fs::create_dir_all(program.parent().unwrap()).unwrap();
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    fs::write(&program, "").unwrap();
    std::os::unix::fs::symlink(&program, &link).unwrap();
    let command = |agent: &str, scope, path: &Path| {
        let variables = vec![("HOME".to_owned(), "/h".into()), ("PATH".to_owned(), path.into())];
        let paths = AgentPaths::new(variables, dir.path()).unwrap();
        let program = gateway::GatewayProgram {
            path: &program,
            config_flag: None,
            config: None,
            secret_variables: &[],
            profile: None,
        };
        let spec = gateway::gateway_spec(find_agent(agent), scope, &paths, &program).unwrap();
        let Endpoint::Command(command) = spec.endpoint else { panic!("{agent}") };
        PathBuf::from(command.program.source())
    };
    let on_path = link.parent().unwrap();
    for agent in ["claude-desktop", "cursor", "vscode", "zed", "goose", "cline"] {
        assert_eq!(command(agent, AgentFileScope::User, on_path), link, "{agent}");
    }
    assert_eq!(command("claude", AgentFileScope::User, on_path), Path::new("toolcrib"));
    assert_eq!(command("claude", AgentFileScope::User, Path::new("/none")), program);
    assert_eq!(command("cursor", AgentFileScope::Project, Path::new("/none")), Path::new("toolcrib"));
}

#[test]
fn gemini_server_lists_that_block_the_entry_are_reported() {
    let home = Home::new();
    let gemini = find_agent("gemini");
    let gateway = gateway();
    let warnings = |text: &str| {
        home.file(gemini, AgentFileScope::User, text);
        home.plan(gemini, AgentFileScope::User, &[ExportedServer::new(&gateway, None)]).unwrap().warnings
    };
    assert!(warnings(r#"{"mcp": {"allowed": ["a"]}}"#)[0].contains("add `toolcrib` to `mcp.allowed`"));
    assert!(warnings(r#"{"mcp": {"excluded": ["toolcrib"]}}"#)[0].contains("from `mcp.excluded`"));
    assert_eq!(warnings(r#"{"mcp": {"allowed": ["toolcrib"], "excluded": ["a"]}}"#), Vec::<String>::new());
}
