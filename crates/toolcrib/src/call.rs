//! `Call`, one request on its way through, and `Outcome`, what came back.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::quota::Budget;
use crate::record::Record;
use crate::sharing::Guest;
use crate::spec::ServerId;
use crate::told::{Hear, Told};
use crate::wire::dialect::meta;
use crate::wire::dialect::party::Client;
use crate::wire::message::Answer;
use crate::wire::object::{self, Object};
use crate::wire::revision::Era;
use crate::wire::scan;

/// Who is asking, and maybe the profile it looks through. Callers of one name are the same, whatever they look through.
#[derive(Debug, Clone)]
pub struct Caller {
    name: Arc<str>,
    profile: Option<Arc<str>>,
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Caller {
    /// A caller by name.
    pub fn named(name: &str) -> Self {
        Self { name: name.into(), profile: None }
    }

    /// Whoever runs on this machine as this user.
    pub fn local() -> Self {
        Self::named("local")
    }

    /// The same caller, which gets to see and use only what this profile has, too.
    #[must_use]
    pub fn within(mut self, profile: &str) -> Self {
        self.profile = Some(profile.into());
        self
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The profile it looks through.
    pub fn profile(&self) -> Option<&str> {
        self.profile.as_deref()
    }

    pub(crate) fn shared_profile(&self) -> &Option<Arc<str>> {
        &self.profile
    }
}

/// What is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// The tool of this public name, or of this bare name if only one server has it.
    Named(String),
    /// The prompt of this public name, or of this bare name if only one server has it.
    Prompt(String),
    /// The resource at this address, or the template of this text.
    Resource(String),
    /// The task of this public name.
    Task(String),
    /// This of this server, by the server's own name for it: the parameters go out as they are written.
    On(ServerId, String),
}

/// One request on its way through, carrying who asked, what for, until when, and where progress goes. Dropping the
/// future that works on it cancels it, also at the server.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who asked.
    pub caller: Caller,
    /// What for.
    pub wanted: Wanted,
    /// The request's method.
    pub(crate) method: Cow<'static, str>,
    /// The parameters as the caller wrote them; the public name among them is replaced on the way out.
    pub(crate) params: Object,
    /// How long the whole call may take, start of the server included; the server's own limits hold too.
    pub(crate) timeout: Option<Duration>,
    /// On whose behalf.
    pub(crate) client: Client,
    /// Where everything goes that comes before the outcome, if anybody wants it.
    pub(crate) told: Option<Arc<dyn Hear>>,
    /// It has left for a server at least once.
    pub(crate) left: bool,
    /// What is known of the client beyond this call.
    pub(crate) guest: Option<Arc<Guest>>,
    /// What the work that it is a part of may spend.
    pub(crate) budget: Option<Budget>,
    /// What it met on its way.
    pub(crate) record: Record,
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
        let name = match &wanted {
            Wanted::On(_, tool) => object::string(tool),
            _ => Bytes::from_static(b"\"\""),
        };
        params.set("name", name);
        Self::request("tools/call", wanted, params)
    }

    /// Any request, with a client's own parameters.
    pub fn request(method: impl Into<Cow<'static, str>>, wanted: Wanted, params: Object) -> Self {
        let (caller, client) = (Caller::local(), Client::silent());
        let (timeout, told, left, guest, budget, record) = Default::default();
        let method = method.into();
        Self { caller, wanted, method, params, timeout, client, told, left, guest, budget, record }
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

    /// On behalf of a client, which is what the server gets to know of who asks.
    #[must_use]
    pub fn of(mut self, client: Client) -> Self {
        self.client = client;
        self
    }

    /// With what is known of the client beyond this call: it decides which instance of a server is asked, together with
    /// the client's number and the caller.
    #[must_use]
    pub fn from_guest(mut self, guest: Arc<Guest>) -> Self {
        self.guest = Some(guest);
        self
    }

    /// As a part of some work, at the cost of its budget.
    #[must_use]
    pub fn within(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// With everything that comes before the outcome sent to `sink`, in order. A sink that is full misses some.
    #[must_use]
    pub fn tell(mut self, sink: mpsc::Sender<Told>) -> Self {
        let mut meta = self.params.get("_meta").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
        if meta.get(meta::PROGRESS).is_none() {
            meta.set(meta::PROGRESS, Bytes::from_static(b"0"));
            self.params.set("_meta", meta.to_bytes());
        }
        self.listen(Arc::new(sink))
    }

    /// As [`Call::tell`], to anybody who hears, and with progress only if the parameters ask for it.
    #[must_use]
    pub fn listen(mut self, listener: Arc<dyn Hear>) -> Self {
        self.told = Some(listener);
        self
    }

    /// The name asked for.
    pub fn name(&self) -> &str {
        match &self.wanted {
            Wanted::Named(name) | Wanted::Prompt(name) | Wanted::Resource(name) | Wanted::Task(name) => name,
            Wanted::On(_, name) => name,
        }
    }

    /// The request's method.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Puts the server's own name where the public one was written.
    pub(crate) fn rename(&mut self, own_name: &str) {
        let name = object::string(own_name);
        match (&self.wanted, &*self.method) {
            (Wanted::On(..), _) => {}
            (wanted, "completion/complete") => {
                let mut reference =
                    self.params.get("ref").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
                reference.set(if matches!(wanted, Wanted::Prompt(_)) { "name" } else { "uri" }, name);
                self.params.set("ref", reference.to_bytes());
            }
            (Wanted::Resource(_), _) => self.params.set("uri", name),
            (Wanted::Task(_), _) => self.params.set("taskId", name),
            (Wanted::Named(_) | Wanted::Prompt(_), _) => self.params.set("name", name),
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
    let Some(at) = scan::find(result, NAME) else { return false };
    let value = result[at + NAME.len()..].trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start);
    match value {
        Some(value) if value.starts_with(b"false") && scan::find(value, NAME).is_none() => false,
        _ => Object::parse(result)
            .is_ok_and(|object| object.get("isError").is_some_and(|raw| &**raw == b"true")),
    }
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
