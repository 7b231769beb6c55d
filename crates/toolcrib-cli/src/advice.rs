//! `Advice`: what to type next, complete for those whose config has to be named.

use std::borrow::Cow;
use std::path::Path;

/// Commands that are for one config.
const COMMANDS: [&str; 9] = ["serve", "stdio", "call", "tools", "status", "restart", "stop", "logs", "check"];

/// Completes what to type next.
#[derive(Debug, Clone, Default)]
pub(crate) struct Advice {
    /// ` --config FILE`, unless that is the file that is used when none is named.
    config: Option<String>,
}

impl Advice {
    /// For those who use this file, which has to be named.
    pub(crate) fn naming(config: &Path) -> Self {
        let file = std::path::absolute(config).unwrap_or_else(|_| config.to_owned()).display().to_string();
        let plain = |letter: char| letter.is_alphanumeric() || "/._-+=:@%,".contains(letter);
        let quoted =
            if file.chars().all(plain) { file } else { format!("'{}'", file.replace('\'', r"'\''")) };
        Self { config: Some(format!(" --config {quoted}")) }
    }

    /// The same hint, with the config in every command that needs it.
    pub(crate) fn complete<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        let Some(config) = self.config.as_ref().filter(|_| !hint.contains("--config")) else {
            return hint.into();
        };
        let mut whole = String::new();
        for (number, part) in hint.split("toolcrib ").enumerate() {
            let word = part.find(|letter: char| !letter.is_ascii_lowercase()).unwrap_or(part.len());
            let (word, rest) = part.split_at(word);
            let named = if number > 0 && COMMANDS.contains(&word) { config } else { "" };
            whole += &format!("{}{word}{named}{rest}", if number > 0 { "toolcrib " } else { "" });
        }
        whole.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_that_has_to_be_named_is_named_in_every_command() {
        let named = Advice::naming(Path::new("/my/own.toml"));
        for (hint, wanted) in [
            ("toolcrib restart git", "toolcrib restart --config /my/own.toml git"),
            ("toolcrib serve", "toolcrib serve --config /my/own.toml"),
            (
                "raise `x`, or see `toolcrib logs git`",
                "raise `x`, or see `toolcrib logs --config /my/own.toml git`",
            ),
            ("toolcrib --help", "toolcrib --help"),
            ("toolcrib is busy", "toolcrib is busy"),
            ("toolcrib stop --config x", "toolcrib stop --config x"),
        ] {
            assert_eq!(named.complete(hint), wanted);
            assert_eq!(Advice::default().complete(hint), hint);
        }
        let spaced = Advice::naming(Path::new("/my own/it's.toml"));
        assert_eq!(spaced.complete("toolcrib check"), r"toolcrib check --config '/my own/it'\''s.toml'");
    }
}
