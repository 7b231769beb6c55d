//! Bytes to newline-delimited messages and back, with a limit on every line.
//!
//! A line over the limit is not kept: its beginning is handed out at once and its last bytes when it ends, so that the
//! call it answers can be failed; the rest is thrown away as it arrives.

use bytes::{Bytes, BytesMut};

/// How much of an oversize line is kept to find out whom it was for.
const HEAD: usize = 4 << 10;
const TAIL: usize = 128;

/// One line of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A whole line without its ending.
    Line(Bytes),
    /// A line over the limit: how it began. It comes once per such line, before its end was seen.
    TooLong(Bytes),
    /// The end of a line over the limit: its last bytes.
    End(Bytes),
}

/// Cuts a stream of bytes into lines.
#[derive(Debug)]
pub struct Frames {
    buffer: BytesMut,
    /// Bytes of `buffer` already searched for a line end.
    searched: usize,
    limit: usize,
    /// Bytes thrown away of a line over the limit, while inside one.
    skipped: Option<usize>,
    /// The last bytes of a line over the limit, as far as it has come.
    tail: Vec<u8>,
}

impl Frames {
    /// For lines of at most `limit` bytes, the ending not counted.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, limit, skipped: None, tail: Vec::new() }
    }

    /// Room for the next read; whatever is appended here is input. The room grows with the line under way.
    pub fn room(&mut self) -> &mut BytesMut {
        self.buffer.reserve(self.buffer.len().clamp(8 << 10, 1 << 20));
        &mut self.buffer
    }

    /// Appends input.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// How many bytes of the present line were thrown away.
    pub fn skipped(&self) -> usize {
        self.skipped.unwrap_or(0)
    }

    /// The bytes after the last line end, once the stream is over.
    pub fn rest(&mut self) -> Option<Bytes> {
        self.searched = 0;
        let rest = trimmed(&self.buffer.split().freeze());
        (self.skipped.take().is_none() && !rest.is_empty()).then_some(rest)
    }

    /// The next line, if one is complete.
    pub fn next_frame(&mut self) -> Option<Frame> {
        let Some(offset) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
            return self.incomplete();
        };
        let end = self.searched + offset;
        if self.skipped.is_none() && trimmed_len(&self.buffer[..end]) > self.limit {
            return Some(self.begin_skipping(end));
        }
        let line = self.buffer.split_to(end + 1).freeze();
        self.searched = 0;
        self.release();
        if self.skipped.take().is_some() {
            self.keep_tail(&line[..end]);
            return Some(Frame::End(trimmed(&std::mem::take(&mut self.tail).into())));
        }
        let line = trimmed(&line.slice(..end));
        Some(Frame::Line(line))
    }

    /// No line end in the buffer: wait, unless the line is over the limit already. One byte over may be the carriage
    /// return of a line that just fits.
    fn incomplete(&mut self) -> Option<Frame> {
        self.searched = self.buffer.len();
        if self.skipped.is_some() {
            self.skip(self.buffer.len());
            return None;
        }
        if self.buffer.len() <= self.limit + 1 { None } else { Some(self.begin_skipping(self.buffer.len())) }
    }

    /// Hands out how a line began that is over the limit, and throws away what there is of it up to `end`.
    fn begin_skipping(&mut self, end: usize) -> Frame {
        let head = Bytes::copy_from_slice(&self.buffer[..HEAD.min(end)]);
        self.skip(end);
        Frame::TooLong(head)
    }

    fn skip(&mut self, count: usize) {
        let skipped = self.buffer.split_to(count);
        self.keep_tail(&skipped);
        self.skipped = Some(self.skipped() + count);
        self.searched = 0;
    }

    fn keep_tail(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL)..]);
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
    }

    /// Gives a large buffer back once it is empty, so that one big answer does not stay in memory.
    fn release(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() > (256 << 10) {
            self.buffer = BytesMut::new();
        }
    }
}

fn trimmed(line: &Bytes) -> Bytes {
    line.slice(..trimmed_len(line))
}

fn trimmed_len(line: &[u8]) -> usize {
    line.len() - usize::from(line.last() == Some(&b'\r'))
}

/// Makes one line of a message: raw line ends can only be blanks between JSON tokens, so they become spaces.
pub fn flatten(message: &mut [u8]) {
    let mut from = 0;
    while let Some(offset) = memchr::memchr2(b'\n', b'\r', &message[from..]) {
        message[from + offset] = b' ';
        from += offset + 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(frames: &mut Frames) -> Vec<Frame> {
        std::iter::from_fn(|| frames.next_frame()).collect()
    }

    fn line(text: &str) -> Frame {
        Frame::Line(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_end_with_or_without_a_carriage_return() {
        let mut frames = Frames::new(100);
        frames.push(b"one\r\ntwo\n\n{\"x\":1}\nrest");
        assert_eq!(all(&mut frames), [line("one"), line("two"), line(""), line("{\"x\":1}")]);
        assert_eq!(frames.rest().unwrap(), "rest");
    }

    #[test]
    fn the_limit_itself_passes_and_one_more_byte_does_not() {
        for ending in ["\n", "\r\n"] {
            for (length, passes) in [(9, true), (10, true), (11, false), (50, false)] {
                let mut frames = Frames::new(10);
                frames.push(format!("{}{ending}after\n", "x".repeat(length)).as_bytes());
                let found = all(&mut frames);
                assert_eq!(matches!(found[0], Frame::Line(_)), passes, "{length} {ending:?}");
                assert_eq!(matches!(found[1], Frame::End(_)), !passes, "{length} {ending:?}");
                assert_eq!(found.last(), Some(&line("after")));
            }
        }
    }

    #[test]
    fn an_endless_line_is_reported_once_and_not_kept() {
        let mut frames = Frames::new(1000);
        let mut reports = 0;
        for _ in 0..10_000 {
            frames.push(&[b'x'; 1000]);
            reports += all(&mut frames).len();
            assert!(frames.buffer.len() <= 2001);
        }
        assert_eq!(reports, 1);
        assert!(frames.skipped() > 9_000_000);
        frames.push(b"the end\r\nnext\n");
        let found = all(&mut frames);
        assert!(matches!(&found[0], Frame::End(tail) if tail.len() <= TAIL && tail.ends_with(b"xxthe end")));
        assert_eq!(found[1], line("next"));
    }

    #[test]
    fn a_pretty_printed_message_becomes_one_line() {
        let mut message = b"{\n  \"a\": \"x\\n\"\r\n}".to_vec();
        flatten(&mut message);
        assert_eq!(message, b"{   \"a\": \"x\\n\"  }");
    }

    proptest! {
        #[test]
        fn the_cut_of_the_input_changes_nothing(
            text in prop::collection::vec(prop::sample::select(b"ab{}\r\n".to_vec()), 0..200),
            cuts in prop::collection::vec(1usize..20, 0..40),
        ) {
            let mut whole = Frames::new(12);
            whole.push(&text);
            let mut expected = all(&mut whole);
            let mut pieces = Frames::new(12);
            let mut found = Vec::new();
            let mut rest = &text[..];
            for cut in cuts.into_iter().chain(std::iter::once(usize::MAX)) {
                let (now, later) = rest.split_at(cut.min(rest.len()));
                pieces.push(now);
                found.append(&mut all(&mut pieces));
                rest = later;
            }
            // How much of an oversize line was seen when it was reported depends on the cut; that it was, does not.
            for frame in expected.iter_mut().chain(&mut found) {
                if let Frame::TooLong(head) = frame { head.truncate(12); }
            }
            prop_assert_eq!(expected, found);
        }
    }
}
