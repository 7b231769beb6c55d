//! Bounded HTTP requests to URLs that metadata names.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use hyper::{Method, Request, StatusCode, Uri};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::error::{OAuthError, OAuthErrorKind};
use super::token_request::shorten;
use crate::http_client::address_rules::AddressRules;
use crate::http_client::{Connector, HttpClient, build_client, root_cause};
use crate::spec::secret::Secret;
use crate::util::encoding::percent_encode;

/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of a document.
const MAX_BYTES: usize = 256 << 10;
/// Redirects followed per document.
const MAX_REDIRECTS: usize = 3;

/// Requests documents and tokens for one server.
pub(crate) struct Fetcher {
    client: HttpClient,
    /// The rules for URLs that metadata names; none for URLs of the config.
    rules: Option<AddressRules>,
    _shutdown: DropGuard,
}

/// A response, read to its end.
pub(crate) struct Fetched {
    pub(crate) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Fetched {
    /// Parses the body as JSON.
    pub(super) fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok()
    }

    /// Returns the document, if the answer is one. Sites that have none answer with a page or with an error.
    pub(super) fn document(&self) -> Option<serde_json::Value> {
        self.json().filter(|_| self.status.is_success())
    }
}

impl Fetcher {
    /// Creates a fetcher with the address rules of a server.
    pub(crate) async fn new(server: &Uri, tasks: &TaskTracker) -> Result<Self, OAuthError> {
        Self::with_rules(Some(AddressRules::for_server(&resolve_host(server).await)), tasks).await
    }

    /// Creates a fetcher for URLs that the config names.
    pub(crate) async fn unrestricted(tasks: &TaskTracker) -> Result<Self, OAuthError> {
        Self::with_rules(None, tasks).await
    }

    async fn with_rules(rules: Option<AddressRules>, tasks: &TaskTracker) -> Result<Self, OAuthError> {
        let setup_failed = |reason: String| OAuthError::new(OAuthErrorKind::Unreachable, reason);
        // Endpoints may use https even if the server does not.
        let https = Uri::from_static("https://localhost/");
        let connector = tasks.spawn_blocking(move || Connector::new(&https)).await;
        let connector = connector.map_err(|error| setup_failed(error.to_string()))?.map_err(setup_failed)?;
        let shutdown = CancellationToken::new();
        let connector = match rules {
            Some(rules) => connector.restrict(rules),
            None => connector,
        };
        let client = build_client(connector, tasks.clone(), shutdown.clone());
        Ok(Self { client, rules, _shutdown: shutdown.drop_guard() })
    }

    /// Requests a document. Redirects are followed where the rules allow their targets.
    pub(crate) async fn get(&self, url: &str) -> Result<Fetched, OAuthError> {
        let mut url = self.check_url(url)?;
        for _ in 0..=MAX_REDIRECTS {
            let fetched = self.send(Method::GET, &url, HeaderMap::new(), Bytes::new()).await?;
            if !fetched.status.is_redirection() {
                return Ok(fetched);
            }
            let location = fetched.headers.get(LOCATION).and_then(|value| value.to_str().ok());
            url = self.check_url(&redirect_target(&url, location.unwrap_or_default())?)?;
        }
        let message = format!("`{}` redirects too often", shown(&url));
        Err(OAuthError::new(OAuthErrorKind::InvalidMetadata, message))
    }

    /// Sends JSON, or the JSON-RPC message that provokes a challenge.
    pub(super) async fn post_json(&self, url: &str, body: &serde_json::Value) -> Result<Fetched, OAuthError> {
        let url = self.check_url(url)?;
        self.post(&url, "application/json", None, body.to_string().into()).await
    }

    /// Sends a form, with the credentials of the client if they belong into a header.
    pub(super) async fn post_form(
        &self,
        url: &str,
        authorization: Option<HeaderValue>,
        form: Form,
    ) -> Result<Fetched, OAuthError> {
        let url = self.check_url(url)?;
        self.post(&url, "application/x-www-form-urlencoded", authorization, form.encoded.into()).await
    }

    /// Sends a JSON body to the server itself, whose URL needs no check.
    pub(super) async fn post_to_server(
        &self,
        server: &Uri,
        body: &'static str,
    ) -> Result<Fetched, OAuthError> {
        self.post(server, "application/json", None, Bytes::from_static(body.as_bytes())).await
    }

    async fn post(
        &self,
        url: &Uri,
        content_type: &'static str,
        authorization: Option<HeaderValue>,
        body: Bytes,
    ) -> Result<Fetched, OAuthError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Some(value) = authorization {
            headers.insert(AUTHORIZATION, value);
        }
        self.send(Method::POST, url, headers, body).await
    }

    async fn send(
        &self,
        method: Method,
        url: &Uri,
        mut headers: HeaderMap,
        body: Bytes,
    ) -> Result<Fetched, OAuthError> {
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = url.clone();
        *request.headers_mut() = headers;
        let exchange = async {
            let response = self.client.request(request).await;
            let response = response.map_err(|error| root_cause(&error))?;
            let (head, body) = response.into_parts();
            // The answer of an MCP server may be an endless stream, and only its head is needed.
            let is_stream = head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
            if is_stream {
                return Ok(Fetched { status: head.status, headers: head.headers, body: Bytes::new() });
            }
            let body = match Limited::new(body, MAX_BYTES).collect().await {
                Ok(collected) => collected.to_bytes(),
                Err(error) if error.is::<LengthLimitError>() => {
                    return Err(format!("its answer is larger than {} KiB", MAX_BYTES >> 10));
                }
                Err(error) => return Err(format!("its answer ended early: {}", root_cause(&*error))),
            };
            Ok(Fetched { status: head.status, headers: head.headers, body })
        };
        let failed = |reason: String| {
            let message = format!("cannot reach `{}`: {reason}", shown(url));
            OAuthError::new(OAuthErrorKind::Unreachable, message)
        };
        match timeout(REQUEST_TIMEOUT, exchange).await {
            Ok(done) => done.map_err(failed),
            Err(_) => Err(failed(format!("no answer within {} s", REQUEST_TIMEOUT.as_secs()))),
        }
    }

    /// Parses a URL that metadata names, and checks it against the rules.
    pub(super) fn check_url(&self, url: &str) -> Result<Uri, OAuthError> {
        let invalid = |reason: &str| {
            let message = format!("the metadata names `{}`: {reason}", shorten(url));
            OAuthError::new(OAuthErrorKind::InvalidMetadata, message)
        };
        let parsed = crate::spec::url::parse_url(url).map_err(invalid)?;
        self.rules.map_or(Ok(()), |rules| rules.check_url(&parsed)).map_err(invalid)?;
        Ok(parsed)
    }
}

/// Returns a URL without its query, which may contain a secret.
fn shown(url: &Uri) -> String {
    format!("{}{}", super::metadata::origin(url), url.path())
}

/// Resolves a redirect target against the URL that named it. A redirect from https to http is refused: anyone on the network
/// could answer there.
fn redirect_target(base: &Uri, location: &str) -> Result<String, OAuthError> {
    if location.starts_with('/') && !location.starts_with("//") {
        return Ok(format!("{}{location}", super::metadata::origin(base)));
    }
    let is_https = location.parse::<Uri>().is_ok_and(|target| target.scheme_str() == Some("https"));
    if base.scheme_str() == Some("https") && !is_https {
        let message =
            format!("`{}` redirects to `{}`, which does not use https", shown(base), shorten(location));
        return Err(OAuthError::new(OAuthErrorKind::InvalidMetadata, message));
    }
    Ok(location.to_owned())
}

/// Returns the addresses of a URL's host.
async fn resolve_host(url: &Uri) -> Vec<IpAddr> {
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let found = tokio::net::lookup_host((host, url.port_u16().unwrap_or(443))).await;
    found.map(|addresses| addresses.map(|address| address.ip()).collect()).unwrap_or_default()
}

/// An encoded form, or the query of a URL.
#[derive(Default)]
pub(super) struct Form {
    pub(super) encoded: String,
    /// Values that must not be shown, also if the other party repeats them in an error.
    pub(super) secrets: Vec<Secret>,
}

impl Form {
    /// Adds a field.
    pub(super) fn field(mut self, name: &str, value: &str) -> Self {
        self.add(name, value);
        self
    }

    /// Adds a field that may be absent.
    pub(super) fn optional(mut self, name: &str, value: Option<&str>) -> Self {
        if let Some(value) = value {
            self.add(name, value);
        }
        self
    }

    /// Adds a field with a token, a code or another secret.
    pub(super) fn secret(self, name: &str, value: &str) -> Self {
        self.field(name, value).hide(value)
    }

    /// Marks a value as secret that is sent with the form but is not one of its fields.
    pub(super) fn hide(mut self, value: &str) -> Self {
        self.secrets.push(Secret::new(value));
        self
    }

    fn add(&mut self, name: &str, value: &str) {
        if !self.encoded.is_empty() {
            self.encoded.push('&');
        }
        self.encoded.push_str(name);
        self.encoded.push('=');
        self.encoded.push_str(&percent_encode(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_leads_from_https_to_https_only() {
        let target = |base: &'static str, location| redirect_target(&Uri::from_static(base), location);
        let keys = "https://login.example/keys";
        assert_eq!(target(keys, "/new").unwrap(), "https://login.example/new");
        assert_eq!(target(keys, "https://other.example/").unwrap(), "https://other.example/");
        assert_eq!(target("http://127.0.0.1/keys", "http://127.0.0.1:9/").unwrap(), "http://127.0.0.1:9/");
        for location in
            ["http://login.example/keys", "HTTP://login.example/keys", "//evil.example/keys", "keys", ""]
        {
            assert!(target(keys, location).is_err(), "{location}");
        }
    }

    #[tokio::test]
    async fn answer_that_ends_early_is_not_called_large() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let fetcher = Fetcher::new(&url.parse().unwrap(), &TaskTracker::new()).await.unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // A response before the request would be another error.
            assert_ne!(stream.read(&mut [0; 1024]).await.unwrap(), 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").await.unwrap();
        };
        let (answer, ()) = tokio::join!(fetcher.get(&url), serve);
        let error = answer.err().unwrap().to_string();
        assert!(error.contains("its answer ended early"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn endpoint_that_does_not_answer_fails_after_15_seconds() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let fetcher = Fetcher::new(&url.parse().unwrap(), &TaskTracker::new()).await.unwrap();
        let error = fetcher.get(&url).await.err().unwrap();
        assert_eq!(error.kind(), OAuthErrorKind::Unreachable);
        assert!(error.to_string().ends_with("no answer within 15 s"), "{error}");
    }
}
