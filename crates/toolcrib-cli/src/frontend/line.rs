//! `Line`: a client's connection. It knows which HTTP is spoken on it, ends when its other side takes nothing for too
//! long, and notices that its other side is gone though bytes wait that nobody reads.
//!
//! Bytes that were read too early are given again together with those that follow, so that the head of a request still
//! arrives in one piece.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client may take nothing of what it is sent.
pub(super) const STALLED: Duration = Duration::from_secs(30);

/// How HTTP/2 opens.
const WORDS: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How far ahead is read while nobody wants to read: further requests of a client that does not wait for its answer.
const AHEAD: usize = 16 << 10;

/// A client's connection; clones are the same one.
pub(super) struct Line<I>(Arc<Mutex<Wire<I>>>);

struct Wire<I> {
    io: I,
    /// Bytes that were read too early, and how many of them were given.
    ahead: Vec<u8>,
    given: usize,
    /// Whoever reads waits for more, and will hear of the end.
    read: bool,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<I> Clone for Line<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I> Line<I> {
    fn new(io: I, ahead: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Wire { io, ahead, given: 0, read: false, waiting: None })))
    }

    /// Whether bytes wait for the client to take them.
    pub(super) fn is_writing(&self) -> bool {
        self.wire().waiting.is_some()
    }

    /// Bytes that were given but not used are given again; whether there are any to give.
    pub(super) fn take_back(&self, unused: &[u8]) -> bool {
        let wire = &mut *self.wire();
        wire.ahead.splice(..wire.given, unused.iter().copied());
        wire.given = 0;
        !wire.ahead.is_empty()
    }

    /// Never waited for: whoever has a clone is the same task.
    fn wire(&self) -> MutexGuard<'_, Wire<I>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: AsyncRead + Unpin> Line<I> {
    /// Reads until it is clear which HTTP this is; `true` for the newer one.
    pub(super) async fn open(mut io: I) -> io::Result<(Self, bool)> {
        let (mut begun, mut to) = ([0; WORDS.len()], 0);
        while to < begun.len() && begun[..to] == WORDS[..to] {
            match io.read(&mut begun[to..]).await? {
                0 => break,
                count => to += count,
            }
        }
        Ok((Self::new(io, begun[..to].to_vec()), begun == *WORDS))
    }

    /// Whether the client has gone. Asked after whoever reads here was polled, it finds out what that one did not ask
    /// for.
    pub(super) fn is_gone(&self, context: &mut Context<'_>) -> bool {
        let mut wire = self.wire();
        if std::mem::take(&mut wire.read) {
            return false;
        }
        while wire.ahead.len() - wire.given < AHEAD {
            match wire.read_ahead(context) {
                Poll::Pending => return false,
                Poll::Ready(true) => {}
                Poll::Ready(false) => return true,
            }
        }
        false
    }

    /// Waits for more than was read so far; `false` if there is none any more.
    pub(super) async fn more(&self) -> bool {
        poll_fn(|context| self.wire().read_ahead(context)).await
    }
}

impl<I: AsyncRead + Unpin> Wire<I> {
    /// Reads a little that nobody asked for yet; `false` if nothing comes any more.
    fn read_ahead(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let mut room = [0; 1 << 10];
        let mut room = ReadBuf::new(&mut room);
        let polled = Pin::new(&mut self.io).poll_read(context, &mut room);
        self.ahead.extend(room.filled());
        polled.map(|read| read.is_ok() && !room.filled().is_empty())
    }
}

impl<I> Wire<I> {
    /// A write that went on stops the clock; one that waits starts it, or fails when it has run out.
    fn judge(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if polled.is_ready() {
            self.waiting = None;
            return polled;
        }
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep(STALLED)));
        match waiting.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Line<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = &mut *self.wire();
        if wire.ahead.is_empty() {
            let polled = Pin::new(&mut wire.io).poll_read(context, buffer);
            wire.read = polled.is_pending();
            return polled;
        }
        let rest = &wire.ahead[wire.given..];
        let count = buffer.remaining().min(rest.len());
        buffer.put_slice(&rest[..count]);
        wire.given += count;
        wire.read = false;
        if wire.given == wire.ahead.len() {
            (wire.ahead, wire.given) = (Vec::new(), 0);
        }
        if buffer.remaining() > 0 {
            // Whatever goes wrong now goes wrong again when there is nothing else to give.
            let _ = Pin::new(&mut wire.io).poll_read(context, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Line<I> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let wire = &mut *self.wire();
        let polled = Pin::new(&mut wire.io).poll_write(context, bytes);
        wire.judge(context, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire().io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wire = &mut *self.wire();
        let polled = Pin::new(&mut wire.io).poll_write_vectored(context, pieces);
        wire.judge(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.wire().io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::{Instant, sleep};
    use tokio_util::task::TaskTracker;

    use super::*;

    async fn opened(sent: &'static [u8]) -> (Vec<u8>, bool) {
        let (mut line, newer) = Line::open(sent).await.unwrap();
        let mut all = Vec::new();
        line.read_to_end(&mut all).await.unwrap();
        (all, newer)
    }

    #[tokio::test]
    async fn every_byte_is_given_again() {
        let (post, newer) = opened(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n{}").await;
        assert!(post.starts_with(b"POST /mcp") && post.ends_with(b"{}") && !newer);
        assert_eq!(opened(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nframes").await.0.len(), 30);
        assert!(opened(WORDS).await.1);
        assert_eq!(opened(b"PRI").await, (b"PRI".to_vec(), false));
        assert_eq!(opened(b"").await, (Vec::new(), false));
    }

    #[tokio::test]
    async fn a_head_arrives_in_one_piece() {
        let head: &[u8] = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let (mut line, _) = Line::open(head).await.unwrap();
        let mut buffer = [0; 100];
        assert_eq!(line.read(&mut buffer).await.unwrap(), head.len());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_nothing_is_left_and_whoever_takes_a_little_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let mut ours = Line::new(ours, Vec::new());
        let tasks = TaskTracker::new();
        let reader = tasks.spawn(async move {
            for _ in 0..5 {
                sleep(STALLED - Duration::from_secs(1)).await;
                theirs.read_exact(&mut [0; 10]).await.unwrap();
            }
            theirs
        });
        ours.write_all(&[0; 50]).await.expect("slow, but not still");
        let _theirs = reader.await.unwrap();
        let before = Instant::now();
        let failed = ours.write_all(&[0; 50]).await.unwrap_err();
        assert_eq!((failed.kind(), before.elapsed()), (io::ErrorKind::TimedOut, STALLED));
    }

    #[tokio::test]
    async fn an_end_behind_unread_bytes_is_noticed_and_no_byte_is_lost() {
        let (ours, mut theirs) = tokio::io::duplex(100 << 10);
        let mut line = Line::new(ours, Vec::new());
        let gone = async |line: &Line<_>| poll_fn(|context| Poll::Ready(line.is_gone(context))).await;
        theirs.write_all(&[7; 5000]).await.unwrap();
        assert!(!gone(&line).await);
        let mut begun = [0; 100];
        line.read_exact(&mut begun).await.unwrap();
        assert!(!gone(&line).await);
        drop(theirs);
        assert!(gone(&line).await);
        let mut rest = Vec::new();
        line.read_to_end(&mut rest).await.unwrap();
        assert_eq!((begun, rest.len()), ([7; 100], 4900));
    }

    #[tokio::test]
    async fn no_more_is_read_ahead_than_may_be() {
        let (ours, mut theirs) = tokio::io::duplex(100 << 10);
        let line = Line::new(ours, Vec::new());
        theirs.write_all(&[7; 90 << 10]).await.unwrap();
        assert!(!poll_fn(|context| Poll::Ready(line.is_gone(context))).await);
        assert_eq!(line.wire().ahead.len(), AHEAD);
    }
}
