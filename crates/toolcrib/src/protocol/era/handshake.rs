//! The requests that open a connection to a server in either era, and the parsing of its responses.

use bytes::Bytes;

use super::capabilities::ClientCapabilities;
use super::meta;
use crate::protocol::json::object::{self, Object, as_string};
use crate::protocol::jsonrpc::{ResponsePayload, code, printable};
use crate::protocol::versions::{Era, Revision};

/// A request that opens a connection.
#[derive(Debug)]
pub struct HandshakeRequest {
    /// Its method.
    pub method: &'static str,
    /// Its parameters.
    pub params: Object,
}

/// The client that a handshake introduces to a server.
#[derive(Debug, Clone)]
pub struct HandshakeClient {
    /// Its capabilities. A server's request that the calling client does not support is rejected when it arrives.
    pub capabilities: ClientCapabilities,
    /// Its name and version, as JSON.
    pub info: Bytes,
}

/// Sent once a session is open.
pub const INITIALIZED: &str = "notifications/initialized";

/// The capabilities of a server that has declared none.
const ASSUMED_CAPABILITIES: &str = r#"{"tools":{},"prompts":{},"resources":{}}"#;

/// Most bytes of a server's error message that are repeated.
const MAX_ERROR_LEN: usize = 500;

/// The result of a handshake: what the server declared about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandshakeResult {
    /// The revision used with it.
    pub revision: Revision,
    /// `serverInfo`, as the server sent it.
    pub server_info: Option<Bytes>,
    /// `capabilities`, as the server sent them.
    pub capabilities: Bytes,
    /// Its instructions for models, if any.
    pub instructions: Option<String>,
}

impl HandshakeResult {
    fn from_result(revision: Revision, server_info: Option<&Bytes>, result: &Object) -> Self {
        // Copies, because slices would keep the whole message in memory.
        let copy = |raw: &Bytes| Bytes::copy_from_slice(raw);
        let capabilities = result.get("capabilities").map_or(Bytes::from_static(b"{}"), copy);
        let instructions = result.get_string("instructions").map(std::borrow::Cow::into_owned);
        Self { revision, server_info: server_info.map(copy), capabilities, instructions }
    }

    /// Assumes all kinds of lists, for a server that rejected the probe with an error of the stateless era.
    fn assumed(revision: Revision) -> Self {
        let capabilities = Bytes::from_static(ASSUMED_CAPABILITIES.as_bytes());
        Self { revision, server_info: None, capabilities, instructions: None }
    }

    /// Returns whether the server has declared nothing, because it rejected the probe.
    pub(crate) fn is_assumed(&self) -> bool {
        self.revision.era() == Era::Stateless
            && self.server_info.is_none()
            && self.capabilities == ASSUMED_CAPABILITIES.as_bytes()
    }

    /// Returns whether it declares a capability.
    pub fn has_capability(&self, capability: &str) -> bool {
        declares_capability(&self.capabilities, capability)
    }
}

/// Returns whether a capabilities object declares a capability.
pub fn declares_capability(capabilities: &Bytes, capability: &str) -> bool {
    let capabilities = Object::parse(capabilities).unwrap_or_default();
    capabilities.get(capability).is_some_and(|raw| !matches!(&**raw, b"null" | b"false"))
}

/// The era that a probe found.
#[derive(Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The stateless era.
    Stateless(HandshakeResult),
    /// The session era, or unknown: open a session.
    Session,
}

/// Builds the request that checks whether a server supports the stateless era.
pub fn probe_request(client_info: &Bytes) -> HandshakeRequest {
    let mut meta = Object::default();
    let newest = object::to_json_string(Revision::newest(Era::Stateless).as_str());
    meta.set_unchecked(meta::PROTOCOL_VERSION, newest);
    meta.set_unchecked(meta::CLIENT_CAPABILITIES, Bytes::from_static(b"{}"));
    meta.set_unchecked(meta::CLIENT_INFO, client_info.clone());
    let mut params = Object::default();
    params.set_unchecked("_meta", meta.to_bytes());
    HandshakeRequest { method: "server/discover", params }
}

/// Parses the response to a probe. A result counts only if it lists revisions, because some servers respond to any
/// method.
pub fn parse_probe_response(payload: &ResponsePayload) -> ProbeOutcome {
    let result = match payload {
        ResponsePayload::Result(result) => result,
        ResponsePayload::Error(error) => return parse_probe_error(error),
    };
    let Ok(result) = Object::parse(result) else { return ProbeOutcome::Session };
    match newest_stateless(result.get("supportedVersions")) {
        None => ProbeOutcome::Session,
        Some(revision) => {
            let info = result.get("_meta").and_then(|raw| Object::parse(raw).ok());
            let server_info = info.as_ref().and_then(|info| info.get(meta::SERVER_INFO));
            ProbeOutcome::Stateless(HandshakeResult::from_result(revision, server_info, &result))
        }
    }
}

/// Parses an error response to a probe. Some errors exist only in the stateless era. An error that lists revisions
/// counts by its list, because a server that knows the error may still support only sessions.
fn parse_probe_error(error: &Bytes) -> ProbeOutcome {
    let revision = match error_code(error) {
        Some(code::HEADER_MISMATCH | code::MISSING_CAPABILITY) => Some(Revision::newest(Era::Stateless)),
        Some(code::UNSUPPORTED_VERSION) => {
            let data = Object::parse(error).ok().and_then(|error| Object::parse(error.get("data")?).ok());
            data.and_then(|data| newest_stateless(data.get("supported")))
        }
        _ => None,
    };
    revision
        .map_or(ProbeOutcome::Session, |revision| ProbeOutcome::Stateless(HandshakeResult::assumed(revision)))
}

/// Returns the newest known revision in a raw list of dates, if it belongs to the stateless era.
fn newest_stateless(dates: Option<&Bytes>) -> Option<Revision> {
    let dates = dates.and_then(|raw| serde_json::from_slice::<Vec<String>>(raw).ok()).unwrap_or_default();
    let newest: Option<Revision> = dates.iter().filter_map(|date| date.parse().ok()).max();
    newest.filter(|revision| revision.era() == Era::Stateless)
}

/// Builds the request that opens a session, for one client or shared by all.
pub fn initialize_request(revision: Revision, client: &HandshakeClient) -> HandshakeRequest {
    let mut params = Object::default();
    params.set_unchecked("protocolVersion", object::to_json_string(revision.as_str()));
    params.set_unchecked("capabilities", client.capabilities.to_session_json());
    params.set_unchecked("clientInfo", client.info.clone());
    HandshakeRequest { method: "initialize", params }
}

/// Parses the response to an initialize request.
///
/// # Errors
/// If no session was opened; the message says why.
pub fn parse_initialize_response(payload: &ResponsePayload) -> Result<HandshakeResult, String> {
    let result = match payload {
        ResponsePayload::Result(result) => Object::parse(result).map_err(|bad| bad.reason)?,
        ResponsePayload::Error(error) => {
            return Err(format!("it rejected `initialize`: {}", error_message(error)));
        }
    };
    let version = result.get_string("protocolVersion").ok_or("its response has no `protocolVersion`")?;
    let supported = version.parse().ok().filter(|revision: &Revision| revision.era() == Era::Session);
    let revision =
        supported.ok_or_else(|| format!("it uses protocol version `{version}`, which is not supported"))?;
    Ok(HandshakeResult::from_result(revision, result.get("serverInfo"), &result))
}

/// Returns the message of an error object, or the whole object, in printable form.
pub fn error_message(error: &Bytes) -> String {
    let message = Object::parse(error).ok().and_then(|error| error.get("message").cloned());
    match message.as_deref().and_then(as_string) {
        Some(text) => printable(text.as_bytes(), MAX_ERROR_LEN),
        None => printable(error, MAX_ERROR_LEN),
    }
}

/// Returns the code of an error object.
pub fn error_code(error: &Bytes) -> Option<i32> {
    std::str::from_utf8(Object::parse(error).ok()?.get("code")?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &'static str) -> ResponsePayload {
        ResponsePayload::Result(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn probe_result_without_revisions_means_session() {
        let modern = parse_probe_response(&result(
            r#"{"supportedVersions":["2025-11-25","2026-07-28"],"capabilities":{"tools":{}}}"#,
        ));
        let ProbeOutcome::Stateless(handshake) = modern else { panic!("{modern:?}") };
        assert_eq!((handshake.revision, handshake.has_capability("tools")), (Revision::V2026_07_28, true));
        for old in [
            result("{}"),
            result(r#"{"supportedVersions":["2025-11-25"]}"#),
            ResponsePayload::Error(Bytes::from_static(
                br#"{"code":-32022,"data":{"supported":["2025-11-25"]}}"#,
            )),
            ResponsePayload::Error(Bytes::from_static(br#"{"code":-32601}"#)),
        ] {
            assert_eq!(parse_probe_response(&old), ProbeOutcome::Session, "{old:?}");
        }
    }

    #[test]
    fn error_message_is_printable_and_short() {
        let message = |text: &str| error_message(&Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(message(r#"{"code":1,"message":"no \u001b[2Jway\r\n\u009b"}"#), "no  [2Jway   ");
        assert_eq!(message("{\"code\":\u{9b}1}"), "{\"code\": 1}");
        let long = message(&format!(r#"{{"message":"a{}"}}"#, "é".repeat(1000)));
        assert_eq!(long, format!("a{}…", "é".repeat(249)));
    }

    #[test]
    fn probe_error_counts_by_the_revisions_it_lists() {
        for modern in [
            r#"{"code":-32020,"message":"headers"}"#,
            r#"{"code":-32021,"data":{"requiredCapabilities":{"roots":{}}}}"#,
            r#"{"code":-32022,"data":{"supported":["2025-11-25","2026-07-28"]}}"#,
        ] {
            let probed = parse_probe_response(&ResponsePayload::Error(Bytes::from_static(modern.as_bytes())));
            let ProbeOutcome::Stateless(handshake) = probed else { panic!("{modern}") };
            assert!(
                ["tools", "prompts", "resources"].iter().all(|list| handshake.has_capability(list)),
                "{modern}"
            );
        }
        for old in [r#"{"code":-32022}"#, r#"{"code":-32022,"data":{"supported":["2999-01-01"]}}"#, "{}"] {
            let probed = parse_probe_response(&ResponsePayload::Error(Bytes::from_static(old.as_bytes())));
            assert_eq!(probed, ProbeOutcome::Session, "{old}");
        }
    }

    #[test]
    fn initialize_response_keeps_declared_values() {
        let text = r#"{"protocolVersion":"2025-11-25","capabilities":{"prompts":{ "x":1.0},"tools":null},"instructions":"be kind"}"#;
        let handshake = parse_initialize_response(&result(text)).unwrap();
        assert_eq!(&handshake.capabilities[..], br#"{"prompts":{ "x":1.0},"tools":null}"#);
        assert_eq!(handshake.instructions.as_deref(), Some("be kind"));
        assert_eq!(
            (
                handshake.has_capability("prompts"),
                handshake.has_capability("tools"),
                handshake.has_capability("x")
            ),
            (true, false, false)
        );
    }

    #[test]
    fn session_needs_a_known_revision() {
        let accepted = parse_initialize_response(&result(
            r#"{"protocolVersion":"2024-11-05","capabilities":{},"serverInfo":{"name":"x"}}"#,
        ));
        assert_eq!(accepted.unwrap().revision, Revision::V2024_11_05);
        for bad in ["{}", r#"{"protocolVersion":"2026-07-28"}"#, r#"{"protocolVersion":"1999-01-01"}"#] {
            assert!(parse_initialize_response(&result(bad)).is_err(), "{bad}");
        }
        let rejected = parse_initialize_response(&ResponsePayload::Error(Bytes::from_static(
            br#"{"code":1,"message":"no"}"#,
        )));
        assert_eq!(rejected.unwrap_err(), "it rejected `initialize`: no");
    }
}
