//! `Link`: requests multiplexed over whatever carries messages to a server and back.
//!
//! A waiter is in the table before its bytes leave; dropping a ticket frees its number and tells the server; what a
//! server says or asks on its own goes to the client it belongs to; when the carrier breaks, everybody who waits is
//! told how the other end went.

mod http;
mod pipe;
mod spoken;
mod ticket;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use tokio::sync::{Notify, broadcast, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::pending::{Ended, Listener, Pending, Waiter};
use crate::cache::Cache;
use crate::error::{Error, ErrorKind};
use crate::event::News;
use crate::last_words::LastWords;
use crate::secret::Mask;
use crate::sharing::Whose;
use crate::spec::ServerId;
use crate::wire::frame::flatten;
use crate::wire::message;

pub(super) use http::Remote;
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
    whose: Arc<Whose>,
    pending: Mutex<Pending>,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    queued: AtomicUsize,
    noise: AtomicU64,
    /// Counts whatever came from the server, whether it meant something or not.
    heard: AtomicU64,
    /// It has said something that means something.
    understood: AtomicBool,
    /// The first line that meant nothing.
    strange: Arc<OnceLock<String>>,
    /// Keeps the server's secrets out of what is said about it.
    mask: Arc<Mask>,
    /// Why what is at the other end is no server at all.
    alien: OnceLock<String>,
    /// It was given up because it said nothing any more.
    condemned: AtomicBool,
    /// Only the end of the line under way, which is too long, can tell whom it is for.
    unknown_until_end: AtomicBool,
    /// Rung when the server says that it offers something else now.
    relist: Notify,
    news: broadcast::Sender<News>,
    /// What the server has said that may be said again.
    cache: Arc<Cache>,
    /// The last request that the server has said it listens to, and what it said.
    acknowledged: watch::Sender<(u64, Option<Bytes>)>,
    tasks: TaskTracker,
    /// Asks the writer to close the server's input; a break in one direction does so too.
    hang_up: CancellationToken,
    /// The server was told to leave, so that it did is no crash.
    dismissed: AtomicBool,
    /// Why it was told to leave, if there is more to say than that.
    dismissal: OnceLock<Error>,
    /// One direction broke; the parent of `hang_up`.
    broken: CancellationToken,
    /// The other end is gone and everybody has been told.
    closed: CancellationToken,
    /// How the other end went, and whether it had been told to.
    ending: OnceLock<(LastWords, bool)>,
}

/// A message on its way out, and whose request it is.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) id: Option<u64>,
    pub(super) line: Vec<u8>,
}

/// How the other end went; asked for once, when a direction broke.
pub(super) type Farewell = Pin<Box<dyn Future<Output = LastWords> + Send>>;

impl Link {
    /// A link, and what it wants carried to the server.
    pub(super) fn new(
        server: ServerId,
        (news, cache): (broadcast::Sender<News>, Arc<Cache>),
        tasks: TaskTracker,
        (strange, mask): (Arc<OnceLock<String>>, Arc<Mask>),
        whose: Arc<Whose>,
    ) -> (Self, mpsc::UnboundedReceiver<Outgoing>) {
        let (outgoing, queue) = mpsc::unbounded_channel();
        let broken = CancellationToken::new();
        let shared = Arc::new(Shared {
            server,
            whose,
            pending: Mutex::default(),
            outgoing,
            queued: AtomicUsize::new(0),
            noise: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            understood: AtomicBool::new(false),
            strange,
            mask,
            alien: OnceLock::new(),
            condemned: AtomicBool::new(false),
            unknown_until_end: AtomicBool::new(false),
            relist: Notify::new(),
            news,
            cache,
            acknowledged: watch::Sender::default(),
            tasks,
            hang_up: broken.child_token(),
            dismissed: AtomicBool::new(false),
            dismissal: OnceLock::new(),
            broken,
            closed: CancellationToken::new(),
            ending: OnceLock::new(),
        });
        (Self { shared }, queue)
    }

    /// Keeps the server's secrets out of what is said about it.
    pub(super) fn mask(&self) -> &Mask {
        &self.shared.mask
    }

    /// Sends a request; `params` is told the number under which it goes and writes a JSON object.
    pub(super) fn ask(
        &self,
        method: &str,
        listener: Option<Listener>,
        params: impl FnOnce(u64, &mut Vec<u8>),
    ) -> Result<Ticket, Error> {
        let (answer, receiver) = oneshot::channel();
        let id = self.shared.pending().enter(Waiter::new(answer, listener)).ok_or_else(|| self.lost(true))?;
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

    /// What those hear whose calls are lost when the server is told to leave.
    pub(super) fn dismiss(&self, why: Error) {
        // The first reason is the one it leaves for.
        let _ = self.shared.dismissal.set(why);
    }

    pub(super) async fn closed(&self) {
        self.shared.closed.cancelled().await;
    }

    /// Whether the server had been told to leave when it did.
    pub(super) fn was_dismissed(&self) -> bool {
        self.shared.ending.get().is_some_and(|(_, dismissed)| *dismissed)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.shared.pending().is_closed()
    }

    /// Has whoever waits for a change of the offer look again.
    pub(super) fn look_again(&self) {
        self.shared.relist.notify_one();
    }

    pub(super) async fn offer_changed(&self) {
        self.shared.relist.notified().await;
    }

    /// Waits until the server has said that it listens to this request; the parameters of what it said.
    pub(super) async fn acknowledged(&self, id: u64) -> Option<Bytes> {
        let mut acknowledged = self.shared.acknowledged.subscribe();
        // The sender lives as long as we do.
        acknowledged.wait_for(|(stream, _)| *stream == id).await.ok()?.1.clone()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.shared.pending().in_flight()
    }

    /// Grows whenever something comes from the server.
    pub(super) fn heard(&self) -> u64 {
        self.shared.heard.load(Ordering::Relaxed)
    }

    /// Why what is at the other end is no server at all, if that was found out.
    pub(super) fn alien(&self) -> Option<&str> {
        self.shared.alien.get().map(String::as_str)
    }

    /// Gives the server up: it says nothing any more. Everybody is told at once.
    pub(super) fn condemn(&self) {
        self.shared.condemned.store(true, Ordering::Relaxed);
        self.shared.broken.cancel();
    }

    /// Whether it was given up because it says nothing any more.
    pub(super) fn is_condemned(&self) -> bool {
        self.shared.condemned.load(Ordering::Relaxed)
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
            waiter.end(ended);
        }
    }

    fn close(&self, words: LastWords) {
        // Only the reader closes, so the words are set once.
        let _ = self.ending.set((words, self.dismissed.load(Ordering::Relaxed)));
        let waiters = self.pending().close();
        for waiter in waiters {
            let unsent = waiter.unsent;
            waiter.end(Ended::Lost { unsent });
        }
        self.closed.cancel();
    }

    fn lost(&self, unsent: bool) -> Error {
        let (words, dismissed) = self.ending.get().cloned().unwrap_or_default();
        if let Some(why) = self.dismissal.get().filter(|_| dismissed).cloned() {
            let why = why.last_words(words);
            return if unsent { why.unsent() } else { why };
        }
        let message = match (dismissed, unsent) {
            _ if self.condemned.load(Ordering::Relaxed) => {
                format!("`{}` hung: it answered neither a call nor a ping, and was replaced", self.server)
            }
            (true, _) => format!("`{}` was stopped", self.server),
            (false, true) => format!("`{}` is gone: {words}", self.server),
            (false, false) => format!("`{}` died: {words}", self.server),
        };
        let error = Error::new(ErrorKind::Lost, message).at(&self.server).last_words(words);
        if unsent { error.unsent() } else { error }
    }
}
