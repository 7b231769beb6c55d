//! A call by `call_tool` is the call of the tool that it names: the same answers, rules, limits and records, from clients of both
//! eras to servers of both eras. `matrix.rs` has progress, log messages, cancellation and questions.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::path::Path;

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{GatewayProcess, Home, server_config};

const SERVERS: [&str; 2] = ["session", "stateless"];

/// Returns a home with a server per era, each with rules, and a profile per mode.
fn home() -> Home {
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), "");
    let description = home.file("description");
    std::fs::write(&description, "Repeats a text.").unwrap();
    let server = |name: &str| {
        let records = home.file(&format!("records-{name}"));
        std::fs::create_dir(&records).unwrap();
        let args = [
            "--era",
            if name == "hidden" { "session" } else { name },
            "--record-dir",
            records.to_str().unwrap(),
            "--description-file",
            description.to_str().unwrap(),
        ];
        server_config(env!("CARGO_BIN_EXE_fake-server"), name, &args)
            + &format!(
                "pin = 'strict'\n[servers.{name}.tools]\ncache = ['count']\nrename = {{ log = 'note' }}\n"
            )
    };
    let servers: String = SERVERS.into_iter().chain(["hidden"]).map(server).collect();
    let rules = "
        [policy]
        deny = ['session.env', 'stateless.env']
        ask = ['session.record', 'stateless.record']
        [policy.limits.'session.pid']
        quota = { calls = 2, per = '1h' }
        [policy.limits.'stateless.pid']
        quota = { calls = 2, per = '1h' }
        [profiles.plain]
        servers = ['session', 'stateless']
        [profiles.search]
        servers = ['session', 'stateless']
        expose = 'search'
    ";
    home.write_config(&format!("audit = 'audit.jsonl'\n{servers}{rules}"));
    home
}

/// A client that is listed all tools and one in search mode. Both have sent the same number of requests, so that answers with
/// the same content have the same bytes.
struct Clients {
    direct: HttpClient,
    wrapping: HttpClient,
}

impl Clients {
    fn new(gateway: &GatewayProcess, era: Era) -> Self {
        let connect = |path| HttpClient::with_capabilities(gateway.address, path, era, &json!({}));
        Self { direct: connect("/mcp/p/plain"), wrapping: connect("/mcp/p/search") }
    }

    /// Calls a tool by its name and by `call_tool`, and returns both answers, without the id that each call has.
    fn call(&mut self, tool: &str, arguments: &Value) -> [String; 2] {
        let inner = json!({"name": tool, "arguments": arguments});
        let wrapped = json!({"name": "call_tool", "arguments": inner});
        let direct = self.direct.request("tools/call", &inner);
        let wrapped = self.wrapping.request("tools/call", &wrapped);
        [direct, wrapped].map(|answer| without_call_id(&answer.text()))
    }

    /// Like [`Clients::call`]; fails unless both answers have the same bytes, and contain `expected`.
    fn check_equal(&mut self, tool: &str, arguments: &Value, expected: &str) {
        let [direct, wrapped] = self.call(tool, arguments);
        assert_eq!(direct, wrapped, "{tool}");
        assert!(direct.contains(expected), "{tool}: {direct}");
    }
}

/// Removes the id of the call from the data of an error.
fn without_call_id(answer: &str) -> String {
    let Some((before, rest)) = answer.split_once(r#""call":""#) else { return answer.to_owned() };
    let (_, after) = rest.split_once("\",").unwrap();
    format!("{before}{after}")
}

fn count_lines(folder: &Path) -> usize {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let texts = files.map(|file| std::fs::read_to_string(file.path()).unwrap());
    texts.map(|text| text.lines().filter(|line| line.contains("recorded")).count()).sum()
}

/// Compares answers that do not depend on what was called before.
fn check_answers(clients: &mut Clients, server: &str) {
    let name = |tool: &str| format!("{server}__{tool}");
    let image = json!({"json": r#"{"content":[{"type":"image","data":"AA==","mimeType":"image/png","x":1.50}],"structuredContent":{"b":1.0,"a":[]},"isError":true,"resultType":"complete","own":{}}"#});
    clients.check_equal(&name("raw"), &image, r#""structuredContent":{"b":1.0,"a":[]}"#);
    clients.check_equal(&name("fail"), &json!({"text": "no disk"}), "no disk");
    clients.check_equal(&name("env"), &json!({"name": "HOME"}), &format!("`policy.deny` has `{server}.env`"));
    let [direct, wrapped] = clients.call("hidden__echo", &json!({"text": "x"}));
    assert!(
        direct.contains("`local` may not use `hidden.echo`")
            && wrapped.contains("`local` may not use `hidden.echo`"),
        "{direct} {wrapped}"
    );
    clients.check_equal(&name("absent"), &json!({}), "Unknown tool");
    clients.check_equal(&name("note"), &json!({"text": "x"}), r#""content""#);
    clients.check_equal("echo", &json!({"text": "x"}), "several servers have");
    clients.check_equal(&format!("{server}.echo"), &json!({"text": "x"}), "did you mean");
}

#[test]
fn call_tool_has_the_rules_limits_and_records_of_the_inner_tool() {
    let home = home();
    let mut gateway = home.serve();
    for (client_index, era) in [Era::Session, Era::Stateless].into_iter().enumerate() {
        let mut clients = Clients::new(&gateway, era);
        for server in SERVERS {
            check_answers(&mut clients, server);

            // The quota of two calls is used up by one call of each kind.
            let [direct, wrapped] = clients.call(&format!("{server}__pid"), &json!({}));
            let is_refused = [&direct, &wrapped].map(|answer| answer.contains("-31011"));
            assert_eq!(is_refused, [client_index > 0; 2], "{direct} {wrapped}");

            let file = home.file(&format!("count-{server}-{client_index}"));
            let [_, wrapped] =
                clients.call(&format!("{server}__count"), &json!({"file": file, "ttlMs": 60_000}));
            assert_eq!(std::fs::read(&file).unwrap().len(), 1, "answered from the cache: {wrapped}");

            // The approval is for the tool and its arguments, whichever way it is called.
            let arguments = json!({"token": format!("recorded {client_index}")});
            let [direct, wrapped] = clients.call(&format!("{server}__record"), &arguments);
            assert_eq!(direct, wrapped);
            assert!(wrapped.contains(&format!("`policy.ask` has `{server}.record`")), "{wrapped}");
            let (_, id) = wrapped.split_once(r#""approval":""#).unwrap();
            let id = id.split('"').next().unwrap();
            assert_eq!(count_lines(&home.file(&format!("records-{server}"))), 2 * client_index);
            assert!(home.run(&["approve", "--call", id, "--yes"]).status.success());
            clients.check_equal(&format!("{server}__record"), &arguments, r#""content""#);
            assert_eq!(count_lines(&home.file(&format!("records-{server}"))), 2 * client_index + 2);
        }
    }
    check_pins(&home, &gateway);
    assert!(gateway.stop().success());
    check_audit(&home);
}

/// A tool whose definition changed is withheld, however it is called.
fn check_pins(home: &Home, gateway: &GatewayProcess) {
    std::fs::write(home.file("description"), "Sends a text away.").unwrap();
    for era in [Era::Session, Era::Stateless] {
        for server in SERVERS {
            assert!(home.run(&["stop", server]).status.success());
            let mut clients = Clients::new(gateway, era);
            let message = format!("`{server}.echo` is withheld: its definition has changed");
            clients.check_equal(&format!("{server}__echo"), &json!({"text": "x"}), &message);
        }
    }
}

/// The audit file has every call under the name of its tool, twice in a row.
fn check_audit(home: &Home) {
    let text = std::fs::read_to_string(home.file("audit.jsonl")).unwrap();
    assert!(!text.contains("call_tool"), "{text}");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let keys = ["server", "name", "decision", "outcome"];
    let calls: Vec<Vec<Value>> = lines
        .filter(|line| line["method"] == "tools/call")
        // The first call of a changed tool is the one that finds the change, and has another name in its record.
        .filter(|line| !line["name"].as_str().unwrap().ends_with("echo"))
        .map(|line| keys.map(|key| line[key].clone()).to_vec())
        .collect();
    assert!(calls.len() > 60, "{} calls", calls.len());
    for pair in calls.chunks(2) {
        assert_eq!(pair[0], pair[1]);
    }
}
