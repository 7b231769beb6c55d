//! The help of the program: its verbs in groups, and the options of every command once.

use clap::{CommandFactory as _, FromArgMatches as _};

use super::Cli;

/// Verbs that belong together.
struct VerbGroup {
    heading: &'static str,
    rows: &'static [VerbRow],
}

/// Verbs with one description, on one line.
struct VerbRow {
    verbs: &'static [&'static str],
    description: &'static str,
}

const fn row(verbs: &'static [&'static str], description: &'static str) -> VerbRow {
    VerbRow { verbs, description }
}

/// Every visible verb, once.
const GROUPS: [VerbGroup; 6] = [
    VerbGroup {
        heading: "Start:",
        rows: &[
            row(&["init"], "Set up toolcrib for all your agents; --undo"),
            row(&["demo"], "See it work in a few seconds, without a config"),
            row(&["doctor"], "Find out what is wrong, and how to fix it"),
        ],
    },
    VerbGroup {
        heading: "Tools:",
        rows: &[
            row(&["tools"], "List tools, show one, search, or show what they cost"),
            row(&["call"], "Call a tool"),
            row(&["resources", "prompts"], "List and read resources and prompts"),
            row(&["complete"], "Complete an argument of a prompt or a template"),
        ],
    },
    VerbGroup {
        heading: "Servers:",
        rows: &[
            row(&["add", "add-json", "rm"], "Declare or remove a server"),
            row(&["enable", "disable"], "Switch a server on or off"),
            row(&["ls", "show", "why"], "List servers; show where values come from"),
            row(&["check"], "Check the config"),
            row(&["secret"], "Manage the secrets of servers"),
            row(&["login", "logout"], "Log in to a remote server, or out"),
        ],
    },
    VerbGroup {
        heading: "Gateway:",
        rows: &[
            row(&["serve", "stdio"], "Serve MCP over HTTP, or on stdin and stdout"),
            row(&["ui", "status", "logs"], "Dashboard; state or stderr of servers"),
            row(&["top", "stats", "events"], "Show calls, latencies and what happened"),
            row(&["restart", "stop"], "Restart or stop a server"),
            row(&["service", "stop-gateway"], "Run the gateway as a service; stop it"),
        ],
    },
    VerbGroup {
        heading: "Agents and access:",
        rows: &[
            row(&["import", "export", "run"], "Use the servers and settings of your agents"),
            row(&["allow", "approve"], "Allow a project's config; approve calls"),
            row(&["policy", "audit"], "Test the access rules; verify the audit file"),
        ],
    },
    VerbGroup {
        heading: "Help:",
        rows: &[
            row(&["help", "explain"], "Explain a command, or an error code"),
            row(&["completions"], "Complete commands and names in your shell"),
        ],
    },
];

/// Column at which descriptions start.
const DESCRIPTION_COLUMN: usize = 26;

/// The options of every command.
const OPTIONS: &str = "\
Options of every command:
  --config FILE   Use only this file       --json      Print JSON
  -q, --quiet     Print only errors        --no-input  Never ask
  -v, --verbose   Print debug logs         --color auto|always|never
  -h, --help      Help of a command        -V, --version
";

/// Returns the command line with its help texts.
pub(crate) fn command() -> clap::Command {
    let after = "Options of every command: toolcrib help";
    let command = Cli::command().override_help(program_help());
    command.mut_subcommands(|verb| verb.after_help(after))
}

/// Parses the arguments of this process.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let matches = command().try_get_matches()?;
    Cli::from_arg_matches(&matches)
}

/// Returns the help of the program, at most 40 lines of 80 columns.
pub(crate) fn program_help() -> String {
    let mut help = "One gateway in front of all your MCP servers\n\n\
                    Usage: toolcrib [OPTIONS] COMMAND\n\n"
        .to_owned();
    for group in &GROUPS {
        help += group.heading;
        help.push('\n');
        for row in group.rows {
            let verbs = format!("  {}", row.verbs.join(", "));
            help += &format!("{verbs:<DESCRIPTION_COLUMN$}{}\n", row.description);
        }
    }
    help += OPTIONS;
    help + "\nExamples of a command: toolcrib help call\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_help_fits_a_screen_and_has_every_verb_once() {
        let help = program_help();
        assert!(help.lines().count() <= 40, "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        let rows = GROUPS.iter().flat_map(|group| group.rows);
        let mut shown: Vec<&str> = rows.flat_map(|row| row.verbs).copied().collect();
        shown.sort_unstable();
        let command = Cli::command();
        let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let mut verbs: Vec<&str> = visible.map(clap::Command::get_name).collect();
        verbs.sort_unstable();
        assert_eq!(shown, verbs, "each verb needs a place in `GROUPS`");
    }

    #[test]
    fn verb_help_has_examples_and_no_global_options() {
        command().debug_assert();
        let verbs = visible_subcommands(&command());
        let actions: Vec<clap::Command> = verbs.iter().flat_map(visible_subcommands).collect();
        for mut verb in verbs.into_iter().chain(actions) {
            let about = verb.get_long_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.contains("Examples:\n  "), "{}: {about}", verb.get_name());
            let help = verb.render_long_help().to_string();
            assert!(!help.contains("--no-input"), "{help}");
        }
    }

    fn visible_subcommands(command: &clap::Command) -> Vec<clap::Command> {
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).cloned().collect()
    }
}
