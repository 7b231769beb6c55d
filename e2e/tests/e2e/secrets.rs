//! Secrets in a real gateway: given to the servers that need them, and found nowhere else.

#![expect(clippy::expect_used, reason = "tests panic on failure")]

use std::path::Path;
use std::process::Output;

use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{GatewayProcess, Home};
use test_support::{http, wait_until};

/// A value that occurs nowhere else, with characters that are escaped in URLs and base64.
const CANARY: &str = "can4ry/w0rd+with=signs&more";

/// Returns servers that get the secret in every possible way, some of which print it.
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

/// Selects the file backend: the machine that runs the tests may have a keyring.
const FILE: &str = "[secrets]\nbackend = 'file'\n";

fn set(home: &Home, name: &str, value: &str) -> Output {
    let mut command = home.command(&["secret", "set", name]);
    test_support::deadline::output_with_input(&mut command, value)
}

fn set_successfully(home: &Home, name: &str, value: &str) {
    let set = set(home, name, value);
    assert!(set.status.success(), "{set:?}");
    assert!(!has_canary(&[set.stdout, set.stderr].concat()), "{name}");
}

fn has_canary(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    ["can4ry", "Y2FuNHJ5"].iter().any(|part| text.contains(part))
}

/// Returns every file below a folder that contains the canary.
fn files_with_canary(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let kind = entry.file_type().expect("a file type");
        if kind.is_dir() {
            found.extend(files_with_canary(&path));
        } else if kind.is_file() && has_canary(&std::fs::read(&path).expect("a file")) {
            found.push(path.display().to_string());
        }
    }
    found
}

fn call(gateway: &GatewayProcess, tool: &str, arguments: &Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    HttpClient::new(gateway.address, "/mcp", Era::Stateless).request("tools/call", &params).message()
}

fn call_env(gateway: &GatewayProcess) -> Value {
    call(gateway, "fake__env", &json!({"name": "TOKEN"}))
}

#[test]
fn secret_reaches_its_server_and_nothing_else() {
    let home = home(&format!("{}{FILE}", servers()));
    set_successfully(&home, "token", &format!("{CANARY}\n"));
    let mut gateway = home.serve_with(|command| {
        command.env("TOOLCRIB_LOG", "trace");
    });
    assert_eq!(call_env(&gateway)["result"]["content"][0]["text"], CANARY);
    let mut output = String::new();
    for server in ["loud", "argued", "gone", "far"] {
        let answer = call(&gateway, &format!("{server}__any"), &json!({}));
        output.push_str(&answer.to_string());
    }
    for path in ["status", "tools", "servers/loud", "servers/loud/logs", "servers/fake/logs", "servers/far"] {
        output.push_str(&http::request(gateway.address, "GET", &format!("/api/v1/{path}"), &[], b"").text());
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
        output.push_str(&String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()));
    }
    assert!(output.contains("my token is x[secret]"), "its stderr is shown: {output}");
    assert!(!has_canary(output.as_bytes()), "{output}");
    assert!(gateway.stop().success());
    let stderr = gateway.stderr_lines().join("\n");
    let context = stderr
        .find("can4ry")
        .map(|at| stderr[at.saturating_sub(200)..].chars().take(300).collect::<String>());
    assert!(!has_canary(stderr.as_bytes()), "{context:?}");
    assert_eq!(files_with_canary(home.path()), Vec::<String>::new());
}

#[test]
fn missing_secret_is_named_and_used_once_it_is_set() {
    let home = home(&format!("{}{FILE}", servers()));
    let gateway = home.serve();
    let refused = call_env(&gateway);
    let error = &refused["error"];
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("`fake` could not start: secret `token` is not set"), "{refused}");
    assert_eq!(
        (&error["data"]["kind"], &error["data"]["hint"]),
        (&json!("auth_needed"), &json!("toolcrib secret set token"))
    );
    let listed = home.run(&["secret", "ls", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("JSON");
    let users = json!(["argued", "fake", "far", "gone", "loud"]);
    assert_eq!(listed, json!([{"name": "token", "backend": null, "set": false, "used_by": users}]));
    set_successfully(&home, "token", CANARY);
    wait_until("the server gets its secret", || call_env(&gateway)["result"]["content"][0]["text"] == CANARY);
    // Servers that run are restarted, also if others that use the secret fail to start.
    set_successfully(&home, "token", "can4ry-number-two");
    assert_eq!(call_env(&gateway)["result"]["content"][0]["text"], "can4ry-number-two");
    assert!(home.run(&["secret", "rm", "token"]).status.success());
    assert!(!home.run(&["secret", "rm", "token"]).status.success());
}

#[test]
fn secrets_file_without_its_key_is_locked() {
    let home = home(&format!("{}{FILE}", servers()));
    set_successfully(&home, "token", CANARY);
    let key = home.file("state/secrets/key.txt");
    let key_text = std::fs::read_to_string(&key).expect("a key");
    std::fs::remove_file(&key).expect("the key is removed");
    let gateway = home.serve();
    let refused = call_env(&gateway);
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("`fake` could not start: secret `token` is locked"), "{refused}");
    assert!(
        refused["error"]["data"]["hint"].as_str().is_some_and(|hint| hint.contains("TOOLCRIB_KEY")),
        "{refused}"
    );
    assert!(!set(&home, "other", "x").status.success(), "no new key replaces the missing one");
    drop(gateway);
    let with_key = home.serve_with(|command| {
        command.env("TOOLCRIB_KEY", key_text.lines().last().expect("a key"));
    });
    assert_eq!(call_env(&with_key)["result"]["content"][0]["text"], CANARY);
}

#[test]
fn environment_and_command_backends_provide_secrets() {
    let env = home(&format!("{}[secrets]\nbackend = 'env'\nenv-prefix = 'MINE_'\n", servers()));
    let gateway = env.serve_with(|command| {
        command.env("MINE_TOKEN", CANARY);
    });
    assert_eq!(call_env(&gateway)["result"]["content"][0]["text"], CANARY);
    assert!(!set(&env, "token", "x").status.success(), "this backend is read-only");
    drop(gateway);
    let command = home(&format!(
        "{}[secrets]\nbackend = 'command'\ncommand = ['sh', '-c', 'printf %s \"{CANARY}\"', '{{name}}']\n",
        servers()
    ));
    assert_eq!(call_env(&command.serve())["result"]["content"][0]["text"], CANARY);
}

#[test]
fn caller_token_can_be_a_secret_and_changes_on_reload() {
    let home = home(&format!("{}{FILE}[callers.ci]\ntoken = '${{secret:ci}}'\n", servers()));
    let refused = home.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(refused.status.code(), Some(6));
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(
        message.contains("secret `ci` is not set") && message.contains("toolcrib secret set ci"),
        "{message}"
    );
    set_successfully(&home, "ci", "can4ry-of-ci");
    let gateway = home.serve();
    let status = |token: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", &*authorization), ("Content-Type", "application/json")];
        http::request(gateway.address, "POST", "/mcp", &headers, b"{}").status
    };
    assert_ne!(status("can4ry-of-ci"), 401);
    assert_eq!(status("another"), 401);
    set_successfully(&home, "ci", "can4ry-of-another");
    gateway.signal(Signal::HUP);
    wait_until("the new token is valid", || status("can4ry-of-another") != 401);
    assert_eq!(status("can4ry-of-ci"), 401);
}

#[test]
fn secret_value_as_an_argument_is_refused_and_not_repeated() {
    let home = home(FILE);
    let ran = home.run(&["secret", "set", "token", CANARY]);
    assert_eq!(ran.status.code(), Some(1));
    let output = [ran.stdout, ran.stderr].concat();
    assert!(
        !has_canary(&output) && String::from_utf8_lossy(&output).contains("is visible to all users"),
        "{output:?}"
    );
    for (name, value) in [("token", ""), ("token", "\n"), ("a b", "x"), ("-x", "x"), ("token", "a\0b")] {
        assert!(!set(&home, name, value).status.success(), "{name} {value:?}");
    }
    assert!(!home.file("state/secrets/secrets.age").exists(), "nothing was stored");
}

#[test]
fn proxy_reaches_servers_and_its_password_stays_out_of_output() {
    let fake = env!("CARGO_BIN_EXE_fake-server");
    let loud = "echo \"proxy is $HTTPS_PROXY\" >&2; exit 3";
    let home = home(&format!(
        "[servers.fake]\ncommand = '{fake}'\n[servers.loud]\ncommand = 'sh'\nargs = ['-c', '{loud}']\n"
    ));
    let proxy = "http://me:can4ry-word@proxy.example:8080";
    let gateway = home.serve_with(|command| {
        command.env("HTTPS_PROXY", proxy).env("npm_config_registry", "https://npm.example");
        command.env("npm_config__authToken", "can4ry-token").env("UV_INDEX_WORK_PASSWORD", "can4ry");
    });
    let value_of = |name: &str| {
        let answer = call(&gateway, "fake__env", &json!({"name": name}));
        answer["result"]["content"][0]["text"].as_str().expect("a text").to_owned()
    };
    assert_eq!(value_of("HTTPS_PROXY"), proxy);
    assert_eq!(value_of("npm_config_registry"), "https://npm.example");
    for name in ["npm_config__authToken", "UV_INDEX_WORK_PASSWORD"] {
        assert_eq!(value_of(name), "(unset)", "{name}");
    }
    let failed = call(&gateway, "loud__anything", &json!({})).to_string();
    assert!(failed.contains("http://[secret]@proxy.example:8080"), "{failed}");
    assert!(!has_canary(failed.as_bytes()), "{failed}");
    let status = home.run(&["status", "loud", "--json"]).stdout;
    assert!(!has_canary(&status), "{}", String::from_utf8_lossy(&status));
    assert!(files_with_canary(home.path()).is_empty());
}
