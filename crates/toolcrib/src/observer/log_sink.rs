//! The receiver of the servers' log lines.

use std::fmt;
use std::sync::Arc;

use crate::model::log_line::{LogLine, LogSource};
use crate::spec::ServerId;
use crate::util::{clock, panics};

/// Receives log lines. It must not block.
#[derive(Clone)]
pub(crate) struct LogSink(pub(crate) Arc<dyn Fn(LogLine<'_>) + Send + Sync>);

impl LogSink {
    /// Passes a line on, with the current time.
    pub(crate) fn write(&self, server: &ServerId, source: LogSource<'_>) {
        panics::contain("log function", || (self.0)(LogLine { server, at: clock::wall_time(), source }));
    }
}

impl fmt::Debug for LogSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogSink")
    }
}
