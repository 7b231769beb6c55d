//! `LogLine`: what a server wrote to stderr and what happened to it, for whoever keeps a log of each server.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::clock;
use crate::event::Event;
use crate::spec::ServerId;

/// One line in a server's log.
#[derive(Debug, Clone, Copy)]
pub struct LogLine<'a> {
    /// Whose it is.
    pub server: &'a ServerId,
    /// When it was written.
    pub at: SystemTime,
    /// What it says.
    pub what: LogWhat<'a>,
}

/// What a line in a server's log says.
#[derive(Debug, Clone, Copy)]
pub enum LogWhat<'a> {
    /// A line of stderr, with its number; the server's first has 1.
    Stderr(u64, &'a str),
    /// Something happened to the server.
    Happened(&'a Event),
}

/// Takes lines; it must not wait for anything.
#[derive(Clone)]
pub(crate) struct LogSink(pub(crate) Arc<dyn Fn(LogLine<'_>) + Send + Sync>);

impl LogSink {
    pub(crate) fn take(&self, server: &ServerId, what: LogWhat<'_>) {
        (self.0)(LogLine { server, at: clock::wall(), what });
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogSink")
    }
}
