//! Tests of commands that change the config or a secret while a gateway runs: the change is in force when they return.

use super::*;

fn server_status(home: &Home, name: &str) -> Value {
    let status = home.run(&["status", "--json"]).expect(0).json();
    let servers = status["servers"].as_array().unwrap();
    servers.iter().find(|server| server["name"] == name).cloned().unwrap_or_default()
}

#[test]
fn change_is_in_force_when_the_command_returns() {
    let home = Home::with_demo_servers();
    assert!(!home.run(&["disable", "echo"]).expect(0).stderr.contains("gateway"));
    home.run(&["enable", "echo"]).expect(0);
    let _gateway = home.serve(&["-q"]);
    let added = home.run(&["add", "more", "--", PROGRAM, "demo-server", "echo"]).expect(0);
    assert!(added.stderr.contains("the running gateway uses the change"), "{}", added.stderr);
    assert!(added.stderr.contains("`more` works: 2 tools"), "{}", added.stderr);
    assert_eq!(server_status(&home, "more")["tools"], 2);
    let disabled = home.run(&["disable", "more", "--json"]).expect(0).json();
    assert_eq!(disabled["gateway"]["generation"], 3, "{disabled}");
    assert_eq!(server_status(&home, "more")["state"], "disabled");
    home.run(&["enable", "more"]).expect(0);
    assert_eq!(server_status(&home, "more")["state"], "asleep", "its tools are known");
    home.run(&["rm", "more"]).expect(0);
    let entry = r#"{"command": "no-such-program", "args": ["pasted"]}"#;
    let pasted = home.run(&["add-json", "pasted", entry, "--json"]).expect(0).json();
    assert_eq!(pasted["gateway"]["generation"], 6, "{pasted}");
    assert_eq!(server_status(&home, "pasted")["name"], "pasted");
    let entries = r#"{"mcpServers": {"imported": {"command": "no-such-program"}}}"#;
    let imported = home.run_with_input(&["import", "--from", "-", "--yes"], entries).expect(0);
    assert!(imported.stderr.contains("the running gateway uses the change"), "{}", imported.stderr);
    assert_eq!(server_status(&home, "imported")["name"], "imported");
    assert_eq!(server_status(&home, "more"), Value::Null);
    let unchanged = home.run(&["enable", "echo", "--json"]).expect(0).json();
    assert_eq!((&unchanged["changed"], &unchanged["gateway"]), (&false.into(), &Value::Null));
}

#[test]
fn new_secret_restarts_the_running_servers_that_use_it() {
    let home = Home::new("[secrets]\nbackend = \"file\"\n");
    let env = ["-e", "API_TOKEN=first-value", "-e", "MODE=fast"];
    let args = [&["add"][..], &env, &["echo", "--", PROGRAM, "demo-server", "echo"]].concat();
    let added = home.run(&args).expect(0);
    for part in ["${secret:echo-api-token}", "undo: `toolcrib secret rm echo-api-token`", "--plain"] {
        assert!(added.stderr.contains(part), "{part} in {}", added.stderr);
    }
    let config = std::fs::read_to_string(home.config()).unwrap();
    assert!(config.contains("API_TOKEN = \"${secret:echo-api-token}\", MODE = \"fast\""), "{config}");
    let plain = [&["add", "--plain"][..], &env, &["plain", "--", PROGRAM, "demo-server", "echo"]].concat();
    home.run(&plain).expect(0);
    assert!(std::fs::read_to_string(home.config()).unwrap().contains("first-value"));
    let _gateway = home.serve(&["-q"]);
    home.run(&["call", "echo__say", "text=hi"]).expect(0);
    let before = server_status(&home, "echo")["pid"].clone();
    let set = home.run_with_input(&["secret", "set", "echo-api-token"], "second-value").expect(0);
    assert!(set.stderr.contains("restarted `echo`"), "{}", set.stderr);
    assert_ne!(server_status(&home, "echo")["pid"], before);
    assert_eq!(server_status(&home, "plain")["state"], "asleep", "it was not started");
    let shared = ["add", "second", "-e", "X=${secret:echo-api-token}", "--", PROGRAM, "demo-server", "echo"];
    home.run(&shared).expect(0);
    let removed = home.run(&["rm", "second"]).expect(0);
    assert!(!removed.stderr.contains("secret"), "`echo` still uses it: {}", removed.stderr);
    let removed = home.run(&["rm", "echo"]).expect(0);
    assert!(removed.stderr.contains("`toolcrib secret rm echo-api-token`"), "{}", removed.stderr);
}

#[test]
fn add_takes_the_url_as_an_option_too() {
    let home = Home::new("");
    home.run(&["add", "docs", "--url", "https://docs.example/mcp", "-H", "X-Team: a"]).expect(0);
    let text = std::fs::read_to_string(home.config()).unwrap();
    assert!(text.contains("url = \"https://docs.example/mcp\""), "{text}");
    let refused = home.run(&["add", "bad", "--url", "docs.example/mcp"]).expect(1);
    assert!(refused.stderr.contains("hint: write `url = \"https://example.com/mcp\"`"), "{}", refused.stderr);
    let both = home.run(&["add", "both", "--url", "https://docs.example/mcp", "--", "uvx"]).expect(1);
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
    assert_eq!(std::fs::read_to_string(home.config()).unwrap(), text, "nothing else was written");
}

#[test]
fn add_and_check_name_what_is_missing() {
    let home = Home::new("[secrets]\nbackend = \"file\"\n");
    let args = ["--inherit-env", "WORK_DIR", "-e", "A=${env:TOOLCRIB_UNSET}", "x", "--", "no-such-program"];
    let added = home.run(&[&["add"][..], &args].concat()).expect(0);
    let program = "`no-such-program` was not found on the `PATH`";
    let variable = "environment variable `TOOLCRIB_UNSET` is not set here";
    assert!(added.stderr.contains(program) && added.stderr.contains(variable), "{}", added.stderr);
    let header = "Authorization: Bearer ${secret:y-token}";
    home.run(&["add", "y", "https://y.example/mcp", "-H", header]).expect(0);
    let check = home.run(&["check"]).expect(0);
    for part in [program, variable, "secret `y-token` is not set", "hint: toolcrib secret set y-token"] {
        assert!(check.stdout.contains(part), "{part} in {}", check.stdout);
    }
    assert!(std::fs::read_to_string(home.config()).unwrap().contains("inherit-env = [\"WORK_DIR\"]"));
    let refused = home.run(&["add", "z", "ws://z.example"]).expect(1);
    assert!(refused.stderr.contains("unknown URL scheme `ws`"), "{}", refused.stderr);
}
