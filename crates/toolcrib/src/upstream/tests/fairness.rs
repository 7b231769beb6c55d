//! A server that floods its output does not delay calls at other servers.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

use super::*;
use crate::model::exit_report::ExitReport;
use crate::upstream::mux::Mux;
use crate::upstream::transport::MessageLimit;
use crate::upstream::transport::stdio::StdioTransport;

/// Reads after which the flood ends, so that a failing test terminates.
const MAX_READS: usize = 5000;

/// Output that is always ready.
struct Flood(Arc<AtomicUsize>);

impl AsyncRead for Flood {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.fetch_add(1, SeqCst) >= MAX_READS {
            return Poll::Pending;
        }
        const LINE: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"x\"}\n";
        buffer.put_slice(&LINE.repeat(buffer.remaining() / LINE.len()));
        Poll::Ready(Ok(()))
    }
}

/// Calls another server and returns how many reads of the flood came before the response.
async fn reads_before_response(connection: &Connection, reads_so_far: &AtomicUsize) -> usize {
    let before = reads_so_far.load(SeqCst);
    call(connection, "echo", Value::Null).await.unwrap();
    reads_so_far.load(SeqCst) - before
}

#[tokio::test(start_paused = true)]
async fn flooded_stdout_does_not_starve_other_servers() {
    let connection = connect(&spec(&FakeServer::new())).await;
    let reads_so_far = Arc::<AtomicUsize>::default();
    let transport = StdioTransport {
        reader: Flood(reads_so_far.clone()),
        writer: tokio::io::sink(),
        direct_input: None,
        message_limit: MessageLimit::new(1 << 20),
        exited: std::future::pending(),
        exit_report: std::future::ready(ExitReport::default()),
    };
    let mux = Mux::new("chatty".parse().unwrap(), mux_context(), transport);
    let reads = reads_before_response(&connection, &reads_so_far).await;
    assert!((1..MAX_READS / 10).contains(&reads), "{reads} reads of the flood came first");
    assert!(mux.received_count() > 0 && !mux.is_closed(), "the flood is read as well");
}

#[tokio::test(start_paused = true)]
async fn flooded_stderr_does_not_starve_other_servers() {
    let connection = connect(&spec(&FakeServer::new())).await;
    let reads_so_far = Arc::<AtomicUsize>::default();
    let tail = Arc::<StderrTail>::default();
    let flood = Flood(reads_so_far.clone());
    let draining = tail.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { draining.drain(flood, std::future::pending(), &Default::default()).await });
    let reads = reads_before_response(&connection, &reads_so_far).await;
    assert!((1..MAX_READS / 10).contains(&reads), "{reads} reads of the flood came first");
    assert!(tail.last_number() > 100, "the flood is read as well");
}
