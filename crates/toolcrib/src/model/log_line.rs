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

/// The content of a log line.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum LogSource<'a> {
    /// A line of stderr with its number, starting at 1.
    Stderr(u64, &'a str),
    /// An event of the server.
    Event(&'a Event),
}
