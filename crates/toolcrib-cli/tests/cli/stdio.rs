//! Tests of `toolcrib stdio` with oversized messages and with a gateway that is killed.

use std::io::Write as _;
use std::process::ChildStdin;

use super::*;

/// A running `toolcrib stdio` whose stdin is open.
struct Pipe {
    child: Child,
    input: ChildStdin,
    output: Lines,
}

impl Pipe {
    /// Starts the command and waits for its first response.
    fn open(home: &Home) -> Self {
        let mut command = home.command(&["stdio"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = Lines::new(child.stdout.take().unwrap());
        let mut pipe = Self { child, input, output };
        pipe.write(&standalone::request(1, "server/discover", ""));
        let line = pipe.output.next_line().unwrap();
        assert!(line.contains("\"supportedVersions\""), "{line}");
        pipe
    }

    fn write(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }

    /// Closes stdin and returns the result.
    fn close(self) -> RunResult {
        let Self { child, input, output } = self;
        drop(input);
        let result = wait_for_result(child);
        drop(output);
        result
    }
}

#[test]
fn oversized_message_gets_error_and_pipe_continues() {
    let home = Home::new(&format!("[limits]\nbody = \"4KiB\"\n{}", server("echo", "echo")));
    let say = |id: u32, text: &str| {
        standalone::request(
            id,
            "tools/call",
            &format!(r#""name":"echo__say","arguments":{{"text":"{text}"}},"#),
        )
    };
    for with_gateway in [false, true] {
        let _gateway = with_gateway.then(|| home.serve(&["-q"]));
        let input = say(1, "before") + &say(77, &"x".repeat(10_000)) + &say(2, "after");
        let replies: Vec<Value> = home
            .run_with_input(&["stdio"], &input)
            .expect(0)
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let reply = |id: u32| replies.iter().find(|reply| reply["id"] == id).unwrap_or(&Value::Null);
        assert_eq!(reply(77)["error"]["code"], -32600, "with gateway: {with_gateway}, {replies:?}");
        assert_eq!(reply(77)["error"]["message"], "the request is larger than `limits.body`, 4KiB");
        for (id, text) in [(1, "before"), (2, "after")] {
            assert_eq!(
                reply(id)["result"]["content"][0]["text"],
                text,
                "with gateway: {with_gateway}, {replies:?}"
            );
        }
    }
}

#[test]
fn stdio_without_gateway_exits_0_when_stdin_closes() {
    for signal in [Signal::KILL, Signal::TERM] {
        let home = Home::with_demo_servers();
        let mut gateway = home.serve(&["-q"]);
        let pipe = Pipe::open(&home);
        gateway.signal(signal);
        gateway.wait();
        pipe.close().expect(0);
    }
}

#[test]
fn stdio_with_unread_input_exits_0_when_stdin_closes() {
    let home = Home::with_demo_servers();
    let gateway = home.serve(&["-q"]);
    let mut pipe = Pipe::open(&home);
    gateway.signal(Signal::STOP);
    // More than the pipe holds, so that a part is already sent to the gateway.
    pipe.write(&format!("{}\n", "x".repeat(150_000)));
    gateway.signal(Signal::KILL);
    pipe.close().expect(0);
}

#[test]
fn agent_is_a_caller_of_its_own_that_rules_narrow() {
    let rules = "[callers.\"agent:codex\"]\ndeny = [\"echo.say\"]\n[profiles.agent-qwen]\nservers = [\"counter\"]\n\
        [profiles.work]\nservers = [\"echo\"]\n[callers.\"agent:cline\"]\nprofile = \"work\"\n";
    let home = Home::new(&format!("{rules}{}{}", server("echo", "echo"), server("counter", "counter")));
    home.run(&["tools"]).expect(0);
    let answers = |args: &[&str]| -> Vec<Value> {
        let call = r#""name":"echo__say","arguments":{"text":"x"},"#;
        let input = standalone::request(1, "tools/list", "") + &standalone::request(2, "tools/call", call);
        let args = [&["stdio"], args].concat();
        let output = home.run_with_input(&args, &input).expect(0).stdout;
        let mut answers: Vec<Value> =
            output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        answers.sort_by_key(|answer| answer["id"].as_u64());
        answers
    };
    let names = |answer: &Value| -> Vec<String> {
        let tools = answer["result"]["tools"].as_array().unwrap();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let counter = ["counter__add", "counter__ponder"];
    let echo = ["echo__say", "echo__fail"];
    let all = [counter, echo].concat();
    for with_gateway in [false, true] {
        let _gateway = with_gateway.then(|| home.serve(&["-q"]));
        for (args, tools) in [
            (&[][..], &all[..]),
            (&["--agent", "claude"], &all),
            (&["--agent", "codex"], &[counter[0], counter[1], echo[1]]),
            (&["--agent", "qwen"], &counter),
            (&["--agent", "qwen", "--profile", "work"], &echo),
            (&["--agent", "cline"], &echo),
        ] {
            let answers = answers(args);
            assert_eq!(names(&answers[0]), tools, "{args:?} with gateway: {with_gateway}");
            let may_say = tools.contains(&"echo__say");
            assert_eq!(answers[1]["error"].is_null(), may_say, "{args:?}: {}", answers[1]);
        }
        let denied = &answers(&["--agent", "codex"])[1]["error"];
        let message = denied["message"].as_str().unwrap();
        assert!(message.starts_with("`agent:codex` may not use `echo.say`"), "{message}");
        assert!(message.contains("config.toml:"), "the user is told where the rule is: {message}");
    }
    let open = home.serve(&["-q"]);
    let status = test_support::http::request(open.address, "GET", "/api/v1/status", &[], b"").status;
    assert_eq!(status, 200, "rules for agents need no token");
    drop(open);
    let tested = home.run(&["policy", "test", "--as", "agent:codex", "--tool", "echo.say"]).expect(7);
    assert!(tested.stdout.contains("agent:codex"), "{}", tested.stdout);
    home.run(&["policy", "test", "--as", "agent:qwen", "--tool", "echo.say"]).expect(7);
    home.run(&["policy", "test", "--as", "agent:claude", "--tool", "echo.say"]).expect(0);
    home.run(&["stdio", "--agent", "A B"]).expect(1);
}
