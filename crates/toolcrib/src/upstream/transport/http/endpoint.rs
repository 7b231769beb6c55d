//! An HTTP spec with all references resolved.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use http::uri::Scheme;
use hyper::Uri;
use hyper::header::{
    ACCEPT, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::auth::Auth;
use super::bearer_auth::BearerAuth;

use super::forwarded_groups::ForwardedGroups;
use super::header_params::HeaderParams;
use super::http_error::HttpErrorMapper;
use super::{HttpConnection, HttpRoute};
use crate::http_client::{self, Connector, HttpClient};
use crate::oauth::Logins;
use crate::oauth::bearer::BearerTokens;
use crate::oauth::token_exchange::ExchangeSource;
use crate::secrets::{Redactor, ResolvedSecrets};
use crate::spec::auth::Grant;
use crate::spec::template::{TemplatePiece, TemplateText};
use crate::spec::url::parse_url;
use crate::spec::{Forward, HttpSpec, ServerCard, ServerSpec, TransportKind};
use crate::upstream::launch::LaunchContext;
use crate::upstream::transport::{MessageLimit, OutgoingQueue, Transport, TransportFuture, TransportLink};
use crate::util::encoding::encode_header;

/// The HTTP transport of one server, before the first request.
pub(in crate::upstream) struct HttpTransport {
    client: HttpClient,
    url: Uri,
    base_headers: HeaderMap,
    auth: Arc<dyn Auth>,
    transport: TransportKind,
    message_limit: MessageLimit,
    errors: HttpErrorMapper,
    published_card: Option<Arc<OnceLock<ServerCard>>>,
    forwarded_groups: Option<ForwardedGroups>,
    shutdown: CancellationToken,
}

impl HttpTransport {
    /// Resolves references. Error messages name what is missing and never contain values, which may be secrets.
    pub(in crate::upstream) async fn new(
        spec: &ServerSpec,
        http: &HttpSpec,
        secrets: &ResolvedSecrets,
        redactor: &Arc<Redactor>,
        auth: Arc<dyn Auth>,
        tasks: &TaskTracker,
        message_limit: MessageLimit,
    ) -> Result<Self, String> {
        check_secrets_in_host(&http.url, secrets)?;
        let expanded = http.url.expand(|name| secrets.get(name)).map_err(|missing| missing.to_string())?;
        let url = parse_url(&expanded).map_err(|reason| format!("its `url` cannot be used: {reason}"))?;
        let mut base_headers = build_headers(http, secrets)?;
        if let Some(host) = host_header(&url) {
            base_headers.entry(HOST).or_insert(host);
        }
        let connector = {
            let url = url.clone();
            let built = tasks.spawn_blocking(move || Connector::new(&url)).await;
            built.map_err(|error| error.to_string())??
        };
        if let Some(value) = connector.proxy_authorization(&url) {
            base_headers.insert(PROXY_AUTHORIZATION, value);
        }
        let shutdown = CancellationToken::new();
        let client = http_client::build_client(connector, tasks.clone(), shutdown.clone());
        let errors = HttpErrorMapper::new(spec.id.clone(), &url, http, redactor.clone());
        Ok(Self {
            client,
            url,
            base_headers,
            auth,
            transport: http.transport,
            message_limit,
            errors,
            published_card: None,
            forwarded_groups: None,
            shutdown,
        })
    }

    /// Replaces the configured headers as credentials by bearer tokens, if the server gets any.
    pub(in crate::upstream) fn bearer_tokens(
        mut self,
        spec: &ServerSpec,
        http: &HttpSpec,
        secrets: &ResolvedSecrets,
        logins: Option<&Logins>,
        tasks: &TaskTracker,
    ) -> Result<Self, String> {
        let redactor = &self.errors.redactor;
        let tokens = BearerTokens::new(&spec.id, http, &self.url, secrets, redactor, logins, tasks);
        if let Some(tokens) = tokens.map_err(|error| error.to_string())? {
            self.auth = Arc::new(BearerAuth(Arc::new(tokens)));
            if let Some(logins) = logins.filter(|_| http.auth.grant == Grant::AuthorizationCode) {
                self.errors.auth_hint = logins.hint(&spec.id);
            }
        }
        Ok(self)
    }

    /// Sends what the server is to learn about the caller that the connection belongs to. A connection that only lists what the
    /// server offers has no caller.
    pub(in crate::upstream) fn forward_caller(
        mut self,
        spec: &ServerSpec,
        http: &HttpSpec,
        secrets: &ResolvedSecrets,
        context: &LaunchContext,
    ) -> Result<Self, String> {
        let Some(caller) = &context.owner.caller else { return Ok(self) };
        match &http.forward {
            Forward::Nothing => {}
            Forward::Header(name) => {
                let name = HeaderName::from_bytes(name.as_bytes()).map_err(|error| error.to_string())?;
                // Names may come from tokens, with any characters.
                let value = HeaderValue::from_str(&encode_header(caller.as_str()));
                self.forwarded_groups = Some(ForwardedGroups::new(&name, caller, &context.known_callers)?);
                self.base_headers.insert(name, value.map_err(|error| error.to_string())?);
            }
            Forward::TokenExchange(exchange) => {
                let source = ExchangeSource::new(exchange, secrets, caller, &context.known_callers);
                let source = source.map_err(|error| error.to_string())?;
                let redactor = &self.errors.redactor;
                let tokens = BearerTokens::exchanged(&spec.id, &self.url, source, redactor, &context.tasks);
                self.auth = Arc::new(BearerAuth(Arc::new(tokens)));
            }
        }
        Ok(self)
    }

    /// Sets the place for the card that the server publishes; none is requested without it.
    pub(in crate::upstream) fn published_card(mut self, card: Option<Arc<OnceLock<ServerCard>>>) -> Self {
        self.published_card = card;
        self
    }

    fn connect(self, link: TransportLink) -> HttpConnection {
        HttpConnection {
            link,
            client: self.client,
            url: self.url,
            base_headers: self.base_headers,
            auth: self.auth,
            transport: self.transport,
            message_limit: self.message_limit,
            errors: self.errors,
            route: Mutex::new(HttpRoute::Stateless),
            renewing: tokio::sync::Mutex::default(),
            listen_task: Mutex::default(),
            sticky_requests: Mutex::default(),
            header_params: HeaderParams::default(),
            is_established: AtomicBool::new(false),
            published_card: self.published_card,
            forwarded_groups: self.forwarded_groups,
            probe_body: OnceLock::new(),
            lost_reason: OnceLock::new(),
            shutdown: self.shutdown,
        }
    }
}

impl Transport for HttpTransport {
    fn run(self: Box<Self>, link: TransportLink, outgoing: OutgoingQueue) -> TransportFuture {
        let connection = Arc::new(self.connect(link));
        Box::pin(connection.run(outgoing))
    }
}

/// Returns the `Host` header of requests that are certain to use HTTP/1.1. HTTP/2, which a server may choose with TLS, has none.
/// Without it the HTTP client formats one for each request: 2 % of the instructions of a call.
fn host_header(url: &Uri) -> Option<HeaderValue> {
    let host = url.host().filter(|_| url.scheme() == Some(&Scheme::HTTP))?;
    let value = match url.port_u16() {
        None | Some(80) => HeaderValue::from_str(host),
        Some(port) => HeaderValue::from_str(&format!("{host}:{port}")),
    };
    value.ok()
}

/// Rejects a secret that would end the host name early: the rest of it would be sent to DNS.
fn check_secrets_in_host(url: &TemplateText, secrets: &ResolvedSecrets) -> Result<(), String> {
    let mut before = String::new();
    for piece in url.pieces() {
        match piece {
            TemplatePiece::Literal(text) => before.push_str(text),
            TemplatePiece::Secret(name) => {
                let is_in_host =
                    before.split_once("://").is_none_or(|(_, host)| !host.contains(['/', '?', '#']));
                let ends_host =
                    secrets.get(name).is_ok_and(|value| value.expose().contains(['/', '?', '#', '@', '\\']));
                if is_in_host && ends_host {
                    return Err(format!(
                        "its `url` cannot be used: `${{secret:{name}}}` has characters that are not allowed in a host"
                    ));
                }
            }
            TemplatePiece::Env { .. } | TemplatePiece::File(_) => {}
        }
    }
    Ok(())
}

fn build_headers(http: &HttpSpec, secrets: &ResolvedSecrets) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    let agent = concat!("toolcrib/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    for (name, value) in &http.headers {
        let value = value.expand(|name| secrets.get(name)).map_err(|missing| missing.to_string())?;
        let mut value = HeaderValue::from_str(value.trim()).map_err(|_| {
            format!("the value of its header `{name}` has characters that are not allowed in a header")
        })?;
        value.set_sensitive(true);
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("`{}` is not a valid header name", name.escape_default()))?;
        headers.insert(name, value);
    }
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_header_names_the_port_unless_it_is_the_default() {
        let host = |url: &str| host_header(&url.parse().unwrap());
        assert_eq!(host("http://localhost:7901/mcp").unwrap(), "localhost:7901");
        assert_eq!(host("http://localhost:80/mcp").unwrap(), "localhost");
        assert_eq!(host("http://[::1]:9/").unwrap(), "[::1]:9");
        assert_eq!(host("http://example.org").unwrap(), "example.org");
        assert_eq!(host("https://example.org:8443/mcp"), None);
    }
}
