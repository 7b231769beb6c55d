//! A client connection with read-ahead. It detects the HTTP version, times out writes that make no progress, and notices a
//! disconnect while unread bytes are waiting.
//!
//! Bytes read ahead are returned together with those that follow, so that the head of a request still arrives in one read.

use std::future::{Future as _, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, timeout};
use toolcrib::util::locks::IgnorePoison as _;

/// Time after which a write without progress fails.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The connection preface of HTTP/2.
const HTTP2_PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a refused request that are read and discarded.
const MAX_DISCARDED: u64 = 256 << 20;
/// Time spent on discarding.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without input after which the client sends no more.
const DISCARD_IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes read ahead while a request is processed: pipelined requests.
const MAX_READ_AHEAD: usize = 16 << 10;

/// A handle to a client connection; clones share it.
pub(crate) struct PeekIo<I>(Arc<Mutex<PeekState<I>>>);

struct PeekState<I> {
    io: I,
    /// Bytes that were read ahead.
    ahead: Vec<u8>,
    /// Number of bytes of `ahead` that have been returned to the reader.
    consumed: usize,
    /// Number of bytes that have been returned to the reader in all.
    bytes_read: u64,
    /// True if a read is pending; its reader notices the end itself.
    read_pending: bool,
    /// Runs while a write makes no progress.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// Runs while the end of what was written is not sent, which happens only with TLS.
    flush_timer: Option<Pin<Box<Sleep>>>,
}

impl<I> Clone for PeekIo<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I> PeekIo<I> {
    fn new(io: I, ahead: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(PeekState {
            io,
            ahead,
            consumed: 0,
            bytes_read: 0,
            read_pending: false,
            stall_timer: None,
            flush_timer: None,
        })))
    }

    /// Returns whether a write waits for the client to read.
    pub(crate) fn is_writing(&self) -> bool {
        let state = self.state();
        state.stall_timer.is_some() || state.flush_timer.is_some()
    }

    /// Returns the number of bytes that the reader has read.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.state().bytes_read
    }

    /// Returns unused bytes to the buffer, to be read again. Returns whether any bytes are buffered.
    pub(crate) fn unread(&self, unused: &[u8]) -> bool {
        let state = &mut *self.state();
        state.ahead.splice(..state.consumed, unused.iter().copied());
        state.consumed = 0;
        !state.ahead.is_empty()
    }

    /// Locks the state. The lock is never contended, because all clones belong to one task.
    fn state(&self) -> MutexGuard<'_, PeekState<I>> {
        self.0.lock().ignore_poison()
    }
}

impl<I: AsyncRead + Unpin> PeekIo<I> {
    /// Reads until the HTTP version is known; `true` means HTTP/2.
    pub(crate) async fn detect_version(mut io: I) -> io::Result<(Self, bool)> {
        let mut start = [0; HTTP2_PREFACE.len()];
        let mut length = 0;
        while length < start.len() && start[..length] == HTTP2_PREFACE[..length] {
            match io.read(&mut start[length..]).await? {
                0 => break,
                count => length += count,
            }
        }
        Ok((Self::new(io, start[..length].to_vec()), start == *HTTP2_PREFACE))
    }

    /// Returns whether the client has disconnected. Call it after the reader was polled: it reads ahead if the reader did
    /// not.
    pub(crate) fn is_disconnected(&self, context: &mut Context<'_>) -> bool {
        let mut state = self.state();
        if std::mem::take(&mut state.read_pending) {
            return false;
        }
        while state.ahead.len() - state.consumed < MAX_READ_AHEAD {
            match state.read_ahead(context) {
                Poll::Pending => return false,
                Poll::Ready(true) => {}
                Poll::Ready(false) => return true,
            }
        }
        false
    }

    /// Reads and discards the rest of a request that was answered unread, until the client closes the connection. A connection that
    /// is closed with unread bytes is reset, and the client might not read the response.
    pub(crate) async fn discard_input(mut self) {
        let mut buffer = vec![0; 64 << 10];
        let mut discarded = 0;
        let discarding = async {
            while discarded < MAX_DISCARDED
                && let Ok(Ok(count @ 1..)) = timeout(DISCARD_IDLE_TIMEOUT, self.read(&mut buffer)).await
            {
                discarded += count as u64;
            }
        };
        // A client that still sends after that loses the response.
        let _ = timeout(DISCARD_TIMEOUT, discarding).await;
    }

    /// Waits for further bytes; `false` if the connection has ended.
    pub(crate) async fn wait_readable(&self) -> bool {
        poll_fn(|context| self.state().read_ahead(context)).await
    }
}

impl<I: AsyncRead + Unpin> PeekState<I> {
    /// Reads ahead; `false` if the connection has ended.
    fn read_ahead(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        let mut bytes = [MaybeUninit::uninit(); 1 << 10];
        let mut buffer = ReadBuf::uninit(&mut bytes);
        let polled = Pin::new(&mut self.io).poll_read(context, &mut buffer);
        self.ahead.extend(buffer.filled());
        polled.map(|read| read.is_ok() && !buffer.filled().is_empty())
    }
}

impl<I> PeekState<I> {
    /// Applies the stall timeout: progress clears the timer, a pending write starts it or fails when it has expired.
    fn check_stall(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if polled.is_ready() {
            self.stall_timer = None;
            return polled;
        }
        poll_timer(&mut self.stall_timer, context).map(Err)
    }
}

/// Starts a timer unless it runs. Returns the error once it has expired.
fn poll_timer(timer: &mut Option<Pin<Box<Sleep>>>, context: &mut Context<'_>) -> Poll<io::Error> {
    let timer = timer.get_or_insert_with(|| Box::pin(sleep(STALL_TIMEOUT)));
    timer.as_mut().poll(context).map(|()| io::ErrorKind::TimedOut.into())
}

impl<I: AsyncRead + Unpin> AsyncRead for PeekIo<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let state = &mut *self.state();
        let filled = buffer.filled().len();
        if state.ahead.is_empty() {
            let polled = Pin::new(&mut state.io).poll_read(context, buffer);
            state.read_pending = polled.is_pending();
            state.bytes_read += (buffer.filled().len() - filled) as u64;
            return polled;
        }
        let rest = &state.ahead[state.consumed..];
        let count = buffer.remaining().min(rest.len());
        buffer.put_slice(&rest[..count]);
        state.consumed += count;
        state.read_pending = false;
        if state.consumed == state.ahead.len() {
            state.ahead = Vec::new();
            state.consumed = 0;
        }
        if buffer.remaining() > 0 {
            // An error now is returned again by the next read.
            let _ = Pin::new(&mut state.io).poll_read(context, buffer);
        }
        state.bytes_read += (buffer.filled().len() - filled) as u64;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for PeekIo<I> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let state = &mut *self.state();
        let polled = Pin::new(&mut state.io).poll_write(context, bytes);
        state.check_stall(context, polled)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let state = &mut *self.state();
        let polled = Pin::new(&mut state.io).poll_flush(context);
        if polled.is_ready() {
            state.flush_timer = None;
            return polled;
        }
        poll_timer(&mut state.flush_timer, context).map(Err)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state().io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let state = &mut *self.state();
        let polled = Pin::new(&mut state.io).poll_write_vectored(context, pieces);
        state.check_stall(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.state().io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::{Instant, sleep};
    use tokio_util::task::TaskTracker;

    use super::*;

    async fn open(sent: &'static [u8]) -> (Vec<u8>, bool) {
        let (mut io, is_http2) = PeekIo::detect_version(sent).await.unwrap();
        let mut all = Vec::new();
        io.read_to_end(&mut all).await.unwrap();
        (all, is_http2)
    }

    #[tokio::test]
    async fn version_is_detected_without_losing_bytes() {
        let (post, is_http2) = open(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n{}").await;
        assert!(post.starts_with(b"POST /mcp") && post.ends_with(b"{}") && !is_http2);
        assert_eq!(open(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nframes").await.0.len(), 30);
        assert!(open(HTTP2_PREFACE).await.1);
        assert_eq!(open(b"PRI").await, (b"PRI".to_vec(), false));
        assert_eq!(open(b"").await, (Vec::new(), false));
    }

    #[tokio::test]
    async fn request_head_arrives_in_one_read() {
        let head: &[u8] = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let (mut io, _) = PeekIo::detect_version(head).await.unwrap();
        let mut buffer = [0; 100];
        assert_eq!(io.read(&mut buffer).await.unwrap(), head.len());
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_write_times_out_and_slow_write_does_not() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let mut ours = PeekIo::new(ours, Vec::new());
        let tasks = TaskTracker::new();
        let reader = tasks.spawn(async move {
            for _ in 0..5 {
                sleep(STALL_TIMEOUT - Duration::from_secs(1)).await;
                theirs.read_exact(&mut [0; 10]).await.unwrap();
            }
            theirs
        });
        ours.write_all(&[0; 50]).await.expect("slow, but not stalled");
        let _theirs = reader.await.unwrap();
        let before = Instant::now();
        let failed = ours.write_all(&[0; 50]).await.unwrap_err();
        assert_eq!((failed.kind(), before.elapsed()), (io::ErrorKind::TimedOut, STALL_TIMEOUT));
    }

    #[tokio::test]
    async fn disconnect_behind_unread_bytes_is_noticed() {
        let (ours, mut theirs) = tokio::io::duplex(100 << 10);
        let mut io = PeekIo::new(ours, Vec::new());
        let is_disconnected =
            async |io: &PeekIo<_>| poll_fn(|context| Poll::Ready(io.is_disconnected(context))).await;
        theirs.write_all(&[7; 5000]).await.unwrap();
        assert!(!is_disconnected(&io).await);
        let mut start = [0; 100];
        io.read_exact(&mut start).await.unwrap();
        assert!(!is_disconnected(&io).await);
        drop(theirs);
        assert!(is_disconnected(&io).await);
        let mut rest = Vec::new();
        io.read_to_end(&mut rest).await.unwrap();
        assert_eq!((start, rest.len()), ([7; 100], 4900));
    }

    #[tokio::test]
    async fn read_ahead_is_bounded() {
        let (ours, mut theirs) = tokio::io::duplex(100 << 10);
        let io = PeekIo::new(ours, Vec::new());
        theirs.write_all(&[7; 90 << 10]).await.unwrap();
        assert!(!poll_fn(|context| Poll::Ready(io.is_disconnected(context))).await);
        assert_eq!(io.state().ahead.len(), MAX_READ_AHEAD);
    }
}
