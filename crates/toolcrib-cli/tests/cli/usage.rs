//! Tests of help, version, usage errors and config errors.

use super::*;

#[test]
fn help_and_version_exit_0() {
    let home = Home::new("");
    let help = home.run(&["--help"]).expect(0);
    for command in [
        "demo", "serve", "stdio", "call", "tools", "status", "restart", "stop", "logs", "check", "import",
        "export", "run",
    ] {
        assert!(help.stdout.contains(&format!("\n  {command} ")), "{command}: {}", help.stdout);
        let help = home.run(&[command, "--help"]).expect(0).stdout;
        assert!(
            help.find("Examples:").unwrap() < help.find("Usage:").unwrap(),
            "{command}: examples come first"
        );
        for flag in ["--config", "--json", "--quiet", "--verbose", "--color", "--no-input"] {
            assert!(help.contains(flag), "{command}: {flag}");
        }
    }
    assert!(!help.stdout.contains("demo-server"));
    assert!(home.run(&["--version"]).expect(0).stdout.starts_with("toolcrib 0."));
    assert_eq!(home.run(&["--version", "--json"]).expect(0).json()["protocol_versions"][4], "2026-07-28");
}

#[test]
fn usage_errors_exit_1() {
    let home = Home::new("");
    for args in [
        &["nonsense"][..],
        &[],
        &["call"],
        &["restart"],
        &["serve", "--listen", "nowhere"],
        &["-q", "-v", "check"],
    ] {
        let result = home.run(args).expect(1);
        assert!(!result.stderr.is_empty() && result.stdout.is_empty(), "{args:?}");
    }
    let error = home.run(&["nonsense", "--json"]).expect(1).error();
    assert_eq!(error["code"], "usage");
    home.run(&["stdio", "--profile", "x"]).expect(1);
}

#[test]
fn exposed_listen_address_is_refused() {
    let home = Home::new("");
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7717"] {
        let result = home.run(&["serve", "--listen", address]).expect(1);
        assert!(result.stderr.contains("other machines"), "{}", result.stderr);
        assert!(result.stderr.contains("toolcrib serve --listen 127.0.0.1:"), "{}", result.stderr);
    }
}

#[test]
fn check_lists_every_problem_with_position() {
    let home = Home::new(
        "[servers.one]\ncomand = \"x\"\n\n[servers.two]\ncommand = \"x\"\nargs = 7\n\n[servers.good]\ncommand = \"x\"\n",
    );
    let result = home.run(&["check"]).expect(6);
    let file = home.config();
    for line in [2, 6] {
        let position = format!("{}:{line}:", path_text(&file));
        assert!(
            result.stdout.lines().any(|text| text.starts_with(&position)),
            "{position} in {}",
            result.stdout
        );
    }
    assert!(result.stdout.contains("hint: "), "{}", result.stdout);
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
fn check_reports_no_problems() {
    let home = Home::with_demo_servers();
    let result = home.run(&["check"]).expect(0);
    assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("", "2 servers, no problems\n"));
    assert_eq!(home.run(&["check", "-q"]).expect(0).stderr, "");
    assert_eq!(home.run(&["check", "--json"]).expect(0).stdout, "[]\n");
}

#[test]
fn missing_config_error_shows_example() {
    let home = Home::new("");
    std::fs::remove_file(home.config()).unwrap();
    for args in [&["serve"][..], &["tools"], &["check"], &["stdio"], &["call", "x"]] {
        let result = home.run(args).expect(6);
        assert!(result.stderr.contains(path_text(&home.config())), "{}", result.stderr);
        assert!(result.stderr.contains("[servers."), "{}", result.stderr);
    }
    let result = home.run(&["tools", "--config", "/nowhere/at/all.toml"]).expect(6);
    assert!(result.stderr.contains("/nowhere/at/all.toml"), "{}", result.stderr);
}

#[test]
fn hint_names_config_given_on_command_line() {
    let home = Home::new("");
    let other = Home::new("");
    let config = other.config();
    let named = format!("toolcrib serve --config {}", path_text(&config));
    let result = home.run(&["status", "--config", path_text(&config)]).expect(4);
    assert!(result.stderr.contains(&named), "{}", result.stderr);
    assert_eq!(
        home.run(&["status", "--json", "--config", path_text(&config)]).expect(4).error()["hint"],
        named
    );
    let default = home.run(&["status"]).expect(4).stderr;
    assert!(default.ends_with("hint: toolcrib serve\n"), "{default}");
}

#[test]
fn config_with_syntax_error_exits_6() {
    let home = Home::new("[servers.one\ncommand = \"x\"\n");
    for args in [&["serve"][..], &["tools"], &["stdio"], &["call", "x"]] {
        let result = home.run(args).expect(6);
        assert!(result.stderr.contains(&format!("{}:1:", path_text(&home.config()))), "{}", result.stderr);
    }
    let error = home.run(&["serve", "--json"]).expect(6).error();
    assert_eq!(error["code"], "config_invalid");
    assert_eq!(error["problems"][0]["line"], 1);
}

#[test]
fn color_is_used_only_on_request() {
    let home = Home::new("");
    assert!(!home.run(&["status"]).expect(4).stderr.contains('\x1b'));
    assert!(home.run(&["status", "--color", "always"]).expect(4).stderr.contains('\x1b'));
}

#[test]
fn invalid_tag_in_the_environment_is_an_error() {
    let home = Home::new(&format!("{}when = [\"desk\"]\n", server("echo", "echo")));
    let check = |tags: &str| -> RunResult {
        deadline::output(home.command(&["check"]).env("TOOLCRIB_TAGS", tags)).into()
    };
    check("desk, home").expect(0);
    let result = check("desk,no way").expect(6);
    assert!(result.stdout.contains("`no way` in `TOOLCRIB_TAGS` is not a tag"), "{}", result.stdout);
}

#[test]
fn user_is_known_without_variables() {
    let user = deadline::output(Command::new("id").arg("-un"));
    let user = String::from_utf8(user.stdout).unwrap();
    let scope = format!("[scopes.me]\nmatch = {{ user = \"{}\" }}\ntags = [\"me\"]\n", user.trim());
    let home = Home::new(&format!("{}when = [\"me\"]\n{scope}", server("echo", "echo")));
    let mut why = home.command(&["why", "echo", "--json"]);
    why.env_remove("USER").env_remove("LOGNAME");
    let why: RunResult = deadline::output(&mut why).into();
    assert_eq!(why.expect(0).json()["active"], true);
}
