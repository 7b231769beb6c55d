//! The tool arguments that a server wants repeated in headers, learned from its listing.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use crate::protocol::header_mirror::{self, HeaderParam};
use crate::protocol::json::object::{self, Object};
use crate::protocol::jsonrpc::{RequestId, ResponsePayload, ServerMessage, encode_response};
use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;

/// Time limit for a new listing.
const RELIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The header parameters of a server's tools.
#[derive(Debug, Default)]
pub(super) struct HeaderParams {
    by_tool: RwLock<HashMap<String, Arc<[HeaderParam]>>>,
    /// Number of listings read to their end.
    completed_listings: watch::Sender<u64>,
}

impl HeaderParams {
    /// Returns the header parameters of a tool.
    pub(super) fn get(&self, tool: &str) -> Option<Arc<[HeaderParam]>> {
        self.by_tool.read().ignore_poison().get(tool).cloned()
    }

    /// Requests a new listing and waits until it has been read.
    pub(super) async fn wait_for_relist(&self, request_relist: impl FnOnce()) {
        let mut completed_listings = self.completed_listings.subscribe();
        request_relist();
        let _ = timeout(RELIST_TIMEOUT, completed_listings.changed()).await;
    }

    /// Reads a page of the tools list. Removes tools with invalid header parameters from it, as the protocol
    /// requires.
    pub(super) fn read_page(&self, server: &ServerId, message: Bytes) -> Bytes {
        let ServerMessage::Response { id, payload: ResponsePayload::Result(result) } =
            ServerMessage::parse(&message)
        else {
            return message;
        };
        let Ok(mut page) = Object::parse(&result) else { return message };
        let tools = page.get("tools").and_then(|tools| object::parse_array(tools).ok()).unwrap_or_default();
        let mut valid_tools = Vec::with_capacity(tools.len());
        for tool in &tools {
            let name = Object::parse(tool).ok().and_then(|tool| Some(tool.get_string("name")?.into_owned()));
            match header_mirror::header_params(tool) {
                Ok(params) => {
                    valid_tools.push(&**tool);
                    if let Some(name) = name {
                        self.record(name, params);
                    }
                }
                Err(reason) => {
                    warn!(%server, tool = name.unwrap_or_default(), reason, "tool left out: its header parameters are invalid");
                }
            }
        }
        if page.get("nextCursor").is_none() {
            self.completed_listings.send_modify(|count| *count += 1);
        }
        if valid_tools.len() == tools.len() {
            return message;
        }
        page.set_unchecked("tools", [&b"["[..], &valid_tools.join(&b','), b"]"].concat());
        let Some(id) = RequestId::parse(id.to_string().into()) else { return message };
        encode_response(&id, &ResponsePayload::Result(page.to_bytes())).into()
    }

    fn record(&self, name: String, params: Vec<HeaderParam>) {
        let current = self.get(&name);
        if current.as_deref().unwrap_or_default() == params.as_slice() {
            return;
        }
        let mut by_tool = self.by_tool.write().ignore_poison();
        if params.is_empty() {
            by_tool.remove(&name);
        } else {
            by_tool.insert(name, params.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_loses_only_tools_with_invalid_header_params() {
        let params = HeaderParams::default();
        let server = "far".parse().unwrap();
        let marked =
            r#"{"name":"b","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"R"}}}}"#;
        let page = |list: &str| {
            Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":3,"result":{{"tools":[{list}],"x":1.0}}}}"#))
        };
        let valid_page = page(&format!(r#"{{"name":"a"}},{marked}"#));
        assert_eq!(params.read_page(&server, valid_page.clone()), valid_page);
        assert_eq!(params.get("b").unwrap().len(), 1);
        assert!(params.get("a").is_none());
        let bad = marked.replace("\"R\"", "\"\"");
        assert_eq!(
            params.read_page(&server, page(&format!(r#"{{"name":"a"}},{bad}"#))),
            page(r#"{"name":"a"}"#)
        );
        assert_eq!(params.read_page(&server, page(r#"{"name":"b"}"#)), page(r#"{"name":"b"}"#));
        assert!(params.get("b").is_none());
    }
}
