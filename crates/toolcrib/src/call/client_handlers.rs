//! The embedder's handlers of what servers send to their client: requests, progress, log messages, notifications.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, RwLock};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::call::Call;
use crate::call::updates::{CallUpdate, ServerRequest, UpdateSink};
use crate::model::caller::Caller;
use crate::model::event::ServerNotification;
use crate::protocol::era::capabilities::{CREATE_MESSAGE, ClientCapabilities, ELICIT, LIST_ROOTS};
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc::{ResponsePayload, code, error_object};
use crate::protocol::versions::Era;
use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// A request of a server that a handler answers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientRequest {
    /// The server that asks; `None` if toolcrib itself asks, for an approval.
    pub server: Option<ServerId>,
    /// The caller of the call during which the server asks; `None` if the request belongs to no call.
    pub caller: Option<Caller>,
    /// The parameters of the request.
    pub params: Value,
}

/// Something that a server reports to its client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ClientNotification {
    /// The progress of a call without an update sink of its own.
    Progress {
        /// The caller.
        caller: Caller,
        /// The requested name.
        name: Arc<str>,
        /// The parameters of the notification, without the token.
        params: Object,
    },
    /// A log message of a call without an update sink of its own.
    Log {
        /// The caller.
        caller: Caller,
        /// The requested name.
        name: Arc<str>,
        /// The parameters of the notification.
        params: Bytes,
    },
    /// A notification that does not belong to a call in flight.
    Server(ServerNotification),
    /// The catalog or the access rules changed.
    CatalogChanged,
}

/// The answer of a handler: the result, or the message of an error.
pub(crate) type HandlerFuture = Pin<Box<dyn Future<Output = Result<Value, String>> + Send>>;

/// A function that answers requests.
pub(crate) type RequestHandler = Arc<dyn Fn(ClientRequest) -> HandlerFuture + Send + Sync>;

/// A function that receives notifications.
pub(crate) type NotificationHandler = Arc<dyn Fn(ClientNotification) + Send + Sync>;

/// The handlers that an embedder set.
#[derive(Clone, Default)]
pub(crate) struct HandlerSet {
    pub(crate) sampling: Option<RequestHandler>,
    pub(crate) elicitation: Option<RequestHandler>,
    /// The URIs of the roots.
    pub(crate) roots: Option<Vec<String>>,
    pub(crate) notification: Option<NotificationHandler>,
}

impl HandlerSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.sampling.is_none()
            && self.elicitation.is_none()
            && self.roots.is_none()
            && self.notification.is_none()
    }

    /// Returns the capabilities that servers get to see. A handler of elicitations gets forms, which every server can
    /// send.
    fn capabilities(&self) -> ClientCapabilities {
        let mut object = Object::default();
        if self.roots.is_some() {
            object.set_unchecked("roots", Bytes::from_static(br#"{"listChanged":true}"#));
        }
        if self.sampling.is_some() {
            object.set_unchecked("sampling", Bytes::from_static(b"{}"));
        }
        if self.elicitation.is_some() {
            object.set_unchecked("elicitation", Bytes::from_static(br#"{"form":{}}"#));
        }
        ClientCapabilities::parse(&object.to_bytes())
    }
}

/// The handlers of a running crib.
pub(crate) struct ClientHandlers {
    set: HandlerSet,
    capabilities: ClientCapabilities,
    /// The answer to `roots/list`.
    roots: RwLock<Bytes>,
    /// Owns the tasks of requests that are being answered.
    tasks: TaskTracker,
    /// Ends these tasks.
    stop: CancellationToken,
}

impl fmt::Debug for ClientHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHandlers").field("capabilities", &self.capabilities).finish_non_exhaustive()
    }
}

impl ClientHandlers {
    pub(crate) fn new(set: HandlerSet, tasks: TaskTracker, stop: CancellationToken) -> Self {
        let capabilities = set.capabilities();
        let roots = RwLock::new(roots_result(set.roots.as_deref().unwrap_or_default()));
        Self { set, capabilities, roots, tasks, stop }
    }

    /// Returns the capabilities that the handlers have together.
    pub(crate) fn capabilities(&self) -> &ClientCapabilities {
        &self.capabilities
    }

    /// Returns whether there is a handler for a request.
    pub(crate) fn can_answer(&self, method: &str, params: Option<&Bytes>) -> bool {
        self.capabilities.missing_for(method, params).is_none()
    }

    /// Replaces the roots. Returns `false` if none were announced to servers.
    pub(crate) fn set_roots(&self, roots: &[String]) -> bool {
        *self.roots.write().ignore_poison() = roots_result(roots);
        self.set.roots.is_some()
    }

    /// Passes a notification to its handler. A panic of the handler is contained.
    pub(crate) fn notify(&self, notification: ClientNotification) {
        if let Some(handler) = &self.set.notification
            && catch_unwind(AssertUnwindSafe(|| handler(notification))).is_err()
        {
            tracing::error!("the handler of notifications panicked");
        }
    }

    /// Returns whether notifications have a handler.
    pub(crate) fn wants_notifications(&self) -> bool {
        self.set.notification.is_some()
    }

    /// Answers a request in its own task. Returns `false` if there is no handler for it.
    pub(crate) fn answer(&self, request: ServerRequest, caller: Option<Caller>) -> bool {
        if !self.can_answer(&request.method, request.params.as_ref()) {
            return false;
        }
        let handler = match &*request.method {
            LIST_ROOTS => {
                let roots = self.roots.read().ignore_poison().clone();
                request.answer(ResponsePayload::Result(roots));
                return true;
            }
            CREATE_MESSAGE => self.set.sampling.clone(),
            ELICIT => self.set.elicitation.clone(),
            _ => None,
        };
        let Some(handler) = handler else { return false };
        let params = request.params.as_ref().and_then(|raw| serde_json::from_slice(raw).ok());
        let server = request.server.clone();
        let asked = ClientRequest { server, caller, params: params.unwrap_or_else(|| json!({})) };
        let stop = self.stop.clone();
        self.tasks.spawn_boxed(async move {
            // If the handler panics, dropping the request answers the server with an error.
            tokio::select! {
                answer = async { handler(asked).await } => request.answer(to_payload(answer)),
                () = stop.cancelled() => {}
            }
        });
        true
    }
}

fn to_payload(answer: Result<Value, String>) -> ResponsePayload {
    match answer {
        Ok(result) => ResponsePayload::Result(result.to_string().into()),
        Err(message) => ResponsePayload::Error(error_object(code::INTERNAL_ERROR, &message, None)),
    }
}

fn roots_result(uris: &[String]) -> Bytes {
    let roots: Vec<Value> = uris.iter().map(|uri| json!({"uri": uri})).collect();
    json!({ "roots": roots }).to_string().into()
}

/// Delivers the updates of a call to its own sink where the client can handle them, and else to the handlers.
struct HandlerSink {
    handlers: Arc<ClientHandlers>,
    own_sink: Option<Arc<dyn UpdateSink>>,
    /// The capabilities of the client itself.
    own_capabilities: ClientCapabilities,
    caller: Caller,
    name: Arc<str>,
}

impl fmt::Debug for HandlerSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerSink").field("name", &self.name).finish_non_exhaustive()
    }
}

impl UpdateSink for HandlerSink {
    fn deliver(&self, update: CallUpdate) -> bool {
        match (update, &self.own_sink) {
            (CallUpdate::Request(request), own_sink) => {
                let params = request.params.as_ref();
                let own_sink = own_sink
                    .as_ref()
                    .filter(|_| self.own_capabilities.missing_for(&request.method, params).is_none());
                match own_sink {
                    Some(sink) => sink.deliver(CallUpdate::Request(request)),
                    None => self.handlers.answer(request, Some(self.caller.clone())),
                }
            }
            (update, Some(sink)) => sink.deliver(update),
            (update, None) => self.notify(update),
        }
    }

    fn cancel_reason(&self) -> Option<String> {
        self.own_sink.as_ref()?.cancel_reason()
    }
}

impl HandlerSink {
    fn notify(&self, update: CallUpdate) -> bool {
        let caller = self.caller.clone();
        let name = self.name.clone();
        match update {
            CallUpdate::Progress(params) => {
                self.handlers.notify(ClientNotification::Progress { caller, name, params });
            }
            CallUpdate::Log(params) => self.handlers.notify(ClientNotification::Log { caller, name, params }),
            CallUpdate::Notification { .. } | CallUpdate::Request(_) | CallUpdate::RequestWithdrawn => {
                return false;
            }
        }
        true
    }
}

impl Call {
    /// Lets the handlers answer what the client of this call cannot. A stateless client that can answer requests gets all
    /// of them.
    pub(crate) fn attach_handlers(&mut self, handlers: &Arc<ClientHandlers>) {
        if self.handlers.is_some() || self.client.era == Era::Stateless && self.client.capabilities.has_any()
        {
            return;
        }
        let own_sink = self.update_sink.take();
        if own_sink.is_none() && handlers.wants_notifications() {
            self.request_progress();
        }
        let capabilities = self.client.capabilities.union(handlers.capabilities());
        let sink = HandlerSink {
            handlers: handlers.clone(),
            own_sink,
            own_capabilities: std::mem::replace(&mut self.client.capabilities, capabilities),
            caller: self.caller.clone(),
            name: self.name().into(),
        };
        self.update_sink = Some(Arc::new(sink));
        self.handlers = Some(handlers.clone());
    }
}
