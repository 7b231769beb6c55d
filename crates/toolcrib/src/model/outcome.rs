//! The result of a call.

use std::fmt;

use crate::protocol::json::object::{self, Object};
use crate::protocol::json::scan;
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
