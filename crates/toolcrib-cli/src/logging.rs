//! Logging to stderr, filtered by `TOOLCRIB_LOG`.

use std::io;

use tracing_subscriber::Layer as _;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::{Command, GlobalArgs};
use crate::output::Output;
use crate::progress_line;
use crate::visible_text::escape_invisible;

/// Installs the log subscriber. An invalid filter causes a warning and is ignored.
pub(crate) fn init(globals: &GlobalArgs, command: &Command, out: &mut Output) -> io::Result<()> {
    let variable = std::env::var("TOOLCRIB_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = match variable.map(|filter| filter.parse::<Targets>()) {
        Some(Ok(filter)) => filter,
        Some(Err(error)) => {
            out.warn(
                &format!("`TOOLCRIB_LOG` is not a valid log filter: {error}"),
                Some("TOOLCRIB_LOG=info,toolcrib=debug"),
            )?;
            default_filter(globals, command)
        }
        None => default_filter(globals, command),
    };
    let fields = format::debug_fn(|writer, field, value| {
        let text = format!("{value:?}");
        match field.name() {
            "message" => write!(writer, "{}", escape_invisible(&text)),
            name => write!(writer, "{name}={}", escape_invisible(unquote(&text))),
        }
    });
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| {
            progress_line::erase();
            io::stderr()
        })
        .with_ansi(out.uses_color())
        .fmt_fields(fields.delimited(" "));
    // When stderr is closed, reporting that would panic in the task that logs.
    let lines = lines.log_internal_errors(false);
    // A subscriber that is already installed stays.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}

/// Returns a string value without the quotes of its debug form, if it is one word.
fn unquote(text: &str) -> &str {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.filter(|inner| !inner.is_empty() && !inner.contains(['"', '\\', ' ', '='])).unwrap_or(text)
}

fn default_filter(globals: &GlobalArgs, command: &Command) -> Targets {
    if globals.quiet {
        return Targets::new().with_default(LevelFilter::ERROR);
    }
    let filter = match command {
        Command::Serve(_) => {
            Targets::new().with_default(LevelFilter::INFO).with_target("toolcrib::call", LevelFilter::WARN)
        }
        // The demo causes failures on purpose and reports them itself.
        Command::Demo => Targets::new(),
        // These report errors themselves.
        Command::Call(_)
        | Command::Tools(_)
        | Command::Resources(_)
        | Command::Prompts(_)
        | Command::Complete(_)
        | Command::Doctor(_)
        | Command::Add(_)
        | Command::Init(_) => Targets::new().with_default(LevelFilter::ERROR),
        _ => Targets::new().with_default(LevelFilter::WARN),
    };
    if globals.verbose { filter.with_target("toolcrib", LevelFilter::DEBUG) } else { filter }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_logged_without_quotes() {
        let values = ["\"crashed\"", "\"two words\"", "\"\"", "7", r#""a\"b""#];
        assert_eq!(values.map(unquote), ["crashed", "\"two words\"", "\"\"", "7", r#""a\"b""#]);
    }
}
