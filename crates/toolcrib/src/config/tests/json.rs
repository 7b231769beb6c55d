//! JSON in the `mcpServers` shape.

use super::*;

#[test]
fn json_is_read_with_the_same_meaning() {
    let config = json(
        r#"{
  // people write comments
  "inputs": [],
  "mcpServers": {
    "GitHub": { "command": "npx", "args": ["-y", "é"], "env": {"A": "b"}, "type": "stdio", "alwaysAllow": [] },
    "My Server!": { "command": "./x", "disabled": true, "limits": { "in-flight": 2 } },
  },
}"#,
    );
    assert_eq!(
        lines(&config),
        [
            "3:3 NOTE: `inputs` means nothing here",
            "5:5 NOTE: `GitHub` is called `github` here",
            "5:92 NOTE: `alwaysAllow` means nothing here",
            "6:5 NOTE: `My Server!` is called `my-server` here",
        ]
    );
    let servers: Vec<_> = config.roster.servers().collect();
    assert_eq!(servers[0].id.as_str(), "github");
    assert_eq!(command(servers[0]).args[1].written(), "é");
    assert!(servers[0].enabled && !servers[1].enabled);
    assert_eq!(command(servers[1]).program.written(), "/folder/x");
    assert_eq!(servers[1].limits.in_flight.get(), 2);
    assert_eq!(names(&json(r#"{"servers": {"a": {"command": "x"}}}"#)), ["a"]);
}

#[test]
fn a_mistake_in_json_is_named_where_it_stands() {
    for (text, expected) in [
        ("", "1:1 WHOLE: there is no `mcpServers` in this file"),
        ("{}", "1:1 WHOLE: there is no `mcpServers` in this file"),
        ("[]", "1:1 WHOLE: a config file is one object"),
        ("{\"mcpServers\": {}, }, 1", "1:21 WHOLE: text"),
        ("{\"mcpServers\": {'a': 1}}", "1:17 WHOLE: "),
        ("{\"mcpServers\": []}", "1:16 WHOLE: `mcpServers` must be an object, not an array"),
        ("{\"mcpServers\": {}, \"mcpServers\": {}}", "1:20 WHOLE: `mcpServers` is there twice"),
        ("{\"mcpServers\": {}, \"profiles\": []}", "1:32 WHOLE: `profiles` must be an object, not an array"),
        ("{\"mcpServers\": {\"a\": 1}}", "1:22 a: `a` must be an object"),
        ("{\"mcpServers\": {\"!\": {\"command\": \"x\"}}}", "1:17 !: `!` cannot be a server"),
        ("{\"mcpServers\": {\"a\": {\"url\": \"x\"}}}", "1:30 a: `url` cannot be used"),
        ("{\"mcpServers\": {\"a\": {\"command\": \"${X}\"}}}", "1:34 a: `${X}` is not a reference"),
        ("{\"mcpServers\": {\"a\": {\"command\": null}}}", "1:34 a: `command` must be a string, not `null`"),
        (
            "{\"mcpServers\": {\"a\": {\"command\": \"x\", \"cwd\": \"a\", \"cwd\": \"b\"}}}",
            "`cwd` is there twice",
        ),
        (
            "{\"mcpServers\": {\"a\": {\"command\": \"x\", \"env\": {\"A\": 1, \"A\": \"\"}}}}",
            "`env` holds only strings",
        ),
    ] {
        let config = json(text);
        let lines = lines(&config);
        assert!(lines.first().is_some_and(|line| line.contains(expected)), "{text}: {lines:?}");
        assert!(config.roster.is_empty());
    }
}

#[test]
fn remote_servers_are_read_as_people_write_them() {
    for (kind, transport) in [
        ("", Transport::Auto),
        (r#", "type": "http""#, Transport::Streamable),
        (r#", "type": "streamable-http""#, Transport::Streamable),
        (r#", "type": "streamableHttp""#, Transport::Streamable),
        (r#", "type": "sse""#, Transport::Events),
    ] {
        let config = json(&format!(
            r#"{{"mcpServers": {{"a": {{"url": "https://example.test/mcp", "headers": {{"X-Key": "${{env:K}}"}}{kind}}}}}}}"#
        ));
        assert_eq!(lines(&config), Vec::<String>::new());
        let Endpoint::Http(http) = &only(&config).endpoint else { panic!("a remote server") };
        assert_eq!((http.url.written(), http.transport), ("https://example.test/mcp", transport));
        assert_eq!(http.headers["X-Key"].written(), "${env:K}");
    }
}

#[test]
fn json_names_that_become_one_are_refused_together() {
    let config = json("{\"mcpServers\": {\n\"Git\": {\"command\": \"x\"},\n\"git\": {\"command\": \"x\"}}}");
    assert_eq!(
        lines(&config),
        [
            "2:1 NOTE: `Git` is called `git` here",
            "2:1 git: `Git` and `git` in line 3 are the same name here",
            "3:1 git: `git` and `Git` in line 2 are the same name here"
        ]
    );
    assert!(config.roster.is_empty());
}

#[test]
fn a_cleaned_name_is_always_a_name_and_stays_if_it_was_one() {
    for (written, cleaned) in [
        ("GitHub", "github"),
        ("@scope/Server", "scope-server"),
        ("a__b_", "a_b"),
        ("_x_", "x"),
        ("Ärger", "rger"),
        ("A very long name that goes on and on", "a-very-long-name-that-goes-on-an"),
    ] {
        let config = json(&format!("{{\"mcpServers\": {{\"{written}\": {{\"command\": \"x\"}}}}}}"));
        assert_eq!(names(&config), [cleaned]);
    }
}
