//! `Tools`: which arguments a server's tools want repeated in headers, learned from its own listing as it passes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::warn;

use crate::spec::ServerId;
use crate::wire::message::{Answer, Id, ServerMessage, reply};
use crate::wire::mirror::{self, Mirrored};
use crate::wire::object::{self, Object};

/// How long a new listing is waited for.
const RELISTED: Duration = Duration::from_secs(10);

/// The tools that want something in headers.
#[derive(Debug, Default)]
pub(super) struct Tools {
    marked: RwLock<HashMap<String, Arc<[Mirrored]>>>,
    /// Counts listings that were read to their end.
    listings: watch::Sender<u64>,
}

impl Tools {
    /// What a tool wants in headers.
    pub(super) fn marked(&self, tool: &str) -> Option<Arc<[Mirrored]>> {
        self.marked.read().unwrap_or_else(PoisonError::into_inner).get(tool).cloned()
    }

    /// Waits until the tools have been listed anew after `ask`.
    pub(super) async fn relisted(&self, ask: impl FnOnce()) {
        let mut listings = self.listings.subscribe();
        ask();
        let _ = timeout(RELISTED, listings.changed()).await;
    }

    /// Reads a page of the listing. A tool whose marks break the rules is left out of it, as the protocol wants.
    pub(super) fn read(&self, server: &ServerId, message: Bytes) -> Bytes {
        let ServerMessage::Reply { id, answer: Answer::Result(result) } = ServerMessage::parse(&message)
        else {
            return message;
        };
        let Ok(mut page) = Object::parse(&result) else { return message };
        let tools = page.get("tools").and_then(|tools| object::elements(tools).ok()).unwrap_or_default();
        let mut good = Vec::with_capacity(tools.len());
        for tool in &tools {
            let name = Object::parse(tool).ok().and_then(|tool| Some(tool.string("name")?.into_owned()));
            match mirror::mirrored(tool) {
                Ok(marks) => {
                    good.push(&**tool);
                    if let Some(name) = name {
                        self.learn(name, marks);
                    }
                }
                Err(why) => {
                    warn!(%server, tool = name.unwrap_or_default(), why, "left out: its headers break the rules");
                }
            }
        }
        if page.get("nextCursor").is_none() {
            self.listings.send_modify(|count| *count += 1);
        }
        if good.len() == tools.len() {
            return message;
        }
        page.set("tools", [&b"["[..], &good.join(&b','), b"]"].concat());
        let Some(id) = Id::read(id.to_string().into()) else { return message };
        reply(&id, &Answer::Result(page.to_bytes())).into()
    }

    fn learn(&self, name: String, marks: Vec<Mirrored>) {
        let known = self.marked(&name);
        if known.as_deref().unwrap_or_default() == marks.as_slice() {
            return;
        }
        let mut marked = self.marked.write().unwrap_or_else(PoisonError::into_inner);
        if marks.is_empty() {
            marked.remove(&name);
        } else {
            marked.insert(name, marks.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_loses_only_the_tools_that_break_the_rules() {
        let tools = Tools::default();
        let server = "far".parse().unwrap();
        let marked =
            r#"{"name":"b","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"R"}}}}"#;
        let page = |list: &str| {
            Bytes::from(format!(r#"{{"jsonrpc":"2.0","id":3,"result":{{"tools":[{list}],"x":1.0}}}}"#))
        };
        let good = page(&format!(r#"{{"name":"a"}},{marked}"#));
        assert_eq!(tools.read(&server, good.clone()), good);
        assert_eq!(tools.marked("b").unwrap().len(), 1);
        assert!(tools.marked("a").is_none());
        let bad = marked.replace("\"R\"", "\"\"");
        assert_eq!(tools.read(&server, page(&format!(r#"{{"name":"a"}},{bad}"#))), page(r#"{"name":"a"}"#));
        assert_eq!(tools.read(&server, page(r#"{"name":"b"}"#)), page(r#"{"name":"b"}"#));
        assert!(tools.marked("b").is_none());
    }
}
