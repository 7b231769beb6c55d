//! Lines of a server's log: its stderr output and its events.

use std::time::SystemTime;

use crate::model::event::Event;
use crate::spec::ServerId;

/// One line of a server's log.
#[derive(Debug, Clone, Copy)]
pub struct LogLine<'a> {
    /// The server.
    pub server: &'a ServerId,
    /// When it was written.
    pub at: SystemTime,
    /// The content of the line.
    pub source: LogSource<'a>,
}

/// A retained line of a server's stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StderrLine {
    /// The number of the line, starting at 1.
    pub number: u64,
    /// When it was written.
    pub at: SystemTime,
    /// The text, with secrets removed.
    pub text: String,
}

/// The content of a log line.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum LogSource<'a> {
    /// A line of stderr with its number, starting at 1.
    Stderr(u64, &'a str),
    /// An event of the server.
    Event(&'a Event),
}
