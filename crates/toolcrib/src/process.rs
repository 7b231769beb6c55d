//! Starts a server's command, tracks its whole process tree, keeps the tail of its stderr and stops it.

#[cfg(target_os = "linux")]
mod control;
pub(crate) mod environment;
#[cfg(target_os = "linux")]
mod fork_server;
#[cfg(windows)]
mod job;
#[cfg(target_os = "linux")]
mod journal;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod orphans;
#[cfg(unix)]
mod pre_exec;
#[cfg(target_os = "linux")]
mod proc;
#[cfg(unix)]
mod raw;
#[cfg(target_os = "linux")]
mod shim;
mod spawn_request;
mod spawner;
pub(crate) mod stderr;
mod tree_tracker;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;
#[cfg(not(target_os = "linux"))]
mod without_shim;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[cfg(target_os = "linux")]
use self::linux as os;
pub use self::os::run_shim;
pub(crate) use self::os::{MEASURES_MEMORY, is_unprepared_shim, own_program};
pub(crate) use self::spawner::Spawner;
#[cfg(unix)]
use self::unix as platform;
#[cfg(windows)]
use self::windows as platform;
#[cfg(not(target_os = "linux"))]
use self::without_shim as os;

use self::platform::{ChildEnd, ProcessGroup};
pub(crate) use self::platform::{PipeReader, PipeWriter, enlarge_pipe, try_write_whole};
use self::spawn_request::SpawnRequest;
use self::tree_tracker::{StartedTree, TreeTracker};
use crate::model::exit_report::{ExitReport, ProcessExit};
use crate::model::failure_class::FailureClass;
use crate::process::stderr::{LINGER, StderrTail};
use crate::secrets::{Redactor, ResolvedSecrets};
use crate::spec::CommandSpec;
#[cfg(unix)]
use crate::spec::secret::Secret;
use crate::util::tasks::SpawnBoxed as _;

/// Removes a variable from the environment of this process, so that no other process can read it, and returns its value.
/// Returns `None` if it is not set or not text, or if other threads run, which may read the environment: call it first.
#[cfg(unix)]
#[doc(hidden)]
pub fn take_variable(name: &str) -> Option<Secret> {
    let name = std::ffi::CString::new(name).ok()?;
    raw::take_variable(&name).and_then(|value| String::from_utf8(value).ok()).map(Secret::new)
}

/// Makes all threads of this program allocate from two arenas. Threads that write files would otherwise each keep 0.2 MB. With a single
/// arena, threads that parse listings and the main thread wait for each other: ten servers start 3 % later.
#[cfg(unix)]
#[doc(hidden)]
pub fn use_two_arenas() {
    raw::use_two_arenas();
}

/// Returns memory that the allocator keeps for later to the system, and the pages of code that was needed to start. May take some
/// milliseconds; code that is still needed is mapped again when it runs.
#[cfg(unix)]
#[doc(hidden)]
pub fn return_free_memory() {
    raw::return_free_memory();
}

/// Time a server has to exit after its stdin was closed, and again after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Time a server that no longer responds has to exit after SIGTERM.
const HUNG_STOP_TIMEOUT: Duration = Duration::from_millis(250);

/// Stderr lines in an exit report.
const REPORT_LINES: usize = 20;

/// A running server process and its descendants. Dropping it kills the whole tree.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    tree: StartedTree,
    program: String,
    handle: ProcessHandle,
    exit: watch::Receiver<Option<ProcessExit>>,
    /// Cancelled when no process of the tree is left.
    tree_ended: CancellationToken,
    stderr: Arc<StderrTail>,
    /// Number of the last stderr line written before this process started.
    stderr_start: u64,
    /// Cancelled when stderr has been read to its end.
    stderr_drained: CancellationToken,
}

/// The means of signalling a process tree.
#[derive(Debug)]
enum ProcessHandle {
    Group(Arc<ProcessGroup>),
    #[cfg(target_os = "linux")]
    Shim(os::ShimControl),
}

/// A request to a process tree to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopSignal {
    /// SIGTERM. Windows has no such signal and kills the tree.
    Terminate,
    Kill,
}

/// A failed attempt to start a command.
#[derive(Debug)]
pub(crate) struct SpawnError {
    pub(crate) message: String,
    pub(crate) class: FailureClass,
    /// The name of the program, if it is on no folder of the `PATH`.
    pub(crate) missing_program: Option<String>,
}

impl SpawnError {
    fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self { message: message.into(), class, missing_program: None }
    }

    fn invalid_command(message: String) -> Self {
        Self::new(FailureClass::Misconfigured, message)
    }

    /// The shim exited before it started the command, which says nothing about the command.
    fn shim_exited() -> Self {
        Self::new(FailureClass::Crashed, "its shim process exited before starting it")
    }

    /// The shim was killed while it started the command, perhaps by the command.
    #[cfg(target_os = "linux")]
    fn shim_killed() -> Self {
        Self::new(FailureClass::ShimKilled, "its shim process was killed while starting it")
    }

    /// Classifies a system error: a lack of resources or a busy file may pass, anything else is a misconfiguration.
    fn from_io(message: String, error: &io::Error) -> Self {
        let class = match platform::is_temporary(error) {
            true => FailureClass::Refused,
            false => FailureClass::Misconfigured,
        };
        Self::new(class, message)
    }

    /// Explains a system error by the command that could not be run.
    fn from_request(request: &SpawnRequest, error: &io::Error) -> Self {
        let missing_program = request.is_missing_on_path(error).then(|| request.program_name());
        Self { missing_program, ..Self::from_io(request.describe_error(error), error) }
    }
}

/// The services and shared state that a new process uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpawnContext<'a> {
    pub(crate) spawner: &'a Arc<Spawner>,
    pub(crate) stderr: &'a Arc<StderrTail>,
    /// Owns all background tasks.
    pub(crate) tasks: &'a TaskTracker,
    /// Tracks process trees that have not ended yet.
    pub(crate) live_processes: &'a TaskTracker,
    /// Values for the secrets in the command.
    pub(crate) secrets: &'a ResolvedSecrets,
    /// Removes those values from stderr.
    pub(crate) redactor: &'a Arc<Redactor>,
}

impl ServerProcess {
    /// Starts the command in its own session with a constructed environment. The process counts as live in `context`
    /// until its whole tree has ended, even if this future is dropped.
    pub(crate) async fn spawn(
        spec: &CommandSpec,
        context: SpawnContext<'_>,
    ) -> Result<(Self, PipeWriter, PipeReader), SpawnError> {
        let tree_id = new_tree_id()?;
        let request =
            SpawnRequest::new(spec, context.secrets, &tree_id).map_err(SpawnError::invalid_command)?;
        let program = request.program_name();
        let pipes = StdioPipes::new()
            .map_err(|error| SpawnError::from_io(format!("cannot run `{program}`: {error}"), &error))?;
        let (exit_tx, exit) = watch::channel(None);
        let tree_ended = CancellationToken::new();
        let (started_tx, started) = oneshot::channel();
        let tracker = TreeTracker {
            journal_entry: context.spawner.open_journal_entry(&tree_id),
            tree_id,
            started_tx: Some(started_tx),
            exit_tx,
            tasks: context.tasks.clone(),
            seen: Vec::new(),
            has_survivors: false,
            _tree_ended: tree_ended.clone().drop_guard(),
        };
        let handle = start_process(request, pipes.child_ends, tracker, context).await?;
        let tree = started.await.unwrap_or_else(|_| Err(SpawnError::shim_exited()))?;
        let process = Self {
            tree,
            program,
            handle,
            exit,
            tree_ended,
            stderr: context.stderr.clone(),
            stderr_start: context.stderr.last_number(),
            stderr_drained: CancellationToken::new(),
        };
        process.drain_stderr(pipes.stderr, context);
        Ok((process, pipes.stdin, pipes.stdout))
    }

    fn drain_stderr(&self, pipe: PipeReader, context: SpawnContext<'_>) {
        let tail = self.stderr.clone();
        let exited = self.exited();
        let drained = self.stderr_drained.clone();
        let redactor = context.redactor.clone();
        context.tasks.spawn_boxed(async move {
            tail.drain(pipe, exited, &redactor).await;
            drained.cancel();
        });
    }

    pub(crate) fn pid(&self) -> u32 {
        self.tree.server
    }

    /// Returns the bytes of memory that the process tree uses, if the system reports it. Takes about 0.1 ms per
    /// process, more for large ones.
    pub(crate) fn memory_usage(&self) -> Option<u64> {
        match self.tree.shim {
            None => os::tree_memory(self.tree.server, true),
            Some(shim) => os::tree_memory(shim, false),
        }
    }

    /// Returns the CPU time that the process tree has used, if the system reports it.
    pub(crate) fn cpu_time(&self) -> Option<Duration> {
        match self.tree.shim {
            None => os::tree_cpu_time(self.tree.server, true),
            Some(shim) => os::tree_cpu_time(shim, false),
        }
    }

    /// Waits until the server's main process has exited.
    pub(crate) fn exited(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut exit = self.exit.clone();
        async move {
            // An error means that the tracker was dropped, which happens only when the runtime shuts down.
            let _ = exit.wait_for(Option::is_some).await;
        }
    }

    /// Waits for the exit and another [`LINGER`], so that buffered output can still be read.
    pub(crate) fn exited_plus_linger(&self) -> impl Future<Output = ()> + Send + 'static {
        let exited = self.exited();
        async move {
            exited.await;
            tokio::time::sleep(LINGER).await;
        }
    }

    /// Returns the exit status and the stderr tail, after waiting up to [`LINGER`] for each.
    pub(crate) fn exit_report(&self) -> impl Future<Output = ExitReport> + Send + 'static {
        let mut exit = self.exit.clone();
        let stderr = self.stderr.clone();
        let stderr_start = self.stderr_start;
        let stderr_drained = self.stderr_drained.clone();
        let program = self.program.clone();
        async move {
            let ended = timeout(LINGER, exit.wait_for(Option::is_some)).await;
            let exit = ended.ok().and_then(Result::ok).and_then(|exit| *exit);
            // The last lines may still be in the pipe, and a descendant may keep the pipe open.
            let _ = timeout(LINGER, stderr_drained.cancelled()).await;
            let mut lines: Vec<String> =
                stderr.lines_after(stderr_start).into_iter().map(|line| line.text).collect();
            let tail = lines.split_off(lines.len().saturating_sub(REPORT_LINES));
            ExitReport { exit, stderr: tail, program }
        }
    }

    /// Stops the process tree, whose stdin is already closed: waits, sends SIGTERM, waits, sends SIGKILL. A hung server
    /// gets less time.
    pub(crate) async fn stop(&self, hung: bool) {
        let waits = if hung { [Duration::ZERO, HUNG_STOP_TIMEOUT] } else { [STOP_TIMEOUT, STOP_TIMEOUT] };
        for (wait, signal) in waits.into_iter().zip([StopSignal::Terminate, StopSignal::Kill]) {
            if timeout(wait, self.tree_ended.cancelled()).await.is_ok() {
                return;
            }
            self.signal(signal);
        }
        self.tree_ended.cancelled().await;
    }

    fn signal(&self, signal: StopSignal) {
        match &self.handle {
            // The group was killed when its leader exited, and the pid may have been reused since.
            ProcessHandle::Group(_) if self.exit.borrow().is_some() => {}
            ProcessHandle::Group(group) => group.signal(signal),
            #[cfg(target_os = "linux")]
            ProcessHandle::Shim(control) => control.signal(signal),
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.signal(StopSignal::Kill);
    }
}

/// Returns a random identifier for a process tree.
fn new_tree_id() -> Result<String, SpawnError> {
    let no_numbers = |error| SpawnError::new(FailureClass::Refused, format!("no random numbers: {error}"));
    let number = getrandom::u64().map_err(no_numbers)?;
    Ok(format!("{number:016x}"))
}

/// Starts the process, behind a shim if one is configured, and hands it to `tracker`.
async fn start_process(
    request: SpawnRequest,
    files: [ChildEnd; 3],
    tracker: TreeTracker,
    context: SpawnContext<'_>,
) -> Result<ProcessHandle, SpawnError> {
    #[cfg(target_os = "linux")]
    if let Some(shim) = context.spawner.shim() {
        return start_with_shim(shim, request, files, tracker, context).await;
    }
    let group = match ProcessGroup::new() {
        Ok(group) => Arc::new(group),
        Err(error) => {
            tracker.finish();
            return Err(SpawnError::from_request(&request, &error));
        }
    };
    let handle = ProcessHandle::Group(group.clone());
    let spawner = context.spawner.clone();
    context.tasks.spawn_boxed(context.live_processes.track_future(async move {
        let mut tracker = tracker;
        let started = match request.to_command(files) {
            Ok(command) => spawner.spawn(command).await,
            Err(error) => Err(error),
        };
        // A child that cannot be adopted is killed, because it is dropped.
        match started.and_then(|child| group.adopt(&child).map(|()| child)) {
            Ok(child) => tracker.watch_child(child, &group).await,
            Err(error) => {
                tracker.report_failure(SpawnError::from_request(&request, &error));
                // Unless the fork itself failed, the child may be running without a handle to wait on.
                if error.kind() != io::ErrorKind::WouldBlock {
                    tracker.kill_orphans().await;
                }
                tracker.finish();
            }
        }
    }));
    Ok(handle)
}

#[cfg(target_os = "linux")]
async fn start_with_shim(
    program: &std::path::Path,
    request: SpawnRequest,
    files: [ChildEnd; 3],
    tracker: TreeTracker,
    context: SpawnContext<'_>,
) -> Result<ProcessHandle, SpawnError> {
    let bytes = request.to_bytes();
    let os::RequestedShim { process: shim, mut control, sent } =
        match os::ShimProcess::start(program, &bytes, &files, context) {
            Ok(started) => started,
            Err(error) => {
                tracker.finish();
                let name = request.program_name();
                let program = program.display();
                let message =
                    format!("cannot run `{name}`: cannot start its shim process `{program}`: {error}");
                return Err(SpawnError::from_io(message, &error));
            }
        };
    context.tasks.spawn_boxed(context.live_processes.track_future(shim.watch(request, tracker)));
    drop(files);
    // A shim that does not read its request exits, and its tracker reports that.
    let _ = control.send(&bytes[sent..]).await;
    Ok(ProcessHandle::Shim(control))
}

/// The stdio pipes of a server.
struct StdioPipes {
    /// The server's ends: stdin, stdout, stderr.
    child_ends: [ChildEnd; 3],
    stdin: PipeWriter,
    stdout: PipeReader,
    stderr: PipeReader,
}

impl StdioPipes {
    fn new() -> io::Result<Self> {
        let (stdin_read, stdin_write) = io::pipe()?;
        let (stdout_read, stdout_write) = io::pipe()?;
        let (stderr_read, stderr_write) = io::pipe()?;
        Ok(Self {
            child_ends: [stdin_read.into(), stdout_write.into(), stderr_write.into()],
            stdin: platform::open_writer(stdin_write)?,
            stdout: platform::open_reader(stdout_read)?,
            stderr: platform::open_reader(stderr_read)?,
        })
    }
}
