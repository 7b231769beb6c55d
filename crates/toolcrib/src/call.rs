//! `Call`, one request on its way through, and `Outcome`, what came back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::spec::ServerId;
use crate::wire::message::Answer;
use crate::wire::object::{self, Object};
use crate::wire::revision::Era;

/// Who is asking.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Caller(Arc<str>);

impl Caller {
    /// A caller by name.
    pub fn named(name: &str) -> Self {
        Self(name.into())
    }

    /// Whoever runs on this machine as this user.
    pub fn local() -> Self {
        Self::named("local")
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which tool is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The tool of this public name, or of this bare name if only one server has it.
    Named(String),
    /// This tool of this server, by the server's own name for it.
    On(ServerId, String),
}

/// Progress of a call: the parameters of the server's notification without its token.
pub type Progress = Object;

/// One request on its way through, carrying who asked, what for, until when, and where progress goes. Dropping the
/// future that works on it cancels it, also at the server.
#[derive(Debug)]
pub struct Call {
    /// Who asked.
    pub caller: Caller,
    /// What for.
    pub wanted: Wanted,
    /// The parameters as the caller wrote them; the tool's name among them is replaced on the way out.
    pub(crate) params: Object,
    /// How long the whole call may take, start of the server included; the server's own limits hold too.
    pub(crate) timeout: Option<Duration>,
    /// Where progress goes, if anybody wants it.
    pub(crate) progress: Option<mpsc::Sender<Progress>>,
}

impl Call {
    /// A call of a tool by its public name, or by its bare name if only one server has it.
    pub fn tool(name: impl Into<String>) -> Self {
        Self::wanting(Wanted::Named(name.into()))
    }

    /// A call of one server's tool, by the server's own name for it.
    pub fn on(server: ServerId, tool: impl Into<String>) -> Self {
        Self::wanting(Wanted::On(server, tool.into()))
    }

    fn wanting(wanted: Wanted) -> Self {
        let mut params = Object::default();
        params.set("name", Bytes::from_static(b"\"\""));
        Self { caller: Caller::local(), wanted, params, timeout: None, progress: None }
    }

    /// With these arguments.
    #[must_use]
    pub fn arguments(self, arguments: &Value) -> Self {
        self.raw_arguments(arguments.to_string())
    }

    /// With arguments that are JSON already; they reach the server byte for byte.
    #[must_use]
    pub fn raw_arguments(mut self, arguments: impl Into<Bytes>) -> Self {
        self.params.set("arguments", arguments);
        self
    }

    /// With a client's own parameters, of which every member but the tool's name reaches the server.
    #[must_use]
    pub fn params(mut self, params: Object) -> Self {
        self.params = params;
        self
    }

    /// On behalf of somebody.
    #[must_use]
    pub fn by(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Ended after this long, whatever happens.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// With progress sent to `sink` in order, all of it before the outcome. A sink that is full misses some.
    #[must_use]
    pub fn on_progress(mut self, sink: mpsc::Sender<Progress>) -> Self {
        self.progress = Some(sink);
        self
    }

    /// The name asked for.
    pub fn name(&self) -> &str {
        match &self.wanted {
            Wanted::Named(name) | Wanted::On(_, name) => name,
        }
    }
}

/// What came back: the server's own bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// What the server answered.
    pub answer: Answer,
    /// The era it was answered in.
    pub era: Era,
    /// Who answered; `None` if it was a fallback.
    pub server: Option<ServerId>,
}

impl Outcome {
    /// A result made here, for fallbacks and in-process tools.
    pub fn result(result: &Value) -> Self {
        Self { answer: Answer::Result(result.to_string().into()), era: Era::Session, server: None }
    }

    /// Whether the tool, or the server, said that it failed.
    pub fn is_error(&self) -> bool {
        match &self.answer {
            Answer::Error(_) => true,
            Answer::Result(result) => says_error(result),
        }
    }

    /// A view of the text: the text blocks of a result, one a line, or the message of an error. Everything else that
    /// came back is in [`Outcome::to_value`].
    pub fn text(&self) -> String {
        let Ok(said) = Object::parse(self.raw()) else { return String::new() };
        if let Answer::Error(_) = self.answer {
            return said.string("message").unwrap_or_default().into_owned();
        }
        let blocks = said.get("content").and_then(|blocks| object::elements(blocks).ok()).unwrap_or_default();
        let blocks: Vec<Object> = blocks.iter().filter_map(|block| Object::parse(block).ok()).collect();
        let texts: Vec<_> = blocks.iter().filter_map(|block| block.string("text")).collect();
        texts.join("\n")
    }

    /// The result or error object, decoded.
    pub fn to_value(&self) -> Value {
        serde_json::from_slice(self.raw()).unwrap_or_default()
    }

    /// The result or error object as the server sent it.
    pub fn raw(&self) -> &Bytes {
        match &self.answer {
            Answer::Result(raw) | Answer::Error(raw) => raw,
        }
    }
}

/// A name in quotes stands in JSON only where it is a member's name or a whole string, so the object needs to be read
/// only if the name is there and not followed by `false`.
fn says_error(result: &Bytes) -> bool {
    const NAME: &[u8] = b"\"isError\"";
    if result.ends_with(b"\"isError\":false}") {
        return false;
    }
    let Some(at) = memchr::memmem::find(result, NAME) else { return false };
    let value = result[at + NAME.len()..].trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start);
    match value {
        Some(value) if value.starts_with(b"false") && memchr::memmem::rfind(result, NAME) == Some(at) => {
            false
        }
        _ => Object::parse(result)
            .is_ok_and(|object| object.get("isError").is_some_and(|raw| &**raw == b"true")),
    }
}

/// Parameters with the tool's name replaced.
pub(crate) fn rename(params: &mut Object, name: &str) {
    params.set("name", object::string(name));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_says_error_is_recognised_wherever_it_says_so() {
        let says = |text: &'static str| says_error(&Bytes::from_static(text.as_bytes()));
        assert!(says(r#"{"content":[],"isError":true}"#));
        assert!(says(r#"{"isError" : true,"content":["isError"]}"#));
        assert!(!says(r#"{"content":[{"text":"\"isError\":true"}]}"#));
        assert!(!says(r#"{"structuredContent":{"isError":true}}"#));
        assert!(!says(r#"{"isError":false}"#));
    }

    #[test]
    fn text_is_a_view_and_nothing_is_lost() {
        let value = serde_json::json!({"content": [{"type":"text","text":"a"},{"type":"image","data":"x"},{"type":"text","text":"b"}]});
        let outcome = Outcome::result(&value);
        assert_eq!(outcome.text(), "a\nb");
        assert_eq!(outcome.to_value(), value);
    }
}
