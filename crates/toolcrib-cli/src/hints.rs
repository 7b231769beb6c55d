//! Puts hints of the library into commands of this program, and adds `--config FILE` to the commands when the config in
//! use is not the default one.

use std::borrow::Cow;
use std::path::Path;

use serde_json::Value;
use toolcrib::{Error, Hint, ServerId};

/// Commands that do not use the config.
const WITHOUT_CONFIG: [&str; 4] = ["completions", "demo", "explain", "help"];

/// Returns a hint in the words of this program: as a command where there is one.
pub fn hint_text(hint: &Hint) -> String {
    let name = |server: &Option<ServerId>| server.as_ref().map_or("SERVER".to_owned(), ToString::to_string);
    match hint {
        Hint::ListTools => "toolcrib tools".to_owned(),
        Hint::ReadLog { server } => format!("toolcrib logs {}", name(server)),
        Hint::RestartServer { server } => format!("toolcrib restart {}", name(server)),
        Hint::RepairServer { server } => {
            format!("fix `servers.{server}` in the config, then run `toolcrib restart {server}`")
        }
        Hint::InstallProgram { server, program } => {
            format!("{}, then run `toolcrib restart {server}`", Hint::install_program(server, program))
        }
        Hint::StartGateway => "toolcrib serve".to_owned(),
        Hint::RaiseStartTimeout { server } => {
            format!("raise `servers.{server}.lifecycle.start-timeout`, or see `toolcrib logs {server}`")
        }
        Hint::RaiseRunningServers => {
            "raise `limits.servers-running`, or stop a server of `toolcrib status`".to_owned()
        }
        Hint::ApproveTools { server } => format!("toolcrib approve {server}"),
        Hint::ApproveCall { id } => format!("toolcrib approve --call {id}"),
        Hint::SetSecret { name } => format!("toolcrib secret set {name}"),
        Hint::CheckSecrets => "toolcrib secret ls".to_owned(),
        Hint::Login { server } => format!("toolcrib login {server}"),
        Hint::LoginAs { server, caller } => format!("toolcrib login {server} --as {}", shell_word(caller)),
        other => other.to_string(),
    }
}

/// Returns a text as one word of a shell command.
pub(crate) fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+=:@%,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Returns the data of an error, with its hint in the words of this program.
pub(crate) fn error_data(error: &Error) -> Value {
    error.data_with_hint(&hint_text(&error.hint()))
}

/// Completes the commands in hints.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hints {
    /// The text ` --config FILE`, unless the default config is in use.
    config_flag: Option<String>,
}

impl Hints {
    /// Creates hints for a config that must be named on the command line.
    pub(crate) fn for_config(config: &Path) -> Self {
        let file = std::path::absolute(config).unwrap_or_else(|_| config.to_owned()).display().to_string();
        Self { config_flag: Some(format!(" --config {}", shell_word(&file))) }
    }

    /// Returns the hint with the flag added to every command that uses the config. A command is the whole hint, or in backticks.
    pub(crate) fn complete<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        let Some(flag) = self.config_flag.as_ref().filter(|_| !hint.contains("--config")) else {
            return hint.into();
        };
        let mut parts = hint.split("toolcrib ");
        let mut completed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(part.len());
            let (command, rest) = part.split_at(end);
            let is_command = completed.is_empty() || completed.ends_with('`');
            completed += "toolcrib ";
            completed += command;
            let is_verb = command.starts_with(|c: char| c.is_ascii_lowercase());
            if is_command && is_verb && !WITHOUT_CONFIG.contains(&command) {
                completed += flag;
            }
            completed += rest;
        }
        completed.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_commands_of_this_program() {
        let server: ServerId = "git".parse().unwrap();
        for (hint, expected) in [
            (Hint::RestartServer { server: Some(server.clone()) }, "toolcrib restart git"),
            (Hint::ReadLog { server: None }, "toolcrib logs SERVER"),
            (Hint::ApproveCall { id: "7".to_owned() }, "toolcrib approve --call 7"),
            (Hint::SetSecret { name: "a".to_owned() }, "toolcrib secret set a"),
            (Hint::RaiseLimit { key: "limits.memory".to_owned() }, "raise `limits.memory`"),
            (Hint::UseName { name: "git".to_owned() }, "did you mean `git`?"),
            (Hint::Text("wait".to_owned()), "wait"),
            (
                Hint::InstallProgram { server: server.clone(), program: "/opt/git-mcp".to_owned() },
                "correct `servers.git.command`, or install it, then run `toolcrib restart git`",
            ),
            (
                Hint::InstallProgram { server: server.clone(), program: "git-mcp".to_owned() },
                "install it, or set `servers.git.command` to the absolute path of `git-mcp`, then run `toolcrib restart git`",
            ),
            (
                Hint::LoginAs { server: server.clone(), caller: "a b".to_owned() },
                "toolcrib login git --as 'a b'",
            ),
        ] {
            assert_eq!(hint_text(&hint), expected);
        }
        let error = Error::new(toolcrib::ErrorKind::Lost, "gone").with_server(&server);
        assert_eq!(error_data(&error)["hint"], "toolcrib logs git");
    }

    #[test]
    fn hints_name_config_in_every_command() {
        let hints = Hints::for_config(Path::new("/my/own.toml"));
        for (hint, expected) in [
            ("toolcrib restart git", "toolcrib restart --config /my/own.toml git"),
            ("toolcrib serve", "toolcrib serve --config /my/own.toml"),
            ("toolcrib stop-gateway", "toolcrib stop-gateway --config /my/own.toml"),
            (
                "raise `x`, or see `toolcrib logs git`",
                "raise `x`, or see `toolcrib logs --config /my/own.toml git`",
            ),
            ("toolcrib secret set a", "toolcrib secret --config /my/own.toml set a"),
            ("toolcrib login git", "toolcrib login --config /my/own.toml git"),
            ("toolcrib help add", "toolcrib help add"),
            ("toolcrib --help", "toolcrib --help"),
            ("set it where toolcrib runs", "set it where toolcrib runs"),
            ("toolcrib stop --config x", "toolcrib stop --config x"),
        ] {
            assert_eq!(hints.complete(hint), expected);
            assert_eq!(Hints::default().complete(hint), hint);
        }
        let spaced = Hints::for_config(Path::new("/my own/it's.toml"));
        assert_eq!(spaced.complete("toolcrib check"), r"toolcrib check --config '/my own/it'\''s.toml'");
    }

    fn is_verb(word: &str) -> bool {
        crate::cli::help::command().find_subcommand(word).is_some()
    }

    /// Returns the commands in the texts of a source file: those that are in backticks or a whole string.
    fn written_commands(source: &str) -> Vec<String> {
        let source: String = source.split("\\\n").map(str::trim_start).collect();
        let mut commands = Vec::new();
        for line in source.lines().filter(|line| !line.trim_start().starts_with("//")) {
            for quote in ['`', '"'] {
                let parts = line.split(quote).skip(1);
                commands.extend(parts.filter(|part| part.starts_with("toolcrib ")).map(str::to_owned));
            }
        }
        commands
    }

    /// Replaces the placeholders of a format string by values that every argument accepts.
    fn fill_placeholders(command: &str) -> String {
        let command = command.replace("--listen {address}:{port}", "--listen 127.0.0.1:{}");
        let command = command.replace("--listen {address}", "--listen 127.0.0.1:0");
        let mut filled = String::new();
        for part in command.split('{') {
            match part.split_once('}') {
                Some((_, rest)) => filled += &format!("1{rest}"),
                None => filled += part,
            }
        }
        filled
    }

    /// Commands that texts also mention without arguments, as the name of the command.
    const MENTIONED: [&str; 4] = ["toolcrib call", "toolcrib login", "toolcrib logs", "toolcrib restart"];

    /// Returns whether the text is a command and not prose. Records a command that the program rejects.
    fn parses(command: &str, rejected: &mut Vec<String>) -> bool {
        let words = shlex::split(&fill_placeholders(command)).unwrap_or_default();
        if MENTIONED.contains(&command) || !words.get(1).is_some_and(|word| is_verb(word)) {
            return false;
        }
        let error = crate::cli::help::command().try_get_matches_from(&words).err();
        if let Some(error) = error.filter(|error| error.exit_code() != 0) {
            rejected.push(format!("{command}: {}", error.to_string().lines().next().unwrap_or_default()));
        }
        true
    }

    #[test]
    fn commands_in_messages_can_be_run_as_printed() {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
        let mut rejected = Vec::new();
        let mut checked = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() && path.file_name().is_some_and(|name| name != "tests") {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let source = std::fs::read_to_string(&path).unwrap();
                    let source = source.split("#[cfg(test)]\nmod tests").next().unwrap();
                    checked += written_commands(source)
                        .iter()
                        .filter(|command| parses(command, &mut rejected))
                        .count();
                }
            }
        }
        assert!(rejected.is_empty(), "{}", rejected.join("\n"));
        assert!(checked > 100, "{checked}");
    }
}
