//! Streams that may last for hours over a connection of their own: written here and not by hyper, which keeps 16 KiB of
//! buffers as long as a connection is open.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::Body as _;
use hyper::{Method, Request, Response, Version};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use super::body::Body;

/// What is left of a connection that only a stream lasts on.
pub(crate) type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where an answer is put that takes its connection with it.
#[derive(Default)]
pub(super) struct Leaving(Mutex<Option<Response<Body>>>);

impl Leaving {
    /// Whether the answer to this request may leave: only one that is over when its connection is.
    pub(super) fn may<B>(request: &Request<B>) -> bool {
        request.method() == Method::GET && request.version() == Version::HTTP_11
    }

    /// Takes an answer that is a stream; gives any other back.
    pub(super) fn put(&self, response: Response<Body>) -> Option<Response<Body>> {
        if !matches!(response.body(), Body::Events(_)) {
            return Some(response);
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(response);
        None
    }

    /// Ready when the connection is over, or when an answer wants to leave with it.
    pub(super) fn poll(
        &self,
        connection: &mut (impl Future + Unpin),
        context: &mut Context<'_>,
    ) -> Poll<Option<Response<Body>>> {
        if Pin::new(connection).poll(context).is_ready() {
            return Poll::Ready(None);
        }
        let response = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        response.map_or(Poll::Pending, |response| Poll::Ready(Some(response)))
    }
}

/// Writes a stream to its end, or to that of the client.
pub(super) async fn write<I: AsyncRead + AsyncWrite + Unpin>(mut io: I, response: Response<Body>) {
    let (head, mut body) = response.into_parts();
    let opening = format!("HTTP/1.1 {}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n", head.status);
    let mut out = opening.into_bytes();
    for (name, value) in &head.headers {
        [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]
            .iter()
            .for_each(|part| out.extend(*part));
    }
    out.extend(b"\r\n");
    drop(head);
    while io.write_all(&out).await.is_ok() && io.flush().await.is_ok() {
        match poll_fn(|context| next(&mut io, &mut body, context)).await {
            Next::Gone => return,
            Next::Chunk(chunk) => {
                out = format!("{:x}\r\n", chunk.len()).into_bytes();
                out.extend(chunk);
                out.extend(b"\r\n");
            }
            Next::End => {
                let _ = io.write_all(b"0\r\n\r\n").await;
                let _ = io.shutdown().await;
                return;
            }
        }
    }
}

enum Next {
    Chunk(Bytes),
    End,
    Gone,
}

/// What comes next. Whatever a client still says on this connection goes unheard, but for its end.
fn next<I: AsyncRead + Unpin>(io: &mut I, body: &mut Body, context: &mut Context<'_>) -> Poll<Next> {
    let mut room = [0; 64];
    loop {
        let mut room = ReadBuf::new(&mut room);
        match Pin::new(&mut *io).poll_read(context, &mut room) {
            Poll::Pending => break,
            Poll::Ready(Ok(())) if !room.filled().is_empty() => {}
            Poll::Ready(_) => return Poll::Ready(Next::Gone),
        }
    }
    Pin::new(body).poll_frame(context).map(|frame| match frame.map(|Ok(frame)| frame.into_data()) {
        Some(Ok(chunk)) => Next::Chunk(chunk),
        Some(Err(_)) | None => Next::End,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt as _;

    use super::super::body::Messages;
    use super::*;

    /// Says this, and then nothing or no more.
    struct Few(VecDeque<&'static str>, Poll<()>);

    impl Messages for Few {
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
            match self.0.pop_front() {
                Some(message) => Poll::Ready(Some(message.into())),
                None => self.1.map(|()| None),
            }
        }
    }

    fn stream(few: &[&'static str], end: Poll<()>) -> Response<Body> {
        let body = Body::events(Few(few.iter().copied().collect(), end));
        Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_is_written_in_chunks_and_ends_with_its_connection() {
        let (mut ours, theirs) = tokio::io::duplex(1 << 10);
        write(theirs, stream(&["data: a\n\n", "data: bc\n\n"], Poll::Ready(()))).await;
        let mut text = String::new();
        ours.read_to_string(&mut text).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n";
        assert_eq!(text, format!("{head}9\r\ndata: a\n\n\r\na\r\ndata: bc\n\n\r\n0\r\n\r\n"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_takes_its_stream_with_it() {
        let (mut ours, theirs) = tokio::io::duplex(1 << 10);
        ours.write_all(b"GET /more HTTP/1.1\r\n\r\n").await.unwrap();
        drop(ours);
        write(theirs, stream(&[], Poll::Pending)).await;
    }

    #[tokio::test]
    async fn what_lasts_is_small() {
        let (_, theirs) = tokio::io::duplex(1);
        let room = size_of_val(&write(theirs, stream(&[], Poll::Pending)));
        assert!(room < 1 << 10, "{room}");
    }
}
