//! `[secrets]`: where the values behind `${secret:NAME}` are kept. Nothing is looked up here.

use super::reader::Reader;

/// What variables with secrets begin with unless the config says otherwise.
const PREFIX: &str = "TOOLCRIB_SECRET_";

/// What stands for the name of a secret in a command.
const NAME: &str = "{name}";

/// Where secrets are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SecretStore {
    /// In the keyring of the desktop if there is one, else in an encrypted file.
    #[default]
    Auto,
    /// In the keyring alone.
    Keyring,
    /// In an encrypted file alone.
    File,
    /// In variables whose names begin like this.
    Env(String),
    /// Where this command looks; `{name}` in an argument stands for the secret's name.
    Command(Vec<String>),
}

impl SecretStore {
    /// The command that prints the secret of this name.
    pub fn command_for(command: &[String], name: &str) -> Vec<String> {
        command.iter().map(|word| word.replace(NAME, name)).collect()
    }
}

/// Reads the section.
pub(super) fn read(mut reader: Reader<'_>) -> SecretStore {
    let words = ["auto", "keyring", "file", "env", "command"].map(|word| (word, word));
    let store = reader.choice("backend", &words, &[]).unwrap_or("auto");
    let prefix = reader.string("env-prefix");
    let command = reader.strings("command").map(|words| words.into_iter().map(|(_, word)| word).collect());
    for (key, wanted) in [("env-prefix", "env"), ("command", "command")] {
        if reader.has(key) && store != wanted {
            let message = format!("`secrets.{key}` means nothing without `backend = \"{wanted}\"`");
            reader.wrong_value(key, message, format!("write `backend = \"{wanted}\"` above it"));
        }
    }
    let store = match store {
        "keyring" => SecretStore::Keyring,
        "file" => SecretStore::File,
        "env" => SecretStore::Env(prefix.unwrap_or(PREFIX).to_owned()),
        "command" => SecretStore::Command(command_of(&mut reader, command.unwrap_or_default())),
        _ => SecretStore::Auto,
    };
    reader.finish();
    store
}

/// A command without a name in it would give every secret the same value.
fn command_of(reader: &mut Reader<'_>, words: Vec<&str>) -> Vec<String> {
    let hint = "write `command = [\"pass\", \"show\", \"{name}\"]`";
    if !reader.has("command") {
        reader.lacking("`backend = \"command\"` wants a `command`", hint);
    } else if !words.iter().skip(1).any(|word| word.contains(NAME)) {
        reader.wrong_value("command", "`secrets.command` has no argument with `{name}` in it", hint);
    }
    words.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn read(text: &str) -> (SecretStore, Vec<String>) {
        let config = Config::parse(Path::new("/x/config.toml"), text);
        (config.secrets, config.problems.into_iter().map(|problem| problem.message).collect())
    }

    #[test]
    fn every_store_can_be_chosen() {
        let store = |text: &str| {
            let (store, problems) = read(text);
            assert!(problems.is_empty(), "{text}: {problems:?}");
            store
        };
        assert_eq!(store(""), SecretStore::Auto);
        assert_eq!(store("[secrets]\nbackend = 'keyring'"), SecretStore::Keyring);
        assert_eq!(store("[secrets]\nbackend = 'file'"), SecretStore::File);
        assert_eq!(store("[secrets]\nbackend = 'env'"), SecretStore::Env(PREFIX.to_owned()));
        assert_eq!(store("[secrets]\nbackend = 'env'\nenv-prefix = 'X_'"), SecretStore::Env("X_".to_owned()));
        let command = store("[secrets]\nbackend = 'command'\ncommand = ['pass', 'show', 'mcp/{name}']");
        let SecretStore::Command(words) = command else { panic!("{command:?}") };
        assert_eq!(SecretStore::command_for(&words, "git"), ["pass", "show", "mcp/git"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, problem) in [
            ("backend = 'vault'", "`secrets.backend` cannot be `vault`"),
            ("backend = 'command'", "`backend = \"command\"` wants a `command`"),
            (
                "backend = 'command'\ncommand = ['pass']",
                "`secrets.command` has no argument with `{name}` in it",
            ),
            ("command = ['a', '{name}']", "`secrets.command` means nothing without `backend = \"command\"`"),
            ("env-prefix = 'X_'", "`secrets.env-prefix` means nothing without `backend = \"env\"`"),
        ] {
            assert_eq!(read(&format!("[secrets]\n{text}")).1, [problem], "{text}");
        }
    }
}
