//! One call as a line of JSON. Nothing that was said in it is there, unless arguments are asked for; what looks like a
//! secret never is.

use std::io::Write as _;
use std::time::SystemTime;

use serde_json::Value;
use toolcrib::ServerId;
use toolcrib::event::{CacheUse, Called};
use toolcrib::wire::object::write_string;

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
    // Writing to memory does not fail.
    let _ = write!(out, "{{\"at\":\"{moment}.{millis:03}Z\",\"caller\":");
    write_string(out, called.caller.as_str());
    member(out, "method", Some(&called.method));
    member(out, "server", called.server.as_ref().map(ServerId::as_str));
    let is_address = called.method.starts_with("resources/");
    member(out, "name", Some(if is_address { without_secrets(&called.name) } else { &called.name }));
    member(out, "decision", Some(called.decision.name()));
    member(out, "rule", called.denial.as_ref().map(|denial| &*denial.rule));
    if let Some(origin) = called.denial.as_ref().and_then(|denial| denial.origin.as_ref()) {
        member(out, "file", Some(&origin.file.to_string_lossy()));
        let _ = write!(out, ",\"line\":{}", origin.line);
    }
    member(out, "cache", called.cache.map(CacheUse::name));
    member(out, "outcome", Some(called.ending.name()));
    let micros = called.took.as_micros();
    let (asked, answered) = (called.asked, called.answered);
    let _ = write!(
        out,
        ",\"ms\":{}.{:03},\"asked\":{asked},\"answered\":{answered}",
        micros / 1000,
        micros % 1000
    );
    if let Some(arguments) = &called.arguments {
        write_arguments(out, arguments);
    }
    out.extend_from_slice(b"}\n");
}

/// Adds the line that says how many are missing.
pub(super) fn write_lost(out: &mut Vec<u8>, lost: u64) {
    let _ = writeln!(out, "{{\"lost\":{lost}}}");
}

fn member(out: &mut Vec<u8>, key: &str, value: Option<&str>) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
    match value {
        Some(value) => write_string(out, value),
        None => out.extend_from_slice(b"null"),
    }
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
