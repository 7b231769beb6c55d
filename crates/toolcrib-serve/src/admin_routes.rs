//! The interface through which the HTTP server reaches the admin API, which is built on top of it.

use std::fmt;
use std::pin::Pin;

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolcrib::Caller;

/// A request to the admin API. Access has been checked, except to routes that approve something.
#[derive(Debug, Clone, Copy)]
pub struct AdminRequest<'a> {
    /// The authenticated caller; its name is empty for a health check without a token.
    pub caller: &'a Caller,
    /// Whether the request may approve something: it came over the gateway's own socket, with a token, or from a browser that has logged
    /// in. Any program on this machine can reach the address, including servers that fetch URLs.
    pub can_approve: bool,
    /// Whether the caller is an admin. Other callers reach only the paths that show them their own calls and clients.
    pub is_admin: bool,
    /// The HTTP method.
    pub method: &'a Method,
    /// The path, percent-encoded.
    pub path: &'a str,
    /// The query string, percent-encoded.
    pub query: Option<&'a str>,
    /// The event after which a stream of events is resumed.
    pub last_event_id: Option<&'a str>,
}

/// The response of the admin API.
#[derive(Debug, Clone, PartialEq)]
pub struct AdminReply {
    /// The HTTP status.
    pub status: StatusCode,
    /// The JSON body.
    pub body: Value,
}

impl AdminReply {
    /// Creates a response.
    pub fn new(status: StatusCode, body: Value) -> Self {
        Self { status, body }
    }

    /// Creates the response of a request that succeeded.
    pub fn ok(body: Value) -> Self {
        Self::new(StatusCode::OK, body)
    }
}

/// A pending response of the admin API.
pub type AdminReplyFuture<'a> = Pin<Box<dyn Future<Output = AdminReply> + Send + 'a>>;

/// Metrics in a text format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsText {
    /// The content type of the format.
    pub content_type: &'static str,
    /// The metrics.
    pub text: String,
}

/// Pending metrics.
pub type MetricsFuture<'a> = Pin<Box<dyn Future<Output = Option<MetricsText>> + Send + 'a>>;

/// A stream of events that the admin API sends, each encoded as a server-sent event. It ends with its sender.
pub type AdminEvents = mpsc::Receiver<Vec<u8>>;

/// The admin API, for every path that is not an MCP endpoint.
pub trait AdminRoutes: fmt::Debug + Send + Sync {
    /// Handles one request.
    ///
    /// A route that approves something must refuse a request that [cannot approve](AdminRequest::can_approve). The route
    /// decides, not the path, which has many spellings.
    ///
    /// # Cancel safety
    /// The future is dropped when the client disconnects.
    fn respond<'a>(&'a self, request: AdminRequest<'a>) -> AdminReplyFuture<'a>;

    /// Returns the metrics of `/metrics` in a format that the `Accept` header allows; `None` if they are not served. Access has
    /// been checked.
    ///
    /// # Cancel safety
    /// The future is dropped when the client disconnects.
    fn metrics<'a>(&'a self, accept: Option<&'a str>) -> MetricsFuture<'a> {
        let _ = accept;
        Box::pin(std::future::ready(None))
    }

    /// Opens a stream of events, if the path has one; the error is the response without a stream.
    fn open_events(&self, request: &AdminRequest<'_>) -> Option<Result<AdminEvents, AdminReply>> {
        let _ = request;
        None
    }
}

/// An admin API without paths.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoAdminRoutes;

impl AdminRoutes for NoAdminRoutes {
    fn respond<'a>(&'a self, request: AdminRequest<'a>) -> AdminReplyFuture<'a> {
        let message = format!("unknown path `{}`", request.path);
        let reply = AdminReply::new(StatusCode::NOT_FOUND, json!({"error": {"message": message}}));
        Box::pin(std::future::ready(reply))
    }
}
