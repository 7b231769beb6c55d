//! Encodes one call as a line of JSON. Contents are left out, except arguments if the config asks for them; values that look
//! like secrets are always redacted.

use std::array;
use std::io::Write as _;
use std::time::SystemTime;

use serde_json::Value;
use toolcrib::ServerId;
use toolcrib::model::event::{CacheUse, CallRecord};
use toolcrib::protocol::json::object::{write_number, write_string};
use toolcrib::util::format::format_timestamp;

/// Replacement for a secret.
const REDACTED: &str = "[redacted]";
/// Bytes of arguments up to which they are recorded.
const MAX_ARGUMENT_BYTES: usize = 16 << 10;
/// Parts of member names that mark a secret, in lower case and without `-` and `_`.
const SECRET_NAMES: [&str; 10] = [
    "token",
    "secret",
    "password",
    "passwd",
    "passphrase",
    "authorization",
    "apikey",
    "privatekey",
    "credential",
    "cookie",
];
/// Prefixes of values that are secrets under any name.
const SECRET_PREFIXES: [&str; 11] = [
    "Bearer ",
    "bearer ",
    "Basic ",
    "sk-",
    "ghp_",
    "gho_",
    "github_pat_",
    "xox",
    "AKIA",
    "eyJ",
    "-----BEGIN",
];

/// Formats timestamps and reuses the text of the current second.
#[derive(Default)]
pub(super) struct TimestampWriter {
    second: u64,
    text: String,
}

impl TimestampWriter {
    /// Returns the timestamp up to the second, and the milliseconds.
    fn format(&mut self, at: SystemTime) -> (&str, u32) {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if self.second != since.as_secs() || self.text.is_empty() {
            self.second = since.as_secs();
            self.text = format_timestamp(at);
            self.text.truncate("2026-11-15T08:48:26".len());
        }
        (&self.text, since.subsec_millis())
    }
}

/// Appends the line of one call.
pub(super) fn write_record(out: &mut Vec<u8>, record: &CallRecord, clock: &mut TimestampWriter) {
    let (seconds, millis) = clock.format(record.at);
    out.extend_from_slice(b"{\"at\":\"");
    out.extend_from_slice(seconds.as_bytes());
    out.push(b'.');
    write_thousandths(out, millis.into());
    out.extend_from_slice(b"Z\",\"id\":\"");
    write_hex(out, record.id.number());
    out.extend_from_slice(b"\",\"caller\":");
    write_string(out, record.caller.as_str());
    write_groups(out, record.caller.groups());
    out.extend_from_slice(b",\"method\":");
    write_string(out, &record.method);
    out.extend_from_slice(b",\"server\":");
    write_or_null(out, record.server.as_ref().map(ServerId::as_str));
    out.extend_from_slice(b",\"name\":");
    let is_uri = record.method.starts_with("resources/");
    write_string(out, if is_uri { redact_uri(&record.name) } else { &record.name });
    out.extend_from_slice(b",\"decision\":");
    write_string(out, record.decision.name());
    out.extend_from_slice(b",\"rule\":");
    write_or_null(out, record.denial.as_ref().map(|denial| &*denial.rule));
    if let Some(origin) = record.denial.as_ref().and_then(|denial| denial.origin.as_ref()) {
        out.extend_from_slice(b",\"file\":");
        write_string(out, &origin.file.to_string_lossy());
        out.extend_from_slice(b",\"line\":");
        write_number(out, origin.line as u64);
    }
    out.extend_from_slice(b",\"cache\":");
    write_or_null(out, record.cache.map(CacheUse::name));
    out.extend_from_slice(b",\"outcome\":");
    write_string(out, record.end.name());
    out.extend_from_slice(b",\"ms\":");
    let micros = u64::try_from(record.duration.as_micros()).unwrap_or(u64::MAX);
    write_number(out, micros / 1000);
    out.push(b'.');
    write_thousandths(out, micros % 1000);
    out.extend_from_slice(b",\"asked\":");
    write_number(out, record.request_bytes as u64);
    out.extend_from_slice(b",\"answered\":");
    write_number(out, record.response_bytes as u64);
    if let Some(arguments) = &record.arguments {
        write_arguments(out, arguments);
    }
    out.extend_from_slice(b"}\n");
}

/// Appends the groups of the caller, if it is in any.
fn write_groups(out: &mut Vec<u8>, groups: &[String]) {
    for (index, group) in groups.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b",\"groups\":[" } else { b"," });
        write_string(out, group);
    }
    if !groups.is_empty() {
        out.push(b']');
    }
}

/// Writes a number as 16 hexadecimal digits.
fn write_hex(out: &mut Vec<u8>, number: u64) {
    let digits: [u8; 16] =
        array::from_fn(|place| b"0123456789abcdef"[(number >> (60 - 4 * place) & 15) as usize]);
    out.extend_from_slice(&digits);
}

/// Writes the last three digits of a number.
fn write_thousandths(out: &mut Vec<u8>, number: u64) {
    out.extend([100, 10, 1].map(|unit| b'0' + (number / unit % 10) as u8));
}

fn write_or_null(out: &mut Vec<u8>, value: Option<&str>) {
    match value {
        Some(value) => write_string(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends the line that counts lost calls.
pub(super) fn write_lost(out: &mut Vec<u8>, lost: u64) {
    let _ = writeln!(out, "{{\"lost\":{lost}}}");
}

fn write_arguments(out: &mut Vec<u8>, raw: &[u8]) {
    let _ = write!(out, ",\"arguments\":{}", redact_arguments(raw));
}

/// Returns the arguments of a call as they are recorded, as JSON.
pub(crate) fn redact_arguments(raw: &[u8]) -> String {
    let recorded = Some(raw).filter(|raw| raw.len() <= MAX_ARGUMENT_BYTES);
    match recorded.and_then(|raw| serde_json::from_slice(raw).ok()) {
        Some(mut arguments) => {
            redact(&mut arguments);
            arguments.to_string()
        }
        None => "\"[too large]\"".to_owned(),
    }
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                if is_secret_name(name) { *value = REDACTED.into() } else { redact(value) }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(redact),
        Value::String(text) if SECRET_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) => {
            *text = REDACTED.to_owned();
        }
        Value::String(text) if text.contains("://") => *text = redact_uri(text).to_owned(),
        _ => {}
    }
}

fn is_secret_name(name: &str) -> bool {
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret))
}

/// Removes the query and fragment of a URI, and all of one that contains credentials.
pub(crate) fn redact_uri(uri: &str) -> &str {
    let uri = &uri[..uri.find(['?', '#']).unwrap_or(uri.len())];
    let host = uri.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    if host.is_some_and(|host| host.contains('@')) { REDACTED } else { uri }
}
