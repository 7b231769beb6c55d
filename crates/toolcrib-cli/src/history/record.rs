//! The binary form of records.
//!
//! A record is its length, its kind and its fields: numbers in LEB128, the ids of calls in eight bytes, texts with their length. Readers skip kinds and trailing
//! fields that they do not know. JSON lines would need three times the space and five times the instructions.

use std::time::Duration;

use toolcrib::access::expose::BYTES_PER_TOKEN;
use toolcrib::model::event::{CallEnd, CallRecord, Decision};
use toolcrib::util::format::format_timestamp;
use toolcrib::util::time_id::time_of_id;
use toolcrib::{CallId, ErrorKind};

use super::call_texts::CallTextWriter;
use crate::report::calls::CallReport;
use crate::report::events::EventReport;

/// The kind of a record about a call, as earlier versions wrote it: with its ids in LEB128, which takes nine bytes and longer.
const CALL_OF_EARLIER_VERSIONS: u8 = 1;
/// The kind of a record about a call.
const CALL: u8 = 3;
/// The kind of a record about an event.
const EVENT: u8 = 2;
/// Bytes of the length before a record.
const LENGTH_BYTES: usize = 4;
/// Longest form of a number, in bytes.
const MAX_NUMBER_BYTES: usize = 10;
/// Most bytes of the length, the kind and the numbers of a record.
const MAX_HEAD_BYTES: usize = LENGTH_BYTES + 1 + 2 * size_of::<u64>() + 10 * MAX_NUMBER_BYTES;
/// Longest name, in bytes.
pub(super) const MAX_NAME: usize = 1 << 10;
/// Longest message of an event and longest arguments of a call, in bytes.
const MAX_TEXT: usize = 20 << 10;

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallOutcome {
    Ok,
    Error,
    Denied,
}

impl CallOutcome {
    const ALL: [Self; 3] = [Self::Ok, Self::Error, Self::Denied];

    fn of(record: &CallRecord) -> Self {
        match record.end {
            CallEnd::Failed(ErrorKind::Denied | ErrorKind::OverQuota) => Self::Denied,
            CallEnd::Failed(_) if record.decision == Decision::Denied => Self::Denied,
            end if end.error_type().is_none() => Self::Ok,
            _ => Self::Error,
        }
    }

    /// Returns the name in reports and filters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Error => "error",
            Self::Denied => "denied",
        }
    }

    /// Returns the outcome with this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.name() == name)
    }
}

/// A record of the history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HistoryRecord<'a> {
    Call(CallEntry<'a>),
    Event(EventEntry<'a>),
}

impl HistoryRecord<'_> {
    /// Returns the position of the record, which grows with time.
    pub(crate) fn seq(&self) -> u64 {
        match self {
            Self::Call(call) => call.seq,
            Self::Event(event) => event.seq,
        }
    }
}

/// A call that ended. Empty texts are missing values. Durations are in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CallEntry<'a> {
    pub(crate) seq: u64,
    pub(crate) id: u64,
    outcome: u64,
    pub(crate) client_key: u64,
    pub(crate) duration: u64,
    policy: u64,
    start: u64,
    queue: u64,
    server_time: u64,
    attempts: u64,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    method: &'a str,
    pub(crate) server: &'a str,
    pub(crate) tool: &'a str,
    pub(crate) caller: &'a str,
    pub(crate) client: &'a str,
    error: &'a str,
    rule: &'a str,
    cache: &'a str,
    arguments: &'a str,
}

impl CallEntry<'_> {
    /// Returns the result.
    pub(crate) fn outcome(&self) -> CallOutcome {
        let index = usize::try_from(self.outcome).unwrap_or(usize::MAX);
        CallOutcome::ALL.get(index).copied().unwrap_or(CallOutcome::Error)
    }

    /// Returns the estimated tokens of the result.
    pub(crate) fn result_tokens(&self) -> u64 {
        self.response_bytes.div_ceil(BYTES_PER_TOKEN as u64)
    }

    /// Returns the report, without arguments.
    pub(crate) fn report(&self) -> CallReport {
        CallReport {
            id: CallId::from_number(self.id).to_string(),
            time: format_timestamp(time_of_id(self.seq)),
            method: self.method.to_owned(),
            server: optional(self.server),
            tool: self.tool.to_owned(),
            caller: self.caller.to_owned(),
            client: optional(self.client),
            outcome: self.outcome().name().to_owned(),
            error: optional(self.error),
            rule: optional(self.rule),
            duration_ms: to_millis(self.duration),
            queue_ms: to_millis(self.queue),
            start_ms: to_millis(self.start),
            policy_ms: to_millis(self.policy),
            server_ms: to_millis(self.server_time),
            cache: optional(self.cache),
            attempts: self.attempts,
            request_bytes: self.request_bytes,
            response_bytes: self.response_bytes,
            result_tokens: self.result_tokens(),
            arguments: None,
        }
    }

    /// Returns the report with the arguments, if they were recorded.
    pub(crate) fn full_report(&self) -> CallReport {
        CallReport { arguments: serde_json::from_str(self.arguments).ok(), ..self.report() }
    }

    /// Returns the event that the stream has for the call.
    pub(crate) fn event(&self) -> EventReport {
        let name = if self.server.is_empty() { String::new() } else { format!("{}.", self.server) };
        let result = if self.error.is_empty() { self.outcome().name() } else { self.error };
        let millis = to_millis(self.duration);
        EventReport {
            id: CallId::from_number(self.seq).to_string(),
            time: format_timestamp(time_of_id(self.seq)),
            kind: "call".to_owned(),
            server: optional(self.server),
            caller: optional(self.caller),
            message: format!("{} {name}{}: {result} in {millis} ms", self.method, self.tool),
            call: Some(CallId::from_number(self.id).to_string()),
            sampled: false,
        }
    }
}

/// An event. Empty texts are missing values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EventEntry<'a> {
    pub(crate) seq: u64,
    /// The id of a call; zero if the event is not about one.
    pub(crate) call: u64,
    pub(crate) kind: &'a str,
    pub(crate) server: &'a str,
    pub(crate) caller: &'a str,
    pub(crate) message: &'a str,
}

impl EventEntry<'_> {
    /// Returns the event as the stream has it.
    pub(crate) fn event(&self) -> EventReport {
        EventReport {
            id: CallId::from_number(self.seq).to_string(),
            time: format_timestamp(time_of_id(self.seq)),
            kind: self.kind.to_owned(),
            server: optional(self.server),
            caller: optional(self.caller),
            message: self.message.to_owned(),
            call: (self.call > 0).then(|| CallId::from_number(self.call).to_string()),
            sampled: false,
        }
    }
}

fn optional(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Returns microseconds as milliseconds.
#[expect(clippy::cast_precision_loss, reason = "exact for 285 years")]
pub(crate) fn to_millis(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// Appends the record of a call.
pub(super) fn write_call(
    out: &mut Vec<u8>,
    texts: &mut CallTextWriter,
    seq: u64,
    record: &CallRecord,
    arguments: &str,
) {
    let timing = &record.timing;
    let mut head = RecordHead::new(CALL);
    head.write_id(seq);
    head.write_id(record.id.number());
    let numbers = [
        CallOutcome::of(record) as u64,
        record.client.key,
        micros(record.duration),
        micros(timing.policy),
        micros(timing.start),
        micros(timing.queue),
        micros(timing.server),
        record.attempts.into(),
        record.request_bytes as u64,
        record.response_bytes as u64,
    ];
    numbers.into_iter().for_each(|number| head.write_number(number));
    let start = head.append_to(out);
    texts.write(out, record);
    push_text(out, arguments, MAX_TEXT);
    set_length(out, start);
}

/// Appends the record of an event.
pub(super) fn write_event(out: &mut Vec<u8>, event: &EventEntry<'_>) {
    let names = [event.kind, event.server, event.caller];
    write_record(
        out,
        EVENT,
        &Fields { numbers: &[event.seq, event.call], names: &names, text: event.message },
    );
}

/// Returns a duration in microseconds. `Duration::as_micros` would compute with 128 bits.
fn micros(duration: Duration) -> u64 {
    duration.as_secs().saturating_mul(1_000_000).saturating_add(duration.subsec_micros().into())
}

/// The fields of a record, in the order in which they are written.
struct Fields<'a> {
    numbers: &'a [u64],
    names: &'a [&'a str],
    text: &'a str,
}

/// Appends a record.
fn write_record(out: &mut Vec<u8>, kind: u8, fields: &Fields<'_>) {
    let mut head = RecordHead::new(kind);
    fields.numbers.iter().for_each(|number| head.write_number(*number));
    let start = head.append_to(out);
    fields.names.iter().for_each(|name| push_text(out, name, MAX_NAME));
    push_text(out, fields.text, MAX_TEXT);
    set_length(out, start);
}

/// Appends a text with its length. One that is too long is cut off.
pub(super) fn push_text(out: &mut Vec<u8>, text: &str, max: usize) {
    let text = if text.len() <= max { text } else { &text[..text.floor_char_boundary(max)] };
    match u8::try_from(text.len()) {
        Ok(length @ ..0x80) => out.push(length),
        _ => {
            let mut length = RecordHead { bytes: [0; MAX_HEAD_BYTES], length: 0 };
            length.write_number(text.len() as u64);
            length.append_to(out);
        }
    }
    // Many texts are missing.
    if !text.is_empty() {
        out.extend_from_slice(text.as_bytes());
    }
}

/// Sets the length of the record that begins at `start`.
fn set_length(out: &mut [u8], start: usize) {
    let body = u32::try_from(out.len() - start - LENGTH_BYTES).unwrap_or(u32::MAX);
    out[start..start + LENGTH_BYTES].copy_from_slice(&body.to_le_bytes());
}

/// The part of a record before its texts.
struct RecordHead {
    bytes: [u8; MAX_HEAD_BYTES],
    /// The number of bytes that are written.
    length: usize,
}

impl RecordHead {
    /// Starts a record, whose length is set later.
    #[inline]
    fn new(kind: u8) -> Self {
        let mut head = Self { bytes: [0; MAX_HEAD_BYTES], length: LENGTH_BYTES };
        head.write_byte(kind);
        head
    }

    #[inline]
    fn write_byte(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    #[inline]
    fn write_id(&mut self, id: u64) {
        let end = self.length + size_of::<u64>();
        self.bytes[self.length..end].copy_from_slice(&id.to_le_bytes());
        self.length = end;
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "writes the lowest seven bits")]
    fn write_number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.write_byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.write_byte(number as u8);
    }

    /// Appends what was written, and returns where it begins.
    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) -> usize {
        let start = out.len();
        out.extend_from_slice(&self.bytes[..self.length]);
        start
    }
}

/// Reads the fields of a record.
struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    fn id(&mut self) -> Option<u64> {
        let (id, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*id))
    }

    fn call_of_earlier_versions(&mut self) -> Option<CallEntry<'a>> {
        let seq = self.number()?;
        let id = self.number()?;
        self.call_with(seq, id)
    }

    fn call(&mut self) -> Option<CallEntry<'a>> {
        let seq = self.id()?;
        let id = self.id()?;
        self.call_with(seq, id)
    }

    fn call_with(&mut self, seq: u64, id: u64) -> Option<CallEntry<'a>> {
        Some(CallEntry {
            seq,
            id,
            outcome: self.number()?,
            client_key: self.number()?,
            duration: self.number()?,
            policy: self.number()?,
            start: self.number()?,
            queue: self.number()?,
            server_time: self.number()?,
            attempts: self.number()?,
            request_bytes: self.number()?,
            response_bytes: self.number()?,
            method: self.text()?,
            server: self.text()?,
            tool: self.text()?,
            caller: self.text()?,
            client: self.text()?,
            error: self.text()?,
            rule: self.text()?,
            cache: self.text()?,
            arguments: self.text()?,
        })
    }

    fn event(&mut self) -> Option<EventEntry<'a>> {
        Some(EventEntry {
            seq: self.number()?,
            call: self.number()?,
            kind: self.text()?,
            server: self.text()?,
            caller: self.text()?,
            message: self.text()?,
        })
    }
}

/// The records in some bytes, up to the first one that is incomplete or damaged.
pub(crate) struct Records<'a> {
    rest: &'a [u8],
    /// True if calls are passed over without being decoded.
    skips_calls: bool,
}

impl<'a> Records<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, skips_calls: false }
    }

    /// Returns the records other than calls. A busy gateway has few of them among many calls.
    pub(super) fn without_calls(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, skips_calls: true }
    }

    /// Returns the size of what is left: nothing, or an incomplete or damaged record and all that follows it.
    pub(super) fn unread_bytes(&self) -> usize {
        self.rest.len()
    }

    fn read_next(&mut self) -> Option<Option<HistoryRecord<'a>>> {
        let (length, rest) = self.rest.split_first_chunk::<LENGTH_BYTES>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (body, rest) = rest.split_at_checked(length)?;
        let (kind, fields) = body.split_first()?;
        let mut reader = FieldReader(fields);
        let record = match *kind {
            CALL | CALL_OF_EARLIER_VERSIONS if self.skips_calls => None,
            CALL => Some(HistoryRecord::Call(reader.call()?)),
            CALL_OF_EARLIER_VERSIONS => Some(HistoryRecord::Call(reader.call_of_earlier_versions()?)),
            EVENT => Some(HistoryRecord::Event(reader.event()?)),
            _ => None,
        };
        self.rest = rest;
        Some(record)
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = HistoryRecord<'a>;

    fn next(&mut self) -> Option<HistoryRecord<'a>> {
        loop {
            if let Some(record) = self.read_next()? {
                return Some(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::call_record;

    #[test]
    fn records_are_read_back_up_to_a_torn_one() {
        let mut bytes = Vec::new();
        let long = "ä".repeat(MAX_NAME);
        write_call(&mut bytes, &mut CallTextWriter::default(), 300, &call_record("log"), r#"{"a":1}"#);
        let event =
            EventEntry { seq: 301, kind: "started", server: "git", message: &long, ..EventEntry::default() };
        write_event(&mut bytes, &event);
        let later = Fields { numbers: &[1, u64::MAX], names: &["later"], text: "" };
        write_record(&mut bytes, 77, &later);
        let first_two = bytes.len();
        write_call(&mut bytes, &mut CallTextWriter::default(), 302, &call_record(&long), "");
        let records: Vec<HistoryRecord<'_>> = Records::new(&bytes).collect();
        let seqs: Vec<u64> = records.iter().map(HistoryRecord::seq).collect();
        assert_eq!(seqs, [300, 301, 302]);
        assert_eq!(records[1], HistoryRecord::Event(event));
        let (HistoryRecord::Call(first), HistoryRecord::Call(last)) = (&records[0], &records[2]) else {
            panic!("{records:?}")
        };
        assert_eq!((first.tool, first.arguments, first.attempts), ("log", r#"{"a":1}"#, 1));
        assert_eq!(last.tool.len(), MAX_NAME);
        for torn in first_two..bytes.len() {
            let mut rest = Records::new(&bytes[..torn]);
            assert_eq!(rest.by_ref().count(), 2, "{torn}");
            assert_eq!(rest.unread_bytes() == 0, torn == first_two);
        }
    }

    #[test]
    fn calls_of_earlier_versions_are_read() {
        // As the version before this one wrote it: call 0x1234 of `git.log`, with its arguments.
        let bytes = b"\x2f\x00\x00\x00\x01\xac\x02\xb4\x24\x00\x07\xe8\x07\x01\x02\x03\x84\x07\x01\x0a\x14\x0atools/call\x03git\x03log\x03ada\x00\x00\x00\x00\x02{}";
        let Some(HistoryRecord::Call(call)) = Records::new(bytes).next() else { panic!("no call") };
        assert_eq!((call.seq, call.id, call.duration, call.attempts), (300, 0x1234, 1000, 1));
        assert_eq!((call.method, call.server, call.tool, call.caller), ("tools/call", "git", "log", "ada"));
        assert_eq!((call.response_bytes, call.arguments), (20, "{}"));
        assert_eq!(Records::without_calls(bytes).count(), 0);
    }

    #[test]
    fn damaged_bytes_never_panic() {
        let mut bytes = Vec::new();
        write_call(&mut bytes, &mut CallTextWriter::default(), 300, &call_record("log"), "{}");
        for at in 0..bytes.len() {
            for value in [0, 0x7f, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                assert!(Records::new(&damaged).count() <= 1);
            }
        }
    }
}
