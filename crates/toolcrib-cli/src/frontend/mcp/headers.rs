//! What a request says in its headers, and whether its body says the same.

use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderName};
use hyper::{HeaderMap, StatusCode};
use toolcrib::wire::mirror::{self, decoded};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::{Era, Revision};

use crate::frontend::face::{Face, Visit};

pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const REVISION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
/// How nearly every client says that it takes both.
const BOTH: &[u8] = b"application/json, text/event-stream";

/// What the headers of a POST say.
pub(super) struct Stated {
    /// The revision, if a known one is named.
    revision: Option<Revision>,
    /// The revision that is named and that nobody knows.
    pub(super) unknown: Option<String>,
    /// Whether the client takes events beside plain answers.
    pub(super) takes_events: bool,
}

impl Stated {
    /// Reads the headers that decide before the body is read.
    pub(super) fn read(headers: &HeaderMap) -> Result<Self, (StatusCode, &'static str)> {
        let json = headers.get(CONTENT_TYPE).is_some_and(|value| is_json(value.as_bytes()));
        if !json {
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "`Content-Type` must be application/json"));
        }
        let takes_events = match headers.get(ACCEPT) {
            None => false,
            Some(value) if value.as_bytes() == BOTH => true,
            Some(_) => {
                let accepts = |kind| {
                    headers
                        .get_all(ACCEPT)
                        .iter()
                        .any(|value| value.to_str().is_ok_and(|value| names(value, kind)))
                };
                if !accepts("application/json") {
                    let why = "`Accept` must allow application/json and text/event-stream";
                    return Err((StatusCode::NOT_ACCEPTABLE, why));
                }
                accepts("text/event-stream")
            }
        };
        let (revision, unknown) = match one(headers, &REVISION) {
            Ok(None) => (None, None),
            // What is said about an unknown one depends on the body.
            Ok(Some(date)) => match date.parse() {
                Ok(revision) => (Some(revision), None),
                Err(_) => (None, Some(date.to_owned())),
            },
            Err(()) => return Err((StatusCode::BAD_REQUEST, "`MCP-Protocol-Version` appears twice")),
        };
        Ok(Self { revision, unknown, takes_events })
    }

    /// Whether the headers name a revision of the stateless era.
    pub(super) fn stateless(&self) -> bool {
        self.revision.is_some_and(|revision| revision.era() == Era::Stateless)
    }

    /// Whether the headers name another revision than this.
    pub(super) fn names_other(&self, date: &str) -> bool {
        let named = self.revision.map(Revision::as_str).or(self.unknown.as_deref());
        named.is_some_and(|named| named != date)
    }

    /// The stateless era repeats parts of the body in headers; what they say must be the same.
    pub(super) fn agree(
        &self,
        revision: Revision,
        method: &str,
        params: Option<&Object>,
        headers: &HeaderMap,
    ) -> Result<(), String> {
        if self.revision != Some(revision) {
            return Err(format!("`MCP-Protocol-Version` must be `{revision}`, as in the body"));
        }
        expect(headers, &METHOD, "Mcp-Method", method)?;
        match params.and_then(|params| mirror::name(method, params)) {
            Some(name) => expect(headers, &NAME, "Mcp-Name", &name),
            None => Ok(()),
        }
    }
}

fn expect(headers: &HeaderMap, header: &HeaderName, shown: &str, wanted: &str) -> Result<(), String> {
    let value = one(headers, header).map_err(|()| format!("`{shown}` appears twice"))?;
    let value = value.ok_or_else(|| format!("the header `{shown}` is missing"))?;
    match decoded(value) {
        Some(value) if value == wanted => Ok(()),
        Some(_) => Err(format!("`{shown}` and the body disagree")),
        None => Err(format!("`{shown}` is not well-formed")),
    }
}

/// Checks the arguments of a tool that its definition wants repeated in headers.
pub(super) fn mirrored(
    face: &Face,
    visit: &Visit,
    method: &str,
    params: Option<&Object>,
    headers: &HeaderMap,
) -> Result<(), String> {
    let Some(params) = params.filter(|_| method == "tools/call") else { return Ok(()) };
    let marked = params
        .string("name")
        .and_then(|name| face.glance(&face.crib.catalog_for(&visit.caller)).mirrored(&visit.view, &name));
    for marked in marked.iter().flat_map(|marked| marked.iter()) {
        let shown = &marked.header;
        // A name that cannot be a header's is one that no client can send.
        let Ok(header) = HeaderName::from_bytes(shown.as_bytes()) else { continue };
        let value = one(headers, &header).map_err(|()| format!("`{shown}` appears twice"))?;
        marked.check(value, params.get("arguments")).map_err(|why| format!("`{shown}` {why}"))?;
    }
    Ok(())
}

/// Whether somebody who asks for a stream takes one.
pub(super) fn takes_events(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(ACCEPT).iter().peekable();
    values.peek().is_none()
        || values.any(|value| value.to_str().is_ok_and(|value| names(value, "text/event-stream")))
}

/// The event after which a stream is to be read again.
pub(super) fn last_event(headers: &HeaderMap) -> Option<&str> {
    one(headers, &LAST_EVENT).ok().flatten().filter(|id| !id.is_empty())
}

/// The session a request names.
pub(super) fn session(headers: &HeaderMap) -> Option<&str> {
    one(headers, &SESSION).ok().flatten()
}

/// A header that may appear once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, ()> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => value.to_str().map(|value| Some(value.trim())).map_err(|_| ()),
        (Some(_), Some(_)) => Err(()),
    }
}

fn is_json(value: &[u8]) -> bool {
    let kind = value.split(|byte| *byte == b';').next().unwrap_or_default();
    kind.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// Whether an `Accept` value allows a kind of content.
fn names(accept: &str, kind: &str) -> bool {
    let group = kind.split('/').next().unwrap_or_default();
    accept.split(',').map(|part| part.split(';').next().unwrap_or_default().trim()).any(|part| {
        part == "*/*"
            || part.eq_ignore_ascii_case(kind)
            || part.strip_suffix("/*").is_some_and(|part| part == group)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_is_read_as_lists_and_wildcards() {
        assert!(names("application/json, text/event-stream", "text/event-stream"));
        assert!(names("text/*;q=0.5", "text/event-stream"));
        assert!(names("*/*", "application/json"));
        assert!(!names("text/html", "application/json"));
    }
}
