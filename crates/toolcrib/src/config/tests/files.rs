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
