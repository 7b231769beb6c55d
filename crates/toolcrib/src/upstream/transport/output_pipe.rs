//! The output of a server process: a pipe that grows when the server sends large messages.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

use crate::process::{PipeReader, enlarge_pipe};

/// A read of this many bytes found the pipe full. Linux pipes hold 64 KiB.
const FULL_PIPE: usize = 64 << 10;

/// The read end of a pipe.
#[derive(Debug)]
pub(in crate::upstream) struct OutputPipe {
    pipe: PipeReader,
    /// Set when the pipe was found full, and made larger once.
    is_enlarged: bool,
}

impl OutputPipe {
    pub(in crate::upstream) fn new(pipe: PipeReader) -> Self {
        Self { pipe, is_enlarged: false }
    }
}

impl AsyncRead for OutputPipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        ready!(Pin::new(&mut self.pipe).poll_read(context, buffer))?;
        // The server waits while the pipe is full, and both are woken for every part of a message.
        if !self.is_enlarged && buffer.filled().len() - filled >= FULL_PIPE {
            enlarge_pipe(&self.pipe);
            self.is_enlarged = true;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::unix::pipe;

    use super::*;

    /// Returns how many bytes a pipe takes until it is full.
    fn fill(sender: &pipe::Sender) -> usize {
        let block = [b'x'; 4096];
        std::iter::from_fn(|| sender.try_write(&block).ok()).sum()
    }

    #[tokio::test]
    async fn full_pipe_is_enlarged() {
        let (sender, receiver) = pipe::pipe().unwrap();
        sender.writable().await.unwrap();
        let mut output = OutputPipe::new(receiver);
        assert_eq!(fill(&sender), FULL_PIPE);
        let mut received = vec![0; 2 * FULL_PIPE];
        assert_eq!(output.read(&mut received).await.unwrap(), FULL_PIPE);
        sender.writable().await.unwrap();
        assert!(fill(&sender) > FULL_PIPE, "the pipe holds more after it was full");
    }

    #[tokio::test]
    async fn pipe_of_small_messages_keeps_its_size() {
        let (sender, receiver) = pipe::pipe().unwrap();
        sender.writable().await.unwrap();
        let mut output = OutputPipe::new(receiver);
        let mut received = vec![0; FULL_PIPE / 2];
        for _ in 0..4 {
            sender.writable().await.unwrap();
            fill(&sender);
            output.read_exact(&mut received).await.unwrap();
        }
        assert!(!output.is_enlarged);
    }
}
