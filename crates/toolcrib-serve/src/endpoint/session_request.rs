//! One request in a session, from its arrival to the start of its response.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::McpRequest;
use crate::gateway::ConnectionContext;
use crate::service::McpService;
use crate::session::SessionRef;
use crate::session::stream::{EventLog, ResponseStart};

/// A request that is handled as part of its connection until its response starts. A stream, and a request whose connection
/// ends, continue in a task of their own.
pub(super) struct SessionRequest<'a> {
    pub(super) log: Arc<EventLog>,
    /// Handles the request and writes the response to the log. `None` once it has ended or continues in a task.
    handler: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    tasks: &'a TaskTracker,
}

impl<'a> SessionRequest<'a> {
    /// Starts a request; `None` if a request with its id is in progress.
    pub(super) fn start(
        conn: &'a ConnectionContext,
        session: &SessionRef,
        request: McpRequest,
    ) -> Option<Self> {
        let log = session.streams.new_log(session.client.is_shared().then_some(&request.id));
        if !session.client.in_flight.start(&request.id, || log.clone()) {
            return None;
        }
        let service = conn.gateway.service.clone();
        let handler = Box::pin(handle(service, session.clone(), LogCloser(log.clone()), request));
        Some(Self { log, handler: Some(handler), tasks: &conn.gateway.tasks })
    }

    /// Handles the request until its response starts.
    pub(super) async fn wait_for_start(mut self, accepts_events: bool) -> ResponseStart {
        let log = self.log.clone();
        log.wait_for_start(accepts_events, |context| self.poll_handler(context)).await
    }

    /// Polls the handler. One that panics ends without a response, as it does in a task of its own.
    fn poll_handler(&mut self, context: &mut Context<'_>) {
        let Some(handler) = &mut self.handler else { return };
        let polled = catch_unwind(AssertUnwindSafe(|| handler.as_mut().poll(context)));
        if !matches!(polled, Ok(Poll::Pending)) {
            self.handler = None;
        }
    }

    /// Handles the rest of the request in a task of its own, unless it was cancelled.
    pub(super) fn continue_in_task(&mut self) {
        let Some(handler) = self.handler.take() else { return };
        // A connection may be dropped outside of its runtime, which cancels the request.
        if !self.log.has_ended() && Handle::try_current().is_ok() {
            self.log.set_task(self.tasks.spawn(handler).abort_handle());
        }
    }
}

impl Drop for SessionRequest<'_> {
    fn drop(&mut self) {
        self.continue_in_task();
    }
}

/// Handles a request and writes the response to its log. Not an async function, which would store its arguments twice.
fn handle(
    service: Arc<McpService>,
    session: SessionRef,
    closer: LogCloser,
    request: McpRequest,
) -> impl Future<Output = ()> + Send {
    let McpRequest { id, method, params, accepts_events } = request;
    async move {
        let out = accepts_events.then_some(&closer.0);
        let client = &session.client;
        let response = client.respond(&service, &id, &method, params, out).await;
        client.in_flight.finish(&id);
        let now = Instant::now();
        closer.0.finish(&id, response, now);
        session.streams.remove_excess();
        session.touch(now);
    }
}

/// Closes the log when its request ends or is cancelled.
struct LogCloser(Arc<EventLog>);

impl Drop for LogCloser {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::stream::ReplayStreams;

    fn size_of_future<F: Future>(
        _: impl FnOnce(Arc<McpService>, SessionRef, LogCloser, McpRequest) -> F,
    ) -> usize {
        size_of::<F>()
    }

    /// Larger allocations leave the thread's cache of glibc: 500 instructions of 48,000.
    #[test]
    fn future_of_a_request_is_small() {
        assert!(size_of_future(handle) <= 1032);
    }

    #[tokio::test]
    async fn panicking_handler_ends_its_request() {
        let log = ReplayStreams::default().new_log(None);
        let closer = LogCloser(log.clone());
        let handler = async move {
            let _closer = closer;
            panic!("on purpose")
        };
        let tasks = TaskTracker::new();
        let request = SessionRequest { log, handler: Some(Box::pin(handler)), tasks: &tasks };
        assert!(matches!(request.wait_for_start(true).await, ResponseStart::Cancelled));
        assert!(tasks.is_empty());
    }
}
