//! Message handling shared by the stdio and HTTP echo servers.
//!
//! The point of this crate is to be a server whose own cost is negligible, so that a benchmark measures the
//! gateway in front of it. Requests are parsed with borrowed `serde_json` structures and answers are
//! assembled by hand; the `echo` tool never decodes its text, it copies the encoded JSON string.

mod answer;
mod message;
mod server;
mod tools;

pub use server::{Action, Options, Server};
pub use tools::blob_text;

/// Revisions this server knows. `2026-07-28` has no `initialize`; it is served through `server/discover` and
/// per-request `_meta`.
pub const KNOWN_VERSIONS: &[&str] = &["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"];
/// The newest revision that still has an `initialize` handshake.
pub const LATEST_WITH_INITIALIZE: &str = "2025-11-25";
/// The first revision without one.
pub const NO_INITIALIZE: &str = "2026-07-28";
