//! The texts of calls in the form of records, remembered for the next call of the same client to the same tool.

use std::sync::Arc;

use toolcrib::model::event::{CacheUse, CallRecord};
use toolcrib::{Caller, ServerId};

use super::record::{MAX_NAME, push_text};
use crate::audit::redact_uri;

/// Tools and clients that are remembered; a power of two.
const ENTRIES: usize = 64;
/// The method of the calls that are remembered. Other names are those of requests, and hardly repeat.
const TOOL_CALL: &str = "tools/call";

/// Writes the texts of calls. Those of successful tool calls are encoded once for each client and tool.
#[derive(Debug, Default)]
pub(super) struct CallTextWriter {
    /// By [`entry_index`]; allocated for the first call.
    entries: Vec<Option<CallTexts>>,
}

/// The encoded texts of calls with these labels, which are compared by their address.
#[derive(Debug)]
struct CallTexts {
    server: ServerId,
    name: Arc<str>,
    caller: Caller,
    client: Option<Arc<str>>,
    encoded: Vec<u8>,
}

impl CallTexts {
    #[inline]
    fn is_of(&self, record: &CallRecord, server: &ServerId) -> bool {
        let is_same_client = match (&self.client, &record.client.name) {
            (Some(client), Some(name)) => Arc::ptr_eq(client, name),
            (None, None) => true,
            _ => false,
        };
        is_same_client
            && Arc::ptr_eq(&self.name, &record.name)
            && std::ptr::eq(self.caller.as_str(), record.caller.as_str())
            && std::ptr::eq(self.server.as_str(), server.as_str())
    }
}

impl CallTextWriter {
    /// Appends the texts of a call.
    #[inline]
    pub(super) fn write(&mut self, out: &mut Vec<u8>, record: &CallRecord) {
        let is_plain = record.method == TOOL_CALL
            && record.end.error_type().is_none()
            && record.denial.is_none()
            && record.cache.is_none();
        match &record.server {
            Some(server) if is_plain => self.write_plain(out, record, server),
            _ => write_texts(out, record),
        }
    }

    #[inline]
    fn write_plain(&mut self, out: &mut Vec<u8>, record: &CallRecord, server: &ServerId) {
        let index = entry_index(record);
        match self.entries.get(index) {
            Some(Some(texts)) if texts.is_of(record, server) => out.extend_from_slice(&texts.encoded),
            _ => self.add(out, record, server, index),
        }
    }

    /// Appends the texts of a call and remembers them.
    #[cold]
    fn add(&mut self, out: &mut Vec<u8>, record: &CallRecord, server: &ServerId, index: usize) {
        let start = out.len();
        write_texts(out, record);
        if record.name.len() <= MAX_NAME {
            self.entries.resize_with(ENTRIES, || None);
            self.entries[index] = Some(CallTexts {
                server: server.clone(),
                name: record.name.clone(),
                caller: record.caller.clone(),
                client: record.client.name.clone(),
                encoded: out[start..].to_vec(),
            });
        }
    }
}

/// Returns the place of a call among the entries, from the addresses of texts that equal calls share.
fn entry_index(record: &CallRecord) -> usize {
    let client = record.client.name.as_deref().unwrap_or_default().as_ptr().addr() as u64;
    let mixed = record.name.as_ptr().addr() as u64 ^ client.rotate_left(16);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % ENTRIES
}

fn write_texts(out: &mut Vec<u8>, record: &CallRecord) {
    let is_uri = record.method.starts_with("resources/");
    let texts: [&str; 8] = [
        &record.method,
        record.server.as_ref().map_or("", ServerId::as_str),
        if is_uri { redact_uri(&record.name) } else { &record.name },
        record.caller.as_str(),
        record.client.name.as_deref().unwrap_or_default(),
        record.end.error_type().unwrap_or_default(),
        record.denial.as_ref().map_or("", |denial| &denial.rule),
        record.cache.map_or("", CacheUse::name),
    ];
    texts.iter().for_each(|text| push_text(out, text, MAX_NAME));
}

#[cfg(test)]
mod tests {
    use toolcrib::model::event::CallEnd;

    use super::*;
    use crate::history::tests::call_record;

    /// Returns the texts as a writer without memory writes them.
    fn texts(record: &CallRecord) -> Vec<u8> {
        let mut out = Vec::new();
        write_texts(&mut out, record);
        out
    }

    #[test]
    fn remembered_texts_are_those_of_the_call() {
        let mut writer = CallTextWriter::default();
        let first = call_record("log");
        let mut others = vec![first.clone(), CallRecord { cache: Some(CacheUse::Hit), ..first.clone() }];
        others.push(CallRecord { end: CallEnd::ToolError, ..first.clone() });
        others.push(CallRecord { caller: Caller::new("bob"), ..first.clone() });
        others.push(CallRecord { server: "other".parse().ok(), ..first.clone() });
        others.push(CallRecord { server: None, ..first.clone() });
        others.push(CallRecord { method: "prompts/get".into(), ..first.clone() });
        others.push(CallRecord { name: "status".into(), ..first.clone() });
        let mut renamed = first.clone();
        renamed.client.name = Some("editor".into());
        others.push(renamed);
        // Many more tools than are remembered.
        others.extend((0..3 * ENTRIES).map(|number| call_record(&format!("tool{number}"))));
        others.push(call_record(&"x".repeat(MAX_NAME + 1)));
        for _ in 0..3 {
            for record in &others {
                for record in [record, record, &first] {
                    let mut out = Vec::new();
                    writer.write(&mut out, record);
                    assert_eq!(out, texts(record), "{record:?}");
                }
            }
        }
    }
}
