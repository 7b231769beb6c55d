//! A link over a pair of byte streams, one JSON message a line: one task reads and one task writes.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::super::pending::Ended;
use super::{FAIR, Farewell, Link, MOST_QUEUED, Outgoing, Shared};
use crate::wire::frame::Frames;
use crate::wire::message::ServerMessage;

impl Link {
    /// Starts reading and writing. `gone` ends when the other end is known to be gone though its output is still open.
    pub(in crate::connection) fn over_pipes(
        self,
        queue: mpsc::UnboundedReceiver<Outgoing>,
        (reader, writer): (impl AsyncRead + Send + Unpin + 'static, impl AsyncWrite + Send + Unpin + 'static),
        message_limit: usize,
        gone: impl Future<Output = ()> + Send + 'static,
        farewell: Farewell,
    ) -> Self {
        let (tasks, reading) = (&self.shared.tasks, self.shared.clone());
        tasks.spawn(write(self.shared.clone(), writer, queue));
        tasks.spawn(async move {
            read(&reading, reader, Frames::new(message_limit), gone).await;
            reading.broken.cancel();
            reading.close(farewell.await);
        });
        self
    }
}

/// Reads until the end of the output, a break, or `gone`.
async fn read(
    shared: &Arc<Shared>,
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
        shared.heard.fetch_add(1, Ordering::Relaxed);
        let mut handled = 0;
        while let Some(frame) = frames.next_frame() {
            if !shared.receive(&frame, None) {
                shared.is_no_server("it writes a line without end that is no message");
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
