//! `Parcel`: one message on its way to a remote server, and what has to be known of it.

use bytes::Bytes;

use super::super::Outgoing;
use crate::wire::dialect::client::{DISCOVER, HELLO};
use crate::wire::object::{Object, as_string};

/// How everything begins that we write, and how a request does.
const MESSAGE: &[u8] = br#"{"jsonrpc":"2.0","#;
const REQUEST: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

/// One message on its way out.
#[derive(Debug, Clone)]
pub(super) struct Parcel {
    /// The request that waits for an answer, or that a notification takes back.
    pub(super) id: Option<u64>,
    /// Its method; empty for an answer of ours.
    pub(super) method: String,
    pub(super) body: Bytes,
    /// Where its parameters begin.
    params: Option<usize>,
    asks: bool,
}

impl Parcel {
    /// Reads what we wrote ourselves a moment ago, so only the beginning has to be looked at. The method may be a
    /// client's, with anything in it.
    pub(super) fn new(outgoing: Outgoing) -> Self {
        let mut body = Bytes::from(outgoing.line);
        body.truncate(body.trim_ascii_end().len());
        // A notification that takes a request back has its number too, and no `id`.
        let asks = outgoing.id.is_some() && body.starts_with(REQUEST);
        let (method, params) = head(&body).unwrap_or_default();
        Self { id: outgoing.id, method, body, params, asks }
    }

    /// Words that were said before, to somebody who has forgotten them.
    pub(super) fn again(body: Bytes) -> Self {
        Self::new(Outgoing { id: None, line: body.into() })
    }

    /// The request whose answer is waited for.
    pub(super) fn awaited(&self) -> Option<u64> {
        self.id.filter(|_| self.asks)
    }

    /// Whether it is one of the first words, before a server is known to be one.
    pub(super) fn opens(&self) -> bool {
        self.method == DISCOVER || self.method == HELLO
    }

    pub(super) fn params(&self) -> Option<Object> {
        let raw = self.body.slice(self.params?..self.body.len() - 1);
        Object::parse(&raw).ok()
    }
}

/// The method of a message, and where its parameters begin.
fn head(body: &[u8]) -> Option<(String, Option<usize>)> {
    let rest = match body.strip_prefix(REQUEST) {
        None => body.strip_prefix(MESSAGE)?,
        Some(id) => {
            let digits = id.iter().take_while(|byte| byte.is_ascii_digit()).count();
            id[digits..].strip_prefix(b",")?
        }
    };
    let name = rest.strip_prefix(br#""method":"#)?;
    let (method, rest) = name.split_at(string_end(name)?);
    let params = rest.strip_prefix(br#","params":"#).map(|params| body.len() - params.len());
    Some((as_string(method)?.into_owned(), params))
}

/// Where the string ends that begins here.
fn string_end(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', text.get(at..)?)?;
        if text[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::message::{self, Answer, Id};

    fn parcel(id: Option<u64>, line: Vec<u8>) -> Parcel {
        Parcel::new(Outgoing { id, line })
    }

    #[test]
    fn what_we_write_is_known_by_its_beginning() {
        let mut line = Vec::new();
        message::write_request_head(&mut line, 7, "tools/call");
        line.extend_from_slice(b"{\"name\":\"x\"}}\n");
        let request = parcel(Some(7), line);
        assert_eq!((request.awaited(), &*request.method), (Some(7), "tools/call"));
        assert_eq!(request.params().unwrap().string("name").unwrap(), "x");
        assert!(request.body.ends_with(b"}"));

        let note =
            parcel(Some(7), message::notification("notifications/cancelled", Some(b"{\"requestId\":7}")));
        assert_eq!((note.awaited(), &*note.method), (None, "notifications/cancelled"));

        for method in ["a\"b", "\\", "a\\\\\"", "tab\tnul\0", "wörk\u{9b}", ""] {
            let mut line = Vec::new();
            message::write_request_head(&mut line, 8, method);
            line.extend_from_slice(b"{\"name\":\"x\"}}\n");
            let odd = parcel(Some(8), line);
            assert_eq!((odd.awaited(), &*odd.method), (Some(8), method));
            assert_eq!(odd.params().unwrap().string("name").unwrap(), "x");
        }

        let id = Id::read(Bytes::from_static(br#""a\",\"method\":\"b""#)).unwrap();
        let reply = parcel(None, message::reply(&id, &Answer::Result(Bytes::from_static(b"{}"))));
        assert_eq!((reply.awaited(), &*reply.method), (None, ""));
    }
}
