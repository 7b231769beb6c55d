//! Tracing spans of calls, named after the OpenTelemetry conventions for MCP.
//!
//! Arguments and results are never recorded.

use tokio::time::Instant;
use tracing::{Span, field};

use crate::call::Call;
use crate::model::error::Error;
use crate::model::event::CallEnd;
use crate::model::outcome::Outcome;
use crate::spec::ServerId;

/// The target of call spans, for `TOOLCRIB_LOG`.
pub(crate) const CALL_TARGET: &str = "toolcrib::call";

/// Returns whether call spans are recorded.
pub(crate) fn is_enabled() -> bool {
    tracing::enabled!(target: CALL_TARGET, tracing::Level::INFO)
}

/// Creates a span with a literal name; names of spans are static.
macro_rules! span_named {
    ($name:literal, $call:expr) => {
        tracing::info_span!(
            target: CALL_TARGET,
            $name,
            mcp.method.name = $call.method(),
            gen_ai.tool.name = field::Empty,
            gen_ai.prompt.name = field::Empty,
            gen_ai.operation.name = field::Empty,
            toolcrib.caller = $call.caller.as_str(),
            toolcrib.server = field::Empty,
            error.r#type = field::Empty,
        )
    };
}

/// The span of a running call. Its end is recorded exactly once, also if it is dropped because the call was cancelled.
pub(crate) struct TracedCall {
    pub(crate) span: Span,
    started: Instant,
    end: CallEnd,
}

impl TracedCall {
    pub(crate) fn start(call: &Call) -> Self {
        Self { span: call_span(call), started: Instant::now(), end: CallEnd::Cancelled }
    }

    /// Records the outcome.
    pub(crate) fn finish(mut self, outcome: &Result<Outcome, Error>) {
        self.end = match outcome {
            Ok(outcome) if outcome.is_error() => CallEnd::ToolError,
            Ok(_) => CallEnd::Done,
            Err(error) => CallEnd::Failed(error.kind()),
        };
    }
}

impl Drop for TracedCall {
    fn drop(&mut self) {
        let duration = self.started.elapsed();
        if let Some(error_type) = self.end.error_type() {
            self.span.record("error.type", error_type);
        }
        let outcome = self.end.name();
        self.span.in_scope(|| tracing::info!(target: CALL_TARGET, outcome, ?duration, "called"));
    }
}

/// Creates the span of a call. It is named after the method and has the name of a tool or prompt; URIs are not recorded.
fn call_span(call: &Call) -> Span {
    match call.method() {
        "tools/call" => {
            let span = span_named!("tools/call", call);
            span.record("gen_ai.operation.name", "execute_tool");
            span.record("gen_ai.tool.name", call.name());
            span
        }
        "prompts/get" => {
            let span = span_named!("prompts/get", call);
            span.record("gen_ai.prompt.name", call.name());
            span
        }
        "resources/read" => span_named!("resources/read", call),
        "completion/complete" => span_named!("completion/complete", call),
        "tasks/get" => span_named!("tasks/get", call),
        "tasks/result" => span_named!("tasks/result", call),
        "tasks/cancel" => span_named!("tasks/cancel", call),
        "tasks/update" => span_named!("tasks/update", call),
        _ => span_named!("mcp request", call),
    }
}

/// Records the server of the current call.
pub(crate) fn record_server(server: &ServerId) {
    Span::current().record("toolcrib.server", server.as_str());
}
