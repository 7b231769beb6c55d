//! Differences between tools and their approved definitions.

use std::sync::Arc;

use bytes::Bytes;

/// The difference between a tool and the approved ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinStatus {
    /// No tool of this name is approved.
    New,
    /// Its definition changed since it was approved.
    Changed,
}

impl PinStatus {
    /// The word for it in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Changed => "changed",
        }
    }
}

/// A tool and its difference from the approved ones.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolPinStatus {
    /// The server's own name of the tool.
    pub tool: Arc<str>,
    /// The difference.
    pub status: PinStatus,
}

impl ToolPinStatus {
    /// Creates the status of a tool.
    pub fn new(tool: impl Into<Arc<str>>, status: PinStatus) -> Self {
        Self { tool: tool.into(), status }
    }
}

/// One tool that differs from the approved ones, with both definitions.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PinDifference {
    /// The server's own name of the tool.
    pub tool: String,
    /// The difference.
    pub status: PinStatus,
    /// The approved definition as JSON, if there is one and its text is on disk.
    pub approved: Option<Bytes>,
    /// The definition that the server offers now, as JSON.
    pub offered: Bytes,
}

/// The tools of a server that wait for approval.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Unapproved {
    /// The tools by name.
    pub tools: Vec<PinDifference>,
    /// Digest of exactly these definitions. An approval names it, so that only what was shown is approved.
    pub digest: String,
}
