//! A server that somebody else runs: its address, its headers, and how messages are carried.

use std::collections::BTreeMap;

use super::reader::Reader;
use crate::spec::{HttpSpec, Transport, address, is_header};
use crate::text::Text;

/// Keys that only a process of our own has.
const OF_PROCESSES: [&str; 4] = ["command", "args", "env", "cwd"];

/// Headers that are ours to set.
const OURS: [&str; 11] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "transfer-encoding",
];

/// Reads the keys of a remote server. The outer `None` means that it is a command; the inner one, that its address
/// is no good, which has been reported.
pub(super) fn read(reader: &mut Reader<'_>) -> Option<Option<HttpSpec>> {
    let json = reader.page().json;
    let transport = transport(reader, json);
    let headers = headers(reader);
    let url = url(reader);
    if !reader.has("url") {
        for key in ["headers", "type"] {
            if reader.has(key) && (key == "headers" || transport.is_some_and(|transport| transport.is_some()))
            {
                let message = format!("{} is for servers with `url`", reader.name(key));
                reader.wrong_value(key, message, "write a `url`, or leave it out");
            }
        }
        return None;
    }
    if transport == Some(None) {
        let hint = "leave out `type`: it is seen from `url`";
        reader.wrong_value("type", "a server with `url` is not `stdio`", hint);
    }
    for key in OF_PROCESSES.into_iter().filter(|key| reader.has(key)).collect::<Vec<_>>() {
        let (message, hint) = if key == "command" {
            ("a server has `command` or `url`, never both".to_owned(), "leave one of the two out")
        } else {
            (format!("{} is for servers with `command`", reader.name(key)), "leave it out")
        };
        reader.wrong_value(if key == "command" { "url" } else { key }, message, hint);
    }
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
