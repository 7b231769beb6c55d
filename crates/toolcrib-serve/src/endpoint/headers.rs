//! Parses the headers of a request and checks that they agree with its body.

use hyper::header::{ACCEPT, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use toolcrib::protocol::header_mirror::{self, decode_header};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::versions::{Era, Revision};

use crate::service::{EndpointScope, McpService};

pub(super) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// The `Accept` value that nearly all clients send.
const ACCEPT_BOTH: &[u8] = b"application/json, text/event-stream";

/// A header that may appear only once.
#[derive(Debug, Clone, Copy, Default)]
enum SingleHeader<'a> {
    #[default]
    Missing,
    Present(&'a HeaderValue),
    Repeated,
}

impl<'a> SingleHeader<'a> {
    /// Returns a header among all headers of a request.
    fn find(headers: &'a HeaderMap, name: &HeaderName) -> Self {
        headers.get_all(name).iter().fold(Self::Missing, Self::with)
    }

    /// Adds a value.
    fn with(self, value: &'a HeaderValue) -> Self {
        match self {
            Self::Missing => Self::Present(value),
            Self::Present(_) | Self::Repeated => Self::Repeated,
        }
    }

    /// Returns the value, or an error if it is not one text.
    fn text(self) -> Result<Option<&'a str>, ()> {
        match self {
            Self::Missing => Ok(None),
            Self::Present(value) => value.to_str().map(|text| Some(text.trim_ascii())).map_err(|_| ()),
            Self::Repeated => Err(()),
        }
    }
}

/// The headers of a POST as they were sent. They are found in one pass, because a lookup of each is 2 % of the instructions of a
/// small call.
#[derive(Default)]
struct SentHeaders<'a> {
    content_type: Option<&'a HeaderValue>,
    content_encoding: Option<&'a HeaderValue>,
    accept: Option<&'a HeaderValue>,
    revision: SingleHeader<'a>,
    session_id: SingleHeader<'a>,
}

impl<'a> SentHeaders<'a> {
    /// Finds the headers. Of those that may be repeated, the first value is taken.
    fn find(headers: &'a HeaderMap) -> Self {
        let mut sent = Self::default();
        for (name, value) in headers {
            match name.as_str() {
                "content-type" => sent.content_type = sent.content_type.or(Some(value)),
                "content-encoding" => sent.content_encoding = sent.content_encoding.or(Some(value)),
                "accept" => sent.accept = sent.accept.or(Some(value)),
                "mcp-protocol-version" => sent.revision = sent.revision.with(value),
                "mcp-session-id" => sent.session_id = sent.session_id.with(value),
                _ => {}
            }
        }
        sent
    }
}

/// The parsed headers of a POST.
pub(super) struct RequestHeaders {
    /// The revision, if it is supported.
    revision: Option<Revision>,
    /// The revision, if it is not supported.
    pub(super) unknown_revision: Option<String>,
    /// True if the client accepts an event stream as response.
    pub(super) accepts_events: bool,
    session_id: Option<HeaderValue>,
}

impl RequestHeaders {
    /// Parses the headers that are checked before the body is read. The error is the status and message of the response.
    pub(super) fn parse(headers: &HeaderMap) -> Result<Self, (StatusCode, &'static str)> {
        let sent = SentHeaders::find(headers);
        if !sent.content_type.is_some_and(|value| is_json(value.as_bytes())) {
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "`Content-Type` must be application/json"));
        }
        if sent.content_encoding.is_some_and(|value| value != "identity") {
            return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "`Content-Encoding` is not supported"));
        }
        let accepts_events = match sent.accept {
            None => false,
            Some(value) if value.as_bytes() == ACCEPT_BOTH => true,
            Some(_) => {
                let accepts = |media_type| {
                    headers
                        .get_all(ACCEPT)
                        .iter()
                        .any(|value| value.to_str().is_ok_and(|value| allows(value, media_type)))
                };
                if !accepts("application/json") {
                    let message = "`Accept` must allow application/json and text/event-stream";
                    return Err((StatusCode::NOT_ACCEPTABLE, message));
                }
                accepts("text/event-stream")
            }
        };
        let (revision, unknown_revision) = match sent.revision.text() {
            Ok(None) => (None, None),
            // The error for an unknown revision depends on the body.
            Ok(Some(date)) => match date.parse() {
                Ok(revision) => (Some(revision), None),
                Err(_) => (None, Some(date.to_owned())),
            },
            Err(()) => return Err((StatusCode::BAD_REQUEST, "`MCP-Protocol-Version` appears twice")),
        };
        let session_id = match sent.session_id {
            SingleHeader::Present(id) => Some(id.clone()),
            SingleHeader::Missing | SingleHeader::Repeated => None,
        };
        Ok(Self { revision, unknown_revision, accepts_events, session_id })
    }

    /// Returns the id of the session that the request is in.
    pub(super) fn session_id(&self) -> Option<&str> {
        self.session_id.as_ref().and_then(|id| id.to_str().ok()).map(str::trim_ascii)
    }

    /// Returns whether the headers name a revision of the stateless era.
    pub(super) fn is_stateless(&self) -> bool {
        self.revision.is_some_and(|revision| revision.era() == Era::Stateless)
    }

    /// Returns whether the headers name a revision or a session.
    pub(super) fn names_era(&self) -> bool {
        self.revision.is_some() || self.unknown_revision.is_some() || self.session_id.is_some()
    }

    /// Returns whether the headers name another revision.
    pub(super) fn names_other_revision(&self, date: &str) -> bool {
        let named = self.revision.map(Revision::as_str).or(self.unknown_revision.as_deref());
        named.is_some_and(|named| named != date)
    }

    /// Checks the headers that repeat parts of the body in the stateless era.
    pub(super) fn check_body(
        &self,
        revision: Revision,
        method: &str,
        params: Option<&Object>,
        headers: &HeaderMap,
    ) -> Result<(), String> {
        if self.revision != Some(revision) {
            return Err(format!("`MCP-Protocol-Version` must be `{revision}`, as in the body"));
        }
        check_header(headers, &METHOD, "Mcp-Method", method)?;
        match params.and_then(|params| header_mirror::name_header(method, params)) {
            Some(name) => check_header(headers, &NAME, "Mcp-Name", &name),
            None => Ok(()),
        }
    }
}

/// Checks that a header has the expected value; `display_name` is used in errors.
fn check_header(
    headers: &HeaderMap,
    header: &HeaderName,
    display_name: &str,
    expected: &str,
) -> Result<(), String> {
    let value =
        SingleHeader::find(headers, header).text().map_err(|()| format!("`{display_name}` appears twice"))?;
    let value = value.ok_or_else(|| format!("the header `{display_name}` is missing"))?;
    match decode_header(value) {
        Some(value) if value == expected => Ok(()),
        Some(_) => Err(format!("`{display_name}` does not match the body")),
        None => Err(format!("`{display_name}` is malformed")),
    }
}

/// Checks the headers that repeat arguments of a tool call, as the tool's definition demands. The server of the tool is
/// listed first if it never was.
pub(super) async fn check_header_params(
    service: &McpService,
    scope: &EndpointScope,
    method: &str,
    params: Option<&Object>,
    headers: &HeaderMap,
) -> Result<(), String> {
    let Some(params) = params.filter(|_| method == "tools/call") else { return Ok(()) };
    let Some(tool) = params.get_string("name") else { return Ok(()) };
    // At the endpoint of one server, only a client that has read the definitions knows of such headers.
    let catalog = match scope.view.server().is_some() && !has_param_headers(headers) {
        true => service.crib.catalog_for(scope.caller()),
        false => service.catalog_with_tool(scope, &tool).await,
    };
    let digest = service.catalog_digest(&catalog);
    let Some(header_params) = digest.header_params(&scope.view, &tool) else { return Ok(()) };
    for param in header_params.iter() {
        let name = &param.header;
        // Clients cannot send a name that is not a valid header name.
        let Ok(header) = HeaderName::from_bytes(name.as_bytes()) else { continue };
        let value =
            SingleHeader::find(headers, &header).text().map_err(|()| format!("`{name}` appears twice"))?;
        param.check(value, params.get("arguments")).map_err(|reason| format!("`{name}` {reason}"))?;
    }
    Ok(())
}

fn has_param_headers(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with("mcp-param-"))
}

/// Returns whether a GET accepts an event stream.
pub(super) fn accepts_events(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(ACCEPT).iter().peekable();
    values.peek().is_none()
        || values.any(|value| value.to_str().is_ok_and(|value| allows(value, "text/event-stream")))
}

/// Returns the event after which a stream is resumed.
pub(super) fn last_event_id(headers: &HeaderMap) -> Option<&str> {
    SingleHeader::find(headers, &LAST_EVENT_ID).text().ok().flatten().filter(|id| !id.is_empty())
}

/// Returns the session id of a request.
pub(super) fn session_id(headers: &HeaderMap) -> Option<&str> {
    SingleHeader::find(headers, &SESSION_ID).text().ok().flatten()
}

fn is_json(value: &[u8]) -> bool {
    let media_type = value.split(|byte| *byte == b';').next().unwrap_or_default();
    media_type.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// Returns whether an `Accept` value allows a media type.
fn allows(accept: &str, media_type: &str) -> bool {
    let group = media_type.split('/').next().unwrap_or_default();
    accept.split(',').map(|part| part.split(';').next().unwrap_or_default().trim()).any(|part| {
        part == "*/*"
            || part.eq_ignore_ascii_case(media_type)
            || part.strip_suffix("/*").is_some_and(|part| part == group)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_header_supports_lists_and_wildcards() {
        assert!(allows("application/json, text/event-stream", "text/event-stream"));
        assert!(allows("text/*;q=0.5", "text/event-stream"));
        assert!(allows("*/*", "application/json"));
        assert!(!allows("text/html", "application/json"));
    }
}
