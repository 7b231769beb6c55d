//! Which HTTP a client speaks: the newer one opens with words of its own.
//!
//! The bytes that were read to find out are given again together with those that follow, so that the head of a request
//! still arrives in one piece.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// How HTTP/2 opens.
const WORDS: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection of which the beginning was read and is read again.
pub(super) struct Opened<I> {
    io: I,
    begun: [u8; WORDS.len()],
    /// Which of those bytes are still to be given.
    from: usize,
    to: usize,
}

impl<I: AsyncRead + Unpin> Opened<I> {
    /// Reads until it is clear which HTTP this is; `true` for the newer one.
    pub(super) async fn read(mut io: I) -> io::Result<(Self, bool)> {
        let (mut begun, mut to) = ([0; WORDS.len()], 0);
        while to < begun.len() && begun[..to] == WORDS[..to] {
            match io.read(&mut begun[to..]).await? {
                0 => break,
                count => to += count,
            }
        }
        let newer = begun == *WORDS;
        Ok((Self { io, begun, from: 0, to }, newer))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Opened<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.from == this.to {
            return Pin::new(&mut this.io).poll_read(context, buffer);
        }
        let count = buffer.remaining().min(this.to - this.from);
        buffer.put_slice(&this.begun[this.from..this.from + count]);
        this.from += count;
        if buffer.remaining() > 0 {
            // Whatever goes wrong now goes wrong again when there is nothing else to give.
            let _ = Pin::new(&mut this.io).poll_read(context, buffer);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Opened<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(context))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn opened(sent: &'static [u8]) -> (Vec<u8>, bool) {
        let (mut opened, newer) = Opened::read(sent).await.unwrap();
        let mut all = Vec::new();
        opened.read_to_end(&mut all).await.unwrap();
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
        let (mut opened, _) = Opened::read(head).await.unwrap();
        let mut buffer = [0; 100];
        assert_eq!(opened.read(&mut buffer).await.unwrap(), head.len());
    }
}
