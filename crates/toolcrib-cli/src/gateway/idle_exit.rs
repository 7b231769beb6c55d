//! The end of a gateway that was started in the background: it exits when it has not been used for a while.

use std::io::{self, IoSlice};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use toolcrib::Crib;

/// Longest time between two looks at the calls in flight and at the socket.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Counts open connections. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct ConnectionCount(Arc<watch::Sender<usize>>);

/// A connection that is counted until it is closed, also after it was upgraded to a pipe.
#[derive(Debug)]
pub(super) struct CountedStream {
    stream: UnixStream,
    _open: OpenConnection,
}

/// A place in the count, freed on drop.
#[derive(Debug)]
pub(super) struct OpenConnection(ConnectionCount);

impl ConnectionCount {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    /// Counts a connection until it is closed.
    pub(super) fn add(&self, stream: UnixStream) -> CountedStream {
        CountedStream { stream, _open: self.enter() }
    }

    /// Counts a connection until the returned value is dropped.
    pub(super) fn enter(&self) -> OpenConnection {
        self.0.send_modify(|count| *count += 1);
        OpenConnection(self.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Waits until there was no connection and no call for `idle_exit`, or until there is no connection and the socket file is
/// gone, so that no client can come.
pub(super) async fn wait_until_unused(
    connections: &ConnectionCount,
    crib: &Crib,
    socket: &Path,
    idle_exit: Duration,
) {
    let is_busy = || crib.calls_in_flight() > 0;
    wait_until_idle(connections, is_busy, || socket.exists(), idle_exit).await;
}

async fn wait_until_idle(
    connections: &ConnectionCount,
    is_busy: impl Fn() -> bool,
    is_reachable: impl Fn() -> bool,
    idle_exit: Duration,
) {
    let mut open = connections.0.subscribe();
    loop {
        // The sender lives as long as `connections`, so this cannot fail.
        let _ = open.wait_for(|count| *count == 0).await;
        let mut deadline = Instant::now() + idle_exit;
        loop {
            let check = deadline.min(Instant::now() + CHECK_INTERVAL);
            tokio::select! {
                _ = open.changed() => break,
                () = sleep_until(check) => {}
            }
            if is_busy() {
                deadline = Instant::now() + idle_exit;
            } else if Instant::now() >= deadline || !is_reachable() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const IDLE_EXIT: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn idle_time_starts_after_the_last_connection_and_call() {
        let connections = ConnectionCount::new();
        let started = Instant::now();
        let busy_until = started + Duration::from_secs(400);
        let is_busy = || Instant::now() < busy_until;
        let (stream, _peer) = UnixStream::pair().unwrap();
        let first = connections.add(stream);
        let use_it = async {
            sleep_until(started + Duration::from_secs(100)).await;
            drop(first);
            sleep_until(started + Duration::from_secs(200)).await;
            let (stream, _peer) = UnixStream::pair().unwrap();
            drop(connections.add(stream));
        };
        tokio::join!(wait_until_idle(&connections, is_busy, || true, IDLE_EXIT), use_it);
        let idle = started.elapsed().checked_sub(Duration::from_secs(400)).unwrap();
        assert!(idle >= IDLE_EXIT - CHECK_INTERVAL && idle <= IDLE_EXIT + CHECK_INTERVAL, "{idle:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_gateway_ends_when_its_clients_are_gone() {
        let connections = ConnectionCount::new();
        let started = Instant::now();
        let looks = Cell::new(0);
        let (stream, _peer) = UnixStream::pair().unwrap();
        let client = connections.add(stream);
        let leave = async {
            sleep_until(started + 2 * IDLE_EXIT).await;
            drop(client);
        };
        let is_reachable = || {
            looks.set(looks.get() + 1);
            false
        };
        tokio::join!(wait_until_idle(&connections, || false, is_reachable, IDLE_EXIT), leave);
        assert_eq!((started.elapsed(), looks.get()), (2 * IDLE_EXIT + CHECK_INTERVAL, 1));
    }
}
