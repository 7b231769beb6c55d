//! What a declaration needs before its server is started: variables, files, secrets, and the program on the `PATH`.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use toolcrib::{CommandSpec, Endpoint, Hint, ServerId, TemplatePiece, TemplateText};

use super::Check;
use crate::preflight::{MissingReference, expand, find_program, not_found_message, server_path};
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
        let missing = MissingReference::find(piece, secrets);
        checks.extend(missing.map(|missing| check_reference(&missing, uses_gateway)));
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

fn check_reference(missing: &MissingReference<'_>, uses_gateway: bool) -> Check {
    let message = missing.message();
    let check = match missing {
        MissingReference::Variable(_) if uses_gateway => {
            Check::warn("environment", format!("{message}; the gateway needs it"))
        }
        _ => Check::fail("environment", message),
    };
    check.fix(missing.hint())
}

/// Checks that the program of a server exists, also for agents that a desktop starts, and that its interpreter does.
pub(super) fn check_program(command: &CommandSpec, server: &ServerId) -> Option<Check> {
    let program = expand(&command.program)?;
    let path = server_path(command)?;
    let Some(file) = find_program(&program, command.cwd.as_deref(), &path) else {
        let message = not_found_message(&program);
        return Some(Check::fail("command", message).fix(Hint::install_program(server, &program)));
    };
    if let Some(interpreter) = read_interpreter(&file)
        && find_program(&interpreter, None, &path).is_none()
    {
        let message = format!("the interpreter `{interpreter}` of `{}` was not found", file.display());
        let fix = format!(
            "install `{interpreter}`, or set `servers.{server}.env.PATH` to a `PATH` with its folder"
        );
        return Some(Check::fail("command", message).fix(fix));
    }
    let found = Check::pass("command", file.display().to_string());
    if command.env.contains_key("PATH") {
        return Some(found);
    }
    let message = match find_program(&program, command.cwd.as_deref(), DESKTOP_PATH.as_ref()) {
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

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
