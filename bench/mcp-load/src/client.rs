//! One interface to servers over HTTP, stdio and REST.
//!
//! Tools are found by the suffix of their names, because every gateway has its own prefix.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::process::Child;

use crate::cli::{Load, ConnectArgs};
use crate::http::{Connection, Destination, Session};
use crate::rpc;
use crate::stdio::StdioPeer;

/// Request ids, unique in this process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Limit on pages, for servers whose cursors never end.
const MAX_PAGES: usize = 10_000;

/// A worker's connection to the server.
pub(crate) enum Channel {
    Http(Box<Connection>),
    Rest(Box<Connection>),
    Stdio(StdioPeer),
}

/// The text of a result and when it was complete.
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) at: Instant,
}

#[derive(Deserialize)]
struct ListPage {
    #[serde(default)]
    tools: Vec<ToolName>,
    #[serde(default, rename = "nextCursor")]
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct ToolName {
    name: String,
}

/// The result of a complete `tools/list`, with all pages.
#[derive(Default)]
pub(crate) struct Listing {
    pub(crate) names: Vec<String>,
    pub(crate) pages: usize,
    pub(crate) bytes: usize,
}

impl Channel {
    pub(crate) fn session(&self) -> &Session {
        match self {
            Channel::Http(connection) | Channel::Rest(connection) => &connection.session,
            Channel::Stdio(peer) => &peer.session,
        }
    }

    pub(crate) fn reconnects(&self) -> u64 {
        match self {
            Channel::Http(connection) | Channel::Rest(connection) => connection.reconnects,
            Channel::Stdio(_) => 0,
        }
    }

    pub(crate) fn sse_answers(&self) -> u64 {
        match self {
            Channel::Http(connection) => connection.sse_answers,
            _ => 0,
        }
    }

    /// Sends any request and returns the raw response.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        params: &str,
        name: Option<&str>,
    ) -> Result<(u64, Bytes, Instant)> {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        match self {
            Channel::Http(connection) => {
                let answer = connection.request(id, method, params, name).await?;
                Ok((id, answer.body, answer.at))
            }
            Channel::Stdio(peer) => {
                let (body, at) = peer.request(id, method, params).await?;
                Ok((id, body, at))
            }
            Channel::Rest(_) => bail!("no MCP over REST"),
        }
    }

    /// Calls `tool` and returns the text of its result.
    pub(crate) async fn call(&mut self, tool: &str, arguments: &str, template: Option<&str>) -> Result<Text> {
        if let Channel::Rest(connection) = self {
            let answer = connection.rest(tool, arguments).await?;
            let text = match serde_json::from_slice(&answer.body).context("not JSON")? {
                Value::String(text) => text,
                other => other.to_string(),
            };
            return Ok(Text { text, at: answer.at });
        }
        let params = match template {
            Some(template) => template.replace("$TOOL", tool).replace("$ARGS", arguments),
            None => format!(r#"{{"name":"{tool}","arguments":{arguments}}}"#),
        };
        let (id, body, at) = self.request("tools/call", &params, Some(tool)).await?;
        let response =
            rpc::Response::matching(&body, id).context("no response to this request in the answer")?;
        Ok(Text { text: rpc::call_text(response.into_result()?)?.into_owned(), at })
    }

    /// Reads all pages of `tools/list`.
    pub(crate) async fn list(&mut self) -> Result<Listing> {
        let mut listing = Listing::default();
        if let Channel::Rest(_) = self {
            return Ok(listing);
        }
        let mut params = "{}".to_owned();
        loop {
            let (id, body, _) = self.request("tools/list", &params, None).await?;
            listing.bytes += body.len();
            listing.pages += 1;
            let response = rpc::Response::matching(&body, id).context("no response to tools/list")?;
            let page: ListPage = serde_json::from_str(response.into_result()?.get())?;
            listing.names.extend(page.tools.into_iter().map(|tool| tool.name));
            match page.next_cursor {
                Some(cursor) if listing.pages < MAX_PAGES => params = json!({"cursor": cursor}).to_string(),
                _ => return Ok(listing),
            }
        }
    }
}

/// Returns the name under which `own_name` is called, looked up in `tools/list` unless the options give it.
pub(crate) async fn tool_name(channel: &mut Channel, load: &Load, own_name: &str) -> Result<String> {
    if load.exact_name || load.call_template.is_some() || matches!(channel, Channel::Rest(_)) {
        return Ok(own_name.to_owned());
    }
    Ok(listed_name(&channel.list().await?, own_name)?.to_owned())
}

/// Returns the name under which a tool is listed.
pub(crate) fn listed_name<'a>(listing: &'a Listing, own_name: &str) -> Result<&'a str> {
    resolve(&listing.names, own_name).with_context(|| {
        let shown: Vec<_> = listing.names.iter().take(8).collect();
        format!("no tool like {own_name} among {} tools, such as {shown:?}", listing.names.len())
    })
}

/// Opens channels as configured, and owns the child of a stdio server.
pub(crate) struct Opener {
    connect: ConnectArgs,
    destination: Option<Arc<Destination>>,
    peer: Option<(StdioPeer, Child)>,
}

impl Opener {
    pub(crate) async fn new(connect: &ConnectArgs, command: &[String]) -> Result<Self> {
        let mut opener = Self { connect: connect.clone(), destination: None, peer: None };
        match &connect.url {
            Some(url) => opener.destination = Some(Arc::new(Destination::new(url, connect)?)),
            None => {
                let (mut peer, child) = StdioPeer::spawn(command, &connect.protocol, connect.timeout())?;
                peer.handshake().await?;
                opener.peer = Some((peer, child));
            }
        }
        Ok(opener)
    }

    /// Opens a channel with its own session (stdio has only one).
    pub(crate) async fn open(&self) -> Result<Channel> {
        if let Some((peer, _)) = &self.peer {
            return Ok(Channel::Stdio(peer.clone()));
        }
        let destination = self.destination.clone().context("no url")?;
        let mut connection = Box::new(Connection::new(destination, Session::default()));
        if self.connect.rest {
            return Ok(Channel::Rest(connection));
        }
        connection.handshake().await?;
        Ok(Channel::Http(connection))
    }

    /// Opens a channel on its own connection that shares `other`'s session.
    pub(crate) fn share(&self, other: &Channel) -> Result<Channel> {
        if let Some((peer, _)) = &self.peer {
            return Ok(Channel::Stdio(peer.clone()));
        }
        let destination = self.destination.clone().context("no url")?;
        let mut connection = Box::new(Connection::new(destination, other.session().clone()));
        if let Channel::Http(other) = other {
            connection.stream = other.stream.clone();
        }
        Ok(if self.connect.rest { Channel::Rest(connection) } else { Channel::Http(connection) })
    }
}

/// Returns the listed name that means `own_name`: the name itself, or the name after a prefix and a separator.
pub(crate) fn resolve<'a>(names: &'a [String], own_name: &str) -> Option<&'a str> {
    let prefixed = |name: &str| {
        name.strip_suffix(own_name).is_some_and(|prefix| prefix.ends_with(|c: char| !c.is_ascii_alphanumeric()))
    };
    let exact = names.iter().find(|name| *name == own_name);
    exact.or_else(|| names.iter().find(|name| prefixed(name))).map(String::as_str)
}

/// Returns every listed name that means `own_name`.
pub(crate) fn resolve_all(names: &[String], own_name: &str) -> Vec<String> {
    names.iter().filter(|name| resolve(std::slice::from_ref(name), own_name).is_some()).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_resolve_by_suffix_after_a_separator() {
        let names: Vec<String> = ["s0_reecho", "s1__echo", "s2-echo"].map(String::from).to_vec();
        assert_eq!(resolve(&names, "echo"), Some("s1__echo"));
        assert_eq!(resolve_all(&names, "echo"), ["s1__echo", "s2-echo"]);
        assert_eq!(resolve(&names, "blob"), None);
    }
}
