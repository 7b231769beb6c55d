//! The JSON-RPC and MCP messages that a load generator needs.

use std::borrow::Cow;

use anyhow::{Context, Result, bail};
use echo_server::NO_INITIALIZE;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The notification after `initialize` was answered.
pub(crate) const INITIALIZED: &[u8] = br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Returns whether `version` has no `initialize`, so that every request carries its own `_meta`.
pub(crate) fn has_no_handshake(version: &str) -> bool {
    version >= NO_INITIALIZE
}

#[derive(Deserialize)]
pub(crate) struct Response<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) method: Option<&'a RawValue>,
    #[serde(borrow, default)]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

impl<'a> Response<'a> {
    /// Parses `message`; `None` if it is not the response to request `id`.
    pub(crate) fn matching(message: &'a [u8], id: u64) -> Option<Self> {
        let response: Response<'_> = serde_json::from_slice(message).ok()?;
        (response.method.is_none() && response.number() == Some(id)).then_some(response)
    }

    /// Returns the id as a number, also if it was sent back as a string.
    pub(crate) fn number(&self) -> Option<u64> {
        self.id?.get().trim_matches('"').parse().ok()
    }

    /// Returns an empty reply, for a request of the other side.
    pub(crate) fn empty_reply(&self) -> Option<Vec<u8>> {
        let id = self.id?.get();
        Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#).into_bytes())
    }

    pub(crate) fn into_result(self) -> Result<&'a RawValue> {
        match (self.result, self.error) {
            (Some(result), _) => Ok(result),
            (None, Some(error)) => bail!("rpc error {}", shorten(error.get())),
            (None, None) => bail!("response with neither result nor error"),
        }
    }
}

#[derive(Deserialize)]
struct CallResult<'a> {
    #[serde(borrow, default)]
    content: Vec<Content<'a>>,
    #[serde(default, rename = "isError")]
    is_error: bool,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    text: Cow<'a, str>,
}

/// Returns the text of a `tools/call` result.
pub(crate) fn call_text(result: &RawValue) -> Result<Cow<'_, str>> {
    let mut result: CallResult<'_> = serde_json::from_str(result.get()).context("not a tools/call result")?;
    if result.is_error {
        let text: String = result.content.iter().map(|part| &*part.text).collect();
        bail!("tool error {}", shorten(&text));
    }
    match result.content.len() {
        1 => Ok(result.content.remove(0).text),
        _ => Ok(result.content.iter().map(|part| &*part.text).collect::<String>().into()),
    }
}

/// Encodes a request for revision `version`. `params` is already JSON.
pub(crate) fn request_for(version: &str, id: u64, method: &str, params: &str) -> Vec<u8> {
    match has_no_handshake(version) {
        true => request(id, method, &with_meta(params, version)),
        false => request(id, method, params),
    }
}

fn request(id: u64, method: &str, params: &str) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#).into_bytes()
}

pub(crate) fn initialize_params(version: &str) -> String {
    json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client_info()}).to_string()
}

fn client_info() -> Value {
    json!({"name": "mcp-load", "version": env!("CARGO_PKG_VERSION")})
}

/// Returns `params` with the `_meta` that revisions without `initialize` require.
fn with_meta(params: &str, version: &str) -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": client_info(),
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let inner = params.trim().trim_start_matches('{');
    let comma = if inner.trim_start().starts_with('}') { "" } else { "," };
    format!(r#"{{"_meta":{meta}{comma}{inner}"#)
}

pub(crate) fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(200).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_is_merged_into_params() {
        for params in ["{}", r#"{"name":"x"}"#] {
            let merged: Value = serde_json::from_str(&with_meta(params, NO_INITIALIZE)).expect("valid JSON");
            assert_eq!(merged["_meta"]["io.modelcontextprotocol/protocolVersion"], NO_INITIALIZE);
        }
        let merged: Value =
            serde_json::from_str(&with_meta(r#"{"name":"x"}"#, NO_INITIALIZE)).expect("valid JSON");
        assert_eq!(merged["name"], "x");
    }

    #[test]
    fn responses_match_by_id_and_shape() {
        assert!(Response::matching(br#"{"jsonrpc":"2.0","id":5,"result":{}}"#, 5).is_some());
        assert!(Response::matching(br#"{"jsonrpc":"2.0","id":"5","result":{}}"#, 5).is_some());
        assert!(Response::matching(br#"{"jsonrpc":"2.0","id":6,"result":{}}"#, 5).is_none());
        assert!(Response::matching(br#"{"jsonrpc":"2.0","id":5,"method":"ping"}"#, 5).is_none());
    }
}
