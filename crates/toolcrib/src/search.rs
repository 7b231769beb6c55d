//! Search for tools by what they do, over the names, descriptions and arguments in the catalog. No server is started.

mod arguments;
mod embedder;
mod fields;
mod index;
mod words;

pub use arguments::{ToolArgument, tool_arguments};
pub use embedder::Embedder;
pub use fields::{SearchField, ServerText, split_summary};
pub use index::{MAX_QUERY_CHARS, Match, SearchIndex, ToolText};

#[cfg(test)]
mod tests;
