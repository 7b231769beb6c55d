//! The fixtures of `scripts/matrix-peers` on the Rust SDK, and those that the reference server does not have.
//!
//! `matrix-server --era session|stateless`, on stdin and stdout. See `scripts/matrix-peers/README.md`, `e2e/tests/e2e/matrix`.

#![expect(deprecated, reason = "sampling, roots and logging are deprecated but must work")]

mod offers;
mod server;
mod tools;

use std::process::ExitCode;

use rmcp::{ErrorData, ServiceExt as _};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let stateless = std::env::args().any(|arg| arg == "stateless");
    let Ok(running) = server::Server::new(stateless).serve(rmcp::transport::stdio()).await else {
        return ExitCode::FAILURE;
    };
    if running.waiting().await.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns an internal error with this message.
pub(crate) fn internal_error(error: &dyn std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}
