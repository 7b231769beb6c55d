//! Pipes, process groups and errors of Unix systems.

#[cfg(target_os = "linux")]
use std::ffi::CString;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::net::unix::pipe;
use tokio::process::Child;

use super::StopSignal;
use super::pre_exec::PreExec;
use super::raw::{self, ExecImage};
use super::spawn_request::SpawnRequest;
use crate::model::exit_report::ProcessExit;

/// An end of a pipe that a server gets as stdin, stdout or stderr.
pub(super) type ChildEnd = OwnedFd;

/// The end of a pipe that a server's stdin is written to.
pub(crate) type PipeWriter = pipe::Sender;

/// The end of a pipe that a server's output is read from.
pub(crate) type PipeReader = pipe::Receiver;

/// Variables that every server inherits on this platform, in addition to those of every platform.
pub(super) const INHERITED: &[&str] = &[];

/// The folders that are searched for programs if the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";

/// The size of an enlarged pipe. A result of 1 MB then costs 9 % less CPU; with 1 MiB it costs more again. All pipes of a user
/// without privileges together may hold 64 MiB.
#[cfg(target_os = "linux")]
const LARGE_PIPE: usize = 256 << 10;

pub(super) fn open_writer(end: io::PipeWriter) -> io::Result<PipeWriter> {
    pipe::Sender::from_owned_fd(end.into())
}

pub(super) fn open_reader(end: io::PipeReader) -> io::Result<PipeReader> {
    pipe::Receiver::from_owned_fd(end.into())
}

/// Writes a line and returns true, or returns false if it is too long for that, or the pipe is full or closed. A pipe takes a
/// write of up to `PIPE_BUF` bytes as a whole or not at all.
pub(crate) fn try_write_whole(pipe: &PipeWriter, line: &[u8]) -> bool {
    line.len() <= libc::PIPE_BUF && pipe.try_write(line).is_ok()
}

/// Lets a pipe hold a large message. Its memory is used only while the message is in it.
pub(crate) fn enlarge_pipe(pipe: &PipeReader) {
    // Refused if the pipes of this user hold too much already; the pipe then stays as it is.
    #[cfg(target_os = "linux")]
    let _ = rustix::pipe::fcntl_setpipe_size(pipe, LARGE_PIPE);
    #[cfg(not(target_os = "linux"))]
    let _ = pipe;
}

/// The process group of a server without a shim.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    leader: OnceLock<Pid>,
}

impl ProcessGroup {
    #[expect(clippy::unnecessary_wraps, reason = "a job object of Windows can fail")]
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { leader: OnceLock::new() })
    }

    /// Takes a child that leads a process group of its own.
    #[expect(clippy::unnecessary_wraps, reason = "a job object of Windows can fail")]
    pub(super) fn adopt(&self, child: &Child) -> io::Result<()> {
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
            let _ = self.leader.set(pid);
        }
        Ok(())
    }

    /// Signals every process of the group. An empty group is not an error.
    pub(super) fn signal(&self, signal: StopSignal) {
        let Some(leader) = self.leader.get() else { return };
        let signal = match signal {
            StopSignal::Terminate => Signal::TERM,
            StopSignal::Kill => Signal::KILL,
        };
        let _ = kill_process_group(*leader, signal);
    }
}

impl SpawnRequest {
    /// Returns the command, which starts in its own session.
    pub(super) fn to_std_command(&self) -> io::Result<Command> {
        let image = self.to_exec_image()?;
        let mut command = Command::new(&self.program);
        let pre_exec = PreExec::new();
        raw::exec_after(&mut command, image, move || pre_exec.run());
        Ok(command)
    }

    /// Starts the command in its own session, with these files as stdin, stdout and stderr, and returns its pid. This process must
    /// have one thread.
    #[cfg(target_os = "linux")]
    pub(super) fn spawn(&self, [stdin, stdout, stderr]: &[ChildEnd; 3]) -> io::Result<i32> {
        let image = self.to_exec_image()?;
        let cwd = self.cwd.as_ref().map(|cwd| CString::new(cwd.as_os_str().as_bytes())).transpose()?;
        let pre_exec = PreExec::new();
        raw::spawn_sharing_memory(&image, || {
            rustix::stdio::dup2_stdin(stdin)?;
            rustix::stdio::dup2_stdout(stdout)?;
            rustix::stdio::dup2_stderr(stderr)?;
            if let Some(cwd) = &cwd {
                rustix::process::chdir(cwd.as_c_str())?;
            }
            pre_exec.run()
        })
    }

    fn to_exec_image(&self) -> io::Result<ExecImage> {
        let args = [&self.program].into_iter().chain(&self.args).cloned().collect();
        let paths = self.candidate_paths().into_iter().map(PathBuf::into_os_string).collect();
        ExecImage::new(paths, args, self.env.clone())
    }

    /// Returns the paths where the program may be, according to the `PATH` of its own environment.
    pub(super) fn candidate_paths(&self) -> Vec<PathBuf> {
        if self.program.as_bytes().contains(&b'/') {
            return vec![PathBuf::from(&self.program)];
        }
        let path = self.env.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="));
        let path = OsStr::from_bytes(path.unwrap_or(DEFAULT_PATH));
        std::env::split_paths(path).map(|folder| folder.join(&self.program)).collect()
    }
}

pub(super) fn to_process_exit(status: ExitStatus) -> ProcessExit {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessExit::Status(code),
        (None, Some(signal)) => ProcessExit::Signal(signal),
        (None, None) => ProcessExit::Status(-1),
    }
}

/// Returns whether an error may pass: a lack of resources or a busy file.
pub(super) fn is_temporary(error: &io::Error) -> bool {
    let exhausted = [
        Errno::AGAIN,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOSPC,
        Errno::TOOMANYREFS,
    ];
    let busy = [Errno::TXTBSY, Errno::BUSY, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|errno| exhausted.contains(&errno) || busy.contains(&errno))
}

/// Returns whether a file is neither a program for this machine nor a script.
pub(super) fn is_not_a_program(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error())
}

pub(super) fn is_access_denied(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ACCESS.raw_os_error())
}

pub(super) fn can_enter(folder: &Path) -> bool {
    access(folder, Access::EXEC_OK).is_ok()
}
