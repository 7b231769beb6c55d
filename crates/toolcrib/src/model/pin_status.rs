//! Differences between what a server offers and what was approved.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

/// A kind of definition that is pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PinnedKind {
    /// A tool.
    Tool,
    /// A prompt.
    Prompt,
    /// A resource.
    Resource,
    /// A resource template.
    Template,
    /// The instructions for models, of which a server has at most one text.
    Instructions,
}

impl PinnedKind {
    /// Every kind.
    pub(crate) const ALL: [Self; 5] =
        [Self::Tool, Self::Prompt, Self::Resource, Self::Template, Self::Instructions];

    /// The word for it in JSON and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Prompt => "prompt",
            Self::Resource => "resource",
            Self::Template => "template",
            Self::Instructions => "instructions",
        }
    }
}

/// The difference between an item and the approved ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PinStatus {
    /// No item of this name is approved.
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

/// A tool, another item or the instructions of a server, and the difference from what was approved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolPinStatus {
    /// The kind of the item.
    pub kind: PinnedKind,
    /// The server's own name of the item: a name, a URI, a URI template, or `instructions`.
    pub tool: Arc<str>,
    /// The difference.
    pub status: PinStatus,
}

impl ToolPinStatus {
    /// Creates the status of a tool.
    pub fn new(tool: impl Into<Arc<str>>, status: PinStatus) -> Self {
        Self { kind: PinnedKind::Tool, tool: tool.into(), status }
    }

    /// Returns the status of an item of another kind.
    #[must_use]
    pub fn with_kind(self, kind: PinnedKind) -> Self {
        Self { kind, ..self }
    }
}

/// Writes the kind, unless it is a tool, and the name.
impl fmt::Display for ToolPinStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            PinnedKind::Tool | PinnedKind::Instructions => f.write_str(&self.tool),
            kind => write!(f, "{} {}", kind.as_str(), self.tool),
        }
    }
}

/// One item that differs from the approved ones, with both definitions.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PinDifference {
    /// The kind of the item.
    pub kind: PinnedKind,
    /// The server's own name of the item.
    pub tool: String,
    /// The difference.
    pub status: PinStatus,
    /// The approved definition as JSON, if there is one and its text is on disk.
    pub approved: Option<Bytes>,
    /// The definition that the server offers now, as JSON.
    pub offered: Bytes,
}

/// The items of a server that wait for approval.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Unapproved {
    /// The items by kind and name, tools first.
    pub tools: Vec<PinDifference>,
    /// Digest of exactly these definitions. An approval names it, so that only what was shown is approved.
    pub digest: String,
}
