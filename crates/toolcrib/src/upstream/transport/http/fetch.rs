//! One GET request that belongs to no server.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ACCEPT, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Request, StatusCode, Uri};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::body;
use crate::http_client::{Connector, build_client, root_cause};

/// Fetches a JSON document of at most `limit` bytes. Redirects are not followed.
///
/// # Errors
/// Returns the reason if there is no such document or it cannot be read within `time`.
///
/// # Cancel safety
/// Cancel safe.
pub async fn fetch_json(url: &str, limit: usize, time: Duration) -> Result<Bytes, String> {
    let url: Uri = url.parse().map_err(|error| format!("invalid URL: {error}"))?;
    let target = url.clone();
    // Reads the certificates of the system.
    let connector = tokio::task::spawn_blocking(move || Connector::new(&target)).await;
    let connector = connector.map_err(|error| error.to_string())??;
    let mut request = Request::get(&url).header(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(authorization) = connector.proxy_authorization(&url) {
        request = request.header(PROXY_AUTHORIZATION, authorization);
    }
    let request = request.body(Full::new(Bytes::new())).map_err(|error| error.to_string())?;
    let shutdown = CancellationToken::new();
    // Ends the tasks of the connection with the request.
    let _guard = shutdown.clone().drop_guard();
    let client = build_client(connector, TaskTracker::new(), shutdown);
    let fetched = timeout(time, async {
        let response = client.request(request).await.map_err(|error| root_cause(&error))?;
        match response.status() {
            StatusCode::OK => {}
            status => return Err(format!("HTTP {}", status.as_u16())),
        }
        let document = body::read_all(response.into_body(), limit).await;
        document.map_err(|_| "the document is too large or incomplete".to_owned())
    });
    fetched.await.unwrap_or_else(|_| Err("the request timed out".to_owned()))
}
