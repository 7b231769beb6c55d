//! Arguments of the servers of `demo`.

use clap::{Args, ValueEnum};

/// Arguments of the hidden `demo-server`.
#[derive(Debug, Args)]
pub(crate) struct DemoServerArgs {
    /// The server to run
    pub(crate) role: DemoRole,
}

/// The kind of a demo server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoRole {
    /// Returns its input.
    Echo,
    /// Counts, and has a tool that never returns.
    Counter,
    /// Exits immediately.
    Crashing,
}
