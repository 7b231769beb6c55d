//! `toolcrib stdio` when something goes wrong: a message that is too large, a gateway that dies for good.

use std::io::Write as _;
use std::process::ChildStdin;

use super::*;

/// `toolcrib stdio` with a client that has not hung up.
struct Pipe {
    child: Child,
    input: ChildStdin,
    output: Lines,
}

impl Pipe {
    /// Started, and attached: it has answered.
    fn open(home: &Home) -> Self {
        let mut command = home.command(&["stdio"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = Lines::new(child.stdout.take().unwrap());
        let mut pipe = Self { child, input, output };
        pipe.write(&alone::request(1, "server/discover", ""));
        let line = pipe.output.next_line().unwrap();
        assert!(line.contains("\"supportedVersions\""), "{line}");
        pipe
    }

    fn write(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
    }

    /// How it ends when its client hangs up.
    fn ended(self) -> Ended {
        let Self { child, input, output } = self;
        drop(input);
        let ended = ended(child);
        drop(output);
        ended
    }
}

#[test]
fn a_message_that_is_too_large_is_answered_under_its_id_and_the_pipe_goes_on() {
    let home = Home::new(&format!("[limits]\nbody = \"4KiB\"\n{}", server("echo", "echo")));
    let say = |id: u32, text: &str| {
        alone::request(id, "tools/call", &format!(r#""name":"echo__say","arguments":{{"text":"{text}"}},"#))
    };
    for daemon in [false, true] {
        let _gateway = daemon.then(|| home.serve(&["-q"]));
        let input = say(1, "before") + &say(77, &"x".repeat(10_000)) + &say(2, "after");
        let replies: Vec<Value> = home
            .feed(&["stdio"], &input)
            .expect(0)
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let reply = |id: u32| replies.iter().find(|reply| reply["id"] == id).unwrap_or(&Value::Null);
        assert_eq!(reply(77)["error"]["code"], -32600, "daemon: {daemon}, {replies:?}");
        assert_eq!(reply(77)["error"]["message"], "the message is too large");
        for (id, text) in [(1, "before"), (2, "after")] {
            assert_eq!(reply(id)["result"]["content"][0]["text"], text, "daemon: {daemon}, {replies:?}");
        }
    }
}

#[test]
fn a_pipe_without_its_gateway_ends_well_when_its_agent_hangs_up() {
    for signal in [Signal::KILL, Signal::TERM] {
        let home = Home::with_demo_servers();
        let mut gateway = home.serve(&["-q"]);
        let pipe = Pipe::open(&home);
        gateway.signal(signal);
        gateway.wait();
        pipe.ended().expect(0);
    }
}

#[test]
fn a_pipe_whose_gateway_dies_with_words_unread_ends_well_when_its_agent_hangs_up() {
    let home = Home::with_demo_servers();
    let gateway = home.serve(&["-q"]);
    let mut pipe = Pipe::open(&home);
    gateway.signal(Signal::STOP);
    // More than the client's own pipe holds, so that some of it is on its way to the gateway.
    pipe.write(&format!("{}\n", "x".repeat(150_000)));
    gateway.signal(Signal::KILL);
    pipe.ended().expect(0);
}
