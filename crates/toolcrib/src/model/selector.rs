//! The item that a call is addressed to: a tool, prompt, resource or task, by name.

use crate::spec::ServerId;

/// The item that a call is addressed to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Selector {
    /// The tool with this public name, or with this bare name if only one server has it.
    Tool(String),
    /// The prompt with this public name, or with this bare name if only one server has it.
    Prompt(String),
    /// The resource with this URI, or the resource template with this text.
    Resource(String),
    /// The task with this public name.
    Task(String),
    /// A tool, prompt, resource or task of one server, by the server's own name. The parameters are sent unchanged if they
    /// have this name.
    OnServer(ServerId, String),
}

impl Selector {
    /// Returns the name or URI.
    pub fn name(&self) -> &str {
        match self {
            Self::Tool(name) | Self::Prompt(name) | Self::Resource(name) | Self::Task(name) => name,
            Self::OnServer(_, name) => name,
        }
    }

    /// Converts the selector to its name or URI.
    pub fn into_name(self) -> String {
        match self {
            Self::Tool(name) | Self::Prompt(name) | Self::Resource(name) | Self::Task(name) => name,
            Self::OnServer(_, name) => name,
        }
    }
}
