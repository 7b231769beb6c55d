//! Looks for reasons why a declared server will not start, without starting it: a missing program, variable or secret.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use toolcrib::config::{Config, Position, Problem, ProblemScope};
use toolcrib::spec::template::{TemplatePiece, TemplateText};
use toolcrib::{CommandSpec, Endpoint, Hint, SecretError, ServerId, ServerSpec};

use crate::secrets::SecretLocator;

/// Returns a note for everything that is missing for the active servers, or for one of them.
pub(crate) fn find_missing(
    config: &Config,
    only: Option<&ServerId>,
    secrets: &SecretLocator,
) -> Vec<Problem> {
    let is_checked = |spec: &&ServerSpec| spec.enabled && only.is_none_or(|id| *id == spec.id);
    let mut notes = Vec::new();
    for spec in config.roster.servers().filter(is_checked) {
        let Some(origin) = config.origins.get(&spec.id) else { continue };
        let missing = missing_program(spec).into_iter().chain(missing_references(spec, secrets));
        notes.extend(missing.map(|Missing { message, hint }| Problem {
            file: origin.file.clone(),
            position: Some(Position { line: origin.line, column: 1 }),
            scope: ProblemScope::Note,
            message,
            hint: Some(hint),
        }));
    }
    notes
}

/// Something that a server needs and does not have.
struct Missing {
    message: String,
    hint: String,
}

fn missing_program(spec: &ServerSpec) -> Option<Missing> {
    let Endpoint::Command(command) = &spec.endpoint else { return None };
    let program = expand(&command.program)?;
    let path = server_path(command)?;
    let id = &spec.id;
    if find_program(&program, command.cwd.as_deref(), &path).is_some() {
        return None;
    }
    if let Some((scheme, _)) = program.split_once("://") {
        // A path is relative to the config.
        let scheme = scheme.rsplit('/').next().unwrap_or(scheme);
        let message = format!("server `{id}`: unknown URL scheme `{scheme}`");
        let hint = format!("write `servers.{id}.url = \"https://…\"` instead of `command`");
        return Some(Missing { message, hint });
    }
    let message = format!("server `{id}`: {}", not_found_message(&program));
    Some(Missing { message, hint: Hint::install_program(id, &program) })
}

/// Returns the message for a program that [`find_program`] does not find.
pub(crate) fn not_found_message(program: &str) -> String {
    match program.contains('/') {
        true => format!("`{program}` does not exist or is not executable"),
        false => format!("`{program}` was not found on the `PATH`"),
    }
}

/// Returns the `PATH` that a server gets; `None` if it has references without values.
pub(crate) fn server_path(command: &CommandSpec) -> Option<OsString> {
    match command.env.get("PATH") {
        Some(path) => Some(expand(path)?.into()),
        None => Some(env::var_os("PATH").unwrap_or_default()),
    }
}

/// Returns a text whose references have values; secrets are not looked up.
pub(crate) fn expand(text: &TemplateText) -> Option<String> {
    text.expand(|_| Err(SecretError::NotFound)).ok()
}

/// Finds an executable file by its path, or by its name on a `PATH`.
pub(crate) fn find_program(program: &str, cwd: Option<&Path>, path: &OsStr) -> Option<PathBuf> {
    let is_executable = |file: &PathBuf| {
        fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    match program.contains('/') {
        true => Some(cwd.unwrap_or(Path::new("")).join(program)).filter(is_executable),
        false => env::split_paths(path).map(|folder| folder.join(program)).find(is_executable),
    }
}

/// A reference without a value.
#[derive(Debug)]
pub(crate) enum MissingReference<'a> {
    Variable(&'a str),
    File { path: &'a Path, error: io::Error },
    Secret { name: &'a str, error: SecretError },
}

impl<'a> MissingReference<'a> {
    /// Looks up the value of a reference.
    pub(crate) fn find(piece: TemplatePiece<'a>, secrets: &SecretLocator) -> Option<Self> {
        match piece {
            TemplatePiece::Env { name, default: None } if env::var_os(name).is_none() => {
                Some(Self::Variable(name))
            }
            TemplatePiece::File(path) => {
                let error = match fs::metadata(path) {
                    Ok(metadata) if metadata.is_file() => File::open(path).err()?,
                    Ok(_) => io::Error::other("it is not a file"),
                    Err(error) => error,
                };
                Some(Self::File { path, error })
            }
            TemplatePiece::Secret(name) => Some(Self::Secret { name, error: secrets.find(name).err()? }),
            _ => None,
        }
    }

    /// Returns what is missing.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Variable(name) => format!("environment variable `{name}` is not set here"),
            Self::File { path, error } => format!("cannot read `{}`: {error}", path.display()),
            Self::Secret { name, error } => error.message(name),
        }
    }

    /// Returns the next step.
    pub(crate) fn hint(&self) -> String {
        match self {
            Self::Variable(name) => format!("export {name}=VALUE, or write `${{env:{name}:-DEFAULT}}`"),
            Self::File { path, .. } => format!("create `{}`", path.display()),
            Self::Secret { name, error } => error.hint(name),
        }
    }
}

fn missing_references(spec: &ServerSpec, secrets: &SecretLocator) -> Vec<Missing> {
    let pieces = spec.endpoint.templates().flat_map(TemplateText::pieces);
    let missing = pieces.filter_map(|piece| MissingReference::find(piece, secrets));
    missing
        .map(|missing| Missing {
            message: format!("server `{}`: {}", spec.id, missing.message()),
            hint: missing.hint(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use toolcrib::config::SecretBackend;

    use super::*;
    use crate::paths::Paths;

    #[test]
    fn missing_programs_variables_and_secrets_are_noted() {
        let text = "[servers.a]\ncommand = 'no-such-program'\nargs = ['${env:TOOLCRIB_UNSET}', '${env:TOOLCRIB_UNSET:-x}']\n\
                    [servers.b]\nurl = 'https://b.example'\nheaders = { Authorization = 'Bearer ${secret:none}' }\n\
                    [servers.c]\ncommand = 'sh'\n[servers.d]\ncommand = 'no-such-program'\nenabled = false\n\
                    [servers.e]\ncommand = 'ftp://e.example'\n[servers.f]\ncommand = '/bin/sh'\n";
        let config = Config::parse(Path::new("/c/config.toml"), text);
        let folder = tempfile::tempdir().unwrap();
        let secrets = SecretLocator::new(&Paths::under(folder.path()), &SecretBackend::File);
        let notes = find_missing(&config, None, &secrets);
        let messages: Vec<&str> = notes.iter().map(|note| note.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "server `a`: `no-such-program` was not found on the `PATH`",
                "server `a`: environment variable `TOOLCRIB_UNSET` is not set here",
                "server `b`: secret `none` is not set",
                "server `e`: unknown URL scheme `ftp`",
            ]
        );
        assert_eq!(notes[0].position.unwrap().line, 1);
        assert_eq!(find_missing(&config, Some(&"b".parse().unwrap()), &secrets).len(), 1);
    }
}
