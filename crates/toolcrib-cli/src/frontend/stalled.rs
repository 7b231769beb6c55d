//! A connection that ends when its other side takes nothing for too long: whoever does not read holds up only itself, and
//! not for ever.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client may take nothing of what it is sent.
const STALLED: Duration = Duration::from_secs(30);

/// A connection whose writes fail once nothing was taken for so long.
pub(super) struct Stalling<I> {
    io: I,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<I> Stalling<I> {
    pub(super) fn new(io: I) -> Self {
        Self { io, waiting: None }
    }

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

impl<I: AsyncRead + Unpin> AsyncRead for Stalling<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Stalling<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(context, bytes);
        self.judge(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(context, pieces);
        self.judge(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::{Instant, sleep};
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_nothing_is_left_and_whoever_takes_a_little_is_not() {
        let (ours, mut theirs) = tokio::io::duplex(10);
        let mut ours = Stalling::new(ours);
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
}
