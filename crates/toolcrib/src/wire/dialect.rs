//! Speaks the session-era protocol on the outside while the inside speaks the stateless one.
//!
//! Inside, a call is its parameters and nothing else: no handshake, no session, no per-hop `_meta`. This is the one
//! place that knows what each era adds on the way out and takes off on the way in.

pub mod client;
pub mod greeting;
pub mod input;
pub mod party;

use bytes::Bytes;

use super::message::{Answer, code};
use super::object::{self, Object};
use super::revision::{Era, Revision};
use super::scan;
use party::Client;

/// Keys of `_meta` that belong to one hop and are never passed on.
pub mod meta {
    /// The revision a request is written in.
    pub const REVISION: &str = "io.modelcontextprotocol/protocolVersion";
    /// What the client can do.
    pub const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
    /// Who the client says it is.
    pub const CLIENT: &str = "io.modelcontextprotocol/clientInfo";
    /// How much log the client wants with this request.
    pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
    /// Who the server says it is.
    pub const SERVER: &str = "io.modelcontextprotocol/serverInfo";
    /// Which stream of news a notification is for: the request that asked for it.
    pub const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";
    /// Which progress belongs to which request.
    pub const PROGRESS: &str = "progressToken";

    /// What a client says of itself with every request of the stateless era.
    pub(crate) const SAID_BY_CLIENTS: [&str; 4] = [REVISION, CAPABILITIES, CLIENT, LOG_LEVEL];
}

/// Who we are, to both sides, as JSON.
pub const IMPLEMENTATION: &str =
    concat!(r#"{"name":"toolcrib","version":""#, env!("CARGO_PKG_VERSION"), r#""}"#);

/// A call's parameters as a server of this revision wants them, on behalf of `client`. `token` is where we want to hear
/// of the progress that the client asks for.
pub fn to_server(params: &mut Object, revision: Revision, client: Option<&Client>, token: Option<u64>) {
    let stateless = revision.era() == Era::Stateless;
    if !stateless {
        params.retain(|key| !matches!(key, input::RESPONSES | input::STATE));
    }
    let written = params.get("_meta");
    if written.is_none() && !stateless {
        return;
    }
    let mut meta = written.and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
    let token = token.filter(|_| meta.get(meta::PROGRESS).is_some());
    meta.retain(|key| key != meta::PROGRESS && !meta::SAID_BY_CLIENTS.contains(&key));
    if stateless {
        meta.set(meta::REVISION, object::string(revision.as_str()));
        meta.set(meta::CAPABILITIES, client.map_or(Bytes::from_static(b"{}"), Client::declared));
        meta.set(meta::CLIENT, IMPLEMENTATION);
        if let Some(level) = client.and_then(|client| client.log) {
            meta.set(meta::LOG_LEVEL, object::string(level.as_str()));
        }
    }
    if let Some(token) = token {
        meta.set(meta::PROGRESS, token.to_string());
    }
    if meta.is_empty() {
        params.remove("_meta");
    } else {
        params.set("_meta", meta.to_bytes());
    }
}

/// A server's answer as a client of the other era wants it: what the server's era adds is taken off, what the client's
/// era needs is added, and what they call differently gets its other name. Within one era the bytes pass untouched,
/// but for errors about this hop, which mean nothing to the client.
pub fn to_client(answer: Answer, method: &str, server: Era, client: Era) -> Answer {
    match (answer, server, client) {
        (Answer::Result(result), Era::Session, Era::Stateless) => {
            Answer::Result(with_stateless_members(&result, is_cacheable(method)))
        }
        (Answer::Result(result), Era::Stateless, Era::Session) => {
            Answer::Result(without_stateless_members(&result))
        }
        (Answer::Error(error), Era::Session, Era::Session) => Answer::Error(error),
        (Answer::Error(error), ..) => Answer::Error(error_to_client(error, method, server, client)),
        (answer, ..) => answer,
    }
}

/// Methods whose results say how long they may be kept, in the stateless era.
fn is_cacheable(method: &str) -> bool {
    method == "resources/read" || method == "server/discover" || method.ends_with("/list")
}

/// An error with the code that the client's era has for it.
fn error_to_client(error: Bytes, method: &str, server: Era, client: Era) -> Bytes {
    let Ok(mut object) = Object::parse(&error) else { return error };
    let Some(code) = object.get("code").and_then(|raw| std::str::from_utf8(raw).ok()?.parse::<i32>().ok())
    else {
        return error;
    };
    let reads = method == "resources/read";
    let other = match (code, server, client) {
        (code::NO_RESOURCE, Era::Session, Era::Stateless) if reads => code::INVALID_PARAMS,
        (code::INVALID_PARAMS, Era::Stateless, Era::Session) if reads && says_not_found(&object) => {
            code::NO_RESOURCE
        }
        (code::LACKS_ABILITY, Era::Stateless, Era::Session) => code::INVALID_PARAMS,
        (code::HEADER_MISMATCH | code::UNSUPPORTED_REVISION, Era::Stateless, _) => code::INTERNAL,
        _ => return error,
    };
    object.set("code", other.to_string());
    object.to_bytes()
}

fn says_not_found(error: &Object) -> bool {
    let names_uri = error
        .get("data")
        .and_then(|raw| Object::parse(raw).ok())
        .is_some_and(|data| data.get("uri").is_some());
    names_uri
        || error.string("message").is_some_and(|message| message.to_ascii_lowercase().contains("not found"))
}

/// What a tool gives besides words.
const STRUCTURED: &str = "structuredContent";

/// A tool's definition as a client of this era may see it; `None` if that is all of it. Tasks of sessions are not those
/// of the stateless era, and sessions know no results that are not objects.
pub(crate) fn tool_to_client(definition: &Bytes, era: Era) -> Option<Bytes> {
    let unknown = match era {
        Era::Session => "outputSchema",
        Era::Stateless => "execution",
    };
    memchr::memmem::find(definition, unknown.as_bytes())?;
    let mut tool = Object::parse(definition).ok()?;
    let value = tool.remove(unknown)?;
    let is_object =
        || Object::parse(&value).is_ok_and(|schema| schema.string("type").as_deref() == Some("object"));
    if era == Era::Session && is_object() {
        return None;
    }
    Some(tool.to_bytes())
}

/// A member name in quotes can stand in JSON only where it really is a name or a whole string, so its absence proves
/// that the member is not there without reading the result again.
fn with_stateless_members(result: &Bytes, cacheable: bool) -> Bytes {
    let Some(rest) = result.strip_prefix(b"{") else { return result.clone() };
    let mut out = Vec::with_capacity(result.len() + 70);
    out.push(b'{');
    let has = |name: &[u8]| scan::find(result, name).is_some();
    let marked = has(b"\"resultType\"") || (cacheable && has(b"\"ttlMs\""));
    let known = if marked { Object::parse(result).ok() } else { None };
    let mut add = |key: &str, member: &[u8]| {
        if known.as_ref().is_none_or(|known| known.get(key).is_none()) {
            out.extend_from_slice(member);
        }
    };
    add("resultType", br#""resultType":"complete","#);
    if cacheable {
        add("ttlMs", br#""ttlMs":0,"cacheScope":"private","#);
    }
    if rest.trim_ascii_start().first() == Some(&b'}') && out.len() > 1 {
        out.pop(); // nothing follows the last comma
    }
    out.extend_from_slice(rest);
    out.into()
}

fn without_stateless_members(result: &Bytes) -> Bytes {
    let Ok(mut object) = Object::parse(result) else { return result.clone() };
    object.retain(|key| !matches!(key, "resultType" | "ttlMs" | "cacheScope"));
    if object.get(STRUCTURED).is_some_and(|raw| raw.first() != Some(&b'{')) {
        // Sessions know objects only. The server says it in words as well, or should have.
        let value = object.remove(STRUCTURED).unwrap_or_default();
        if object.get("content").is_none_or(|raw| object::elements(raw).is_ok_and(|said| said.is_empty())) {
            let text = object::string(&String::from_utf8_lossy(&value));
            object.set("content", [br#"[{"type":"text","text":"#, &text[..], b"}]"].concat());
        }
    }
    if let Some(mut meta) = object.get("_meta").and_then(|raw| Object::parse(raw).ok())
        && meta.remove(meta::SERVER).is_some()
    {
        if meta.is_empty() {
            object.remove("_meta");
        } else {
            object.set("_meta", meta.to_bytes());
        }
    }
    object.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(params: &str, revision: Revision, progress: Option<u64>) -> String {
        let mut object = Object::parse(&Bytes::copy_from_slice(params.as_bytes())).unwrap();
        to_server(&mut object, revision, None, progress);
        String::from_utf8(object.to_bytes().to_vec()).unwrap()
    }

    fn shown(result: &str, server: Era, client: Era) -> String {
        let answer = Answer::Result(Bytes::copy_from_slice(result.as_bytes()));
        let (Answer::Result(shown) | Answer::Error(shown)) = to_client(answer, "tools/call", server, client);
        String::from_utf8(shown.to_vec()).unwrap()
    }

    fn error_code(error: &'static str, method: &str, server: Era, client: Era) -> i64 {
        let answer = Answer::Error(Bytes::from_static(error.as_bytes()));
        let (Answer::Result(shown) | Answer::Error(shown)) = to_client(answer, method, server, client);
        serde_json::from_slice::<serde_json::Value>(&shown).unwrap()["code"].as_i64().unwrap()
    }

    #[test]
    fn errors_get_the_code_that_the_clients_era_has_for_them() {
        let (session, stateless) = (Era::Session, Era::Stateless);
        let missing = r#"{"code":-32002,"message":"Resource not found"}"#;
        assert_eq!(error_code(missing, "resources/read", session, stateless), -32602);
        assert_eq!(error_code(missing, "resources/read", session, session), -32002);
        let absent = r#"{"code":-32602,"message":"Resource not found","data":{"uri":"x:y"}}"#;
        assert_eq!(error_code(absent, "resources/read", stateless, session), -32002);
        assert_eq!(
            error_code(r#"{"code":-32602,"message":"no"}"#, "resources/read", stateless, session),
            -32602
        );
        let lacking = r#"{"code":-32021,"message":"sampling"}"#;
        assert_eq!(error_code(lacking, "tools/call", stateless, session), -32602);
        assert_eq!(error_code(lacking, "tools/call", stateless, stateless), -32021);
        let hop = r#"{"code":-32020,"message":"headers"}"#;
        assert_eq!(error_code(hop, "tools/call", stateless, stateless), -32603);
    }

    #[test]
    fn what_a_stateless_client_may_keep_says_so() {
        let answer = Answer::Result(Bytes::from_static(br#"{"contents":[]}"#));
        let Answer::Result(shown) = to_client(answer, "resources/read", Era::Session, Era::Stateless) else {
            panic!()
        };
        assert_eq!(shown, r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}"#);
    }

    #[test]
    fn a_session_server_never_sees_what_the_stateless_era_adds() {
        let params = r#"{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"progressToken":"theirs","traceparent":"00-1"}}"#;
        assert_eq!(
            sent(params, Revision::V2025_11_25, None),
            r#"{"name":"x","_meta":{"traceparent":"00-1"}}"#
        );
        assert_eq!(
            sent(r#"{"name":"x","_meta":{"progressToken":1}}"#, Revision::V2025_11_25, Some(9)),
            r#"{"name":"x","_meta":{"progressToken":9}}"#
        );
        assert_eq!(sent(r#"{"name":"x"}"#, Revision::V2025_11_25, Some(9)), r#"{"name":"x"}"#);
        assert_eq!(
            sent(r#"{"name":"x","_meta":{"progressToken":1}}"#, Revision::V2025_11_25, None),
            r#"{"name":"x"}"#
        );
    }

    #[test]
    fn a_stateless_server_gets_what_its_era_needs() {
        let text = sent(r#"{"name":"x","arguments":{"n":1.10}}"#, Revision::V2026_07_28, None);
        assert!(text.starts_with(r#"{"name":"x","arguments":{"n":1.10},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}"#));
    }

    #[test]
    fn results_pass_untouched_within_an_era() {
        let odd = r#"{ "content":[ ] , "x":1e400, "resultType" : "later"}"#;
        assert_eq!(shown(odd, Era::Session, Era::Session), odd);
        assert_eq!(shown(odd, Era::Stateless, Era::Stateless), odd);
    }

    #[test]
    fn results_gain_and_lose_only_what_the_era_adds() {
        assert_eq!(shown("{}", Era::Session, Era::Stateless), r#"{"resultType":"complete"}"#);
        assert_eq!(
            shown(r#"{"a":1.0}"#, Era::Session, Era::Stateless),
            r#"{"resultType":"complete","a":1.0}"#
        );
        let nested = r#"{"structuredContent":{"resultType":"mine"}}"#;
        assert_eq!(
            shown(nested, Era::Session, Era::Stateless),
            r#"{"resultType":"complete","structuredContent":{"resultType":"mine"}}"#
        );
        let [list, mute] = [r#""content":[{"type":"text","text":"[1]"}]"#, r#""content":[]"#];
        for said in [list, mute] {
            let odd = format!(r#"{{"resultType":"complete",{said},"structuredContent":[1]}}"#);
            assert_eq!(shown(&odd, Era::Stateless, Era::Session), format!("{{{list}}}"));
            assert_eq!(shown(&odd, Era::Stateless, Era::Stateless), odd);
        }
        let modern = r#"{"resultType":"complete","a":1.0,"ttlMs":5,"_meta":{"io.modelcontextprotocol/serverInfo":{},"k":2}}"#;
        assert_eq!(shown(modern, Era::Stateless, Era::Session), r#"{"a":1.0,"_meta":{"k":2}}"#);
    }
}
