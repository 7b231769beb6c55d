//! JSON config files with `mcpServers`.

use super::*;

#[test]
fn json_keys_have_the_same_meaning_as_toml_keys() {
    let config = json(
        r#"{
  // a comment
  "inputs": [],
  "mcpServers": {
    "GitHub": { "command": "npx", "args": ["-y", "é"], "env": {"A": "b"}, "type": "stdio", "alwaysAllow": [] },
    "My Server!": { "command": "./x", "disabled": true, "limits": { "in-flight": 2 } },
  },
}"#,
    );
    assert_eq!(
        problem_lines(&config),
        [
            "3:3 NOTE: `inputs` is ignored",
            "5:5 NOTE: the server `GitHub` is renamed to `github`",
            "5:92 NOTE: `alwaysAllow` is ignored",
            "6:5 NOTE: the server `My Server!` is renamed to `my-server`",
        ]
    );
    let servers: Vec<_> = config.roster.servers().collect();
    assert_eq!(servers[0].id.as_str(), "github");
    assert_eq!(command(servers[0]).args[1].source(), "é");
    assert!(servers[0].enabled && !servers[1].enabled);
    assert_eq!(command(servers[1]).program.source(), "/folder/x");
    assert_eq!(servers[1].limits.in_flight.get(), 2);
    assert_eq!(server_names(&json(r#"{"servers": {"a": {"command": "x"}}}"#)), ["a"]);
}

#[test]
fn json_problem_is_reported_at_its_position() {
    for (text, expected) in [
        ("", "1:1 CONFIG: the file has no `mcpServers`"),
        ("{}", "1:1 CONFIG: the file has no `mcpServers`"),
        ("[]", "1:1 CONFIG: a config file must be one object"),
        ("{\"mcpServers\": {}, }, 1", "1:21 CONFIG: text"),
        ("{\"mcpServers\": {'a': 1}}", "1:17 CONFIG: "),
        ("{\"mcpServers\": []}", "1:16 CONFIG: `mcpServers` must be an object, not an array"),
        ("{\"mcpServers\": {}, \"mcpServers\": {}}", "1:20 CONFIG: `mcpServers` is defined twice"),
        ("{\"mcpServers\": {}, \"profiles\": []}", "1:32 CONFIG: `profiles` must be an object, not an array"),
        ("{\"mcpServers\": {\"a\": 1}}", "1:22 a: `a` must be an object"),
        ("{\"mcpServers\": {\"!\": {\"command\": \"x\"}}}", "1:17 !: invalid server name `!`"),
        ("{\"mcpServers\": {\"a\": {\"url\": \"x\"}}}", "1:30 a: invalid `url`"),
        ("{\"mcpServers\": {\"a\": {\"command\": \"${X}\"}}}", "1:34 a: `${X}` is not a reference"),
        ("{\"mcpServers\": {\"a\": {\"command\": null}}}", "1:34 a: `command` must be a string, not `null`"),
        (
            "{\"mcpServers\": {\"a\": {\"command\": \"x\", \"cwd\": \"a\", \"cwd\": \"b\"}}}",
            "`cwd` is defined twice",
        ),
        (
            "{\"mcpServers\": {\"a\": {\"command\": \"x\", \"env\": {\"A\": 1, \"A\": \"\"}}}}",
            "`env` must contain only strings",
        ),
    ] {
        let config = json(text);
        let problems = problem_lines(&config);
        assert!(problems.first().is_some_and(|line| line.contains(expected)), "{text}: {problems:?}");
        assert!(config.roster.is_empty());
    }
}

#[test]
fn remote_server_accepts_all_spellings_of_type() {
    for (kind, transport) in [
        ("", TransportKind::Auto),
        (r#", "type": "http""#, TransportKind::Streamable),
        (r#", "type": "streamable-http""#, TransportKind::Streamable),
        (r#", "type": "streamableHttp""#, TransportKind::Streamable),
        (r#", "type": "sse""#, TransportKind::Sse),
    ] {
        let config = json(&format!(
            r#"{{"mcpServers": {{"a": {{"url": "https://example.test/mcp", "headers": {{"X-Key": "${{env:K}}"}}{kind}}}}}}}"#
        ));
        assert_eq!(problem_lines(&config), Vec::<String>::new());
        let Endpoint::Http(http) = &only_server(&config).endpoint else { panic!("a remote server") };
        assert_eq!((http.url.source(), http.transport), ("https://example.test/mcp", transport));
        assert_eq!(http.headers["X-Key"].source(), "${env:K}");
    }
}

#[test]
fn json_names_that_are_equal_after_cleaning_are_rejected() {
    let config = json("{\"mcpServers\": {\n\"Git\": {\"command\": \"x\"},\n\"git\": {\"command\": \"x\"}}}");
    assert_eq!(
        problem_lines(&config),
        [
            "2:1 NOTE: the server `Git` is renamed to `git`",
            "2:1 git: the server name `Git` conflicts with `git` on line 3",
            "3:1 git: the server name `git` conflicts with `Git` on line 2"
        ]
    );
    assert!(config.roster.is_empty());
}

#[test]
fn cleaned_name_is_always_valid() {
    for (written, cleaned) in [
        ("GitHub", "github"),
        ("@scope/Server", "scope-server"),
        ("a__b_", "a_b"),
        ("_x_", "x"),
        ("Ärger", "rger"),
        ("A very long name that goes on and on", "a-very-long-name-that-goes-on-an"),
    ] {
        let config = json(&format!("{{\"mcpServers\": {{\"{written}\": {{\"command\": \"x\"}}}}}}"));
        assert_eq!(server_names(&config), [cleaned]);
    }
}
