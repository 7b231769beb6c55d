//! Identifies messages over the size limit by their first and last bytes.

use bytes::Bytes;

use super::RequestId;
use crate::protocol::framing::OversizeMessage;
use crate::protocol::json::object::as_integer;
use crate::protocol::json::scan::{ScanError, Scanner};

/// The meaning of a message of a server over the size limit, as far as its first and last bytes show it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OversizeKind {
    /// A response to this request of ours.
    Response(u64),
    /// A request of the server with this id.
    Request(RequestId),
    /// A notification of the server, or a request whose id is not known.
    Notification,
    /// A message of which neither the method nor the id is known, which may be a response.
    Unidentified,
    /// Not a message.
    Garbage,
}

impl OversizeMessage {
    /// Returns what the message is. Many servers write the id of a response last, so that it is known at the end.
    pub fn kind(&self) -> OversizeKind {
        match (OversizeKind::from_head(&self.head), &self.end) {
            (OversizeKind::Unidentified, Some(end)) => {
                find_last_id(&end.tail).map_or(OversizeKind::Unidentified, OversizeKind::Response)
            }
            (kind, _) => kind,
        }
    }
}

impl OversizeKind {
    /// Classifies a message by its first bytes.
    fn from_head(head: &[u8]) -> Self {
        match head.trim_ascii_start().first() {
            Some(b'{') => {}
            // Servers of 2025-03-26 may send a batch of responses.
            Some(b'[') => return Self::Unidentified,
            _ => return Self::Garbage,
        }
        match scan_head(head) {
            HeadMembers { has_method: true, id } => {
                let id = id.and_then(|raw| RequestId::parse(Bytes::copy_from_slice(raw)));
                id.map_or(Self::Notification, Self::Request)
            }
            HeadMembers { id, .. } => id.and_then(as_integer).map_or(Self::Unidentified, Self::Response),
        }
    }
}

/// The members of a message that its first bytes show.
struct HeadMembers<'a> {
    has_method: bool,
    id: Option<&'a [u8]>,
}

/// Finds the members of a message in its first bytes. Members inside other values do not count.
fn scan_head(head: &[u8]) -> HeadMembers<'_> {
    let mut members = HeadMembers { has_method: false, id: None };
    // The head is cut off; the complete members before the cut count.
    let _: Result<(), ScanError> = Scanner::new(head).scan_object(|name, value| {
        match &head[name.range] {
            b"\"method\"" => members.has_method = true,
            b"\"id\"" if value.end < head.len() => members.id = Some(&head[value]),
            _ => {}
        }
        Ok(())
    });
    members
}

/// Returns the id of a response that ends with its id.
fn find_last_id(tail: &[u8]) -> Option<u64> {
    let offset = memchr::memmem::rfind(tail, b"\"id\"")?;
    let rest = tail[offset + 4..].trim_ascii_start().strip_prefix(b":")?.trim_ascii();
    let rest = rest.strip_suffix(b"}")?.trim_ascii_end();
    as_integer(rest.strip_suffix(b",\"jsonrpc\":\"2.0\"").unwrap_or(rest).trim_ascii())
}

/// Finds the id of a request in its first bytes. Ids inside its parameters do not count.
pub fn find_request_id(head: &[u8]) -> Option<RequestId> {
    RequestId::parse(Bytes::copy_from_slice(scan_head(head).id?))
}
