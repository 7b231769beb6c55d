//! Waits for the browser to return from a login, at a port of this machine.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use toolcrib::ServerId;
use toolcrib::oauth::{Login, LoginSummary, Logins, OAuthError};

const PATH: &str = "/callback";
/// Time for the browser to read the page.
const PAGE_TIMEOUT: Duration = Duration::from_secs(1);

/// A port that the browser is redirected to.
pub(crate) struct RedirectListener {
    listener: TcpListener,
    port: u16,
}

/// The URL that the browser was sent to, and the browser that waits for an answer.
pub(crate) struct Redirect {
    pub(crate) url: String,
    page: Option<oneshot::Sender<String>>,
    connections: JoinSet<()>,
}

impl Redirect {
    /// Creates a redirect that a person reports, instead of the browser.
    pub(crate) fn pasted(url: &str) -> Self {
        Self { url: url.trim().to_owned(), page: None, connections: JoinSet::new() }
    }

    /// Shows the result of the login to the person in the browser.
    pub(crate) async fn answer_finished(self, finished: &Result<LoginSummary, OAuthError>) {
        let page = match finished {
            Ok(_) => "You are logged in. You can close this page.".to_owned(),
            Err(error) => format!("The login failed: {error}"),
        };
        self.answer(page).await;
    }

    async fn answer(mut self, text: String) {
        if let Some(page) = self.page
            && page.send(text).is_ok()
        {
            // A browser may keep other connections open.
            let written = async { while self.connections.join_next().await.is_some() {} };
            let _ = tokio::time::timeout(PAGE_TIMEOUT, written).await;
        }
    }
}

/// A request to the redirect URI.
struct ReceivedRedirect {
    query: String,
    page: oneshot::Sender<String>,
}

impl RedirectListener {
    /// Binds the port of the last login to a server if it is free, or any.
    pub(crate) async fn bind_for(logins: &Logins, server: &ServerId) -> io::Result<Self> {
        let logins = logins.clone();
        let server = server.clone();
        let last = tokio::task::spawn_blocking(move || logins.redirect_port(&server)).await;
        Self::bind(last.ok().flatten()).await
    }

    async fn bind(port: Option<u16>) -> io::Result<Self> {
        let listener = match TcpListener::bind(("127.0.0.1", port.unwrap_or(0))).await {
            Err(_) if port.is_some() => TcpListener::bind(("127.0.0.1", 0)).await?,
            bound => bound?,
        };
        let port = listener.local_addr()?.port();
        Ok(Self { listener, port })
    }

    /// Returns the redirect URI of this listener.
    pub(crate) fn redirect_uri(&self) -> String {
        format!("http://127.0.0.1:{}{PATH}", self.port)
    }

    /// Waits for the browser to return from a login. Any page in a browser can send requests to the port, so those without
    /// the login's `state` are refused and do not end it.
    pub(crate) async fn redirect_of(&self, login: &Login) -> io::Result<Redirect> {
        loop {
            let redirect = self.next().await?;
            if login.has_state(&redirect.url) {
                return Ok(redirect);
            }
            redirect.answer("This page does not belong to the login.".to_owned()).await;
        }
    }

    async fn next(&self) -> io::Result<Redirect> {
        let (sender, mut received) = mpsc::channel(1);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept() => {
                    let (stream, _) = accepted?;
                    connections.spawn(serve(stream, sender.clone()));
                }
                Some(ReceivedRedirect { query, page }) = received.recv() => {
                    let url = format!("{}?{query}", self.redirect_uri());
                    return Ok(Redirect { url, page: Some(page), connections });
                }
            }
        }
    }
}

/// Serves one connection of the browser.
async fn serve(stream: TcpStream, sender: mpsc::Sender<ReceivedRedirect>) {
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let sender = sender.clone();
        async move { Ok::<_, std::convert::Infallible>(respond(&request, &sender).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.keep_alive(false);
    // A browser that goes away is not an error.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(
    request: &Request<hyper::body::Incoming>,
    sender: &mpsc::Sender<ReceivedRedirect>,
) -> Response<Full<Bytes>> {
    let query = request.uri().query().unwrap_or_default().to_owned();
    if request.uri().path() != PATH || query.is_empty() {
        return page(StatusCode::NOT_FOUND, "Not found.");
    }
    let (page_sender, text) = oneshot::channel();
    let received = ReceivedRedirect { query, page: page_sender };
    match sender.try_send(received) {
        Ok(()) => page(StatusCode::OK, &text.await.unwrap_or_else(|_| "The login was cancelled.".to_owned())),
        Err(_) => page(StatusCode::CONFLICT, "Another login is being finished."),
    }
}

/// Returns a page. The text is plain, because parts of it come from other parties.
fn page(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(format!("{text}\n"))));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
