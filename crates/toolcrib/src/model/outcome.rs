//! The result of a call.

use crate::protocol::json::object::{self, Object};
use crate::protocol::json::scan;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::Era;
use crate::spec::ServerId;
use bytes::Bytes;
use serde_json::Value;

/// The answer to a call, in the server's own bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The result or error object of the response.
    pub answer: ResponsePayload,
    /// The protocol era of the answer.
    pub era: Era,
    /// The server that answered; `None` for a fallback.
    pub server: Option<ServerId>,
}

impl Outcome {
    /// Creates an outcome from a result, for fallbacks and in-process tools.
    pub fn result(result: &Value) -> Self {
        Self { answer: ResponsePayload::Result(result.to_string().into()), era: Era::Session, server: None }
    }

    /// Returns whether the result is marked `isError`, or the server returned an error object.
    pub fn is_error(&self) -> bool {
        match &self.answer {
            ResponsePayload::Error(_) => true,
            ResponsePayload::Result(result) => has_error_flag(result),
        }
    }

    /// Returns the text blocks of a result, joined by line breaks, or the message of an error.
    pub fn text(&self) -> String {
        let Ok(object) = Object::parse(self.raw()) else { return String::new() };
        if let ResponsePayload::Error(_) = self.answer {
            return object.get_string("message").unwrap_or_default().into_owned();
        }
        let blocks =
            object.get("content").and_then(|blocks| object::parse_array(blocks).ok()).unwrap_or_default();
        let blocks: Vec<Object> = blocks.iter().filter_map(|block| Object::parse(block).ok()).collect();
        let texts: Vec<_> = blocks.iter().filter_map(|block| block.get_string("text")).collect();
        texts.join("\n")
    }

    /// Returns the result or error object, decoded.
    pub fn to_value(&self) -> Value {
        serde_json::from_slice(self.raw()).unwrap_or_default()
    }

    /// Returns the result or error object as the server sent it.
    pub fn raw(&self) -> &Bytes {
        match &self.answer {
            ResponsePayload::Result(raw) | ResponsePayload::Error(raw) => raw,
        }
    }
}

/// Returns whether a result has `"isError": true`. The object is only parsed if the member name occurs and is not followed
/// by `false`.
fn has_error_flag(result: &Bytes) -> bool {
    const NAME: &[u8] = b"\"isError\"";
    if result.ends_with(b"\"isError\":false}") {
        return false;
    }
    let Some(at) = scan::find_quoted(result, NAME) else { return false };
    let value = result[at + NAME.len()..].trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start);
    match value {
        Some(value) if value.starts_with(b"false") && scan::find_quoted(value, NAME).is_none() => false,
        _ => Object::parse(result)
            .is_ok_and(|object| object.get("isError").is_some_and(|raw| &**raw == b"true")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_flag_anywhere_in_result_is_recognised() {
        let is_error = |text: &'static str| has_error_flag(&Bytes::from_static(text.as_bytes()));
        assert!(is_error(r#"{"content":[],"isError":true}"#));
        assert!(is_error(r#"{"isError" : true,"content":["isError"]}"#));
        assert!(!is_error(r#"{"content":[{"text":"\"isError\":true"}]}"#));
        assert!(!is_error(r#"{"structuredContent":{"isError":true}}"#));
        assert!(!is_error(r#"{"isError":false}"#));
    }

    #[test]
    fn text_joins_blocks_and_value_keeps_everything() {
        let value = serde_json::json!({"content": [{"type":"text","text":"a"},{"type":"image","data":"x"},{"type":"text","text":"b"}]});
        let outcome = Outcome::result(&value);
        assert_eq!(outcome.text(), "a\nb");
        assert_eq!(outcome.to_value(), value);
    }
}
