//! `toolcrib help [COMMAND]`: shows the help of the program or of a command.

use anyhow::Result;
use toolcrib::util::format::closest_match;

use crate::cli::help;
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;

/// Shows the help of a command, or of the program.
pub(crate) fn run(verbs: &[String], out: &mut Output) -> Result<ExitStatus> {
    let mut command = help::command();
    // Gives each command its full name in the usage line.
    command.build();
    for verb in verbs {
        let Some(found) = command.find_subcommand(verb) else {
            let names = command.get_subcommands().map(clap::Command::get_name);
            let error = CommandError::usage(format!("unknown command `{}`", verbs.join(" ")));
            let error = match closest_match(verb, names) {
                Some(closest) => error.hint(format!("did you mean `{closest}`?")),
                None => error.hint("toolcrib help"),
            };
            return Err(error.into());
        };
        command = found.clone();
    }
    out.print_line(command.render_long_help().to_string().trim_end())?;
    Ok(ExitStatus::Success)
}
