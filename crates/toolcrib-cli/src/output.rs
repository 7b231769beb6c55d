//! Output of commands: data goes to stdout, messages go to stderr.

use std::io::{self, IsTerminal as _, Write};

use serde_json::Value;
use toolcrib::config::{Problem, ProblemScope};

use crate::cli::{ColorChoice, GlobalArgs};
use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::hints::Hints;
use crate::progress_line;
use crate::visible_text::{escape_invisible, escape_json, escape_lines};

/// The output streams of a command and how to write to them.
pub(crate) struct Output {
    stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    /// True if data and errors are printed as JSON.
    pub(crate) json: bool,
    quiet: bool,
    /// Whether stdout is a terminal: cells of tables are aligned, otherwise they are separated by tabs.
    is_terminal: bool,
    uses_color: bool,
    hints: Hints,
    prompter: Prompter,
}

/// Asks the person at the terminal. Holds whether there is one and asking is allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Prompter(bool);

impl Prompter {
    /// Returns a prompter without a terminal.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self(false)
    }

    /// Returns whether questions can be asked.
    pub(crate) fn is_interactive(self) -> bool {
        self.0
    }

    /// Prints a text and reads one line, without its end. `None` if the input ended or there is no terminal.
    pub(crate) fn ask_line(self, text: &str) -> io::Result<Option<String>> {
        if !self.0 {
            return Ok(None);
        }
        let _paused = progress_line::pause();
        let mut stderr = io::stderr();
        write!(stderr, "{}", escape_lines(text))?;
        stderr.flush()?;
        let mut line = String::new();
        if io::stdin().read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(line.trim_end_matches(['\n', '\r']).to_owned()))
    }

    /// Asks a yes/no question. Without a terminal the answer is no.
    pub(crate) fn confirm(self, question: &str) -> io::Result<bool> {
        let answer = self.ask_line(&format!("{question} [y/N] "))?.unwrap_or_default();
        Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES"))
    }
}

/// Columns of an output that is not a terminal.
const DEFAULT_WIDTH: usize = 80;

const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const CYAN: &str = "\x1b[1;36m";
const RESET: &str = "\x1b[0m";

impl Output {
    /// Creates an output to the process's own streams.
    pub(crate) fn standard(globals: &GlobalArgs) -> Self {
        Self {
            stdout: Box::new(io::stdout()),
            stderr: Box::new(io::stderr()),
            json: globals.json,
            quiet: globals.quiet,
            is_terminal: io::stdout().is_terminal(),
            prompter: Prompter(
                !globals.no_input && !globals.json && io::stdin().is_terminal() && io::stderr().is_terminal(),
            ),
            uses_color: wants_color(globals.color, io::stderr().is_terminal(), |name| {
                std::env::var(name).ok()
            }),
            hints: Hints::default(),
        }
    }

    /// Sets how hints are completed.
    pub(crate) fn set_hints(&mut self, hints: Hints) {
        self.hints = hints;
    }

    /// Prints one line of data to stdout, with characters escaped that a terminal would interpret or hide.
    pub(crate) fn print_line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdout, "{}", escape_lines(line))?;
        self.stdout.flush()
    }

    /// Prints bytes and a newline to stdout: unchanged into a pipe or file, escaped on a terminal.
    pub(crate) fn print_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.is_terminal {
            let text = String::from_utf8_lossy(bytes);
            let text = if self.json { escape_json(&text) } else { escape_lines(&text) };
            return self.print_line(&text);
        }
        self.stdout.write_all(bytes)?;
        self.stdout.write_all(b"\n")?;
        self.stdout.flush()
    }

    /// Prints a JSON value to stdout.
    pub(crate) fn print_json(&mut self, value: &Value) -> io::Result<()> {
        writeln!(self.stdout, "{}", escape_json(&value.to_string()))?;
        self.stdout.flush()
    }

    /// Prints text on stdout in lines that fit the terminal, indented by some spaces.
    pub(crate) fn print_wrapped(&mut self, text: &str, indent: usize) -> io::Result<()> {
        for line in wrap_words(text, self.width().saturating_sub(indent)) {
            self.print_line(&format!("{:indent$}{line}", ""))?;
        }
        Ok(())
    }

    /// Writes bytes to stdout unchanged. Not for a terminal.
    pub(crate) fn print_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.write_all(bytes)?;
        self.stdout.flush()
    }

    /// Returns whether stdout is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Returns the number of columns of the terminal, 80 if there is none.
    pub(crate) fn width(&self) -> usize {
        let size = self.is_terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
        size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(DEFAULT_WIDTH)
    }

    /// Returns the number of lines of the terminal, if there is one.
    pub(crate) fn height(&self) -> Option<usize> {
        let size = self.is_terminal.then(|| rustix::termios::tcgetwinsize(io::stdout()).ok()).flatten();
        size.map(|size| usize::from(size.ws_row)).filter(|lines| *lines > 0)
    }

    /// Clears the terminal and moves to its first line. Does nothing if stdout is not a terminal.
    pub(crate) fn clear_screen(&mut self) -> io::Result<()> {
        match self.is_terminal {
            true => self.stdout.write_all(b"\x1b[H\x1b[2J"),
            false => Ok(()),
        }
    }

    /// Prints rows below a heading: aligned on a terminal, separated by tabs otherwise.
    pub(crate) fn print_table(&mut self, heading: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        let heading: Vec<String> = heading.iter().map(|&name| name.to_owned()).collect();
        let rows: Vec<Vec<String>> = rows.iter().map(|row| escape_cells(row)).collect();
        if !self.is_terminal {
            let mut lines = std::iter::once(&heading).chain(&rows);
            return lines.try_for_each(|row| self.print_line(&row.join("\t")));
        }
        let widths = column_widths(&heading, &rows);
        std::iter::once(&heading).chain(&rows).try_for_each(|row| self.print_line(&align_row(row, &widths)))
    }

    /// Prints rows like [`Output::print_table`]. On a terminal, the last column is cut off where a row is too long.
    pub(crate) fn print_fitted_table(&mut self, heading: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        if !self.is_terminal {
            return self.print_table(heading, rows);
        }
        let names: Vec<String> = heading.iter().map(|&name| name.to_owned()).collect();
        let width = self.width();
        let before: usize = column_widths(&names, rows).iter().rev().skip(1).map(|column| column + 2).sum();
        let fit = |row: &Vec<String>| {
            let mut row = row.clone();
            if let Some(last) = row.last_mut() {
                *last = truncate_line(last, width.saturating_sub(before).max(1));
            }
            row
        };
        let rows: Vec<Vec<String>> = rows.iter().map(fit).collect();
        self.print_table(heading, &rows)
    }

    /// Prints a message to stderr, unless `--quiet` or `--json` is set.
    pub(crate) fn print_note(&mut self, text: &str) -> io::Result<()> {
        if self.quiet || self.json {
            return Ok(());
        }
        self.print_stderr(text)
    }

    /// Prints a line to stdout, unless `--quiet` or `--json` is set.
    pub(crate) fn print_text(&mut self, text: &str) -> io::Result<()> {
        if self.quiet || self.json { Ok(()) } else { self.print_line(text) }
    }

    /// Prints a line to stderr in any mode.
    pub(crate) fn print_stderr(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.stderr, "{}", escape_lines(text))?;
        self.stderr.flush()
    }

    /// Prints a label in color and a text to stderr.
    fn print_labelled(&mut self, color: &str, label: &str, text: &str) -> io::Result<()> {
        let label = self.paint(color, label);
        writeln!(self.stderr, "{label} {}", escape_lines(text))?;
        self.stderr.flush()
    }

    /// Returns the prompter for questions.
    pub(crate) fn prompter(&self) -> Prompter {
        self.prompter
    }

    /// Prints a warning and a hint.
    pub(crate) fn warn(&mut self, message: &str, hint: Option<&str>) -> io::Result<()> {
        if self.quiet || self.json {
            return Ok(());
        }
        self.print_labelled(YELLOW, "warning:", message)?;
        hint.map_or(Ok(()), |hint| self.print_hint(hint))
    }

    /// Prints a warning and its hint on one line.
    pub(crate) fn warn_on_one_line(&mut self, message: &str, hint: Option<&str>) -> io::Result<()> {
        let message = message.split('\n').map(str::trim).collect::<Vec<_>>().join(" ");
        match hint {
            Some(hint) => self.warn(&format!("{message}; hint: {}", self.hints.complete(hint)), None),
            None => self.warn(&message, None),
        }
    }

    /// Prints the problems of a config that is used despite them.
    pub(crate) fn warn_problems(&mut self, problems: &[Problem]) -> io::Result<()> {
        problems.iter().try_for_each(|problem| {
            let consequence = match &problem.scope {
                ProblemScope::Server(name) => format!(" (server `{name}` is disabled)"),
                _ => String::new(),
            };
            self.warn(&format!("{problem}{consequence}"), problem.hint.as_deref())
        })
    }

    /// Prints an error with its details and hint.
    pub(crate) fn print_error(&mut self, error: &CommandError) -> io::Result<()> {
        if self.json {
            let hint = error.hint.as_deref().map(|hint| self.hints.complete(hint).into_owned());
            let json = CommandError { hint, ..error.clone() }.to_json().to_string();
            return self.print_stderr(&escape_json(&json));
        }
        // The message may be the only problem.
        for problem in error.problems().iter().filter(|problem| problem.to_string() != error.message) {
            self.print_stderr(&problem.to_string())?;
            problem.hint.as_deref().map_or(Ok(()), |hint| self.print_hint(hint))?;
        }
        self.print_labelled(RED, "error:", &error.to_string())?;
        for line in error.stderr_tail() {
            self.print_stderr(&format!("  {line}"))?;
        }
        error.hint.as_deref().map_or(Ok(()), |hint| self.print_hint(hint))
    }

    /// Prints a hint to stderr.
    pub(crate) fn print_hint(&mut self, hint: &str) -> io::Result<()> {
        let hint = self.complete_hint(hint);
        self.print_labelled(CYAN, "hint:", &hint)
    }

    /// Returns a hint with the config named in its commands, unless that is the default one.
    pub(crate) fn complete_hint(&self, hint: &str) -> String {
        self.hints.complete(hint).into_owned()
    }

    fn paint(&self, color: &str, text: &str) -> String {
        if self.uses_color { format!("{color}{text}{RESET}") } else { text.to_owned() }
    }

    /// Returns whether messages and log lines are colored.
    pub(crate) fn uses_color(&self) -> bool {
        self.uses_color
    }
}

/// Returns the exit status for an error that only means that the reader of the output is gone.
pub(crate) fn broken_pipe_exit(error: &anyhow::Error) -> Option<ExitStatus> {
    let io = error.downcast_ref::<io::Error>()?;
    (io.kind() == io::ErrorKind::BrokenPipe).then_some(ExitStatus::Success)
}

fn wants_color(choice: ColorChoice, is_terminal: bool, env: impl Fn(&str) -> Option<String>) -> bool {
    let is_set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto if is_set("NO_COLOR") => false,
        ColorChoice::Auto if env("CLICOLOR_FORCE").is_some_and(|value| !value.is_empty() && value != "0") => {
            true
        }
        ColorChoice::Auto => is_terminal && env("TERM").is_none_or(|term| term != "dumb"),
    }
}

/// Splits text into lines of at most `width` characters between words. A longer word has a line of its own.
pub(crate) fn wrap_words(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Shortens a line to `width` characters, with an ellipsis if something is cut off.
pub(crate) fn truncate_line(line: &str, width: usize) -> String {
    if line.chars().count() <= width {
        return line.to_owned();
    }
    let mut cut: String = line.chars().take(width.saturating_sub(1)).collect();
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// Escapes the cells of a row: no cell can end the row or start another one.
fn escape_cells(row: &[String]) -> Vec<String> {
    row.iter().map(|cell| escape_invisible(cell).into_owned()).collect()
}

fn column_widths(heading: &[String], rows: &[Vec<String>]) -> Vec<usize> {
    let width = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
    (0..heading.len())
        .map(|at| {
            rows.iter().map(|row| width(row, at)).chain([heading[at].chars().count()]).max().unwrap_or(0)
        })
        .collect()
}

fn align_row(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn color_follows_flag_then_environment_then_terminal() {
        let none = |_: &str| None;
        let no_color = |name: &str| (name == "NO_COLOR").then(|| "1".to_owned());
        let dumb = |name: &str| (name == "TERM").then(|| "dumb".to_owned());
        let forced = |name: &str| (name == "CLICOLOR_FORCE").then(|| "1".to_owned());
        assert!(wants_color(ColorChoice::Auto, true, none));
        assert!(!wants_color(ColorChoice::Auto, false, none));
        assert!(!wants_color(ColorChoice::Auto, true, no_color));
        assert!(wants_color(ColorChoice::Always, false, no_color));
        assert!(!wants_color(ColorChoice::Auto, true, dumb));
        assert!(wants_color(ColorChoice::Auto, false, forced));
        assert!(!wants_color(ColorChoice::Never, true, forced));
    }

    #[test]
    fn long_lines_are_wrapped_or_truncated() {
        assert_eq!(wrap_words("one two  three\nfour", 9), ["one two", "three", "four"]);
        assert_eq!(wrap_words("overlong word", 4), ["overlong", "word"]);
        assert_eq!(truncate_line("Größe und Form", 8), "Größe u…");
        assert_eq!(truncate_line("one two", 5), "one…");
        assert_eq!(truncate_line("short", 5), "short");
    }

    #[test]
    fn aligned_rows_have_no_trailing_spaces() {
        let rows = vec![vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), String::new()]];
        let widths = column_widths(&["NAME".to_owned(), "X".to_owned()], &rows);
        assert_eq!(align_row(&rows[0], &widths), "a     b");
        assert_eq!(align_row(&rows[1], &widths), "long");
    }
}
