//! Whether a command can be run at all, found out before it is: a start that cannot work is not worth a try.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::spec::CommandSpec;

/// The longest first line of a script that the system reads.
const LONGEST_FIRST_LINE: u64 = 256;

/// Why this command cannot be run as it is declared; `None` if nothing speaks against it.
pub(super) fn misfit(spec: &CommandSpec) -> Option<String> {
    let texts = [&spec.program].into_iter().chain(&spec.args).chain(spec.env.values());
    if let Some(missing) = texts.map(crate::text::Text::expand).find_map(Result::err) {
        return Some(missing.to_string());
    }
    if let Some(cwd) = spec.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        return Some(format!("the working directory `{}` does not exist", cwd.display()));
    }
    let program = spec.program.expand().ok()?;
    let own_path = spec.env.get("PATH").and_then(|path| path.expand().ok());
    let path = own_path.map(Into::into).or_else(|| std::env::var_os("PATH")).unwrap_or_default();
    match find(&program, spec.cwd.as_deref(), &path) {
        Ok(file) => interpreter(&file).filter(|name| is_missing(name)).map(|name| {
            format!("`{}` wants to be run by `{}`, which does not exist", file.display(), name.display())
        }),
        Err(why) => Some(why),
    }
}

/// Whether a start failed because the machine had no room for one more process.
pub(super) fn is_no_room(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| matches!(errno, Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE))
}

/// Whether a start failed because the file is nothing that can be run.
pub(super) fn is_no_program(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOEXEC)
}

/// The file that a command is: named outright, or the first on the path that can be run.
fn find(program: &str, cwd: Option<&Path>, path: &OsStr) -> Result<PathBuf, String> {
    if program.contains('/') {
        let file = cwd.map_or_else(|| PathBuf::from(program), |cwd| cwd.join(program));
        return match fs::metadata(&file) {
            Err(_) => Err(format!("the command `{program}` was not found")),
            Ok(metadata) if metadata.is_dir() => Err(format!("`{program}` is a folder, not a command")),
            Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => {
                Err(format!("`{program}` is not executable"))
            }
            Ok(_) => Ok(file),
        };
    }
    let on_path = || std::env::split_paths(path).map(|folder| folder.join(program));
    let runs = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    match (on_path().find(runs), on_path().find(|file| file.is_file())) {
        (Some(file), _) => Ok(file),
        (None, Some(file)) => Err(format!("`{}` is not executable", file.display())),
        (None, None) => Err(format!("the command `{program}` was not found on the `PATH`")),
    }
}

/// Who runs a script, as its first line says.
fn interpreter(file: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    File::open(file).ok()?.take(LONGEST_FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.trim_ascii().split(u8::is_ascii_whitespace).next().filter(|name| !name.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

fn is_missing(interpreter: &Path) -> bool {
    interpreter.is_absolute() && !interpreter.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(folder: &Path, name: &str, text: &str, mode: u32) -> String {
        let file = folder.join(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        file.to_str().unwrap().to_owned()
    }

    #[test]
    fn what_cannot_be_run_is_named_and_what_can_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path();
        let good = script(here, "good", "#!/bin/sh\n", 0o755);
        let plain = script(here, "plain", "#!/bin/sh\n", 0o644);
        let lost = script(here, "lost", "#!/no/such/python3 -u\n", 0o755);
        let binary = script(here, "binary", "\u{7f}ELF", 0o755);
        let said = |spec: CommandSpec| misfit(&spec).unwrap_or_default();
        let why = |program: &str| said(CommandSpec::new(program));
        for fine in [good.as_str(), binary.as_str(), "sh"] {
            assert_eq!(why(fine), "", "{fine}");
        }
        assert_eq!(why("/no/such/program"), "the command `/no/such/program` was not found");
        assert_eq!(why("no-such-program"), "the command `no-such-program` was not found on the `PATH`");
        assert_eq!(why(&plain), format!("`{plain}` is not executable"));
        assert!(why(here.to_str().unwrap()).ends_with("is a folder, not a command"));
        assert_eq!(
            why(&lost),
            format!("`{lost}` wants to be run by `/no/such/python3`, which does not exist")
        );
        let of_path = |program: &str| said(CommandSpec::new(program).env("PATH", here.to_str().unwrap()));
        assert_eq!((&*of_path("good"), &*of_path("plain")), ("", &*format!("`{plain}` is not executable")));
        assert_eq!(
            said(CommandSpec::new("sh").cwd("/no/such/folder")),
            "the working directory `/no/such/folder` does not exist"
        );
    }
}
