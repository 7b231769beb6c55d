//! A transport's view of its mux.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::MuxInner;
use crate::model::error::Error;
use crate::model::exit_report::ExitReport;
use crate::protocol::framing::{Frame, OversizeMessage};
use crate::protocol::list_kind::ListKinds;
use crate::spec::ServerId;
use crate::upstream::pending::RequestEnd;
use crate::upstream::transport::QueuedMessage;
use crate::upstream::transport::input_pipe::DirectInput;
use crate::util::tasks::SpawnBoxed as _;

/// Bytes of a message after its JSON.
const LINE_END: usize = 1;

/// The handle through which a transport reports to its mux.
#[derive(Debug, Clone)]
pub(in crate::upstream) struct TransportLink {
    inner: Arc<MuxInner>,
}

impl TransportLink {
    pub(super) fn new(inner: Arc<MuxInner>) -> Self {
        Self { inner }
    }

    pub(in crate::upstream) fn server(&self) -> &ServerId {
        &self.inner.server
    }

    /// Sets the way in which a message may be sent past an empty queue.
    pub(in crate::upstream) fn set_direct_input(&self, input: Option<DirectInput>) {
        if let Some(input) = input {
            // A transport runs once.
            let _ = self.inner.direct_input.set(input);
        }
    }

    /// Counts a read from the server, also if it contains no valid message.
    pub(in crate::upstream) fn count_read(&self) {
        self.inner.received_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Handles one message, which arrived on the stream of the request `origin` if it arrived on one. Returns `false`
    /// if the stream cannot be read further.
    pub(in crate::upstream) fn receive(&self, frame: &Frame, origin: Option<u64>) -> bool {
        self.inner.receive(frame, origin)
    }

    /// Records that the first `written` bytes of these messages were written and the rest will not be. A message whose
    /// JSON was not written completely was not sent; one that only misses its line end may have been read, because
    /// servers accept an unterminated last line.
    pub(in crate::upstream) fn report_written(&self, messages: &[QueuedMessage], written: usize) {
        let mut end = 0;
        for message in messages {
            end += message.line.len();
            if let Some(id) = message.id
                && end > written + LINE_END
            {
                self.mark_not_sent(id);
            }
        }
        self.inner.queued_bytes.fetch_sub(end, Ordering::Relaxed);
    }

    /// Returns a guard that counts a message towards the queued bytes until it is dropped.
    pub(in crate::upstream) fn hold_queued_bytes(&self, message: &QueuedMessage) -> QueuedBytes {
        QueuedBytes { inner: self.inner.clone(), bytes: message.line.len() }
    }

    /// Records that the server did not process a request and never will: it was not written, or it was rejected
    /// unread. Its caller learns this when the request fails.
    pub(in crate::upstream) fn mark_not_sent(&self, id: u64) {
        self.inner.pending().mark_not_sent(id);
    }

    /// Ends one request; the connection goes on.
    pub(in crate::upstream) fn finish_request(&self, id: u64, end: RequestEnd) {
        self.inner.finish_request(id, end);
    }

    /// Returns the error of a request whose response is over the limit.
    pub(in crate::upstream) fn oversize_error(&self, oversize: &OversizeMessage) -> Error {
        self.inner.oversize_error(oversize)
    }

    /// Returns whether a request still waits for its response.
    pub(in crate::upstream) fn is_pending(&self, id: u64) -> bool {
        self.inner.pending().is_pending(id)
    }

    /// Requests a new listing.
    pub(in crate::upstream) fn request_relist(&self) {
        self.inner.relist_queue.request_urgently(ListKinds::ALL);
    }

    /// Records that the server may have announced changes of its lists while it could not be heard.
    pub(in crate::upstream) fn report_missed_announcements(&self) {
        self.inner.relist_queue.report_missed();
    }

    /// Records that the server speaks HTTP+SSE.
    pub(in crate::upstream) fn mark_legacy_sse(&self) {
        self.inner.legacy_sse.store(true, Ordering::Relaxed);
    }

    /// Stops both directions because one of them broke.
    pub(in crate::upstream) fn disconnect(&self) {
        self.inner.broken.cancel();
    }

    /// Returns the token that is cancelled when both directions must stop.
    pub(in crate::upstream) fn disconnected(&self) -> &CancellationToken {
        &self.inner.broken
    }

    /// Returns the token that is cancelled when the server's input must be closed, and on disconnect.
    pub(in crate::upstream) fn close_requested(&self) -> &CancellationToken {
        &self.inner.close_input
    }

    /// Spawns a task that the gateway waits for when it stops. A panic in it disconnects.
    pub(in crate::upstream) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let disconnect = DisconnectOnPanic { link: self.clone() };
        self.inner.tasks.spawn_boxed(async move {
            let output = task.await;
            drop(disconnect);
            output
        })
    }

    /// Closes the connection after the transport has ended.
    pub(super) fn close(&self, report: ExitReport) {
        self.disconnect();
        self.inner.close(report);
    }
}

/// Closes a connection when its transport ends, also by a panic, so that no request waits for it any longer.
pub(super) struct CloseOnDrop {
    link: TransportLink,
    report: ExitReport,
}

impl CloseOnDrop {
    pub(super) fn new(link: TransportLink) -> Self {
        let report = ExitReport { stderr: vec!["its connection failed".to_owned()], ..ExitReport::default() };
        Self { link, report }
    }

    /// Closes the connection with the transport's own report.
    pub(super) fn close(mut self, report: ExitReport) {
        self.report = report;
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.link.close(std::mem::take(&mut self.report));
    }
}

/// Disconnects if the task that owns it panics.
struct DisconnectOnPanic {
    link: TransportLink,
}

impl Drop for DisconnectOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.link.disconnect();
        }
    }
}

/// The messages that a transport has to send. Messages that are left when it is dropped were not sent.
#[derive(Debug)]
pub(in crate::upstream) struct OutgoingQueue {
    inner: Arc<MuxInner>,
    messages: mpsc::UnboundedReceiver<QueuedMessage>,
}

impl OutgoingQueue {
    pub(super) fn new(inner: Arc<MuxInner>, messages: mpsc::UnboundedReceiver<QueuedMessage>) -> Self {
        Self { inner, messages }
    }

    /// Waits for the next message. Dropping the future loses none.
    pub(in crate::upstream) async fn recv(&mut self) -> Option<QueuedMessage> {
        self.messages.recv().await
    }

    /// Waits for messages and appends up to `limit` of them to `batch`; returns their number. Dropping the future
    /// loses none.
    pub(in crate::upstream) async fn recv_many(
        &mut self,
        batch: &mut Vec<QueuedMessage>,
        limit: usize,
    ) -> usize {
        self.messages.recv_many(batch, limit).await
    }
}

impl Drop for OutgoingQueue {
    fn drop(&mut self) {
        self.messages.close();
        while let Ok(message) = self.messages.try_recv() {
            if let Some(id) = message.id {
                self.inner.pending().mark_not_sent(id);
            }
        }
    }
}

/// The bytes that a message adds to the queue until it is sent.
#[derive(Debug)]
pub(in crate::upstream) struct QueuedBytes {
    inner: Arc<MuxInner>,
    bytes: usize,
}

impl Drop for QueuedBytes {
    fn drop(&mut self) {
        self.inner.queued_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
