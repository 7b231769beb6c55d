//! HTTP transport: each message to the server is a request of its own, and its response carries the answer.
//!
//! One task takes messages from the queue and starts a task for each, which reports its result itself. When the connection
//! is closed or the server is lost, the first one aborts them and ends the session.

pub(in crate::upstream) mod auth;
mod bearer_auth;
mod body;
mod endpoint;
pub(crate) mod fetch;
mod forwarded_groups;
mod header_params;
mod http_error;
mod legacy_sse;
mod outgoing_message;
mod post;
mod published_card;
mod request_tasks;
mod same_origin;
mod session;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, LOCATION, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::http_client::HttpClient;
use crate::model::exit_report::{ExitReport, ProcessExit};
use crate::model::instance_key::InstanceKey;
use crate::protocol::era::client::CANCELLED;
use crate::protocol::era::handshake::INITIALIZED;
use crate::secrets::{Redactor, ResolvedSecrets};
use crate::spec::{HttpSpec, ServerCard, ServerSpec, TransportKind};
use crate::upstream::launch::LaunchContext;
use crate::upstream::pending::RequestEnd;
use crate::upstream::transport::{MessageLimit, OutgoingQueue, TransportLink};
use crate::util::locks::IgnorePoison as _;
use auth::{Auth, AuthDecision, AuthHeaders, AuthRejection, StaticHeaders, is_auth_status};
use header_params::HeaderParams;
use http_error::{HttpError, HttpErrorMapper};
use outgoing_message::OutgoingMessage;
use request_tasks::RequestTasks;
use session::UpstreamSession;

pub(in crate::upstream) use endpoint::HttpTransport;
use forwarded_groups::ForwardedGroups;

/// Redirects followed per request.
const MAX_REDIRECTS: usize = 3;
/// Time limit for ending the session.
const END_SESSION_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for a message without a response.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(30);

/// Prepares the transport of a server; see [`HttpTransport::new`].
pub(in crate::upstream) async fn open(
    spec: &ServerSpec,
    remote: &HttpSpec,
    secrets: &ResolvedSecrets,
    redactor: &Arc<Redactor>,
    context: &LaunchContext,
    message_limit: MessageLimit,
) -> Result<HttpTransport, String> {
    let auth = Arc::new(StaticHeaders);
    let transport =
        HttpTransport::new(spec, remote, secrets, redactor, auth, &context.tasks, message_limit).await?;
    let logins = context.logins.as_ref().map(|logins| match context.owner.key.without_era() {
        InstanceKey::Caller(caller) => logins.for_caller(caller),
        _ => logins.clone(),
    });
    let transport = transport.bearer_tokens(spec, remote, secrets, logins.as_ref(), &context.tasks)?;
    let transport = transport.forward_caller(spec, remote, secrets, context)?;
    Ok(transport.published_card(context.published_card.clone()))
}

/// The running HTTP transport of one server.
struct HttpConnection {
    link: TransportLink,
    client: HttpClient,
    url: Uri,
    /// Sent with every request, together with the credentials.
    base_headers: HeaderMap,
    auth: Arc<dyn Auth>,
    transport: TransportKind,
    message_limit: MessageLimit,
    errors: HttpErrorMapper,
    route: Mutex<HttpRoute>,
    /// Held while an expired session is replaced.
    renewing: tokio::sync::Mutex<()>,
    /// Reads messages outside of any request, in the current session.
    listen_task: Mutex<Option<AbortOnDropHandle<Option<()>>>>,
    /// Requests whose effect lasts for a session, sent again in the next one.
    sticky_requests: Mutex<BTreeMap<String, Bytes>>,
    header_params: HeaderParams,
    /// Set when the server has answered a request other than the handshake.
    is_established: AtomicBool,
    /// The place for the card that the server publishes.
    published_card: Option<Arc<OnceLock<ServerCard>>>,
    /// The groups of the caller, if the server learns about them.
    forwarded_groups: Option<ForwardedGroups>,
    /// The body of the probe, if one was sent.
    probe_body: OnceLock<Bytes>,
    /// The reason why the server was lost.
    lost_reason: OnceLock<String>,
    /// Closes the connections of the client.
    shutdown: CancellationToken,
}

/// The way messages are sent.
#[derive(Debug, Clone)]
enum HttpRoute {
    /// Every request is independent: the stateless era, and the handshake in any era.
    Stateless,
    /// All requests belong to a session.
    Session(Arc<UpstreamSession>),
    /// Requests go to this URL and all responses arrive on one event stream.
    Sse(Uri),
}

impl HttpConnection {
    /// Sends queued messages until the connection is closed or the server is lost.
    async fn run(self: Arc<Self>, mut queue: OutgoingQueue) -> ExitReport {
        let in_flight = RequestTasks::default();
        loop {
            let outgoing = tokio::select! {
                biased;
                () = self.link.close_requested().cancelled() => break,
                outgoing = queue.recv() => outgoing,
            };
            let Some(outgoing) = outgoing else { break };
            let queued_bytes = self.link.hold_queued_bytes(&outgoing);
            let message = OutgoingMessage::new(outgoing);
            // A client may send any method as a request; only messages without a pending request are the gateway's
            // own.
            let request_id = message.request_id();
            if request_id.is_none()
                && message.method == CANCELLED
                && let Some(id) = message.id
            {
                in_flight.abort(id); // in the stateless era, closing the response cancels the request
            }
            if request_id.is_none() && message.method == INITIALIZED {
                // No other message may overtake this one.
                self.link.close_requested().run_until_cancelled(self.confirm_session(&message)).await;
                continue;
            }
            let connection = self.clone();
            let lost_on_panic = LostOnPanic(self.clone());
            in_flight.spawn(request_id, |guard| async move {
                let _guards = (lost_on_panic, queued_bytes, guard); // dropped even if the task never runs
                connection.deliver(message).await;
            });
        }
        drop(queue);
        in_flight.shut_down().await;
        self.shut_down().await
    }

    /// Ends the session and closes the connection.
    async fn shut_down(&self) -> ExitReport {
        if self.lost_reason.get().is_none() {
            // Servers need not support this.
            let _ = timeout(END_SESSION_TIMEOUT, self.end_session()).await;
        }
        self.shutdown.cancel();
        let stderr = self.lost_reason.get().cloned().into_iter().collect();
        ExitReport { exit: Some(ProcessExit::Disconnected), stderr, program: String::new() }
    }

    /// Records why the server is lost and breaks the connection.
    fn mark_lost(&self, reason: impl Into<String>) {
        let _ = self.lost_reason.set(reason.into()); // only the first reason counts
        self.link.disconnect();
    }

    fn route(&self) -> MutexGuard<'_, HttpRoute> {
        self.route.lock().ignore_poison()
    }

    /// Spawns a task that ends when the connection is closed.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<Option<()>> {
        let close_requested = self.link.close_requested().clone();
        self.link.spawn(close_requested.run_until_cancelled_owned(task))
    }

    /// Sends a request and returns the response head. `customize` adds headers to those of every request. A request
    /// that the server rejects unread, for its credentials, is sent once more if [`Auth`] has new ones.
    async fn send(
        &self,
        method: Method,
        url: &Uri,
        customize: impl Fn(&mut HeaderMap),
        body: Bytes,
    ) -> Result<Response<Incoming>, HttpError> {
        let credentials = self.credentials().await?;
        let response = self.send_once(&method, url, || self.headers(&credentials, &customize), &body).await?;
        let status = response.status();
        if !is_auth_status(status) {
            return Ok(response);
        }
        let challenge = response.headers().get(WWW_AUTHENTICATE);
        let decision = self.auth.rejected(&AuthRejection { status, challenge, sent: &credentials });
        let is_unread = status == StatusCode::UNAUTHORIZED || challenge.is_some();
        if decision == AuthDecision::Fail || !is_unread {
            return Ok(response);
        }
        body::read_error_body(response.into_body()).await; // so that its connection can be reused
        let credentials = self.credentials().await?;
        self.send_once(&method, url, || self.headers(&credentials, &customize), &body).await
    }

    /// Returns the headers of every request, with credentials.
    async fn credentials(&self) -> Result<Cow<'_, HeaderMap>, HttpError> {
        match self.auth.headers(&self.base_headers) {
            AuthHeaders::Ready(headers) => Ok(headers),
            AuthHeaders::Pending(headers) => headers.await.map(Cow::Owned).map_err(HttpError::NoCredentials),
        }
    }

    /// Returns the headers of one request.
    fn headers(&self, credentials: &HeaderMap, customize: impl Fn(&mut HeaderMap)) -> HeaderMap {
        let mut headers = credentials.clone();
        self.forwarded_groups.iter().for_each(|groups| groups.add_to(&mut headers));
        customize(&mut headers);
        headers
    }

    /// Sends a request. Redirects are followed only within the same origin, so that headers with secrets go nowhere
    /// else.
    async fn send_once(
        &self,
        method: &Method,
        url: &Uri,
        headers: impl Fn() -> HeaderMap,
        body: &Bytes,
    ) -> Result<Response<Incoming>, HttpError> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = url.clone();
            *request.headers_mut() = headers();
            let response = self.client.request(request).await?;
            self.link.count_read();
            if !matches!(response.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| same_origin::resolve_same_origin(&url, location));
            url = next.ok_or(HttpError::BadRedirect)?;
        }
        Err(HttpError::BadRedirect)
    }

    /// Maps a failed request to its end. Without a connection or credentials, the server did not see it.
    fn request_error(&self, error: HttpError, message: &OutgoingMessage) -> RequestEnd {
        let is_unsent = matches!(error, HttpError::Unreachable(_) | HttpError::NoCredentials(_));
        if let Some(id) = message.request_id().filter(|_| is_unsent && !message.is_handshake()) {
            self.link.mark_not_sent(id);
        }
        self.errors.request_error(error, message)
    }
}

/// Disconnects if the task of a request panics.
struct LostOnPanic(Arc<HttpConnection>);

impl Drop for LostOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.mark_lost("a request to it panicked");
        }
    }
}
