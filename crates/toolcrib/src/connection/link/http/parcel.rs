//! `Parcel`: one message on its way to a remote server, and what has to be known of it.

use bytes::Bytes;

use super::super::Outgoing;
use crate::wire::dialect::client::{DISCOVER, HELLO};
use crate::wire::object::Object;

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
    /// Reads what we wrote ourselves a moment ago, so only the beginning has to be looked at.
    pub(super) fn new(outgoing: Outgoing) -> Self {
        let mut body = Bytes::from(outgoing.line);
        body.truncate(body.trim_ascii_end().len());
        let head = head(&body);
        let asks = head.as_ref().is_some_and(|head| head.asks);
        let params = head.as_ref().and_then(|head| head.params);
        let method = head.map(|head| head.method).unwrap_or_default();
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

struct Head {
    method: String,
    params: Option<usize>,
    asks: bool,
}

fn head(body: &[u8]) -> Option<Head> {
    let mut rest = body.strip_prefix(br#"{"jsonrpc":"2.0","#)?;
    let asks = match rest.strip_prefix(br#""id":"#) {
        None => false,
        Some(id) => {
            let digits = id.iter().take_while(|byte| byte.is_ascii_digit()).count();
            rest = id[digits..].strip_prefix(b",")?;
            true
        }
    };
    let name = rest.strip_prefix(br#""method":""#)?;
    let end = memchr::memchr2(b'"', b'\\', name).filter(|end| name[*end] == b'"')?;
    let method = std::str::from_utf8(&name[..end]).ok()?.to_owned();
    let params = name[end + 1..].strip_prefix(br#","params":"#).map(|params| body.len() - params.len());
    Some(Head { method, params, asks })
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

        let id = Id::read(Bytes::from_static(br#""a\",\"method\":\"b""#)).unwrap();
        let reply = parcel(None, message::reply(&id, &Answer::Result(Bytes::from_static(b"{}"))));
        assert_eq!((reply.awaited(), &*reply.method), (None, ""));
    }
}
