//! A server that somebody else runs: its address, its headers, and how messages are carried.

use std::collections::BTreeMap;

use super::reader::Reader;
use crate::spec::{HttpSpec, Transport, address, is_header};
use crate::text::Text;

/// Keys that only a process of our own has.
const OF_PROCESSES: [&str; 4] = ["args", "env", "cwd", "inherit-env"];

/// Headers that are ours to set.
const OURS: [&str; 15] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "proxy-authorization",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Reads the keys of a remote server. The outer `None` means that it is a command; the inner one, that something is
/// wrong with it, which has been reported.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Option<HttpSpec>> {
    let json = reader.page().json;
    let transport = transport(reader, json);
    let headers = headers(reader);
    if !reader.has("url") {
        reader.take("url");
        if transport.is_some_and(|transport| transport.is_some()) {
            let word = reader.name("type");
            reader.wrong_value("type", format!("{word} wants a `url`"), "write one, or leave it out");
        } else if reader.has("headers") {
            reader.wrong_value("headers", "`headers` wants a `url`", "write one, or leave it out");
        }
        return None;
    }
    if reader.has("command") {
        for key in ["command", "url"] {
            reader.take(key);
        }
        reader.wrong_value("url", "a server has `command` or `url`, never both", "leave `url` out");
        return Some(None);
    }
    if transport == Some(None) {
        reader.wrong_value("type", "a server with `url` is not `stdio`", "leave `type` out");
    }
    for key in OF_PROCESSES.into_iter().filter(|key| reader.has(key)).collect::<Vec<_>>() {
        reader.wrong_value(key, format!("`{key}` wants a `command`"), "leave it out");
    }
    let url = url(reader);
    let transport = transport.flatten().unwrap_or_default();
    Some(url.map(|url| HttpSpec { url, headers, transport }))
}

/// `Some(None)` for a process of our own.
fn transport(reader: &mut Reader<'_>, json: bool) -> Option<Option<Transport>> {
    let streamable = Some(Transport::Streamable);
    let mut choices = vec![("stdio", None), ("http", streamable), ("sse", Some(Transport::Events))];
    if json {
        // As other programs write it.
        choices
            .extend(["streamable-http", "streamableHttp", "streamable_http"].map(|word| (word, streamable)));
    }
    reader.choice("type", &choices, &[])
}

fn url(reader: &mut Reader<'_>) -> Option<Text> {
    let written = reader.string("url")?;
    let node = reader.value("url")?;
    let text = reader.text(node, written)?;
    // What a reference stands for is seen when the server is first asked.
    if !written.contains("${")
        && let Err(why) = address(written)
    {
        let hint = format!("write {}", reader.page().setting("url", "\"https://example.com/mcp\""));
        reader.wrong_value("url", format!("`url` cannot be used: {why}"), hint);
        return None;
    }
    Some(text)
}

fn headers(reader: &mut Reader<'_>) -> BTreeMap<String, Text> {
    let mut headers: BTreeMap<String, Text> = BTreeMap::new();
    for entry in reader.members("headers").map_or(&[][..], |table| &table.0) {
        let name = entry.key.to_ascii_lowercase();
        if !is_header(&name) {
            let message = format!("`{}` cannot be a header", entry.key.escape_default());
            reader.wrong(entry.at, message, "a header's name is letters, digits and `-`");
        } else if OURS.contains(&&*name) || name.starts_with("mcp-param-") {
            reader.wrong(entry.at, format!("`{}` is set by toolcrib itself", entry.key), "leave it out");
        } else if headers.keys().any(|other| other.eq_ignore_ascii_case(&name)) {
            let message = format!("the header `{}` is there twice", entry.key);
            reader.wrong(entry.at, message, "keep one of the two; upper and lower case make no difference");
        }
        let text = reader.element("headers", &entry.value);
        if let Some(text) = text.and_then(|text| reader.text(&entry.value, text)) {
            headers.insert(entry.key.clone(), text);
        }
    }
    headers
}
