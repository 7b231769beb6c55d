//! Updates that arrive before the outcome of a call: progress, log messages and requests from the server.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::protocol::json::object::{self, Object};
use crate::protocol::jsonrpc::{ResponsePayload, code, error_object};
use crate::spec::ServerId;
use crate::util::panics;

/// An update about a running call. Updates arrive in order, all of them before the outcome.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallUpdate {
    /// The parameters of a progress notification, without the token.
    Progress(Object),
    /// The parameters of a log message notification.
    Log(Bytes),
    /// A notification of an extension.
    Notification {
        /// The method.
        method: String,
        /// The raw parameters.
        params: Option<Bytes>,
    },
    /// A request that the client has to answer before the server continues.
    Request(ServerRequest),
    /// The server withdrew a request; see [`ServerRequest::is_withdrawn`].
    RequestWithdrawn,
}

/// Receives the updates of a call. It must not block; a panic drops the update.
pub trait UpdateSink: std::fmt::Debug + Send + Sync {
    /// Delivers an update; returns `false` if it was dropped.
    fn deliver(&self, update: CallUpdate) -> bool;

    /// Returns the reason that the client gave for the cancellation of its call, which the server is told.
    fn cancel_reason(&self) -> Option<String> {
        None
    }
}

impl dyn UpdateSink {
    /// Delivers an update; one that makes the sink panic was dropped.
    pub(crate) fn deliver_contained(&self, update: CallUpdate) -> bool {
        panics::contain("update sink", || self.deliver(update)).unwrap_or(false)
    }

    /// Returns the reason for a cancellation; none if the sink panics.
    pub(crate) fn cancel_reason_contained(&self) -> Option<String> {
        panics::contain("update sink", || self.cancel_reason()).flatten()
    }
}

impl UpdateSink for mpsc::Sender<CallUpdate> {
    /// Drops the update if the channel is full or closed.
    fn deliver(&self, update: CallUpdate) -> bool {
        self.try_send(update).is_ok()
    }
}

/// A request from a server to the client. Dropping it answers the server with an error.
pub struct ServerRequest {
    /// The method: sampling, elicitation, roots, or a method of an extension.
    pub method: String,
    /// The raw parameters.
    pub params: Option<Bytes>,
    /// The server that asks; `None` if toolcrib itself asks, for example for an approval.
    pub server: Option<ServerId>,
    /// The name and version of the server as results show them.
    pub(crate) server_info: Option<Bytes>,
    reply: oneshot::Sender<ResponsePayload>,
    withdrawn: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    progress: Option<ProgressFn>,
}

/// Sends the parameters of a progress notification to the server that asked.
type ProgressFn = Box<dyn Fn(&Bytes) + Send + Sync>;

impl std::fmt::Debug for ServerRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerRequest").field("method", &self.method).finish_non_exhaustive()
    }
}

impl ServerRequest {
    /// Creates a request and the receiver of its answer.
    pub(crate) fn new(method: String, params: Option<Bytes>) -> (Self, oneshot::Receiver<ResponsePayload>) {
        let (reply, answer) = oneshot::channel();
        let request =
            Self { method, params, server: None, server_info: None, reply, withdrawn: None, progress: None };
        (request, answer)
    }

    /// Sets the server that asks.
    pub(crate) fn with_server(self, server: &ServerId) -> Self {
        Self { server: Some(server.clone()), ..self }
    }

    /// Sets the name and version of the server, if they are known.
    pub(crate) fn with_server_info(self, info: Option<&Bytes>) -> Self {
        Self { server_info: info.cloned(), ..self }
    }

    /// Sets the function that sends progress to the server.
    pub(crate) fn with_progress(self, progress: impl Fn(&Bytes) + Send + Sync + 'static) -> Self {
        Self { progress: Some(Box::new(progress)), ..self }
    }

    /// Reports the client's progress with the request to the server, if it still waits for the answer. `params` are those
    /// of the notification, with the progress token of the request.
    pub fn report_progress(&self, params: &Object) {
        if let Some(progress) = self.progress.as_ref().filter(|_| !self.is_withdrawn()) {
            progress(&params.to_bytes());
        }
    }

    /// Sets the function that tells whether the server withdrew the request.
    pub(crate) fn withdrawn_when(self, withdrawn: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { withdrawn: Some(Box::new(withdrawn)), ..self }
    }

    /// Returns whether the server no longer waits for the answer.
    pub fn is_withdrawn(&self) -> bool {
        self.reply.is_closed() || self.withdrawn.as_ref().is_some_and(|withdrawn| withdrawn())
    }

    /// Sends the client's answer to the server. If it is not exactly one JSON value, the server gets an error instead.
    pub fn answer(self, answer: ResponsePayload) {
        let (ResponsePayload::Result(raw) | ResponsePayload::Error(raw)) = &answer;
        let checked = object::check_value(raw).map(|()| answer);
        self.answer_scanned(checked.unwrap_or_else(|error| {
            let message = format!("the client's answer is not valid JSON: {error}");
            ResponsePayload::Error(error_object(code::INVALID_REQUEST, &message, None))
        }));
    }

    /// Like [`ServerRequest::answer`], for an answer that is known to be JSON because it was scanned before.
    #[doc(hidden)]
    pub fn answer_scanned(self, answer: ResponsePayload) {
        // An error means that the server is gone.
        let _ = self.reply.send(answer);
    }
}
