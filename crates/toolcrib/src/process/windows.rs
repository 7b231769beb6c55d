//! Pipes, commands and errors of Windows. A server and its descendants are in one job object.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::windows::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::windows::io::OwnedHandle;
use std::os::windows::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use tokio::process::Child;
use windows_sys::Win32::Foundation::{
    ERROR_ACCESS_DENIED, ERROR_BAD_EXE_FORMAT, ERROR_NO_SYSTEM_RESOURCES, ERROR_NOT_ENOUGH_MEMORY,
    ERROR_SHARING_VIOLATION, WIN32_ERROR,
};
use windows_sys::Win32::System::Threading::{CREATE_NO_WINDOW, CREATE_SUSPENDED};

use super::StopSignal;
use super::job::Job;
use super::spawn_request::SpawnRequest;
use crate::model::exit_report::ProcessExit;

/// An end of a pipe that a server gets as stdin, stdout or stderr.
pub(super) type ChildEnd = OwnedHandle;

/// The end of a pipe that a server's stdin is written to. Anonymous pipes block, so other threads write and read them.
pub(crate) type PipeWriter = tokio::fs::File;

/// The end of a pipe that a server's output is read from.
pub(crate) type PipeReader = tokio::fs::File;

/// Variables that every server inherits on Windows. Their names are compared without regard to case.
pub(super) const INHERITED: &[&str] = &[
    "PATH",
    "PATHEXT",
    "APPDATA",
    "COMSPEC",
    "HOMEDRIVE",
    "HOMEPATH",
    "LOCALAPPDATA",
    "NUMBER_OF_PROCESSORS",
    "OS",
    "PROCESSOR_ARCHITECTURE",
    "PROGRAMDATA",
    "PROGRAMFILES",
    "PROGRAMFILES(X86)",
    "SYSTEMDRIVE",
    "SYSTEMROOT",
    "TEMP",
    "TMP",
    "USERNAME",
    "USERPROFILE",
    "WINDIR",
];

/// The endings of programs if the environment has no `PATHEXT`.
const PROGRAM_ENDINGS: &str = ".COM;.EXE;.BAT;.CMD";

/// Returns false: a pipe of Windows cannot be written to without waiting.
pub(crate) fn try_write_whole(_: &PipeWriter, _: &[u8]) -> bool {
    false
}

/// Does nothing: the size of a pipe of Windows is fixed.
pub(crate) fn enlarge_pipe(_: &PipeReader) {}

pub(super) fn open_writer(end: io::PipeWriter) -> io::Result<PipeWriter> {
    Ok(File::from(OwnedHandle::from(end)).into())
}

pub(super) fn open_reader(end: io::PipeReader) -> io::Result<PipeReader> {
    Ok(File::from(OwnedHandle::from(end)).into())
}

/// The job of a server.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    job: Job,
}

impl ProcessGroup {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { job: Job::new()? })
    }

    /// Adds a child that was started suspended, so that all its descendants are in the job too, and lets it run.
    pub(super) fn adopt(&self, child: &Child) -> io::Result<()> {
        self.job.adopt(child)
    }

    /// Terminates every process. Windows has no signal that asks a process without a window to end.
    pub(super) fn signal(&self, _signal: StopSignal) {
        self.job.terminate();
    }
}

impl SpawnRequest {
    /// Returns the command, which starts suspended.
    pub(super) fn to_std_command(&self) -> io::Result<Command> {
        let program = self.candidate_paths().into_iter().find(|path| path.is_file());
        let mut command = Command::new(program.ok_or(io::ErrorKind::NotFound)?);
        command.args(&self.args).env_clear().envs(self.env.iter().map(|entry| split_entry(entry)));
        command.creation_flags(CREATE_SUSPENDED | CREATE_NO_WINDOW);
        Ok(command)
    }

    /// Returns the paths where the program may be, with the endings of programs: `npx` is `npx.cmd`.
    pub(super) fn candidate_paths(&self) -> Vec<PathBuf> {
        let variable = |wanted: &str| {
            // The last one counts if names differ only in case.
            let mut entries = self.env.iter().rev().map(|entry| split_entry(entry));
            entries.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
        };
        let endings = variable("PATHEXT").unwrap_or_else(|| PROGRAM_ENDINGS.into());
        let program = Path::new(&self.program);
        let mut names: Vec<OsString> =
            program.extension().map(|_| self.program.clone()).into_iter().collect();
        for ending in std::env::split_paths(&endings) {
            let mut name = self.program.clone();
            name.push(ending);
            names.push(name);
        }
        let folders: Vec<PathBuf> = match program.components().count() {
            1 => std::env::split_paths(&variable("PATH").unwrap_or_default()).collect(),
            // A path is relative to the working directory of the command.
            _ => vec![self.cwd.clone().unwrap_or_default()],
        };
        folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()
    }
}

/// Returns the name and the value of an entry `NAME=value`.
fn split_entry(entry: &OsStr) -> (OsString, OsString) {
    let units: Vec<u16> = entry.encode_wide().collect();
    let name_length = units.iter().position(|unit| *unit == u16::from(b'=')).unwrap_or(units.len());
    let value = units.get(name_length + 1..).unwrap_or_default();
    (OsString::from_wide(&units[..name_length]), OsString::from_wide(value))
}

pub(super) fn to_process_exit(status: ExitStatus) -> ProcessExit {
    ProcessExit::Status(status.code().unwrap_or(-1))
}

/// Returns whether an error may pass: a lack of resources or a file in use.
pub(super) fn is_temporary(error: &io::Error) -> bool {
    [ERROR_NOT_ENOUGH_MEMORY, ERROR_NO_SYSTEM_RESOURCES, ERROR_SHARING_VIOLATION]
        .into_iter()
        .any(|code| has_code(error, code))
}

/// Returns whether a file is not a program for this machine.
pub(super) fn is_not_a_program(error: &io::Error) -> bool {
    has_code(error, ERROR_BAD_EXE_FORMAT)
}

pub(super) fn is_access_denied(error: &io::Error) -> bool {
    has_code(error, ERROR_ACCESS_DENIED)
}

pub(super) fn can_enter(_folder: &Path) -> bool {
    true
}

fn has_code(error: &io::Error, code: WIN32_ERROR) -> bool {
    error.raw_os_error() == Some(code.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secrets::ResolvedSecrets;
    use crate::spec::CommandSpec;

    #[test]
    fn program_is_searched_with_the_endings_of_programs() {
        let spec = CommandSpec::new("npx").env("Path", r"C:\node;D:\bin").env("PathExt", ".EXE;.CMD");
        let request = SpawnRequest::new(&spec, &ResolvedSecrets::default(), "t").unwrap();
        let wanted = [r"C:\node\npx.EXE", r"C:\node\npx.CMD", r"D:\bin\npx.EXE", r"D:\bin\npx.CMD"];
        assert_eq!(request.candidate_paths(), wanted.map(PathBuf::from));
    }

    #[test]
    fn entry_is_split_at_the_first_equals_sign() {
        assert_eq!(split_entry(OsStr::new("A=b=c")), ("A".into(), "b=c".into()));
        assert_eq!(split_entry(OsStr::new("A=")), ("A".into(), OsString::new()));
    }
}
