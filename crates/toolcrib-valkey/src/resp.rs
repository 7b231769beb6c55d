//! The protocol of Valkey and Redis, version 3: commands are written, replies and pushed messages are parsed.

use std::fmt;

use bytes::{BufMut as _, Bytes, BytesMut};

/// The largest text in a reply. Larger ones end the connection.
const MAX_TEXT: usize = 128 * 1024 * 1024;
/// The largest number of members of an array in a reply.
const MAX_MEMBERS: usize = 10_000_000;
/// How deep arrays in a reply may be nested.
const MAX_DEPTH: usize = 8;

/// A reply of the server, or a message that it pushed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Null,
    Text(Bytes),
    Integer(i64),
    Array(Vec<Self>),
    /// A message that is not a reply, such as a published notice.
    Push(Vec<Self>),
    /// An error of one command, as the server words it.
    Error(String),
}

/// Bytes that are not this protocol.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ProtocolError(&'static str);

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a reply of Valkey or Redis: {}", self.0)
    }
}

/// Appends a command to `output`.
pub(crate) fn write_command(output: &mut BytesMut, parts: &[Bytes]) {
    output.put_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        output.put_slice(format!("${}\r\n", part.len()).as_bytes());
        output.put_slice(part);
        output.put_slice(b"\r\n");
    }
}

/// Removes the first complete value from `buffer`. Returns `None` if there is none yet.
pub(crate) fn read_value(buffer: &mut BytesMut) -> Result<Option<Reply>, ProtocolError> {
    let mut scanner = ReplyScanner { bytes: buffer, position: 0 };
    if scanner.skip_value(0)?.is_none() {
        return Ok(None);
    }
    let length = scanner.position;
    let mut bytes = buffer.split_to(length).freeze();
    Ok(build_value(&mut bytes))
}

/// Finds the end of a value without copying anything.
struct ReplyScanner<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl ReplyScanner<'_> {
    /// Skips a line. Returns it without its end.
    fn skip_line(&mut self) -> Option<&[u8]> {
        let rest = &self.bytes[self.position..];
        let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
        self.position += end + 2;
        Some(&rest[..end])
    }

    /// Skips a value. Returns `None` if its end has not arrived yet.
    fn skip_value(&mut self, depth: usize) -> Result<Option<()>, ProtocolError> {
        if depth > MAX_DEPTH {
            return Err(ProtocolError("too deeply nested"));
        }
        let Some(line) = self.skip_line() else { return Ok(None) };
        let [kind, head @ ..] = line else { return Err(ProtocolError("an empty line")) };
        let kind = *kind;
        let members = match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => return Ok(Some(())),
            b'$' | b'=' | b'!' => match parse_length(head, MAX_TEXT)? {
                None => return Ok(Some(())),
                Some(length) => {
                    self.position += length + 2;
                    return Ok((self.position <= self.bytes.len()).then_some(()));
                }
            },
            b'*' | b'~' | b'>' => parse_length(head, MAX_MEMBERS)?.unwrap_or(0),
            b'%' => parse_length(head, MAX_MEMBERS)?.unwrap_or(0) * 2,
            _ => return Err(ProtocolError("an unknown kind of reply")),
        };
        for _ in 0..members {
            if self.skip_value(depth + 1)?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }
}

/// Parses a length. A negative one is that of a missing value.
fn parse_length(digits: &[u8], max: usize) -> Result<Option<usize>, ProtocolError> {
    let text = std::str::from_utf8(digits).map_err(|_| ProtocolError("a bad length"))?;
    match text.parse::<i64>().map_err(|_| ProtocolError("a bad length"))? {
        ..0 => Ok(None),
        length => match usize::try_from(length) {
            Ok(length) if length <= max => Ok(Some(length)),
            _ => Err(ProtocolError("a reply that is too large")),
        },
    }
}

/// Takes one line off the front, without its end.
fn take_line(bytes: &mut Bytes) -> Option<Bytes> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let line = bytes.split_to(end);
    let _ = bytes.split_to(2);
    Some(line)
}

/// Builds the value at the front of `bytes`, which the scanner has found to be complete.
fn build_value(bytes: &mut Bytes) -> Option<Reply> {
    let mut head = take_line(bytes)?;
    let kind = head.split_to(1);
    let length = || parse_length(&head, usize::MAX).ok().flatten();
    Some(match kind[0] {
        b'-' => Reply::Error(to_text(&head)),
        b':' => Reply::Integer(to_text(&head).parse().ok()?),
        b'#' => Reply::Integer(i64::from(*head == *b"t")),
        b'_' => Reply::Null,
        b'$' | b'=' | b'!' => match length() {
            None => Reply::Null,
            Some(length) => {
                let text = bytes.split_to(length);
                let _ = bytes.split_to(2);
                if kind[0] == b'!' { Reply::Error(to_text(&text)) } else { Reply::Text(text) }
            }
        },
        b'*' | b'~' => match length() {
            None => Reply::Null,
            Some(members) => Reply::Array(build_members(bytes, members)?),
        },
        b'>' => Reply::Push(build_members(bytes, length()?)?),
        b'%' => Reply::Array(build_members(bytes, length()? * 2)?),
        _ => Reply::Text(head),
    })
}

fn build_members(bytes: &mut Bytes, count: usize) -> Option<Vec<Reply>> {
    (0..count).map(|_| build_value(bytes)).collect()
}

fn to_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<Reply>, ProtocolError> {
        read_value(&mut BytesMut::from(bytes))
    }

    fn text(text: &'static str) -> Reply {
        Reply::Text(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn every_kind_of_reply_is_parsed() {
        let nested = b"*4\r\n$2\r\na\n\r\n:-7\r\n_\r\n%1\r\n+k\r\n#t\r\n";
        let map = Reply::Array(vec![text("k"), Reply::Integer(1)]);
        let expected = Reply::Array(vec![text("a\n"), Reply::Integer(-7), Reply::Null, map]);
        assert_eq!(read(nested), Ok(Some(expected)));
        assert_eq!(read(b"$-1\r\n"), Ok(Some(Reply::Null)));
        assert_eq!(read(b"*-1\r\n"), Ok(Some(Reply::Null)));
        assert_eq!(read(b",1.5\r\n"), Ok(Some(text("1.5"))));
        assert_eq!(read(b"-ERR no\r\n"), Ok(Some(Reply::Error("ERR no".to_owned()))));
        assert_eq!(read(b"!6\r\nERR no\r\n"), Ok(Some(Reply::Error("ERR no".to_owned()))));
        assert_eq!(
            read(b">2\r\n+message\r\n:1\r\n"),
            Ok(Some(Reply::Push(vec![text("message"), Reply::Integer(1)])))
        );
    }

    #[test]
    fn bytes_of_another_protocol_are_refused() {
        for bytes in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"\r\n", b"$x\r\n", b"$99999999999\r\n"] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        let deep = b"*1\r\n".repeat(MAX_DEPTH + 2);
        assert!(read(&deep).is_err());
    }

    fn values() -> impl Strategy<Value = Reply> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Reply::Integer),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Reply::Text(bytes.into())),
            Just(Reply::Null),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| prop::collection::vec(inner, 0..5).prop_map(Reply::Array))
    }

    fn write(value: &Reply, output: &mut Vec<u8>) {
        match value {
            Reply::Null => output.extend_from_slice(b"_\r\n"),
            Reply::Integer(number) => output.extend_from_slice(format!(":{number}\r\n").as_bytes()),
            Reply::Text(bytes) => {
                output.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
                output.extend_from_slice(bytes);
                output.extend_from_slice(b"\r\n");
            }
            Reply::Array(members) | Reply::Push(members) => {
                output.extend_from_slice(format!("*{}\r\n", members.len()).as_bytes());
                members.iter().for_each(|member| write(member, output));
            }
            Reply::Error(message) => output.extend_from_slice(format!("-{message}\r\n").as_bytes()),
        }
    }

    proptest! {
        #[test]
        fn value_is_complete_exactly_at_its_last_byte(value in values()) {
            let mut bytes = Vec::new();
            write(&value, &mut bytes);
            for end in 0..bytes.len() {
                prop_assert_eq!(read(&bytes[..end]), Ok(None));
            }
            bytes.extend_from_slice(b"+next\r\n");
            let mut buffer = BytesMut::from(&*bytes);
            prop_assert_eq!(read_value(&mut buffer), Ok(Some(value)));
            prop_assert_eq!(&buffer[..], b"+next\r\n");
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
