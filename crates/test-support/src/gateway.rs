//! The gateway as a real process with a home of its own.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::time::Instant;

use crate::deadline::{self, HANG_TIMEOUT};
use crate::{process, wait_until};

/// The table of one server in a config: this program with these arguments.
pub fn server(program: &str, name: &str, args: &[&str]) -> String {
    format!("[servers.{name}]\ncommand = '{program}'\nargs = {args:?}\n")
}

/// A home and a config in it.
#[derive(Debug)]
pub struct Home {
    dir: TempDir,
    program: String,
}

impl Home {
    /// A new home for the program at `program`, with this config.
    pub fn new(program: &str, config: &str) -> Self {
        let home = Self { dir: TempDir::new().unwrap(), program: program.to_owned() };
        home.write_config(config);
        home
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Replaces the config.
    pub fn write_config(&self, config: &str) {
        std::fs::write(self.file("config.toml"), config).unwrap();
    }

    /// The program with these arguments, at home here.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("TOOLCRIB_HOME", self.path()).env_remove("TOOLCRIB_LOG");
        command
    }

    /// Runs the program to its end.
    pub fn run(&self, args: &[&str]) -> std::process::Output {
        deadline::output(&mut self.command(args))
    }

    /// Starts the gateway and waits until it listens.
    pub fn serve(&self) -> Gateway {
        self.serve_as(|_| {})
    }

    /// As [`Home::serve`], with the command changed first.
    pub fn serve_as(&self, change: impl FnOnce(&mut Command)) -> Gateway {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        change(&mut command);
        self.serve_by(command)
    }

    /// As [`Home::serve`], with a command that ends in being the gateway.
    pub fn serve_by(&self, mut command: Command) -> Gateway {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let (stderr, hears) = (child.stderr.take().unwrap(), said.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                hears.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut gateway = Gateway { child, said, next_line: AtomicUsize::new(0), address };
        wait_until("the gateway listens", || gateway.listens());
        gateway
    }
}

/// A gateway that runs; dropping it stops it.
#[derive(Debug)]
pub struct Gateway {
    child: Child,
    said: Arc<Mutex<Vec<String>>>,
    /// Index of the first line on stderr that [`Gateway::line`] has not passed.
    next_line: AtomicUsize,
    /// Where it listens.
    pub address: SocketAddr,
}

impl Gateway {
    fn listens(&mut self) -> bool {
        if let Ok(Some(status)) = self.child.try_wait() {
            panic!("the gateway ended ({status}): {:?}", self.said());
        }
        let said = self.said();
        let found =
            said.iter().find_map(|line| line.strip_prefix("listening on http://")?.strip_suffix("/mcp"));
        found.map(|address| self.address = address.parse().unwrap()).is_some()
    }

    /// The lines on its stderr so far.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the next line on stderr that starts like this, and returns the rest of it.
    ///
    /// # Panics
    /// If there is none within [`HANG_TIMEOUT`].
    #[track_caller]
    pub fn line(&self, start: &str) -> String {
        let until = Instant::now() + HANG_TIMEOUT;
        let first = self.next_line.load(Ordering::Relaxed);
        loop {
            let lines = self.said();
            let found = lines[first..].iter().position(|line| line.starts_with(start));
            if let Some(position) = found {
                self.next_line.store(first + position + 1, Ordering::Relaxed);
                return lines[first + position][start.len()..].to_owned();
            }
            assert!(Instant::now() < until, "no line `{start}…`, but: {:#?}", &lines[first..]);
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its living children.
    pub fn children(&self) -> Vec<u32> {
        process::children(self.pid())
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        process::send(self.pid(), signal);
    }

    /// Asks it to stop and waits until it has.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut ended = None;
        wait_until("the gateway ends", || {
            ended = self.child.try_wait().unwrap();
            ended.is_some()
        });
        ended.unwrap()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Ok(Some(_)) = self.child.try_wait() {
            return;
        }
        self.signal(Signal::TERM);
        // A second request does not wait for calls.
        self.signal(Signal::TERM);
        if deadline::try_wait_for(&mut self.child, HANG_TIMEOUT).is_none() {
            let _ = self.child.kill();
            assert!(std::thread::panicking(), "the gateway did not stop: {:?}", self.said());
        }
    }
}
