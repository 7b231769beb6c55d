//! Every row of the table against files that stay: what is written, that writing it again changes nothing, and that
//! taking it back gives the same bytes. `UPDATE_GOLDEN=1` writes what is compared with.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use toolcrib::Config;
use toolcrib::spec::{CommandSpec, Endpoint};

use super::*;
use crate::agents;

const SECRET: &str = "sk-abcdefgh12345678";

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// A home of its own, and a project in it.
struct Home {
    dir: TempDir,
    ground: Ground,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let project = dir.path().join("project");
        fs::create_dir_all(project.join(".git")).unwrap();
        let home = ("HOME".to_owned(), OsString::from(dir.path()));
        let ground = Ground::of(vec![home], &project).unwrap();
        Self { dir, ground }
    }

    fn plan(&self, agent: &Agent, scope: Scope, servers: &[Server<'_>]) -> Result<Plan, Failure> {
        plan(agent, scope, &self.ground, &self.dir.path().join("state"), servers)
    }

    fn undo(&self, agent: &Agent, scope: Scope) -> Result<Undone, Failure> {
        undo(agent, scope, &self.ground, &self.dir.path().join("state")).map(|(_, undone)| undone)
    }

    /// An agent's file with something in it.
    fn file(&self, agent: &Agent, scope: Scope, text: &str) -> PathBuf {
        let file = agent.file(scope, &self.ground).unwrap();
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        file
    }
}

fn gateway() -> ServerSpec {
    ServerSpec::command("toolcrib".parse().unwrap(), CommandSpec::new("toolcrib").arg("stdio"))
}

fn find(id: &str) -> &'static Agent {
    Agent::find(id).unwrap()
}

fn declared() -> Config {
    let config = Config::load(&golden().join("servers.toml"));
    assert_eq!(config.problems, []);
    config
}

fn same(file: &Path, text: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(file, text).unwrap();
    }
    let want = fs::read_to_string(file).unwrap_or_default();
    assert_eq!(text, want, "{}", file.display());
}

/// Writes, writes again, takes back.
fn round(home: &Home, agent: &Agent, before: Option<&str>, servers: &[Server<'_>]) -> (String, Vec<String>) {
    let plan = home.plan(agent, Scope::User, servers).unwrap();
    assert!(plan.changes(), "{}", agent.id);
    plan.write().unwrap();
    let file = agent.file(Scope::User, &home.ground).unwrap();
    let written = fs::read_to_string(&file).unwrap();
    let again = home.plan(agent, Scope::User, servers).unwrap();
    assert!(!again.changes(), "{}: {}", agent.id, again.diff());
    assert_eq!(again.diff(), "");
    home.undo(agent, Scope::User).unwrap();
    assert_eq!(fs::read_to_string(&file).ok().as_deref(), before, "{}", agent.id);
    (written, plan.warnings)
}

#[test]
fn every_agent_is_told_and_told_again_and_told_otherwise() {
    let (gateway, config) = (gateway(), declared());
    let servers: Vec<Server<'_>> =
        config.roster.servers().map(|spec| (spec, config.policy.servers.get(&spec.id))).collect();
    for agent in agents::all() {
        let home = Home::new();
        let folder = golden().join(agent.id);
        let file = agent.file(Scope::User, &home.ground).unwrap();
        let ending = file.extension().unwrap().to_str().unwrap();
        let before = fs::read_to_string(folder.join(format!("before.{ending}"))).ok();
        if let Some(before) = &before {
            home.file(agent, Scope::User, before);
        }
        let (written, warnings) = round(&home, agent, before.as_deref(), &[(&gateway, None)]);
        same(&folder.join(format!("gateway.{ending}")), &written);
        assert_eq!(warnings, Vec::<String>::new(), "{}", agent.id);
        let (written, warnings) = round(&home, agent, before.as_deref(), &servers);
        same(&folder.join(format!("expanded.{ending}")), &written);
        same(&folder.join("expanded.txt"), &(warnings.join("\n") + "\n"));
        assert!(!written.contains(SECRET), "{}", agent.id);
    }
}

#[test]
fn a_change_of_what_is_told_takes_out_what_is_not_any_more() {
    let (home, codex, config) = (Home::new(), find("codex"), declared());
    let file = home.file(codex, Scope::User, "[mcp_servers.mine]\ncommand = 'x'\n");
    let gateway = gateway();
    let servers: Vec<Server<'_>> = config.roster.servers().map(|spec| (spec, None)).collect();
    home.plan(codex, Scope::User, &servers).unwrap().write().unwrap();
    home.plan(codex, Scope::User, &[(&gateway, None)]).unwrap().write().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert_eq!(text.matches("[mcp_servers.").count(), 2, "{text}");
    assert!(text.contains("mcp_servers.mine") && text.contains("mcp_servers.toolcrib"));
    assert_eq!(home.undo(codex, Scope::User).unwrap(), Undone::Restored);
    assert_eq!(home.undo(codex, Scope::User).unwrap(), Undone::Restored);
    assert_eq!(fs::read_to_string(&file).unwrap(), "[mcp_servers.mine]\ncommand = 'x'\n");
    assert_eq!(home.undo(codex, Scope::User).unwrap_err().code, "nothing_to_undo");
}

#[test]
fn an_entry_of_somebody_elses_is_left_alone() {
    let (home, cursor, config) = (Home::new(), find("cursor"), declared());
    let before = "{\"mcpServers\": {\"files\": {\"command\": \"theirs\"}}}";
    home.file(cursor, Scope::User, before);
    let files: Vec<Server<'_>> =
        config.roster.servers().filter(|spec| spec.id.as_str() == "files").map(|spec| (spec, None)).collect();
    let plan = home.plan(cursor, Scope::User, &files).unwrap();
    assert!(!plan.changes());
    assert!(
        plan.warnings.iter().any(|warning| warning.contains("`files` is left as it is")),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn what_others_changed_since_stays_when_ours_is_taken_back() {
    let (home, claude, gateway) = (Home::new(), find("claude"), gateway());
    let file = home.file(claude, Scope::User, "{\n  \"numStartups\": 1\n}\n");
    home.plan(claude, Scope::User, &[(&gateway, None)]).unwrap().write().unwrap();
    let text = fs::read_to_string(&file).unwrap().replace("\"numStartups\": 1", "\"numStartups\": 2");
    fs::write(&file, text).unwrap();
    assert_eq!(home.undo(claude, Scope::User).unwrap(), Undone::TakenOut);
    let now: Json = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(now, serde_json::json!({"numStartups": 2, "mcpServers": {}}));
}

#[test]
fn taking_back_does_not_bring_back_what_somebody_removed_nor_mind_changes_in_what_is_ours() {
    let (home, gateway) = (Home::new(), gateway());
    let (kiro, ours) = (find("kiro"), find("continue"));
    let file = home.file(kiro, Scope::User, "{}");
    home.plan(kiro, Scope::User, &[(&gateway, None)]).unwrap().write().unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(home.undo(kiro, Scope::User).unwrap(), Undone::Removed);
    assert!(!file.exists());
    home.plan(ours, Scope::User, &[(&gateway, None)]).unwrap().write().unwrap();
    let file = ours.file(Scope::User, &home.ground).unwrap();
    fs::write(&file, "name: changed\n").unwrap();
    assert_eq!(home.undo(ours, Scope::User).unwrap(), Undone::Removed);
    assert!(!file.exists());
}

#[test]
fn a_file_with_a_mistake_is_refused_with_its_place_and_stays() {
    let (home, gateway) = (Home::new(), gateway());
    for (agent, text, place) in [
        ("claude", "{\n  // mine\n  \"a\": 1\n}", ":2:3:"),
        ("cursor", "{\n  \"a\": 1", ":"),
        ("codex", "a = 1\nb = = 2\n", ":2:5:"),
        ("goose", "a: [1\nb: 2\n", ":"),
        ("gemini", "{\"mcpServers\": []}", "`mcpServers` is not"),
        ("opencode", "[]", "not one object"),
    ] {
        let agent = find(agent);
        let file = home.file(agent, Scope::User, text);
        let failure = home.plan(agent, Scope::User, &[(&gateway, None)]).unwrap_err();
        assert_eq!((failure.exit, &*failure.code), (Exit::BadConfig, "agent_file_invalid"));
        assert!(
            failure.message.contains(place) && failure.message.contains("nothing was changed"),
            "{failure}"
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), text);
    }
}

#[test]
fn an_entry_that_spoils_the_file_for_its_agent_is_named() {
    let (home, opencode, gateway) = (Home::new(), find("opencode"), gateway());
    let text = "{\"mcp\": {\"bad\": {\"command\": \"node\", \"args\": [\"x\"]}}}";
    let file = home.file(opencode, Scope::User, text);
    let failure = home.plan(opencode, Scope::User, &[(&gateway, None)]).unwrap_err();
    assert_eq!((failure.exit, &*failure.code), (Exit::BadConfig, "agent_file_invalid"));
    assert!(failure.message.contains("would not take `mcp.bad`: it has no `type`"), "{failure}");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
    // What opencode takes besides: an entry that only switches one off, and another place for all of them.
    let fine = "{\"mcp\": {\"off\": {\"enabled\": false}, \"servers\": {\"a\": {\"command\": \"x\"}}}}";
    home.file(opencode, Scope::User, fine);
    home.plan(opencode, Scope::User, &[(&gateway, None)]).unwrap();
    // Others skip such an entry, and so do we.
    home.file(find("cursor"), Scope::User, "{\"mcpServers\": {\"bad\": {\"command\": 5}}}");
    home.plan(find("cursor"), Scope::User, &[(&gateway, None)]).unwrap();
}

#[test]
fn an_entry_that_its_agent_would_not_take_is_not_written() {
    let (home, vscode) = (Home::new(), find("vscode"));
    let text = "[servers.docs]\nurl = '${env:BASE}/mcp'\ntype = 'http'\n";
    let config = Config::parse(Path::new("/c/config.toml"), text);
    let servers: Vec<Server<'_>> = config.roster.servers().map(|spec| (spec, None)).collect();
    assert_eq!(servers.len(), 1);
    let file = home.file(vscode, Scope::User, "{\"servers\": {}}");
    let failure = home.plan(vscode, Scope::User, &servers).unwrap_err();
    assert_eq!((failure.exit, &*failure.code), (Exit::BadConfig, "agent_file_invalid"));
    assert!(failure.message.contains("`servers.docs`: `url` is not an address"), "{failure}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"servers\": {}}");
}

#[test]
fn links_are_followed_for_the_user_and_not_out_of_a_project() {
    let (home, gateway) = (Home::new(), gateway());
    let real = home.dir.path().join("dotfiles.json");
    fs::write(&real, "{}").unwrap();
    let cursor = find("cursor");
    let link = home.file(cursor, Scope::User, "");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    home.plan(cursor, Scope::User, &[(&gateway, None)]).unwrap().write().unwrap();
    assert!(fs::read_to_string(&real).unwrap().contains("toolcrib"));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let out = cursor.file(Scope::Project, &home.ground).unwrap();
    fs::create_dir_all(out.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&real, &out).unwrap();
    assert_eq!(home.plan(cursor, Scope::Project, &[(&gateway, None)]).unwrap_err().code, "leads_out");
    let outside = home.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, home.ground.project.join(".kiro")).unwrap();
    assert_eq!(home.plan(find("kiro"), Scope::Project, &[(&gateway, None)]).unwrap_err().code, "leads_out");
    fs::remove_file(&real).unwrap();
    assert_eq!(home.plan(cursor, Scope::User, &[(&gateway, None)]).unwrap_err().code, "cannot_edit");
}

#[test]
fn what_cannot_be_written_is_refused_and_stays() {
    let (home, gateway, kiro) = (Home::new(), gateway(), find("kiro"));
    let file = home.file(kiro, Scope::User, "{}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    let plan = home.plan(kiro, Scope::User, &[(&gateway, None)]).unwrap();
    assert_eq!(plan.write().unwrap_err().code, "read_only");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "{ }").unwrap();
    assert_eq!(plan.write().unwrap_err().code, "changed_meanwhile");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{ }");
    assert_eq!(home.undo(kiro, Scope::User).unwrap_err().code, "nothing_to_undo", "nothing came of it");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    assert!(home.plan(kiro, Scope::User, &[(&gateway, None)]).is_err(), "a folder is no file");
}

#[test]
fn a_file_that_two_agents_share_does_not_hide_the_others() {
    let (home, gateway) = (Home::new(), gateway());
    let (claude, copilot) = (find("claude"), find("copilot"));
    let hidden = home.ground.project.join(".github/mcp.json");
    fs::create_dir_all(hidden.parent().unwrap()).unwrap();
    fs::write(&hidden, "{}").unwrap();
    assert_eq!(home.plan(claude, Scope::Project, &[(&gateway, None)]).unwrap_err().code, "would_hide");
    assert_eq!(
        home.plan(copilot, Scope::Project, &[(&gateway, None)]).unwrap().file(),
        hidden.canonicalize().unwrap()
    );
}

#[test]
fn secrets_of_the_file_are_not_shown_in_the_difference() {
    let (home, cursor, gateway) = (Home::new(), find("cursor"), gateway());
    let before = format!(
        "{{\n  \"mcpServers\": {{\n    \"a\": {{\"command\": \"x\", \"env\": {{\"API_KEY\": \"{SECRET}\"}}}}\n  }}\n}}\n"
    );
    home.file(cursor, Scope::User, &before);
    let diff = home.plan(cursor, Scope::User, &[(&gateway, None)]).unwrap().diff();
    assert!(!diff.contains(SECRET) && diff.contains("+    \"toolcrib\": {"), "{diff}");
}

#[test]
fn what_only_toolcrib_can_look_up_is_left_out_and_named() {
    let text = "[secrets]\nbackend = 'env'\n[servers.a]\ncommand = 'x'\nenv = { TOKEN = '${secret:t}' }\n\
        [servers.b]\nurl = 'https://h/mcp'\nheaders = { Authorization = 'Bearer ${secret:t}' }\n\
        [servers.c]\ncommand = 'x'\nargs = ['${secret:t}']\n";
    let config = Config::parse(Path::new("/x/config.toml"), text);
    for agent in agents::all() {
        for spec in config.roster.servers() {
            let rendered = render::entry(agent, spec, None);
            let written = format!("{:?}", rendered.members);
            assert!(!written.contains("secret") && !written.contains("TOKEN"), "{}: {written}", agent.id);
            assert_eq!(rendered.warnings.len(), 1, "{} {}", agent.id, spec.id);
        }
    }
    let home = Home::new();
    let entry = gateway::spec(find("codex"), Scope::User, &home.ground, None, Some(&config)).unwrap();
    let Endpoint::Command(command) = entry.endpoint else { panic!("no command") };
    assert!(command.inherit_env.contains(&"TOOLCRIB_SECRET_T".to_owned()), "{command:?}");
}

#[test]
fn no_agent_is_ever_told_to_trust_anything() {
    for agent in agents::all() {
        for file in ["gateway", "expanded"] {
            let text = ["json", "jsonc", "toml", "yaml"].iter().find_map(|ending| {
                fs::read_to_string(golden().join(agent.id).join(format!("{file}.{ending}"))).ok()
            });
            let text = text.unwrap();
            for word in
                ["\"trust\"", "autoApprove", "alwaysAllow", "approval_mode", "enableAllProjectMcpServers"]
            {
                assert!(!text.contains(word), "{} {word}", agent.id);
            }
        }
    }
}
