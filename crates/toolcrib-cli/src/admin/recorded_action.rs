//! Records actions of the admin API in the audit file: reload, start, restart, stop and approvals.

use hyper::{Method, StatusCode};
use tokio::time::Instant;
use toolcrib::model::event::CallEnd;
use toolcrib::{Caller, ErrorKind, ServerId};
use toolcrib_serve::AdminRequest;

use super::parse_path;
use crate::audit::{AdminAction, Audit};

/// An action that is recorded when it is dropped, even if the client disconnects before it ends.
pub(super) struct RecordedAction<'a> {
    audit: &'a Audit,
    caller: &'a Caller,
    method: &'static str,
    server: Option<ServerId>,
    name: String,
    end: CallEnd,
    started: Instant,
}

impl<'a> RecordedAction<'a> {
    /// Creates the record of a request, or `None` if it changes nothing.
    pub(super) fn new(audit: &'a Audit, request: &AdminRequest<'a>) -> Option<Self> {
        if request.method != Method::POST {
            return None;
        }
        let segments = parse_path(request.path);
        let segments: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
        let (method, object) = match segments.as_slice() {
            ["api", "v1", "reload"] => ("admin/reload", ""),
            ["api", "v1", "handover"] => ("admin/handover", ""),
            ["api", "v1", "servers", server, "start"] => ("admin/start", *server),
            ["api", "v1", "servers", server, "restart"] => ("admin/restart", *server),
            ["api", "v1", "servers", server, "stop"] => ("admin/stop", *server),
            ["api", "v1", "servers", server, "approve"] => ("admin/approve_tools", *server),
            ["api", "v1", "calls", id, "approve"] => ("admin/approve_call", *id),
            ["api", "v1", "calls", id, "deny"] => ("admin/deny_call", *id),
            ["api", "v1", "ui"] => ("admin/ui", ""),
            _ => return None,
        };
        let server = if segments.contains(&"servers") { object.parse().ok() } else { None };
        Some(Self {
            audit,
            caller: request.caller,
            method,
            server,
            name: object.to_owned(),
            end: CallEnd::Cancelled,
            started: Instant::now(),
        })
    }

    /// Sets the result of the action.
    pub(super) fn end_with(&mut self, status: StatusCode) {
        self.end = match status {
            StatusCode::OK => CallEnd::Done,
            StatusCode::FORBIDDEN => CallEnd::Failed(ErrorKind::Denied),
            StatusCode::NOT_FOUND => CallEnd::Failed(ErrorKind::Unknown),
            StatusCode::GATEWAY_TIMEOUT => CallEnd::Failed(ErrorKind::TimedOut),
            StatusCode::SERVICE_UNAVAILABLE => CallEnd::Failed(ErrorKind::Overloaded),
            StatusCode::UNPROCESSABLE_ENTITY => CallEnd::Failed(ErrorKind::BadArguments),
            _ => CallEnd::Failed(ErrorKind::CouldNotStart),
        };
    }
}

impl Drop for RecordedAction<'_> {
    fn drop(&mut self) {
        self.audit.record_action(&AdminAction {
            caller: self.caller,
            method: self.method,
            server: self.server.as_ref(),
            name: &self.name,
            end: self.end,
            started: self.started,
        });
    }
}
