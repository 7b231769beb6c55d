//! Reading config files from disk.

use std::os::unix::fs::PermissionsExt;
use std::{fs, process};

use super::*;

#[test]
fn relative_paths_are_resolved_against_the_files_folder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    fs::write(&path, "\u{feff}[servers.a]\ncommand = './x'\ncwd = '.'").unwrap();
    let config = Config::load(&path);
    let folder = dir.path().canonicalize().unwrap();
    assert_eq!(command(only_server(&config)).cwd.as_deref(), Some(&*folder));
    assert_eq!(command(only_server(&config)).program.source(), folder.join("x").to_str().unwrap());
    assert_eq!(config.file, path);
}

#[test]
fn file_that_cannot_be_a_config_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    assert!(process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(dir.path().join("large"), vec![b'#'; (4 << 20) + 1]).unwrap();
    fs::write(dir.path().join("binary"), b"# \xc3\xa4\n ab\xff").unwrap();
    for (name, message) in [
        ("missing", "file not found"),
        ("", "not a regular file"),
        ("pipe", "not a regular file"),
        ("large", "the file is larger than 4 MiB"),
        ("binary", "the file is not UTF-8 text"),
    ] {
        let config = Config::load(&dir.path().join(name));
        assert!(config.is_refused() && config.roster.is_empty());
        assert_eq!(config.problems.len(), 1);
        assert_eq!(config.problems[0].message, message);
        assert!(config.problems[0].hint.is_some());
    }
    let binary = Config::load(&dir.path().join("binary"));
    assert_eq!(binary.problems[0].position, Some(Position { line: 2, column: 4 }));
}

#[test]
fn world_writable_file_is_refused_but_still_read() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    fs::write(&path, "[servers.a]\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
    let config = Config::load(&path);
    assert!(config.is_refused());
    assert_eq!(config.problems.len(), 2);
    assert!(config.problems[0].hint.as_ref().is_some_and(|hint| hint.starts_with("run `chmod o-w ")));
}

#[test]
fn file_that_all_users_can_replace_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("open");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("config.toml");
    fs::write(&path, "[servers.a]\ncommand = 'x'\n").unwrap();
    let link = dir.path().join("link.toml");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for (mode, is_refused) in [(0o755, false), (0o777, true), (0o1777, false)] {
        fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        for path in [&path, &link] {
            let config = Config::load(path);
            assert_eq!(config.is_refused(), is_refused, "{mode:o} {}", path.display());
            if is_refused {
                let hint = config.problems[0].hint.as_deref().unwrap();
                assert!(hint.starts_with("run `chmod o-w ") && hint.ends_with("open`"), "{hint}");
            }
        }
    }
}

#[test]
fn card_is_read_from_a_table_or_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    fs::write(
        dir.path().join("b.json"),
        r#"{"title": "B", "name": "org.example/b", "tools": [{"name": "t"}]}"#,
    )
    .unwrap();
    let text = "[servers.a]\ncommand = 'x'\n[servers.a.card]\ntitle = 'A'\ntags = ['web']\n\
        tools = [{ name = 'find', inputSchema = { type = 'object', properties = { n = { minimum = -1.5 } } } }]\n\
        [servers.b]\ncommand = 'x'\ncard = 'b.json'\n";
    fs::write(&path, text).unwrap();
    let config = Config::load(&path);
    assert_eq!(problem_lines(&config), [""; 0]);
    let card = |name: &str| config.roster.get(&name.parse().unwrap()).unwrap().card.clone().unwrap();
    assert_eq!((card("a").title.as_deref(), card("b").title.as_deref()), (Some("A"), Some("B")));
    assert_eq!((card("a").tags, card("b").tools.len()), (vec!["web".to_owned()], 1));
    let definition: serde_json::Value = serde_json::from_slice(&card("a").tools[0].definition).unwrap();
    assert_eq!(definition["inputSchema"]["properties"]["n"]["minimum"], -1.5);
}

#[test]
fn unusable_card_disables_only_its_server() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.toml");
    fs::write(dir.path().join("bad.json"), "[]").unwrap();
    let text = "[servers.a]\ncommand = 'x'\ncard = 'missing.json'\n[servers.b]\ncommand = 'x'\ncard = 'bad.json'\n\
        [servers.c]\ncommand = 'x'\ncard = { titel = 'C' }\n[servers.d]\ncommand = 'x'\ncard.tools = [{}]\n\
        [servers.e]\ncommand = 'x'\n";
    fs::write(&path, text).unwrap();
    let config = Config::load(&path);
    let problems = problem_lines(&config);
    let messages =
        ["file not found", "is not a JSON object", "titel", "a tool is not an object with a `name`"];
    assert_eq!(problems.len(), messages.len(), "{problems:?}");
    for (problem, message) in problems.iter().zip(messages) {
        assert!(problem.contains(message), "{problem}");
    }
    assert_eq!(server_names(&config), ["e"]);
}
