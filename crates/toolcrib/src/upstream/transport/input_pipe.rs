//! The input of a server process: a pipe that one task writes to, and callers too while the connection is idle.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;
use tokio::net::unix::pipe;

use crate::util::locks::IgnorePoison as _;

/// The write end of a pipe. Dropping it closes the pipe.
#[derive(Debug)]
pub(in crate::upstream) struct InputPipe {
    pipe: Arc<Mutex<pipe::Sender>>,
}

impl InputPipe {
    pub(in crate::upstream) fn new(pipe: pipe::Sender) -> Self {
        Self { pipe: Arc::new(Mutex::new(pipe)) }
    }

    /// Returns a handle for messages that need not wait for others.
    pub(in crate::upstream) fn direct(&self) -> DirectInput {
        DirectInput { pipe: Arc::downgrade(&self.pipe) }
    }
}

impl AsyncWrite for InputPipe {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.pipe.lock().ignore_poison()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.pipe.lock().ignore_poison()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.pipe.lock().ignore_poison()).poll_shutdown(cx)
    }
}

/// Writes single messages to a server without waking the task that writes queued ones.
#[derive(Debug)]
pub(in crate::upstream) struct DirectInput {
    pipe: Weak<Mutex<pipe::Sender>>,
}

impl DirectInput {
    /// Writes a message and returns true, or returns false if it is too long for that or the pipe is full or closed. A pipe
    /// takes a write of up to `PIPE_BUF` bytes as a whole or not at all.
    pub(in crate::upstream) fn try_write(&self, line: &[u8]) -> bool {
        if line.len() > libc::PIPE_BUF {
            return false;
        }
        let Some(pipe) = self.pipe.upgrade() else { return false };
        let written = pipe.lock().ignore_poison().try_write(line);
        written.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn message_is_written_as_a_whole_or_not_at_all() {
        let (sender, receiver) = pipe::pipe().unwrap();
        sender.writable().await.unwrap();
        let input = InputPipe::new(sender);
        let direct = input.direct();
        assert!(!direct.try_write(&vec![b'x'; libc::PIPE_BUF + 1]), "too long");
        let line = vec![b'x'; libc::PIPE_BUF - 1];
        let mut written = 0;
        while direct.try_write(&line) {
            written += line.len();
        }
        drop(input);
        assert!(!direct.try_write(b"x"), "the pipe is closed");
        receiver.readable().await.unwrap();
        let mut received = vec![0; written + 1];
        let mut total = 0;
        while let Ok(count @ 1..) = receiver.try_read(&mut received[total..]) {
            total += count;
        }
        assert_eq!(total, written);
    }
}
