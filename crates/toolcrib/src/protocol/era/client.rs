//! The client side of both eras: detects a message's era and builds the responses that depend on it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::capabilities::{ClientCapabilities, LogLevel};
use super::{IMPLEMENTATION, extensions, meta, write_server_info};
use crate::protocol::json::object::{Object, as_string, to_json_string, write_string};
use crate::protocol::jsonrpc::{code, error_object};
use crate::protocol::member_names;
use crate::protocol::versions::{Era, Revision};
use crate::util::locks::IgnorePoison as _;
use crate::util::maps::collect_map;

/// Opens a session (session era).
pub const INITIALIZE: &str = "initialize";
/// Asks for our capabilities (stateless era).
pub const DISCOVER: &str = "server/discover";
/// Checks the connection (session era).
pub const PING: &str = "ping";
/// Sets the log level of a session.
pub const SET_LEVEL: &str = "logging/setLevel";
/// Subscribes to changes of a resource (session era).
pub const SUBSCRIBE: &str = "resources/subscribe";
/// Ends a resource subscription (session era).
pub const UNSUBSCRIBE: &str = "resources/unsubscribe";
/// Opens a stream of change notifications (stateless era).
pub const LISTEN: &str = "subscriptions/listen";
/// Cancels a request.
pub const CANCELLED: &str = "notifications/cancelled";
/// Reports the progress of a request.
pub const PROGRESS: &str = "notifications/progress";
/// Reports that the user has completed a URL elicitation (session era).
pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
/// Reports the status of a task (session era).
pub const TASK_STATUS: &str = "notifications/tasks/status";
/// A log message of a server.
pub const LOG_MESSAGE: &str = "notifications/message";
/// Reports that a client's roots have changed.
pub const ROOTS_CHANGED: &str = "notifications/roots/list_changed";
/// Reports that the list of tools has changed.
pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
/// Reports that the list of prompts has changed.
pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
/// Reports that the list of resources has changed.
pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
/// The first message of a [`LISTEN`] stream: the notifications that it will carry.
pub const SUBSCRIPTION_ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
/// Reports that the content of a resource has changed.
pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";

/// The era that a message declares.
#[derive(Debug, PartialEq, Eq)]
pub enum DeclaredEra {
    /// None, as in session-era messages.
    Undeclared,
    /// The stateless era, with valid metadata.
    Stateless(RequestMeta),
    /// A protocol version that is unknown or belongs to the session era.
    UnsupportedVersion(String),
    /// The stateless era, with invalid metadata; holds the error to respond with.
    Invalid(Bytes),
}

/// Longest name or version of a client program, in bytes.
const MAX_IMPLEMENTATION_TEXT: usize = 256;
/// Largest description of a client program that servers are told, in bytes.
const MAX_IMPLEMENTATION_INFO: usize = 4 << 10;
/// Largest metadata that is kept for the next request of a connection.
const MAX_CACHED_META: usize = 16 << 10;

/// The metadata that a stateless request carries about its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestMeta {
    /// The revision of the request.
    pub revision: Revision,
    /// The client's capabilities.
    pub capabilities: ClientCapabilities,
    /// The lowest log level that the client wants.
    pub log_level: Option<LogLevel>,
    /// The progress token, as JSON.
    pub progress_token: Option<Bytes>,
    /// The name of the client program.
    pub client_name: Option<Arc<str>>,
    /// The name and version of the client program, as JSON.
    pub client_info: Option<Bytes>,
}

impl RequestMeta {
    /// Returns whether the client wants messages before the response: progress, log messages, or those of extensions.
    pub fn wants_updates(&self) -> bool {
        self.progress_token.is_some() || self.log_level.is_some() || self.capabilities.has_extensions()
    }
}

/// Parses the metadata of one client's requests. The last metadata is cached, because clients repeat it byte for byte
/// with every request.
#[derive(Debug, Default)]
pub struct RequestMetaReader {
    last: Mutex<Option<CachedRequestMeta>>,
}

#[derive(Debug)]
struct CachedRequestMeta {
    raw: Bytes,
    parsed: RequestMeta,
}

impl RequestMetaReader {
    /// Returns the version of the client program in the metadata that was read last, if it is cached.
    pub fn client_version(&self) -> Option<Arc<str>> {
        let last = self.last.lock().ignore_poison();
        let meta = Object::parse(&last.as_ref()?.raw).ok()?;
        implementation_version(meta.get(meta::CLIENT_INFO)?)
    }

    /// Parses the metadata in a request's parameters. Valid metadata that concerns only this hop is removed from them.
    pub fn read(&self, params: Option<&mut Object>) -> DeclaredEra {
        let Some(params) = params else { return DeclaredEra::Undeclared };
        let Some(raw) = params.get("_meta") else { return DeclaredEra::Undeclared };
        if &**raw == b"null" {
            // Some clients write it instead of leaving it out.
            params.remove("_meta");
            return DeclaredEra::Undeclared;
        }
        let mut last = self.last.lock().ignore_poison();
        if let Some(cached) = &*last
            && cached.raw == raw
        {
            params.remove("_meta");
            return DeclaredEra::Stateless(cached.parsed.clone());
        }
        let mut meta = match Object::parse(raw) {
            Ok(meta) => meta,
            Err(bad) => return DeclaredEra::Invalid(invalid_params(&format!("`_meta`: {bad}"))),
        };
        if let Err(lookalike) = member_names::check_meta(&meta) {
            return DeclaredEra::Invalid(invalid_params(&lookalike.to_string()));
        }
        let declared = parse_declared_era(&meta);
        if let DeclaredEra::Stateless(parsed) = &declared {
            meta.retain(|key| !meta::CLIENT_KEYS.contains(&key));
            if meta.is_empty() {
                // A copy, because a slice would keep the whole request in memory.
                let cached =
                    || CachedRequestMeta { raw: Bytes::copy_from_slice(raw), parsed: parsed.clone() };
                *last = (raw.len() <= MAX_CACHED_META).then(cached);
                params.remove("_meta");
            } else {
                params.set_unchecked("_meta", meta.to_bytes());
            }
        }
        declared
    }
}

fn parse_declared_era(meta: &Object) -> DeclaredEra {
    let capabilities = meta.get(meta::CLIENT_CAPABILITIES);
    if meta.get(meta::PROTOCOL_VERSION).is_none() && capabilities.is_none() {
        return DeclaredEra::Undeclared;
    }
    let Some(version) = meta.get_string(meta::PROTOCOL_VERSION) else {
        return DeclaredEra::Invalid(invalid_params(&format!(
            "`_meta` needs a string `{}`",
            meta::PROTOCOL_VERSION
        )));
    };
    let Some(revision) = version.parse().ok().filter(|revision: &Revision| revision.era() == Era::Stateless)
    else {
        return DeclaredEra::UnsupportedVersion(version.into_owned());
    };
    let Some(capabilities) = capabilities.filter(|raw| raw.first() == Some(&b'{')) else {
        return DeclaredEra::Invalid(invalid_params(&format!(
            "`_meta` needs an object `{}`",
            meta::CLIENT_CAPABILITIES
        )));
    };
    let log_level =
        match meta.get(meta::LOG_LEVEL).map(|raw| as_string(raw).and_then(|text| LogLevel::parse(&text))) {
            Some(None) => {
                return DeclaredEra::Invalid(invalid_params(&format!(
                    "`{}` must be a log level",
                    meta::LOG_LEVEL
                )));
            }
            level => level.flatten(),
        };
    let capabilities = ClientCapabilities::parse(capabilities);
    let progress_token = parse_progress_token(meta);
    let client_name = meta.get(meta::CLIENT_INFO).and_then(implementation_name);
    let client_info = meta.get(meta::CLIENT_INFO).and_then(implementation_info);
    DeclaredEra::Stateless(RequestMeta {
        revision,
        capabilities,
        log_level,
        progress_token,
        client_name,
        client_info,
    })
}

/// Returns the name of the client program in the parameters of `initialize`.
pub fn client_name(initialize: Option<&Object>) -> Option<Arc<str>> {
    implementation_name(initialize?.get("clientInfo")?)
}

/// Returns the version of the client program in the parameters of `initialize`.
pub fn client_version(initialize: Option<&Object>) -> Option<Arc<str>> {
    implementation_version(initialize?.get("clientInfo")?)
}

/// Returns the name and version of the client program in the parameters of `initialize`, as JSON.
pub fn client_info(initialize: Option<&Object>) -> Option<Bytes> {
    implementation_info(initialize?.get("clientInfo")?)
}

/// Returns a copy of the description of a program, unless it is too large or has no name. A slice would keep the whole message in
/// memory.
fn implementation_info(info: &Bytes) -> Option<Bytes> {
    let is_usable = info.len() <= MAX_IMPLEMENTATION_INFO && implementation_name(info).is_some();
    is_usable.then(|| Bytes::copy_from_slice(info))
}

fn implementation_name(info: &Bytes) -> Option<Arc<str>> {
    implementation_text(info, "name")
}

fn implementation_version(info: &Bytes) -> Option<Arc<str>> {
    implementation_text(info, "version")
}

/// Returns a member of the description of a program. It is kept after the request, so that a long one is cut off.
fn implementation_text(info: &Bytes, key: &str) -> Option<Arc<str>> {
    let info = Object::parse(info).ok()?;
    let text = info.get_string(key)?;
    Some(text[..text.floor_char_boundary(MAX_IMPLEMENTATION_TEXT)].into())
}

/// Returns the progress token of a request, as JSON.
pub fn progress_token(params: Option<&Object>) -> Option<Bytes> {
    parse_progress_token(&Object::parse(params?.get("_meta")?).ok()?)
}

fn parse_progress_token(meta: &Object) -> Option<Bytes> {
    let token = meta.get(meta::PROGRESS_TOKEN)?;
    let is_valid = as_string(token).is_some()
        || token.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-');
    is_valid.then(|| token.clone())
}

fn invalid_params(message: &str) -> Bytes {
    error_object(code::INVALID_PARAMS, message, None)
}

/// Builds the error for a request that needs capabilities that the client did not declare.
pub fn missing_capability_error(required: &Value) -> Bytes {
    let data = json!({"requiredCapabilities": required});
    let message = format!("this needs client capabilities that were not declared: {required}");
    error_object(code::MISSING_CAPABILITY, &message, Some(&data))
}

/// Builds the error for a protocol version that is not supported.
pub fn unsupported_version_error(requested: &str) -> Bytes {
    let data = json!({"supported": supported_versions(), "requested": requested});
    // Some clients look for these words.
    error_object(
        code::UNSUPPORTED_VERSION,
        &format!("Unsupported protocol version: {requested}"),
        Some(&data),
    )
}

fn supported_versions() -> Vec<&'static str> {
    Revision::ALL.iter().rev().map(|revision| revision.as_str()).collect()
}

/// Chooses the revision of a new session: the requested one if it has sessions, otherwise the newest that does.
pub fn negotiate_revision(params: Option<&Object>) -> Revision {
    let requested = params.and_then(|params| params.get_string("protocolVersion"));
    let supported = requested
        .and_then(|requested| requested.parse().ok())
        .filter(|revision: &Revision| revision.era() == Era::Session);
    supported.unwrap_or(Revision::newest(Era::Session))
}

/// The name, abilities and instructions that a client gets in response to [`INITIALIZE`] or [`DISCOVER`].
#[derive(Debug, Clone)]
pub struct ServerIntroduction {
    /// The name and version, as JSON.
    pub server_info: Bytes,
    /// The capabilities.
    pub capabilities: Value,
    /// The instructions for models, if any.
    pub instructions: Option<String>,
}

impl ServerIntroduction {
    /// Creates an introduction of toolcrib itself, without instructions.
    pub fn new(capabilities: Value) -> Self {
        let server_info = Bytes::from_static(IMPLEMENTATION.as_bytes());
        Self { server_info, capabilities, instructions: None }
    }

    fn write_instructions(&self, result: &mut Object) {
        if let Some(instructions) = &self.instructions {
            result.set_unchecked("instructions", to_json_string(instructions));
        }
    }
}

/// Builds the response to [`INITIALIZE`].
pub fn initialize_result(revision: Revision, introduction: &ServerIntroduction) -> Bytes {
    let mut result = Object::default();
    result.set_unchecked("protocolVersion", to_json_string(revision.as_str()));
    result.set_unchecked("capabilities", introduction.capabilities.to_string());
    result.set_unchecked("serverInfo", introduction.server_info.clone());
    introduction.write_instructions(&mut result);
    result.to_bytes()
}

/// Builds the response to [`DISCOVER`].
pub fn discover_result(introduction: &ServerIntroduction) -> Bytes {
    let mut meta = Object::default();
    meta.set_unchecked(meta::SERVER_INFO, introduction.server_info.clone());
    let mut result = Object::default();
    result.set_unchecked("resultType", Bytes::from_static(b"\"complete\""));
    result.set_unchecked("supportedVersions", json!(supported_versions()).to_string());
    result.set_unchecked("capabilities", introduction.capabilities.to_string());
    introduction.write_instructions(&mut result);
    result.set_unchecked("ttlMs", Bytes::from_static(b"0"));
    result.set_unchecked("cacheScope", Bytes::from_static(b"\"private\""));
    result.set_unchecked("_meta", meta.to_bytes());
    result.to_bytes()
}

/// Returns all capabilities that the gateway has in an era; `extensions` are those of its servers.
pub fn all_capabilities(era: Era, extensions: &[&str]) -> Value {
    let mut capabilities = json!({
        "tools": {"listChanged": true},
        "prompts": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "completions": {},
        "logging": {},
    });
    if era == Era::Stateless && !extensions.is_empty() {
        let extensions = extensions.iter().map(|name| ((*name).to_owned(), json!({})));
        capabilities["extensions"] = collect_map::<serde_json::Map<_, _>, _>(extensions).into();
    }
    capabilities
}

/// Returns the capabilities of one server for clients of an era, without what only the other era supports.
pub fn forwarded_capabilities(declared: &Bytes, era: Era) -> Option<Value> {
    let mut declared: Value = serde_json::from_slice(declared).ok()?;
    let members = declared.as_object_mut()?;
    match era {
        Era::Stateless => drop(members.remove("tasks")),
        // Sessions have no form for a task of the stateless era.
        Era::Session => {
            let extensions = members.get_mut("extensions").and_then(Value::as_object_mut);
            let is_last = extensions.is_some_and(|extensions| {
                extensions.remove(extensions::TASKS).is_some() && extensions.is_empty()
            });
            if is_last {
                members.remove("extensions");
            }
        }
    }
    Some(declared)
}

/// Cache hints of a list result.
#[derive(Debug, Clone, Copy, Default)]
pub struct ListCaching {
    /// The time for which the list may be cached.
    pub ttl: Duration,
    /// Whether a cache may be shared between clients.
    pub is_public: bool,
}

/// Builds the result of a list request from the one that a server sent, whose members keep their order. Its list is replaced by
/// `items`, which must be a JSON array; its cursor is removed without a `next_cursor`; its cache hints are replaced by `caching`.
/// Returns `None` if `own_result` is not an object.
pub fn own_list_result(
    own_result: &Bytes,
    member: &'static str,
    items: Bytes,
    next_cursor: Option<&str>,
    caching: ListCaching,
) -> Option<Bytes> {
    let mut result = Object::parse(own_result).ok()?;
    result.set_unchecked(member, items);
    if next_cursor.is_none() && result.get_string("nextCursor").is_some() {
        result.remove("nextCursor");
    }
    if result.get("ttlMs").is_some() {
        result.set_unchecked("ttlMs", caching.ttl.as_millis().to_string());
    }
    if result.get("cacheScope").is_some() && !caching.is_public {
        result.set_unchecked("cacheScope", Bytes::from_static(b"\"private\""));
    }
    Some(result.to_bytes())
}

/// Builds the result of a list request; `items` must be a JSON array. Stateless clients are told the name and version in
/// `server_info`.
pub fn list_result(
    member: &str,
    items: &[u8],
    next_cursor: Option<&str>,
    era: Era,
    caching: ListCaching,
    server_info: &[u8],
) -> Bytes {
    let mut out = Vec::with_capacity(items.len() + server_info.len() + 170);
    out.push(b'{');
    write_string(&mut out, member);
    out.push(b':');
    out.extend_from_slice(items);
    if let Some(next_cursor) = next_cursor {
        out.extend_from_slice(br#","nextCursor":"#);
        write_string(&mut out, next_cursor);
    }
    if era == Era::Stateless {
        let ttl = caching.ttl.as_millis();
        let scope = if caching.is_public { "public" } else { "private" };
        let members = format!(r#","resultType":"complete","ttlMs":{ttl},"cacheScope":"{scope}""#);
        out.extend_from_slice(members.as_bytes());
        out.push(b',');
        write_server_info(&mut out, server_info);
    }
    out.push(b'}');
    out.into()
}

/// Returns the empty result of an era.
pub fn empty_result(era: Era) -> Bytes {
    match era {
        Era::Session => Bytes::from_static(b"{}"),
        Era::Stateless => Bytes::from_static(br#"{"resultType":"complete"}"#),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(meta: &str) -> DeclaredEra {
        let params = Bytes::from(format!(r#"{{"_meta":{meta}}}"#));
        RequestMetaReader::default().read(Some(&mut Object::parse(&params).unwrap()))
    }

    fn invalid_code(meta: &str) -> i64 {
        let DeclaredEra::Invalid(error) = declared(meta) else { panic!("{meta}") };
        serde_json::from_slice::<Value>(&error).unwrap()["code"].as_i64().unwrap()
    }

    #[test]
    fn era_is_read_from_the_message() {
        assert_eq!(RequestMetaReader::default().read(None), DeclaredEra::Undeclared);
        assert_eq!(declared(r#"{"progressToken":1}"#), DeclaredEra::Undeclared);
        assert_eq!(declared("null"), DeclaredEra::Undeclared);
        let minimal = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let DeclaredEra::Stateless(meta) = declared(minimal) else { panic!("{minimal}") };
        assert_eq!((meta.revision, meta.log_level, meta.progress_token), (Revision::V2026_07_28, None, None));
        let full = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"info","progressToken":"t"}"#;
        let DeclaredEra::Stateless(meta) = declared(full) else { panic!("{full}") };
        assert_eq!(
            (meta.log_level, meta.progress_token.as_deref()),
            (Some(LogLevel::Info), Some(&b"\"t\""[..]))
        );
        assert_eq!(invalid_code(&full.replace("info", "loud")), -32602);
    }

    #[test]
    fn read_removes_hop_metadata_every_time() {
        let reader = RequestMetaReader::default();
        let read = |text: &str| {
            let mut params = Object::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap();
            let DeclaredEra::Stateless(meta) = reader.read(Some(&mut params)) else { panic!("{text}") };
            (meta, String::from_utf8(params.to_bytes().to_vec()).unwrap())
        };
        let first = r#"{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}},"io.modelcontextprotocol/clientInfo":{"name":"c"}}}"#;
        let (meta, params) = read(first);
        assert_eq!(
            (params.as_str(), meta.capabilities.as_json().as_ref()),
            (r#"{"name":"x"}"#, &br#"{"roots":{}}"#[..])
        );
        assert_eq!(read(first), (meta.clone(), params), "from the cache");
        let other = first.replace(r#"{"roots":{}}"#, "{}");
        assert!(
            !read(&other).0.capabilities.has_any() && read(first).0 == meta,
            "other metadata replaces the cache"
        );
        let with_trace = first.replace(r#""_meta":{"#, r#""_meta":{"progressToken":1,"traceparent":"00-1","#);
        for _ in 0..2 {
            let (meta, params) = read(&with_trace);
            assert_eq!(params, r#"{"name":"x","_meta":{"progressToken":1,"traceparent":"00-1"}}"#);
            assert_eq!(meta.progress_token.as_deref(), Some(&b"1"[..]));
        }
    }

    #[test]
    fn invalid_metadata_is_reported() {
        assert_eq!(invalid_code(r#"{"io.modelcontextprotocol/clientCapabilities":{}}"#), -32602);
        assert_eq!(invalid_code(r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#), -32602);
        assert_eq!(invalid_code(r#"{"io.modelcontextprotocol/protocolVersion":7}"#), -32602);
        let old = r#"{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}"#;
        assert_eq!(declared(old), DeclaredEra::UnsupportedVersion("2025-11-25".to_owned()));
        assert_eq!(invalid_code("7"), -32602);
    }

    #[test]
    fn forwarded_capabilities_match_the_era() {
        let declared = Bytes::from_static(
            br#"{"tools":{},"resources":{"subscribe":true},"tasks":{},"extensions":{"x":{}},"experimental":{"e":1}}"#,
        );
        assert_eq!(
            forwarded_capabilities(&declared, Era::Session).unwrap(),
            json!({"tools": {}, "resources": {"subscribe": true}, "tasks": {}, "extensions": {"x": {}}, "experimental": {"e": 1}})
        );
        let tasks = Bytes::from_static(br#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#);
        assert_eq!(forwarded_capabilities(&tasks, Era::Session).unwrap(), json!({}));
        let stateless = forwarded_capabilities(&declared, Era::Stateless).unwrap();
        assert!(stateless["tasks"].is_null() && stateless["extensions"] == json!({"x": {}}));
        assert_eq!(forwarded_capabilities(&Bytes::from_static(b"7"), Era::Session), None);
    }

    #[test]
    fn negotiate_revision_falls_back_to_the_newest() {
        let negotiated = |date: &str| {
            let params = Bytes::from(format!(r#"{{"protocolVersion":"{date}"}}"#));
            negotiate_revision(Some(&Object::parse(&params).unwrap())).as_str()
        };
        assert_eq!(negotiated("2024-11-05"), "2024-11-05");
        assert_eq!(negotiated("2026-07-28"), "2025-11-25");
        assert_eq!(negotiated("1999-01-01"), "2025-11-25");
    }

    #[test]
    fn own_list_result_keeps_members_and_their_order() {
        let own = br#"{"cacheScope":"public","x":1.50,"tools":[],"ttlMs":9,"nextCursor":"n\u0041"}"#;
        let page = |next_cursor, is_public| {
            let caching = ListCaching { ttl: Duration::from_millis(4), is_public };
            let items = Bytes::from_static(b"[1]");
            own_list_result(&Bytes::from_static(own), "tools", items, next_cursor, caching).unwrap()
        };
        let first = r#"{"cacheScope":"public","x":1.50,"tools":[1],"ttlMs":4,"nextCursor":"n\u0041"}"#;
        assert_eq!(page(Some("nA"), true), first);
        let last = r#"{"cacheScope":"private","x":1.50,"tools":[1],"ttlMs":4}"#;
        assert_eq!(page(None, false), last);
    }
}
