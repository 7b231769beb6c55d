//! Requests that send data to a fixed URL.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Method, Request, StatusCode, Uri};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::{Connector, HttpClient, build_client, root_cause};

/// Bytes of a response that are read, so that its connection can be used again.
const MAX_RESPONSE: usize = 64 << 10;

/// Sends data to one URL.
pub struct PostClient {
    client: HttpClient,
    url: Uri,
    headers: HeaderMap,
    _shutdown: DropGuard,
}

/// Data that was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostFailure {
    /// The reason.
    pub reason: String,
    /// True if the same data may be accepted later.
    pub is_temporary: bool,
}

impl PostClient {
    /// Creates a client for a URL, with headers for every request. Loads the system's certificates for https, which blocks for
    /// a moment.
    ///
    /// # Errors
    /// Returns the reason if the URL or a header is invalid, or TLS is not available.
    pub fn new(url: &str, content_type: &'static str, headers: &[(String, String)]) -> Result<Self, String> {
        let url = crate::spec::url::parse_url(url).map_err(str::to_owned)?;
        let connector = Connector::new(&url)?;
        let mut all = HeaderMap::new();
        all.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(authorization) = connector.proxy_authorization(&url) {
            all.insert(PROXY_AUTHORIZATION, authorization);
        }
        for (name, value) in headers {
            let invalid = || format!("the header `{name}` is invalid");
            let parsed = HeaderName::try_from(name).map_err(|_| invalid())?;
            let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
            value.set_sensitive(true);
            all.insert(parsed, value);
        }
        let shutdown = CancellationToken::new();
        let client = build_client(connector, TaskTracker::new(), shutdown.clone());
        Ok(Self { client, url, headers: all, _shutdown: shutdown.drop_guard() })
    }

    /// Sends data.
    ///
    /// # Errors
    /// Fails if the server does not accept the data within `time`.
    ///
    /// # Cancel safety
    /// Cancel safe. The server may have accepted the data of a future that was dropped.
    pub async fn post(&self, body: Bytes, time: Duration) -> Result<(), PostFailure> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.url.clone();
        *request.headers_mut() = self.headers.clone();
        let temporary = |reason| PostFailure { reason, is_temporary: true };
        let exchange = async {
            let response =
                self.client.request(request).await.map_err(|error| temporary(root_cause(&error)))?;
            let status = response.status();
            // The content is not needed.
            let _ = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
            if status.is_success() {
                return Ok(());
            }
            let is_temporary = matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            );
            Err(PostFailure { reason: format!("HTTP {}", status.as_u16()), is_temporary })
        };
        let sent = timeout(time, exchange).await;
        sent.unwrap_or_else(|_| Err(temporary("the request timed out".to_owned())))
    }
}
