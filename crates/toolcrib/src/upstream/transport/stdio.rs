//! Stdio transport: one JSON message per line over a pair of byte streams. One task reads, one task writes.

use std::future::Future;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::model::exit_report::ExitReport;
use crate::protocol::framing::FrameDecoder;
use crate::protocol::jsonrpc::ServerMessage;
use crate::upstream::pending::RequestEnd;
use crate::upstream::transport::input_pipe::DirectInput;
use crate::upstream::transport::{
    MessageLimit, OutgoingQueue, QueuedMessage, Transport, TransportFuture, TransportLink,
};
use crate::util::tasks::WokenFuture;

/// Messages handled before the reader yields to other tasks.
const YIELD_AFTER_MESSAGES: usize = 64;

/// Messages written at the same time.
const MAX_BATCH: usize = 64;

/// A pair of byte streams with one JSON message per line.
pub(in crate::upstream) struct StdioTransport<R, W, E, X> {
    pub(in crate::upstream) reader: R,
    pub(in crate::upstream) writer: W,
    /// Writes to the same stream while nothing is queued.
    pub(in crate::upstream) direct_input: Option<DirectInput>,
    pub(in crate::upstream) message_limit: MessageLimit,
    /// Completes when the peer is known to be gone although its output is still open.
    pub(in crate::upstream) exited: E,
    /// Returns how the peer ended; awaited once, after a direction broke.
    pub(in crate::upstream) exit_report: X,
}

impl<R, W, E, X> Transport for StdioTransport<R, W, E, X>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
    E: Future<Output = ()> + Send + 'static,
    X: Future<Output = ExitReport> + Send + 'static,
{
    fn run(self: Box<Self>, link: TransportLink, outgoing: OutgoingQueue) -> TransportFuture {
        let Self { reader, writer, direct_input, message_limit, exited, exit_report } = *self;
        link.set_direct_input(direct_input);
        link.spawn(write(link.clone(), writer, outgoing));
        Box::pin(async move {
            read(&link, reader, &message_limit, exited).await;
            link.disconnect();
            exit_report.await
        })
    }
}

/// Reads until end of file, a break, or `exited`.
async fn read(
    link: &TransportLink,
    mut reader: impl AsyncRead + Unpin,
    message_limit: &MessageLimit,
    exited: impl Future<Output = ()>,
) {
    let ended = std::pin::pin!(async {
        tokio::select! { () = exited => {}, () = link.disconnected().cancelled() => {} }
    });
    let mut ended = WokenFuture::new(ended);
    let mut frames = FrameDecoder::new(message_limit.get());
    loop {
        tokio::select! {
            biased;
            count = reader.read_buf(frames.read_buffer()) => if !matches!(count, Ok(1..)) { break },
            () = &mut ended => break,
        }
        // Bytes that are discarded show no more than that the process writes: nothing behind an endless line can be read.
        if !frames.is_discarding() {
            link.count_read();
        }
        frames.set_limit(message_limit.get());
        let mut handled = 0;
        while let Some(frame) = frames.next_frame() {
            if !link.receive(&frame, None) {
                return;
            }
            handled += 1;
        }
        if handled > YIELD_AFTER_MESSAGES {
            tokio::task::yield_now().await; // a busy server must not starve the others
        }
    }
    // A last line without a line end counts if it is complete.
    if let Some(rest) = frames.take_remainder()
        && let ServerMessage::Response { id, payload } = ServerMessage::parse(&rest)
    {
        link.finish_request(id, RequestEnd::Answered(payload));
    }
}

/// Writes queued messages in batches.
async fn write(link: TransportLink, mut writer: impl AsyncWrite + Unpin, mut outgoing: OutgoingQueue) {
    let mut batch: Vec<QueuedMessage> = Vec::new();
    let mut buffer = Vec::new();
    let mut close_requested = std::pin::pin!(link.close_requested().cancelled());
    loop {
        tokio::select! {
            biased;
            count = outgoing.recv_many(&mut batch, MAX_BATCH) => if count == 0 { break },
            () = &mut close_requested => break,
        }
        batch.iter().for_each(|message| buffer.extend_from_slice(&message.line));
        let mut written = 0;
        let all_written = tokio::select! {
            biased;
            all_written = write_all(&mut writer, &buffer, &mut written) => all_written,
            () = link.disconnected().cancelled() => false,
        };
        link.report_written(&batch, written);
        if !all_written {
            link.disconnect();
            break;
        }
        batch.clear();
        buffer.clear();
        buffer.shrink_to(64 << 10);
    }
    drop(outgoing);
    // An error means that the peer has closed its end already.
    let _ = writer.shutdown().await;
}

/// Writes the whole buffer and returns whether that succeeded. `written` counts the bytes, also if the future is
/// dropped.
async fn write_all(writer: &mut (impl AsyncWrite + Unpin), buffer: &[u8], written: &mut usize) -> bool {
    while *written < buffer.len() {
        match writer.write(&buffer[*written..]).await {
            Ok(count @ 1..) => *written += count,
            Ok(0) | Err(_) => return false,
        }
    }
    writer.flush().await.is_ok()
}
