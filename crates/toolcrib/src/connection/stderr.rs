//! What servers write to stderr: drained as bytes, kept as a bounded tail of lines, and handed to whoever keeps more.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::log_line::{LogSink, LogWhat};
use crate::secret::Mask;
use crate::spec::ServerId;

/// Lines kept.
const LINES: usize = 200;
/// Bytes kept of all lines: a flood of long ones is not worth megabytes.
const BYTES: usize = 64 << 10;
/// Bytes kept of one line.
const LINE: usize = 2 << 10;
/// How long to go on reading from a pipe whose process is gone but which somebody holds open.
pub(super) const LINGER: Duration = Duration::from_millis(100);

/// The last lines of one server's stderr, through all its processes. Lines are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct StderrTail {
    lines: Mutex<Lines>,
    grown: Notify,
    /// That of all instances of the server, if there are several.
    whole: Option<Arc<StderrTail>>,
    /// Who keeps a log, and under which name.
    log: Option<(ServerId, LogSink)>,
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<String>,
    bytes: usize,
    /// The number of the last line.
    last: u64,
}

impl StderrTail {
    /// One whose lines are kept by `log` as well.
    pub(crate) fn new(server: &ServerId, log: Option<&LogSink>) -> Self {
        Self { log: log.map(|log| (server.clone(), log.clone())), ..Self::default() }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lines of one instance, which are among those of the whole server too.
    pub(crate) fn part_of(whole: Arc<Self>) -> Self {
        Self { whole: Some(whole), ..Self::default() }
    }

    /// The number of the last line.
    pub(crate) fn last(&self) -> u64 {
        self.lines().last
    }

    /// The lines after number `after` that are still kept, with their numbers.
    pub(crate) fn after(&self, after: u64) -> Vec<(u64, String)> {
        let lines = self.lines();
        let first = lines.last + 1 - lines.kept.len() as u64;
        (first..)
            .zip(&lines.kept)
            .filter(|(number, _)| *number > after)
            .map(|(n, line)| (n, line.clone()))
            .collect()
    }

    /// Waits until there is a line after number `after`.
    pub(crate) async fn grown(&self, after: u64) {
        loop {
            let mut grown = std::pin::pin!(self.grown.notified());
            grown.as_mut().enable();
            if self.last() > after {
                return;
            }
            grown.await;
        }
    }

    /// Adds a line, of which the end may be missing.
    fn push(&self, line: &[u8], mask: &Mask) {
        let text = String::from_utf8_lossy(&line[..line.len().min(LINE)]);
        let text = match line.len() < LINE {
            true => mask.hide(&text),
            false => mask.hide_cut(text.trim_end_matches(char::REPLACEMENT_CHARACTER)),
        };
        self.keep(text.trim_end());
    }

    fn keep(&self, text: &str) {
        if let Some(whole) = &self.whole {
            whole.keep(text);
        }
        let text = text.to_owned();
        let mut lines = self.lines();
        lines.last += 1;
        if let Some((server, log)) = &self.log {
            log.take(server, LogWhat::Stderr(lines.last, &text));
        }
        lines.bytes += text.len();
        lines.kept.push_back(text);
        while lines.kept.len() > LINES || lines.bytes > BYTES {
            lines.bytes -= lines.kept.pop_front().map_or(0, |line| line.len());
        }
        drop(lines);
        self.grown.notify_waiters();
    }

    /// Reads to the end, or until a moment after `gone`. What the mask hides is not kept.
    pub(super) async fn drain(
        &self,
        mut stderr: impl AsyncRead + Unpin,
        gone: impl Future<Output = ()>,
        mask: &Mask,
    ) {
        let mut line = Vec::new();
        let mut chunk = vec![0; 8 << 10];
        let mut gone = std::pin::pin!(gone);
        loop {
            tokio::select! {
                biased;
                count = stderr.read(&mut chunk) => match count {
                    Ok(count @ 1..) => {
                        self.take(&mut line, &chunk[..count], mask);
                        // A chatty server must not keep the others from their turn.
                        tokio::task::yield_now().await;
                    }
                    _ => break,
                },
                () = &mut gone => {
                    let until = Instant::now() + LINGER;
                    while let Ok(Ok(count @ 1..)) = timeout_at(until, stderr.read(&mut chunk)).await {
                        self.take(&mut line, &chunk[..count], mask);
                    }
                    break;
                }
            }
        }
        if !line.is_empty() {
            self.push(&line, mask);
        }
    }

    fn take(&self, line: &mut Vec<u8>, mut bytes: &[u8], mask: &Mask) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            line.extend_from_slice(&bytes[..end.min(LINE)]);
            self.push(line, mask);
            line.clear();
            bytes = &bytes[end + 1..];
        }
        let room = LINE.saturating_sub(line.len());
        line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn drained(bytes: &[u8]) -> Vec<(u64, String)> {
        let tail = StderrTail::default();
        tail.drain(bytes, std::future::pending(), &Mask::default()).await;
        tail.after(0)
    }

    #[tokio::test]
    async fn keeps_the_last_lines_with_their_numbers() {
        let text: String = (1..=500).map(|n| format!("line {n}\r\n")).collect();
        let lines = drained(text.as_bytes()).await;
        assert_eq!(lines.len(), LINES);
        assert_eq!(lines[0], (301, "line 301".to_owned()));
        assert_eq!(lines[LINES - 1], (500, "line 500".to_owned()));
    }

    #[tokio::test]
    async fn of_long_lines_fewer_are_kept() {
        let lines = drained(&[&[b'\xfe'; 999][..], b"\n"].concat().repeat(1000)).await;
        let bytes: usize = lines.iter().map(|(_, line)| line.len()).sum();
        assert!(bytes <= BYTES && bytes > BYTES - 3 * LINE, "{bytes}");
        assert_eq!(lines.last().unwrap().0, 1000);
    }

    #[tokio::test]
    async fn whoever_keeps_a_log_gets_every_line() {
        let (heard, hears) = std::sync::mpsc::channel();
        let sink = LogSink(Arc::new(move |line| {
            if let LogWhat::Stderr(number, text) = line.what {
                heard.send((line.server.to_string(), number, text.to_owned())).unwrap();
            }
        }));
        let tail = StderrTail::new(&"git".parse().unwrap(), Some(&sink));
        let text: String = (1..=500).map(|n| format!("line {n}\n")).collect();
        tail.drain(text.as_bytes(), std::future::pending(), &Mask::default()).await;
        let kept: Vec<_> = hears.try_iter().collect();
        assert_eq!((kept.len(), &kept[0]), (500, &("git".to_owned(), 1, "line 1".to_owned())));
    }

    #[tokio::test]
    async fn takes_any_bytes_and_a_last_line_without_an_end() {
        let lines = drained(b"a\xff\xfeb\nlast").await;
        assert_eq!(lines, [(1, "a\u{fffd}\u{fffd}b".to_owned()), (2, "last".to_owned())]);
        let endless = drained(&vec![b'x'; 1 << 20]).await;
        assert_eq!(endless[0].1.len(), LINE);
    }

    #[tokio::test]
    async fn a_panic_under_the_lock_does_not_end_the_log() {
        let tail = StderrTail::default();
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = tail.lines();
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(panicked && tail.lines.is_poisoned());
        tail.drain(&b"still here\n"[..], std::future::pending(), &Mask::default()).await;
        assert_eq!(tail.after(0), [(1, "still here".to_owned())]);
    }
}
