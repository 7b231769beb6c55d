//! What a declaration needs before its server is started: variables, files, secrets, and the program on the `PATH`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use toolcrib::{CommandSpec, Endpoint, SecretError, ServerId, TemplatePiece, TemplateText};

use super::Check;
use crate::secrets::SecretLocator;

/// The `PATH` of programs that a desktop or the user's service manager starts, unless it is configured.
const DESKTOP_PATH: &str = if cfg!(target_os = "macos") {
    "/usr/bin:/bin:/usr/sbin:/sbin"
} else {
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
};

/// Longest `#!` line that is read.
const MAX_INTERPRETER_LINE: u64 = 256;

/// Checks the variables, files and secrets that an endpoint refers to. The gateway has an environment of its own, so a
/// variable that is not set here is only a warning while one runs.
pub(super) fn check_references(
    endpoint: &Endpoint,
    secrets: &SecretLocator,
    uses_gateway: bool,
) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut count = 0;
    for piece in endpoint.templates().flat_map(TemplateText::pieces) {
        count += usize::from(!matches!(piece, TemplatePiece::Literal(_)));
        checks.extend(check_reference(piece, secrets, uses_gateway));
    }
    if checks.is_empty() && count > 0 {
        let references = super::super::check::format_count(count, "reference");
        checks.push(Check::pass(
            "environment",
            format!("{references} to variables, files and secrets have values"),
        ));
    }
    checks
}

fn check_reference(piece: TemplatePiece<'_>, secrets: &SecretLocator, uses_gateway: bool) -> Option<Check> {
    match piece {
        TemplatePiece::Env { name, default: None } if std::env::var_os(name).is_none() => {
            let fix = format!("export {name}=VALUE, or write `${{env:{name}:-DEFAULT}}`");
            let message = format!("environment variable `{name}` is not set");
            let check = match uses_gateway {
                true => Check::warn("environment", format!("{message} here; the gateway needs it")),
                false => Check::fail("environment", message),
            };
            Some(check.fix(fix))
        }
        TemplatePiece::File(path) => {
            let error = match fs::metadata(path) {
                Ok(metadata) if metadata.is_file() => File::open(path).err()?,
                Ok(_) => io::Error::other("it is not a file"),
                Err(error) => error,
            };
            let message = format!("cannot read `{}`: {error}", path.display());
            Some(Check::fail("environment", message).fix(format!("create `{}`", path.display())))
        }
        TemplatePiece::Secret(name) => {
            let error: SecretError = secrets.find(name).err()?;
            Some(Check::fail("environment", error.message(name)).fix(error.hint(name)))
        }
        _ => None,
    }
}

/// Checks that the program of a server exists, also for agents that a desktop starts, and that its interpreter does.
pub(super) fn check_program(command: &CommandSpec, server: &ServerId) -> Option<Check> {
    let program = expand(&command.program)?;
    let own_path = command.env.get("PATH").map(expand);
    let path = match own_path {
        Some(path) => path?.into(),
        None => std::env::var_os("PATH").unwrap_or_default(),
    };
    let Some(file) = find_program(&program, command.cwd.as_deref(), &path) else {
        let message = match program.contains('/') {
            true => format!("`{program}` does not exist or is not executable"),
            false => format!("`{program}` was not found on the `PATH`"),
        };
        return Some(Check::fail("command", message).fix(install_hint(&program, server)));
    };
    if let Some(interpreter) = read_interpreter(&file)
        && find_program(&interpreter, None, &path).is_none()
    {
        let message = format!("the interpreter `{interpreter}` of `{}` was not found", file.display());
        return Some(Check::fail("command", message).fix(install_hint(&interpreter, server)));
    }
    let found = Check::pass("command", file.display().to_string());
    if command.env.contains_key("PATH") {
        return Some(found);
    }
    let message = match find_program(&program, command.cwd.as_deref(), &OsString::from(DESKTOP_PATH)) {
        Some(other) if is_same_file(&file, &other) => return Some(found),
        Some(other) => format!(
            "`{program}` is `{}` here, and `{}` for programs that a desktop starts",
            file.display(),
            other.display()
        ),
        None => format!(
            "`{}` is not on the `PATH` of programs that a desktop starts ({DESKTOP_PATH})",
            file.display()
        ),
    };
    let fix = format!("set `servers.{server}.command` to \"{}\"", file.display());
    Some(Check::warn("command", message).fix(fix))
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok() == other.canonicalize().ok()
}

/// Returns a text whose references have values; secrets are not looked up.
pub(super) fn expand(text: &TemplateText) -> Option<String> {
    text.expand(|_| Err(SecretError::NotFound)).ok()
}

/// Finds an executable file by its path, or by its name on a `PATH`.
pub(super) fn find_program(program: &str, cwd: Option<&Path>, path: &OsString) -> Option<PathBuf> {
    let is_executable = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    match program.contains('/') {
        true => Some(cwd.unwrap_or(Path::new("")).join(program)).filter(is_executable),
        false => std::env::split_paths(path).map(|folder| folder.join(program)).find(is_executable),
    }
}

/// Returns the interpreter of a script; the command after it, if the interpreter is `env`.
fn read_interpreter(file: &Path) -> Option<String> {
    let mut line = Vec::new();
    let mut start = BufReader::new(File::open(file).ok()?.take(MAX_INTERPRETER_LINE));
    start.read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line.strip_prefix(b"#!")?.to_vec()).ok()?;
    let mut words = line.split_whitespace();
    let interpreter = words.next()?;
    match interpreter.ends_with("/env") {
        true => words.find(|word| !word.starts_with('-') && !word.contains('=')).map(str::to_owned),
        false => Some(interpreter.to_owned()),
    }
}

fn install_hint(program: &str, server: &ServerId) -> String {
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or(program);
    match name {
        "uv" | "uvx" => "install uv (https://docs.astral.sh/uv)".to_owned(),
        "node" | "npm" | "npx" => "install Node.js (https://nodejs.org)".to_owned(),
        "docker" => "install Docker (https://docs.docker.com/engine/install)".to_owned(),
        "python" => format!("set `servers.{server}.command` to \"python3\", or install Python"),
        _ => format!("install `{name}`, or set `servers.{server}.command` to its absolute path"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::*;

    fn id() -> ServerId {
        "git".parse().unwrap()
    }

    fn write_script(folder: &Path, name: &str, text: &str) -> PathBuf {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    #[test]
    fn program_is_checked_for_this_shell_and_for_a_desktop() {
        let shell = check_program(&CommandSpec::new("sh"), &id()).unwrap();
        assert_eq!((shell.status, shell.fix), (CheckStatus::Pass, None));
        let absent = check_program(&CommandSpec::new("uvx-that-is-not-there"), &id()).unwrap();
        assert_eq!(absent.status, CheckStatus::Fail);
        assert!(absent.fix.unwrap().contains("servers.git.command"));
        let dir = tempfile::tempdir().unwrap();
        let script = write_script(dir.path(), "tool", "#!/bin/sh\n");
        let path = OsString::from(dir.path());
        assert_eq!(find_program("tool", None, &path), Some(script));
        assert_eq!(
            find_program("./tool", Some(dir.path()), &OsString::new()),
            Some(dir.path().join("./tool"))
        );
        let own_path = CommandSpec::new("tool").env("PATH", dir.path().to_str().unwrap());
        assert_eq!(check_program(&own_path, &id()).unwrap().status, CheckStatus::Pass);
    }

    #[test]
    fn missing_interpreter_of_a_script_fails() {
        let dir = tempfile::tempdir().unwrap();
        let script = write_script(dir.path(), "tool", "#!/usr/bin/env -S no-such-node --flag\n");
        let check = check_program(&CommandSpec::new(script.to_str().unwrap()), &id()).unwrap();
        assert_eq!(check.status, CheckStatus::Fail);
        assert!(check.message.contains("the interpreter `no-such-node`"), "{}", check.message);
    }
}
