//! Commands without a gateway: they start what they need and stop it again.

use super::*;

#[test]
fn tools_are_listed_and_found() {
    let home = Home::with_demo_servers();
    let names = |args: &[&str]| -> Vec<String> {
        let listed = home.run(args).expect(0).stdout;
        listed.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["tools"]), ["counter__add", "counter__ponder", "echo__say", "echo__fail"]);
    assert_eq!(names(&["tools", "MEMORY"]), ["counter__add"]);
    assert_eq!(names(&["tools", "echo__"]), ["echo__say", "echo__fail"]);
    assert!(names(&["tools", "nothing-like-it"]).is_empty());
    let told = home.run(&["tools", "--json"]).expect(0).json();
    assert_eq!(
        (&told[2]["name"], &told[2]["server"], &told[2]["tool"]),
        (&"echo__say".into(), &"echo".into(), &"say".into())
    );
    assert_eq!(told[2]["definition"]["inputSchema"]["type"], "object");
}

#[test]
fn a_server_that_fails_costs_only_its_own_tools() {
    let home = Home::new(&format!("{}\n{}", server("echo", "echo"), crashing()));
    let ended = home.run(&["tools"]).expect(0);
    assert!(ended.stdout.contains("echo__say"), "{}", ended.stdout);
    assert!(ended.stderr.contains("`crashing`"), "{}", ended.stderr);
    home.write(&crashing());
    home.run(&["tools"]).expect(4);
}

#[test]
fn a_tool_is_called_by_each_of_its_names() {
    let home = Home::with_demo_servers();
    for words in [&["echo__say"][..], &["echo", "say"], &["say"]] {
        let args = [&["call"], words, &["text=hello = world"]].concat();
        assert_eq!(home.run(&args).expect(0).stdout, "hello = world\n", "{words:?}");
    }
}

#[test]
fn arguments_are_typed_by_the_schema() {
    let home = Home::with_demo_servers();
    assert_eq!(home.run(&["call", "echo__say", "text=7"]).expect(0).stdout, "7\n");
    assert_eq!(home.run(&["call", "counter__add", "n=7"]).expect(0).stdout, "7\n");
    assert_eq!(home.run(&["call", "counter__add", "--args", r#"{"n":3}"#]).expect(0).stdout, "3\n");
    assert_eq!(home.feed(&["call", "counter__add", "--args", "-"], r#"{"n":4}"#).expect(0).stdout, "4\n");
    let wrong = home.run(&["call", "counter__add", "n=seven"]).expect(1);
    assert!(wrong.stderr.contains("`n` must be integer"), "{}", wrong.stderr);
    home.run(&["call", "counter__add", "--args", "[]"]).expect(1);
}

#[test]
fn results_are_shown_as_they_came_when_scripts_ask() {
    let home = Home::with_demo_servers();
    let told = home.run(&["call", "echo__say", "text=x", "--json"]).expect(0).json();
    assert_eq!(told["content"][0]["text"], "x");
}

#[test]
fn each_way_to_fail_has_its_exit_code() {
    let home =
        Home::new(&format!("{}\n{}\n{}", server("echo", "echo"), server("counter", "counter"), crashing()));
    let said = home.run(&["call", "echo__fail", "text=no such thing"]).expect(5);
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("", "no such thing\n"));
    let unknown = home.run(&["call", "echo__sya"]).expect(5);
    assert!(unknown.stderr.contains("hint: did you mean `echo__say`?"), "{}", unknown.stderr);
    home.run(&["call", "ehco", "say"]).expect(5);
    home.run(&["call", "echo", "sya"]).expect(5);
    let dead = home.run(&["call", "crashing__x", "-q"]).expect(4);
    assert!(dead.stderr.starts_with("error: "), "{}", dead.stderr);
    assert!(dead.stderr.contains("\n  crashing on purpose\nhint: "), "{}", dead.stderr);
    let told = home.run(&["call", "crashing__x", "-q", "--json"]).expect(4).error();
    assert!(told["code"].is_string() && told["hint"].is_string() && told["server"] == "crashing", "{told}");
    let late = home.run(&["call", "counter__ponder", "--timeout", "300ms"]).expect(8);
    assert!(late.stderr.starts_with("error: "), "{}", late.stderr);
}

#[test]
fn a_tool_misspelt_on_its_server_is_refused_by_it_with_what_was_meant() {
    let home = Home::with_demo_servers();
    for daemon in [false, true] {
        let _gateway = daemon.then(|| home.serve(&["-q"]));
        let refused = home.run(&["call", "echo", "sya"]).expect(5);
        let said = "error: the server refused the call: Unknown tool: sya\nhint: did you mean `say`?\n";
        assert_eq!(refused.stderr, said, "daemon: {daemon}");
        let far = home.run(&["call", "echo", "nothing-like-it"]).expect(5);
        assert!(!far.stderr.contains("did you mean"), "{}", far.stderr);
    }
}

#[test]
fn an_interrupted_call_is_cancelled_and_its_server_stopped() {
    let home = Home::with_demo_servers();
    let mut call = home
        .command(&["call", "counter__ponder", "-v"])
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = Lines::new(call.stderr.take().unwrap());
    let mut lines = std::iter::from_fn(|| lines.next_line());
    let started = lines.find(|line| line.contains("started") || line.contains("pid")).unwrap();
    process::send(call.id(), Signal::INT);
    assert_eq!(deadline::wait(&mut call).code(), Some(130), "{started}");
}

#[test]
fn stdio_stands_alone_and_ends_with_its_input() {
    let home = Home::with_demo_servers();
    let ended = home
        .feed(&["stdio"], &request(1, "tools/call", r#""name":"echo__say","arguments":{"text":"hi"},"#))
        .expect(0);
    let reply: Value = serde_json::from_str(ended.stdout.trim()).unwrap();
    assert_eq!((&reply["id"], &reply["result"]["content"][0]["text"]), (&1.into(), &"hi".into()));
}

#[test]
fn what_needs_a_gateway_says_so() {
    let home = Home::with_demo_servers();
    for args in [&["status"][..], &["restart", "echo"], &["stop", "echo"], &["logs", "echo"]] {
        let ended = home.run(args).expect(4);
        assert!(ended.stderr.contains("hint: toolcrib serve"), "{}", ended.stderr);
    }
    assert_eq!(home.run(&["status", "--json"]).expect(4).error()["code"], "no_daemon");
}

/// A request of the stateless era, as one line.
pub(crate) fn request(id: u32, method: &str, params: &str) -> String {
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{{{params}{meta}}}}}\n")
}
