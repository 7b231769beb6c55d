//! JSON-RPC messages over raw JSON, from clients and from servers, and the encoding of our own.
//!
//! Client messages are parsed strictly, so that what was checked is exactly what is forwarded. Server messages are
//! parsed so that every response ends its call, even a malformed one.

mod oversize;

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;

use crate::protocol::json::object::{
    BadJson, Object, as_integer, as_string, decode_name, for_each_member, scanner_of_object, write_number,
    write_string,
};
use crate::protocol::json::scan::Scanner;

pub use oversize::{OversizeKind, find_request_id};

/// JSON-RPC error codes of the protocol itself.
pub mod code {
    /// The bytes are not JSON.
    pub const PARSE_ERROR: i32 = -32700;
    /// The JSON is not a valid message.
    pub const INVALID_REQUEST: i32 = -32600;
    /// The method is unknown.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// The parameters are wrong, or name something that does not exist.
    pub const INVALID_PARAMS: i32 = -32602;
    /// An internal error.
    pub const INTERNAL_ERROR: i32 = -32603;
    /// The resource does not exist (session era).
    pub const RESOURCE_NOT_FOUND: i32 = -32002;
    /// Headers and body do not match.
    pub const HEADER_MISMATCH: i32 = -32020;
    /// The client lacks a capability that the request needs.
    pub const MISSING_CAPABILITY: i32 = -32021;
    /// The requested protocol version is not supported.
    pub const UNSUPPORTED_VERSION: i32 = -32022;
    /// An error that the server defines itself.
    pub const SERVER_ERROR: i32 = -32000;
}

/// The codes of toolcrib's own errors.
const OWN_CODES: std::ops::RangeInclusive<f64> = -31099.0..=-31000.0;

/// Deepest nesting of a client's message. Many servers cannot parse deeper messages. Server messages have no limit.
const MAX_DEPTH: usize = 512;

/// Largest payload of a server that is copied out of its message.
const MAX_COPIED: usize = 2 << 10;

/// A request's id as its sender spelled it: a JSON string or integer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(Bytes);

impl RequestId {
    /// Parses an id. Returns `None` for anything but a string or an integer.
    pub fn parse(raw: Bytes) -> Option<Self> {
        let is_valid = raw.first() == Some(&b'"') || is_integer(&raw);
        is_valid.then_some(Self(raw))
    }

    /// Returns the id as JSON.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn is_integer(raw: &[u8]) -> bool {
    let digits = raw.strip_prefix(b"-").unwrap_or(raw);
    digits.iter().all(u8::is_ascii_digit) && !digits.is_empty() || as_integer(digits).is_some()
}

/// A message from a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMessage {
    /// A request.
    Request {
        /// The id to respond with.
        id: RequestId,
        /// The requested method.
        method: String,
        /// Raw parameters, an object if there are any.
        params: Option<Bytes>,
    },
    /// A notification.
    Notification {
        /// The notification's method.
        method: String,
        /// Raw parameters, an object if there are any.
        params: Option<Bytes>,
    },
    /// A response to a request of ours.
    Response {
        /// The id of our request.
        id: RequestId,
        /// Its `result` or `error`.
        payload: ResponsePayload,
    },
}

/// The error for client bytes that are not a valid message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedMessage {
    /// The request id, if it could be parsed.
    pub id: Option<RequestId>,
    /// [`code::PARSE_ERROR`] or [`code::INVALID_REQUEST`].
    pub code: i32,
    /// The reason, in words.
    pub reason: String,
}

/// The raw members of a JSON-RPC message.
#[derive(Default)]
struct Envelope<'a> {
    version: Option<&'a [u8]>,
    id: Option<&'a [u8]>,
    method: Option<&'a [u8]>,
    params: Option<&'a [u8]>,
    result: Option<&'a [u8]>,
    error: Option<&'a [u8]>,
}

impl<'a> Envelope<'a> {
    /// Sets a member. Returns `false` if JSON-RPC has no such member.
    fn set(&mut self, key: &[u8], value: &'a [u8]) -> Result<bool, BadJson> {
        let slot = match key {
            b"jsonrpc" => &mut self.version,
            b"id" => &mut self.id,
            b"method" => &mut self.method,
            b"params" => &mut self.params,
            b"result" => &mut self.result,
            b"error" => &mut self.error,
            _ => return Ok(false),
        };
        match slot.replace(value) {
            None => Ok(true),
            Some(_) => Err(bad_member("the member", key, " appears twice")),
        }
    }

    /// Sets a member. Fails if JSON-RPC has no such member.
    fn set_known(&mut self, key: &[u8], value: &'a [u8]) -> Result<(), BadJson> {
        match self.set(key, value)? {
            true => Ok(()),
            false => Err(bad_member("unknown member", key, "")),
        }
    }

    fn method(&self) -> Option<Cow<'a, str>> {
        match self.method? {
            // By far the most frequent one, which need not be decoded.
            b"\"tools/call\"" => Some(Cow::Borrowed("tools/call")),
            method => as_string(method),
        }
    }
}

/// Returns the error for a member that a message must not have.
#[cold]
fn bad_member(before: &str, key: &[u8], after: &str) -> BadJson {
    let key = String::from_utf8_lossy(key);
    BadJson::unexpected_shape(format!("{before} `{key}`{after}"))
}

/// A message from a client, and the members of its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParsedMessage {
    /// The message.
    pub message: ClientMessage,
    /// The parameters, if they are an object; an error if a member appears twice.
    pub params: Option<Result<Object, BadJson>>,
}

/// Scans `params` and adds their members to `params`. A name that cannot be decoded is an error of the parameters only.
fn scan_params(
    scanner: &mut Scanner<'_>,
    source: &Bytes,
    params: &mut Result<Object, BadJson>,
) -> Result<Range<usize>, BadJson> {
    scanner.scan_object_value(|scanner, name| {
        let value = scanner.scan_value()?;
        match (decode_name(source, name), &mut *params) {
            (Ok(key), Ok(object)) => object.push(&key, source.slice(value)),
            (Err(bad), Ok(_)) => *params = Err(bad),
            (_, Err(_)) => {}
        }
        Ok(())
    })
}

impl ClientMessage {
    /// Parses one message. Repeated members and members that JSON-RPC does not have are rejected.
    ///
    /// # Errors
    /// Fails if the text is not a JSON-RPC message.
    pub fn parse(source: &Bytes) -> Result<Self, MalformedMessage> {
        let mut envelope = Envelope::default();
        let read = for_each_member(source, MAX_DEPTH, |key, value| envelope.set_known(&key, value));
        Self::from_scanned(source, &envelope, read)
    }

    /// Like [`ClientMessage::parse`], and also parses `params`, in the same pass.
    ///
    /// # Errors
    /// As [`ClientMessage::parse`]. An error in `params` alone is part of the [`ParsedMessage`].
    pub fn parse_with_params(source: &Bytes) -> Result<ParsedMessage, MalformedMessage> {
        let mut envelope = Envelope::default();
        let mut params = None;
        let mut scan = || {
            let mut scanner = scanner_of_object(source, MAX_DEPTH)?;
            scanner.scan_members(|scanner, name| {
                // Its error is reported only if the value is JSON.
                let key = decode_name(source, name);
                let is_params = key.as_ref().is_ok_and(|key| **key == *b"params");
                let value = match is_params && scanner.is_at(b'{') {
                    true => scan_params(scanner, source, params.insert(Ok(Object::for_params())))?,
                    false => scanner.scan_value()?,
                };
                envelope.set_known(&key?, &source[value])
            })?;
            Ok(scanner.expect_end()?)
        };
        let read = scan();
        let message = Self::from_scanned(source, &envelope, read)?;
        let params = params.map(|params| params.and_then(Object::without_repeated));
        Ok(ParsedMessage { message, params })
    }

    fn from_scanned(
        source: &Bytes,
        envelope: &Envelope<'_>,
        read: Result<(), BadJson>,
    ) -> Result<Self, MalformedMessage> {
        let id = envelope.id.and_then(|raw| RequestId::parse(source.slice_ref(raw)));
        match read {
            Ok(()) => Self::from_envelope(source, envelope, id.as_ref()).map_err(|reason| MalformedMessage {
                id,
                code: code::INVALID_REQUEST,
                reason: reason.to_owned(),
            }),
            Err(bad) if bad.is_json => {
                Err(MalformedMessage { id, code: code::INVALID_REQUEST, reason: bad.reason })
            }
            Err(bad) => {
                Err(MalformedMessage { id, code: code::PARSE_ERROR, reason: format!("not JSON: {bad}") })
            }
        }
    }

    fn from_envelope(
        source: &Bytes,
        envelope: &Envelope<'_>,
        id: Option<&RequestId>,
    ) -> Result<Self, &'static str> {
        if envelope.version != Some(b"\"2.0\"") {
            return Err("`jsonrpc` must be \"2.0\"");
        }
        if envelope.id.is_some() && id.is_none() {
            return Err("`id` must be a string or an integer");
        }
        if envelope.method.is_none() {
            let id = id.ok_or("a message needs a `method`, or an `id` with `result` or `error`")?;
            let payload = match (envelope.result, envelope.error) {
                (Some(result), None) => ResponsePayload::Result(source.slice_ref(result)),
                (None, Some(error)) => ResponsePayload::Error(source.slice_ref(error)),
                _ => return Err("a response needs either `result` or `error`"),
            };
            return Ok(Self::Response { id: id.clone(), payload });
        }
        if envelope.result.is_some() || envelope.error.is_some() {
            return Err("a message with `method` cannot have `result` or `error`");
        }
        let method = envelope.method().ok_or("`method` must be a string")?.into_owned();
        let params = envelope.params.filter(|raw| *raw != b"null");
        if params.is_some_and(|raw| raw.first() != Some(&b'{')) {
            return Err("`params` must be an object");
        }
        let params = params.map(|raw| source.slice_ref(raw));
        Ok(match id.cloned() {
            Some(id) => Self::Request { id, method, params },
            None => Self::Notification { method, params },
        })
    }
}

/// The payload of a response, as the sender's own bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResponsePayload {
    /// The `result`, a JSON object.
    Result(Bytes),
    /// The `error`, a JSON object.
    Error(Bytes),
}

impl ResponsePayload {
    /// Returns the result, or the error object as `Err`.
    ///
    /// # Errors
    /// Returns the error object if the server sent one.
    pub fn as_result(&self) -> Result<&Bytes, &Bytes> {
        match self {
            Self::Result(result) => Ok(result),
            Self::Error(error) => Err(error),
        }
    }

    /// Converts the payload to the result, or the error object as `Err`.
    ///
    /// # Errors
    /// Returns the error object if the server sent one.
    pub fn into_result(self) -> Result<Bytes, Bytes> {
        match self {
            Self::Result(result) => Ok(result),
            Self::Error(error) => Err(error),
        }
    }
}

/// A message from a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerMessage {
    /// A response to a request of ours.
    Response {
        /// The number of our request.
        id: u64,
        /// Its `result` or `error`.
        payload: ResponsePayload,
    },
    /// A malformed response. The calls it may belong to must fail.
    BadResponse {
        /// Numbers found in places where an id could be.
        ids: Vec<u64>,
        /// The reason, in words.
        reason: String,
    },
    /// A request from the server.
    Request {
        /// The id to respond with.
        id: RequestId,
        /// The requested method.
        method: String,
        /// Raw parameters.
        params: Option<Bytes>,
    },
    /// A notification from the server.
    Notification {
        /// The notification's method.
        method: String,
        /// Raw parameters.
        params: Option<Bytes>,
    },
    /// Not a message: a banner, a log line or an empty line.
    Garbage,
}

impl ServerMessage {
    /// Parses one line. Unknown members are ignored. Only a message without `method` is a response.
    pub fn parse(line: &Bytes) -> Self {
        match line.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => {}
            Some(b'[') => {
                return Self::from_broken_line(line, "a batch where one response was expected".to_owned());
            }
            _ => return Self::Garbage,
        }
        let mut envelope = Envelope::default();
        let read =
            for_each_member(line, usize::MAX, |key, value| envelope.set(&key, value).map(|_is_known| ()));
        if let Err(bad) = read {
            return Self::from_broken_line(line, bad.reason);
        }
        match &envelope.method {
            Some(_) => Self::from_request(line, &envelope),
            None => Self::from_response(line, &envelope),
        }
    }

    /// Builds a request or a notification.
    fn from_request(line: &Bytes, envelope: &Envelope<'_>) -> Self {
        let Some(method) = envelope.method().map(Cow::into_owned) else { return Self::Garbage };
        let params = envelope.params.map(|raw| line.slice_ref(raw));
        match envelope.id.map(|raw| RequestId::parse(line.slice_ref(raw))) {
            None => Self::Notification { method, params },
            Some(Some(id)) => Self::Request { id, method, params },
            Some(None) => Self::Garbage,
        }
    }

    fn from_response(line: &Bytes, envelope: &Envelope<'_>) -> Self {
        let Some(raw) = envelope.id else { return Self::Garbage };
        let Some(id) = as_integer(raw) else {
            let ids = as_string(raw).and_then(|text| text.parse().ok()).into_iter().collect();
            let reason = format!("the id {} is not one of ours", excerpt(raw));
            return Self::BadResponse { ids, reason };
        };
        let bad = |reason: &str| Self::BadResponse { ids: vec![id], reason: reason.to_owned() };
        // A copy of a small payload costs less than sharing the line.
        let take = |raw: &[u8]| match raw.len() <= MAX_COPIED {
            true => Bytes::copy_from_slice(raw),
            false => line.slice_ref(raw),
        };
        let is_null = |raw: &[u8]| raw == b"null";
        let is_object = |raw: &[u8]| raw.first() == Some(&b'{');
        match (envelope.result, envelope.error.filter(|error| !is_null(error))) {
            (Some(result), None) if is_object(result) => {
                Self::Response { id, payload: ResponsePayload::Result(take(result)) }
            }
            (Some(_), None) => bad("`result` is not an object"),
            (result, Some(error)) if result.is_none_or(is_null) => match is_object(error) {
                true => Self::Response { id, payload: ResponsePayload::Error(take(error)) },
                false => bad("`error` is not an object"),
            },
            (Some(_), Some(_)) => bad("both `result` and `error`"),
            (None, _) => bad("neither `result` nor `error`"),
        }
    }

    /// Classifies a line that cannot be parsed: a bad response if it could be one, otherwise garbage.
    pub fn from_broken_line(line: &[u8], reason: String) -> Self {
        let ids: Vec<u64> = find_ids(line).collect();
        let mentions = |member: &[u8]| memchr::memmem::find(line, member).is_some();
        if ids.is_empty() && (!mentions(b"\"jsonrpc\"") || mentions(b"\"method\"")) {
            return Self::Garbage;
        }
        Self::BadResponse { ids, reason }
    }
}

/// Finds the numbers that follow an `"id":` anywhere in the line.
fn find_ids(line: &[u8]) -> impl Iterator<Item = u64> {
    memchr::memmem::find_iter(line, b"\"id\"").filter_map(|offset| {
        let rest = line[offset + 4..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let rest = rest.strip_prefix(b"\"").unwrap_or(rest);
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
    })
}

/// Returns the start of `raw` for a message or log line.
pub(crate) fn excerpt(raw: &[u8]) -> String {
    printable(raw, 120)
}

/// Returns at max `max` bytes of untrusted text, without control characters.
pub(crate) fn printable(raw: &[u8], max: usize) -> String {
    let start = String::from_utf8_lossy(&raw[..raw.len().min(max)]);
    // A character that the cut splits is dropped.
    let complete = if raw.len() > max { start.trim_end_matches(char::REPLACEMENT_CHARACTER) } else { &start };
    let mut text: String = complete.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if raw.len() > max {
        text.push('…');
    }
    text
}

/// Appends a request up to its parameters; the caller adds a JSON object and `}`.
pub fn write_request_head(out: &mut Vec<u8>, id: u64, method: &str) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    write_number(out, id);
    out.extend_from_slice(br#","method":"#);
    write_string(out, method);
    out.extend_from_slice(b",\"params\":");
}

/// Encodes a notification; `params` must be JSON.
pub fn encode_notification(method: &str, params: Option<&[u8]>) -> Vec<u8> {
    encode_method("", method, params)
}

/// Encodes a request; `params` must be JSON.
pub fn encode_request(id: &str, method: &str, params: Option<&[u8]>) -> Vec<u8> {
    encode_method(&format!(r#""id":"{id}","#), method, params)
}

fn encode_method(id: &str, method: &str, params: Option<&[u8]>) -> Vec<u8> {
    let mut out = format!(r#"{{"jsonrpc":"2.0",{id}"method":"#).into_bytes();
    write_string(&mut out, method);
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params);
    }
    out.push(b'}');
    out
}

/// Encodes a response up to its payload, with capacity for exactly `payload_len` bytes and the closing `}`: a full vector becomes
/// `Bytes` without another allocation.
fn response_head(id: &[u8], member: &str, payload_len: usize) -> Vec<u8> {
    const START: &[u8] = br#"{"jsonrpc":"2.0","id":"#;
    const QUOTES: &[u8] = br#","":"#;
    let head_len = START.len() + id.len() + QUOTES.len() + member.len();
    let mut out = Vec::with_capacity(head_len + payload_len + 1);
    out.extend_from_slice(START);
    out.extend_from_slice(id);
    out.extend_from_slice(b",\"");
    out.extend_from_slice(member.as_bytes());
    out.extend_from_slice(b"\":");
    out
}

/// Encodes a response up to its `result`; the caller adds the result and `}`.
pub fn result_head(id: &RequestId) -> Vec<u8> {
    response_head(id.as_bytes(), "result", 0)
}

/// Encodes a response with a payload that is JSON already.
pub fn encode_response(id: &RequestId, payload: &ResponsePayload) -> Vec<u8> {
    let (member, body) = match payload {
        ResponsePayload::Result(result) => ("result", result),
        ResponsePayload::Error(error) => ("error", error),
    };
    let mut out = response_head(id.as_bytes(), member, body.len());
    out.extend_from_slice(body);
    out.push(b'}');
    out
}

/// Builds a JSON-RPC error object.
pub fn error_object(code: i32, message: &str, data: Option<&serde_json::Value>) -> Bytes {
    let mut error = serde_json::json!({"code": code, "message": message});
    if let (Some(data), Some(members)) = (data, error.as_object_mut()) {
        members.insert("data".to_owned(), data.clone());
    }
    error.to_string().into()
}

/// Moves a server's error that uses one of toolcrib's own codes to `data.server_error`, so that no server can speak for the
/// gateway. Other errors are returned unchanged.
pub fn move_own_code(error: Bytes) -> Bytes {
    let Ok(object) = Object::parse(&error) else { return error };
    let code = object.get("code").and_then(|raw| std::str::from_utf8(raw).ok()?.parse::<f64>().ok());
    if !code.is_some_and(|code| OWN_CODES.contains(&code)) {
        return error;
    }
    let mut data = Object::default();
    let message = object.get("message").cloned().unwrap_or(Bytes::from_static(b"\"\""));
    data.set_unchecked("server_error", error);
    let mut moved = Object::default();
    moved.set_unchecked("code", code::SERVER_ERROR.to_string());
    moved.set_unchecked("message", message);
    moved.set_unchecked("data", data.to_bytes());
    moved.to_bytes()
}

/// Encodes an error response; the request id may be unknown.
pub fn encode_error_response(id: Option<&RequestId>, error: &[u8]) -> Vec<u8> {
    let mut out = response_head(id.map_or(b"null", RequestId::as_bytes), "error", error.len());
    out.extend_from_slice(error);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests;
