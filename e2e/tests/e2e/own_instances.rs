//! Clients of a server that sends requests to its clients: each is asked its own questions, and no other's.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient, StdioClient, tool_names};
use test_support::gateway::{GatewayProcess, Home, server_config};
use test_support::{process, wait_until};

const ELICIT: &str = "elicitation/create";
const METHODS: [&str; 3] = [ELICIT, "sampling/createMessage", "roots/list"];

fn home(era: &str, more: &str) -> Home {
    let config = server_config(env!("CARGO_BIN_EXE_fake-server"), "s", &["--era", era]);
    Home::new(env!("CARGO_BIN_EXE_crib"), &(config + more))
}

fn status(home: &Home) -> Value {
    serde_json::from_slice(&home.run(&["status", "s", "--json"]).stdout).unwrap()
}

/// An agent that answers questions with its own number.
struct Agent {
    number: usize,
    client: Client,
}

enum Client {
    Http(HttpClient),
    Pipe(StdioClient),
    StatelessPipe(StdioClient),
}

impl Agent {
    fn session(gateway: &GatewayProcess, number: usize) -> Self {
        let client = Client::Http(HttpClient::new(gateway.address, "/mcp", Era::Session));
        Self { number, client }
    }

    fn pipe(home: &Home, number: usize, capabilities: &Value) -> Self {
        let command = home.command(&["stdio"]);
        let client = StdioClient::session_with_capabilities(command, "2025-11-25", capabilities);
        Self { number, client: Client::Pipe(client) }
    }

    fn stateless_pipe(home: &Home, number: usize) -> Self {
        let client = StdioClient::new(home.command(&["stdio"]), Era::Stateless);
        Self { number, client: Client::StatelessPipe(client) }
    }

    fn text(&mut self, tool: &str, arguments: &Value) -> String {
        match &mut self.client {
            Client::Http(client) => client.text(tool, arguments),
            Client::Pipe(client) | Client::StatelessPipe(client) => client.text(tool, arguments),
        }
    }

    fn pid(&mut self) -> u32 {
        self.text("s__pid", &json!({})).parse().unwrap()
    }

    /// Ends the session or closes the pipe.
    fn leave(self) {
        if let Client::Http(client) = &self.client {
            assert_eq!(client.send_without_body("DELETE").finish().status, 204);
        }
    }

    /// Returns the tools of the server that depend on capabilities.
    fn tools_for_capabilities(&mut self) -> Vec<String> {
        let params = json!({});
        let answer = match &mut self.client {
            Client::Http(client) => client.request("tools/list", &params).message(),
            Client::Pipe(client) | Client::StatelessPipe(client) => client.request("tools/list", &params),
        };
        tool_names(&answer).into_iter().filter(|name| name.starts_with("s__use_")).collect()
    }

    fn answer(&self) -> Value {
        json!({"agent": self.number})
    }

    /// Makes the server ask, answers, and returns what the server got.
    fn ask(&mut self, method: &str) -> String {
        let answer = self.answer();
        let params = json!({"name": "s__ask", "arguments": {"method": method, "message": "sure?"}});
        let result = match &mut self.client {
            Client::Http(client) => {
                let mut stream = client.open("tools/call", &params);
                let mut message = stream.next_event().unwrap();
                while message["method"].is_string() {
                    let answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": answer});
                    assert_eq!(client.post_raw("", None, &answer.to_string()).status, 202);
                    message = stream.next_event().unwrap();
                }
                message
            }
            Client::Pipe(client) => ask_on_pipe(client, &params, &answer),
            Client::StatelessPipe(client) => ask_stateless(client, params, &answer),
        };
        result["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
    }

    /// Asserts that the server got this agent's own answer.
    fn assert_is_asked(&mut self, method: &str) {
        assert_eq!(self.ask(method), self.answer().to_string(), "{method}");
    }
}

fn ask_on_pipe(client: &mut StdioClient, params: &Value, answer: &Value) -> Value {
    let id = client.send("tools/call", params);
    loop {
        let message = client.read().unwrap();
        if message["method"].is_string() && !message["id"].is_null() {
            client.write(&json!({"jsonrpc": "2.0", "id": message["id"], "result": answer}).to_string());
        } else if message["id"] == id {
            return message;
        }
    }
}

fn ask_stateless(client: &mut StdioClient, mut params: Value, answer: &Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}, "sampling": {}, "roots": {}},
    });
    let mut request = |id: &str, params: &Value| {
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        client.write(&message.to_string());
        loop {
            let message = client.read().unwrap();
            if message["id"] == id {
                return message;
            }
        }
    };
    let first = request("first", &params);
    let Some(questions) = first["result"]["inputRequests"].as_object() else { return first };
    let key = questions.keys().next().unwrap();
    params["inputResponses"] = json!({key: answer});
    params["requestState"] = first["result"]["requestState"].clone();
    request("second", &params)
}

/// Makes the server ask all agents at the same time.
fn assert_all_are_asked(agents: &mut [Agent]) {
    for method in METHODS {
        std::thread::scope(|scope| {
            agents.iter_mut().for_each(|agent| drop(scope.spawn(move || agent.assert_is_asked(method))));
        });
    }
}

#[test]
fn new_session_of_a_server_that_asks_has_its_own_process() {
    let home = home("session", "");
    let mut gateway = home.serve();
    let mut first = Agent::session(&gateway, 1);
    assert_eq!(status(&home)["asks"], Value::Null);
    first.assert_is_asked(ELICIT);
    assert_eq!(status(&home)["asks"], ELICIT);
    let mut agents = [first, Agent::session(&gateway, 2), Agent::session(&gateway, 3)];
    assert_all_are_asked(&mut agents);
    let pids = agents.each_mut().map(Agent::pid);
    assert!(pids[0] != pids[1] && pids[1] != pids[2], "{pids:?}");
    let reported = status(&home);
    assert_eq!((&reported["instances"], &reported["sharing"]), (&json!(3), &json!("auto")), "{reported}");
    let keys: Vec<String> = reported["instances_list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|instance| instance["key"].as_str().unwrap().to_owned())
        .collect();
    assert!(keys[0] == "shared" && keys[1..].iter().all(|key| key.starts_with("client ")), "{keys:?}");
    let page = String::from_utf8(home.run(&["status", "s"]).stdout).unwrap();
    assert!(page.contains(&format!("because it sends `{ELICIT}`")), "{page}");
    // The instance of a client ends with it.
    let [mut first, second, mut third] = agents;
    second.leave();
    wait_until("the second process has exited", || !process::is_alive(pids[1]));
    assert_eq!([first.pid(), third.pid()], [pids[0], pids[2]]);
    // It is remembered.
    gateway.stop();
    let gateway = home.serve();
    let mut agents = [Agent::session(&gateway, 5), Agent::session(&gateway, 6)];
    assert_eq!(status(&home)["asks"], ELICIT);
    let pids = agents.each_mut().map(Agent::pid);
    assert_ne!(pids[0], pids[1]);
    // A client like the one that left uses its process.
    let [first, second] = agents;
    first.leave();
    let mut agents = [Agent::session(&gateway, 7), second];
    assert_eq!(agents.each_mut().map(Agent::pid), pids);
    assert!(home.run(&["restart", "s"]).status.success());
    assert_all_are_asked(&mut agents);
    assert!(home.run(&["stop", "s"]).status.success());
    assert_eq!(status(&home)["instances"], 0);
    assert_all_are_asked(&mut agents);
}

#[test]
fn session_that_was_there_before_keeps_its_process() {
    let home = home("session", "");
    let gateway = home.serve();
    let mut agents = [Agent::session(&gateway, 1), Agent::session(&gateway, 2)];
    for agent in &mut agents {
        agent.text("s__remember", &json!({"text": "before"}));
    }
    agents[0].assert_is_asked(ELICIT);
    for agent in &mut agents {
        let remembered = agent.text("s__remember", &json!({"text": "after"}));
        assert!(remembered.starts_with("before before after"), "{remembered}");
    }
    assert_eq!(Agent::session(&gateway, 3).text("s__remember", &json!({"text": "new"})), "new");
}

#[test]
fn clients_share_a_process_if_sharing_or_the_limit_says_so() {
    for more in ["limits = { instances = 1 }\n", "sharing = 'shared'\n", "sharing = 'one'\n"] {
        let home = home("session", more);
        let gateway = home.serve();
        let mut agents = [Agent::session(&gateway, 1), Agent::session(&gateway, 2)];
        agents[0].assert_is_asked(ELICIT);
        let pids = agents.each_mut().map(Agent::pid);
        assert_eq!(pids[0], pids[1], "{more}");
        agents[1].assert_is_asked(ELICIT);
        let asks = if more.starts_with("limits") { json!(ELICIT) } else { Value::Null };
        assert_eq!(status(&home)["asks"], asks, "{more}");
    }
}

#[test]
fn client_is_told_and_listed_what_it_can_use() {
    let config =
        server_config(env!("CARGO_BIN_EXE_fake-server"), "s", &["--era", "session", "--tool-per-capability"]);
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), &config);
    let mut gateway = home.serve();
    let roots = json!({"roots": {}});
    let all = ["s__use_elicitation", "s__use_roots", "s__use_sampling"];
    Agent::session(&gateway, 1).assert_is_asked(ELICIT);
    let mut full = Agent::session(&gateway, 2);
    let mut some = Agent::pipe(&home, 3, &roots);
    let mut none = Agent::stateless_pipe(&home, 4);
    assert_eq!(some.text("s__client_capabilities", &json!({})), roots.to_string());
    assert_eq!(none.text("s__client_capabilities", &json!({})), "{}");
    full.assert_is_asked(ELICIT);
    assert_eq!(full.tools_for_capabilities(), all);
    assert_eq!(some.tools_for_capabilities(), ["s__use_roots"]);
    assert!(none.tools_for_capabilities().is_empty());
    drop((some, none));
    gateway.stop();
    // What clients with these capabilities were listed is remembered.
    let gateway = home.serve();
    assert!(Agent::stateless_pipe(&home, 5).tools_for_capabilities().is_empty());
    assert_eq!(Agent::pipe(&home, 6, &roots).tools_for_capabilities(), ["s__use_roots"]);
    assert_eq!(Agent::session(&gateway, 7).tools_for_capabilities(), all);
    assert_eq!(status(&home)["instances"], 0);
}

#[test]
fn ten_agents_of_both_eras_are_each_asked_their_own_questions() {
    let all = json!({"elicitation": {}, "sampling": {}, "roots": {}});
    for era in ["session", "both"] {
        for offset in 0..3 {
            let home = home(era, "");
            let gateway = home.serve();
            let mut agents: Vec<Agent> = Vec::new();
            for number in 0..10 {
                let mut agent = match (number + offset) % 3 {
                    0 => Agent::session(&gateway, number),
                    1 => Agent::stateless_pipe(&home, number),
                    _ => Agent::pipe(&home, number, &all),
                };
                agent.assert_is_asked(METHODS[number % 3]);
                agents.push(agent);
            }
            assert_all_are_asked(&mut agents);
            agents.into_iter().for_each(Agent::leave);
            wait_until("the processes of clients have exited", || {
                status(&home)["instances"].as_u64().is_some_and(|count| count <= 2)
            });
        }
    }
}
