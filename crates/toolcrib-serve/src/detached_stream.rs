//! Event streams that are written without hyper. A stream may last for hours, and hyper would hold 16 KiB of buffers for as
//! long as its connection is open.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::Body as _;
use hyper::{Method, Request, Response, Version};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use toolcrib::util::locks::IgnorePoison as _;

use crate::body::ResponseBody;

/// A connection that carries only an event stream.
pub type StreamFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A slot for the response that takes over its connection.
#[derive(Default)]
pub(crate) struct DetachedResponse(Mutex<Option<Response<ResponseBody>>>);

impl DetachedResponse {
    /// Returns whether the response to this request may be detached: only a GET, whose stream ends with its connection.
    pub(crate) fn can_detach<B>(request: &Request<B>) -> bool {
        request.method() == Method::GET && request.version() == Version::HTTP_11
    }

    /// Stores a response that is a stream.
    pub(crate) fn set(&self, response: Response<ResponseBody>) {
        *self.0.lock().ignore_poison() = Some(response);
    }

    /// Polls the connection. Ready when it has ended, or when a response has been stored.
    pub(crate) fn poll(
        &self,
        connection: &mut (impl Future + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<Option<Response<ResponseBody>>> {
        if Pin::new(connection).poll(context).is_ready() {
            return Poll::Ready(None);
        }
        let response = self.0.lock().ignore_poison().take();
        response.map_or(Poll::Pending, |response| Poll::Ready(Some(response)))
    }
}

/// Writes a stream until it ends or its client disconnects.
pub(crate) async fn write<I: AsyncRead + AsyncWrite + Unpin>(mut io: I, response: Response<ResponseBody>) {
    let (head, mut body) = response.into_parts();
    let status_line =
        format!("HTTP/1.1 {}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n", head.status);
    let mut out = status_line.into_bytes();
    for (name, value) in &head.headers {
        [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]
            .iter()
            .for_each(|part| out.extend(*part));
    }
    out.extend(b"\r\n");
    drop(head);
    while io.write_all(&out).await.is_ok() && io.flush().await.is_ok() {
        match poll_fn(|context| poll_next_chunk(&mut io, &mut body, context)).await {
            NextChunk::Disconnected => return,
            NextChunk::Chunk(chunk) => {
                out = format!("{:x}\r\n", chunk.len()).into_bytes();
                out.extend(chunk);
                out.extend(b"\r\n");
            }
            NextChunk::End => {
                let _ = io.write_all(b"0\r\n\r\n").await;
                let _ = io.shutdown().await;
                return;
            }
        }
    }
}

enum NextChunk {
    Chunk(Bytes),
    End,
    Disconnected,
}

/// Polls for the next chunk. Input of the client is discarded; only its end matters.
fn poll_next_chunk<I: AsyncRead + Unpin>(
    io: &mut I,
    body: &mut ResponseBody,
    context: &mut Context<'_>,
) -> Poll<NextChunk> {
    let mut discarded = [0; 64];
    loop {
        let mut buffer = ReadBuf::new(&mut discarded);
        match Pin::new(&mut *io).poll_read(context, &mut buffer) {
            Poll::Pending => break,
            Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
            Poll::Ready(_) => return Poll::Ready(NextChunk::Disconnected),
        }
    }
    Pin::new(body).poll_frame(context).map(|frame| match frame.map(|Ok(frame)| frame.into_data()) {
        Some(Ok(chunk)) => NextChunk::Chunk(chunk),
        Some(Err(_)) | None => NextChunk::End,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::body::MessageSource;

    /// Yields these messages, then stays pending or ends.
    struct FixedBody(VecDeque<&'static str>, Poll<()>);

    impl MessageSource for FixedBody {
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
            match self.0.pop_front() {
                Some(message) => Poll::Ready(Some(message.into())),
                None => self.1.map(|()| None),
            }
        }
    }

    fn stream(messages: &[&'static str], end: Poll<()>) -> Response<ResponseBody> {
        let body = ResponseBody::events(FixedBody(messages.iter().copied().collect(), end));
        Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn stream_is_written_in_chunks_and_closes_its_connection() {
        let (mut ours, theirs) = tokio::io::duplex(1 << 10);
        write(theirs, stream(&["data: a\n\n", "data: bc\n\n"], Poll::Ready(()))).await;
        let mut text = String::new();
        ours.read_to_string(&mut text).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n";
        assert_eq!(text, format!("{head}9\r\ndata: a\n\n\r\na\r\ndata: bc\n\n\r\n0\r\n\r\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_when_its_client_disconnects() {
        let (mut ours, theirs) = tokio::io::duplex(1 << 10);
        ours.write_all(b"GET /more HTTP/1.1\r\n\r\n").await.unwrap();
        drop(ours);
        write(theirs, stream(&[], Poll::Pending)).await;
    }

    #[tokio::test]
    async fn detached_stream_future_is_small() {
        let (_, theirs) = tokio::io::duplex(1);
        let size = size_of_val(&write(theirs, stream(&[], Poll::Pending)));
        assert!(size < 1 << 10, "{size}");
    }
}
