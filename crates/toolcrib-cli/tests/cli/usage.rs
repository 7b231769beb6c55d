//! Help, versions, mistakes on the command line and in the config.

use super::*;

#[test]
fn help_and_version_are_no_mistakes() {
    let home = Home::new("");
    let help = home.run(&["--help"]).expect(0);
    for command in [
        "demo", "serve", "stdio", "call", "tools", "status", "restart", "stop", "logs", "check", "import",
        "export", "run",
    ] {
        assert!(help.stdout.contains(&format!("\n  {command} ")), "{command}: {}", help.stdout);
        let help = home.run(&[command, "--help"]).expect(0).stdout;
        let (examples, usage) = (help.find("Examples:").unwrap(), help.find("Usage:").unwrap());
        assert!(examples < usage, "{command}: examples come first");
        for flag in ["--config", "--json", "--quiet", "--verbose", "--color", "--no-input"] {
            assert!(help.contains(flag), "{command}: {flag}");
        }
    }
    assert!(!help.stdout.contains("demo-server"));
    assert!(home.run(&["--version"]).expect(0).stdout.starts_with("toolcrib 0."));
    assert_eq!(home.run(&["--version", "--json"]).expect(0).json()["protocol_versions"][4], "2026-07-28");
}

#[test]
fn mistakes_on_the_command_line_exit_1() {
    let home = Home::new("");
    for args in [
        &["nonsense"][..],
        &[],
        &["call"],
        &["restart"],
        &["serve", "--listen", "nowhere"],
        &["-q", "-v", "check"],
    ] {
        let ended = home.run(args).expect(1);
        assert!(!ended.stderr.is_empty() && ended.stdout.is_empty(), "{args:?}");
    }
    let error = home.run(&["nonsense", "--json"]).expect(1).error();
    assert_eq!(error["code"], "usage");
    home.run(&["stdio", "--profile", "x"]).expect(1);
}

#[test]
fn an_address_that_others_can_reach_is_refused_with_the_reason() {
    let home = Home::new("");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7717"] {
        let ended = home.run(&["serve", "--listen", address]).expect(1);
        assert!(ended.stderr.contains("other machines"), "{}", ended.stderr);
        assert!(ended.stderr.contains("toolcrib serve --listen 127.0.0.1:"), "{}", ended.stderr);
    }
}

#[test]
fn check_lists_every_mistake_with_its_place() {
    let home = Home::new(
        "[servers.one]\ncomand = \"x\"\n\n[servers.two]\ncommand = \"x\"\nargs = 7\n\n[servers.good]\ncommand = \"x\"\n",
    );
    let ended = home.run(&["check"]).expect(6);
    let file = home.config();
    for line in [2, 6] {
        let place = format!("{}:{line}:", path_text(&file));
        assert!(ended.stdout.lines().any(|text| text.starts_with(&place)), "{place} in {}", ended.stdout);
    }
    assert!(ended.stdout.contains("hint: "), "{}", ended.stdout);
    let problems = home.run(&["check", "--json"]).expect(6).json();
    let problems = problems.as_array().unwrap();
    assert!(
        problems.iter().any(|problem| problem["server"] == "one" && problem["line"] == 2),
        "{problems:?}"
    );
    assert!(
        problems.iter().any(|problem| problem["server"] == "two" && problem["line"] == 6),
        "{problems:?}"
    );
    assert!(problems.iter().all(|problem| problem["file"] == path_text(&file)));
}

#[test]
fn check_says_when_all_is_well() {
    let home = Home::with_demo_servers();
    let ended = home.run(&["check"]).expect(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", "2 servers, no problems\n"));
    assert_eq!(home.run(&["check", "-q"]).expect(0).stderr, "");
    assert_eq!(home.run(&["check", "--json"]).expect(0).stdout, "[]\n");
}

#[test]
fn a_config_that_is_not_there_is_explained() {
    let home = Home::new("");
    std::fs::remove_file(home.config()).unwrap();
    for args in [&["serve"][..], &["tools"], &["check"], &["stdio"], &["call", "x"]] {
        let ended = home.run(args).expect(6);
        assert!(ended.stderr.contains(path_text(&home.config())), "{}", ended.stderr);
        assert!(ended.stderr.contains("[servers."), "{}", ended.stderr);
    }
    let ended = home.run(&["tools", "--config", "/nowhere/at/all.toml"]).expect(6);
    assert!(ended.stderr.contains("/nowhere/at/all.toml"), "{}", ended.stderr);
}

#[test]
fn a_hint_names_the_config_that_has_to_be_named() {
    let (home, other) = (Home::new(""), Home::new(""));
    let config = other.config();
    let named = format!("toolcrib serve --config {}", path_text(&config));
    let ended = home.run(&["status", "--config", path_text(&config)]).expect(4);
    assert!(ended.stderr.contains(&named), "{}", ended.stderr);
    assert_eq!(
        home.run(&["status", "--json", "--config", path_text(&config)]).expect(4).error()["hint"],
        named
    );
    let usual = home.run(&["status"]).expect(4).stderr;
    assert!(usual.ends_with("hint: toolcrib serve\n"), "{usual}");
}

#[test]
fn a_config_with_broken_syntax_is_not_served() {
    let home = Home::new("[servers.one\ncommand = \"x\"\n");
    for args in [&["serve"][..], &["tools"], &["stdio"], &["call", "x"]] {
        let ended = home.run(args).expect(6);
        assert!(ended.stderr.contains(&format!("{}:1:", path_text(&home.config()))), "{}", ended.stderr);
    }
    let error = home.run(&["serve", "--json"]).expect(6).error();
    assert_eq!(error["code"], "config_invalid");
    assert_eq!(error["problems"][0]["line"], 1);
}

#[test]
fn colour_is_used_only_where_it_is_wanted() {
    let home = Home::new("");
    assert!(!home.run(&["status"]).expect(4).stderr.contains('\x1b'));
    assert!(home.run(&["status", "--color", "always"]).expect(4).stderr.contains('\x1b'));
}
