//! The input of a server process: a pipe that one task writes to, and callers too while the connection is idle.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use crate::process::{PipeWriter, try_write_whole};
use crate::util::locks::IgnorePoison as _;

/// The write end of a pipe. Dropping it closes the pipe.
#[derive(Debug)]
pub(in crate::upstream) struct InputPipe {
    state: Arc<Mutex<PipeState>>,
}

#[derive(Debug)]
struct PipeState {
    pipe: PipeWriter,
    /// True while only a part of a line is written, so that nothing else may be written.
    is_within_line: bool,
}

impl InputPipe {
    pub(in crate::upstream) fn new(pipe: PipeWriter) -> Self {
        Self { state: Arc::new(Mutex::new(PipeState { pipe, is_within_line: false })) }
    }

    /// Returns a handle for messages that need not wait for others.
    pub(in crate::upstream) fn direct(&self) -> DirectInput {
        DirectInput { state: Arc::downgrade(&self.state) }
    }
}

impl AsyncWrite for InputPipe {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, lines: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state.lock().ignore_poison();
        let written = ready!(Pin::new(&mut state.pipe).poll_write(cx, lines))?;
        if let Some(last) = lines[..written].last() {
            state.is_within_line = *last != b'\n';
        }
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state.lock().ignore_poison().pipe).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.state.lock().ignore_poison().pipe).poll_shutdown(cx)
    }
}

/// Writes single messages to a server without waking the task that writes queued ones.
#[derive(Debug)]
pub(in crate::upstream) struct DirectInput {
    state: Weak<Mutex<PipeState>>,
}

impl DirectInput {
    /// Writes a line as a whole and returns true, or returns false if that cannot be done at once, the pipe is closed or within
    /// another line.
    pub(in crate::upstream) fn try_write(&self, line: &[u8]) -> bool {
        let Some(state) = self.state.upgrade() else { return false };
        let state = state.lock().ignore_poison();
        !state.is_within_line && try_write_whole(&state.pipe, line)
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::unix::pipe;

    use super::*;

    #[tokio::test]
    async fn message_is_written_as_a_whole_or_not_at_all() {
        let (sender, receiver) = pipe::pipe().unwrap();
        sender.writable().await.unwrap();
        let mut input = InputPipe::new(sender);
        let direct = input.direct();
        assert!(!direct.try_write(&vec![b'x'; libc::PIPE_BUF + 1]), "too long");
        input.write_all(b"half a line").await.unwrap();
        assert!(!direct.try_write(b"x\n"), "within another line");
        input.write_all(b", and the rest\n").await.unwrap();
        let line = vec![b'x'; libc::PIPE_BUF - 1];
        let mut written = b"half a line, and the rest\n".len();
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
