//! Identifies messages over the size limit by their first and last bytes.

use bytes::Bytes;

use super::{RequestId, ServerMessage};
use crate::protocol::json::object::as_integer;
use crate::protocol::json::scan::{ScanError, Scanner};

/// The reason given for a response over the limit.
const TOO_LARGE: &str = "it is larger than `limits.message`";

impl ServerMessage {
    /// Classifies a message over the limit by its first bytes. Returns `None` if they contain neither its id nor a
    /// method.
    pub fn from_oversize_head(head: &[u8]) -> Option<Self> {
        let mut message = None;
        // The head is cut off; the complete members before the cut count.
        let _: Result<(), ScanError> = Scanner::new(head).scan_object(|name, value| {
            match &head[name.range] {
                b"\"method\"" => message = Some(Self::Garbage),
                b"\"id\"" if message.is_none() && value.end < head.len() => {
                    message = as_integer(&head[value]).map(Self::too_large);
                }
                _ => {}
            }
            Ok(())
        });
        message
    }

    /// Classifies a message over the limit by its last bytes, because many servers write the id last.
    pub fn from_oversize_tail(tail: &[u8]) -> Self {
        let id = memchr::memmem::rfind(tail, b"\"id\"").and_then(|offset| {
            let rest = tail[offset + 4..].trim_ascii_start().strip_prefix(b":")?.trim_ascii();
            let rest = rest.strip_suffix(b"}")?.trim_ascii_end();
            as_integer(rest.strip_suffix(b",\"jsonrpc\":\"2.0\"").unwrap_or(rest).trim_ascii())
        });
        id.map_or(Self::BadResponse { ids: Vec::new(), reason: TOO_LARGE.to_owned() }, Self::too_large)
    }

    fn too_large(id: u64) -> Self {
        Self::BadResponse { ids: vec![id], reason: TOO_LARGE.to_owned() }
    }
}

/// Finds the id of a request in its first bytes. Ids inside its parameters do not count.
pub fn find_request_id(head: &[u8]) -> Option<RequestId> {
    let mut id = None;
    // The head is cut off; the complete members before the cut count.
    let _: Result<(), ScanError> = Scanner::new(head).scan_object(|name, value| {
        if &head[name.range] == b"\"id\"" && value.end < head.len() {
            id = RequestId::parse(Bytes::copy_from_slice(&head[value]));
        }
        Ok(())
    });
    id
}
