//! Events of servers and calls, for logs, metrics and dashboards.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::model::call_id::CallId;
use crate::model::caller::Caller;
use crate::model::denial::Denial;
use crate::model::error::ErrorKind;
use crate::model::failure_class::FailureClass;
use crate::model::instance_key::InstanceKey;
use crate::model::pin_status::ToolPinStatus;
use crate::model::trace_context::CallSpans;
use crate::protocol::list_kind::ListKind;
use crate::protocol::versions::Era;
use crate::spec::ServerId;

/// A change of a server's state, or the end of a call. [`Crib::events`](crate::Crib::events) returns them as a stream.
///
/// ```
/// use std::time::Duration;
/// use toolcrib::{Call, CallEnd, Crib, Event, ServerSpec, Toolbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let schema = serde_json::json!({"type": "object"});
/// # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
/// let crib = Crib::builder().server(ServerSpec::in_process("house".parse()?, tools)).build()?;
/// let mut events = crib.events();
/// crib.call(Call::tool("house__greet")).await?;
/// crib.shutdown(Duration::from_secs(1)).await;
/// let mut starts = 0;
/// let mut calls = 0;
/// // The stream ends with the shutdown.
/// while let Ok(event) = events.recv().await {
///     match event {
///         Event::Started { .. } => starts += 1,
///         Event::CallEnded(record) if record.end == CallEnd::Done => calls += 1,
///         _ => {}
///     }
/// }
/// assert_eq!([starts, calls], [1, 1]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A server started and returned its first listing.
    Started {
        /// The server.
        server: ServerId,
        /// The process id, if the server is a child process.
        pid: Option<u32>,
        /// The duration of the start.
        duration: Duration,
    },
    /// A server exited unexpectedly or failed to start; it is restarted.
    Crashed {
        /// The server.
        server: ServerId,
        /// The class of the failure.
        class: FailureClass,
        /// The error message.
        reason: String,
    },
    /// A server was stopped because it was idle, on request, or because it was replaced.
    Stopped {
        /// The server.
        server: ServerId,
    },
    /// The circuit breaker of a server opened.
    Tripped {
        /// The server.
        server: ServerId,
    },
    /// The circuit breaker of a server closed again.
    Recovered {
        /// The server.
        server: ServerId,
    },
    /// Calls to a server are refused for a while.
    Paused {
        /// The server.
        server: ServerId,
        /// The class of the failure.
        class: FailureClass,
        /// The error message.
        reason: String,
        /// The time for which calls are refused.
        retry_in: Duration,
    },
    /// A server failed too often, or cannot work as declared; an operator has to act.
    Ejected {
        /// The server.
        server: ServerId,
        /// The class of the failure.
        class: FailureClass,
        /// The error message.
        reason: String,
    },
    /// The listing of a server changed.
    ListingChanged {
        /// The server.
        server: ServerId,
    },
    /// A server offers tools, other items or instructions that differ from the approved ones.
    Unapproved {
        /// The server.
        server: ServerId,
        /// The items that were not reported before, by the server's own names.
        tools: Vec<ToolPinStatus>,
        /// Whether the items are hidden until they are approved.
        withheld: bool,
    },
    /// A call ended.
    CallEnded(Arc<CallRecord>),
}

impl Event {
    /// Returns the server whose state changed; `None` for the end of a call.
    pub fn server(&self) -> Option<&ServerId> {
        match self {
            Self::Started { server, .. }
            | Self::Crashed { server, .. }
            | Self::Stopped { server }
            | Self::Tripped { server }
            | Self::Recovered { server }
            | Self::Paused { server, .. }
            | Self::Ejected { server, .. }
            | Self::ListingChanged { server }
            | Self::Unapproved { server, .. } => Some(server),
            Self::CallEnded(_) => None,
        }
    }
}

/// Everything about one call except its content.
#[derive(Debug, Clone)]
pub struct CallRecord {
    /// The id of the call, also in the data of its error.
    pub id: CallId,
    /// When it ended.
    pub at: SystemTime,
    /// The caller.
    pub caller: Caller,
    /// The client that made the request.
    pub client: CallClient,
    /// The method of the request.
    pub method: Cow<'static, str>,
    /// The server of the target, if one was found.
    pub server: Option<ServerId>,
    /// The server's own name of the target; the requested name if no server was found.
    pub name: Arc<str>,
    /// The decision of the access rules.
    pub decision: Decision,
    /// The rule that denies the call, even if the error hides it from the caller.
    pub denial: Option<Denial>,
    /// The cache result, if the call was cacheable.
    pub cache: Option<CacheUse>,
    /// The size of the parameters.
    pub request_bytes: usize,
    /// The size of the result, or of the server's error object.
    pub response_bytes: usize,
    /// The end of the call.
    pub end: CallEnd,
    /// The duration of the call.
    pub duration: Duration,
    /// The parts of the duration.
    pub timing: CallTiming,
    /// How often the call was sent to a server.
    pub attempts: u32,
    /// The id of the approval that the call waits for, if it was refused because a person must allow it first.
    pub approval: Option<Arc<str>>,
    /// The spans of the call, if it is traced.
    pub spans: Option<Arc<CallSpans>>,
    /// The arguments; only set for an [`Observer`](crate::Observer) that asks for them.
    pub arguments: Option<Bytes>,
}

/// The client that made a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallClient {
    /// The number of the client; zero for calls of the embedder.
    pub key: u64,
    /// Its name, if it is known.
    pub name: Option<Arc<str>>,
    /// Its era.
    pub era: Era,
}

/// The parts of the duration of a call. What they leave over is the gateway's own time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallTiming {
    /// Until the target was found and the access rules and people had decided; the whole duration if they denied the call.
    pub policy: Duration,
    /// The wait for the start or restart of the server; zero if it was running.
    pub start: Duration,
    /// The wait for a turn at a busy server.
    pub queue: Duration,
    /// The time in which the server had the call.
    pub server: Duration,
}

/// The decision of the access rules about a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Decision {
    /// The call ended before the rules were evaluated.
    #[default]
    NotEvaluated,
    /// Allowed by the rules.
    Allowed,
    /// Approved by a person.
    Approved,
    /// Denied by a rule or a person.
    Denied,
}

impl Decision {
    /// Returns the stable name, as it appears in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotEvaluated => "none",
            Self::Allowed => "allowed",
            Self::Approved => "approved",
            Self::Denied => "denied",
        }
    }
}

/// The cache result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheUse {
    /// Not cached: the call was sent to the server.
    Miss,
    /// Answered from the cache.
    Hit,
    /// Answered with the result of an identical call in flight.
    Joined,
}

impl CacheUse {
    /// Returns the stable name, as it appears in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Miss => "miss",
            Self::Hit => "hit",
            Self::Joined => "joined",
        }
    }
}

/// The end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallEnd {
    /// With a result.
    Done,
    /// With a result marked `isError`, or an error object from the server.
    ToolError,
    /// With requests that the client has to answer first.
    InputRequired,
    /// Without an answer from a server.
    Failed(ErrorKind),
    /// Cancelled by the caller.
    Cancelled,
}

impl CallEnd {
    /// Returns the stable name, as it appears in the audit log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "ok",
            Self::ToolError => "tool_error",
            Self::InputRequired => "input_required",
            Self::Failed(kind) => kind.facts().name,
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the value of the OpenTelemetry attribute `error.type`, if the call did not succeed.
    pub fn error_type(self) -> Option<&'static str> {
        match self {
            Self::Done | Self::InputRequired => None,
            Self::ToolError | Self::Failed(_) | Self::Cancelled => Some(self.name()),
        }
    }
}

/// A notification from a server that does not belong to a call in flight.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ServerNotification {
    /// The content of a resource changed.
    ResourceUpdated {
        /// The server.
        server: ServerId,
        /// The instance of the server that sent the notification.
        instance: InstanceKey,
        /// The server's own URI of the resource.
        uri: Arc<str>,
        /// The other parameters of the notification, as a JSON object, if there are any.
        details: Option<Bytes>,
    },
    /// The lists of one instance changed, or it announced that they did; the listing of the server as a whole did not change.
    ListChanged {
        /// The server.
        server: ServerId,
        /// The instance of the server.
        instance: InstanceKey,
        /// The lists that changed, or were announced to have changed.
        lists: Arc<[ListKind]>,
    },
    /// A message about something that outlives its call: a task, or a URL elicitation.
    FollowUp {
        /// The server.
        server: ServerId,
        /// The method of the notification.
        method: &'static str,
        /// The server's own name of the task or elicitation.
        name: Arc<str>,
        /// The parameters of the notification.
        params: Bytes,
    },
    /// A log message that does not belong to a call in flight.
    Log {
        /// The server.
        server: ServerId,
        /// The instance of the server.
        instance: InstanceKey,
        /// The number of the client whose call it is most likely about, if that call has just ended.
        client: Option<u64>,
        /// The parameters of the notification.
        params: Bytes,
    },
}
