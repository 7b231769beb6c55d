//! Error responses of the admin API.

use hyper::StatusCode;
use serde_json::json;
use toolcrib::{Error, ErrorKind};
use toolcrib_serve::AdminReply;

use crate::report::Report as _;
use crate::report::tools::FailureReport;

/// Returns the response for an unknown path or an unsupported method.
pub(super) fn error_reply(status: StatusCode, message: &str) -> AdminReply {
    let code = if status == StatusCode::NOT_FOUND { "not_found" } else { "method_not_allowed" };
    AdminReply::new(status, json!({"error": {"code": code, "message": message, "hint": null}}))
}

/// Returns the response for an invalid parameter.
pub(super) fn invalid_reply(message: &str, hint: &str) -> AdminReply {
    hinted_reply(StatusCode::BAD_REQUEST, ErrorKind::Malformed.facts().name, message, hint)
}

/// Returns the response for something that is not recorded.
pub(super) fn missing_reply(message: &str, hint: &str) -> AdminReply {
    hinted_reply(StatusCode::NOT_FOUND, "not_found", message, hint)
}

/// Returns the response for files that cannot be read.
pub(super) fn unreadable_reply(message: &str) -> AdminReply {
    let hint = "check the state folder";
    hinted_reply(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", message, hint)
}

/// Returns the response for a caller that uses too much at the same time.
pub(super) fn overloaded_reply(message: &str, hint: &str) -> AdminReply {
    hinted_reply(StatusCode::TOO_MANY_REQUESTS, ErrorKind::Overloaded.facts().name, message, hint)
}

fn hinted_reply(status: StatusCode, code: &str, message: &str, hint: &str) -> AdminReply {
    AdminReply::new(status, json!({"error": {"code": code, "message": message, "hint": hint}}))
}

/// Returns the response for an operation that is not permitted to this request.
pub(super) fn forbidden_reply(message: &str) -> AdminReply {
    AdminReply::new(StatusCode::FORBIDDEN, json!({"error": {"message": message}}))
}

/// Returns the response for a failed operation.
pub(super) fn failure_reply(error: &Error) -> AdminReply {
    let status = match error.kind() {
        ErrorKind::Unknown => StatusCode::NOT_FOUND,
        ErrorKind::ShuttingDown
        | ErrorKind::Overloaded
        | ErrorKind::Unrecorded
        | ErrorKind::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    AdminReply::new(status, json!({"error": FailureReport::new(error).to_json()}))
}
