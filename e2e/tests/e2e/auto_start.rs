//! The gateway that `toolcrib stdio` starts in the background: agents share it, and it ends when they are gone.

#![expect(clippy::unwrap_used, reason = "tests panic on failure")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use test_support::client::{Era, StdioClient};
use test_support::deadline::{self, Lines};
use test_support::gateway::{Home, server_config};
use test_support::process::is_alive;
use test_support::{in_own_process, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_crib");

/// Returns a config whose gateway ends soon after its last client.
fn config() -> String {
    format!("[gateway]\nidle-exit = '1s'\n{}", server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]))
}

/// A home whose gateway is stopped at the end.
struct AgentHome(Home);

impl AgentHome {
    fn new() -> Self {
        Self(Home::new(PROGRAM, &config()))
    }

    fn stdio(&self) -> Command {
        let mut command = self.0.command(&["stdio"]);
        command.env("TOOLCRIB_AUTO_START", "true");
        command
    }

    fn status(&self) -> Value {
        serde_json::from_slice(&self.0.run(&["status", "--json"]).stdout).unwrap_or_default()
    }

    fn gateway_pid(&self) -> u32 {
        let status = self.status();
        u32::try_from(status["pid"].as_u64().unwrap_or_else(|| panic!("no gateway: {status}"))).unwrap()
    }

    /// Runs a command and returns its stderr.
    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        let output = self.0.run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{stderr}");
        stderr
    }
}

impl Drop for AgentHome {
    fn drop(&mut self) {
        self.0.run(&["stop-gateway"]);
    }
}

/// Returns a command with the environment that SDKs give to servers, and the home folder of a person. Sockets are in that
/// folder, if not in that of the system.
fn filtered_command(person: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(args).env_clear().env("HOME", person).env("TMPDIR", person);
    command.env("PATH", std::env::var_os("PATH").unwrap());
    command
}

fn server_pid(client: &mut StdioClient) -> u32 {
    client.text("fake__pid", &json!({})).parse().unwrap()
}

fn parent_of(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn agents_with_a_filtered_environment_share_one_gateway() {
    let person = tempfile::tempdir().unwrap();
    let folder = person.path().join(".config/toolcrib");
    std::fs::create_dir_all(&folder).unwrap();
    let text = config() + "lifecycle = { keep-alive = '2s' }\n";
    std::fs::write(folder.join("config.toml"), text).unwrap();
    let starting: Vec<_> = (0..4)
        .map(|_| {
            let command = filtered_command(person.path(), &["stdio"]);
            std::thread::spawn(move || {
                let mut client = StdioClient::new(command, Era::Session);
                let server = server_pid(&mut client);
                (client, server)
            })
        })
        .collect();
    let mut clients: Vec<(StdioClient, u32)> =
        starting.into_iter().map(|client| client.join().unwrap()).collect();
    let mut elsewhere = filtered_command(person.path(), &["stdio"]);
    // Its own idea of the socket's folder, in which no gateway listens.
    elsewhere.env("XDG_RUNTIME_DIR", person.path());
    let mut last = StdioClient::new(elsewhere, Era::Stateless);
    let server = server_pid(&mut last);
    assert!(clients.iter().all(|(_, pid)| *pid == server), "one server for all: {server}, {clients:?}");
    let mut status = filtered_command(person.path(), &["status", "--json"]);
    let status: Value = serde_json::from_slice(&deadline::output(&mut status).stdout).unwrap();
    let gateway = u32::try_from(status["pid"].as_u64().unwrap()).unwrap();
    let parent = parent_of(gateway);
    assert!(clients.iter().all(|(client, _)| client.pid() != parent), "an agent could end it with {parent}");
    clients.clear();
    assert_eq!(server_pid(&mut last), server);
    wait_until("the server has slept", || !is_alive(server));
    assert!(is_alive(gateway), "it stays while an agent is connected");
    drop(last);
    wait_until("the gateway has exited", || !is_alive(gateway));
    let log = std::fs::read_to_string(person.path().join(".local/state/toolcrib/gateway.log")).unwrap();
    assert!(log.contains("started"), "{log}");
}

#[test]
fn stopped_or_replaced_gateway_keeps_the_session() {
    let home = AgentHome::new();
    let mut client = StdioClient::new(home.stdio(), Era::Session);
    server_pid(&mut client);
    let first = home.gateway_pid();
    assert!(home.run(&["stop-gateway"]).contains(&format!("stopped the gateway (pid {first})")));
    assert!(!is_alive(first));
    assert!(home.run(&["stop-gateway"]).contains("no gateway is running"));
    assert_eq!(client.text("fake__echo", &json!({"text": "again"})), "again");
    let second = home.gateway_pid();
    assert_ne!(first, second);
    let served = home.0.serve();
    wait_until("its calls go to the new gateway", || {
        assert_eq!(client.text("fake__echo", &json!({"text": "hi"})), "hi");
        home.status()["servers"][0]["calls"].as_u64().unwrap_or(0) > 0
    });
    assert_eq!((home.gateway_pid(), is_alive(second)), (served.pid(), false));
}

#[test]
fn gateway_whose_home_is_gone_ends_with_its_clients() {
    let home = AgentHome::new();
    home.0.write_config(&config().replace("1s", "1h"));
    let mut client = StdioClient::new(home.stdio(), Era::Stateless);
    let server = server_pid(&mut client);
    let gateway = home.gateway_pid();
    std::fs::remove_dir_all(home.0.file("run")).unwrap();
    assert_eq!(server_pid(&mut client), server);
    drop(client);
    wait_until("the gateway has exited", || !is_alive(gateway) && !is_alive(server));
}

/// Starts `toolcrib stdio` and returns the first line of its stderr that contains `part`.
fn wait_for_warning(mut command: Command, part: &str) -> String {
    let mut child: Child =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = Lines::new(child.stderr.take().unwrap());
    let found = std::iter::from_fn(|| lines.next_line()).find(|line| line.contains(part));
    drop(child.stdin.take());
    deadline::wait(&mut child);
    found.unwrap_or_else(|| panic!("no line with {part:?}"))
}

#[test]
fn stdio_says_why_it_stands_alone_or_differs() {
    let home = AgentHome::new();
    let scope = "[scopes.here.match]\nfiles = '*.rs'\n";
    home.0.write_config(&format!("{}{scope}", config()));
    assert!(wait_for_warning(home.stdio(), "own servers").contains("matches by `project` or `files`"));
    home.0.write_config(&config().replace("[gateway]\n", "[gateway]\nauto-start = false\n"));
    let mut unset = home.stdio();
    unset.env_remove("TOOLCRIB_AUTO_START");
    assert!(wait_for_warning(unset, "own servers").contains("`gateway.auto-start` is off"));
    home.0.write_config(&format!("{}env = {{ A = '${{env:AGENT_VALUE:-}}' }}\n", config()));
    let record = home.0.file("state/gateways");
    let _ = std::fs::remove_dir_all(&record);
    std::fs::write(&record, "").unwrap();
    let reason = wait_for_warning(home.stdio(), "cannot start a gateway");
    assert!(reason.contains("own servers") && reason.contains("state/gateways"), "{reason}");
    std::fs::remove_file(&record).unwrap();
    let mut first = home.stdio();
    first.env("AGENT_VALUE", "1");
    let _first = StdioClient::new(first, Era::Session);
    let mut second = home.stdio();
    second.env("AGENT_VALUE", "2");
    let warning = wait_for_warning(second, "other values of");
    assert!(warning.contains("`AGENT_VALUE`") && !warning.contains('2'), "{warning}");
}

#[test]
fn activated_own_socket_is_kept_for_the_next_gateway() {
    use std::os::fd::AsRawFd as _;
    // Processes that other tests start would inherit the listener.
    if !in_own_process!() {
        return;
    }
    let home = Home::new(PROGRAM, &config());
    let mut first = home.serve();
    let records = std::fs::read_dir(home.file("state/gateways")).unwrap();
    let mut records = records.map(|record| record.unwrap().path());
    let record = records.find(|path| path.extension().is_some_and(|kind| kind == "address")).unwrap();
    let socket = std::fs::read_to_string(record).unwrap();
    assert!(first.stop().success());
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let script = format!(r#"LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&{}"#, listener.as_raw_fd());
    let mut command = Command::new("bash");
    command.args(["-c", &script, "bash", PROGRAM, "serve", "--listen", "127.0.0.1:0"]);
    command.env("TOOLCRIB_HOME", home.path());
    let mut activated = home.serve_command(command);
    assert!(home.run(&["status"]).status.success(), "it serves the inherited socket");
    assert!(activated.stop().success());
    assert!(Path::new(&socket).exists(), "the service manager owns the socket");
}

#[test]
fn init_leaves_one_gateway_that_all_agents_share() {
    let home = AgentHome(Home::new(PROGRAM, ""));
    let person = home.0.file("person");
    let server = env!("CARGO_BIN_EXE_fake-server");
    let cursor = json!({"mcpServers": {"fake": {"command": server}}}).to_string();
    let codex = format!("[mcp_servers.fake]\ncommand = {server:?}\n");
    let files = [(person.join(".cursor/mcp.json"), cursor), (person.join(".codex/config.toml"), codex)];
    for (path, text) in &files {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let init = |args: &[&str]| -> Value {
        let mut command = home.0.command(&[&["init", "--json"], args].concat());
        command.env("TOOLCRIB_AUTO_START", "true").env("HOME", &person).env_remove("XDG_CONFIG_HOME");
        let output = deadline::output(&mut command);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let report = init(&["--yes", "--no-service"]);
    assert_eq!(report["proofs"].as_array().unwrap().len(), 2, "{report}");
    let gateway = home.gateway_pid();
    let mut clients = [Era::Session; 2].map(|era| StdioClient::new(home.stdio(), era));
    let shared = server_pid(&mut clients[0]);
    for client in &mut clients {
        assert_eq!(server_pid(client), shared, "the gateway that `init` started has one server");
    }
    drop(clients);
    assert_eq!(home.gateway_pid(), gateway);
    init(&["--undo"]);
    assert!(!is_alive(gateway), "no gateway keeps the config that was undone");
    assert!(files.iter().all(|(path, text)| std::fs::read_to_string(path).unwrap() == *text));
}
