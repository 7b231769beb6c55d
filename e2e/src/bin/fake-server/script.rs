//! The command line.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// The protocol eras that the server speaks, and its behaviour when it is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Era {
    #[default]
    Session,
    Stateless,
    Both,
    ExitsOnProbe,
    SilentOnProbe,
    /// Like `Stateless`, and exits on `initialize`.
    ExitsOnInitialize,
}

impl Era {
    pub(crate) fn has_sessions(self) -> bool {
        !matches!(self, Self::Stateless | Self::ExitsOnInitialize)
    }

    pub(crate) fn is_stateless(self) -> bool {
        matches!(self, Self::Stateless | Self::Both | Self::ExitsOnInitialize)
    }
}

/// The behaviour of the server, one field per flag.
#[derive(Debug, Default)]
pub(crate) struct Script {
    /// Number of tools beside the useful ones.
    pub(crate) tools: usize,
    /// Tools per page of a list; 0 for all.
    pub(crate) page_size: usize,
    pub(crate) era: Era,
    pub(crate) start_delay: Duration,
    /// Number of starts that exit immediately; starts are counted in `count_file`.
    pub(crate) exit_at_start: usize,
    /// Number of starts that exit at the first message.
    pub(crate) exit_at_handshake: usize,
    pub(crate) count_file: Option<PathBuf>,
    pub(crate) never_answer_handshake: bool,
    pub(crate) ignore_eof: bool,
    pub(crate) ignore_term: bool,
    pub(crate) stderr_flood: usize,
    pub(crate) stdout_garbage: bool,
    pub(crate) grandchild: bool,
    /// A folder with one file per process, which lists its calls of the tool `record`.
    pub(crate) record_dir: Option<PathBuf>,
    /// A folder with error objects: a request for a list is answered with the content of the file named like the member of
    /// its result, if that exists.
    pub(crate) list_errors: Option<PathBuf>,
    /// A file whose content, if it exists, is the description of `echo`.
    pub(crate) description_file: Option<PathBuf>,
    /// A file whose content, if it exists, is the text of the instructions and the description of the prompt.
    pub(crate) instructions_file: Option<PathBuf>,
    /// Capabilities that are announced beside the fixed ones.
    pub(crate) capabilities: Value,
    /// The address of the page of the tool `show`.
    pub(crate) page: Option<String>,
    /// Whether the page is a listed resource.
    pub(crate) list_page: bool,
    /// A name in the answers, so that servers can be told apart.
    pub(crate) name: String,
    /// Lists a tool for each capability of the client.
    pub(crate) tool_per_capability: bool,
    /// Run as that grandchild.
    pub(crate) linger: bool,
}

impl Script {
    /// Returns the instructions of the server.
    pub(crate) fn instructions(&self) -> String {
        let file = self.instructions_file.as_ref();
        file.and_then(|file| std::fs::read_to_string(file).ok())
            .unwrap_or_else(|| "Ask the fake server for anything.".to_owned())
    }

    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let mut script = Self::default();
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--tools" => script.tools = parse_number(value()?)?,
                "--page-size" => script.page_size = parse_number(value()?)?,
                "--era" => script.era = parse_era(value()?)?,
                "--start-delay-ms" => {
                    script.start_delay = Duration::from_millis(parse_number(value()?)? as u64);
                }
                "--exit-at-start" => script.exit_at_start = parse_number(value()?)?,
                "--exit-at-handshake" => script.exit_at_handshake = parse_number(value()?)?,
                "--count-file" => script.count_file = Some(value()?.into()),
                "--never-answer-handshake" => script.never_answer_handshake = true,
                "--ignore-eof" => script.ignore_eof = true,
                "--ignore-term" => script.ignore_term = true,
                "--stderr-flood" => script.stderr_flood = parse_number(value()?)?,
                "--stdout-garbage" => script.stdout_garbage = true,
                "--grandchild" => script.grandchild = true,
                "--record-dir" => script.record_dir = Some(value()?.into()),
                "--list-errors" => script.list_errors = Some(value()?.into()),
                "--description-file" => script.description_file = Some(value()?.into()),
                "--instructions-file" => script.instructions_file = Some(value()?.into()),
                "--capabilities" => {
                    script.capabilities = value()?.parse().map_err(|_| "--capabilities is not JSON")?;
                }
                "--page" => script.page = Some(value()?.clone()),
                "--list-page" => script.list_page = true,
                "--name" => script.name.clone_from(value()?),
                "--tool-per-capability" => script.tool_per_capability = true,
                "--linger" => script.linger = true,
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(script)
    }

    /// Counts this start in the count file and returns its number, from 1.
    pub(crate) fn count_start(&self) -> usize {
        self.count_file.as_ref().map_or(usize::MAX, increment)
    }
}

/// Appends one byte to a file and returns the new size.
pub(crate) fn increment(file: &PathBuf) -> usize {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(b".").and_then(|()| opened.metadata()));
    written.map_or(0, |metadata| usize::try_from(metadata.len()).unwrap_or(usize::MAX))
}

fn parse_number(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn parse_era(text: &str) -> Result<Era, String> {
    Ok(match text {
        "session" => Era::Session,
        "stateless" => Era::Stateless,
        "both" => Era::Both,
        "exits-on-probe" => Era::ExitsOnProbe,
        "silent-on-probe" => Era::SilentOnProbe,
        "exits-on-initialize" => Era::ExitsOnInitialize,
        _ => return Err(format!("unknown era {text}")),
    })
}
