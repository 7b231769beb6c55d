//! Who may come in, and who may see and use what, with real servers behind the gateway.

#![expect(clippy::expect_used, reason = "tests may stop at the first surprise")]

mod callers;
mod profiles;
mod quota;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use test_support::client::{Era, message};
use test_support::gateway::{Gateway, Home};
use test_support::http::{self, Response};
use test_support::wait_until;

const CALLERS: &str = "[callers.ci]\ntoken = 'ci-Token-1'\nallow = ['fake.*']\ndeny = ['fake.stamp', 'fake.note://one', 'fake.greet']\n\
    [callers.root]\ntoken = 'root-Token'\nadmin = true\n";

fn server(name: &str, args: &[&str]) -> String {
    test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), name, args)
}

/// A home with two servers that keep books of what they really do, and these rules.
fn home(rules: &str) -> (Home, tempfile::TempDir) {
    let books = tempfile::tempdir().expect("a folder for books");
    let keep = books.path().to_string_lossy().into_owned();
    let servers = server("fake", &["--ledger", &keep]) + &server("other", &["--ledger", &keep]);
    (Home::new(env!("CARGO_BIN_EXE_crib"), &format!("{servers}{rules}")), books)
}

/// How often `stamp` ran.
fn stamped(books: &Path) -> usize {
    let files = std::fs::read_dir(books).into_iter().flatten().flatten();
    let lines = files.map(|file| std::fs::read_to_string(file.path()).unwrap_or_default());
    lines.map(|text| text.lines().filter(|line| line.contains("stamped")).count()).sum()
}

/// A request with these headers beside the usual ones.
fn send(gateway: &Gateway, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
    let usual = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")];
    http::request(gateway.address, "POST", path, &[&usual, headers].concat(), body.to_string().as_bytes())
}

fn ask(gateway: &Gateway, path: &str, token: Option<&str>, method: &str, params: &Value) -> Response {
    let shown = token.map(|token| format!("Bearer {token}"));
    let mut headers = vec![("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", method)];
    let about = params["ref"]["name"].as_str().or(params["ref"]["uri"].as_str());
    let name =
        ["name", "uri", "taskId"].iter().find_map(|key| params[key].as_str()).filter(|_| about.is_none());
    let name = name.map(encoded);
    headers.extend(name.as_deref().map(|name| ("Mcp-Name", name)));
    headers.extend(shown.as_deref().map(|shown| ("Authorization", shown)));
    send(gateway, path, &headers, &message(Era::Stateless, &1.into(), method, params))
}

/// A name as a header carries it.
fn encoded(name: &str) -> String {
    toolcrib::wire::mirror::encoded(name).into_owned()
}

fn names(response: &Response, list: &str, key: &str) -> BTreeSet<String> {
    let message = response.message();
    let items = message["result"][list].as_array().unwrap_or_else(|| panic!("{message}"));
    items.iter().map(|item| item[key].as_str().unwrap_or_default().to_owned()).collect()
}

fn said(answer: &Response) -> String {
    let message = answer.message();
    message["error"]["message"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned()
}

#[test]
fn what_a_caller_may_not_use_it_does_not_see() {
    let (home, books) = home(CALLERS);
    let gateway = home.serve();
    let as_ci =
        |path: &str, method: &str, params: Value| ask(&gateway, path, Some("ci-Token-1"), method, &params);
    let as_root = |method: &str, params: Value| ask(&gateway, "/mcp", Some("root-Token"), method, &params);
    let all = names(&as_root("tools/list", json!({})), "tools", "name");
    assert!(all.contains("fake__stamp") && all.contains("other__echo"));
    let seen = names(&as_ci("/mcp", "tools/list", json!({})), "tools", "name");
    let expected: BTreeSet<String> =
        all.iter().filter(|name| name.starts_with("fake__") && *name != "fake__stamp").cloned().collect();
    assert_eq!(seen, expected);
    for (method, list, key, hidden) in [
        ("tools/list", "tools", "name", "stamp"),
        ("prompts/list", "prompts", "name", "greet"),
        ("resources/list", "resources", "uri", "note://one"),
    ] {
        for path in ["/mcp", "/mcp/s/fake"] {
            let seen = names(&as_ci(path, method, json!({})), list, key);
            assert!(!seen.iter().any(|name| name.ends_with(hidden)), "{path} {method}: {seen:?}");
        }
    }
    let stamp = json!({"token": "stamped"});
    for (path, method, params) in [
        ("/mcp", "tools/call", json!({"name": "fake__stamp", "arguments": stamp})),
        ("/mcp/s/fake", "tools/call", json!({"name": "stamp", "arguments": stamp})),
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
        ("/mcp/s/fake", "Tools/Call", json!({"name": "stamp", "arguments": stamp})),
    ] {
        let answer = as_ci(path, method, params);
        assert_eq!(answer.code(), Some(-31010), "{path} {method}: {}", answer.text());
        assert!(!answer.text().contains("config.toml"), "{}", answer.text());
    }
    // Its neighbours work, and so does everything for the other caller.
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
    assert_eq!(stamped(books.path()), 0);
    as_root("tools/call", json!({"name": "fake__stamp", "arguments": stamp}));
    assert_eq!(stamped(books.path()), 1);
}

#[test]
fn a_server_that_is_not_for_a_caller_does_not_exist_for_it() {
    let (home, _books) = home(CALLERS);
    let gateway = home.serve();
    let as_ci =
        |path: &str, method: &str, params: Value| ask(&gateway, path, Some("ci-Token-1"), method, &params);
    assert_eq!(as_ci("/mcp/s/other", "tools/list", json!({})).status, 404);
    assert_eq!(
        as_ci("/mcp/s/other", "tools/list", json!({})).text(),
        as_ci("/mcp/s/nobody", "tools/list", json!({})).text().replace("nobody", "other")
    );
    assert_eq!(
        said(&as_ci("/mcp", "tools/call", json!({"name": "other__echo"}))),
        "Unknown tool: other__echo"
    );
    assert_eq!(as_ci("/mcp", "tools/call", json!({"name": "other__echo"})).code(), Some(-32602));
    assert_eq!(as_ci("/mcp", "tasks/get", json!({"taskId": "other__1"})).code(), Some(-32602));
}

/// Other ways to write a name: letter cases, look-alikes, blanks, signs that nobody sees, prefixes and encodings.
fn spellings(name: &str) -> BTreeSet<String> {
    let mut found: BTreeSet<String> = cases(name).chain(interrupted(name)).collect();
    for (plain, like) in LOOK_ALIKES {
        found.insert(name.replace(plain, &like.to_string()));
    }
    let tails =
        [name.to_owned(), name.to_uppercase(), format!("{name} "), format!("{name}\0"), format!("__{name}")];
    for prefix in PREFIXES {
        found.extend(tails.iter().map(|tail| format!("{prefix}{tail}")));
    }
    let hex = |shape: fn(u32) -> String| name.chars().map(|letter| shape(letter as u32)).collect::<String>();
    found.extend([
        hex(|code| format!("%{code:02x}")),
        hex(|code| format!("\\u{code:04x}")),
        hex(|code| format!("&#{code};")),
    ]);
    found.insert(name.chars().filter_map(|letter| char::from_u32(letter as u32 + 0xfee0)).collect());
    found.extend([String::new(), "*".to_owned(), format!("{name}{name}"), name.chars().rev().collect()]);
    found.extend((0..400).map(|number| format!("fake__{name}_{number:08x}")));
    found
}

const LOOK_ALIKES: [(char, char); 8] =
    [('s', 'ѕ'), ('t', 'т'), ('a', 'а'), ('m', 'ｍ'), ('p', 'р'), ('s', 'ſ'), ('a', 'ä'), ('a', 'ａ')];

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

const SIGNS: [&str; 21] = [
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

fn cases(name: &str) -> impl Iterator<Item = String> {
    let cased = move |mask: usize| {
        let case = move |(at, letter): (usize, char)| {
            if mask >> at & 1 == 1 { letter.to_ascii_uppercase() } else { letter }
        };
        name.chars().enumerate().map(case).collect()
    };
    (0..1_usize << name.len()).map(cased)
}

fn interrupted(name: &str) -> impl Iterator<Item = String> {
    let at_each =
        move |sign: &'static str| (0..=name.len()).map(move |at| [&name[..at], sign, &name[at..]].concat());
    SIGNS.into_iter().flat_map(at_each)
}

#[test]
fn no_spelling_of_a_denied_name_runs() {
    let (home, books) = home("[policy]\ndeny = ['*.stamp']\n");
    let gateway = home.serve();
    let spellings = spellings("stamp");
    assert!(spellings.len() >= 540, "{}", spellings.len());
    let arguments = json!({"token": "stamped"});
    for name in &spellings {
        for path in ["/mcp", "/mcp/s/fake"] {
            let answer =
                ask(&gateway, path, None, "tools/call", &json!({"name": name, "arguments": arguments}));
            assert!(answer.code().is_some() || answer.status == 400, "{path} {name:?}: {}", answer.text());
        }
    }
    assert_eq!(stamped(books.path()), 0);
    for (path, name) in [("/mcp", "fake__echo"), ("/mcp/s/other", "echo")] {
        let answer =
            ask(&gateway, path, None, "tools/call", &json!({"name": name, "arguments": {"text": "still"}}));
        assert!(answer.text().contains("still"), "{}", answer.text());
    }
}

#[test]
fn a_reload_changes_rules_and_callers_without_a_restart() {
    let (home, _books) = home("[servers.fake.tools]\ndeny = ['stamp']\n");
    let gateway = home.serve();
    let call = |token: Option<&str>, name: &str| {
        ask(&gateway, "/mcp", token, "tools/call", &json!({"name": name, "arguments": {"text": "hi"}}))
    };
    let denied = call(None, "fake__stamp");
    assert_eq!(denied.code(), Some(-31010));
    assert!(
        said(&denied).contains("`servers.fake.tools.deny` has `stamp`")
            && said(&denied).contains("config.toml:"),
        "{}",
        denied.text()
    );
    let before = call(None, "fake__pid").text();
    let config = std::fs::read_to_string(home.file("config.toml")).unwrap();
    home.write_config(&config.replace("'stamp'", "'echo'"));
    assert_eq!(http::request(gateway.address, "POST", "/api/v1/reload", &[], b"").status, 200);
    assert_eq!(call(None, "fake__echo").code(), Some(-31010));
    assert_eq!(call(None, "fake__pid").text(), before, "rules are no reason to restart a server");
    home.write_config(&format!("{config}{CALLERS}"));
    wait_until("callers have to show a token", || call(None, "fake__pid").status == 401);
    assert_eq!(call(Some("root-Token"), "fake__pid").text(), before);
}

#[test]
fn the_command_line_is_told_which_rule_and_where() {
    let (home, books) = home(&format!("{CALLERS}[policy]\ndeny = [\n  'other.*',\n  'fake.ping',\n]\n"));
    let config = std::fs::read_to_string(home.file("config.toml")).unwrap();
    let line = config.lines().position(|line| line.contains("'fake.ping'")).unwrap() + 1;
    let run = |args: &[&str]| {
        let output = home.run(args);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let place = format!("config.toml:{line})");
    for serving in [false, true] {
        let _gateway = serving.then(|| home.serve());
        let (code, text) = run(&["call", "fake__ping"]);
        assert!(
            code == Some(7) && text.contains("`policy.deny` has `fake.ping`") && text.contains(&place),
            "{text}"
        );
        assert_eq!(run(&["call", "fake", "ping"]).0, Some(7));
        assert_eq!(run(&["call", "other__echo"]).0, Some(5));
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
            && text.contains(&place),
        "{text}"
    );
    let (code, text) = test("ci", "fake__echo");
    assert!(code == Some(0) && text.contains("`callers.ci.allow` has `fake.*`"), "{text}");
    let (code, text) = test("ci", "fake.stamp");
    assert!(code == Some(7) && text.contains("`callers.ci.deny` has `fake.stamp`"), "{text}");
    assert!(test("ci", "other.echo").1.contains("there is no such server"));
    assert_eq!((test("ic", "fake.echo").0, test("ci", "echo").0), (Some(1), Some(1)));
    let json = run(&["policy", "test", "--tool", "fake.ping", "--json"]).1;
    let told: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&told["allowed"], &told["line"]), (&json!(false), &json!(line)));
    assert_eq!(stamped(books.path()), 0);
}
