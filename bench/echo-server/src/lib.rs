//! Message handling shared by the stdio and HTTP echo servers.
//!
//! The cost of this server is negligible, so that a benchmark measures the gateway in front of it. Requests are parsed
//! with borrowed `serde_json` structures and answers are written by hand; the `echo` tool copies the encoded JSON string
//! without decoding it.

mod answer;
mod message;
mod server;
mod tools;

pub use server::{Action, Options, Server};
pub use tools::blob_text;

/// Protocol revisions that this server supports. `2026-07-28` has no `initialize`; it is served through `server/discover`
/// and per-request `_meta`.
pub const KNOWN_VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
/// The newest revision with an `initialize` handshake.
pub const LATEST_WITH_INITIALIZE: &str = "2025-11-25";
/// The first revision without an `initialize` handshake.
pub const NO_INITIALIZE: &str = "2026-07-28";
