//! Messages that are too large to be kept: whose they are, from how they begin and how they end.

use bytes::Bytes;

use super::{Id, ServerMessage};
use crate::wire::object::as_integer;
use crate::wire::scan::{Fault, Scanner};

/// Why an answer over the limit is none.
const TOO_LARGE: &str = "it is larger than `limits.message`";

impl ServerMessage {
    /// A message over the limit, by how it began: its own id if that stands there, what it is if that is to be seen.
    /// `None` if only its end can tell.
    pub fn oversize(head: &[u8]) -> Option<Self> {
        let mut own = None;
        // It breaks off somewhere; what stands whole before that counts.
        let _: Result<(), Fault> = Scanner::new(head).object(|name, value| {
            match &head[name.range] {
                b"\"method\"" => own = Some(Self::Noise),
                b"\"id\"" if own.is_none() && value.end < head.len() => {
                    own = as_integer(&head[value]).map(Self::too_large);
                }
                _ => {}
            }
            Ok(())
        });
        own
    }

    /// A message over the limit, by how it ended: many servers write the id last.
    pub fn oversize_end(tail: &[u8]) -> Self {
        let id = memchr::memmem::rfind(tail, b"\"id\"").and_then(|at| {
            let rest = tail[at + 4..].trim_ascii_start().strip_prefix(b":")?.trim_ascii();
            let rest = rest.strip_suffix(b"}")?.trim_ascii_end();
            as_integer(rest.strip_suffix(b",\"jsonrpc\":\"2.0\"").unwrap_or(rest).trim_ascii())
        });
        id.map_or(Self::BadReply { ids: Vec::new(), why: TOO_LARGE.to_owned() }, Self::too_large)
    }

    fn too_large(id: u64) -> Self {
        Self::BadReply { ids: vec![id], why: TOO_LARGE.to_owned() }
    }
}

/// The id in the beginning of a request that is not read to its end: its own, not one among its arguments.
pub fn id_in_head(head: &[u8]) -> Option<Id> {
    let mut id = None;
    // It breaks off somewhere; what stands whole before that counts.
    let _: Result<(), Fault> = Scanner::new(head).object(|name, value| {
        if &head[name.range] == b"\"id\"" && value.end < head.len() {
            id = Id::read(Bytes::copy_from_slice(&head[value]));
        }
        Ok(())
    });
    id
}
