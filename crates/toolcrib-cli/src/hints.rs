//! Puts hints of the library into commands of this program, and adds `--config FILE` to the commands when the config in
//! use is not the default one.

use std::borrow::Cow;
use std::path::Path;

use serde_json::Value;
use toolcrib::{Error, Hint, ServerId};

/// Commands that use the config.
const COMMANDS: [&str; 14] = [
    "serve",
    "stdio",
    "stop-gateway",
    "call",
    "tools",
    "resources",
    "prompts",
    "complete",
    "status",
    "restart",
    "stop",
    "logs",
    "check",
    "doctor",
];

/// Returns a hint in the words of this program: as a command where there is one.
pub fn hint_text(hint: &Hint) -> String {
    let name = |server: &Option<ServerId>| server.as_ref().map_or("SERVER".to_owned(), ToString::to_string);
    match hint {
        Hint::ListTools => "toolcrib tools".to_owned(),
        Hint::ReadLog { server } => format!("toolcrib logs {}", name(server)),
        Hint::RestartServer { server } => format!("toolcrib restart {}", name(server)),
        Hint::RepairServer { server } => {
            format!("fix `servers.{server}` in the config, then run: toolcrib restart {server}")
        }
        Hint::StartGateway => "toolcrib serve".to_owned(),
        Hint::RaiseStartTimeout { server } => {
            format!("raise `servers.{server}.lifecycle.start-timeout`, or see `toolcrib logs {server}`")
        }
        Hint::RaiseRunningServers => {
            "raise `limits.servers-running`, or stop one with `toolcrib stop`".to_owned()
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

    /// Returns the hint with the flag added to every command that uses the config.
    pub(crate) fn complete<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        let Some(flag) = self.config_flag.as_ref().filter(|_| !hint.contains("--config")) else {
            return hint.into();
        };
        let mut parts = hint.split("toolcrib ");
        let mut completed = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(part.len());
            let (command, rest) = part.split_at(end);
            completed += "toolcrib ";
            completed += command;
            if COMMANDS.contains(&command) {
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
            ("toolcrib --help", "toolcrib --help"),
            ("toolcrib is busy", "toolcrib is busy"),
            ("toolcrib stop --config x", "toolcrib stop --config x"),
        ] {
            assert_eq!(hints.complete(hint), expected);
            assert_eq!(Hints::default().complete(hint), hint);
        }
        let spaced = Hints::for_config(Path::new("/my own/it's.toml"));
        assert_eq!(spaced.complete("toolcrib check"), r"toolcrib check --config '/my own/it'\''s.toml'");
    }
}
