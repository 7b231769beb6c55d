//! Tests of commands without a gateway, which start and stop the servers themselves.

use std::io::{BufRead as _, Write as _};

use super::*;

#[test]
fn tools_lists_and_filters() {
    let home = Home::with_demo_servers();
    let names = |args: &[&str]| -> Vec<String> {
        let listed = home.run(args).expect(0).stdout;
        let heading = listed.lines().next().unwrap_or_default();
        assert!(heading.contains("NAME\t"), "a table has its heading in a pipe: {listed}");
        listed.lines().skip(1).map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&["tools"]), ["counter__add", "counter__ponder", "echo__say", "echo__fail"]);
    assert_eq!(names(&["tools", "MEMORY"]), ["counter__add"]);
    assert_eq!(
        names(&["tools", "add a number", "--explain"])[0].parse::<f32>().map(|score| score > 0.0),
        Ok(true)
    );
    let found = home.run(&["tools", "keeps numbers", "--json"]).expect(0).json();
    assert_eq!(
        (&found["tools"][0]["name"], &found["tools"][0]["fields"]),
        (&"counter__add".into(), &serde_json::json!(["summary"]))
    );
    assert!(found["tools"][0]["score"].as_f64() > Some(0.0), "{found}");
    assert_eq!(names(&["tools", "echo__"]), ["echo__fail", "echo__say"]);
    assert!(names(&["tools", "nothing-like-it"]).is_empty());
    let output = home.run(&["tools", "--json"]).expect(0).json();
    let say = &output["tools"][2];
    assert_eq!(
        (&say["name"], &say["server"], &say["tool"]),
        (&"echo__say".into(), &"echo".into(), &"say".into())
    );
    assert_eq!(say["definition"]["inputSchema"]["type"], "object");
    assert_eq!((&output["failed"], &output["pending"]), (&serde_json::json!([]), &serde_json::json!([])));
    for name in ["echo__say", "echo.say"] {
        let shown = home.run(&["tools", name]).expect(0).stdout;
        assert!(shown.starts_with("echo__say\n  say("), "{shown}");
        let example = shown.lines().last().unwrap().trim();
        assert!(example.starts_with("toolcrib call echo__say"), "{shown}");
        let json = home.run(&["tools", name, "--json"]).expect(0).json();
        assert_eq!(json["tools"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn tools_of_other_servers_survive_failed_server() {
    let home = Home::new(&format!("{}\n{}", server("echo", "echo"), crashing()));
    let result = home.run(&["tools"]).expect(0);
    assert!(result.stdout.contains("echo__say"), "{}", result.stdout);
    assert!(result.stderr.contains("`crashing`"), "{}", result.stderr);
    assert_eq!(result.stderr.lines().count(), 1, "{}", result.stderr);
    for flags in [&["tools", "--json"][..], &["tools", "--json", "-q"]] {
        let result = home.run(flags).expect(0);
        let failed = &result.json()["failed"];
        assert_eq!((&failed[0]["server"], failed.as_array().unwrap().len()), (&"crashing".into(), 1));
        for member in ["code", "message", "hint"] {
            assert!(failed[0][member].is_string(), "{failed}");
        }
        assert_eq!(result.stderr, "");
    }
    home.write(&crashing());
    home.run(&["tools"]).expect(4);
    home.write("[servers.silent]\ncommand = \"true\"\n");
    let silent = home.run(&["tools"]).expect(4);
    assert!(silent.stderr.contains("it exited immediately with status 0 and no output"), "{}", silent.stderr);
}

#[test]
fn tools_without_wait_reports_slow_servers_as_pending() {
    let slow = "[servers.slow]\ncommand = 'sleep'\nargs = ['60']\n";
    let home = Home::new(&format!("{}\n{slow}\n[limits]\nlisting-wait = '2s'\n", server("echo", "echo")));
    let listed = home.run(&["tools", "--no-wait", "--json"]).expect(0).json();
    assert_eq!(
        (&listed["pending"], &listed["failed"]),
        (&serde_json::json!(["slow"]), &serde_json::json!([]))
    );
    assert_eq!(listed["tools"][0]["name"], "echo__say");
    let shown = home.run(&["tools", "--no-wait"]).expect(0);
    assert!(shown.stderr.contains("`slow`") && shown.stderr.contains("tools --wait"), "{}", shown.stderr);
}

#[test]
fn call_accepts_every_form_of_tool_name() {
    let home = Home::with_demo_servers();
    for words in [&["echo__say"][..], &["echo", "say"], &["say"]] {
        let args = [&["call"], words, &["text=hello = world"]].concat();
        assert_eq!(home.run(&args).expect(0).stdout, "hello = world\n", "{words:?}");
    }
}

#[test]
fn call_arguments_get_types_of_schema() {
    let home = Home::with_demo_servers();
    assert_eq!(home.run(&["call", "echo__say", "text=7"]).expect(0).stdout, "7\n");
    assert_eq!(home.run(&["call", "counter__add", "n=7"]).expect(0).stdout, "7\n");
    assert_eq!(home.run(&["call", "counter__add", "--args", r#"{"n":3}"#]).expect(0).stdout, "3\n");
    assert_eq!(
        home.run_with_input(&["call", "counter__add", "--args", "-"], r#"{"n":4}"#).expect(0).stdout,
        "4\n"
    );
    let wrong = home.run(&["call", "counter__add", "n=seven"]).expect(1);
    assert!(wrong.stderr.contains("`n` must be integer"), "{}", wrong.stderr);
    home.run(&["call", "counter__add", "--args", "[]"]).expect(1);
}

#[test]
fn call_accepts_every_form_of_arguments() {
    let home = Home::with_demo_servers();
    let file = home.0.file("args.json");
    std::fs::write(&file, r#"{"text":"from a file"}"#).unwrap();
    let at_file = format!("@{}", path_text(&file));
    for (words, printed) in [
        (&["echo__say", r#"{"text":"object"}"#][..], "object"),
        (&["echo__say", &at_file], "from a file"),
        (&["echo.say", "text=dotted"], "dotted"),
        (&["echo__say", "text=@name"], "@name"),
        (&["echo__say", r#"text:="7""#], "7"),
    ] {
        for with_gateway in [false, true] {
            let _gateway = with_gateway.then(|| home.serve(&["-q"]));
            let result = home.run(&[&["call"], words].concat()).expect(0);
            assert_eq!(result.stdout.trim_end(), printed, "{words:?}, with gateway: {with_gateway}");
        }
    }
}

#[test]
fn unchecked_call_ignores_the_schema() {
    let home = Home::with_demo_servers();
    home.run(&["call", "counter__add", "n=seven"]).expect(1);
    let sent = home.run(&["call", "counter__add", "n=seven", "--unchecked"]);
    assert!(!sent.stderr.contains("must be integer"), "{}", sent.stderr);
}

#[test]
fn undeclared_server_is_called_by_its_command() {
    let home = Home::new("[policy]\ndeny = [\"*.fail\"]\n");
    let command = format!("'{PROGRAM}' demo-server echo");
    for with_gateway in [false, true] {
        let _gateway = with_gateway.then(|| home.serve(&["-q"]));
        let said = home.run(&["call", "--command", &command, "say", "text=7"]).expect(0);
        assert_eq!(said.stdout, "7\n", "with gateway: {with_gateway}");
        let denied = home.run(&["call", "--command", &command, "fail", "text=x"]).expect(7);
        assert!(denied.stderr.contains("*.fail"), "{}", denied.stderr);
    }
    home.run(&["call", "--command", "'x", "say"]).expect(1);
    // No file declares such a server, so the hint is about the command line.
    for (flag, value) in [("--command", "/nowhere/server"), ("--url", "htp://x")] {
        let failed = home.run(&["call", flag, value, "say"]).expect(4);
        assert!(
            failed.stderr.ends_with(&format!("hint: check the value of `{flag}`\n")),
            "{}",
            failed.stderr
        );
    }
    std::fs::remove_file(home.config()).unwrap();
    assert_eq!(home.run(&["call", "--command", &command, "say", "text=a"]).expect(0).stdout, "a\n");
}

#[test]
fn answer_is_printed_before_the_server_is_stopped() {
    let home = Home::with_demo_servers();
    let pid_file = home.0.file("pid");
    let script = format!("echo $$ > {}; '{PROGRAM}' demo-server echo; exec sleep 60", path_text(&pid_file));
    let command = format!("sh -c \"{script}\"").replace('$', "\\$");
    let mut call = home
        .command(&["call", "--command", &command, "say", "text=hi"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = Lines::new(call.stdout.take().unwrap());
    assert_eq!(lines.next_line().as_deref(), Some("hi"));
    let pid: u64 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    assert!(is_alive(pid), "the server is stopped after the answer");
    assert_eq!(deadline::wait(&mut call).code(), Some(0));
    assert!(!is_alive(pid));
}

#[test]
fn call_with_json_prints_raw_result() {
    let home = Home::with_demo_servers();
    let output = home.run(&["call", "echo__say", "text=x", "--json"]).expect(0).json();
    assert_eq!(output["content"][0]["text"], "x");
}

#[test]
fn call_failures_have_documented_exit_codes() {
    let home =
        Home::new(&format!("{}\n{}\n{}", server("echo", "echo"), server("counter", "counter"), crashing()));
    let failed = home.run(&["call", "echo__fail", "text=no such thing"]).expect(5);
    assert_eq!((failed.stdout.as_str(), failed.stderr.as_str()), ("", "no such thing\n"));
    let unknown = home.run(&["call", "echo__sya"]).expect(5);
    assert!(unknown.stderr.contains("hint: did you mean `echo__say`?"), "{}", unknown.stderr);
    home.run(&["call", "ehco", "say"]).expect(5);
    home.run(&["call", "echo", "sya"]).expect(5);
    let crashed = home.run(&["call", "crashing__x", "-q"]).expect(4);
    assert!(crashed.stderr.starts_with("error: "), "{}", crashed.stderr);
    assert!(crashed.stderr.contains("\n  crashing on purpose\nhint: "), "{}", crashed.stderr);
    let output = home.run(&["call", "crashing__x", "-q", "--json"]).expect(4).error();
    assert!(
        output["code"].is_string() && output["hint"].is_string() && output["server"] == "crashing",
        "{output}"
    );
    let timed_out = home.run(&["call", "counter__ponder", "--timeout", "300ms"]).expect(8);
    assert!(timed_out.stderr.starts_with("error: "), "{}", timed_out.stderr);
}

#[test]
fn missing_program_is_to_be_installed() {
    let launcher = "[servers.absent]\ncommand = 'uvx'\nargs = ['x']\nenv.PATH = '/nowhere'\n";
    let own = "[servers.own]\ncommand = '/nowhere/mcp'\n";
    let folder = "[servers.folder]\ncommand = 'sh'\ncwd = '/nowhere'\n";
    let home = Home::new(&[launcher, own, folder].concat());
    for (server, expected) in [
        (
            "absent",
            "install uv (https://docs.astral.sh/uv), or set `servers.absent.command` to the absolute path of `uvx`",
        ),
        ("own", "fix `servers.own` in the config"),
        ("folder", "fix `servers.folder` in the config"),
    ] {
        let error = home.run(&["call", server, "x", "--json"]).expect(4).error();
        assert!(error["hint"].as_str().is_some_and(|hint| hint.starts_with(expected)), "{error}");
    }
}

#[test]
fn timed_out_call_says_if_it_may_have_been_sent() {
    let silent = "[servers.silent]\ncommand = 'sleep'\nargs = ['60']\n";
    let home = Home::new(&format!("{}\n{silent}", server("counter", "counter")));
    for with_gateway in [false, true] {
        let _gateway = with_gateway.then(|| home.serve(&["-q"]));
        let timed_out = home.run(&["call", "counter__ponder", "--timeout", "2s", "--json"]).expect(8).error();
        assert_eq!(timed_out["sent"], "maybe", "with gateway: {with_gateway}: {timed_out}");
        let not_started = home.run(&["call", "silent", "x", "--timeout", "1s", "--json"]).expect(8).error();
        assert_eq!(not_started["sent"], "never", "with gateway: {with_gateway}: {not_started}");
    }
}

#[test]
fn unknown_tool_on_server_gets_suggestion() {
    let home = Home::with_demo_servers();
    for with_gateway in [false, true] {
        let _gateway = with_gateway.then(|| home.serve(&["-q"]));
        let refused = home.run(&["call", "echo", "sya"]).expect(5);
        let expected = "error: the server refused the call: Unknown tool: sya\nhint: did you mean `say`?\n";
        assert_eq!(refused.stderr, expected, "with gateway: {with_gateway}");
        let far = home.run(&["call", "echo", "nothing-like-it"]).expect(5);
        assert!(far.stderr.contains("hint: toolcrib tools\n"), "{}", far.stderr);
    }
}

/// A server that answers each call with a result that is an error, as servers on the TypeScript SDK do for an unknown tool.
const FAILING_SERVER: &str = r#"
while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
    case $line in
    *'"initialize"'*) result='{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"f","version":"1"}}' ;;
    *'"tools/list"'*) result='{"tools":[{"name":"read_graph","inputSchema":{"type":"object"}}]}' ;;
    *'"tools/call"'*) result='{"isError":true,"content":[{"type":"text","text":"Tool not found"}]}' ;;
    *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
"#;

#[test]
fn error_result_of_unknown_tool_gets_suggestion() {
    let server =
        format!("command = 'sh'\nargs = ['-c', \"\"\"{}\"\"\"]\n", FAILING_SERVER.replace('\\', r"\\"));
    let home = Home::new(&format!("[servers.memory]\nera = 'legacy'\n{server}"));
    for with_gateway in [false, true] {
        let _gateway = with_gateway.then(|| home.serve(&["-q"]));
        let unknown = home.run(&["call", "memory.red_graph"]).expect(5);
        assert_eq!(unknown.stderr, "Tool not found\nhint: did you mean `read_graph`?\n");
        let unknown = home.run(&["call", "memory.red_graph", "--json"]).expect(5).error();
        assert_eq!(unknown["hint"], "did you mean `read_graph`?", "with gateway: {with_gateway}");
        let known = home.run(&["call", "memory.read_graph"]).expect(5);
        assert_eq!(known.stderr, "Tool not found\n", "the tool exists and failed");
    }
}

#[test]
fn interrupted_call_exits_130() {
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
    process::send_signal(call.id(), Signal::INT);
    assert_eq!(deadline::wait(&mut call).code(), Some(130), "{started}");
}

#[test]
fn standalone_stdio_ends_with_its_input() {
    let home = Home::with_demo_servers();
    let result = home
        .run_with_input(
            &["stdio"],
            &request(1, "tools/call", r#""name":"echo__say","arguments":{"text":"hi"},"#),
        )
        .expect(0);
    let reply: Value = serde_json::from_str(result.stdout.trim()).unwrap();
    assert_eq!((&reply["id"], &reply["result"]["content"][0]["text"]), (&1.into(), &"hi".into()));
}

#[test]
fn commands_that_need_gateway_exit_4() {
    let home = Home::with_demo_servers();
    for args in [&["status"][..], &["restart", "echo"], &["stop", "echo"], &["logs", "echo"]] {
        let result = home.run(args).expect(4);
        assert!(result.stderr.contains("hint: toolcrib serve"), "{}", result.stderr);
    }
    assert_eq!(home.run(&["status", "--json"]).expect(4).error()["code"], "no_daemon");
}

/// Returns a request of the stateless era as one line.
pub(crate) fn request(id: u32, method: &str, params: &str) -> String {
    let meta = r#""_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{{{params}{meta}}}}}\n")
}

#[test]
fn json_output_has_no_hints_of_warnings() {
    let home = Home::new(&format!("{}\n[servers.broken]\ncommand = 7\n", server("counter", "counter")));
    let shown = home.run(&["tools"]).expect(0);
    assert!(shown.stderr.contains("warning:") && shown.stderr.contains("hint:"), "{}", shown.stderr);
    for flags in [&["tools", "--json"][..], &["tools", "--quiet"]] {
        let result = home.run(flags).expect(0);
        assert!(!result.stderr.contains("hint:"), "{flags:?}: {}", result.stderr);
    }
}

#[test]
fn tools_names_servers_with_a_broken_config() {
    let home = Home::new(&format!("{}\n[servers.broken]\ncommand = 7\n", server("echo", "echo")));
    let check = || {
        for flags in [&["tools", "--json"][..], &["tools", "--json", "-q"]] {
            let result = home.run(flags).expect(0);
            let failed = result.json()["failed"].clone();
            assert_eq!(failed.as_array().map(Vec::len), Some(1), "{failed}");
            assert_eq!(
                (&failed[0]["server"], &failed[0]["code"]),
                (&"broken".into(), &"config_invalid".into())
            );
            let message = failed[0]["message"].as_str().unwrap();
            assert!(message.contains("config.toml:") && failed[0]["hint"].is_string(), "{failed}");
        }
        let shown = home.run(&["tools"]).expect(0);
        assert_eq!(shown.stderr.matches("config.toml:").count(), 1, "{}", shown.stderr);
        assert!(shown.stderr.contains("server `broken` is disabled"), "{}", shown.stderr);
    };
    check();
    let gateway = home.serve(&["-q"]);
    check();
    drop(gateway);
    home.write("[servers.broken]\ncommand = 7\n");
    home.run(&["tools"]).expect(6);
}

#[test]
fn stderr_of_a_server_that_a_command_started_is_in_its_log() {
    let script = "echo 'no database at /srv' >&2; exit 3";
    let home = Home::new(&format!("[servers.notes]\ncommand = 'sh'\nargs = ['-c', \"{script}\"]\n"));
    let failed = home.run(&["tools"]).expect(4);
    assert!(failed.stderr.contains("hint: toolcrib logs"), "{}", failed.stderr);
    let log = home.run(&["logs", "notes"]).expect(0).stdout;
    assert!(log.contains("no database at /srv"), "{log}");
    home.run(&["call", "--command", "sh -c 'echo x >&2; exit 3'", "tool"]).expect(4);
    let logs: Vec<_> =
        std::fs::read_dir(home.config().with_file_name("state").join("logs")).unwrap().flatten().collect();
    assert_eq!(logs.len(), 1, "only declared servers have a log: {logs:?}");
}

/// Returns a home on the host `here` whose server `memory` runs in the gateway of that host, and the gateway's port, on which
/// nothing listens.
fn home_of_placed_server() -> (Home, u16) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let memory = server("memory", "echo");
    (Home::new(&format!("{memory}run-on = \"here\"\n[hosts.here]\nport = {port}\n")), port)
}

fn run_here(home: &Home, args: &[&str]) -> RunResult {
    deadline::output(home.command(args).env("TOOLCRIB_HOST", "here")).into()
}

#[test]
fn placed_server_is_not_started_outside_its_gateway() {
    let (home, port) = home_of_placed_server();
    let reason = format!("`memory` runs in the gateway of this host, and none answers on port {port}");
    let command = format!("toolcrib serve --listen 127.0.0.1:{port}");
    for args in [&["stdio"][..], &["run", "claude"]] {
        let refused = run_here(&home, args).expect(4);
        assert!(refused.stderr.contains(&reason) && refused.stderr.contains(&command), "{}", refused.stderr);
        let mut json = args.to_vec();
        json.push("--json");
        let error = run_here(&home, &json).expect(4).error();
        assert_eq!((&error["code"], &error["hint"]), (&"no_daemon".into(), &command.as_str().into()));
    }
    let why = run_here(&home, &["why", "memory"]).expect(0).stdout;
    assert!(why.contains("runs in the gateway of this host"), "{why}");
    let exported = run_here(&home, &["export", "cursor", "--expand", "--dry-run"]).expect(0);
    assert!(
        exported.stdout.contains(&format!("http://127.0.0.1:{port}/mcp/s/memory")),
        "{}",
        exported.stdout
    );
    assert!(!exported.stdout.contains("demo-server"), "{}", exported.stdout);
    assert!(exported.stderr.contains(&reason) && exported.stderr.contains(&command), "{}", exported.stderr);
    let _gateway = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let exported = run_here(&home, &["export", "cursor", "--dry-run"]).expect(0);
    assert!(!exported.stderr.contains(&command), "{}", exported.stderr);
}

#[test]
fn pasted_json_declares_servers() {
    let home = Home::new("# mine\n");
    let entry =
        r#"{"command": "uvx", "args": ["echo"], "env": {"API_KEY": "sk-1234567890abcdef1234567890abcdef"}}"#;
    home.run(&["add-json", "echo", entry, "--secrets", "env"]).expect(0);
    let config = std::fs::read_to_string(home.config()).unwrap();
    assert!(config.starts_with("# mine\n") && !config.contains("sk-1234"), "{config}");
    assert!(
        home.run(&["add-json", "echo", r#"{"command": "other"}"#])
            .expect(1)
            .stderr
            .contains("different server")
    );
    let servers = r#"{"mcpServers": {"one": {"command": "npx", "args": ["one"]}}}"#;
    let imported = home.run_with_input(&["import", "--from", "-"], servers).expect(2);
    assert!(imported.stdout.contains("would import `one`"), "{}", imported.stdout);
    home.run_with_input(&["import", "--from", "-", "--yes"], servers).expect(0);
    for bad in ["{", "{}", r#"{"a": 1}"#, r#"{"x": {"command": "./relative"}}"#] {
        home.run(&["add-json", bad]).expect(if bad == "{" { 6 } else { 1 });
    }
    let names = home.run(&["ls", "--json"]).expect(0).json();
    assert_eq!(
        names.as_array().unwrap().iter().map(|server| &server["name"]).collect::<Vec<_>>(),
        ["echo", "one"]
    );
}

#[test]
fn registry_file_declares_a_server() {
    let home = Home::new("");
    let file = home.0.file("server.json");
    let document = r#"{"name": "io.github.example/Files_Server", "packages": [{"registryType": "pypi", "identifier": "files",
        "version": "1.0", "environmentVariables": [{"name": "TOKEN", "isSecret": true, "isRequired": true}, {"name": "ROOT", "isRequired": true}]}]}"#;
    std::fs::write(&file, document).unwrap();
    let source = format!("registry:{}", path_text(&file));
    let missing = home.run(&["add", &source]).expect(1).stderr;
    assert!(missing.contains("needs values: ROOT") && missing.contains("-e ROOT=VALUE"), "{missing}");
    home.run(&["add", &source, "-e", "ROOT=/srv"]).expect(0);
    home.run(&["add", "mine", &source, "-e", "ROOT=/srv", "-e", "TOKEN=${env:T}"]).expect(0);
    let config = std::fs::read_to_string(home.config()).unwrap();
    assert!(
        config.contains("[servers.files-server]\ncommand = \"uvx\"\nargs = [\"files==1.0\"]"),
        "{config}"
    );
    assert!(config.contains("${secret:files-server-token}") && config.contains("${env:T}"), "{config}");
    assert!(home.run(&["add", "x", "registry:/no/such/file"]).expect(1).stderr.contains("/no/such/file"));
    let registry = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = registry.local_addr().unwrap();
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = registry.accept().unwrap();
        let mut request = String::new();
        std::io::BufReader::new(&stream).read_line(&mut request).unwrap();
        let body = format!("{{\"server\": {document}, \"_meta\": {{}}}}");
        write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        request
    });
    home.write(&format!("registry = 'http://{address}'\n"));
    home.run(&["add", "online", "registry:io.github.example/files", "-e", "ROOT=/"]).expect(0);
    assert!(
        answer.join().unwrap().starts_with("GET /v0.1/servers/io.github.example%2Ffiles/versions/latest ")
    );
    assert!(home.run(&["add", "x", "registry:none"]).expect(4).stderr.contains(&address.to_string()));
    assert!(home.run(&["add", "x"]).expect(1).stderr.contains("the command or URL is missing"));
}

#[test]
fn server_with_a_config_error_is_reported_as_such() {
    let home = Home::new(&format!(
        "{}\n[servers.broken]\ncommand = \"x\"\nkomand = \"y\"\n",
        server("echo", "echo")
    ));
    let commands: [&[&str]; 5] = [
        &["call", "broken", "x"],
        &["call", "broken.x"],
        &["call", "broken__x"],
        &["status", "broken"],
        &["logs", "broken"],
    ];
    for command in commands {
        let error = home.run(&[command, &["--json"]].concat()).expect(6).error();
        assert!(error["message"].as_str().unwrap().contains("unknown key `komand`"), "{command:?}: {error}");
    }
    home.run(&["call", "brokenness"]).expect(5);
    let gateway = home.serve(&[]);
    for command in commands.iter().take(4) {
        let error = home.run(&[command, &["--json"][..]].concat()).expect(6).error();
        assert_eq!(error["code"], "config_invalid", "{command:?}");
    }
    drop(gateway);
}

#[test]
fn policy_test_reports_unknown_tools() {
    let home = Home::with_demo_servers();
    let test = |tool: &str| home.run(&["policy", "test", "--tool", tool]).expect(0).stderr;
    assert!(test("echo.nosuch").contains("it is not known whether server `echo` has a tool `nosuch`"));
    let tools = home.run(&["tools", "--json"]).expect(0).json();
    let known =
        tools["tools"].as_array().unwrap().iter().find(|tool| tool["server"] == "echo").unwrap()["tool"]
            .clone();
    assert!(test("echo.nosuch").contains("server `echo` has no tool `nosuch`"));
    assert_eq!(test(&format!("echo.{}", known.as_str().unwrap())), "");
    let json = home.run(&["policy", "test", "--tool", "echo.nosuch", "--json"]).expect(0).json();
    assert_eq!(json["tool_exists"], false);
}
