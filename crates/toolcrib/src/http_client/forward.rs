//! Requests that a replica forwards to other replicas.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response, Uri};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::{Connector, HttpClient, build_client, root_cause};

/// Sends requests to other replicas.
pub struct ForwardClient {
    client: HttpClient,
    is_https: bool,
    _shutdown: DropGuard,
}

/// A request that got no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardFailure {
    /// The reason.
    pub reason: String,
    /// True if the replica may have received the request.
    pub may_be_sent: bool,
}

impl fmt::Debug for ForwardClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardClient").field("is_https", &self.is_https).finish_non_exhaustive()
    }
}

impl ForwardClient {
    /// Creates a client for the replicas of a gateway, whose URLs have the same scheme as its own. Loads the system's
    /// certificates for https, which blocks for a moment.
    ///
    /// # Errors
    /// Returns the reason if the URL is invalid, or TLS is not available.
    pub fn new(own_address: &str, connect_timeout: Duration) -> Result<Self, String> {
        let url = crate::spec::url::parse_url(own_address).map_err(str::to_owned)?;
        let connector = Connector::for_replicas(&url, connect_timeout)?;
        let shutdown = CancellationToken::new();
        let client = build_client(connector, TaskTracker::new(), shutdown.clone());
        Ok(Self { client, is_https: is_https(&url), _shutdown: shutdown.drop_guard() })
    }

    /// Sends a request and returns the head of its response.
    ///
    /// # Errors
    /// Fails if the replica cannot be reached or does not respond. Responses with any status are not errors.
    ///
    /// # Cancel safety
    /// Cancel safe. The replica may have received the request of a future that was dropped.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, ForwardFailure> {
        if is_https(request.uri()) != self.is_https {
            let reason = "the addresses of all replicas must begin with `https://`, or none".to_owned();
            return Err(ForwardFailure { reason, may_be_sent: false });
        }
        self.client
            .request(request)
            .await
            .map_err(|error| ForwardFailure { reason: root_cause(&error), may_be_sent: !error.is_connect() })
    }
}

fn is_https(url: &Uri) -> bool {
    url.scheme_str() == Some("https")
}
