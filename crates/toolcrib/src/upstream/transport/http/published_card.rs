//! The card that a remote server publishes next to its endpoint. Only its title and description are used: the server's
//! own lists are authoritative.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use tokio::time::timeout;
use tracing::debug;

use super::HttpConnection;
use super::body;
use crate::spec::{ServerCard, TransportKind};

/// Time limit for the request.
const CARD_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest card, in bytes.
const MAX_CARD_BYTES: usize = 64 << 10;
/// Path of the card below the endpoint.
const CARD_PATH: &str = "/server-card";
const CARD_TYPES: HeaderValue =
    HeaderValue::from_static("application/mcp-server-card+json, application/json");

impl HttpConnection {
    /// Fetches the published card in the background, once per server. Most servers have none.
    pub(super) fn fetch_published_card(self: &Arc<Self>) {
        let Some(card) = self.published_card.clone() else { return };
        let Some(url) = card_url(&self.url) else { return };
        if card.get().is_some() || self.transport == TransportKind::Sse {
            return;
        }
        let connection = self.clone();
        self.spawn(async move {
            match timeout(CARD_TIMEOUT, connection.request_card(&url)).await {
                Ok(Ok(found)) => drop(card.set(found)),
                Ok(Err(reason)) => debug!(%url, reason, "the server has no usable card"),
                Err(_) => debug!(%url, "the request for the server's card timed out"),
            }
        });
    }

    async fn request_card(&self, url: &Uri) -> Result<ServerCard, String> {
        let credentials = self.credentials().await.map_err(|_| "no credentials".to_owned())?;
        let customize = |headers: &mut HeaderMap| {
            headers.insert(ACCEPT, CARD_TYPES);
            headers.remove(CONTENT_TYPE);
        };
        let headers = || self.headers(&credentials, customize);
        let response = self.send_once(&Method::GET, url, headers, &Bytes::new()).await;
        let response = response.map_err(|_| "the request failed".to_owned())?;
        if response.status() != StatusCode::OK {
            return Err(format!("HTTP {}", response.status().as_u16()));
        }
        let text = body::read_all(response.into_body(), MAX_CARD_BYTES).await;
        let text = text.map_err(|_| "the card is too large or incomplete".to_owned())?;
        let card = ServerCard::from_json(&text).map_err(|error| error.to_string())?;
        Ok(ServerCard { tags: Vec::new(), tools: Vec::new(), ..card })
    }
}

/// Returns the URL of the card of an endpoint.
fn card_url(endpoint: &Uri) -> Option<Uri> {
    let path = endpoint.path().trim_end_matches('/');
    let mut parts = endpoint.clone().into_parts();
    parts.path_and_query = Some(format!("{path}{CARD_PATH}").parse().ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_is_below_the_endpoint_without_its_query() {
        for (endpoint, expected) in [
            ("https://a.example/mcp", "https://a.example/mcp/server-card"),
            ("https://a.example/mcp/?key=1", "https://a.example/mcp/server-card"),
            ("http://127.0.0.1:1", "http://127.0.0.1:1/server-card"),
        ] {
            assert_eq!(card_url(&endpoint.parse().unwrap()).unwrap(), expected);
        }
    }
}
