//! Answers, assembled by hand: going through a serializer would make the echo server a visible part of what
//! a benchmark measures.

use std::io::Write;

/// Opens a result object; what follows are its members and `}}`.
pub(crate) fn open_result(out: &mut Vec<u8>, id: &str, modern: bool) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(br#","result":{"#);
    if modern {
        out.extend_from_slice(br#""resultType":"complete","#);
    }
}

/// Opens a tool result with one text block; what follows is encoded text and [`close_text`].
pub(crate) fn open_text(out: &mut Vec<u8>, id: &str, modern: bool) {
    open_result(out, id, modern);
    out.extend_from_slice(br#""content":[{"type":"text","text":""#);
}

pub(crate) fn close_text(out: &mut Vec<u8>) {
    out.extend_from_slice(br#""}],"isError":false}}"#);
}

/// Says of the result that was just closed that it is good for an hour.
pub(crate) fn make_last(out: &mut Vec<u8>) {
    out.truncate(out.len() - 2);
    out.extend_from_slice(br#","ttlMs":3600000}}"#);
}

/// A whole tool result whose text is `parts`, already encoded.
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
