//! Reads and writes server-sent events, with a limit on the size of an event.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::protocol::framing::{Discarded, OversizeMessage};

/// Shortest reconnection delay that a stream can set.
const MIN_RETRY: Duration = Duration::from_millis(100);
/// Longest reconnection delay that a stream can set.
const MAX_RETRY: Duration = Duration::from_secs(60);

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SseEvent {
    /// Its type; `message` if the stream gives none.
    pub name: String,
    /// Its data, lines joined with a line feed.
    pub data: Bytes,
    /// The last event id the stream has set, if any.
    pub id: Option<String>,
}

/// Longest name of a field, with the characters up to its value.
const MAX_FIELD_NAME: usize = 64;

/// The rest of a line whose start was processed because the line is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineRest {
    /// It belongs to the data of an event over the limit.
    Data,
    /// It is ignored.
    Ignored,
}

/// Splits a stream of bytes into events as the specification says, with all three line endings, comments and an initial
/// byte order mark.
#[derive(Debug)]
pub struct SseDecoder {
    buffer: BytesMut,
    /// Bytes of `buffer` already searched for a line end.
    searched: usize,
    limit: usize,
    /// Whether the place of the byte order mark has been passed.
    started: bool,
    /// Whether the last line ended with a carriage return; a line feed that follows belongs to it.
    after_cr: bool,
    name: String,
    data: BytesMut,
    has_data: bool,
    /// The current event, if it is over the limit.
    discarded: Option<Discarded>,
    /// Set while the start of the current line has been processed.
    line_rest: Option<LineRest>,
    id: Option<String>,
    /// The id at the end of the last complete event.
    last_id: Option<String>,
    retry: Option<Duration>,
}

impl SseDecoder {
    /// Creates a decoder for events of at most `limit` bytes of data.
    pub fn new(limit: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            searched: 0,
            limit,
            started: false,
            after_cr: false,
            name: String::new(),
            data: BytesMut::new(),
            has_data: false,
            discarded: None,
            line_rest: None,
            id: None,
            last_id: None,
            retry: None,
        }
    }

    /// Returns the id of the last complete event, with data or without.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Returns the delay before reconnecting that the stream asks for.
    pub fn retry_delay(&self) -> Option<Duration> {
        self.retry
    }

    /// Appends input.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next event, if one is complete.
    ///
    /// # Errors
    /// An event over the limit is discarded and returned twice as an error: when it exceeds the limit, and when it ends. The events
    /// behind it can be read.
    pub fn next_event(&mut self) -> Result<Option<SseEvent>, OversizeMessage> {
        while let Some(line) = self.next_line() {
            if self.line_rest.is_some() || line.len() > self.max_line() {
                let processed = self.process_long_line(&line);
                self.line_rest = None;
                processed?;
            } else if !line.is_empty() {
                self.process_field(&line);
                self.check_limit()?;
            } else if let Some(discarded) = self.discarded.take() {
                self.has_data = false;
                self.dispatch();
                return Err(discarded.ended());
            } else if let Some(event) = self.dispatch() {
                return Ok(Some(event));
            }
        }
        // A long line is not kept until its end.
        let kept = if self.line_rest.is_some() { 0 } else { self.max_line() };
        if self.buffer.len() > kept {
            let part = self.buffer.split();
            self.searched = 0;
            self.process_long_line(&part)?;
        }
        Ok(None)
    }

    /// Returns the length of the longest line that can be part of an event.
    fn max_line(&self) -> usize {
        self.limit.saturating_add(MAX_FIELD_NAME)
    }

    /// Processes a part of a line that is too long.
    fn process_long_line(&mut self, part: &[u8]) -> Result<(), OversizeMessage> {
        match (self.line_rest, &mut self.discarded) {
            (Some(LineRest::Data), Some(discarded)) => discarded.add(part),
            (Some(_), _) => {}
            (None, _) if part.starts_with(b"data:") => {
                self.line_rest = Some(LineRest::Data);
                self.process_field(part);
            }
            (None, _) => self.line_rest = Some(LineRest::Ignored),
        }
        self.check_limit()
    }

    /// Discards the current event if it is over the limit.
    fn check_limit(&mut self) -> Result<(), OversizeMessage> {
        if self.data.len() <= self.limit {
            return Ok(());
        }
        let discarded = self.discarded.insert(Discarded::new(&self.data.split(), self.limit));
        Err(discarded.begun())
    }

    fn next_line(&mut self) -> Option<Bytes> {
        if !self.started {
            if self.buffer.len() < 3 && b"\xef\xbb\xbf".starts_with(&self.buffer) {
                return None;
            }
            if self.buffer.starts_with(b"\xef\xbb\xbf") {
                let _ = self.buffer.split_to(3);
            }
            self.started = true;
        }
        if self.after_cr && !self.buffer.is_empty() {
            if self.buffer[0] == b'\n' {
                let _ = self.buffer.split_to(1);
            }
            self.after_cr = false;
        }
        let Some(offset) = memchr::memchr2(b'\n', b'\r', &self.buffer[self.searched..]) else {
            self.searched = self.buffer.len();
            return None;
        };
        let end = std::mem::take(&mut self.searched) + offset;
        let line = self.buffer.split_to(end + 1).freeze();
        self.after_cr = line[end] == b'\r';
        Some(line.slice(..end))
    }

    fn process_field(&mut self, line: &[u8]) {
        let colon = memchr::memchr(b':', line);
        let (field, value) = match colon {
            Some(colon) => {
                (&line[..colon], line[colon + 1..].strip_prefix(b" ").unwrap_or(&line[colon + 1..]))
            }
            None => (line, &b""[..]),
        };
        match field {
            b"data" => match &mut self.discarded {
                Some(discarded) => {
                    discarded.add(b"\n");
                    discarded.add(value);
                }
                None => {
                    if self.has_data {
                        self.data.extend_from_slice(b"\n");
                    }
                    self.has_data = true;
                    self.data.extend_from_slice(value);
                }
            },
            b"event" => self.name = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => self.id = Some(String::from_utf8_lossy(value).into_owned()),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let millis = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                self.retry =
                    Some(Duration::from_millis(millis.unwrap_or(u64::MAX)).clamp(MIN_RETRY, MAX_RETRY));
            }
            _ => {}
        }
    }

    fn dispatch(&mut self) -> Option<SseEvent> {
        self.last_id.clone_from(&self.id);
        let name = std::mem::take(&mut self.name);
        if !std::mem::take(&mut self.has_data) {
            return None;
        }
        let name = if name.is_empty() { "message".to_owned() } else { name };
        Some(SseEvent { name, data: self.data.split().freeze(), id: self.id.clone() })
    }
}

/// Appends `data` as one event. Line feeds are kept. Carriage returns, which the format cannot carry, become spaces; in
/// JSON they can only stand between tokens.
pub fn write_event(out: &mut Vec<u8>, data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        out.extend_from_slice(b"data: ");
        out.extend(line.iter().map(|byte| if *byte == b'\r' { b' ' } else { *byte }));
        out.push(b'\n');
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn events(text: &[u8]) -> Vec<(String, String)> {
        let mut events = SseDecoder::new(1 << 20);
        events.push(text);
        let mut found = Vec::new();
        while let Some(event) = events.next_event().unwrap() {
            found.push((event.name, String::from_utf8(event.data.to_vec()).unwrap()));
        }
        found
    }

    #[test]
    fn decoder_follows_the_specification() {
        let message = |data: &str| ("message".to_owned(), data.to_owned());
        assert_eq!(
            events(b"data: a\n\ndata:b\r\n\r\ndata: c\r\rdata"),
            [message("a"), message("b"), message("c")]
        );
        assert_eq!(events(b"\xef\xbb\xbf: comment\ndata: x\ndata: y\nretry: 5\n\n"), [message("x\ny")]);
        assert_eq!(events(b"event: ping\n\nevent: e\ndata\n\n"), [("e".to_owned(), String::new())]);
        assert_eq!(events(b"data:  two blanks\n\n"), [message(" two blanks")]);
    }

    #[test]
    fn ids_persist_and_reject_nul() {
        let mut stream = SseDecoder::new(100);
        stream.push(b"id: 7\ndata: a\n\nid: \0\ndata: b\n\n");
        assert_eq!(stream.next_event().unwrap().unwrap().id.as_deref(), Some("7"));
        assert_eq!(stream.next_event().unwrap().unwrap().id.as_deref(), Some("7"));
        stream.push(b"id: 8\nretry: 250\nretry: soon\n\n");
        assert_eq!(stream.next_event(), Ok(None));
        stream.push(b"id: 9\ndata: ha");
        assert_eq!(stream.next_event(), Ok(None));
        assert_eq!(
            (stream.last_event_id(), stream.retry_delay()),
            (Some("8"), Some(Duration::from_millis(250)))
        );
    }

    #[test]
    fn retry_delay_is_clamped() {
        for (written, millis) in
            [("0", 100), ("5", 100), ("250", 250), ("60001", 60_000), (&*"9".repeat(40), 60_000)]
        {
            let mut stream = SseDecoder::new(100);
            stream.push(format!("retry: {written}\n\n").as_bytes());
            assert_eq!(stream.next_event(), Ok(None));
            assert_eq!(stream.retry_delay(), Some(Duration::from_millis(millis)), "{written}");
        }
    }

    #[test]
    fn line_is_searched_once_across_chunks() {
        let mut stream = SseDecoder::new(1 << 20);
        stream.push(b"\xef\xbb\xbfdata: ");
        for _ in 0..100 {
            stream.push(&[b'x'; 100]);
            assert_eq!(stream.next_event(), Ok(None));
            assert_eq!(stream.searched, stream.buffer.len());
        }
        stream.push(b"\r");
        assert_eq!(stream.next_event(), Ok(None));
        stream.push(b"\n\r\ndata: y\n\n");
        assert_eq!(stream.next_event().unwrap().unwrap().data.len(), 10_000);
        assert_eq!(stream.next_event().unwrap().unwrap().data, "y");
    }

    #[test]
    fn event_over_the_limit_is_discarded() {
        let lines = [b"data: ".as_slice(), &[b'x'; 500], b"\n\n"].concat();
        let many_lines = b"data: 0123456789\n".repeat(20);
        let long_comment = [b":".as_slice(), &[b'x'; 500], b"\n"].concat();
        let text = [&lines, &*many_lines, &long_comment, b"\ndata: next\n\n"].concat();
        for step in [1, 7, 300, text.len()] {
            let mut stream = SseDecoder::new(100);
            let mut found = Vec::new();
            for chunk in text.chunks(step) {
                stream.push(chunk);
                loop {
                    match stream.next_event() {
                        Ok(None) => break,
                        Ok(Some(event)) => found.push(Ok(event.data)),
                        Err(oversize) => found.push(Err(oversize.end.map(|end| end.size))),
                    }
                }
                assert!(stream.buffer.len() + stream.data.len() <= 2 * (100 + MAX_FIELD_NAME), "{step}");
            }
            let expected = [Err(None), Err(Some(500)), Err(None), Err(Some(219)), Ok("next".into())];
            assert_eq!(found, expected, "{step}");
        }
    }

    proptest! {
        #[test]
        fn events_round_trip(lines in prop::collection::vec("[^\r\n]{0,30}", 1..5), cut in 0usize..200) {
            let data = lines.join("\n");
            let mut text = Vec::new();
            write_event(&mut text, data.as_bytes());
            let mut stream = SseDecoder::new(1 << 16);
            let (chunk, later) = text.split_at(cut.min(text.len()));
            stream.push(chunk);
            let early = stream.next_event().unwrap();
            stream.push(later);
            let event = match early { Some(event) => event, None => stream.next_event().unwrap().unwrap() };
            prop_assert_eq!(event.data, data.as_bytes());
        }

        #[test]
        fn events_do_not_depend_on_input_chunks(
            text in prop::collection::vec(prop::sample::select(b"data: x\r\n\n".to_vec()), 0..200),
            cuts in prop::collection::vec(1usize..20, 0..40),
        ) {
            let text = [b"data: a\n".as_slice(), &text].concat();
            let mut pieces = SseDecoder::new(1 << 16);
            let mut found = Vec::new();
            let mut rest = &text[..];
            for cut in cuts.into_iter().chain(std::iter::once(usize::MAX)) {
                let (chunk, later) = rest.split_at(cut.min(rest.len()));
                pieces.push(chunk);
                while let Some(event) = pieces.next_event().unwrap() {
                    found.push((event.name, String::from_utf8(event.data.to_vec()).unwrap()));
                }
                rest = later;
            }
            prop_assert_eq!(events(&text), found);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut stream = SseDecoder::new(64);
            stream.push(&bytes);
            while let Ok(Some(_)) = stream.next_event() {}
        }
    }
}
