//! `Order`: a command with everything filled in, ready to be run here or to be sent to a shim.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::birth::Birth;
use super::raw::{self, Image};
use crate::secret::Purse;
use crate::spec::CommandSpec;
use crate::text::Text;

/// Variables every child gets if we have them; with `LC_*` and `XDG_*` that is all that is passed on unasked.
const INHERITED: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "TMPDIR"];

/// The variable by which everything that a server starts can be found again.
pub(super) const TREE: &str = "TOOLCRIB_TREE";

/// A command, its environment and where it runs.
#[cfg_attr(test, derive(Debug, PartialEq, Eq))]
pub(super) struct Order {
    program: OsString,
    args: Vec<OsString>,
    /// Each as `NAME=value`.
    env: Vec<OsString>,
    cwd: Option<PathBuf>,
}

impl Order {
    /// The command of a spec, in a tree of this name. Its environment is built, not inherited.
    pub(super) fn of(spec: &CommandSpec, purse: &Purse, tree: &str) -> Result<Self, String> {
        let expand = |text: &Text| text.expand(|name| purse.get(name)).map_err(|missing| missing.to_string());
        let program = OsString::from(expand(&spec.program)?);
        let args = spec.args.iter().map(|arg| Ok(expand(arg)?.into())).collect::<Result<_, String>>()?;
        let mut env: Vec<(OsString, OsString)> = inherited(spec).collect();
        let asked = spec.env.iter().map(|(key, value)| Ok((key.into(), expand(value)?.into())));
        for (key, value) in
            asked.collect::<Result<Vec<_>, String>>()?.into_iter().chain([(TREE.into(), tree.into())])
        {
            env.retain(|(known, _)| *known != key);
            env.push((key, value));
        }
        let env = env.into_iter().map(|(mut key, value)| {
            key.push("=");
            key.push(value);
            key
        });
        let order = Self { program, args, env: env.collect(), cwd: spec.cwd.clone() };
        let broken = order.words().any(|word| word.as_bytes().contains(&0));
        match broken {
            true => Err(format!("`{}` has an argument or a variable with a null byte in it", order.name())),
            false => Ok(order),
        }
    }

    pub(super) fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    fn words(&self) -> impl Iterator<Item = &OsStr> {
        let cwd = self.cwd.as_deref().map_or(OsStr::new(""), Path::as_os_str);
        let words = [cwd, &self.program].into_iter();
        words.chain(self.args.iter().map(OsString::as_os_str)).chain(self.env.iter().map(OsString::as_os_str))
    }

    /// How many arguments there are, then every word, each with a null byte behind it.
    #[cfg(target_os = "linux")]
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.args.len().to_string().into_bytes();
        for word in self.words() {
            bytes.push(0);
            bytes.extend_from_slice(word.as_bytes());
        }
        bytes
    }

    #[cfg(target_os = "linux")]
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec()));
        let count: usize = words.next()?.to_str()?.parse().ok()?;
        let cwd = words.next()?;
        let program = words.next()?;
        let args: Vec<OsString> = words.by_ref().take(count).collect();
        let complete = args.len() == count;
        let cwd = (!cwd.is_empty()).then(|| PathBuf::from(cwd));
        complete.then(|| Self { program, args, env: words.collect(), cwd })
    }

    /// The command, with these files for its input, its output and its errors.
    pub(super) fn command(&self, [stdin, stdout, stderr]: [OwnedFd; 3]) -> io::Result<Command> {
        let args = [&self.program].into_iter().chain(&self.args).cloned().collect();
        let places = self.places().into_iter().map(PathBuf::into_os_string).collect();
        let image = Image::new(places, args, self.env.clone())?;
        let mut command = Command::new(&self.program);
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr));
        let birth = Birth::new();
        raw::become_after(&mut command, image, move || birth.happen());
        Ok(command)
    }

    /// Where the program may be, as its own `PATH` has it.
    fn places(&self) -> Vec<PathBuf> {
        if self.program.as_bytes().contains(&b'/') {
            return vec![PathBuf::from(&self.program)];
        }
        let path = self.env.iter().find_map(|entry| entry.as_bytes().strip_prefix(b"PATH="));
        let path = OsStr::from_bytes(path.unwrap_or(b"/usr/local/bin:/usr/bin:/bin"));
        std::env::split_paths(path).map(|folder| folder.join(&self.program)).collect()
    }

    /// Why it could not be run, for people.
    pub(super) fn explain(&self, error: &io::Error) -> String {
        let program = self.name();
        let here = |place: PathBuf| self.cwd.as_ref().map_or(place.clone(), |cwd| cwd.join(place));
        let found = || self.places().into_iter().map(here).find(|place| place.is_file());
        let is_refused = error.raw_os_error() == Some(Errno::ACCESS.raw_os_error());
        match (error.kind(), &self.cwd) {
            (_, Some(cwd)) if !cwd.exists() => {
                format!("the working directory `{}` does not exist", cwd.display())
            }
            (_, Some(cwd)) if !cwd.is_dir() => {
                format!("the working directory `{}` is not a folder", cwd.display())
            }
            (_, Some(cwd)) if is_refused && access(cwd, Access::EXEC_OK).is_err() => {
                format!("the working directory `{}` may not be entered", cwd.display())
            }
            (io::ErrorKind::NotFound, _) => match found() {
                Some(file) => match interpreter(&file) {
                    Some(interpreter) => {
                        format!("`{program}` wants to be run by `{interpreter}`, which was not found")
                    }
                    None => format!("`{program}` is there, but what it needs to be run with was not found"),
                },
                None if program.contains('/') => format!("the command `{program}` was not found"),
                None => format!("`{program}` was not found on the `PATH`"),
            },
            _ if is_refused => format!("`{program}` is not executable"),
            _ if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => {
                format!(
                    "`{program}` is neither a program for this machine nor a script with `#!` at its head"
                )
            }
            _ => format!("cannot run `{program}`: {error}"),
        }
    }
}

/// Who is to run a script, from its first line.
fn interpreter(file: &Path) -> Option<String> {
    use std::io::Read as _;
    let mut head = Vec::new();
    std::fs::File::open(file).ok()?.take(256).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).split_whitespace().next()?.to_owned())
}

fn inherited(spec: &CommandSpec) -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(key, _)| {
        let key = key.to_string_lossy();
        let usual = INHERITED.contains(&&*key) || key.starts_with("LC_") || key.starts_with("XDG_");
        usual || spec.inherit_env.iter().any(|asked| *asked == key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(spec: &CommandSpec) -> Order {
        Order::of(spec, &Purse::default(), "t").unwrap()
    }

    #[test]
    fn an_order_survives_the_way_to_a_shim() {
        let spec = CommandSpec::new("sh").args(["-c", "", "a b\nc"]).env("EMPTY", "").env("EQUALS", "=a=b=");
        for spec in [spec.clone(), CommandSpec { cwd: Some("/tmp".into()), ..spec }, CommandSpec::new("x")] {
            let order = order(&spec);
            assert_eq!(Order::from_bytes(&order.to_bytes()), Some(order));
        }
        assert_eq!(Order::from_bytes(b"3\0\0sh\0-c"), None);
    }

    #[test]
    fn a_null_byte_is_refused_by_name() {
        let refused = Order::of(&CommandSpec::new("sh").arg("a\0b"), &Purse::default(), "t").unwrap_err();
        assert!(refused.contains("`sh`") && refused.contains("null byte"), "{refused}");
    }

    #[test]
    fn the_tree_is_the_last_word_about_its_variable() {
        let order = order(&CommandSpec::new("sh").env(TREE, "forged").env("PATH", "/nowhere"));
        let of = |name: &str| {
            order.env.iter().filter(|entry| entry.as_bytes().starts_with(name.as_bytes())).count()
        };
        assert_eq!((of("TOOLCRIB_TREE="), of("PATH=")), (1, 1));
        assert!(order.env.contains(&"TOOLCRIB_TREE=t".into()));
        assert_eq!(order.places(), [Path::new("/nowhere/sh")]);
    }
}
