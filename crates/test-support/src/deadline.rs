//! Limits on waits that would otherwise not end: for a process, for its output, and for a whole test.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::panic::Location;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::time::Duration;

use tokio::time::Instant;

use crate::process;

/// Limit on anything that ends by itself unless it hangs.
pub const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a command with empty input until it exits.
///
/// # Panics
/// If it has not exited after [`HANG_TIMEOUT`].
#[track_caller]
pub fn output(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    output_of(child, &format!("{command:?}"))
}

/// Runs a command with this input until it exits.
///
/// # Panics
/// If it has not exited after [`HANG_TIMEOUT`].
#[track_caller]
pub fn output_with_input(command: &mut Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command may exit without reading its input.
    std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    output_of(child, &format!("{command:?}"))
}

/// Waits until a child exits and returns its output.
///
/// # Panics
/// If it has not exited after [`HANG_TIMEOUT`].
#[track_caller]
pub fn output_of(child: Child, description: &str) -> Output {
    let pid = child.id();
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    if let Ok(output) = receiver.recv_timeout(HANG_TIMEOUT) {
        return output.unwrap();
    }
    process::kill(pid);
    let partial = receiver.recv_timeout(Duration::from_secs(1));
    panic!("killed after {HANG_TIMEOUT:?}: {description}\n{partial:?}");
}

/// Waits until a child exits.
///
/// # Panics
/// If it has not exited after [`HANG_TIMEOUT`].
#[track_caller]
pub fn wait(child: &mut Child) -> ExitStatus {
    if let Some(status) = try_wait_for(child, HANG_TIMEOUT) {
        return status;
    }
    let _ = child.kill();
    panic!("process {} was killed after {HANG_TIMEOUT:?}", child.id());
}

/// Waits until a child exits, at most for `limit`; `None` if it is still running then.
pub fn try_wait_for(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + limit;
    loop {
        let status = child.try_wait().unwrap();
        if status.is_some() || Instant::now() >= until {
            return status;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Lines that a process writes, read one at a time.
#[derive(Debug)]
pub struct Lines(Receiver<String>);

impl Lines {
    /// Starts reading. At most one line is read ahead.
    pub fn new(source: impl Read + Send + 'static) -> Self {
        let (sender, lines) = sync_channel(0);
        std::thread::spawn(move || {
            BufReader::new(source).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Self(lines)
    }

    /// Returns the next line; `None` at the end.
    ///
    /// # Panics
    /// If there is no line and no end within [`HANG_TIMEOUT`].
    #[track_caller]
    pub fn next_line(&self) -> Option<String> {
        match self.0.recv_timeout(HANG_TIMEOUT) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no line within {HANG_TIMEOUT:?}"),
        }
    }
}

/// Aborts the test program with a message unless it is dropped within its limit.
///
/// For tests that block where nothing else limits the wait. A test cannot be stopped from outside, so all tests of the
/// program end with it.
#[derive(Debug)]
pub struct Watchdog {
    _dropped_with_the_test: Sender<()>,
}

impl Watchdog {
    /// Starts the watch over the calling test.
    #[track_caller]
    pub fn new(limit: Duration) -> Self {
        let test = current_test();
        let (sender, receiver) = channel::<()>();
        std::thread::spawn(move || {
            if receiver.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                report(&format!("{test} has not ended after {limit:?}: aborting"));
                std::process::abort();
            }
        });
        Self { _dropped_with_the_test: sender }
    }
}

/// Reports that the calling test checks nothing on this machine, and why.
#[track_caller]
pub fn skip(reason: &str) {
    report(&format!("skipped: {}: {reason}", current_test()));
}

/// Returns the name of the calling test and its place in the sources.
#[track_caller]
fn current_test() -> String {
    let place = Location::caller();
    let thread = std::thread::current();
    format!("{} ({}:{})", thread.name().unwrap_or("test"), place.file(), place.line())
}

/// Writes to stderr directly: the output of the print macros is captured for tests that pass or are aborted.
fn report(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs an ignored test of this module in a process of its own, with its output captured as usual.
    fn run_ignored(test: &str) -> Output {
        let test = process::test_name(module_path!(), test);
        let mut command = Command::new(std::env::current_exe().unwrap());
        output(command.args(["--ignored", "--exact", &test]))
    }

    #[test]
    #[ignore = "run by `watchdog_aborts_a_test_that_hangs`"]
    fn hangs() {
        let _watchdog = Watchdog::new(Duration::from_millis(10));
        // Bounded, so that a watchdog that does nothing fails the other test and not this program.
        std::thread::park_timeout(HANG_TIMEOUT / 2);
    }

    #[test]
    fn watchdog_aborts_a_test_that_hangs() {
        let output = run_ignored("hangs");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains("has not ended after 10ms"), "{stderr}");
    }

    #[test]
    #[ignore = "run by `skip_is_reported_although_output_is_captured`"]
    fn skips() {
        skip("nothing to check");
    }

    #[test]
    fn skip_is_reported_although_output_is_captured() {
        let output = run_ignored("skips");
        process::assert_one_passed(&output);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("skipped: ") && stderr.contains("nothing to check"), "{stderr}");
    }
}
