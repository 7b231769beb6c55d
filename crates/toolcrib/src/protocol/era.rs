//! Translation between the session era and the stateless era.
//!
//! Inside toolcrib a call is only its parameters: no handshake, no session, no per-hop `_meta`. Only this module knows
//! what each era adds to outgoing messages and what must be removed from incoming ones.

pub mod capabilities;
pub mod client;
pub mod extensions;
pub mod handshake;
pub mod input;

use bytes::Bytes;

use crate::protocol::json::object::{self, Object};
use crate::protocol::json::scan;
use crate::protocol::jsonrpc::{ResponsePayload, code};
use crate::protocol::versions::{Era, Revision};
use capabilities::Client;

/// Keys of `_meta` that belong to one hop and are never passed on.
pub mod meta {
    /// The protocol version of a request.
    pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
    /// The client's capabilities.
    pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// The client's name and version.
    pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
    /// The lowest log level that the client wants with this request.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// The server's name and version.
    pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
    /// The `subscriptions/listen` request that a notification belongs to.
    pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
    /// Marks a result in which toolcrib itself asks the client, for an approval.
    pub const OWN_QUESTION: &str = "toolcrib/own-question";
    /// The token that links progress notifications to a request.
    pub const PROGRESS_TOKEN: &str = "progressToken";

    /// The keys that a stateless client sends with every request.
    pub(crate) const CLIENT_KEYS: [&str; 4] = [PROTOCOL_VERSION, CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL];
}

/// Our own name and version as JSON, for clients and servers.
pub const IMPLEMENTATION: &str =
    concat!(r#"{"name":"toolcrib","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// Largest `serverInfo` that is repeated in every result. Icons can make it much larger.
const MAX_RESULT_INFO: usize = 1024;

/// Returns the name and version of a server for results: without icons and other details if they are long.
pub fn shorten_server_info(info: &Bytes) -> Bytes {
    if info.len() <= MAX_RESULT_INFO {
        return info.clone();
    }
    let mut short = Object::parse(info).unwrap_or_default();
    short.retain(|key| matches!(key, "name" | "version" | "title"));
    let short = short.to_bytes();
    if short.len() <= MAX_RESULT_INFO { short } else { Bytes::from_static(IMPLEMENTATION.as_bytes()) }
}

/// Adapts a call's parameters to a server of this revision, on behalf of `client`. `progress_token` replaces the
/// client's own token if the client asks for progress; without one the client cannot receive updates. `client_info` is
/// the name and version that servers see.
pub fn adapt_params_for_server(
    params: &mut Object,
    revision: Revision,
    client: Option<&Client>,
    client_info: &Bytes,
    progress_token: Option<u64>,
) {
    let is_stateless = revision.era() == Era::Stateless;
    if !is_stateless {
        params.retain(|key| !matches!(key, input::INPUT_RESPONSES | input::REQUEST_STATE));
    }
    let raw_meta = params.get("_meta");
    if raw_meta.is_none() && !is_stateless {
        return;
    }
    let mut meta = raw_meta.and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
    if meta.is_empty() && !is_stateless && raw_meta.is_some_and(|raw| raw.first() == Some(&b'{')) {
        return;
    }
    let is_of_client = |key: &str| key == meta::PROGRESS_TOKEN || meta::CLIENT_KEYS.contains(&key);
    if !is_stateless && !meta.is_empty() && !meta.iter().any(|(key, _)| is_of_client(key)) {
        return;
    }
    let log_level = client.and_then(|client| client.requested_log_level(progress_token.is_some()));
    let progress_token = progress_token.filter(|_| meta.get(meta::PROGRESS_TOKEN).is_some());
    meta.retain(|key| !is_of_client(key));
    if is_stateless {
        meta.set_unchecked(meta::PROTOCOL_VERSION, object::to_json_string(revision.as_str()));
        meta.set_unchecked(
            meta::CLIENT_CAPABILITIES,
            client.map_or(Bytes::from_static(b"{}"), Client::declared_capabilities),
        );
        let info = client.and_then(|client| client.info.as_ref()).unwrap_or(client_info);
        meta.set_unchecked(meta::CLIENT_INFO, info.clone());
        if let Some(level) = log_level {
            meta.set_unchecked(meta::LOG_LEVEL, object::to_json_string(level.as_str()));
        }
    }
    if let Some(token) = progress_token {
        meta.set_unchecked(meta::PROGRESS_TOKEN, token.to_string());
    }
    if meta.is_empty() {
        params.remove("_meta");
    } else {
        params.set_unchecked("_meta", meta.to_bytes());
    }
}

/// Adapts a server's response to a client of the other era: members that only the server's era has are removed, those
/// that the client's era needs are added, and error codes are mapped. Within one era the bytes pass unchanged, except
/// for errors about this hop, which mean nothing to the client. `server_info` is the name and version of the server, as
/// JSON; without it, toolcrib names itself.
pub fn adapt_response_for_client(
    payload: ResponsePayload,
    method: &str,
    server: Era,
    client: Era,
    server_info: Option<&Bytes>,
) -> ResponsePayload {
    match (payload, server, client) {
        (ResponsePayload::Result(result), Era::Session, Era::Stateless) => {
            let server_info = server_info.map_or(IMPLEMENTATION.as_bytes(), |info| info);
            ResponsePayload::Result(add_stateless_members(&result, is_cacheable(method), server_info))
        }
        (ResponsePayload::Result(result), Era::Stateless, Era::Session) => {
            ResponsePayload::Result(remove_stateless_members(&result))
        }
        (ResponsePayload::Error(error), Era::Session, Era::Session) => ResponsePayload::Error(error),
        (ResponsePayload::Error(error), ..) => {
            ResponsePayload::Error(adapt_error_for_client(error, method, server, client))
        }
        (payload, ..) => payload,
    }
}

/// Returns whether the results of a method carry cache hints in the stateless era.
fn is_cacheable(method: &str) -> bool {
    let is_named = matches!(
        method,
        "resources/read" | "server/discover" | extensions::GET_SKILL | extensions::READ_DIRECTORY
    );
    is_named || method.ends_with("/list")
}

/// Maps an error code to the one of the client's era.
fn adapt_error_for_client(error: Bytes, method: &str, server: Era, client: Era) -> Bytes {
    let Ok(mut object) = Object::parse(&error) else { return error };
    let Some(code) = object.get("code").and_then(|raw| std::str::from_utf8(raw).ok()?.parse::<i32>().ok())
    else {
        return error;
    };
    let is_read = method == "resources/read";
    let mapped = match (code, server, client) {
        (code::RESOURCE_NOT_FOUND, Era::Session, Era::Stateless) if is_read => code::INVALID_PARAMS,
        (code::INVALID_PARAMS, Era::Stateless, Era::Session) if is_read && is_not_found(&object) => {
            code::RESOURCE_NOT_FOUND
        }
        (code::MISSING_CAPABILITY, Era::Stateless, Era::Session) => code::INVALID_PARAMS,
        (code::HEADER_MISMATCH | code::UNSUPPORTED_VERSION, Era::Stateless, _) => code::INTERNAL_ERROR,
        _ => return error,
    };
    object.set_unchecked("code", mapped.to_string());
    object.to_bytes()
}

fn is_not_found(error: &Object) -> bool {
    let has_uri = error
        .get("data")
        .and_then(|raw| Object::parse(raw).ok())
        .is_some_and(|data| data.get("uri").is_some());
    has_uri
        || error
            .get_string("message")
            .is_some_and(|message| message.to_ascii_lowercase().contains("not found"))
}

/// The member of a tool result with structured content.
const STRUCTURED_CONTENT: &str = "structuredContent";

/// Adapts a tool definition to clients of an era. Returns `None` if nothing changes. The task support of sessions does
/// not exist in the stateless era, and sessions allow only objects as structured results.
pub(crate) fn adapt_tool_for_client(definition: &Bytes, era: Era) -> Option<Bytes> {
    let member = match era {
        Era::Session => "outputSchema",
        Era::Stateless => "execution",
    };
    scan::find_quoted(definition, member.as_bytes())?;
    let mut tool = Object::parse(definition).ok()?;
    let value = tool.remove(member)?;
    let is_object =
        || Object::parse(&value).is_ok_and(|schema| schema.get_string("type").as_deref() == Some("object"));
    if era == Era::Session && is_object() {
        return None;
    }
    Some(tool.to_bytes())
}

/// Adds the members that the stateless era requires. A quoted name can occur in JSON only as a name or a complete
/// string, so its absence proves that the member is missing without parsing the result again.
fn add_stateless_members(result: &Bytes, cacheable: bool, server_info: &[u8]) -> Bytes {
    let has = |name: &[u8]| scan::find_quoted(result, name).is_some();
    if has(b"\"_meta\"")
        && let Ok(mut object) = Object::parse(result)
        && object.get("_meta").is_some()
    {
        add_to_meta(&mut object, server_info);
        return prepend_stateless_members(&object.to_bytes(), cacheable, None);
    }
    prepend_stateless_members(result, cacheable, Some(server_info))
}

/// Adds the name and version of the server to the `_meta` of a result, unless it has them or is not an object.
fn add_to_meta(result: &mut Object, server_info: &[u8]) {
    let raw = result.get("_meta").filter(|raw| &***raw != b"null");
    let Ok(mut meta) = raw.map_or(Ok(Object::default()), Object::parse) else { return };
    if meta.get(meta::SERVER_INFO).is_none() {
        meta.set_unchecked(meta::SERVER_INFO, Bytes::copy_from_slice(server_info));
        result.set_unchecked("_meta", meta.to_bytes());
    }
}

/// Writes the member `_meta` with the name and version of a server.
fn write_server_info(out: &mut Vec<u8>, server_info: &[u8]) {
    out.extend_from_slice(br#""_meta":{"io.modelcontextprotocol/serverInfo":"#);
    out.extend_from_slice(server_info);
    out.push(b'}');
}

fn prepend_stateless_members(result: &Bytes, cacheable: bool, server_info: Option<&[u8]>) -> Bytes {
    let Some(rest) = result.strip_prefix(b"{") else { return result.clone() };
    let mut out = Vec::with_capacity(result.len() + server_info.map_or(0, <[u8]>::len) + 130);
    out.push(b'{');
    let has = |name: &[u8]| scan::find_quoted(result, name).is_some();
    let may_have_members = has(b"\"resultType\"") || (cacheable && has(b"\"ttlMs\""));
    let parsed = if may_have_members { Object::parse(result).ok() } else { None };
    let mut add = |key: &str, member: &[u8]| {
        if parsed.as_ref().is_none_or(|object| object.get(key).is_none()) {
            out.extend_from_slice(member);
        }
    };
    add("resultType", br#""resultType":"complete","#);
    if cacheable {
        add("ttlMs", br#""ttlMs":0,"cacheScope":"private","#);
    }
    if let Some(server_info) = server_info {
        write_server_info(&mut out, server_info);
        out.push(b',');
    }
    if rest.trim_ascii_start().first() == Some(&b'}') && out.len() > 1 {
        out.pop(); // the trailing comma
    }
    out.extend_from_slice(rest);
    out.into()
}

fn remove_stateless_members(result: &Bytes) -> Bytes {
    let Ok(mut object) = Object::parse(result) else { return result.clone() };
    object.retain(|key| !matches!(key, "resultType" | "ttlMs" | "cacheScope"));
    if object.get(STRUCTURED_CONTENT).is_some_and(|raw| raw.first() != Some(&b'{')) {
        // Sessions allow only objects. The server should have sent the value as text too; if not, it is added.
        let value = object.remove(STRUCTURED_CONTENT).unwrap_or_default();
        if object
            .get("content")
            .is_none_or(|raw| object::parse_array(raw).is_ok_and(|parts| parts.is_empty()))
        {
            let text = object::to_json_string(&String::from_utf8_lossy(&value));
            object.set_unchecked("content", [br#"[{"type":"text","text":"#, &text[..], b"}]"].concat());
        }
    }
    if let Some(mut meta) = object.get("_meta").and_then(|raw| Object::parse(raw).ok())
        && meta.remove(meta::SERVER_INFO).is_some()
    {
        if meta.is_empty() {
            object.remove("_meta");
        } else {
            object.set_unchecked("_meta", meta.to_bytes());
        }
    }
    object.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapt_params(params: &str, revision: Revision, progress: Option<u64>) -> String {
        let mut object = Object::parse(&Bytes::copy_from_slice(params.as_bytes())).unwrap();
        let client_info = Bytes::from_static(IMPLEMENTATION.as_bytes());
        adapt_params_for_server(&mut object, revision, None, &client_info, progress);
        String::from_utf8(object.to_bytes().to_vec()).unwrap()
    }

    fn adapt_result(result: &str, server: Era, client: Era) -> String {
        let payload = ResponsePayload::Result(Bytes::copy_from_slice(result.as_bytes()));
        let (ResponsePayload::Result(adapted) | ResponsePayload::Error(adapted)) =
            adapt_response_for_client(payload, "tools/call", server, client, Some(&info()));
        String::from_utf8(adapted.to_vec()).unwrap()
    }

    fn info() -> Bytes {
        Bytes::from_static(br#"{"name":"s"}"#)
    }

    fn error_code(error: &'static str, method: &str, server: Era, client: Era) -> i64 {
        let payload = ResponsePayload::Error(Bytes::from_static(error.as_bytes()));
        let (ResponsePayload::Result(adapted) | ResponsePayload::Error(adapted)) =
            adapt_response_for_client(payload, method, server, client, None);
        serde_json::from_slice::<serde_json::Value>(&adapted).unwrap()["code"].as_i64().unwrap()
    }

    #[test]
    fn long_server_info_is_shortened_for_results() {
        let short = Bytes::from_static(br#"{"name":"s", "icons":[]}"#);
        assert_eq!(shorten_server_info(&short), short);
        let icons = format!(r#"{{"name":"s","icons":["{}"],"version":"1","title":"S"}}"#, "x".repeat(2000));
        assert_eq!(shorten_server_info(&icons.into()), r#"{"name":"s","version":"1","title":"S"}"#);
        let name = format!(r#"{{"name":"{}"}}"#, "x".repeat(2000));
        assert_eq!(shorten_server_info(&name.into()), IMPLEMENTATION);
    }

    #[test]
    fn error_codes_are_mapped_between_eras() {
        let session = Era::Session;
        let stateless = Era::Stateless;
        let missing = r#"{"code":-32002,"message":"Resource not found"}"#;
        assert_eq!(error_code(missing, "resources/read", session, stateless), -32602);
        assert_eq!(error_code(missing, "resources/read", session, session), -32002);
        let absent = r#"{"code":-32602,"message":"Resource not found","data":{"uri":"x:y"}}"#;
        assert_eq!(error_code(absent, "resources/read", stateless, session), -32002);
        assert_eq!(
            error_code(r#"{"code":-32602,"message":"no"}"#, "resources/read", stateless, session),
            -32602
        );
        let capability = r#"{"code":-32021,"message":"sampling"}"#;
        assert_eq!(error_code(capability, "tools/call", stateless, session), -32602);
        assert_eq!(error_code(capability, "tools/call", stateless, stateless), -32021);
        let hop = r#"{"code":-32020,"message":"headers"}"#;
        assert_eq!(error_code(hop, "tools/call", stateless, stateless), -32603);
    }

    #[test]
    fn cacheable_results_get_cache_hints() {
        let payload = ResponsePayload::Result(Bytes::from_static(br#"{"contents":[]}"#));
        let ResponsePayload::Result(adapted) =
            adapt_response_for_client(payload, "resources/read", Era::Session, Era::Stateless, Some(&info()))
        else {
            panic!()
        };
        assert_eq!(
            adapted,
            r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}},"contents":[]}"#
        );
    }

    #[test]
    fn session_server_gets_no_stateless_members() {
        let params = r#"{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":"theirs","traceparent":"00-1"}}"#;
        assert_eq!(
            adapt_params(params, Revision::V2025_11_25, None),
            r#"{"name":"x","_meta":{"traceparent":"00-1"}}"#
        );
        assert_eq!(
            adapt_params(r#"{"name":"x","_meta":{"progressToken":1}}"#, Revision::V2025_11_25, Some(9)),
            r#"{"name":"x","_meta":{"progressToken":9}}"#
        );
        assert_eq!(adapt_params(r#"{"name":"x"}"#, Revision::V2025_11_25, Some(9)), r#"{"name":"x"}"#);
        assert_eq!(
            adapt_params(r#"{"name":"x","_meta":{"progressToken":1}}"#, Revision::V2025_11_25, None),
            r#"{"name":"x"}"#
        );
        for meta in ["{}", "{ }"] {
            let params = format!(r#"{{"name":"x","_meta":{meta}}}"#);
            assert_eq!(adapt_params(&params, Revision::V2025_11_25, Some(9)), params);
        }
    }

    #[test]
    fn stateless_server_gets_required_meta() {
        let text = adapt_params(r#"{"name":"x","arguments":{"n":1.10}}"#, Revision::V2026_07_28, None);
        assert!(text.starts_with(r#"{"name":"x","arguments":{"n":1.10},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}"#));
    }

    #[test]
    fn results_pass_unchanged_within_an_era() {
        let result = r#"{ "content":[ ] , "x":1e400, "resultType" : "later"}"#;
        assert_eq!(adapt_result(result, Era::Session, Era::Session), result);
        assert_eq!(adapt_result(result, Era::Stateless, Era::Stateless), result);
    }

    #[test]
    fn results_gain_and_lose_only_era_members() {
        let stamp = r#""_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"}}"#;
        let stateless = |result: &str| adapt_result(result, Era::Session, Era::Stateless);
        assert_eq!(stateless("{}"), format!(r#"{{"resultType":"complete",{stamp}}}"#));
        assert_eq!(stateless(r#"{"a":1.0}"#), format!(r#"{{"resultType":"complete",{stamp},"a":1.0}}"#));
        let nested = r#""structuredContent":{"resultType":"mine","_meta":{}}}"#;
        assert_eq!(
            stateless(&format!("{{{nested}")),
            format!(r#"{{"resultType":"complete",{stamp},{nested}"#)
        );
        let own_meta = stateless(r#"{"_meta":{"k":1.0},"a":2}"#);
        let stamped = r#"{"resultType":"complete","_meta":{"k":1.0,"io.modelcontextprotocol/serverInfo":{"name":"s"}},"a":2}"#;
        assert_eq!(own_meta, stamped);
        assert_eq!(stateless(stamped), stamped);
        assert_eq!(stateless(r#"{"_meta":7}"#), r#"{"resultType":"complete","_meta":7}"#);
        let with_text = r#""content":[{"type":"text","text":"[1]"}]"#;
        let without_text = r#""content":[]"#;
        for content in [with_text, without_text] {
            let result = format!(r#"{{"resultType":"complete",{content},"structuredContent":[1]}}"#);
            assert_eq!(adapt_result(&result, Era::Stateless, Era::Session), format!("{{{with_text}}}"));
            assert_eq!(adapt_result(&result, Era::Stateless, Era::Stateless), result);
        }
        let modern = r#"{"resultType":"complete","a":1.0,"ttlMs":5,"_meta":{"io.modelcontextprotocol/serverInfo":{},"k":2}}"#;
        assert_eq!(adapt_result(modern, Era::Stateless, Era::Session), r#"{"a":1.0,"_meta":{"k":2}}"#);
    }
}
