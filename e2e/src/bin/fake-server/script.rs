//! What the server was told to be.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Which protocol eras it speaks, and how it takes the question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Era {
    #[default]
    Session,
    Stateless,
    Both,
    DiesOnProbe,
    SilentOnProbe,
}

impl Era {
    pub(crate) fn has_sessions(self) -> bool {
        self != Self::Stateless
    }

    pub(crate) fn is_stateless(self) -> bool {
        matches!(self, Self::Stateless | Self::Both)
    }
}

/// The script, one member per flag.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// Tools beside the useful ones.
    pub(crate) tools: usize,
    /// Tools on one page of a list; 0 for all of them.
    pub(crate) page_size: usize,
    pub(crate) era: Era,
    pub(crate) start_delay: Duration,
    /// How many starts end at once; they are counted in `count_file`.
    pub(crate) exit_at_start: usize,
    /// How many starts end at the first message.
    pub(crate) exit_at_handshake: usize,
    pub(crate) count_file: Option<PathBuf>,
    pub(crate) never_answer_handshake: bool,
    pub(crate) ignore_eof: bool,
    pub(crate) ignore_term: bool,
    pub(crate) stderr_flood: usize,
    pub(crate) stdout_noise: bool,
    pub(crate) grandchild: bool,
    /// A folder with one file for each process: every call of `stamp` that it worked on.
    pub(crate) ledger: Option<PathBuf>,
    /// What the description of `echo` is, if there is such a file.
    pub(crate) describe: Option<PathBuf>,
    /// Be that grandchild.
    pub(crate) linger: bool,
}

impl Script {
    pub(crate) fn read(words: &[String]) -> Result<Self, String> {
        let mut script = Self::default();
        let mut words = words.iter();
        while let Some(flag) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{flag} wants a value"));
            match flag.as_str() {
                "--tools" => script.tools = number(value()?)?,
                "--page-size" => script.page_size = number(value()?)?,
                "--era" => script.era = era(value()?)?,
                "--start-delay-ms" => script.start_delay = Duration::from_millis(number(value()?)? as u64),
                "--exit-at-start" => script.exit_at_start = number(value()?)?,
                "--exit-at-handshake" => script.exit_at_handshake = number(value()?)?,
                "--count-file" => script.count_file = Some(value()?.into()),
                "--never-answer-handshake" => script.never_answer_handshake = true,
                "--ignore-eof" => script.ignore_eof = true,
                "--ignore-term" => script.ignore_term = true,
                "--stderr-flood" => script.stderr_flood = number(value()?)?,
                "--stdout-noise" => script.stdout_noise = true,
                "--grandchild" => script.grandchild = true,
                "--ledger" => script.ledger = Some(value()?.into()),
                "--describe" => script.describe = Some(value()?.into()),
                "--linger" => script.linger = true,
                _ => return Err(format!("there is no flag {flag}")),
            }
        }
        Ok(script)
    }

    /// Counts this start in the count file; returns its number, from 1.
    pub(crate) fn count_start(&self) -> usize {
        self.count_file.as_ref().map_or(usize::MAX, append)
    }
}

/// Appends one byte to a file; returns how many it holds then.
pub(crate) fn append(file: &PathBuf) -> usize {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(b".").and_then(|()| opened.metadata()));
    written.map_or(0, |metadata| usize::try_from(metadata.len()).unwrap_or(usize::MAX))
}

fn number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn era(text: &str) -> Result<Era, String> {
    Ok(match text {
        "session" => Era::Session,
        "stateless" => Era::Stateless,
        "both" => Era::Both,
        "dies-on-probe" => Era::DiesOnProbe,
        "silent-on-probe" => Era::SilentOnProbe,
        _ => return Err(format!("there is no era {text}")),
    })
}
