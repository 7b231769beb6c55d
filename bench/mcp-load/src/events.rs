//! Server-sent events, to the extent that MCP uses them.

use anyhow::{Result, bail};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;

/// One event.
pub(crate) struct Event {
    raw: Bytes,
}

impl Event {
    pub(crate) fn is_of_type(&self, kind: &str) -> bool {
        self.lines().any(|line| field(line, b"event:") == Some(kind.as_bytes()))
    }

    pub(crate) fn data(&self) -> Bytes {
        let mut data = BytesMut::new();
        for value in self.lines().filter_map(|line| field(line, b"data:")) {
            if !data.is_empty() {
                data.extend_from_slice(b"\n");
            }
            data.extend_from_slice(value);
        }
        data.freeze()
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.raw.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line))
    }
}

fn field<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = line.strip_prefix(name)?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}

/// Splits a byte stream into events.
#[derive(Default)]
pub(crate) struct Events {
    buffer: BytesMut,
    /// Length of the buffer's prefix without an end of an event.
    scanned: usize,
}

impl Events {
    /// Reads the next event of `incoming`.
    pub(crate) async fn next(&mut self, incoming: &mut Incoming) -> Result<Event> {
        loop {
            if let Some(event) = self.take_event() {
                return Ok(event);
            }
            match incoming.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                None => bail!("the event stream ended"),
            }
        }
    }

    fn take_event(&mut self) -> Option<Event> {
        match event_end(&self.buffer, self.scanned) {
            Some((end, next)) => {
                let mut event = self.buffer.split_to(next);
                event.truncate(end);
                self.scanned = 0;
                Some(Event { raw: event.freeze() })
            }
            None => {
                // The end, at most three bytes long, may be split.
                self.scanned = self.buffer.len().saturating_sub(3);
                None
            }
        }
    }
}

/// Returns the end of the first event at or after `from`, and the start of the next one.
fn event_end(buffer: &[u8], from: usize) -> Option<(usize, usize)> {
    for offset in memchr::memchr_iter(b'\n', &buffer[from..]) {
        let newline = from + offset;
        match &buffer[newline + 1..] {
            [b'\n', ..] => return Some((newline, newline + 2)),
            [b'\r', b'\n', ..] => return Some((newline, newline + 3)),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_all(chunks: &[&[u8]]) -> Vec<(bool, Bytes)> {
        let mut events = Events::default();
        let mut found = Vec::new();
        for chunk in chunks {
            events.buffer.extend_from_slice(chunk);
            while let Some(event) = events.take_event() {
                found.push((event.is_of_type("message"), event.data()));
            }
        }
        found
    }

    const STREAM: &[u8] = b"event: message\r\ndata: {\"a\":1}\r\n\r\nid: 4\ndata: x\ndata: y\n\ndata: rest\n";

    #[test]
    fn events_end_with_either_line_ending() {
        let found = split_all(&[STREAM]);
        assert_eq!(found, [(true, Bytes::from_static(b"{\"a\":1}")), (false, Bytes::from_static(b"x\ny"))]);
    }

    #[test]
    fn chunk_size_does_not_change_the_events() {
        for size in 1..8 {
            let chunks: Vec<&[u8]> = STREAM.chunks(size).collect();
            assert_eq!(split_all(&chunks), split_all(&[STREAM]), "chunks of {size}");
        }
    }
}
