//! JSON-RPC messages over raw JSON: what a client sends us, what a server sends us, and what we send both.
//!
//! Clients are read strictly: what was judged must be what is sent on. Servers are read so that every reply ends its
//! call, even one that cannot be understood.

mod oversize;

use std::borrow::Cow;

use bytes::Bytes;

use super::object::{BadJson, as_integer, as_string, each_member, write_number, write_string};

pub use oversize::id_in_head;

/// JSON-RPC error codes of the protocol itself.
pub mod code {
    /// The bytes are not JSON.
    pub const PARSE: i32 = -32700;
    /// The JSON is not a message we accept.
    pub const INVALID_REQUEST: i32 = -32600;
    /// Nobody here knows the method.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// The parameters are wrong, or name something that does not exist.
    pub const INVALID_PARAMS: i32 = -32602;
    /// Something went wrong that is not the client's affair.
    pub const INTERNAL: i32 = -32603;
    /// There is no such resource, in the words of the session era.
    pub const NO_RESOURCE: i32 = -32002;
    /// Headers and body disagree.
    pub const HEADER_MISMATCH: i32 = -32020;
    /// The client lacks a capability that the request needs.
    pub const LACKS_ABILITY: i32 = -32021;
    /// The revision asked for is not spoken here.
    pub const UNSUPPORTED_REVISION: i32 = -32022;
}

/// How deep a client's message may be nested. Servers are read at any depth, but many of them would not survive what
/// a client could send.
const DEEPEST: usize = 512;

/// A request's id as its sender spelled it: a JSON string or integer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Id(Bytes);

impl Id {
    /// Reads an id; anything but a string or an integer is none.
    pub fn read(raw: Bytes) -> Option<Self> {
        let good = raw.first() == Some(&b'"') || is_integer(&raw);
        good.then_some(Self(raw))
    }

    /// The id as JSON.
    pub fn raw(&self) -> &[u8] {
        &self.0
    }
}

fn is_integer(raw: &[u8]) -> bool {
    let digits = raw.strip_prefix(b"-").unwrap_or(raw);
    digits.iter().all(u8::is_ascii_digit) && !digits.is_empty() || as_integer(digits).is_some()
}

/// What a client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientMessage {
    /// Wants an answer.
    Request {
        /// To be given back with the answer.
        id: Id,
        /// What is asked.
        method: String,
        /// Raw parameters, an object if there are any.
        params: Option<Bytes>,
    },
    /// Wants none.
    Notification {
        /// What is said.
        method: String,
        /// Raw parameters, an object if there are any.
        params: Option<Bytes>,
    },
    /// Answers a request of ours.
    Reply {
        /// Our request's id.
        id: Id,
        /// What it says.
        answer: Answer,
    },
}

/// Why a client's bytes are no message, and whom to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// The id, if it could be read.
    pub id: Option<Id>,
    /// `code::PARSE` or `code::INVALID_REQUEST`.
    pub code: i32,
    /// What was expected.
    pub why: String,
}

#[derive(Default)]
struct Envelope {
    version: Option<Bytes>,
    id: Option<Bytes>,
    method: Option<Bytes>,
    params: Option<Bytes>,
    result: Option<Bytes>,
    error: Option<Bytes>,
}

impl Envelope {
    /// Puts a member where it belongs; `false` if the envelope has no such member.
    fn put(&mut self, key: &str, value: Bytes) -> Result<bool, BadJson> {
        let slot = match key {
            "jsonrpc" => &mut self.version,
            "id" => &mut self.id,
            "method" => &mut self.method,
            "params" => &mut self.params,
            "result" => &mut self.result,
            "error" => &mut self.error,
            _ => return Ok(false),
        };
        match slot.replace(value) {
            None => Ok(true),
            Some(_) => Err(BadJson::shape(format!("the member `{key}` appears twice"))),
        }
    }

    fn method(&self) -> Option<Cow<'_, str>> {
        as_string(self.method.as_ref()?)
    }
}

impl ClientMessage {
    /// Reads one message: exact names, no member twice, no member the envelope does not have.
    pub fn parse(source: &Bytes) -> Result<Self, Malformed> {
        let mut envelope = Envelope::default();
        let read = each_member(source, DEEPEST, |key, value| {
            match envelope.put(&key, source.slice_ref(value.as_bytes()))? {
                true => Ok(()),
                false => Err(BadJson::shape(format!("a message has no member `{key}`"))),
            }
        });
        let id = envelope.id.clone().and_then(Id::read);
        let judged = match read {
            Ok(()) => {
                Self::judge(&envelope, id.clone()).map_err(|why| (code::INVALID_REQUEST, why.to_owned()))
            }
            Err(bad) if bad.is_json => Err((code::INVALID_REQUEST, bad.why)),
            Err(bad) => Err((code::PARSE, format!("not JSON: {bad}"))),
        };
        judged.map_err(|(code, why)| Malformed { id, code, why })
    }

    fn judge(envelope: &Envelope, id: Option<Id>) -> Result<Self, &'static str> {
        if envelope.version.as_deref() != Some(b"\"2.0\"") {
            return Err("`jsonrpc` must be \"2.0\"");
        }
        if envelope.id.is_some() && id.is_none() {
            return Err("`id` must be a string or an integer");
        }
        if envelope.method.is_none() {
            let id = id.ok_or("a message has a `method`, or an `id` and an answer")?;
            return match (envelope.result.clone(), envelope.error.clone()) {
                (Some(result), None) => Ok(Self::Reply { id, answer: Answer::Result(result) }),
                (None, Some(error)) => Ok(Self::Reply { id, answer: Answer::Error(error) }),
                _ => Err("an answer has either `result` or `error`"),
            };
        }
        if envelope.result.is_some() || envelope.error.is_some() {
            return Err("a message with a `method` has no `result` and no `error`");
        }
        let method = envelope.method().ok_or("`method` must be a string")?.into_owned();
        let params = envelope.params.clone().filter(|raw| &**raw != b"null");
        if params.as_ref().is_some_and(|raw| raw.first() != Some(&b'{')) {
            return Err("`params` must be an object");
        }
        Ok(match id {
            Some(id) => Self::Request { id, method, params },
            None => Self::Notification { method, params },
        })
    }
}

/// How a server answered: its own bytes either way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The `result`, a JSON object.
    Result(Bytes),
    /// The `error`, a JSON object.
    Error(Bytes),
}

/// What a server sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerMessage {
    /// The answer to our request.
    Reply {
        /// Our request's number.
        id: u64,
        /// What it says.
        answer: Answer,
    },
    /// An answer that breaks the rules: the calls it may be for must fail now.
    BadReply {
        /// Numbers found where an id could be.
        ids: Vec<u64>,
        /// What is wrong with the bytes.
        why: String,
    },
    /// The server wants something of us.
    Request {
        /// To be given back with our answer.
        id: Id,
        /// What it asks.
        method: String,
        /// Raw parameters.
        params: Option<Bytes>,
    },
    /// The server says something.
    Notification {
        /// What it says.
        method: String,
        /// Raw parameters.
        params: Option<Bytes>,
    },
    /// Not a message: a banner, a log line, a blank.
    Noise,
}

impl ServerMessage {
    /// Reads one line. Members the envelope does not have are passed over; a reply is a reply only without `method`.
    pub fn parse(line: &Bytes) -> Self {
        match line.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => {}
            Some(b'[') => return Self::broken(line, "a list where one answer was expected".to_owned()),
            _ => return Self::Noise,
        }
        let mut envelope = Envelope::default();
        let put =
            |key: Cow<'_, str>, value: &str| envelope.put(&key, line.slice_ref(value.as_bytes())).map(|_| ());
        if let Err(bad) = each_member(line, usize::MAX, put) {
            return Self::broken(line, bad.why);
        }
        match &envelope.method {
            Some(_) => Self::spoken(&envelope),
            None => Self::answered(envelope),
        }
    }

    fn spoken(envelope: &Envelope) -> Self {
        let Some(method) = envelope.method().map(Cow::into_owned) else { return Self::Noise };
        match envelope.id.clone().map(Id::read) {
            None => Self::Notification { method, params: envelope.params.clone() },
            Some(Some(id)) => Self::Request { id, method, params: envelope.params.clone() },
            Some(None) => Self::Noise,
        }
    }

    fn answered(envelope: Envelope) -> Self {
        let Some(raw) = envelope.id else { return Self::Noise };
        let Some(id) = as_integer(&raw) else {
            let ids = as_string(&raw).and_then(|text| text.parse().ok()).into_iter().collect();
            let why = format!("the id {} is not one of ours", shortened(&raw));
            return Self::BadReply { ids, why };
        };
        let bad = |why: &str| Self::BadReply { ids: vec![id], why: why.to_owned() };
        let is_null = |raw: &Bytes| &**raw == b"null";
        let is_object = |raw: &Bytes| raw.first() == Some(&b'{');
        match (envelope.result, envelope.error.filter(|error| !is_null(error))) {
            (Some(result), None) if is_object(&result) => Self::Reply { id, answer: Answer::Result(result) },
            (Some(_), None) => bad("`result` is not an object"),
            (result, Some(error)) if result.as_ref().is_none_or(is_null) => match is_object(&error) {
                true => Self::Reply { id, answer: Answer::Error(error) },
                false => bad("`error` is not an object"),
            },
            (Some(_), Some(_)) => bad("both `result` and `error`"),
            (None, _) => bad("neither `result` nor `error`"),
        }
    }

    /// A line that should have been a message: whose answer could it be?
    pub fn broken(line: &[u8], why: String) -> Self {
        let ids: Vec<u64> = ids_in(line).collect();
        let names = |member: &[u8]| memchr::memmem::find(line, member).is_some();
        if ids.is_empty() && (!names(b"\"jsonrpc\"") || names(b"\"method\"")) {
            return Self::Noise;
        }
        Self::BadReply { ids, why }
    }
}

/// Numbers that follow an `"id":`, wherever that stands.
fn ids_in(line: &[u8]) -> impl Iterator<Item = u64> {
    memchr::memmem::find_iter(line, b"\"id\"").filter_map(|at| {
        let rest = line[at + 4..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let rest = rest.strip_prefix(b"\"").unwrap_or(rest);
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
    })
}

/// The beginning of some bytes, for people's eyes.
pub(crate) fn shortened(raw: &[u8]) -> String {
    readable(raw, 120)
}

/// At most so many bytes of a text that somebody else wrote, without what could command a terminal.
pub(crate) fn readable(raw: &[u8], most: usize) -> String {
    let beginning = String::from_utf8_lossy(&raw[..raw.len().min(most)]);
    // A character that the cut went through is left out.
    let whole =
        if raw.len() > most { beginning.trim_end_matches(char::REPLACEMENT_CHARACTER) } else { &beginning };
    let mut text: String = whole.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    if raw.len() > most {
        text.push('…');
    }
    text
}

/// Appends the beginning of a request up to its parameters; the caller adds a JSON object and `}`.
pub fn write_request_head(out: &mut Vec<u8>, id: u64, method: &str) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    write_number(out, id);
    out.extend_from_slice(br#","method":"#);
    write_string(out, method);
    out.extend_from_slice(b",\"params\":");
}

/// A notification with parameters that are JSON already.
pub fn notification(method: &str, params: Option<&[u8]>) -> Vec<u8> {
    spoken("", method, params)
}

/// A request under an id of our own.
pub fn request(id: &str, method: &str, params: Option<&[u8]>) -> Vec<u8> {
    spoken(&format!(r#""id":"{id}","#), method, params)
}

fn spoken(id: &str, method: &str, params: Option<&[u8]>) -> Vec<u8> {
    let mut out = format!(r#"{{"jsonrpc":"2.0",{id}"method":"#).into_bytes();
    write_string(&mut out, method);
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params);
    }
    out.push(b'}');
    out
}

/// An answer up to its `result` or `error`, with room for that and the `}` that ends it.
fn answer_head(id: &[u8], member: &str, room: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(48 + id.len() + room);
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id);
    out.extend_from_slice(b",\"");
    out.extend_from_slice(member.as_bytes());
    out.extend_from_slice(b"\":");
    out
}

/// The part of an answer before its `result`; `}` ends it.
pub fn result_head(id: &Id) -> Vec<u8> {
    answer_head(id.raw(), "result", 0)
}

/// A whole answer around a server's own bytes.
pub fn reply(id: &Id, answer: &Answer) -> Vec<u8> {
    let (member, body) = match answer {
        Answer::Result(result) => ("result", result),
        Answer::Error(error) => ("error", error),
    };
    let mut out = answer_head(id.raw(), member, body.len());
    out.extend_from_slice(body);
    out.push(b'}');
    out
}

/// A JSON-RPC error object.
pub fn error_object(code: i32, message: &str, data: Option<&serde_json::Value>) -> Bytes {
    let mut error = serde_json::json!({"code": code, "message": message});
    if let (Some(data), Some(members)) = (data, error.as_object_mut()) {
        members.insert("data".to_owned(), data.clone());
    }
    error.to_string().into()
}

/// An error answer to somebody whose id may not be known.
pub fn error_reply(id: Option<&Id>, error: &[u8]) -> Vec<u8> {
    let mut out = answer_head(id.map_or(b"null", Id::raw), "error", error.len());
    out.extend_from_slice(error);
    out.push(b'}');
    out
}

#[cfg(test)]
mod tests;
