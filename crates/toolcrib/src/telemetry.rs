//! The names under which calls are traced, in one place.
//!
//! They follow the OpenTelemetry conventions for MCP. Nothing of a call's arguments or of its result is ever recorded.

use std::time::Duration;

use tracing::{Span, field};

use crate::call::{Call, Outcome};
use crate::error::Error;
use crate::spec::ServerId;

/// The target of call spans, for `TOOLCRIB_LOG`.
pub const CALL: &str = "toolcrib::call";

/// Whether anybody traces calls.
pub(crate) fn is_on() -> bool {
    tracing::enabled!(target: CALL, tracing::Level::INFO)
}

/// One span per call.
pub(crate) fn span(call: &Call) -> Span {
    tracing::info_span!(
        target: CALL,
        "tools/call",
        mcp.method.name = "tools/call",
        gen_ai.tool.name = call.name(),
        gen_ai.operation.name = "execute_tool",
        toolcrib.caller = call.caller.as_str(),
        toolcrib.server = field::Empty,
        error.r#type = field::Empty,
    )
}

/// The server that was found for the call under way.
pub(crate) fn found(server: &ServerId) {
    Span::current().record("toolcrib.server", server.as_str());
}

/// The end of a call: one line inside its span.
pub(crate) fn ended(outcome: &Result<Outcome, Error>, took: Duration) {
    let failure = match outcome {
        Ok(outcome) if outcome.is_error() => Some("tool_error"),
        Ok(_) => None,
        Err(error) => Some(error.kind().facts().name),
    };
    if let Some(failure) = failure {
        Span::current().record("error.type", failure);
    }
    tracing::info!(target: CALL, outcome = failure.unwrap_or("ok"), duration = ?took, "called");
}
