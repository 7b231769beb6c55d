//! Changes to files that people wrote: what was not meant to change keeps every byte.

pub(crate) mod file;
pub(crate) mod toml;
