//! Tests of help, version, usage errors and config errors.

use super::*;

#[test]
fn help_and_version_exit_0() {
    let home = Home::new("");
    let help = home.run(&["--help"]).expect(0).stdout;
    assert!(help.lines().count() <= 40 && help.lines().all(|line| line.chars().count() <= 80), "{help}");
    assert_eq!(home.run(&["help"]).expect(0).stdout.trim_end(), help.trim_end());
    for command in ["call", "serve", "list", "remove", "secret set"] {
        let words: Vec<&str> = command.split(' ').collect();
        let help = home.run(&[&words[..], &["--help"]].concat()).expect(0).stdout;
        let usage = help.find("Usage: toolcrib ").unwrap();
        assert!(words.len() > 1 || help.find("Examples:").unwrap() < usage, "{command}: examples come first");
        assert!(!help.contains("--no-input"), "global options are shown once: {help}");
        let by_verb = home.run(&[&["help"], &words[..]].concat()).expect(0).stdout;
        assert_eq!(by_verb.trim_end(), help.trim_end(), "{command}");
    }
    assert!(!help.contains("demo-server"));
    assert!(home.run(&["--version"]).expect(0).stdout.starts_with("toolcrib 0."));
    assert_eq!(home.run(&["--version", "--json"]).expect(0).json()["protocol_versions"][4], "2026-07-28");
}

#[test]
fn similar_names_are_suggested() {
    let home = Home::with_demo_servers();
    let suggestion = |args: &[&str]| home.run(args).expect(1).stderr;
    assert!(suggestion(&["statsu"]).contains("'status'"));
    assert!(suggestion(&["help", "cal"]).contains("`call`"));
    assert!(suggestion(&["explain", "could_not_strat"]).contains("`could_not_start`"));
    assert!(suggestion(&["export", "claude-cod"]).contains("`claude`"));
}

#[test]
fn explain_takes_kinds_numbers_and_classes() {
    let home = Home::new("");
    let errors = include_str!("../../../../docs/errors.md");
    let rows = errors.lines().filter(|line| line.starts_with("| `"));
    let mut count = 0;
    for row in rows {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`');
        let shown = home.run(&["explain", name]).expect(0).stdout;
        assert!(shown.starts_with(&format!("{name} (")) && shown.contains("\nWhat to do:\n"), "{shown}");
        if let Ok(code) = cells[2].parse::<i32>() {
            let by_number = home.run(&["explain", &code.to_string()]).expect(0).stdout;
            assert!(by_number.contains(&format!("{name} (error {code})")), "{by_number}");
            assert_eq!(home.run(&["explain", &code.abs().to_string()]).expect(0).stdout, by_number);
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
    assert_eq!(home.run(&["explain", "--json"]).expect(0).json().as_array().unwrap().len(), count);
}

#[test]
fn completion_scripts_have_valid_syntax() {
    let home = Home::with_demo_servers();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = home.run(&["completions", shell]).expect(0).stdout;
        assert!(script.contains("TOOLCRIB_COMPLETE"), "{script}");
        if !["bash", "zsh", "fish"].contains(&shell) {
            continue;
        }
        let file = home.0.file(&format!("completion.{shell}"));
        std::fs::write(&file, script).unwrap();
        match Command::new(shell).arg("-n").arg(&file).output() {
            Ok(checked) => assert!(checked.status.success(), "{checked:?}"),
            Err(_) => deadline::skip(&format!("{shell} is not installed")),
        }
    }
}

#[test]
fn completion_knows_verbs_servers_and_tools() {
    let home = Home::with_demo_servers();
    home.run(&["tools"]).expect(0);
    let complete = |words: &[&str]| {
        let mut args = vec!["--", "toolcrib"];
        args.extend(words);
        let mut command = home.command(&args);
        let index = words.len().to_string();
        command.env("TOOLCRIB_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index);
        command
            .env("_CLAP_IFS", "\n")
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "true");
        let result: RunResult = deadline::output(&mut command).into();
        result.expect(0).stdout.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["expl"]), ["explain"]);
    assert_eq!(complete(&["restart", ""])[..2], ["counter", "echo"]);
    assert_eq!(complete(&["call", "echo."]), ["echo.say", "echo.fail"]);
    assert_eq!(complete(&["call", "echo", ""])[..2], ["say", "fail"]);
    assert_eq!(complete(&["export", "clau"]), ["claude", "claude-desktop"]);
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
fn missing_config_error_names_commands_that_write_one() {
    let home = Home::new("");
    std::fs::remove_file(home.config()).unwrap();
    for args in [&["serve"][..], &["tools"], &["check"], &["stdio"], &["call", "x"]] {
        let result = home.run(args).expect(6);
        assert!(result.stderr.contains(path_text(&home.config())), "{}", result.stderr);
        assert!(result.stderr.contains("`toolcrib init"), "{}", result.stderr);
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
fn refused_config_is_reported_by_ls_show_and_why() {
    let home = Home::new(&server("echo", "echo"));
    let run = |args: &[&str]| -> RunResult {
        deadline::output(home.command(args).env("TOOLCRIB_TAGS", "no way")).into()
    };
    for args in [&["ls"][..], &["show", "echo"], &["why", "echo"]] {
        let result = run(args).expect(6);
        assert!(result.stdout.contains("the config is refused as a whole"), "{args:?}: {}", result.stdout);
        assert!(result.stderr.contains("`no way` in `TOOLCRIB_TAGS` is not a tag"), "{}", result.stderr);
        assert!(result.stderr.contains("hint:"), "{}", result.stderr);
        let result = run(&[args, &["--json"]].concat()).expect(6);
        let json = result.json();
        let server = if args == ["ls"] { &json[0] } else { &json };
        assert_eq!(server["active"], false, "{json}");
        assert_eq!(result.error()["code"], "config_invalid");
    }
    home.run(&["why", "echo"]).expect(0);
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
