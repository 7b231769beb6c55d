//! Reads `[secrets]`: the storage of the values behind `${secret:NAME}`.

use super::reader::TableReader;

/// Default of `env-prefix`.
const DEFAULT_PREFIX: &str = "TOOLCRIB_SECRET_";

/// Placeholder for the name of the secret in `command`.
const NAME_PLACEHOLDER: &str = "{name}";

/// Storage of secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SecretBackend {
    /// The desktop keyring if there is one, else an encrypted file.
    #[default]
    Auto,
    /// The desktop keyring.
    Keyring,
    /// An encrypted file.
    File,
    /// Environment variables with this prefix.
    Env(String),
    /// A command that prints the secret; `{name}` in an argument stands for its name.
    Command(Vec<String>),
}

impl SecretBackend {
    /// Returns the command that prints the secret `name`.
    pub fn command_for(command: &[String], name: &str) -> Vec<String> {
        command.iter().map(|word| word.replace(NAME_PLACEHOLDER, name)).collect()
    }
}

/// Reads the section.
pub(super) fn read(mut reader: TableReader<'_>) -> SecretBackend {
    let names = ["auto", "keyring", "file", "env", "command"].map(|name| (name, name));
    let backend = reader.choice("backend", &names).unwrap_or("auto");
    let prefix = reader.string("env-prefix");
    let command = reader.strings("command").map(|words| words.into_iter().map(|(_, word)| word).collect());
    for (key, required) in [("env-prefix", "env"), ("command", "command")] {
        if reader.has(key) && backend != required {
            let message = format!("`secrets.{key}` requires `backend = \"{required}\"`");
            reader.error_at_value(key, message, format!("add `backend = \"{required}\"`, or remove `{key}`"));
        }
    }
    let backend = match backend {
        "keyring" => SecretBackend::Keyring,
        "file" => SecretBackend::File,
        "env" => SecretBackend::Env(prefix.unwrap_or(DEFAULT_PREFIX).to_owned()),
        "command" => SecretBackend::Command(check_command(&mut reader, command.unwrap_or_default())),
        _ => SecretBackend::Auto,
    };
    reader.finish();
    backend
}

/// Reports a command without `{name}`, which would print the same value for every secret.
fn check_command(reader: &mut TableReader<'_>, words: Vec<&str>) -> Vec<String> {
    let hint = "write `command = [\"pass\", \"show\", \"{name}\"]`";
    if !reader.has("command") {
        reader.error_at_table("`backend = \"command\"` requires `command`", hint);
    } else if !words.iter().skip(1).any(|word| word.contains(NAME_PLACEHOLDER)) {
        reader.error_at_value("command", "no argument of `secrets.command` contains `{name}`", hint);
    }
    words.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> (SecretBackend, Vec<String>) {
        let config = Config::parse(Path::new("/x/config.toml"), text);
        (config.secrets, config.problems.into_iter().map(|problem| problem.message).collect())
    }

    #[test]
    fn every_backend_can_be_chosen() {
        let backend = |text: &str| {
            let (backend, problems) = read(text);
            assert!(problems.is_empty(), "{text}: {problems:?}");
            backend
        };
        assert_eq!(backend(""), SecretBackend::Auto);
        assert_eq!(backend("[secrets]\nbackend = 'keyring'"), SecretBackend::Keyring);
        assert_eq!(backend("[secrets]\nbackend = 'file'"), SecretBackend::File);
        assert_eq!(backend("[secrets]\nbackend = 'env'"), SecretBackend::Env(DEFAULT_PREFIX.to_owned()));
        assert_eq!(
            backend("[secrets]\nbackend = 'env'\nenv-prefix = 'X_'"),
            SecretBackend::Env("X_".to_owned())
        );
        let command = backend("[secrets]\nbackend = 'command'\ncommand = ['pass', 'show', 'mcp/{name}']");
        let SecretBackend::Command(words) = command else { panic!("{command:?}") };
        assert_eq!(SecretBackend::command_for(&words, "git"), ["pass", "show", "mcp/git"]);
    }

    #[test]
    fn inconsistent_keys_are_rejected() {
        for (text, problem) in [
            ("backend = 'vault'", "invalid value `vault` for `secrets.backend`"),
            ("backend = 'command'", "`backend = \"command\"` requires `command`"),
            ("backend = 'command'\ncommand = ['pass']", "no argument of `secrets.command` contains `{name}`"),
            ("command = ['a', '{name}']", "`secrets.command` requires `backend = \"command\"`"),
            ("env-prefix = 'X_'", "`secrets.env-prefix` requires `backend = \"env\"`"),
        ] {
            assert_eq!(read(&format!("[secrets]\n{text}")).1, [problem], "{text}");
        }
    }
}
