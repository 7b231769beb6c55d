//! Authentication and access rules, with real servers behind the gateway.

#![expect(clippy::expect_used, reason = "tests panic on failure")]

mod callers;
mod profiles;
mod quota;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use test_support::client::{Era, message};
use test_support::gateway::{GatewayProcess, Home};
use test_support::http::{self, Response};
use test_support::wait_until;

const CALLERS: &str = "[callers.ci]\ntoken = 'ci-Token-1'\nallow = ['fake.*']\ndeny = ['fake.record', 'fake.note://one', 'fake.greet']\n\
    [callers.root]\ntoken = 'root-Token'\nadmin = true\n";

fn server(name: &str, args: &[&str]) -> String {
    test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), name, args)
}

/// Returns a home with two servers that record their calls and these rules, and the folder of the records.
fn home(rules: &str) -> (Home, tempfile::TempDir) {
    let records = tempfile::tempdir().expect("a folder for records");
    let folder = records.path().to_string_lossy().into_owned();
    let servers = server("fake", &["--record-dir", &folder]) + &server("other", &["--record-dir", &folder]);
    (Home::new(env!("CARGO_BIN_EXE_crib"), &format!("{servers}{rules}")), records)
}

/// Returns how often `record` ran.
fn count_recorded(records: &Path) -> usize {
    let files = std::fs::read_dir(records).into_iter().flatten().flatten();
    let lines = files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default());
    lines.map(|text| text.lines().filter(|line| line.contains("recorded")).count()).sum()
}

/// Sends a request with these headers in addition to the usual ones.
fn send(gateway: &GatewayProcess, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
    let usual = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
    http::request(gateway.address, "POST", path, &[&usual, headers].concat(), body.to_string().as_bytes())
}

fn ask(gateway: &GatewayProcess, path: &str, token: Option<&str>, method: &str, params: &Value) -> Response {
    let authorization = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
    let reference = params["ref"]["name"].as_str().or(params["ref"]["uri"].as_str());
    let name =
        ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str()).filter(|_| reference.is_none());
    let name = name.map(encode);
    headers.extend(name.as_deref().map(|name| ("Mcp-Name", name)));
    headers.extend(authorization.as_deref().map(|value| ("Authorization", value)));
    send(gateway, path, &headers, &message(Era::Stateless, &1.into(), method, params))
}

/// Encodes a name for a header.
fn encode(name: &str) -> String {
    toolcrib::protocol::header_mirror::encode_header(name).into_owned()
}

fn names(response: &Response, list: &str, key: &str) -> BTreeSet<String> {
    let message = response.message();
    let items = message["result"][list].as_array().unwrap_or_else(|| panic!("{message}"));
    items.iter().map(|item| item[key].as_str().unwrap_or_default().to_owned()).collect()
}

fn error_message(answer: &Response) -> String {
    let message = answer.message();
    message["error"]["message"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned()
}

#[test]
fn denied_tools_prompts_and_resources_are_not_listed() {
    let (home, records) = home(CALLERS);
    let gateway = home.serve();
    let as_ci =
        |path: &str, method: &str, params: Value| ask(&gateway, path, Some("ci-Token-1"), method, &params);
    let as_root = |method: &str, params: Value| ask(&gateway, "/mcp", Some("root-Token"), method, &params);
    let all = names(&as_root("tools/list", json!({})), "tools", "name");
    assert!(all.contains("fake__record") && all.contains("other__echo"));
    let seen = names(&as_ci("/mcp", "tools/list", json!({})), "tools", "name");
    let expected: BTreeSet<String> =
        all.iter().filter(|name| name.starts_with("fake__") && *name != "fake__record").cloned().collect();
    assert_eq!(seen, expected);
    for (method, list, key, hidden) in [
        ("tools/list", "tools", "name", "record"),
        ("prompts/list", "prompts", "name", "greet"),
        ("resources/list", "resources", "uri", "note://one"),
    ] {
        for path in ["/mcp", "/mcp/s/fake"] {
            let seen = names(&as_ci(path, method, json!({})), list, key);
            assert!(!seen.iter().any(|name| name.ends_with(hidden)), "{path} {method}: {seen:?}");
        }
    }
    let arguments = json!({"token": "recorded"});
    for (path, method, params) in [
        ("/mcp", "tools/call", json!({"name": "fake__record", "arguments": arguments})),
        ("/mcp/s/fake", "tools/call", json!({"name": "record", "arguments": arguments})),
        ("/mcp", "prompts/get", json!({"name": "fake__greet"})),
        ("/mcp/s/fake", "prompts/get", json!({"name": "greet"})),
        ("/mcp", "resources/read", json!({"uri": "toolcrib://fake/note%3A%2F%2Fone"})),
        ("/mcp/s/fake", "resources/read", json!({"uri": "note://one"})),
        ("/mcp/s/fake", "resources/read", json!({"uri": "note://x/../one"})),
        ("/mcp/s/fake", "resources/read", json!({"uri": "note://%6Fne"})),
        (
            "/mcp/s/fake",
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": ""}}),
        ),
        ("/mcp/s/fake", "Tools/Call", json!({"name": "record", "arguments": arguments})),
    ] {
        let answer = as_ci(path, method, params);
        assert_eq!(answer.code(), Some(-31010), "{path} {method}: {}", answer.text());
        assert!(!answer.text().contains("config.toml"), "{}", answer.text());
    }
    // Similar tools work, and the other caller may use everything.
    assert!(
        as_ci("/mcp", "tools/call", json!({"name": "echo", "arguments": {"text": "hi"}}))
            .text()
            .contains("hi")
    );
    assert!(
        as_ci("/mcp/s/fake", "resources/read", json!({"uri": "note://two"}))
            .text()
            .contains("read note://two")
    );
    assert_eq!(count_recorded(records.path()), 0);
    as_root("tools/call", json!({"name": "fake__record", "arguments": arguments}));
    assert_eq!(count_recorded(records.path()), 1);
}

#[test]
fn denied_server_looks_like_an_unknown_server() {
    let (home, _records) = home(CALLERS);
    let gateway = home.serve();
    let as_ci =
        |path: &str, method: &str, params: Value| ask(&gateway, path, Some("ci-Token-1"), method, &params);
    assert_eq!(as_ci("/mcp/s/other", "tools/list", json!({})).status, 404);
    assert_eq!(
        as_ci("/mcp/s/other", "tools/list", json!({})).text(),
        as_ci("/mcp/s/absent", "tools/list", json!({})).text().replace("absent", "other")
    );
    assert_eq!(
        error_message(&as_ci("/mcp", "tools/call", json!({"name": "other__echo"}))),
        "Unknown tool: other__echo"
    );
    assert_eq!(as_ci("/mcp", "tools/call", json!({"name": "other__echo"})).code(), Some(-32602));
    assert_eq!(as_ci("/mcp", "tasks/get", json!({"taskId": "other__1"})).code(), Some(-32602));
}

/// Returns other spellings of a name: letter cases, look-alikes, whitespace, invisible characters, prefixes, encodings.
fn spellings(name: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = cases(name).chain(with_insertions(name)).collect();
    for (plain, like) in LOOK_ALIKES {
        found.insert(name.replace(plain, &like.to_string()));
    }
    let tails =
        [name.to_owned(), name.to_uppercase(), format!("{name} "), format!("{name}\0"), format!("__{name}")];
    for prefix in PREFIXES {
        found.extend(tails.iter().map(|tail| format!("{prefix}{tail}")));
    }
    let encode = |form: fn(u32) -> String| name.chars().map(|letter| form(letter as u32)).collect::<String>();
    found.extend([
        encode(|code| format!("%{code:02x}")),
        encode(|code| format!("\\u{code:04x}")),
        encode(|code| format!("&#{code};")),
    ]);
    found.insert(name.chars().filter_map(|letter| char::from_u32(letter as u32 + 0xfee0)).collect());
    found.extend([String::new(), "*".to_owned(), format!("{name}{name}"), name.chars().rev().collect()]);
    found.extend((0..400).map(|number| format!("fake__{name}_{number:08x}")));
    found
}

const LOOK_ALIKES: [(char, char); 10] = [
    ('s', 'ѕ'),
    ('s', 'ſ'),
    ('s', 'ｓ'),
    ('e', 'е'),
    ('e', 'é'),
    ('p', 'р'),
    ('c', 'с'),
    ('o', 'о'),
    ('d', 'ԁ'),
    ('r', 'ｒ'),
];

const PREFIXES: [&str; 16] = [
    "fake__",
    "fake.",
    "fake/",
    "fake:",
    "mcp__fake__",
    "mcp__crib__fake__",
    "FAKE__",
    "Fake__",
    "fake_",
    "fake-",
    "fake____",
    "./",
    "../",
    "other__",
    "tools/",
    "functions.",
];

const INSERTIONS: [&str; 21] = [
    "\u{200b}",
    "\u{200d}",
    "\u{feff}",
    "\u{ad}",
    " ",
    "\t",
    "\n",
    "\r",
    "\0",
    "\u{a0}",
    "\u{301}",
    "\u{202e}",
    ".",
    "/",
    "\\",
    "_",
    "-",
    "%00",
    "*",
    "?",
    "\u{e0061}",
];

/// Returns the name with every combination of upper and lower case.
fn cases(name: &str) -> impl Iterator<Item = String> {
    let cased = move |mask: usize| {
        let case = move |(at, letter): (usize, char)| {
            if mask >> at & 1 == 1 { letter.to_ascii_uppercase() } else { letter }
        };
        name.chars().enumerate().map(case).collect()
    };
    (0..1_usize << name.len()).map(cased)
}

/// Returns the name with each of [`INSERTIONS`] at each position.
fn with_insertions(name: &str) -> impl Iterator<Item = String> {
    let at_each = move |insertion: &'static str| {
        (0..=name.len()).map(move |at| [&name[..at], insertion, &name[at..]].concat())
    };
    INSERTIONS.into_iter().flat_map(at_each)
}

#[test]
fn no_spelling_of_a_denied_name_is_allowed() {
    let (home, records) = home("[policy]\ndeny = ['*.record', '*.sleep']\n");
    let gateway = home.serve();
    let spellings: BTreeSet<String> = ["record", "sleep"].into_iter().flat_map(spellings).collect();
    assert!(spellings.len() >= 1080, "{}", spellings.len());
    let arguments = json!({"token": "recorded"});
    for name in &spellings {
        for path in ["/mcp", "/mcp/s/fake"] {
            let answer =
                ask(&gateway, path, None, "tools/call", &json!({"name": name, "arguments": arguments}));
            assert!(answer.code().is_some() || answer.status == 400, "{path} {name:?}: {}", answer.text());
        }
    }
    assert_eq!(count_recorded(records.path()), 0);
    for (path, name) in [("/mcp", "fake__echo"), ("/mcp/s/other", "echo")] {
        let answer =
            ask(&gateway, path, None, "tools/call", &json!({"name": name, "arguments": {"text": "still"}}));
        assert!(answer.text().contains("still"), "{}", answer.text());
    }
}

#[test]
fn reload_changes_rules_and_callers_without_restarting_servers() {
    let (home, _records) = home("[servers.fake.tools]\ndeny = ['record']\n");
    let gateway = home.serve();
    let call = |token: Option<&str>, name: &str| {
        ask(&gateway, "/mcp", token, "tools/call", &json!({"name": name, "arguments": {"text": "hi"}}))
    };
    let denied = call(None, "fake__record");
    assert_eq!(denied.code(), Some(-31010));
    assert!(
        error_message(&denied).contains("`servers.fake.tools.deny` has `record`")
            && error_message(&denied).contains("config.toml:"),
        "{}",
        denied.text()
    );
    let before = call(None, "fake__pid").text();
    let config = std::fs::read_to_string(home.file("config.toml")).unwrap();
    home.write_config(&config.replace("'record'", "'echo'"));
    assert_eq!(http::request(gateway.address, "POST", "/api/v1/reload", &[], b"").status, 200);
    assert_eq!(call(None, "fake__echo").code(), Some(-31010));
    assert_eq!(call(None, "fake__pid").text(), before, "changed rules do not restart a server");
    home.write_config(&format!("{config}{CALLERS}"));
    wait_until("a token is required", || call(None, "fake__pid").status == 401);
    assert_eq!(call(Some("root-Token"), "fake__pid").text(), before);
}

#[test]
fn command_line_shows_the_rule_and_its_location() {
    let (home, records) = home(&format!("{CALLERS}[policy]\ndeny = [\n  'other.*',\n  'fake.ping',\n]\n"));
    let config = std::fs::read_to_string(home.file("config.toml")).unwrap();
    let line = config.lines().position(|line| line.contains("'fake.ping'")).unwrap() + 1;
    let run = |args: &[&str]| {
        let output = home.run(args);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let location = format!("config.toml:{line})");
    for with_gateway in [false, true] {
        let _gateway = with_gateway.then(|| home.serve());
        let (code, text) = run(&["call", "fake__ping"]);
        assert!(
            code == Some(7) && text.contains("`policy.deny` has `fake.ping`") && text.contains(&location),
            "{text}"
        );
        assert_eq!(run(&["call", "fake", "ping"]).0, Some(7));
        let (code, text) = run(&["call", "other__echo"]);
        assert!(code == Some(7) && text.contains("`policy.deny` has `other.*`"), "{text}");
        let (_, tools) = run(&["tools"]);
        assert!(
            tools.contains("fake__echo") && !tools.contains("ping") && !tools.contains("other__"),
            "{tools}"
        );
    }
    let test = |caller: &str, tool: &str| run(&["policy", "test", "--caller", caller, "--tool", tool]);
    let (code, text) = test("local", "fake.ping");
    assert!(
        code == Some(7)
            && text.starts_with("denied: `local` may not use `fake.ping`\n")
            && text.contains(&location),
        "{text}"
    );
    let (code, text) = test("ci", "fake__echo");
    assert!(code == Some(0) && text.contains("`callers.ci.allow` has `fake.*`"), "{text}");
    let (code, text) = test("ci", "fake.record");
    assert!(code == Some(7) && text.contains("`callers.ci.deny` has `fake.record`"), "{text}");
    assert!(test("ci", "other.echo").1.contains("is hidden from this caller"));
    assert_eq!((test("ic", "fake.echo").0, test("ci", "echo").0), (Some(1), Some(1)));
    let json = run(&["policy", "test", "--tool", "fake.ping", "--json"]).1;
    let result: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&result["allowed"], &result["line"]), (&json!(false), &json!(line)));
    assert_eq!(count_recorded(records.path()), 0);
}
