//! The package or file that a launcher runs: `npx`, `uvx`, `docker run`, `python -m`, and interpreters with a script.
//!
//! A server that started has its package. After a failed start, a missing package is the likely cause.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;
use toolcrib::CommandSpec;

use super::Check;
use crate::preflight::expand;

/// Time that a command which looks for a package gets.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Flags of `docker run` that are followed by a value.
const DOCKER_VALUE_FLAGS: [&str; 17] = [
    "-e",
    "--env",
    "-v",
    "--volume",
    "--mount",
    "-p",
    "--publish",
    "--name",
    "--network",
    "--net",
    "-w",
    "--workdir",
    "-u",
    "--user",
    "--env-file",
    "--entrypoint",
    "--platform",
];

/// What a command line runs.
#[derive(Debug, PartialEq, Eq)]
enum Package {
    Npm(String),
    PyPi(String),
    Image { engine: String, name: String },
    Module { python: String, name: String },
    Script(PathBuf),
}

/// Checks the package of a server. `has_started` says whether the server just started.
pub(super) async fn check(command: &CommandSpec, has_started: bool) -> Option<Check> {
    let program = expand(&command.program)?;
    let args: Option<Vec<String>> = command.args.iter().map(expand).collect();
    let package = Package::find(&program, &args?, command.cwd.as_deref())?;
    if has_started {
        return Some(Check::pass("package", format!("{} is present", package.describe())));
    }
    match package.is_present().await {
        true => Some(Check::pass("package", format!("{} is present", package.describe()))),
        false => {
            let message = format!("{} was not found on this machine", package.describe());
            // Launchers find packages in more places than their caches.
            let check = match package {
                Package::Npm(_) | Package::PyPi(_) => Check::warn("package", message),
                _ => Check::fail("package", message),
            };
            Some(check.fix(package.fix()))
        }
    }
}

impl Package {
    /// Returns what a command line runs; `None` if the program is not a known launcher.
    fn find(program: &str, args: &[String], cwd: Option<&Path>) -> Option<Self> {
        let name = Path::new(program).file_name()?.to_str()?;
        let in_cwd = |path: &str| cwd.unwrap_or(Path::new("")).join(path);
        let is_python = name.starts_with("python");
        match name {
            "npx" | "bunx" => Some(Self::Npm(first_value(args, &["-p", "--package"], &[])?.to_owned())),
            "uvx" => {
                let flags = ["-p", "--python", "--with", "--index", "--index-url"];
                Some(Self::PyPi(first_value(args, &["--from"], &flags)?.to_owned()))
            }
            "docker" | "podman" if args.first()? == "run" => {
                let name = first_value(&args[1..], &[], &DOCKER_VALUE_FLAGS)?.to_owned();
                Some(Self::Image { engine: program.to_owned(), name })
            }
            _ if is_python && args.first()? == "-m" => {
                Some(Self::Module { python: program.to_owned(), name: args.get(1)?.clone() })
            }
            "node" | "deno" | "bun" | "sh" | "bash" => {
                find_script(args).map(|path| Self::Script(in_cwd(path)))
            }
            _ if is_python => find_script(args).map(|path| Self::Script(in_cwd(path))),
            _ => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Npm(name) => format!("npm package `{name}`"),
            Self::PyPi(name) => format!("Python package `{name}`"),
            Self::Image { name, .. } => format!("image `{name}`"),
            Self::Module { name, .. } => format!("Python module `{name}`"),
            Self::Script(path) => format!("`{}`", path.display()),
        }
    }

    /// Returns how to get the package. Those of npm and PyPI are installed by their launchers, so that a missing one does not exist,
    /// or the registry was not reached.
    fn fix(&self) -> String {
        match self {
            Self::Npm(_) => {
                "correct the name or version in `args`, or check the connection to the npm registry"
                    .to_owned()
            }
            Self::PyPi(_) => {
                "correct the name or version in `args`, or check the connection to PyPI".to_owned()
            }
            Self::Image { engine, name } => format!("{engine} pull {name}"),
            Self::Module { python, name } => format!("{python} -m pip install {}", name.replace('_', "-")),
            Self::Script(path) => format!("create `{}`, or correct `args`", path.display()),
        }
    }

    async fn is_present(&self) -> bool {
        match self {
            Self::Npm(name) => is_in_npm_cache(name),
            Self::PyPi(name) => is_in_uv_cache(name),
            Self::Image { engine, name } => succeeds(engine, &["image", "inspect", name]).await,
            Self::Module { python, name } => {
                let code =
                    "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)";
                succeeds(python, &["-c", code, name]).await
            }
            Self::Script(path) => path.is_file(),
        }
    }
}

/// Returns the value of one of `named` flags, or the first argument that is neither a flag nor the value of one.
fn first_value<'a>(args: &'a [String], named: &[&str], value_flags: &[&str]) -> Option<&'a str> {
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if named.contains(&arg.as_str()) {
            return rest.next().map(String::as_str);
        }
        if let Some((flag, value)) = arg.split_once('=')
            && named.contains(&flag)
        {
            return Some(value);
        }
        if value_flags.contains(&arg.as_str()) {
            rest.next();
        } else if !arg.starts_with('-') {
            return Some(arg);
        }
    }
    None
}

/// Returns the script that an interpreter runs: its first argument, if it has no flags before that.
fn find_script(args: &[String]) -> Option<&str> {
    args.first().map(String::as_str).filter(|arg| !arg.starts_with('-') && arg.contains(['.', '/']))
}

/// Returns the name of a package without its version.
fn without_version(package: &str) -> &str {
    let after_scope = usize::from(package.starts_with('@'));
    let end = package[after_scope..].find(['@', '=', '[']).map(|at| at + after_scope);
    &package[..end.unwrap_or(package.len())]
}

fn home() -> PathBuf {
    std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default()
}

fn subfolders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
}

fn is_in_npm_cache(package: &str) -> bool {
    let name = without_version(package);
    if name.starts_with(['.', '/']) {
        return Path::new(name).exists();
    }
    let cache = std::env::var_os("npm_config_cache").map_or_else(|| home().join(".npm"), PathBuf::from);
    subfolders(&cache.join("_npx")).any(|folder| folder.join("node_modules").join(name).is_dir())
}

fn is_in_uv_cache(package: &str) -> bool {
    let name = without_version(package).to_lowercase().replace('_', "-");
    let cache = std::env::var_os("UV_CACHE_DIR").map_or_else(|| home().join(".cache/uv"), PathBuf::from);
    subfolders(&cache).any(|folder| folder.join("pypi").join(&name).is_dir())
}

async fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    matches!(timeout(LOOKUP_TIMEOUT, command.status()).await, Ok(Ok(status)) if status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(line: &str) -> Option<Package> {
        let mut words = line.split(' ').map(str::to_owned);
        let program = words.next().unwrap();
        Package::find(&program, &words.collect::<Vec<_>>(), Some(Path::new("/srv")))
    }

    #[test]
    fn package_is_read_from_the_command_line() {
        let npm = |name: &str| Some(Package::Npm(name.to_owned()));
        assert_eq!(find("npx -y @scope/server@1.2 --root /"), npm("@scope/server@1.2"));
        assert_eq!(find("/opt/bin/npx --package=server bin"), npm("server"));
        let from = Some(Package::PyPi("mcp-server-git".to_owned()));
        assert_eq!(find("uvx --python 3.12 mcp-server-git --repo ."), from);
        assert_eq!(find("uvx --from mcp-server-git git"), from);
        let image = Package::Image { engine: "docker".to_owned(), name: "mcp/time:1".to_owned() };
        assert_eq!(find("docker run -i --rm -e TOKEN --name t mcp/time:1 --debug"), Some(image));
        let module = Package::Module { python: "python3".to_owned(), name: "my_server".to_owned() };
        assert_eq!(find("python3 -m my_server"), Some(module));
        assert_eq!(find("node dist/index.js"), Some(Package::Script("/srv/dist/index.js".into())));
        assert_eq!(find("sh -c true"), None);
        assert_eq!(find("docker ps"), None);
        assert_eq!(find("server"), None);
    }

    #[test]
    fn version_is_not_part_of_the_name() {
        let names = ["@scope/name@1.0", "name@latest", "name==1.2", "name[extra]", "@scope/name"];
        assert_eq!(names.map(without_version), ["@scope/name", "name", "name", "name", "@scope/name"]);
    }

    #[tokio::test]
    async fn missing_script_and_module_are_found_out() {
        assert!(!Package::Script("/no/such/file.js".into()).is_present().await);
        let module = Package::Module { python: "no-such-python".to_owned(), name: "x".to_owned() };
        assert!(!module.is_present().await);
        assert_eq!(module.fix(), "no-such-python -m pip install x");
    }
}
