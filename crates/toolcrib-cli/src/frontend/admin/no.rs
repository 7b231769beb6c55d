//! Answers of the admin API that are a no.

use hyper::StatusCode;
use serde_json::json;
use toolcrib::{Error, ErrorKind};

use super::Told;
use crate::offer;

/// There is no such thing, or not in this way.
pub(super) fn refusal(status: StatusCode, message: &str) -> Told {
    let code = if status == StatusCode::NOT_FOUND { "not_found" } else { "method_not_allowed" };
    (status, json!({"error": {"code": code, "message": message, "hint": null}}))
}

/// It was tried, and failed.
pub(super) fn failed(error: &Error) -> Told {
    let status = match error.kind() {
        ErrorKind::Unknown => StatusCode::NOT_FOUND,
        ErrorKind::ShuttingDown | ErrorKind::Overloaded | ErrorKind::Unrecorded => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    (status, json!({"error": offer::error_json(error)}))
}
