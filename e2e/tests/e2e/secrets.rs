//! Secrets in a real gateway: set once, given to the server that needs them, and found nowhere else.

#![expect(clippy::expect_used, reason = "tests may stop at the first surprise")]

use std::path::Path;
use std::process::Output;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{Gateway, Home};
use test_support::{http, wait_until};

/// Long enough to be nobody else's word, with letters that are written otherwise elsewhere.
const CANARY: &str = "can4ry/w0rd+with=signs&more";

/// Servers that get the secret in every way there is, and some that cannot keep it to themselves.
fn servers() -> String {
    let fake = env!("CARGO_BIN_EXE_fake-server");
    let loud = "echo \"my token is $TOKEN\" >&2; echo \"no message: $TOKEN\"; exit 3";
    format!(
        "[servers.fake]\ncommand = '{fake}'\nenv = {{ TOKEN = '${{secret:token}}' }}\n\
         [servers.loud]\ncommand = 'sh'\nargs = ['-c', '{loud}']\nenv = {{ TOKEN = 'x${{secret:token}}' }}\n\
         [servers.argued]\ncommand = 'sh'\nargs = ['-c', 'exit 3', '${{secret:token}}']\n\
         [servers.gone]\ncommand = '/nowhere/${{secret:token}}'\n\
         [servers.far]\nurl = 'http://127.0.0.1:1/${{secret:token}}'\n\
         headers = {{ Authorization = 'Bearer ${{secret:token}}' }}\n"
    )
}

fn home(config: &str) -> Home {
    Home::new(env!("CARGO_BIN_EXE_crib"), &format!("audit = 'audit.jsonl'\naudit-arguments = true\n{config}"))
}

/// The file alone: a machine that runs tests may have a keyring.
const FILE: &str = "[secrets]\nbackend = 'file'\n";

fn set(home: &Home, name: &str, value: &str) -> Output {
    let mut command = home.command(&["secret", "set", name]);
    test_support::deadline::output_with_input(&mut command, value)
}

fn must_set(home: &Home, name: &str, value: &str) {
    let set = set(home, name, value);
    assert!(set.status.success(), "{set:?}");
    assert!(!shows(&[set.stdout, set.stderr].concat()), "{name}");
}

fn shows(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    ["can4ry", "Y2FuNHJ5"].iter().any(|part| text.contains(part))
}

/// Every file below a folder that holds the canary.
fn holders(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let (path, kind) = (entry.path(), entry.file_type().expect("a kind"));
        if kind.is_dir() {
            found.extend(holders(&path));
        } else if kind.is_file() && shows(&std::fs::read(&path).expect("a file")) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn call(gateway: &Gateway, tool: &str, arguments: &Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    HttpClient::new(gateway.address, "/mcp", Era::Stateless).request("tools/call", &params).message()
}

fn token_of(gateway: &Gateway) -> Value {
    call(gateway, "fake__env", &json!({"name": "TOKEN"}))
}

#[test]
fn a_secret_reaches_its_server_and_is_found_nowhere_else() {
    let home = home(&format!("{}{FILE}", servers()));
    must_set(&home, "token", &format!("{CANARY}\n"));
    let mut gateway = home.serve_as(|command| {
        command.env("TOOLCRIB_LOG", "trace");
    });
    assert_eq!(token_of(&gateway)["result"]["content"][0]["text"], CANARY);
    let mut told = String::new();
    for server in ["loud", "argued", "gone", "far"] {
        let answer = call(&gateway, &format!("{server}__any"), &json!({}));
        told.push_str(&answer.to_string());
    }
    for path in ["status", "tools", "servers/loud", "servers/loud/logs", "servers/fake/logs", "servers/far"] {
        told.push_str(&http::request(gateway.address, "GET", &format!("/api/v1/{path}"), &[], b"").text());
    }
    let commands: [&[&str]; 11] = [
        &["status", "--json"],
        &["status", "loud"],
        &["logs", "loud"],
        &["ls", "--json"],
        &["show", "fake"],
        &["why", "fake"],
        &["check"],
        &["tools", "--json"],
        &["secret", "ls"],
        &["secret", "ls", "--json"],
        &["export", "claude", "--expand", "--dry-run"],
    ];
    for command in commands {
        let ran = home.run(command);
        told.push_str(&String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()));
    }
    assert!(told.contains("my token is x[secret]"), "what it said is there: {told}");
    assert!(!shows(told.as_bytes()), "{told}");
    assert!(gateway.stop().success());
    let said = gateway.said().join("\n");
    let place =
        said.find("can4ry").map(|at| said[at.saturating_sub(200)..].chars().take(300).collect::<String>());
    assert!(!shows(said.as_bytes()), "{place:?}");
    assert_eq!(holders(home.path()), Vec::<String>::new());
}

#[test]
fn a_missing_secret_is_named_and_the_server_runs_once_it_is_set() {
    let home = home(&format!("{}{FILE}", servers()));
    let gateway = home.serve();
    let refused = token_of(&gateway);
    let error = &refused["error"];
    let said = error["message"].as_str().unwrap_or_default();
    assert!(said.starts_with("`fake` could not start: there is no secret `token`"), "{refused}");
    assert_eq!(
        (&error["data"]["kind"], &error["data"]["hint"]),
        (&json!("auth_needed"), &json!("toolcrib secret set token"))
    );
    let listed = home.run(&["secret", "ls", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let users = json!(["argued", "fake", "far", "gone", "loud"]);
    assert_eq!(listed, json!([{"name": "token", "backend": null, "set": false, "used_by": users}]));
    must_set(&home, "token", CANARY);
    wait_until("the server gets its secret", || token_of(&gateway)["result"]["content"][0]["text"] == CANARY);
    // One that runs keeps what it has until it is started again.
    must_set(&home, "token", "can4ry-number-two");
    assert_eq!(token_of(&gateway)["result"]["content"][0]["text"], CANARY);
    assert!(home.run(&["restart", "fake"]).status.success());
    assert_eq!(token_of(&gateway)["result"]["content"][0]["text"], "can4ry-number-two");
    assert!(home.run(&["secret", "rm", "token"]).status.success());
    assert!(!home.run(&["secret", "rm", "token"]).status.success());
}

#[test]
fn a_file_without_its_key_is_locked_and_says_so() {
    let home = home(&format!("{}{FILE}", servers()));
    must_set(&home, "token", CANARY);
    let key = home.file("state/secrets/key.txt");
    let opens = std::fs::read_to_string(&key).expect("a key");
    std::fs::remove_file(&key).expect("gone");
    let gateway = home.serve();
    let refused = token_of(&gateway);
    let said = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(said.starts_with("`fake` could not start: the secret `token` is locked away"), "{refused}");
    assert!(
        refused["error"]["data"]["hint"].as_str().is_some_and(|hint| hint.contains("TOOLCRIB_KEY")),
        "{refused}"
    );
    assert!(!set(&home, "other", "x").status.success(), "nothing is lost to a new key");
    drop(gateway);
    let keyed = home.serve_as(|command| {
        command.env("TOOLCRIB_KEY", opens.lines().last().expect("a key"));
    });
    assert_eq!(token_of(&keyed)["result"]["content"][0]["text"], CANARY);
}

#[test]
fn variables_and_commands_can_keep_secrets_too() {
    let env = home(&format!("{}[secrets]\nbackend = 'env'\nenv-prefix = 'MINE_'\n", servers()));
    let gateway = env.serve_as(|command| {
        command.env("MINE_TOKEN", CANARY);
    });
    assert_eq!(token_of(&gateway)["result"]["content"][0]["text"], CANARY);
    assert!(!set(&env, "token", "x").status.success(), "they are only read");
    drop(gateway);
    let command = home(&format!(
        "{}[secrets]\nbackend = 'command'\ncommand = ['sh', '-c', 'printf %s \"{CANARY}\"', '{{name}}']\n",
        servers()
    ));
    assert_eq!(token_of(&command.serve())["result"]["content"][0]["text"], CANARY);
}

#[test]
fn a_callers_token_can_be_a_secret_and_changes_with_a_reload() {
    let home = home(&format!("{}{FILE}[callers.ci]\ntoken = '${{secret:ci}}'\n", servers()));
    let refused = home.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(6));
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("there is no secret `ci`") && said.contains("toolcrib secret set ci"), "{said}");
    must_set(&home, "ci", "can4ry-of-ci");
    let gateway = home.serve();
    let status = |token: &str| {
        let shown = format!("Bearer {token}");
        let headers = [("Authorization", &*shown), ("Content-Type", "application/json")];
        http::request(gateway.address, "POST", "/mcp", &headers, b"{}").status
    };
    assert_ne!(status("can4ry-of-ci"), 401);
    assert_eq!(status("another"), 401);
    must_set(&home, "ci", "can4ry-of-another");
    gateway.signal(Signal::HUP);
    wait_until("the new token counts", || status("can4ry-of-another") != 401);
    assert_eq!(status("can4ry-of-ci"), 401);
}

#[test]
fn a_value_on_the_command_line_is_refused_and_not_repeated() {
    let home = home(FILE);
    let ran = home.run(&["secret", "set", "token", CANARY]);
    assert_eq!(ran.status.code(), Some(1));
    let said = [ran.stdout, ran.stderr].concat();
    assert!(!shows(&said) && String::from_utf8_lossy(&said).contains("can be seen"), "{said:?}");
    for (name, value) in [("token", ""), ("token", "\n"), ("a b", "x"), ("-x", "x"), ("token", "a\0b")] {
        assert!(!set(&home, name, value).status.success(), "{name} {value:?}");
    }
    assert!(!home.file("state/secrets/secrets.age").exists(), "nothing was kept");
}
