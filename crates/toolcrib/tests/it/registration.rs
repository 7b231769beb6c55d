//! An invalid server is rejected when it is registered, not when it is called.

use std::path::Path;

use proptest::prelude::*;
use toolcrib::config::{Config, ProblemScope};
use toolcrib::spec::BadName;
use toolcrib::{BuildError, CommandSpec, Crib, ErrorKind, NameClash, ServerId, ServerSpec};

use crate::support::{id, kind, on};

/// Parses a config with a valid server and one with these keys, which start on line 4.
fn parse(keys: &str) -> Config {
    Config::parse(
        Path::new("toolcrib.toml"),
        &format!("[servers.good]\ncommand = 'true'\n[servers.bad]\n{keys}"),
    )
}

#[test]
fn invalid_spec_is_reported_with_its_line() {
    for keys in [
        "args = ['a']",
        "command = 5",
        "command = ''",
        "command = 'npx -y x'",
        "command = 'x', args = 'y'",
        "command = 'x'\nargs = [5]",
        "command = 'x'\nenv = { PORT = 80 }",
        "command = 'x'\nera = 'tomorrow'",
        "command = 'x'\nenabled = 'yes'",
        "command = 'x'\nlifecycle.start = 'later'",
        "command = 'x'\nlifecycle.keep-alive = 300",
        "command = 'x'\nlimits.call-timeout = 'soon'",
        "command = 'x'\nlimits.in-flight = 0",
        "command = 'x'\ncomand = 'y'",
    ] {
        let config = parse(keys);
        assert_eq!(config.problems.len(), 1, "{keys}: {:?}", config.problems);
        let problem = &config.problems[0];
        assert!(
            problem.position.is_some_and(|at| at.line >= 3) && problem.hint.is_some(),
            "{keys}: {problem}"
        );
        assert!(config.roster.get(&id("bad")).is_none(), "{keys}");
        // A file that is not TOML has no servers at all; any other problem affects only its own server.
        let broken = problem.scope == ProblemScope::WholeConfig;
        assert_eq!(config.roster.get(&id("good")).is_none(), broken, "{keys}");
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_server_is_unknown_and_never_started() {
    let config = parse("command = 'x'\nlimits.call-timeout = 'soon'");
    let crib = Crib::builder().roster(config.roster).build().unwrap();
    assert_eq!(crib.status().len(), 1);
    assert!(crib.contains(&id("good")) && !crib.contains(&id("bad")));
    assert_eq!(kind(crib.call(on("bad", "echo")).await), ErrorKind::Unknown);
}

#[test]
fn ambiguous_server_name_is_rejected() {
    for (name, error) in [
        ("", BadName::Length),
        ("a-name-of-thirty-three-characters", BadName::Length),
        (".", BadName::Character),
        ("..", BadName::Character),
        ("a/b", BadName::Character),
        ("a\\b", BadName::Character),
        ("a.b", BadName::Character),
        ("a%2fb", BadName::Character),
        ("a b", BadName::Character),
        ("a\0", BadName::Character),
        ("a\n", BadName::Character),
        ("\u{1b}[2J", BadName::Character),
        ("-rf", BadName::Character),
        ("_", BadName::Character),
        ("Git", BadName::Character),
        ("gіt", BadName::Character), // the second letter is Cyrillic
        ("git\u{202e}", BadName::Character),
        ("git__log", BadName::Separator),
        ("git_", BadName::Separator),
    ] {
        assert_eq!(name.parse::<ServerId>(), Err(error), "{name:?}");
        let table = serde_json::Value::from(name);
        let config = Config::parse(Path::new("c.toml"), &format!("[servers.{table}]\ncommand = 'x'"));
        assert!(config.roster.is_empty() && !config.problems.is_empty(), "{name:?}");
    }
}

#[test]
fn similar_server_names_are_rejected_together() {
    let server = |name: &str| ServerSpec::command(id(name), CommandSpec::new("true"));
    let error = Crib::builder().server(server("my-git")).server(server("my_git")).build().unwrap_err();
    assert_eq!(error, BuildError::NameClash(NameClash(id("my-git"), id("my_git"))));
}

proptest! {
    #[test]
    fn any_text_is_rejected_or_a_safe_server_name(text in "\\PC{0,40}|[a-z0-9_-]{0,40}|.{0,4}") {
        if let Ok(name) = text.parse::<ServerId>() {
            prop_assert_eq!(name.as_str(), &text);
            prop_assert!((1..=32).contains(&text.len()));
            prop_assert!(text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')));
            prop_assert!(!text.starts_with(['-', '_']));
            // The part after the first `__` of a public name is the tool, for any tool name.
            for tool in ["tool", "_x"] {
                let public = format!("{text}__{tool}");
                prop_assert_eq!(public.split_once("__"), Some((&*text, tool)));
            }
        }
    }
}
