//! `Link`: requests multiplexed over one pair of byte streams.
//!
//! One task reads and one task writes. A waiter is in the table before its bytes leave; dropping a ticket frees its
//! number and tells the server; when either direction breaks, everybody who waits is told how the other end went.

mod ticket;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pending::{Ended, Pending, Waiter};
use crate::call::Progress;
use crate::error::{Error, ErrorKind};
use crate::last_words::LastWords;
use crate::spec::ServerId;
use crate::wire::dialect::client::{PING, PROGRESS, TOOLS_CHANGED};
use crate::wire::frame::{Frame, Frames, flatten};
use crate::wire::message::{self, Answer, Id, ServerMessage, code};
use crate::wire::object::{Object, as_integer};

pub(super) use ticket::Ticket;

/// Bytes that may wait for a server which does not read its input.
const MOST_QUEUED: usize = 64 << 20;

/// Messages handled in one go before it is somebody else's turn.
const FAIR: usize = 64;

/// One end of a multiplexed connection.
#[derive(Debug)]
pub(crate) struct Link {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: ServerId,
    pending: Mutex<Pending>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    queued: AtomicUsize,
    noise: AtomicU64,
    tools_changed: Notify,
    /// Asks the writer to close the server's input; a break in one direction does so too.
    hang_up: CancellationToken,
    /// The server was told to leave, so that it did is no crash.
    dismissed: AtomicBool,
    /// One direction broke; the parent of `hang_up`.
    broken: CancellationToken,
    /// The other end is gone and everybody has been told.
    closed: CancellationToken,
    /// How the other end went, and whether it had been told to.
    ending: OnceLock<(LastWords, bool)>,
}

/// A message on its way out, and whose request it is.
#[derive(Debug)]
struct Outgoing {
    id: Option<u64>,
    line: Vec<u8>,
}

/// How the other end went; asked for once, when a direction broke.
pub(super) type Farewell = Pin<Box<dyn Future<Output = LastWords> + Send>>;

impl Link {
    /// Starts reading and writing. `gone` ends when the other end is known to be gone though its output is still open.
    pub(super) fn open(
        server: ServerId,
        (reader, writer): (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static),
        message_limit: usize,
        gone: impl Future<Output = ()> + Send + 'static,
        farewell: Farewell,
        tasks: &TaskTracker,
    ) -> Self {
        let (outgoing, queue) = mpsc::unbounded_channel();
        let broken = CancellationToken::new();
        let shared = Arc::new(Shared {
            server,
            pending: Mutex::default(),
            outgoing,
            queued: AtomicUsize::new(0),
            noise: AtomicU64::new(0),
            tools_changed: Notify::new(),
            hang_up: broken.child_token(),
            dismissed: AtomicBool::new(false),
            broken,
            closed: CancellationToken::new(),
            ending: OnceLock::new(),
        });
        tasks.spawn(write(shared.clone(), writer, queue));
        let reading = shared.clone();
        tasks.spawn(async move {
            read(&reading, reader, Frames::new(message_limit), gone).await;
            reading.broken.cancel();
            reading.close(farewell.await);
        });
        Self { shared }
    }

    /// Sends a request; `params` is told the number under which it goes and writes a JSON object.
    pub(super) fn ask(
        &self,
        method: &str,
        progress: Option<mpsc::Sender<Progress>>,
        params: impl FnOnce(u64, &mut Vec<u8>),
    ) -> Result<Ticket, Error> {
        let (answer, receiver) = oneshot::channel();
        let id = self
            .shared
            .pending()
            .enter(Waiter { answer, progress, unsent: false })
            .ok_or_else(|| self.lost(true))?;
        let ticket = Ticket::new(self.shared.clone(), id, receiver);
        let mut line = Vec::with_capacity(256);
        message::write_request_head(&mut line, id, method);
        params(id, &mut line);
        line.push(b'}');
        let queued = self.shared.queued.load(Ordering::Relaxed);
        if queued > 0 && queued + line.len() > MOST_QUEUED {
            self.shared.pending().take(id); // it never left, so there is nothing to cancel
            let server = &self.shared.server;
            let error = Error::new(ErrorKind::TimedOut, format!("`{server}` does not read its input"));
            return Err(error.at(server).unsent());
        }
        self.shared.send(Some(id), line);
        Ok(ticket)
    }

    pub(super) fn tell(&self, method: &str) {
        self.shared.send(None, message::notification(method, None));
    }

    pub(super) fn hang_up(&self) {
        self.shared.dismissed.store(true, Ordering::Relaxed);
        self.shared.hang_up.cancel();
    }

    pub(super) async fn closed(&self) {
        self.shared.closed.cancelled().await;
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.pending().is_closed()
    }

    pub(super) async fn tools_changed(&self) {
        self.shared.tools_changed.notified().await;
    }

    pub(super) fn in_flight(&self) -> usize {
        self.shared.pending().len()
    }

    pub(super) fn noise(&self) -> u64 {
        self.shared.noise.load(Ordering::Relaxed)
    }

    pub(super) fn lost(&self, unsent: bool) -> Error {
        self.shared.lost(unsent)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.broken.cancel();
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, id: Option<u64>, mut line: Vec<u8>) {
        flatten(&mut line);
        line.push(b'\n');
        let queued = self.queued.fetch_add(line.len(), Ordering::Relaxed);
        if queued > 2 * MOST_QUEUED {
            self.broken.cancel(); // it asks and asks, and never reads an answer
        }
        // The writer is gone once the connection is broken; the reader tells everybody, and this one that it never left.
        if let Err(mpsc::error::SendError(Outgoing { id: Some(id), .. })) =
            self.outgoing.send(Outgoing { id, line })
        {
            self.pending().mark_unsent(id);
        }
    }

    fn end(&self, id: u64, ended: Ended) {
        let waiter = self.pending().take(id);
        if let Some(waiter) = waiter {
            // Nobody listens any more if the caller gave up in this very moment.
            let _ = waiter.answer.send(ended);
        }
    }

    fn close(&self, words: LastWords) {
        // Only the reader closes, so the words are set once.
        let _ = self.ending.set((words, self.dismissed.load(Ordering::Relaxed)));
        let waiters = self.pending().close();
        for waiter in waiters {
            let _ = waiter.answer.send(Ended::Lost { unsent: waiter.unsent });
        }
        self.closed.cancel();
    }

    fn lost(&self, unsent: bool) -> Error {
        let (words, dismissed) = self.ending.get().cloned().unwrap_or_default();
        let message = match (dismissed, unsent) {
            (true, _) => format!("`{}` was stopped", self.server),
            (false, true) => format!("`{}` is gone: {words}", self.server),
            (false, false) => format!("`{}` died: {words}", self.server),
        };
        let error = Error::new(ErrorKind::Lost, message).at(&self.server).last_words(words);
        if unsent { error.unsent() } else { error }
    }

    /// Handles one line of the server's output; `false` if the stream makes no sense any more.
    fn receive(&self, frame: &Frame) -> bool {
        let message = match frame {
            Frame::Line(line) => ServerMessage::parse(line),
            Frame::TooLong(head) => {
                ServerMessage::broken(head, "it is larger than `limits.message`".to_owned())
            }
        };
        let too_long = matches!(frame, Frame::TooLong(_));
        match message {
            ServerMessage::Reply { id, answer } => self.end(id, Ended::Answered(answer)),
            ServerMessage::BadReply { ids, .. } if too_long && ids.is_empty() => return false,
            ServerMessage::BadReply { ids, why } => self.fail_suspect(&ids, why),
            ServerMessage::Request { id, method } => self.answer_server(&id, &method),
            ServerMessage::Notification { method, params } => self.hear(&method, params),
            ServerMessage::Noise if too_long && !names_method(frame) => return false,
            ServerMessage::Noise => {
                self.noise.fetch_add(1, Ordering::Relaxed);
            }
        }
        true
    }

    fn fail_suspect(&self, ids: &[u64], why: String) {
        let suspect = self.pending().suspect(ids);
        match suspect {
            // Nobody listens any more if the caller gave up in this very moment.
            Some(waiter) => drop(waiter.answer.send(Ended::BadReply(why))),
            None => drop(self.noise.fetch_add(1, Ordering::Relaxed)),
        }
    }

    fn answer_server(&self, id: &Id, method: &str) {
        let answer = match method {
            PING => Answer::Result(Bytes::from_static(b"{}")),
            _ => Answer::Error(message::error_object(
                code::METHOD_NOT_FOUND,
                &format!("no method `{method}` here"),
                None,
            )),
        };
        self.send(None, message::reply(id, &answer));
    }

    fn hear(&self, method: &str, params: Option<Bytes>) {
        match method {
            PROGRESS => {
                let Some(Ok(mut progress)) = params.map(|params| Object::parse(&params)) else { return };
                let token = progress.remove("progressToken").and_then(|raw| as_integer(&raw));
                if let Some(sink) = token.and_then(|id| self.pending().progress(id).cloned()) {
                    // A listener that cannot keep up misses some.
                    let _ = sink.try_send(progress);
                }
            }
            TOOLS_CHANGED => self.tools_changed.notify_one(),
            _ => {}
        }
    }
}

/// An oversize notification costs only itself; anything else that long without an id is no stream of messages.
fn names_method(frame: &Frame) -> bool {
    let (Frame::Line(bytes) | Frame::TooLong(bytes)) = frame;
    memchr::memmem::find(bytes, b"\"method\"").is_some()
}

/// Reads until the end of the output, a break, or `gone`.
async fn read(
    shared: &Shared,
    mut reader: impl AsyncRead + Unpin,
    mut frames: Frames,
    gone: impl Future<Output = ()>,
) {
    let mut ended = std::pin::pin!(async {
        tokio::select! { () = gone => {}, () = shared.broken.cancelled() => {} }
    });
    loop {
        tokio::select! {
            biased;
            count = reader.read_buf(frames.room()) => if !matches!(count, Ok(1..)) { break },
            () = &mut ended => break,
        }
        let mut handled = 0;
        while let Some(frame) = frames.next_frame() {
            if !shared.receive(&frame) {
                return;
            }
            handled += 1;
        }
        if handled > FAIR {
            tokio::task::yield_now().await; // a chatty server must not keep the others from their turn
        }
        if frames.skipped() > MOST_QUEUED {
            return;
        }
    }
    // A last line without an end counts if it is whole; half an answer died with its server.
    if let Some(rest) = frames.rest()
        && let ServerMessage::Reply { id, answer } = ServerMessage::parse(&rest)
    {
        shared.end(id, Ended::Answered(answer));
    }
}

/// Writes what is queued, as much as there is at a time.
async fn write(
    shared: Arc<Shared>,
    mut writer: impl AsyncWrite + Unpin,
    mut queue: mpsc::UnboundedReceiver<Outgoing>,
) {
    let mut batch = Vec::new();
    let mut buffer = Vec::new();
    let mut over = std::pin::pin!(shared.hang_up.cancelled());
    loop {
        tokio::select! {
            biased;
            count = queue.recv_many(&mut batch, 64) => if count == 0 { break },
            () = &mut over => break,
        }
        batch.iter().for_each(|outgoing: &Outgoing| buffer.extend_from_slice(&outgoing.line));
        let mut written = 0;
        let whole = tokio::select! {
            biased;
            whole = write_all(&mut writer, &buffer, &mut written) => whole,
            () = shared.broken.cancelled() => false,
        };
        shared.queued.fetch_sub(buffer.len(), Ordering::Relaxed);
        if !whole {
            mark_unsent(&shared, &batch, written);
            shared.broken.cancel();
            break;
        }
        batch.clear();
        buffer.clear();
        buffer.shrink_to(64 << 10);
    }
    queue.close();
    while let Ok(outgoing) = queue.try_recv() {
        mark_unsent(&shared, &[outgoing], 0);
    }
    // An error here means that the other end has closed already.
    let _ = writer.shutdown().await;
}

/// Whether everything was taken; `written` counts what was, also when nobody waits for the end.
async fn write_all(writer: &mut (impl AsyncWrite + Unpin), buffer: &[u8], written: &mut usize) -> bool {
    while *written < buffer.len() {
        match writer.write(&buffer[*written..]).await {
            Ok(count @ 1..) => *written += count,
            Ok(0) | Err(_) => return false,
        }
    }
    writer.flush().await.is_ok()
}

/// A request whose line was not taken whole was never read by anybody; who waits is told once the other end is gone.
fn mark_unsent(shared: &Shared, batch: &[Outgoing], written: usize) {
    let mut end = 0;
    for outgoing in batch {
        end += outgoing.line.len();
        if let Some(id) = outgoing.id
            && end > written
        {
            shared.pending().mark_unsent(id);
        }
    }
}
