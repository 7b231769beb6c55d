//! A command with secrets and environment filled in, ready to run here or to be sent to a shim.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::environment::inherited_env;
use super::platform::{self, ChildEnd};
use crate::secrets::ResolvedSecrets;
use crate::spec::CommandSpec;
use crate::spec::template::TemplateText;

/// The environment variable that identifies the processes of a server's tree.
pub(super) const TREE_VARIABLE: &str = "TOOLCRIB_TREE";

/// A command, its environment and its working directory.
#[cfg_attr(test, derive(Debug, PartialEq, Eq))]
pub(super) struct SpawnRequest {
    pub(super) program: OsString,
    pub(super) args: Vec<OsString>,
    /// Each entry is `NAME=value`.
    pub(super) env: Vec<OsString>,
    pub(super) cwd: Option<PathBuf>,
}

impl SpawnRequest {
    /// Resolves the command of a spec for the process tree `tree`. The environment is constructed, not inherited.
    pub(super) fn new(spec: &CommandSpec, secrets: &ResolvedSecrets, tree: &str) -> Result<Self, String> {
        let expand = |text: &TemplateText| {
            text.expand(|name| secrets.get(name)).map_err(|missing| missing.to_string())
        };
        let program = OsString::from(expand(&spec.program)?);
        let args = spec.args.iter().map(|arg| Ok(expand(arg)?.into())).collect::<Result<_, String>>()?;
        let mut env: Vec<(OsString, OsString)> = inherited_env(&spec.inherit_env).collect();
        let mut set_variable = |name: OsString, value: OsString| {
            env.retain(|(existing, _)| *existing != name);
            env.push((name, value));
        };
        for (name, value) in &spec.env {
            set_variable(name.into(), expand(value)?.into());
        }
        set_variable(TREE_VARIABLE.into(), tree.into());
        let env = env.into_iter().map(|(mut entry, value)| {
            entry.push("=");
            entry.push(value);
            entry
        });
        let request = Self { program, args, env: env.collect(), cwd: spec.cwd.clone() };
        let has_null_byte = request.strings().any(|string| string.as_encoded_bytes().contains(&0));
        match has_null_byte {
            true => Err(format!("`{}` has a null byte in an argument or a variable", request.program_name())),
            false => Ok(request),
        }
    }

    pub(super) fn program_name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Returns the working directory (empty if none), the program, the arguments and the environment.
    fn strings(&self) -> impl Iterator<Item = &OsStr> {
        let cwd = self.cwd.as_deref().map_or(OsStr::new(""), Path::as_os_str);
        let args = self.args.iter().map(OsString::as_os_str);
        let env = self.env.iter().map(OsString::as_os_str);
        [cwd, &self.program].into_iter().chain(args).chain(env)
    }

    /// Encodes the number of arguments and all strings, separated by null bytes.
    #[cfg(target_os = "linux")]
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.args.len().to_string().into_bytes();
        for string in self.strings() {
            bytes.push(0);
            bytes.extend_from_slice(string.as_encoded_bytes());
        }
        bytes
    }

    #[cfg(target_os = "linux")]
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        use std::os::unix::ffi::OsStringExt as _;
        let mut strings = bytes.split(|byte| *byte == 0).map(|string| OsString::from_vec(string.to_vec()));
        let arg_count: usize = strings.next()?.to_str()?.parse().ok()?;
        let cwd = strings.next()?;
        let program = strings.next()?;
        let args: Vec<OsString> = strings.by_ref().take(arg_count).collect();
        let is_complete = args.len() == arg_count;
        let cwd = (!cwd.is_empty()).then(|| PathBuf::from(cwd));
        is_complete.then(|| Self { program, args, env: strings.collect(), cwd })
    }

    /// Returns the command with these files as stdin, stdout and stderr.
    pub(super) fn to_command(&self, [stdin, stdout, stderr]: [ChildEnd; 3]) -> io::Result<Command> {
        let mut command = self.to_std_command()?;
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
        Ok(command)
    }

    /// Returns a message that explains why the command could not be run.
    pub(super) fn describe_error(&self, error: &io::Error) -> String {
        let program = self.program_name();
        let is_denied = platform::is_access_denied(error);
        if let Some(problem) = self.cwd.as_deref().and_then(|cwd| cwd_problem(cwd, is_denied)) {
            return problem;
        }
        if error.kind() == io::ErrorKind::NotFound {
            return self.describe_not_found();
        }
        if is_denied {
            return format!("`{program}` is not executable");
        }
        if platform::is_not_a_program(error) {
            return format!(
                "`{program}` is neither a program for this machine nor a script with a `#!` line"
            );
        }
        format!("cannot run `{program}`: {error}")
    }

    /// Returns true if the command could not be run because no folder of the `PATH` has the program.
    pub(super) fn is_missing_on_path(&self, error: &io::Error) -> bool {
        let cwd_exists = self.cwd.as_deref().is_none_or(|cwd| cwd_problem(cwd, false).is_none());
        let is_not_found = error.kind() == io::ErrorKind::NotFound && cwd_exists;
        is_not_found && !self.program_name().contains('/') && self.find_program().is_none()
    }

    fn find_program(&self) -> Option<PathBuf> {
        let resolve = |path: PathBuf| self.cwd.as_ref().map_or(path.clone(), |cwd| cwd.join(path));
        self.candidate_paths().into_iter().map(resolve).find(|path| path.is_file())
    }

    fn describe_not_found(&self) -> String {
        let program = self.program_name();
        match self.find_program() {
            Some(file) => match read_interpreter(&file) {
                Some(interpreter) => {
                    format!("the interpreter `{interpreter}` of `{program}` was not found")
                }
                None => format!("the dynamic loader of `{program}` was not found"),
            },
            None if program.contains('/') => format!("the command `{program}` was not found"),
            None => format!("`{program}` was not found on the `PATH`"),
        }
    }
}

/// Returns what is wrong with a working directory, if anything is.
fn cwd_problem(cwd: &Path, is_denied: bool) -> Option<String> {
    let problem = match cwd {
        cwd if !cwd.exists() => "does not exist",
        cwd if !cwd.is_dir() => "is not a folder",
        cwd if is_denied && !platform::can_enter(cwd) => "cannot be entered: permission denied",
        _ => return None,
    };
    Some(format!("the working directory `{}` {problem}", cwd.display()))
}

/// Returns the interpreter in the `#!` line of a script.
fn read_interpreter(file: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut head = Vec::new();
    std::fs::File::open(file).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).split_whitespace().next()?.to_owned())
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn request(spec: &CommandSpec) -> SpawnRequest {
        SpawnRequest::new(spec, &ResolvedSecrets::default(), "t").unwrap()
    }

    #[test]
    fn encoded_request_round_trips() {
        let spec = CommandSpec::new("sh").args(["-c", "", "a b\nc"]).env("EMPTY", "").env("EQUALS", "=a=b=");
        for spec in [spec.clone(), CommandSpec { cwd: Some("/tmp".into()), ..spec }, CommandSpec::new("x")] {
            let request = request(&spec);
            assert_eq!(SpawnRequest::from_bytes(&request.to_bytes()), Some(request));
        }
        assert_eq!(SpawnRequest::from_bytes(b"3\0\0sh\0-c"), None);
    }

    #[test]
    fn null_byte_is_refused() {
        let spec = CommandSpec::new("sh").arg("a\0b");
        let error = SpawnRequest::new(&spec, &ResolvedSecrets::default(), "t").unwrap_err();
        assert!(error.contains("`sh`") && error.contains("null byte"), "{error}");
    }

    #[test]
    fn tree_variable_overrides_the_spec() {
        let request = request(&CommandSpec::new("sh").env(TREE_VARIABLE, "forged").env("PATH", "/nowhere"));
        let count = |name: &str| {
            request.env.iter().filter(|entry| entry.as_bytes().starts_with(name.as_bytes())).count()
        };
        assert_eq!((count("TOOLCRIB_TREE="), count("PATH=")), (1, 1));
        assert!(request.env.contains(&"TOOLCRIB_TREE=t".into()));
        assert_eq!(request.candidate_paths(), [Path::new("/nowhere/sh")]);
    }
}
