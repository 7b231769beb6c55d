//! Answers, written by hand: a serializer would be a visible part of what a benchmark measures.

use std::io::Write;

/// Opens a result object; its members and `}}` must follow.
pub(crate) fn open_result(out: &mut Vec<u8>, id: &str, modern: bool) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(br#","result":{"#);
    if modern {
        out.extend_from_slice(br#""resultType":"complete","#);
    }
}

/// Opens a tool result with one text block; encoded text and [`close_text`] must follow.
pub(crate) fn open_text(out: &mut Vec<u8>, id: &str, modern: bool) {
    open_result(out, id, modern);
    out.extend_from_slice(br#""content":[{"type":"text","text":""#);
}

pub(crate) fn close_text(out: &mut Vec<u8>) {
    out.extend_from_slice(br#""}],"isError":false}}"#);
}

/// Adds a TTL of one hour to the result that was just closed.
pub(crate) fn add_ttl(out: &mut Vec<u8>) {
    out.truncate(out.len() - 2);
    out.extend_from_slice(br#","ttlMs":3600000}}"#);
}

/// Writes a whole tool result whose text is `parts`, already encoded.
pub(crate) fn text(out: &mut Vec<u8>, id: &str, modern: bool, parts: &[&str]) {
    open_text(out, id, modern);
    for part in parts {
        out.extend_from_slice(part.as_bytes());
    }
    close_text(out);
}

pub(crate) fn error(out: &mut Vec<u8>, id: &str, code: i32, message: &str) {
    let message = serde_json::to_string(message).expect("a string encodes");
    write(
        out,
        format_args!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message}}}}}"#),
    );
}

pub(crate) fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes every write");
}
