//! A server's stderr: kept as a bounded tail of lines and passed to a log sink.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::model::log_line::{LogSource, StderrLine};
use crate::observer::log_sink::LogSink;
use crate::secrets::Redactor;
use crate::spec::ServerId;
use crate::util::clock;
use crate::util::locks::IgnorePoison as _;

const MAX_LINES: usize = 200;
/// Total bytes kept.
const MAX_BYTES: usize = 64 << 10;
/// Bytes kept of one line.
const MAX_LINE_BYTES: usize = 2 << 10;
/// Time to read from a pipe that another process keeps open after the server exited.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// The last lines of one server's stderr, across restarts. Lines are numbered from 1.
#[derive(Debug, Default)]
pub(crate) struct StderrTail {
    lines: Mutex<StderrLines>,
    line_added: Notify,
    /// The tail of the whole server, if this one is an instance's.
    parent: Option<Arc<StderrTail>>,
    /// The log sink, and the server name to log under.
    log: Option<(ServerId, LogSink)>,
}

#[derive(Debug, Default)]
struct StderrLines {
    kept: VecDeque<KeptLine>,
    bytes: usize,
    /// The number of the last line.
    last: u64,
}

/// A kept line and the time at which it arrived.
#[derive(Debug)]
struct KeptLine {
    at: SystemTime,
    text: String,
}

impl StderrTail {
    /// Creates a tail that also writes to `log`.
    pub(crate) fn new(server: &ServerId, log: Option<&LogSink>) -> Self {
        Self { log: log.map(|log| (server.clone(), log.clone())), ..Self::default() }
    }

    fn lines(&self) -> MutexGuard<'_, StderrLines> {
        self.lines.lock().ignore_poison()
    }

    /// Creates a tail for one instance; its lines are added to the server's tail as well.
    pub(crate) fn for_instance(parent: Arc<Self>) -> Self {
        Self { parent: Some(parent), ..Self::default() }
    }

    /// Returns the tail of the whole server.
    pub(crate) fn of_server(self: &Arc<Self>) -> Arc<Self> {
        self.parent.as_ref().unwrap_or(self).clone()
    }

    /// Returns the number of the last line.
    pub(crate) fn last_number(&self) -> u64 {
        self.lines().last
    }

    /// Returns the lines after number `after` that are still kept.
    pub(crate) fn lines_after(&self, after: u64) -> Vec<StderrLine> {
        let lines = self.lines();
        let first = lines.last + 1 - lines.kept.len() as u64;
        (first..)
            .zip(&lines.kept)
            .filter(|(number, _)| *number > after)
            .map(|(number, line)| StderrLine { number, at: line.at, text: line.text.clone() })
            .collect()
    }

    /// Waits until there is a line after number `after`.
    pub(crate) async fn wait_for_line(&self, after: u64) {
        loop {
            let mut added = std::pin::pin!(self.line_added.notified());
            added.as_mut().enable();
            if self.last_number() > after {
                return;
            }
            added.await;
        }
    }

    /// Adds a line, which may be truncated.
    fn push_line(&self, line: &[u8], redactor: &Redactor) {
        let text = String::from_utf8_lossy(&line[..line.len().min(MAX_LINE_BYTES)]);
        let text = match line.len() < MAX_LINE_BYTES {
            true => redactor.redact(&text),
            false => redactor.redact_truncated(text.trim_end_matches(char::REPLACEMENT_CHARACTER)),
        };
        self.append(text.trim_end());
    }

    fn append(&self, text: &str) {
        if let Some(parent) = &self.parent {
            parent.append(text);
        }
        let text = text.to_owned();
        let mut lines = self.lines();
        lines.last += 1;
        if let Some((server, log)) = &self.log {
            log.write(server, LogSource::Stderr(lines.last, &text));
        }
        lines.bytes += text.len();
        lines.kept.push_back(KeptLine { at: clock::wall_time(), text });
        while lines.kept.len() > MAX_LINES || lines.bytes > MAX_BYTES {
            lines.bytes -= lines.kept.pop_front().map_or(0, |line| line.text.len());
        }
        drop(lines);
        self.line_added.notify_waiters();
    }

    /// Reads until end of file, or until shortly after `exited`. Secrets are redacted.
    pub(crate) async fn drain(
        &self,
        mut stderr: impl AsyncRead + Unpin,
        exited: impl Future<Output = ()>,
        redactor: &Redactor,
    ) {
        let mut line = Vec::new();
        let mut chunk = vec![0; 8 << 10];
        let mut exited = std::pin::pin!(exited);
        loop {
            tokio::select! {
                biased;
                count = stderr.read(&mut chunk) => match count {
                    Ok(count @ 1..) => {
                        self.split_lines(&mut line, &chunk[..count], redactor);
                        // A busy server must not starve the others.
                        tokio::task::yield_now().await;
                    }
                    _ => break,
                },
                () = &mut exited => {
                    let until = Instant::now() + LINGER;
                    while let Ok(Ok(count @ 1..)) = timeout_at(until, stderr.read(&mut chunk)).await {
                        self.split_lines(&mut line, &chunk[..count], redactor);
                    }
                    break;
                }
            }
        }
        if !line.is_empty() {
            self.push_line(&line, redactor);
        }
    }

    fn split_lines(&self, line: &mut Vec<u8>, mut bytes: &[u8], redactor: &Redactor) {
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            line.extend_from_slice(&bytes[..end.min(MAX_LINE_BYTES)]);
            self.push_line(line, redactor);
            line.clear();
            bytes = &bytes[end + 1..];
        }
        let room = MAX_LINE_BYTES.saturating_sub(line.len());
        line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number and the text of a line.
    fn line(number: u64, text: &str) -> (u64, String) {
        (number, text.to_owned())
    }

    fn lines_of(tail: &StderrTail) -> Vec<(u64, String)> {
        tail.lines_after(0).into_iter().map(|line| (line.number, line.text)).collect()
    }

    async fn drained(bytes: &[u8]) -> Vec<(u64, String)> {
        let tail = StderrTail::default();
        tail.drain(bytes, std::future::pending(), &Redactor::default()).await;
        lines_of(&tail)
    }

    #[tokio::test]
    async fn tail_keeps_the_last_lines_with_their_numbers() {
        let text: String = (1..=500).map(|n| format!("line {n}\r\n")).collect();
        let lines = drained(text.as_bytes()).await;
        assert_eq!(lines.len(), MAX_LINES);
        assert_eq!(lines[0], line(301, "line 301"));
        assert_eq!(lines[MAX_LINES - 1], line(500, "line 500"));
    }

    #[tokio::test]
    async fn tail_keeps_fewer_long_lines() {
        let lines = drained(&[&[b'\xfe'; 999][..], b"\n"].concat().repeat(1000)).await;
        let bytes: usize = lines.iter().map(|(_, text)| text.len()).sum();
        assert!(bytes <= MAX_BYTES && bytes > MAX_BYTES - 3 * MAX_LINE_BYTES, "{bytes}");
        assert_eq!(lines.last().unwrap().0, 1000);
    }

    #[tokio::test]
    async fn log_sink_gets_every_line() {
        let (sender, received) = std::sync::mpsc::channel();
        let sink = LogSink(Arc::new(move |line| {
            if let LogSource::Stderr(number, text) = line.source {
                sender.send((line.server.to_string(), number, text.to_owned())).unwrap();
            }
        }));
        let tail = StderrTail::new(&"git".parse().unwrap(), Some(&sink));
        let text: String = (1..=500).map(|n| format!("line {n}\n")).collect();
        tail.drain(text.as_bytes(), std::future::pending(), &Redactor::default()).await;
        let kept: Vec<_> = received.try_iter().collect();
        assert_eq!((kept.len(), &kept[0]), (500, &("git".to_owned(), 1, "line 1".to_owned())));
    }

    #[tokio::test]
    async fn tail_accepts_any_bytes_and_an_unterminated_last_line() {
        let lines = drained(b"a\xff\xfeb\nlast").await;
        assert_eq!(lines, [line(1, "a\u{fffd}\u{fffd}b"), line(2, "last")]);
        let endless = drained(&vec![b'x'; 1 << 20]).await;
        assert_eq!(endless[0].1.len(), MAX_LINE_BYTES);
    }

    #[tokio::test]
    async fn tail_survives_a_panic_under_its_lock() {
        let tail = StderrTail::default();
        let panicked = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = tail.lines();
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(panicked && tail.lines.is_poisoned());
        tail.drain(&b"still here\n"[..], std::future::pending(), &Redactor::default()).await;
        assert_eq!(lines_of(&tail), [line(1, "still here")]);
    }
}
