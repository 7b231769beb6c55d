//! Imports of the files that `export --expand` wrote for every agent, and of other files.

use std::ffi::OsString;
use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::agents;

const SECRET: &str = "sk-abcdefgh12345678";

struct Home {
    dir: TempDir,
    paths: AgentPaths,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = ("HOME".to_owned(), OsString::from(dir.path()));
        let paths = AgentPaths::new(vec![home], dir.path()).unwrap();
        Self { dir, paths }
    }

    fn write(&self, path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn import(&self, from: &str, text: &str) -> Result<Import, Error> {
        self.import_with(from, text, SecretExtraction::Env)
    }

    fn import_with(&self, from: &str, text: &str, secrets: SecretExtraction<'_>) -> Result<Import, Error> {
        import(&ImportRequest {
            from,
            scope: AgentFileScope::User,
            paths: &self.paths,
            config_path: &self.dir.path().join("config.toml"),
            config_text: text,
            secrets,
            left_out: LeftOut::default(),
        })
    }

    /// Imports from a file with this text.
    fn file(&self, name: &str, text: &str) -> Import {
        let file = self.dir.path().join(name);
        self.write(&file, text);
        self.import(file.to_str().unwrap(), "").unwrap()
    }
}

/// A store with one secret.
#[derive(Debug)]
struct OneSecret {
    name: &'static str,
    value: &'static str,
}

impl StoredSecrets for OneSecret {
    fn find_stored(&self, name: &str) -> Option<Secret> {
        (name == self.name).then(|| Secret::new(self.value))
    }
}

fn summarize(import: &Import) -> Vec<String> {
    let summary = |entry: &ImportedEntry| {
        let verdict = match &entry.verdict {
            ImportVerdict::Imported(name) => format!("imported as {name}"),
            ImportVerdict::Skipped(reason) => format!("skipped: {reason}"),
            ImportVerdict::Duplicate(existing) => format!("duplicate of {existing}"),
        };
        let notes: String = entry.notes.iter().map(|note| format!("\n  {note}")).collect();
        format!("{} {verdict}{notes}", entry.name)
    };
    import.entries.iter().map(summary).collect()
}

#[test]
fn import_matches_golden_files_of_every_agent() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for agent in agents::all() {
        let home = Home::new();
        let file = agent.config_file(AgentFileScope::User, &home.paths).unwrap();
        let extension = file.extension().unwrap().to_str().unwrap();
        let dir = golden.join(agent.id);
        home.write(&file, &fs::read_to_string(dir.join(format!("expanded.{extension}"))).unwrap());
        let import = home.import(agent.id, "# mine\n").unwrap();
        let summary = format!("{}\n\n{}", summarize(&import).join("\n"), import.config_text);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(dir.join("import.txt"), &summary).unwrap();
        }
        assert_eq!(summary, fs::read_to_string(dir.join("import.txt")).unwrap(), "{}", agent.id);
        let config = Config::parse(Path::new("/c.toml"), &import.config_text);
        assert_eq!(config.problems, [], "{}", agent.id);
        let again = home.import(agent.id, &import.config_text).unwrap();
        assert_eq!(again.config_text, import.config_text, "{}: a second import changes nothing", agent.id);
    }
}

#[test]
fn own_entry_is_never_imported() {
    let home = Home::new();
    let import = home.file(
        "mcp.json",
        r#"{"mcpServers": {
            "toolcrib": {"command": "toolcrib", "args": ["stdio"]},
            "crib": {"command": "/usr/local/bin/toolcrib", "args": ["stdio"]},
            "oc": {"type": "local", "command": ["toolcrib", "stdio"]},
            "npx": {"command": "npx", "args": ["-y", "toolcrib@1.0.0", "stdio"]},
            "uvx": {"command": ["/usr/bin/uvx", "toolcrib", "stdio", "--profile", "x"]},
            "web": {"url": "http://127.0.0.1:7717/mcp"}
        }}"#,
    );
    assert_eq!(import.config_text, "");
    assert!(
        summarize(&import)
            .iter()
            .all(|line| line.ends_with("skipped: it starts or connects to toolcrib itself")),
        "{:?}",
        summarize(&import)
    );
}

#[test]
fn secrets_are_copied_only_on_request() {
    let home = Home::new();
    let file = home.dir.path().join("x.json");
    home.write(
        &file,
        &json!({"mcpServers": {"a": {"command": "x", "env": {"API_KEY": SECRET}}}}).to_string(),
    );
    let from = file.to_str().unwrap();
    let import = home.import(from, "").unwrap();
    assert!(
        import.config_text.contains("API_KEY = \"${env:API_KEY}\"") && !import.config_text.contains(SECRET),
        "{}",
        import.config_text
    );
    assert!(
        import.entries[0].notes[0].contains("set `API_KEY`") && !summarize(&import).concat().contains(SECRET)
    );
    let copied = home.import_with(from, "", SecretExtraction::Keep).unwrap();
    assert!(copied.config_text.contains(SECRET));
    let existing = OneSecret { name: "api-key", value: "existing value" };
    let store = SecretExtraction::Store(&existing);
    let stored = home.import_with(from, "", store).unwrap();
    assert!(stored.config_text.contains("API_KEY = \"${secret:a-api-key}\""), "{}", stored.config_text);
    assert_eq!(stored.secrets, [("a-api-key".to_owned(), Secret::new(SECRET))]);
    assert!(!format!("{stored:?}").contains(SECRET));
    let again = home.import_with(from, &stored.config_text, store).unwrap();
    assert!(again.secrets.is_empty() && again.config_text == stored.config_text, "{:?}", again.entries);
}

#[test]
fn names_are_converted_and_existing_servers_kept() {
    let home = Home::new();
    let cursor = Agent::find("cursor").unwrap().config_file(AgentFileScope::User, &home.paths).unwrap();
    let servers = json!({"mcpServers": {
        "GitHub Server": {"command": "gh"},
        "git": {"command": "other-git"},
        "same": {"command": "uvx", "args": ["mcp-server-git"]},
        "???": {"command": "x"},
    }});
    home.write(&cursor, &servers.to_string());
    let text = "# keep me\n[servers.git] # mine\ncommand = 'uvx'\nargs = ['mcp-server-git']\n";
    let import = home.import("cursor", text).unwrap();
    assert!(import.config_text.starts_with(text), "{}", import.config_text);
    assert_eq!(
        summarize(&import),
        [
            "??? skipped: its name has no characters that are valid in a server name",
            "GitHub Server imported as github-server\n  renamed to `github-server`",
            "git imported as git-cursor\n  renamed to `git-cursor`: the config has a different server `git`",
            "same duplicate of git",
        ]
    );
}

#[test]
fn unknown_files_are_recognized_by_their_keys() {
    let home = Home::new();
    let count = |name: &str, text: &str| {
        let import = home.file(name, text);
        let lines = summarize(&import);
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
fn unsupported_entries_are_skipped_with_reason() {
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
    let lines = summarize(&import);
    assert!(lines[..5].iter().all(|line| line.contains(" skipped: ")), "{lines:#?}");
    assert!(
        import.config_text.contains("url = \"https://x/mcp\"")
            && import.config_text.contains("${env:F_X_KEY}"),
        "{}",
        import.config_text
    );
    assert!(lines[5].contains("`oauth` is omitted") && lines[5].contains("mcp-remote"), "{}", lines[5]);
}

#[test]
fn values_that_only_the_agent_knows_become_secrets() {
    let home = Home::new();
    let path =
        |agent: &str| Agent::find(agent).unwrap().config_file(AgentFileScope::User, &home.paths).unwrap();
    home.write(
        &path("goose"),
        "extensions:\n  gh: {type: stdio, name: gh, cmd: gh-mcp, args: [], env_keys: [GITHUB_TOKEN]}\n  developer: {type: builtin, name: developer}\n",
    );
    home.write(
        &path("vscode"),
        r#"{"inputs": [{"id": "gh-key", "type": "promptString"}], "servers": {
            "web": {"type": "http", "url": "https://x/mcp", "headers": {"Authorization": "Bearer ${input:gh-key}"}},
            "gh": {"command": "gh-mcp", "env": {"GITHUB_TOKEN": "ghp_0123456789abcdef"}}}}"#,
    );
    let empty = OneSecret { name: "", value: "" };
    let import = home.import_with("auto", "", SecretExtraction::Store(&empty)).unwrap();
    let lines = summarize(&import);
    assert_eq!(
        lines,
        [
            "developer skipped: it is part of the agent, not a server",
            "gh imported as gh\n  `GITHUB_TOKEN` of `env_keys` became `${secret:github-token}`; if it has no value yet: `toolcrib secret set github-token`",
            "gh duplicate of gh",
            "web imported as web\n  `${input:gh-key}` became `${secret:gh-key}`; if it has no value yet: `toolcrib secret set gh-key`",
        ]
    );
    assert!(
        import.config_text.contains("GITHUB_TOKEN = \"${secret:github-token}\""),
        "{}",
        import.config_text
    );
    assert!(import.config_text.contains("\"Bearer ${secret:gh-key}\""), "{}", import.config_text);
    let env = home.import("vscode", "").unwrap();
    assert!(env.config_text.contains("Bearer ${env:GH_KEY}"), "{}", env.config_text);
}

#[test]
fn header_arguments_are_understood_from_every_agent() {
    for agent in agents::all().filter(|agent| agent.entry_format.command_key == "command") {
        let home = Home::new();
        let bridge =
            json!(["-y", "mcp-remote", "https://x/mcp", "--header", "Authorization: Bearer ${TOKEN}"]);
        let proxy = json!(["--header", "X-Key:${KEY}", "https://x/mcp"]);
        let file = home.dir.path().join("entry.json");
        let entry = |args: &Json| json!({"command": "npx", "args": args, "env": {"KEY": "abc"}});
        let entries = json!({"bridge": entry(&bridge), "proxy": entry(&proxy)});
        let source = ImportSource { file, agent: Some(agent) };
        let names = SecretNames::new(SecretExtraction::Env);
        let mut importer = Importer::new(Path::new("config.toml"), "", names);
        let source_entries = entries.as_object().unwrap().iter().map(|(name, value)| SourceEntry {
            name: name.clone(),
            keys: None,
            value: value.clone(),
        });
        let imported = importer.import_entries(&source, source_entries.collect());
        let text = &importer.config_text;
        assert!(text.contains("Authorization = \"Bearer ${env:TOKEN}\""), "{}: {imported:#?}", agent.id);
        assert!(text.contains("\"X-Key:${env:PROXY_X_KEY}\""), "{}: {text}", agent.id);
    }
}

#[test]
fn pasted_member_needs_no_braces_around_it() {
    for text in [
        r#""mcpServers": {"git": {"command": "uvx"}}"#,
        "\n  \"git\": {\"command\": \"uvx\"}, // mine\n",
        r#"{"git": {"command": "uvx"}}"#,
    ] {
        let import = import_text(text, Path::new("stdin"), None, "", SecretExtraction::Keep).unwrap();
        assert_eq!(summarize(&import), ["git imported as git"], "{text}");
    }
}

#[test]
fn url_with_credentials_stays_in_the_agent() {
    let home = Home::new();
    let claude = Agent::find("claude").unwrap().config_file(AgentFileScope::User, &home.paths).unwrap();
    home.write(
        &claude,
        r#"{"mcpServers": {"a": {"type": "http", "url": "https://me:pw@x/mcp"}, "b": {"type": "http", "url": "https://x/@me"}}}"#,
    );
    let import = home.import("auto", "").unwrap();
    assert_eq!(
        summarize(&import),
        [
            "a skipped: its URL contains a user name or password, which toolcrib does not send",
            "b imported as b"
        ]
    );
}

#[test]
fn start_timeout_and_zed_extensions_are_reported() {
    let home = Home::new();
    let path =
        |agent: &str| Agent::find(agent).unwrap().config_file(AgentFileScope::User, &home.paths).unwrap();
    home.write(&path("codex"), "[mcp_servers.a]\ncommand = 'x'\nstartup_timeout_sec = 12.5\n");
    home.write(
        &path("zed"),
        r#"{"context_servers": {"mcp-server-pg": {"settings": {"database_url": "x"}}, "b": {"source": "custom", "command": "y"}}}"#,
    );
    let import = home.import("auto", "").unwrap();
    let lines = summarize(&import);
    assert_eq!(lines[0], "a imported as a");
    assert_eq!(
        lines[2],
        "mcp-server-pg skipped: a Zed extension starts it; add its command to toolcrib yourself"
    );
    let config = Config::parse(Path::new("config.toml"), &import.config_text);
    let spec = config.roster.get(&"a".parse().unwrap()).unwrap();
    assert_eq!(spec.lifecycle.start_timeout, Duration::from_millis(12_500));
}

#[test]
fn entry_that_is_enabled_anywhere_enables_the_server() {
    let home = Home::new();
    let path =
        |agent: &str| Agent::find(agent).unwrap().config_file(AgentFileScope::User, &home.paths).unwrap();
    home.write(
        &path("codex"),
        "[mcp_servers.a]\ncommand = 'x'\nenabled = false\n[mcp_servers.b]\ncommand = 'y'\nenabled = false\n",
    );
    home.write(&path("kiro"), r#"{"mcpServers": {"a": {"command": "x", "disabledTools": ["t"]}}}"#);
    let import = home.import("auto", "").unwrap();
    let config = Config::parse(Path::new("config.toml"), &import.config_text);
    let enabled = |name: &str| config.roster.get(&name.parse().unwrap()).unwrap().enabled;
    assert!(enabled("a") && !enabled("b"), "{}", import.config_text);
    assert!(import.entries.iter().all(|entry| entry.is_replaced_by(&config)));
    assert!(import.entries[2].notes[0].contains("list of tools is not applied"), "{:?}", import.entries[2]);
    // A server that the user disabled in the config is not what an agent has.
    let off = "[servers.a]\ncommand = 'x'\nenabled = false\n";
    let originals = |config_text: &str| {
        let request = ImportRequest {
            from: "kiro",
            scope: AgentFileScope::User,
            paths: &home.paths,
            config_path: Path::new("/c.toml"),
            config_text,
            secrets: SecretExtraction::Env,
            left_out: LeftOut::default(),
        };
        find_originals(&request).unwrap().len()
    };
    assert_eq!((originals(off), originals("[servers.a]\ncommand = 'x'\n"), originals("")), (0, 1, 0));
}

#[test]
fn variables_and_stored_secrets_are_compared_by_value() {
    let home = Home::new();
    let file = home.dir.path().join("x.json");
    home.write(&file, r#"{"mcpServers": {"a": {"command": "x", "env": {"API_TOKEN": "abc"}}}}"#);
    let variables = vec![
        ("HOME".to_owned(), OsString::from(home.dir.path())),
        ("MINE".to_owned(), OsString::from("abc")),
    ];
    let paths = AgentPaths::new(variables, home.dir.path()).unwrap();
    let mine = OneSecret { name: "mine", value: "abc" };
    let verdict = |reference: &str| {
        let import = import(&ImportRequest {
            from: file.to_str().unwrap(),
            scope: AgentFileScope::User,
            paths: &paths,
            config_path: Path::new("/c.toml"),
            config_text: &format!("[servers.z]\ncommand = 'x'\nenv = {{ API_TOKEN = '{reference}' }}\n"),
            secrets: SecretExtraction::Store(&mine),
            left_out: LeftOut::default(),
        });
        import.unwrap().entries[0].verdict.as_str()
    };
    assert_eq!(["${env:MINE}", "${secret:mine}", "abc"].map(verdict), ["duplicate"; 3]);
    assert_eq!(["${env:OTHER}", "${secret:other}", "abd"].map(verdict), ["imported"; 3]);
}

#[test]
fn auto_import_reads_each_file_once_and_skips_broken() {
    let home = Home::new();
    let path =
        |agent: &str| Agent::find(agent).unwrap().config_file(AgentFileScope::User, &home.paths).unwrap();
    home.write(&path("cursor"), "{ broken");
    home.write(&path("codex"), "[mcp_servers.a]\ncommand = 'x'\n");
    home.write(&path("kiro"), r#"{"mcpServers": {"b": {"command": "x"}}}"#);
    let project = home.paths.project.display().to_string();
    let local = json!({"projects": {project: {"mcpServers": {"l": {"command": "y"}}}}, "mcpServers": {}});
    home.write(&path("claude"), &local.to_string());
    home.write(
        &home.dir.path().join(".continue/mcpServers/more.json"),
        r#"{"mcpServers": {"m": {"command": "z"}}}"#,
    );
    let lines = summarize(&home.import("auto", "").unwrap());
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert!(
        lines.iter().any(|line| line.contains("broken") || line.starts_with(" skipped: `")),
        "{lines:#?}"
    );
    assert!(
        lines.contains(&"b duplicate of a".to_owned())
            && lines.iter().any(|line| line.starts_with("l imported as l\n  only the project `"))
    );
    assert_eq!(home.import("cursor", "").unwrap_err().code(), "agent_file_invalid");
    assert!(home.import("unknown", "").unwrap_err().message().contains("neither an agent nor a file"));
}

#[test]
fn entries_with_other_env_or_headers_are_all_imported() {
    let home = Home::new();
    let import = home.file(
        "x.json",
        r#"{"mcpServers": {
            "db": {"command": "pg", "args": ["-q"], "env": {"URL": "one"}},
            "DB": {"command": "pg", "args": ["-q"], "env": {"URL": "two"}},
            "db-": {"command": "pg", "args": ["-q"], "env": {"URL": "three"}},
            "db_copy": {"command": "pg", "args": ["-q"], "env": {"URL": "one"}},
            "web": {"url": "https://x/mcp", "headers": {"X-Team": "a"}},
            "web2": {"url": "https://x/mcp", "headers": {"X-Team": "b"}},
            "web3": {"url": "https://x/mcp", "headers": {"X-Team": "b"}},
            "web4": {"url": "https://x/mcp", "headers": {"Authorization": "Bearer sk-abcdefgh12345678"}},
            "web5": {"url": "https://x/mcp", "headers": {"Authorization": "Bearer sk-abcdefgh12345678"}},
            "web6": {"url": "https://x/mcp", "headers": {"Authorization": "Bearer sk-abcdefgh87654321"}}
        }}"#,
    );
    let lines = summarize(&import);
    let line = |name: &str| lines.iter().find(|line| line.starts_with(&format!("{name} "))).unwrap().as_str();
    let db: Vec<&str> = ["DB", "db", "db-"].into_iter().map(line).collect();
    assert_eq!(db[0], "DB imported as db\n  renamed to `db`");
    let other = "the config has a different server `db`";
    assert_eq!(db[1], format!("db imported as db-2\n  renamed to `db-2`: {other}"));
    assert_eq!(db[2], format!("db- imported as db-3\n  renamed to `db-3`: {other}"));
    assert_eq!(line("db_copy"), "db_copy duplicate of db-2");
    assert_eq!([line("web"), line("web2")], ["web imported as web", "web2 imported as web2"]);
    assert_eq!(line("web3"), "web3 duplicate of web2");
    assert!(line("web4").starts_with("web4 imported as web4") && line("web6").contains("imported as web6"));
    assert_eq!(line("web5"), "web5 duplicate of web4");
    for value in ["one", "two", "three"] {
        assert!(import.config_text.contains(&format!("\"{value}\"")), "{}", import.config_text);
    }
    let file = home.dir.path().join("x.json");
    let again = home.import(file.to_str().unwrap(), &import.config_text).unwrap();
    assert_eq!(again.config_text, import.config_text, "a second import changes nothing");
}

#[test]
fn env_and_headers_that_cannot_be_kept_are_noted() {
    let home = Home::new();
    let import = home.file(
        "x.json",
        r#"{"mcpServers": {
            "a": {"command": "x", "env": {"A": null, "B": {"c": 1}, "D": 7}, "headers": {"X": "y"}},
            "b": {"url": "https://x/mcp", "env": {"A": "1"}},
            "c": {"url": "https://y/mcp", "env": {"TEAM": "blue"}, "headers": {"X-Team": "${TEAM}"}}
        }}"#,
    );
    let lines = summarize(&import).join("\n");
    for note in [
        "`env.A` is omitted: its value is not a text",
        "`env.B` is omitted: its value is not a text",
        "`headers` is omitted: a server with a command has none",
        "`env` is omitted: a server with a URL has none",
    ] {
        assert!(lines.contains(note), "{note}: {lines}");
    }
    assert!(import.config_text.contains("D = \"7\""), "{}", import.config_text);
    assert!(import.config_text.contains("X-Team = \"blue\""), "{}", import.config_text);
}
