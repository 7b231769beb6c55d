//! The gateway as a real process with its own home folder.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::Instant;
use toolcrib::util::locks::IgnorePoison as _;

use crate::deadline::{self, HANG_TIMEOUT};
use crate::{process, wait_until};

/// The end of the config of a gateway whose lists wait for servers on a slow machine.
const PATIENT_LISTS: &str = "\n[limits]\nlisting-wait = \"20s\"\n";

/// Returns the config table of one server that runs this program with these arguments.
pub fn server_config(program: &str, name: &str, args: &[&str]) -> String {
    format!("[servers.{name}]\ncommand = '{program}'\nargs = {args:?}\n")
}

/// A home folder with a config.
#[derive(Debug)]
pub struct Home {
    dir: TempDir,
    program: String,
}

impl Home {
    /// Creates a home folder with this config for `program`.
    pub fn new(program: &str, config: &str) -> Self {
        let home = Self { dir: TempDir::new().unwrap(), program: program.to_owned() };
        home.write_config(config);
        home
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Replaces the config.
    pub fn write_config(&self, config: &str) {
        let is_served = self.read_config().is_some_and(|config| config.ends_with(PATIENT_LISTS));
        std::fs::write(self.file("config.toml"), config).unwrap();
        if is_served {
            self.make_lists_patient();
        }
    }

    fn read_config(&self) -> Option<String> {
        std::fs::read_to_string(self.file("config.toml")).ok()
    }

    /// Makes lists wait for servers on a slow machine, unless the config sets limits.
    fn make_lists_patient(&self) {
        let config = self.read_config().unwrap_or_default();
        if !config.contains("[limits]") {
            std::fs::write(self.file("config.toml"), config + PATIENT_LISTS).unwrap();
        }
    }

    /// Returns a command that runs the program with these arguments and this home folder. `stdio` starts no gateway.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("TOOLCRIB_HOME", self.path()).env_remove("TOOLCRIB_LOG");
        command.env("TOOLCRIB_AUTO_START", "false");
        command
    }

    /// Runs the program until it exits.
    pub fn run(&self, args: &[&str]) -> std::process::Output {
        deadline::output(&mut self.command(args))
    }

    /// Starts the gateway and waits until it listens.
    pub fn serve(&self) -> GatewayProcess {
        self.serve_with(|_| {})
    }

    /// Starts the gateway with a modified command.
    pub fn serve_with(&self, change: impl FnOnce(&mut Command)) -> GatewayProcess {
        self.make_lists_patient();
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        change(&mut command);
        self.serve_command(command)
    }

    /// Starts the gateway with a command that becomes the gateway.
    pub fn serve_command(&self, mut command: Command) -> GatewayProcess {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr_lines = Arc::new(Mutex::new(Vec::new()));
        let stderr = child.stderr.take().unwrap();
        let lines = stderr_lines.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().ignore_poison().push(line);
            }
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut gateway = GatewayProcess { child, stderr_lines, next_line: AtomicUsize::new(0), address };
        wait_until("the gateway listens", || gateway.find_address());
        gateway
    }
}

/// A running gateway; dropping it stops it.
#[derive(Debug)]
pub struct GatewayProcess {
    child: Child,
    stderr_lines: Arc<Mutex<Vec<String>>>,
    /// Index of the first line on stderr that [`GatewayProcess::wait_for_line`] has not returned.
    next_line: AtomicUsize,
    /// Address of its HTTP listener.
    pub address: SocketAddr,
}

impl GatewayProcess {
    /// Looks for the listening address on stderr and stores it.
    fn find_address(&mut self) -> bool {
        if let Ok(Some(status)) = self.child.try_wait() {
            panic!("the gateway exited ({status}): {:?}", self.stderr_lines());
        }
        let lines = self.stderr_lines();
        let parse = |line: &str| {
            let url = line.strip_prefix("listening on ")?.strip_suffix("/mcp")?;
            url.strip_prefix("http://").or_else(|| url.strip_prefix("https://")).map(str::to_owned)
        };
        let found = lines.iter().find_map(|line| parse(line));
        found.map(|address| self.address = address.parse().unwrap()).is_some()
    }

    /// Returns the lines on its stderr so far.
    pub fn stderr_lines(&self) -> Vec<String> {
        self.stderr_lines.lock().ignore_poison().clone()
    }

    /// Waits for the next line on stderr that starts with `start` and returns the rest of it.
    ///
    /// # Panics
    /// If there is none within [`HANG_TIMEOUT`].
    #[track_caller]
    pub fn wait_for_line(&self, start: &str) -> String {
        let until = Instant::now() + HANG_TIMEOUT;
        let first = self.next_line.load(Ordering::Relaxed);
        loop {
            let lines = self.stderr_lines();
            let found = lines[first..].iter().position(|line| line.starts_with(start));
            if let Some(position) = found {
                self.next_line.store(first + position + 1, Ordering::Relaxed);
                return lines[first + position][start.len()..].to_owned();
            }
            assert!(Instant::now() < until, "no line `{start}…` in: {:#?}", &lines[first..]);
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its living child processes that belong to servers.
    pub fn children(&self) -> Vec<u32> {
        process::server_children(self.pid())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        process::send_signal(self.pid(), signal);
    }

    /// Sends SIGTERM and waits until it has exited.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits until it exits.
    pub fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the gateway exits", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Returns whether it has exited.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        self.signal(Signal::TERM);
        // The second signal ends the wait for calls.
        self.signal(Signal::TERM);
        if deadline::try_wait_for(&mut self.child, HANG_TIMEOUT).is_none() {
            let _ = self.child.kill();
            assert!(std::thread::panicking(), "the gateway did not stop: {:?}", self.stderr_lines());
        }
    }
}
