//! Looks for reasons why a declared server will not start, without starting it: a missing program, variable or secret.

use std::env;
use std::path::Path;

use toolcrib::config::{Config, Position, Problem, ProblemScope};
use toolcrib::spec::template::{TemplatePiece, TemplateText};
use toolcrib::{CommandSpec, Endpoint, SecretError, ServerId, ServerSpec};

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
    let program = command.program.source();
    let id = &spec.id;
    if program.contains("${") || is_found(program, command) {
        return None;
    }
    if let Some((scheme, _)) = program.split_once("://") {
        // A path is relative to the config.
        let scheme = scheme.rsplit('/').next().unwrap_or(scheme);
        let message = format!("server `{id}`: unknown URL scheme `{scheme}`");
        let hint = format!("write `servers.{id}.url = \"https://…\"` instead of `command`");
        return Some(Missing { message, hint });
    }
    let place = if program.contains('/') { "" } else { " on the `PATH`" };
    let message = format!("server `{id}`: `{program}` was not found{place}");
    let hint = format!("install it, or set `servers.{id}.command` to an absolute path");
    Some(Missing { message, hint })
}

/// Returns whether the program of a command exists: on the `PATH` that the server gets, or at its path.
fn is_found(program: &str, command: &CommandSpec) -> bool {
    if program.contains('/') {
        let folder = command.cwd.as_deref().unwrap_or(Path::new(""));
        return folder.join(program).is_file();
    }
    let own_path = command.env.get("PATH").map(|path| path.source().into());
    let Some(path) = own_path.or_else(|| env::var_os("PATH")) else { return true };
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn missing_references(spec: &ServerSpec, secrets: &SecretLocator) -> Vec<Missing> {
    let id = &spec.id;
    let pieces = spec.endpoint.templates().flat_map(TemplateText::pieces);
    let describe = |piece| match piece {
        TemplatePiece::Env { name, default: None } if env::var_os(name).is_none() => Some(Missing {
            message: format!("server `{id}`: the variable `{name}` is not set here"),
            hint: format!("set it where the gateway is started, or write `${{env:{name}:-default}}`"),
        }),
        TemplatePiece::Secret(name) if matches!(secrets.find(name), Err(SecretError::NotFound)) => {
            Some(Missing {
                message: format!("server `{id}`: the secret `{name}` is not set"),
                hint: format!("toolcrib secret set {name}"),
            })
        }
        _ => None,
    };
    pieces.filter_map(describe).collect()
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
                "server `a`: the variable `TOOLCRIB_UNSET` is not set here",
                "server `b`: the secret `none` is not set",
                "server `e`: unknown URL scheme `ftp`",
            ]
        );
        assert_eq!(notes[0].position.unwrap().line, 1);
        assert_eq!(find_missing(&config, Some(&"b".parse().unwrap()), &secrets).len(), 1);
    }
}
