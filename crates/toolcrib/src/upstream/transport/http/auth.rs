//! Authentication of the requests to a remote server.

use std::borrow::Cow;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;

use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderValue};

use crate::model::error::Error;

/// Supplies the credentials of requests and reacts to their rejection.
///
/// All requests of one connection use the same object, at the same time.
pub(in crate::upstream) trait Auth: Debug + Send + Sync {
    /// Returns the headers of the next request: `base`, with credentials if the server needs any. Called for every
    /// request, so it must be cheap while the credentials are valid.
    fn headers<'a>(&'a self, base: &'a HeaderMap) -> AuthHeaders<'a>;

    /// Handles HTTP 401 and 403. Returns whether the request is worth sending again with new headers.
    fn rejected(&self, rejection: &AuthRejection<'_>) -> AuthDecision;
}

/// The headers of a request, with credentials.
pub(in crate::upstream) enum AuthHeaders<'a> {
    Ready(Cow<'a, HeaderMap>),
    /// The credentials have to be fetched first. If that fails, the request fails with the error and is not sent.
    Pending(Pin<Box<dyn Future<Output = Result<HeaderMap, Error>> + Send + 'a>>),
}

/// A request that the server rejected with HTTP 401 or 403.
#[derive(Debug)]
pub(in crate::upstream) struct AuthRejection<'a> {
    pub(in crate::upstream) status: StatusCode,
    /// The `WWW-Authenticate` header.
    pub(in crate::upstream) challenge: Option<&'a HeaderValue>,
    /// The headers of the rejected request. They tell whether its credentials have been replaced since.
    pub(in crate::upstream) sent: &'a HeaderMap,
}

/// The next step after a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::upstream) enum AuthDecision {
    /// Ask for headers again and send the request once more. Ignored for a 403 without a challenge: the server may
    /// have read that request.
    Retry,
    /// Fail the request with the error for the status.
    Fail,
}

/// Sends the headers from the config, which the base headers contain.
#[derive(Debug)]
pub(in crate::upstream) struct StaticHeaders;

impl Auth for StaticHeaders {
    fn headers<'a>(&'a self, base: &'a HeaderMap) -> AuthHeaders<'a> {
        AuthHeaders::Ready(Cow::Borrowed(base))
    }

    fn rejected(&self, _: &AuthRejection<'_>) -> AuthDecision {
        AuthDecision::Fail
    }
}

/// Returns whether a status rejects the credentials of a request.
pub(super) fn is_auth_status(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}
