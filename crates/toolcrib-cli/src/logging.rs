//! Log lines: to stderr, filtered by `TOOLCRIB_LOG`.

use std::io;

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::{Command, Globals};
use crate::output::Output;

/// Starts writing log lines. A filter that cannot be read is said to be so, and passed over.
pub(crate) fn start(globals: &Globals, command: &Command, out: &mut Output) -> io::Result<()> {
    let asked = std::env::var("TOOLCRIB_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = match asked.map(|filter| filter.parse::<Targets>()) {
        Some(Ok(filter)) => filter,
        Some(Err(error)) => {
            out.warn(
                &format!("`TOOLCRIB_LOG` is not a filter: {error}"),
                Some("TOOLCRIB_LOG=info,toolcrib=debug"),
            )?;
            usual(globals, command)
        }
        None => usual(globals, command),
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(out.colour());
    // When nobody reads stderr any more, a complaint about it would panic in whichever task logs.
    let lines = lines.log_internal_errors(false);
    // Whoever embeds this program may have set up logging already; theirs stays.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}

fn usual(globals: &Globals, command: &Command) -> Targets {
    if globals.quiet {
        return Targets::new().with_default(LevelFilter::ERROR);
    }
    let usual = match command {
        Command::Serve(_) => {
            Targets::new().with_default(LevelFilter::INFO).with_target("toolcrib::call", LevelFilter::WARN)
        }
        // What goes wrong there is meant to, and is shown as it should be.
        Command::Demo => Targets::new(),
        // These say themselves what went wrong.
        Command::Call(_) | Command::Tools(_) => Targets::new().with_default(LevelFilter::ERROR),
        _ => Targets::new().with_default(LevelFilter::WARN),
    };
    if globals.verbose { usual.with_target("toolcrib", LevelFilter::DEBUG) } else { usual }
}
