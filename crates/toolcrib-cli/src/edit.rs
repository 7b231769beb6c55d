//! Changes to files that people wrote: what was not meant to change keeps every byte.

pub(crate) mod entry;
pub(crate) mod file;
pub(crate) mod jsonc;
mod lines;
pub(crate) mod toml;
pub(crate) mod yaml;
