//! One call as a line of JSON. Nothing that was said in it is there, unless arguments are asked for; what looks like a
//! secret never is.

use std::io::Write as _;
use std::time::SystemTime;

use serde_json::Value;
use toolcrib::ServerId;
use toolcrib::event::{CacheUse, Called};
use toolcrib::wire::object::{write_number, write_string};

use crate::timestamp::timestamp;

/// What stands in place of a secret.
const HIDDEN: &str = "[redacted]";
/// The most bytes of arguments that are recorded.
const MOST_ARGUMENTS: usize = 16 << 10;
/// What names of secrets contain, in small letters and without `-` and `_`.
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
/// How values begin that are secrets whatever they are called.
const SECRET_VALUES: [&str; 11] = [
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

/// Writes moments; those within one second begin alike.
#[derive(Default)]
pub(super) struct Clock {
    second: u64,
    text: String,
}

impl Clock {
    /// Up to the second, and the milliseconds beyond it.
    fn read(&mut self, at: SystemTime) -> (&str, u32) {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if self.second != since.as_secs() || self.text.is_empty() {
            (self.second, self.text) = (since.as_secs(), timestamp(at));
            self.text.truncate("2026-11-15T08:48:26".len());
        }
        (&self.text, since.subsec_millis())
    }
}

/// Adds a line.
pub(super) fn write(out: &mut Vec<u8>, called: &Called, clock: &mut Clock) {
    let (moment, millis) = clock.read(called.at);
    out.extend_from_slice(b"{\"at\":\"");
    out.extend_from_slice(moment.as_bytes());
    out.push(b'.');
    write_thousandths(out, millis.into());
    out.extend_from_slice(b"Z\",\"caller\":");
    write_string(out, called.caller.as_str());
    out.extend_from_slice(b",\"method\":");
    write_string(out, &called.method);
    out.extend_from_slice(b",\"server\":");
    write_or_null(out, called.server.as_ref().map(ServerId::as_str));
    out.extend_from_slice(b",\"name\":");
    let is_address = called.method.starts_with("resources/");
    write_string(out, if is_address { without_secrets(&called.name) } else { &called.name });
    out.extend_from_slice(b",\"decision\":");
    write_string(out, called.decision.name());
    out.extend_from_slice(b",\"rule\":");
    write_or_null(out, called.denial.as_ref().map(|denial| &*denial.rule));
    if let Some(origin) = called.denial.as_ref().and_then(|denial| denial.origin.as_ref()) {
        out.extend_from_slice(b",\"file\":");
        write_string(out, &origin.file.to_string_lossy());
        out.extend_from_slice(b",\"line\":");
        write_number(out, origin.line as u64);
    }
    out.extend_from_slice(b",\"cache\":");
    write_or_null(out, called.cache.map(CacheUse::name));
    out.extend_from_slice(b",\"outcome\":");
    write_string(out, called.ending.name());
    out.extend_from_slice(b",\"ms\":");
    let micros = u64::try_from(called.took.as_micros()).unwrap_or(u64::MAX);
    write_number(out, micros / 1000);
    out.push(b'.');
    write_thousandths(out, micros % 1000);
    out.extend_from_slice(b",\"asked\":");
    write_number(out, called.asked as u64);
    out.extend_from_slice(b",\"answered\":");
    write_number(out, called.answered as u64);
    if let Some(arguments) = &called.arguments {
        write_arguments(out, arguments);
    }
    out.extend_from_slice(b"}\n");
}

/// Three digits, whatever the number.
fn write_thousandths(out: &mut Vec<u8>, number: u64) {
    out.extend([100, 10, 1].map(|unit| b'0' + (number / unit % 10) as u8));
}

fn write_or_null(out: &mut Vec<u8>, value: Option<&str>) {
    match value {
        Some(value) => write_string(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

/// Adds the line that says how many are missing.
pub(super) fn write_lost(out: &mut Vec<u8>, lost: u64) {
    let _ = writeln!(out, "{{\"lost\":{lost}}}");
}

fn write_arguments(out: &mut Vec<u8>, raw: &[u8]) {
    let read = Some(raw).filter(|raw| raw.len() <= MOST_ARGUMENTS);
    match read.and_then(|raw| serde_json::from_slice(raw).ok()) {
        Some(mut arguments) => {
            hide(&mut arguments);
            let _ = write!(out, ",\"arguments\":{arguments}");
        }
        None => out.extend_from_slice(b",\"arguments\":\"[too large]\""),
    }
}

fn hide(value: &mut Value) {
    match value {
        Value::Object(members) => {
            for (name, value) in members {
                if is_secret_name(name) { *value = HIDDEN.into() } else { hide(value) }
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(hide),
        Value::String(text) if SECRET_VALUES.iter().any(|begin| text.starts_with(begin)) => {
            *text = HIDDEN.to_owned();
        }
        Value::String(text) if text.contains("://") => *text = without_secrets(text).to_owned(),
        _ => {}
    }
}

fn is_secret_name(name: &str) -> bool {
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret))
}

/// An address without its query, and nothing of one that names a user: both are where secrets travel.
fn without_secrets(address: &str) -> &str {
    let address = &address[..address.find(['?', '#']).unwrap_or(address.len())];
    let host = address.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    if host.is_some_and(|host| host.contains('@')) { HIDDEN } else { address }
}
