//! Reads the keys of a remote server: its URL, headers and transport.

use std::collections::BTreeMap;

use http::header::HeaderName;

use super::reader::TableReader;
use super::{auth, forward};
use crate::spec::template::TemplateText;
use crate::spec::url::parse_url;
use crate::spec::{Forward, HttpSpec, TransportKind};

/// Keys that only a server with `command` has.
const COMMAND_ONLY_KEYS: [&str; 4] = ["args", "env", "cwd", "inherit-env"];

/// Headers that toolcrib sets itself.
const RESERVED_HEADERS: [&str; 15] = [
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

/// Value of `type`.
#[derive(Clone, Copy, PartialEq)]
enum WrittenTransport {
    Stdio,
    Http(TransportKind),
}

/// Reads the keys of a remote server. The outer `None` means that the server has no `url`; the inner one, that the keys
/// are invalid, which has been reported.
pub(super) fn read(reader: &mut TableReader<'_>) -> Option<Option<HttpSpec>> {
    let written = read_type(reader);
    let headers = read_headers(reader);
    let auth = auth::read(reader);
    let forward = forward::read(reader);
    if !reader.has("url") {
        reader.take("url");
        if matches!(written, Some(WrittenTransport::Http(_))) {
            reader.error_at_value("type", "`type` requires `url`", "add `url`, or remove `type`");
        } else if reader.has("headers") {
            reader.error_at_value("headers", "`headers` requires `url`", "add `url`, or remove `headers`");
        } else if reader.has("auth") {
            reader.error_at_value("auth", "`auth` requires `url`", "add `url`, or remove `auth`");
        } else if forward != Forward::Nothing {
            reader.error_at_value("forward", "`forward` requires `url`", "add `url`, or remove `forward`");
        }
        return None;
    }
    if reader.has("command") {
        for key in ["command", "url"] {
            reader.take(key);
        }
        let message = "`command` and `url` cannot be combined";
        reader.error_at_value("url", message, "remove `url` or `command`");
        return Some(None);
    }
    if written == Some(WrittenTransport::Stdio) {
        let message = "`type = \"stdio\"` cannot be combined with `url`";
        reader.error_at_value("type", message, "remove `type`");
    }
    for key in COMMAND_ONLY_KEYS.into_iter().filter(|key| reader.has(key)).collect::<Vec<_>>() {
        reader.error_at_value(
            key,
            format!("`{key}` requires `command`"),
            "remove it: the server has a `url`",
        );
    }
    let url = read_url(reader);
    let transport = match written {
        Some(WrittenTransport::Http(transport)) => transport,
        Some(WrittenTransport::Stdio) | None => TransportKind::default(),
    };
    Some(url.map(|url| HttpSpec { url, headers, transport, auth, forward }))
}

fn read_type(reader: &mut TableReader<'_>) -> Option<WrittenTransport> {
    let streamable = WrittenTransport::Http(TransportKind::Streamable);
    let mut choices = vec![
        ("stdio", WrittenTransport::Stdio),
        ("http", streamable),
        ("sse", WrittenTransport::Http(TransportKind::Sse)),
    ];
    if reader.source().json {
        // The spellings of other programs.
        let spellings = ["streamable-http", "streamableHttp", "streamable_http"];
        choices.extend(spellings.map(|spelling| (spelling, streamable)));
    }
    reader.choice("type", &choices)
}

fn read_url(reader: &mut TableReader<'_>) -> Option<TemplateText> {
    let written = reader.string("url")?;
    let node = reader.peek("url")?;
    let text = reader.template(node, written)?;
    // A URL with references is checked when a connection starts.
    if !written.contains("${")
        && let Err(why) = parse_url(written)
    {
        let hint = format!("write {}", reader.source().assignment("url", "\"https://example.com/mcp\""));
        reader.error_at_value("url", format!("invalid `url`: {why}"), hint);
        return None;
    }
    Some(text)
}

/// Returns whether toolcrib sets a header itself; its name is in lower case.
pub(super) fn is_reserved_header(name: &str) -> bool {
    RESERVED_HEADERS.contains(&name) || name.starts_with("mcp-param-")
}

fn read_headers(reader: &mut TableReader<'_>) -> BTreeMap<String, TemplateText> {
    let mut headers: BTreeMap<String, TemplateText> = BTreeMap::new();
    for entry in reader.raw_table("headers").map_or(&[][..], |table| &table.0) {
        let name = entry.key.to_ascii_lowercase();
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            let message = format!("invalid header name `{}`", entry.key.escape_default());
            reader.error(entry.offset, message, "write letters, digits and `-`");
        } else if is_reserved_header(&name) {
            reader.error(entry.offset, format!("the header `{}` is set by toolcrib", entry.key), "remove it");
        } else if headers.keys().any(|other| other.eq_ignore_ascii_case(&name)) {
            let message = format!("the header `{}` is defined twice", entry.key);
            reader.error(entry.offset, message, "remove one of the two; header names are case-insensitive");
        }
        let text = reader.string_element("headers", &entry.value);
        if let Some(text) = text.and_then(|text| reader.template(&entry.value, text)) {
            headers.insert(entry.key.clone(), text);
        }
    }
    headers
}
