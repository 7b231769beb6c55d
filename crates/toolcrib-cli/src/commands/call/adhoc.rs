//! The server of `call --command` and `call --url`, which need not be declared.

use toolcrib::config::Config;
use toolcrib::{CommandSpec, HttpSpec, Roster, ServerSpec};

use crate::cli::CallArgs;
use crate::command_error::CommandError;
use crate::paths::Paths;

/// Start of the name of the server.
pub(super) const NAME_PREFIX: &str = "adhoc-";
/// Digits of the spec's digest in the name of the server.
const NAME_DIGITS: usize = 8;

/// Returns the server that the command line describes, called `adhoc-HASH8` after the digest of its spec. `None` if the
/// server is a declared one.
pub(super) fn server_spec(args: &CallArgs) -> Result<Option<ServerSpec>, CommandError> {
    let mut spec: ServerSpec = match (&args.command, &args.url) {
        (Some(command), _) => {
            let words = shlex::split(command).ok_or_else(|| {
                let message = format!("`--command` has a quote that is not closed: `{command}`");
                CommandError::usage(message).hint("quote words as in a POSIX shell; no shell runs")
            })?;
            CommandSpec::argv(words).ok_or_else(|| CommandError::usage("`--command` is empty"))?.into()
        }
        (None, Some(url)) => HttpSpec::new(url).into(),
        (None, None) => return Ok(None),
    };
    let digest = spec.digest();
    let digits = digest.as_ref().map_or("", |digest| &digest.as_str()[..NAME_DIGITS]);
    spec.id = format!("{NAME_PREFIX}{digits}").parse().map_err(|error| CommandError::unexpected(&error))?;
    Ok(Some(spec))
}

/// Replaces a hint about the declaration of the server, which is on the command line.
pub(super) fn with_flag_hint(mut error: CommandError, args: &CallArgs) -> CommandError {
    let flag = if args.command.is_some() { "--command" } else { "--url" };
    let server = error.data["server"].as_str().unwrap_or_default();
    if error.hint.as_ref().is_some_and(|hint| !server.is_empty() && hint.contains(server)) {
        error.hint = Some(format!("check the value of `{flag}`"));
    }
    error
}

/// Returns the config with this server instead of the declared ones. Its rules and limits apply. No config file is needed.
pub(in crate::commands) fn config_with(paths: &Paths, spec: &ServerSpec) -> Result<Config, CommandError> {
    let mut config = match paths.has_config() {
        true => paths.valid_config()?,
        false => Config::parse(&paths.config, ""),
    };
    config.roster = Roster::default();
    config.roster.add(spec.clone()).map_err(|clash| CommandError::unexpected(&clash))?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use toolcrib::Endpoint;

    use super::*;

    fn spec(command: Option<&str>, url: Option<&str>) -> Result<Option<ServerSpec>, String> {
        let args = CallArgs {
            positional: vec!["tool".to_owned()],
            command: command.map(str::to_owned),
            url: url.map(str::to_owned),
            ..CallArgs::default()
        };
        server_spec(&args).map_err(|error| error.message)
    }

    #[test]
    fn command_is_split_into_words_without_a_shell() {
        let parsed = spec(Some(r#"prog 'a b' "c $HOME" d\ e '' ;"#), None).unwrap().unwrap();
        let Endpoint::Command(command) = &parsed.endpoint else { panic!("{parsed:?}") };
        let args: Vec<&str> = command.args.iter().map(toolcrib::TemplateText::source).collect();
        assert_eq!((command.program.source(), args), ("prog", vec!["a b", "c $HOME", "d e", "", ";"]));
        assert!(spec(Some("prog 'a"), None).unwrap_err().contains("not closed"));
        assert_eq!(spec(Some(" "), None).unwrap_err(), "`--command` is empty");
        assert!(spec(None, None).unwrap().is_none());
    }

    #[test]
    fn name_is_a_digest_of_the_spec() {
        let name = |command: &str| spec(Some(command), None).unwrap().unwrap().id.to_string();
        assert_eq!(name("prog  a"), name("prog 'a'"));
        assert_ne!(name("prog a"), name("prog b"));
        assert_eq!(name("prog a").len(), "adhoc-".len() + NAME_DIGITS);
        assert!(spec(None, Some("https://example.test/mcp")).unwrap().is_some());
    }
}
