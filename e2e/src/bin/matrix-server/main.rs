//! The fixtures of `scripts/matrix-peers`, on the Rust SDK; and what the reference server has no fixture for.
//!
//! `matrix-server --era session|stateless`, on stdin and stdout. See `scripts/matrix-peers/README.md`, `e2e/tests/e2e/matrix`.

#![expect(deprecated, reason = "sampling, roots and logging are deprecated, and have to work nevertheless")]

mod offers;
mod server;
mod tools;

use std::process::ExitCode;

use rmcp::{ErrorData, ServiceExt as _};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let stateless = std::env::args().any(|word| word == "stateless");
    let Ok(running) = server::Server::new(stateless).serve(rmcp::transport::stdio()).await else {
        return ExitCode::FAILURE;
    };
    if running.waiting().await.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// An error of ours.
pub(crate) fn wrong(why: &dyn std::fmt::Display) -> ErrorData {
    ErrorData::internal_error(why.to_string(), None)
}
