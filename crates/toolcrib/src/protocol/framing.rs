//! Splits a byte stream into newline-delimited messages, with a limit on the length of a line.
//!
//! A line over the limit is discarded as it arrives. Its start is returned immediately, and once more with its size when it
//! ends, so that the call it responds to can be failed.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::util::format;

/// Bytes of the start of an oversize message that are returned.
const MAX_HEAD: usize = 4 << 10;
/// Bytes of the end of an oversize message that are returned.
const MAX_TAIL: usize = 128;

/// Longest line that is copied out of the read buffer, so that the buffer can be used again: 1 % fewer instructions for a small
/// call. A longer line shares the buffer.
const MAX_COPIED: usize = 2 << 10;

/// One line of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A complete line without its line ending.
    Line(Bytes),
    /// A line over the limit. It is returned twice: when it exceeds the limit, and when it ends.
    Oversize(OversizeMessage),
}

/// A message over the size limit, as far as it has arrived. Its bytes are discarded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OversizeMessage {
    /// Its first bytes.
    pub head: Bytes,
    /// The limit that it exceeds, in bytes.
    pub limit: usize,
    /// Its end; `None` while it goes on.
    pub end: Option<OversizeEnd>,
}

impl OversizeMessage {
    /// Creates a message of which nothing was read.
    pub fn new(size: Option<u64>, limit: usize) -> Self {
        let end = size.map(|size| OversizeEnd { tail: Bytes::new(), size });
        Self { head: Bytes::new(), limit, end }
    }

    /// Returns how large it is, and the limit that the config key `key` sets. `subject` names the message.
    pub fn describe(&self, subject: &str, key: &str) -> String {
        let limit = format::format_size(self.limit);
        match &self.end {
            Some(end) => format!("{subject} has {} bytes, and `{key}` is {limit}", end.size),
            None => format!("{subject} is larger than `{key}`, {limit}"),
        }
    }

    /// Describes a request of a client to the gateway.
    pub fn describe_request(&self) -> String {
        self.describe("the request", "limits.body")
    }
}

/// The end of a message over the size limit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OversizeEnd {
    /// Its last bytes.
    pub tail: Bytes,
    /// Its size in bytes.
    pub size: u64,
}

/// The message over the size limit that is being discarded.
#[derive(Debug)]
pub(super) struct Discarded {
    head: Bytes,
    limit: usize,
    tail: Vec<u8>,
    size: u64,
}

impl Discarded {
    /// Starts with the bytes of the message that have arrived.
    pub(super) fn new(start: &[u8], limit: usize) -> Self {
        let head = Bytes::copy_from_slice(&start[..MAX_HEAD.min(start.len())]);
        let mut discarded = Self { head, limit, tail: Vec::new(), size: 0 };
        discarded.add(start);
        discarded
    }

    /// Adds bytes of the message.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        self.tail.extend_from_slice(&bytes[bytes.len().saturating_sub(MAX_TAIL)..]);
        self.tail.drain(..self.tail.len().saturating_sub(MAX_TAIL));
    }

    /// Removes a carriage return at the end, which belongs to the line ending.
    fn trim_cr(&mut self) {
        if self.tail.pop_if(|last| *last == b'\r').is_some() {
            self.size -= 1;
        }
    }

    /// Returns the message while it goes on.
    pub(super) fn begun(&self) -> OversizeMessage {
        OversizeMessage { head: self.head.clone(), limit: self.limit, end: None }
    }

    /// Returns the message at its end.
    pub(super) fn ended(self) -> OversizeMessage {
        let end = OversizeEnd { tail: self.tail.into(), size: self.size };
        OversizeMessage { head: self.head, limit: self.limit, end: Some(end) }
    }
}

/// Splits a stream of bytes into lines.
#[derive(Debug)]
pub struct FrameDecoder {
    buffer: BytesMut,
    /// Bytes of `buffer` already searched for a line end.
    searched: usize,
    limit: usize,
    /// The current line, if it is over the limit.
    discarded: Option<Discarded>,
}

impl FrameDecoder {
    /// Creates a decoder for lines of at most `limit` bytes, line ending excluded.
    pub fn new(limit: usize) -> Self {
        Self { buffer: BytesMut::new(), searched: 0, limit, discarded: None }
    }

    /// Sets the length limit of the lines that are not complete yet.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Returns the buffer for the next read; bytes appended to it are input. It grows with the current line, in steps that copy a
    /// long line about once.
    pub fn read_buffer(&mut self) -> &mut BytesMut {
        let length = self.buffer.len();
        if self.buffer.capacity() - length < (length / 2).clamp(8 << 10, 256 << 10) {
            self.buffer.reserve((3 * length).clamp(8 << 10, 1 << 20));
        }
        &mut self.buffer
    }

    /// Appends input.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns whether the current line is over the limit and being discarded.
    pub fn is_discarding(&self) -> bool {
        self.discarded.is_some()
    }

    /// Takes the bytes after the last line ending, at the end of the stream.
    pub fn take_remainder(&mut self) -> Option<Bytes> {
        self.searched = 0;
        let rest = trim_cr(&self.buffer.split().freeze());
        (self.discarded.take().is_none() && !rest.is_empty()).then_some(rest)
    }

    /// Returns the next frame, if one is complete.
    pub fn next_frame(&mut self) -> Option<Frame> {
        let Some(offset) = memchr::memchr(b'\n', &self.buffer[self.searched..]) else {
            return self.handle_incomplete_line();
        };
        let end = self.searched + offset;
        if self.discarded.is_none() && len_without_cr(&self.buffer[..end]) > self.limit {
            return Some(self.begin_discarding(end));
        }
        self.searched = 0;
        let frame = match self.discarded.take() {
            Some(mut discarded) => {
                let end_of_line = self.buffer.split_to(end + 1);
                discarded.add(&end_of_line[..end]);
                discarded.trim_cr();
                Frame::Oversize(discarded.ended())
            }
            None => Frame::Line(self.take_line(end)),
        };
        self.shrink_buffer();
        Some(frame)
    }

    /// Takes the line that ends at `end`, without its line ending.
    fn take_line(&mut self, end: usize) -> Bytes {
        let length = len_without_cr(&self.buffer[..end]);
        if end <= MAX_COPIED {
            let line = Bytes::copy_from_slice(&self.buffer[..length]);
            self.buffer.advance(end + 1);
            return line;
        }
        let mut line = self.buffer.split_to(end + 1).freeze();
        line.truncate(length);
        line
    }

    /// Waits for more input, unless the line is over the limit already. One byte over may be the carriage return of a
    /// line that just fits.
    fn handle_incomplete_line(&mut self) -> Option<Frame> {
        self.searched = self.buffer.len();
        if let Some(discarded) = &mut self.discarded {
            discarded.add(&self.buffer);
            self.buffer.clear();
            self.searched = 0;
            return None;
        }
        if self.buffer.len() <= self.limit + 1 {
            None
        } else {
            Some(self.begin_discarding(self.buffer.len()))
        }
    }

    /// Discards a line over the limit up to `end`.
    fn begin_discarding(&mut self, end: usize) -> Frame {
        let discarded = Discarded::new(&self.buffer.split_to(end), self.limit);
        self.searched = 0;
        let frame = Frame::Oversize(discarded.begun());
        self.discarded = Some(discarded);
        self.shrink_buffer();
        frame
    }

    /// Frees a large buffer once it is empty, so that one big message does not keep its memory.
    fn shrink_buffer(&mut self) {
        if self.buffer.is_empty() && self.buffer.capacity() > (256 << 10) {
            self.buffer = BytesMut::new();
        }
    }
}

fn trim_cr(line: &Bytes) -> Bytes {
    line.slice(..len_without_cr(line))
}

fn len_without_cr(line: &[u8]) -> usize {
    line.len() - usize::from(line.last() == Some(&b'\r'))
}

/// Replaces line breaks by spaces, which makes a message one line. In JSON, raw line breaks can only stand between
/// tokens.
pub fn replace_line_breaks(message: &mut [u8]) {
    let mut start = 0;
    while let Some(offset) = memchr::memchr2(b'\n', b'\r', &message[start..]) {
        message[start + offset] = b' ';
        start += offset + 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(frames: &mut FrameDecoder) -> Vec<Frame> {
        std::iter::from_fn(|| frames.next_frame()).collect()
    }

    fn line(text: &str) -> Frame {
        Frame::Line(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_end_with_lf_or_crlf() {
        let mut frames = FrameDecoder::new(100);
        frames.push(b"one\r\ntwo\n\n{\"x\":1}\nrest");
        assert_eq!(drain(&mut frames), [line("one"), line("two"), line(""), line("{\"x\":1}")]);
        assert_eq!(frames.take_remainder().unwrap(), "rest");
    }

    #[test]
    fn limit_is_inclusive() {
        for ending in ["\n", "\r\n"] {
            for (length, passes) in [(9, true), (10, true), (11, false), (50, false)] {
                let mut frames = FrameDecoder::new(10);
                frames.push(format!("{}{ending}after\n", "x".repeat(length)).as_bytes());
                let found = drain(&mut frames);
                assert_eq!(matches!(found[0], Frame::Line(_)), passes, "{length} {ending:?}");
                let size = if let Frame::Oversize(line) = &found[1] {
                    line.end.as_ref().map(|end| end.size)
                } else {
                    None
                };
                assert_eq!(size, (!passes).then_some(length as u64), "{length} {ending:?}");
                assert_eq!(found.last(), Some(&line("after")));
            }
        }
    }

    #[test]
    fn copied_and_shared_lines_are_equal() {
        for length in [MAX_COPIED - 2, MAX_COPIED - 1, MAX_COPIED, MAX_COPIED + 1, 3 * MAX_COPIED] {
            let text = "x".repeat(length);
            let mut frames = FrameDecoder::new(1 << 20);
            frames.push(format!("{text}\n{text}\r\nafter\nrest").as_bytes());
            assert_eq!(drain(&mut frames), [line(&text), line(&text), line("after")]);
            assert_eq!(frames.take_remainder().unwrap(), "rest");
        }
    }

    #[test]
    fn endless_line_is_reported_once_and_discarded() {
        let mut frames = FrameDecoder::new(1000);
        let mut reports = 0;
        for _ in 0..10_000 {
            frames.push(&[b'x'; 1000]);
            reports += drain(&mut frames).len();
            assert!(frames.buffer.len() <= 2001);
        }
        assert_eq!(reports, 1);
        assert!(frames.is_discarding());
        frames.push(b"the end\r\nnext\n");
        let found = drain(&mut frames);
        let Frame::Oversize(OversizeMessage { head, limit: 1000, end: Some(end) }) = &found[0] else {
            panic!("{found:?}")
        };
        assert_eq!((head.len() <= MAX_HEAD, end.size), (true, 10_000_007));
        assert!(end.tail.len() <= MAX_TAIL && end.tail.ends_with(b"xxthe end"));
        assert_eq!(found[1], line("next"));
    }

    #[test]
    fn pretty_printed_message_becomes_one_line() {
        let mut message = b"{\n  \"a\": \"x\\n\"\r\n}".to_vec();
        replace_line_breaks(&mut message);
        assert_eq!(message, b"{   \"a\": \"x\\n\"  }");
    }

    proptest! {
        #[test]
        fn frames_do_not_depend_on_input_chunks(
            text in prop::collection::vec(prop::sample::select(b"ab{}\r\n".to_vec()), 0..200),
            cuts in prop::collection::vec(1usize..20, 0..40),
        ) {
            let mut whole = FrameDecoder::new(12);
            whole.push(&text);
            let mut expected = drain(&mut whole);
            let mut pieces = FrameDecoder::new(12);
            let mut found = Vec::new();
            let mut rest = &text[..];
            for cut in cuts.into_iter().chain(std::iter::once(usize::MAX)) {
                let (chunk, later) = rest.split_at(cut.min(rest.len()));
                pieces.push(chunk);
                found.append(&mut drain(&mut pieces));
                rest = later;
            }
            // The length of a reported head depends on the chunks.
            for frame in expected.iter_mut().chain(&mut found) {
                if let Frame::Oversize(line) = frame { line.head.truncate(12); }
            }
            prop_assert_eq!(expected, found);
        }
    }
}
