//! The MCP wire format: framing, JSON-RPC messages, revisions and the translation between eras.
//!
//! Only the envelope and the members that toolcrib acts on are parsed and rewritten; everything else passes through as
//! the original bytes. Nothing in this module does I/O or reads a clock.

pub(crate) mod definition;
pub mod era;
pub mod framing;
pub mod header_mirror;
pub mod json;
pub mod jsonrpc;
pub mod list_kind;
pub mod member_names;
pub mod sse;
pub mod versions;
