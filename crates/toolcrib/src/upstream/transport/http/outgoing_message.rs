//! One message on its way to a remote server.

use bytes::Bytes;

use crate::protocol::era::client::{DISCOVER, INITIALIZE};
use crate::protocol::json::object::{Object, as_string};
use crate::upstream::transport::QueuedMessage;

/// Start of every message that the gateway writes, and of every request.
const MESSAGE_PREFIX: &[u8] = br#"{"jsonrpc":"2.0","#;
const REQUEST_PREFIX: &[u8] = br#"{"jsonrpc":"2.0","id":"#;

/// One message on its way to the server.
#[derive(Debug, Clone)]
pub(super) struct OutgoingMessage {
    /// The request it is, or the request that a notification cancels.
    pub(super) id: Option<u64>,
    /// Its method; empty for a response.
    pub(super) method: String,
    pub(super) body: Bytes,
    /// Offset of its parameters in the body.
    params_start: Option<usize>,
    is_request: bool,
}

impl OutgoingMessage {
    /// Parses the head of a message that the gateway has written. The method may come from a client and contain any
    /// character.
    pub(super) fn new(queued: QueuedMessage) -> Self {
        let mut body = Bytes::from(queued.line);
        body.truncate(body.trim_ascii_end().len());
        // A cancel notification carries the number of its request too, but has no `id`.
        let is_request = queued.id.is_some() && body.starts_with(REQUEST_PREFIX);
        let (method, params_start) = parse_head(&body).unwrap_or_default();
        Self { id: queued.id, method, body, params_start, is_request }
    }

    /// Creates a message without a pending request from a body that was sent before.
    pub(super) fn replay(body: Bytes) -> Self {
        Self::new(QueuedMessage { id: None, line: body.into() })
    }

    /// Returns the id if the message is a request.
    pub(super) fn request_id(&self) -> Option<u64> {
        self.id.filter(|_| self.is_request)
    }

    /// Returns whether the message belongs to the handshake.
    pub(super) fn is_handshake(&self) -> bool {
        self.method == DISCOVER || self.method == INITIALIZE
    }

    pub(super) fn params(&self) -> Option<Object> {
        let raw = self.body.slice(self.params_start?..self.body.len() - 1);
        Object::parse(&raw).ok()
    }
}

/// Returns the method of a message and the offset of its parameters.
fn parse_head(body: &[u8]) -> Option<(String, Option<usize>)> {
    let rest = match body.strip_prefix(REQUEST_PREFIX) {
        None => body.strip_prefix(MESSAGE_PREFIX)?,
        Some(id) => {
            let digits = id.iter().take_while(|byte| byte.is_ascii_digit()).count();
            id[digits..].strip_prefix(b",")?
        }
    };
    let name = rest.strip_prefix(br#""method":"#)?;
    let (method, rest) = name.split_at(find_string_end(name)?);
    let params_start = rest.strip_prefix(br#","params":"#).map(|params| body.len() - params.len());
    Some((as_string(method)?.into_owned(), params_start))
}

/// Returns the offset after the JSON string at the start of `text`.
fn find_string_end(text: &[u8]) -> Option<usize> {
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
    use crate::protocol::jsonrpc::{self as wire_message, RequestId, ResponsePayload};

    fn message(id: Option<u64>, line: Vec<u8>) -> OutgoingMessage {
        OutgoingMessage::new(QueuedMessage { id, line })
    }

    #[test]
    fn message_head_is_parsed_for_every_kind() {
        let mut line = Vec::new();
        wire_message::write_request_head(&mut line, 7, "tools/call");
        line.extend_from_slice(b"{\"name\":\"x\"}}\n");
        let request = message(Some(7), line);
        assert_eq!((request.request_id(), &*request.method), (Some(7), "tools/call"));
        assert_eq!(request.params().unwrap().get_string("name").unwrap(), "x");
        assert!(request.body.ends_with(b"}"));

        let cancelled = message(
            Some(7),
            wire_message::encode_notification("notifications/cancelled", Some(b"{\"requestId\":7}")),
        );
        assert_eq!((cancelled.request_id(), &*cancelled.method), (None, "notifications/cancelled"));

        for method in ["a\"b", "\\", "a\\\\\"", "tab\tnul\0", "wörk\u{9b}", ""] {
            let mut line = Vec::new();
            wire_message::write_request_head(&mut line, 8, method);
            line.extend_from_slice(b"{\"name\":\"x\"}}\n");
            let unusual = message(Some(8), line);
            assert_eq!((unusual.request_id(), &*unusual.method), (Some(8), method));
            assert_eq!(unusual.params().unwrap().get_string("name").unwrap(), "x");
        }

        let id = RequestId::parse(Bytes::from_static(br#""a\",\"method\":\"b""#)).unwrap();
        let reply = message(
            None,
            wire_message::encode_response(&id, &ResponsePayload::Result(Bytes::from_static(b"{}"))),
        );
        assert_eq!((reply.request_id(), &*reply.method), (None, ""));
    }
}
