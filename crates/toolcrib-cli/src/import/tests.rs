//! Every row of the table read back from the files that `export --expand` made, and what people's files have besides.

use std::ffi::OsString;
use std::fs;

use serde_json::json;
use tempfile::TempDir;
use toolcrib::config::SecretStore;

use super::*;
use crate::agents;
use crate::place::Place;
use crate::secrets::Keeper;

const SECRET: &str = "sk-abcdefgh12345678";

struct Home {
    dir: TempDir,
    ground: Ground,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = ("HOME".to_owned(), OsString::from(dir.path()));
        let ground = Ground::of(vec![home], dir.path()).unwrap();
        Self { dir, ground }
    }

    fn write(&self, path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn import(&self, from: &str, text: &str) -> Result<Import, Failure> {
        import(from, Scope::User, &self.ground, (&self.dir.path().join("config.toml"), text), Lift::Env)
    }

    /// What is imported from a file of this text.
    fn file(&self, name: &str, text: &str) -> Import {
        let file = self.dir.path().join(name);
        self.write(&file, text);
        self.import(file.to_str().unwrap(), "").unwrap()
    }
}

fn told(import: &Import) -> Vec<String> {
    let line = |line: &Line| {
        let verdict = match &line.verdict {
            Verdict::Imported(name) => format!("imported as {name}"),
            Verdict::Skipped(why) => format!("skipped: {why}"),
            Verdict::Duplicate(of) => format!("duplicate of {of}"),
        };
        let notes: String = line.notes.iter().map(|note| format!("\n  {note}")).collect();
        format!("{} {verdict}{notes}", line.name)
    };
    import.lines.iter().map(line).collect()
}

#[test]
fn every_agent_is_read_back() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for agent in agents::all() {
        let home = Home::new();
        let file = agent.file(Scope::User, &home.ground).unwrap();
        let ending = file.extension().unwrap().to_str().unwrap();
        let folder = golden.join(agent.id);
        home.write(&file, &fs::read_to_string(folder.join(format!("expanded.{ending}"))).unwrap());
        let import = home.import(agent.id, "# mine\n").unwrap();
        let said = format!("{}\n\n{}", told(&import).join("\n"), import.text);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(folder.join("import.txt"), &said).unwrap();
        }
        assert_eq!(said, fs::read_to_string(folder.join("import.txt")).unwrap(), "{}", agent.id);
        let config = Config::parse(Path::new("/c.toml"), &import.text);
        assert_eq!(config.problems, [], "{}", agent.id);
        let again = home.import(agent.id, &import.text).unwrap();
        assert_eq!(again.text, import.text, "{}: a second import changes nothing", agent.id);
    }
}

#[test]
fn toolcribs_own_entry_is_never_imported() {
    let home = Home::new();
    let import = home.file(
        "mcp.json",
        r#"{"mcpServers": {
            "toolcrib": {"command": "toolcrib", "args": ["stdio"]},
            "crib": {"command": "/usr/local/bin/toolcrib", "args": ["stdio"]},
            "oc": {"type": "local", "command": ["toolcrib", "stdio"]},
            "web": {"url": "http://127.0.0.1:7717/mcp"}
        }}"#,
    );
    assert_eq!(import.text, "");
    assert!(
        told(&import).iter().all(|line| line.ends_with("skipped: it is toolcrib itself")),
        "{:?}",
        told(&import)
    );
}

#[test]
fn secrets_are_not_copied_unless_asked_for() {
    let home = Home::new();
    let file = home.dir.path().join("x.json");
    home.write(
        &file,
        &json!({"mcpServers": {"a": {"command": "x", "env": {"API_KEY": SECRET}}}}).to_string(),
    );
    let config = home.dir.path().join("config.toml");
    let from = file.to_str().unwrap();
    let import = home.import(from, "").unwrap();
    assert!(
        import.text.contains("API_KEY = \"${env:API_KEY}\"") && !import.text.contains(SECRET),
        "{}",
        import.text
    );
    assert!(import.lines[0].notes[0].contains("set `API_KEY`") && !told(&import).concat().contains(SECRET));
    let kept = super::import(from, Scope::User, &home.ground, (&config, ""), Lift::Keep).unwrap();
    assert!(kept.text.contains(SECRET));
    let keeper = Keeper::new(&Place::below(home.dir.path()), &SecretStore::File);
    let taken = Secret::new("another one's");
    keeper.set("api-key", &taken).unwrap();
    let store = Lift::Store(keeper.clone());
    let stored = super::import(from, Scope::User, &home.ground, (&config, ""), store.clone()).unwrap();
    assert!(stored.text.contains("API_KEY = \"${secret:a-api-key}\""), "{}", stored.text);
    assert_eq!(stored.secrets, [("a-api-key".to_owned(), Secret::new(SECRET))]);
    assert!(!format!("{stored:?}").contains(SECRET) && keeper.find("api-key") == Ok(taken));
    let again = super::import(from, Scope::User, &home.ground, (&config, &stored.text), store).unwrap();
    assert!(again.secrets.is_empty() && again.text == stored.text, "{:?}", again.lines);
}

#[test]
fn names_are_made_to_fit_and_others_servers_are_not_overwritten() {
    let home = Home::new();
    let cursor = Agent::find("cursor").unwrap().file(Scope::User, &home.ground).unwrap();
    let servers = json!({"mcpServers": {
        "GitHub Server": {"command": "gh"},
        "git": {"command": "other-git"},
        "same": {"command": "uvx", "args": ["mcp-server-git"]},
        "???": {"command": "x"},
    }});
    home.write(&cursor, &servers.to_string());
    let text = "# keep me\n[servers.git] # mine\ncommand = 'uvx'\nargs = ['mcp-server-git']\n";
    let import = home.import("cursor", text).unwrap();
    assert!(import.text.starts_with(text), "{}", import.text);
    assert_eq!(
        told(&import),
        [
            "??? skipped: nothing of its name can be a name here",
            "GitHub Server imported as github-server\n  it is called `github-server` here",
            "git imported as git-cursor\n  it is called `git-cursor` here",
            "same duplicate of git",
        ]
    );
}

#[test]
fn files_are_known_by_their_shape() {
    let home = Home::new();
    let count = |name: &str, text: &str| {
        let import = home.file(name, text);
        let lines = told(&import);
        assert!(lines.iter().all(|line| line.contains("imported")), "{name}: {lines:?}");
        lines.len()
    };
    assert_eq!(count("a.json", r#"{"mcpServers": {"a": {"command": "x"}}} // c"#), 1);
    assert_eq!(
        count("b.json", r#"{"servers": {"a": {"type": "http", "url": "https://x/y"}}, "inputs": []}"#),
        1
    );
    assert_eq!(count("c.json", r#"{"mcp": {"a": {"type": "local", "command": ["x", "y"]}}}"#), 1);
    assert_eq!(count("d.json", r#"{"mcp": {"servers": {"a": {"command": "x"}}}}"#), 1);
    assert_eq!(count("e.json", r#"{"context_servers": {"a": {"command": "x"}}}"#), 1);
    assert_eq!(count("f.json", r#"{"amp.mcpServers": {"a": {"command": "x"}}}"#), 1);
    assert_eq!(count("g.json", r#"{"a": {"command": "x"}, "b": {"url": "https://x/y"}}"#), 2);
    assert_eq!(count("h.toml", "[mcp_servers.a]\ncommand = 'x'\n"), 1);
    assert_eq!(count("i.yaml", "extensions:\n  a: {type: stdio, cmd: x, args: [y]}\n"), 1);
    assert_eq!(count("j.yaml", "mcpServers:\n  - name: a\n    command: x\n"), 1);
    assert_eq!(
        count("k.json", r#"{"mcpServers": {"a": {"transport": {"type": "stdio", "command": "x"}}}}"#),
        1
    );
    assert_eq!(count("l.json", r#"{"nothing": 1}"#), 0);
}

#[test]
fn what_cannot_be_meant_here_is_skipped_with_its_reason() {
    let home = Home::new();
    let import = home.file(
        "x.json",
        r#"{"mcpServers": {
            "a": {"type": "builtin"},
            "b": {"command": "x", "args": ["${workspaceFolder}"]},
            "c": {"command": "x", "url": "https://x/y"},
            "d": {"command": "./run.sh"},
            "e": {"url": "ftp://x"},
            "f": {"command": "npx", "args": ["-y", "mcp-remote", "https://x/mcp", "--header", "X-Key: abc"], "oauth": {}}
        }}"#,
    );
    let lines = told(&import);
    assert!(lines[..5].iter().all(|line| line.contains(" skipped: ")), "{lines:#?}");
    assert!(
        import.text.contains("url = \"https://x/mcp\"") && import.text.contains("${env:F_X_KEY}"),
        "{}",
        import.text
    );
    assert!(lines[5].contains("`oauth` is left out") && lines[5].contains("mcp-remote"), "{}", lines[5]);
}

#[test]
fn everything_is_looked_through_once_and_a_broken_file_holds_nothing_up() {
    let home = Home::new();
    let path = |agent: &str| Agent::find(agent).unwrap().file(Scope::User, &home.ground).unwrap();
    home.write(&path("cursor"), "{ broken");
    home.write(&path("codex"), "[mcp_servers.a]\ncommand = 'x'\n");
    home.write(&path("kiro"), r#"{"mcpServers": {"b": {"command": "x"}}}"#);
    let project = home.ground.project.display().to_string();
    let local = json!({"projects": {project: {"mcpServers": {"l": {"command": "y"}}}}, "mcpServers": {}});
    home.write(&path("claude"), &local.to_string());
    home.write(
        &home.dir.path().join(".continue/mcpServers/more.json"),
        r#"{"mcpServers": {"m": {"command": "z"}}}"#,
    );
    let lines = told(&home.import("auto", "").unwrap());
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.contains("broken") || line.starts_with(" skipped: `")),
        "{lines:#?}"
    );
    assert!(lines.contains(&"b duplicate of a".to_owned()) && lines.contains(&"l imported as l".to_owned()));
    assert_eq!(home.import("cursor", "").unwrap_err().code, "agent_file_invalid");
    assert!(home.import("nobody", "").unwrap_err().message.contains("neither an agent nor a file"));
}
