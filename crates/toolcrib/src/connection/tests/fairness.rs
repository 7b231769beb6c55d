//! A server that never stops talking does not keep another one's calls from their turn.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use super::*;
use crate::connection::link::Link;
use crate::last_words::LastWords;

/// Reads after which even this one has said everything, so that a test without fairness ends too.
const MOST: usize = 5000;

/// Output that is always there: it never makes its reader wait.
struct Flood(Arc<AtomicUsize>);

impl AsyncRead for Flood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.fetch_add(1, SeqCst) >= MOST {
            return Poll::Pending;
        }
        const LINE: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n";
        buffer.put_slice(&LINE.repeat(buffer.remaining() / LINE.len()));
        Poll::Ready(Ok(()))
    }
}

/// A call at another server, and how much of the flood was read before it was answered.
async fn reads_before_an_answer(connection: &Connection, heard: &AtomicUsize) -> usize {
    let before = heard.load(SeqCst);
    call(connection, "echo", Value::Null).await.unwrap();
    heard.load(SeqCst) - before
}

#[tokio::test(start_paused = true)]
async fn a_server_that_floods_its_output_does_not_starve_anothers_call() {
    let connection = connected(&spec(&Fake::new())).await;
    let (heard, farewell) = (Arc::<AtomicUsize>::default(), Box::pin(async { LastWords::default() }));
    let pipes = (Flood(heard.clone()), tokio::io::sink());
    let gone = std::future::pending();
    let news = tokio::sync::broadcast::channel(8).0;
    let (link, queue) = Link::new(
        "chatty".parse().unwrap(),
        (news, Arc::default()),
        TaskTracker::new(),
        Default::default(),
        Arc::default(),
    );
    let link = link.over_pipes(queue, pipes, 1 << 20, gone, farewell);
    let reads = reads_before_an_answer(&connection, &heard).await;
    assert!((1..MOST / 10).contains(&reads), "{reads} reads of noise came first");
    assert!(link.heard() > 0 && !link.is_closed(), "it is read all the same");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_floods_its_stderr_does_not_starve_anothers_call() {
    let connection = connected(&spec(&Fake::new())).await;
    let (heard, tail) = (Arc::<AtomicUsize>::default(), Arc::<StderrTail>::default());
    let (flood, drained) = (Flood(heard.clone()), tail.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drained.drain(flood, std::future::pending(), &Default::default()).await });
    let reads = reads_before_an_answer(&connection, &heard).await;
    assert!((1..MOST / 10).contains(&reads), "{reads} reads of noise came first");
    assert!(tail.last() > 100, "it is read all the same");
}
