//! The result of a call.

use std::fmt;
use std::ops::Range;

use crate::protocol::json::object::{self, Object};
use crate::protocol::json::scan::{self, ScanResult, Scanner};
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::Era;
use crate::spec::ServerId;
use bytes::Bytes;
use serde_core::de::DeserializeOwned;
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
    /// The name and version that the server gave itself, as JSON, if they are known.
    pub server_info: Option<Bytes>,
}

impl Outcome {
    /// Creates an outcome from a result, for fallbacks and in-process tools.
    pub fn result(result: &Value) -> Self {
        Self {
            answer: ResponsePayload::Result(result.to_string().into()),
            era: Era::Session,
            server: None,
            server_info: None,
        }
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
        match &self.answer {
            ResponsePayload::Result(result) => content_text(result).unwrap_or_default(),
            ResponsePayload::Error(error) => {
                let error = Object::parse(error).unwrap_or_default();
                error.get_string("message").unwrap_or_default().into_owned()
            }
        }
    }

    /// Returns the outcome if it is a success.
    ///
    /// # Errors
    /// Returns [`OutcomeError::Failed`] with the text of the failure if the result is marked `isError`, or the server
    /// returned an error object.
    pub fn into_result(self) -> Result<Self, OutcomeError> {
        match self.is_error() {
            true => Err(OutcomeError::Failed(Box::new(self))),
            false => Ok(self),
        }
    }

    /// Decodes the `structuredContent` of a tool result.
    ///
    /// ```
    /// use serde_json::json;
    /// use toolcrib::{Call, Crib, ServerSpec, ToolContext, Toolbox};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Weather {
    ///     degrees: f64,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let measure = |_: serde_json::Value, _: ToolContext| async { Ok(json!({"degrees": 21.5})) };
    /// let tools = Toolbox::new().typed_tool("weather", "", &json!({"type": "object"}), measure);
    /// let crib = Crib::builder().server(ServerSpec::in_process("world".parse()?, tools)).build()?;
    /// let weather: Weather = crib.call(Call::tool("weather")).await?.structured()?;
    /// assert_eq!(weather.degrees, 21.5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Fails if the tool failed, the result has no `structuredContent`, or it does not fit the type.
    pub fn structured<T: DeserializeOwned>(&self) -> Result<T, OutcomeError> {
        if self.is_error() {
            return Err(OutcomeError::Failed(Box::new(self.clone())));
        }
        let result = Object::parse(self.raw()).ok();
        let content = result.as_ref().and_then(|result| result.get("structuredContent"));
        let content = content.filter(|raw| ***raw != *b"null").ok_or(OutcomeError::NotStructured)?;
        serde_json::from_slice(content).map_err(OutcomeError::Mismatch)
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

/// The reason why an outcome is not the expected success.
#[derive(Debug)]
#[non_exhaustive]
pub enum OutcomeError {
    /// The tool failed, or the server returned an error object; displayed as its text.
    Failed(Box<Outcome>),
    /// The result has no `structuredContent`.
    NotStructured,
    /// The `structuredContent` does not fit the type.
    Mismatch(serde_json::Error),
}

impl fmt::Display for OutcomeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(outcome) => match outcome.text() {
                text if text.is_empty() => f.write_str("the tool failed without a message"),
                text => f.write_str(&text),
            },
            Self::NotStructured => f.write_str("the result has no `structuredContent`"),
            Self::Mismatch(error) => write!(f, "the `structuredContent` does not fit: {error}"),
        }
    }
}

impl std::error::Error for OutcomeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Mismatch(error) => Some(error),
            Self::Failed(_) | Self::NotStructured => None,
        }
    }
}

/// Returns the text blocks of a result, joined by line breaks; `None` if the result is not valid or has `content` twice. The
/// result is scanned once, and only texts are decoded.
fn content_text(result: &[u8]) -> Option<String> {
    let mut scanner = Scanner::new(result);
    if !scanner.is_ascii() {
        std::str::from_utf8(result).ok()?;
    }
    let mut joined: Option<String> = None;
    let mut content_members = 0;
    let mut append = |block: Option<Range<usize>>| {
        let Some(text) = block.and_then(|range| object::as_string(&result[range])) else { return };
        match &mut joined {
            None => joined = Some(text.into_owned()),
            Some(joined) => joined.extend(["\n", &text]),
        }
    };
    let scanned = scanner.scan_members(|scanner, name| {
        let is_content = object::decode_name(result, name).is_ok_and(|name| *name == *b"content");
        content_members += usize::from(is_content);
        match is_content && scanner.is_at(b'[') {
            true => scanner.scan_elements(|scanner| scan_block(scanner, result).map(&mut append)),
            false => scanner.scan_value().map(drop),
        }
    });
    scanned.and_then(|()| scanner.expect_end()).ok()?;
    joined.filter(|_| content_members == 1)
}

/// Scans a content block and returns its `text`, unless it has none or several.
fn scan_block(scanner: &mut Scanner<'_>, result: &[u8]) -> ScanResult<Option<Range<usize>>> {
    if !scanner.is_at(b'{') {
        return scanner.scan_value().map(|_| None);
    }
    let mut text = None;
    let mut text_members = 0;
    scanner.scan_members(|scanner, name| {
        let value = scanner.scan_value()?;
        if object::decode_name(result, name).is_ok_and(|name| *name == *b"text") {
            text_members += 1;
            text = Some(value);
        }
        Ok(())
    })?;
    Ok(text.filter(|_| text_members == 1))
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
    use std::collections::HashMap;

    use proptest::prelude::*;
    use serde_json::json;

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
        let value = json!({"content": [{"type":"text","text":"a"},{"type":"image","data":"x"},{"type":"text","text":"b"}]});
        let outcome = Outcome::result(&value);
        assert_eq!(outcome.text(), "a\nb");
        assert_eq!(outcome.to_value(), value);
    }

    /// The text of a result as `serde_json` reads it.
    fn expected_text(result: &Value) -> String {
        let blocks = result["content"].as_array().map_or(&[][..], Vec::as_slice);
        let texts: Vec<&str> = blocks.iter().filter_map(|block| block.get("text")?.as_str()).collect();
        texts.join("\n")
    }

    #[test]
    fn text_of_an_ambiguous_or_broken_result_is_empty() {
        let text = |raw: &'static str| content_text(raw.as_bytes()).unwrap_or_default();
        assert_eq!(text(r#"{"content":[{"text":"a"}],"content":[]}"#), "");
        assert_eq!(text(r#"{"content":[{"text":"a","t\u0065xt":"b"},{"text":"c"}]}"#), "c");
        assert_eq!(text(r#" { "c\u006fntent" : [ 1, {"text":2}, {"text":"\u0041"} ] } "#), "A");
        for broken in [r#"{"content":[{"text":"a"}]"#, r#"{"content":[{"text":"a"}]}x"#, "[]", ""] {
            assert_eq!(text(broken), "", "{broken}");
        }
        assert_eq!(content_text(b"{\"content\":[{\"text\":\"a\xff\"}]}"), None);
    }

    proptest! {
        #[test]
        fn text_is_what_serde_json_reads(
            blocks in prop::collection::vec((".{0,9}", 0..5_u8, ".{0,5}"), 0..5),
            other in ".{0,9}",
        ) {
            let block = |(text, shape, name): &(String, u8, String)| match shape {
                0 => json!({"type": "text", "text": text}),
                1 => json!({"text": [text, {"text": text}]}),
                2 => json!(text),
                3 => json!({name.as_str(): {"text": text}, "text": text}),
                _ => json!([{"text": text}]),
            };
            let blocks: Vec<Value> = blocks.iter().map(block).collect();
            let result = json!({"_meta": {"content": [{"text": other}]}, "content": blocks, "isError": false});
            prop_assert_eq!(Outcome::result(&result).text(), expected_text(&result));
        }
    }

    #[test]
    fn failed_outcome_becomes_an_error_with_its_text() {
        let failed = json!({"content": [{"type": "text", "text": "no such city"}], "isError": true});
        let error = Outcome::result(&failed).into_result().unwrap_err();
        assert_eq!(error.to_string(), "no such city");
        let silent = Outcome::result(&json!({"content": [], "isError": true})).into_result().unwrap_err();
        assert_eq!(silent.to_string(), "the tool failed without a message");
        let refused = Outcome {
            answer: ResponsePayload::Error(r#"{"code":1,"message":"busy"}"#.into()),
            ..Outcome::result(&failed)
        };
        assert_eq!(refused.into_result().unwrap_err().to_string(), "busy");
        let done = Outcome::result(&json!({"content": []}));
        assert_eq!(done.clone().into_result().unwrap(), done);
    }

    #[test]
    fn structured_content_is_decoded_or_the_reason_is_returned() {
        let outcome = Outcome::result(&json!({"content": [], "structuredContent": {"degrees": [3, 4]}}));
        let decoded: HashMap<String, Vec<i64>> = outcome.structured().unwrap();
        assert_eq!(decoded["degrees"], [3, 4]);
        let mismatch = outcome.structured::<Vec<i64>>().unwrap_err();
        assert!(matches!(mismatch, OutcomeError::Mismatch(_)), "{mismatch}");
        for result in [json!({"content": []}), json!({"structuredContent": null})] {
            let missing = Outcome::result(&result).structured::<Value>().unwrap_err();
            assert!(matches!(missing, OutcomeError::NotStructured), "{missing}");
        }
        let failed = json!({"structuredContent": {}, "content": [], "isError": true});
        let failed = Outcome::result(&failed).structured::<Value>().unwrap_err();
        assert!(matches!(failed, OutcomeError::Failed(_)), "{failed}");
    }
}
