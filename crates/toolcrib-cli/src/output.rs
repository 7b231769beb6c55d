//! `Output`: data goes to stdout, talk goes to stderr; people's eyes and scripts' eyes.

use std::io::{self, IsTerminal as _, Write};

use serde_json::Value;
use toolcrib::config::{Concern, Problem};

use crate::advice::Advice;
use crate::cli::{Colour, Globals};
use crate::exit::Exit;
use crate::failure::Failure;

/// Where a command writes, and in which manner.
pub(crate) struct Output {
    stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    /// Scripts are reading: data as JSON, one error object.
    pub(crate) json: bool,
    quiet: bool,
    /// Whether columns are aligned for a person.
    table: bool,
    colour: bool,
    advice: Advice,
    /// The person in front of it.
    asker: Asker,
}

/// The person in front of a command, if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker(bool);

impl Asker {
    /// Whether there is one, and it may be asked.
    pub(crate) fn is_there(self) -> bool {
        self.0
    }

    /// Whether a person says yes; without one that is a no.
    pub(crate) fn says_yes(self, question: &str) -> io::Result<bool> {
        if !self.0 {
            return Ok(false);
        }
        let mut stderr = io::stderr();
        write!(stderr, "{question} [y/N] ")?;
        stderr.flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes" | "YES"))
    }
}

const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[1;33m";
const CYAN: &str = "\x1b[1;36m";
const RESET: &str = "\x1b[0m";

impl Output {
    /// The process's own streams.
    pub(crate) fn standard(globals: &Globals) -> Self {
        Self {
            stdout: Box::new(io::stdout()),
            stderr: Box::new(io::stderr()),
            json: globals.json,
            quiet: globals.quiet,
            table: io::stdout().is_terminal(),
            asker: Asker(!globals.no_input && !globals.json && io::stdin().is_terminal()),
            colour: coloured(globals.color, io::stderr().is_terminal(), |name| std::env::var(name).ok()),
            advice: Advice::default(),
        }
    }

    /// How hints are completed from now on.
    pub(crate) fn advise(&mut self, advice: Advice) {
        self.advice = advice;
    }

    /// One line of data.
    pub(crate) fn line(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdout, "{line}")?;
        self.stdout.flush()
    }

    /// Data that is JSON already, and a line end.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stdout.write_all(bytes)?;
        self.stdout.write_all(b"\n")?;
        self.stdout.flush()
    }

    /// Data for scripts.
    pub(crate) fn value(&mut self, value: &Value) -> io::Result<()> {
        self.line(&value.to_string())
    }

    /// Rows of columns: aligned below a heading for a person, separated by tabs otherwise.
    pub(crate) fn rows(&mut self, heading: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
        if !self.table {
            return rows.iter().try_for_each(|row| self.line(&row.join("\t")));
        }
        let heading: Vec<String> = heading.iter().map(|&name| name.to_owned()).collect();
        let widths = widths(&heading, rows);
        std::iter::once(&heading).chain(rows).try_for_each(|row| self.line(&aligned(row, &widths)))
    }

    /// Talk, unless nobody wants any.
    pub(crate) fn say(&mut self, text: &str) -> io::Result<()> {
        if self.quiet || self.json {
            return Ok(());
        }
        self.always(text)
    }

    /// What a person came to see, on stdout; scripts get it as one value at the end.
    pub(crate) fn tell(&mut self, text: &str) -> io::Result<()> {
        if self.quiet || self.json { Ok(()) } else { self.line(text) }
    }

    /// A line on stderr that is always said.
    pub(crate) fn always(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.stderr, "{text}")?;
        self.stderr.flush()
    }

    /// Who can be asked.
    pub(crate) fn asker(&self) -> Asker {
        self.asker
    }

    /// Something to know, and what to type next.
    pub(crate) fn warn(&mut self, message: &str, hint: Option<&str>) -> io::Result<()> {
        let warning = self.painted(YELLOW, "warning:");
        self.say(&format!("{warning} {message}"))?;
        hint.map_or(Ok(()), |hint| self.hint(hint))
    }

    /// What is to be repaired in a config that is used all the same.
    pub(crate) fn problems(&mut self, problems: &[Problem]) -> io::Result<()> {
        problems.iter().try_for_each(|problem| {
            let consequence = match &problem.concerns {
                Concern::Server(name) => format!(" (`{name}` is off)"),
                Concern::Whole | Concern::Part | Concern::Note => String::new(),
            };
            self.warn(&format!("{problem}{consequence}"), problem.hint.as_deref())
        })
    }

    /// Why the command did not do what was asked.
    pub(crate) fn failure(&mut self, failure: &Failure) -> io::Result<()> {
        if self.json {
            let hint = failure.hint.as_deref().map(|hint| self.advice.complete(hint).into_owned());
            return self.always(&Failure { hint, ..failure.clone() }.to_json().to_string());
        }
        for problem in failure.data["problems"].as_array().into_iter().flatten() {
            self.broken(problem)?;
        }
        let error = self.painted(RED, "error:");
        self.always(&format!("{error} {failure}"))?;
        for line in failure.stderr() {
            self.always(&format!("  {line}"))?;
        }
        failure.hint.as_deref().map_or(Ok(()), |hint| self.hint(hint))
    }

    fn broken(&mut self, problem: &Value) -> io::Result<()> {
        self.always(&problem_line(problem))?;
        problem["hint"].as_str().map_or(Ok(()), |hint| self.hint(hint))
    }

    fn hint(&mut self, hint: &str) -> io::Result<()> {
        let (label, hint) = (self.painted(CYAN, "hint:"), self.advice.complete(hint));
        writeln!(self.stderr, "{label} {hint}")
    }

    fn painted(&self, colour: &str, text: &str) -> String {
        if self.colour { format!("{colour}{text}{RESET}") } else { text.to_owned() }
    }

    /// Whether log lines may be coloured too.
    pub(crate) fn colour(&self) -> bool {
        self.colour
    }
}

/// `FILE:LINE:COL: message` from a problem as scripts see it.
pub(crate) fn problem_line(problem: &Value) -> String {
    let (file, message) = (problem["file"].as_str(), problem["message"].as_str());
    let (file, message) = (file.unwrap_or_default(), message.unwrap_or_default());
    match (problem["line"].as_u64(), problem["column"].as_u64()) {
        (Some(line), Some(column)) => format!("{file}:{line}:{column}: {message}"),
        _ => format!("{file}: {message}"),
    }
}

/// A reader that went away has seen enough: that is no failure.
pub(crate) fn ended(error: &anyhow::Error) -> Option<Exit> {
    let io = error.downcast_ref::<io::Error>()?;
    (io.kind() == io::ErrorKind::BrokenPipe).then_some(Exit::Fine)
}

fn coloured(choice: Colour, terminal: bool, env: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    match choice {
        Colour::Always => true,
        Colour::Never => false,
        Colour::Auto if set("NO_COLOR") => false,
        Colour::Auto if env("CLICOLOR_FORCE").is_some_and(|value| !value.is_empty() && value != "0") => true,
        Colour::Auto => terminal && env("TERM").is_none_or(|term| term != "dumb"),
    }
}

fn widths(heading: &[String], rows: &[Vec<String>]) -> Vec<usize> {
    let width = |row: &Vec<String>, at: usize| row.get(at).map_or(0, |cell| cell.chars().count());
    (0..heading.len())
        .map(|at| {
            rows.iter().map(|row| width(row, at)).chain([heading[at].chars().count()]).max().unwrap_or(0)
        })
        .collect()
}

fn aligned(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colour_follows_the_flag_then_the_environment_then_the_terminal() {
        let none = |_: &str| None;
        let no_colour = |name: &str| (name == "NO_COLOR").then(|| "1".to_owned());
        let dumb = |name: &str| (name == "TERM").then(|| "dumb".to_owned());
        let forced = |name: &str| (name == "CLICOLOR_FORCE").then(|| "1".to_owned());
        assert!(coloured(Colour::Auto, true, none));
        assert!(!coloured(Colour::Auto, false, none));
        assert!(!coloured(Colour::Auto, true, no_colour));
        assert!(coloured(Colour::Always, false, no_colour));
        assert!(!coloured(Colour::Auto, true, dumb));
        assert!(coloured(Colour::Auto, false, forced));
        assert!(!coloured(Colour::Never, true, forced));
    }

    #[test]
    fn columns_are_aligned_and_end_without_blanks() {
        let rows = vec![vec!["a".to_owned(), "b".to_owned()], vec!["long".to_owned(), String::new()]];
        let widths = widths(&["NAME".to_owned(), "X".to_owned()], &rows);
        assert_eq!(aligned(&rows[0], &widths), "a     b");
        assert_eq!(aligned(&rows[1], &widths), "long");
    }
}
