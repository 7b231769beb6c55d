//! `Client`: on whose behalf a call is made, what that client can be asked, and how much of a server's log it wants.

use bytes::Bytes;

use crate::wire::object::Object;
use crate::wire::revision::Era;

/// Asks a client's model for text.
pub const SAMPLE: &str = "sampling/createMessage";
/// Asks the person in front of a client.
pub const ELICIT: &str = "elicitation/create";
/// Asks a client for the folders it works in.
pub const ROOTS: &str = "roots/list";

/// The extension that lets a server answer a stateless client with a task.
const TASKS: &str = "io.modelcontextprotocol/tasks";

/// The client a call comes from. What a server may ask during a call is what this client says it can.
#[derive(Debug, Clone)]
pub struct Client {
    /// Tells clients apart; whoever hands calls over gives every client a number of its own.
    pub key: u64,
    /// The era it speaks: a session can be asked while its call runs, a stateless client asks again with the answers.
    pub era: Era,
    /// What it can be asked.
    pub abilities: Abilities,
    /// How much of the server's log it wants with its calls; in a session that has not said so, everything but debugging.
    pub log: Option<LogLevel>,
}

impl Client {
    /// A client that can be asked nothing.
    pub fn silent() -> Self {
        Self { key: 0, era: Era::Session, abilities: Abilities::default(), log: None }
    }

    /// What is declared to a stateless server on its behalf.
    pub fn declared(&self) -> Bytes {
        match self.era {
            Era::Stateless => self.abilities.raw.clone(),
            Era::Session => self.abilities.without_session_parts(),
        }
    }

    /// Whether a log message of this level is for it.
    pub fn wants_log(&self, level: LogLevel) -> bool {
        // Others may have made the server say more than a session that has not chosen would hear from it alone.
        let least = self.log.or((self.era == Era::Session).then_some(LogLevel::Info));
        least.is_some_and(|least| level >= least)
    }
}

/// A client's capabilities, as it wrote them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Abilities {
    raw: Bytes,
    sampling: bool,
    sampling_tools: bool,
    form: bool,
    url: bool,
    roots: bool,
}

impl Default for Abilities {
    /// Nothing at all.
    fn default() -> Self {
        let raw = Bytes::from_static(b"{}");
        Self { raw, sampling: false, sampling_tools: false, form: false, url: false, roots: false }
    }
}

impl Abilities {
    /// Reads a capabilities object; what is not an object is nothing.
    pub fn read(raw: &Bytes) -> Self {
        let Ok(object) = Object::parse(raw) else { return Self::default() };
        if object.is_empty() {
            return Self::default();
        }
        let part = |key: &str| object.get(key).and_then(|raw| Object::parse(raw).ok());
        let elicitation = part("elicitation");
        let mode = |key: &str| elicitation.as_ref().is_some_and(|modes| modes.get(key).is_some());
        Self {
            // A copy, so that it does not hold on to the whole message that it came in.
            raw: Bytes::copy_from_slice(raw),
            sampling: object.get("sampling").is_some(),
            sampling_tools: part("sampling").is_some_and(|sampling| sampling.get("tools").is_some()),
            // Before there were two modes, there was only this one.
            form: elicitation.is_some() && (mode("form") || !mode("url")),
            url: mode("url"),
            roots: object.get("roots").is_some(),
        }
    }

    /// The object as the client wrote it.
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// Whether there is anything that this client could be asked.
    pub fn any(&self) -> bool {
        self.sampling || self.form || self.url || self.roots
    }

    /// The capabilities that a question needs and the client lacks, as the protocol spells them; `None` if it can be
    /// asked.
    pub fn lacking(&self, method: &str, params: Option<&Bytes>) -> Option<serde_json::Value> {
        let params = || params.and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
        match method {
            SAMPLE if !self.sampling => Some(serde_json::json!({"sampling": {}})),
            SAMPLE if !self.sampling_tools && params().get("tools").is_some() => {
                Some(serde_json::json!({"sampling": {"tools": {}}}))
            }
            ELICIT if params().string("mode").as_deref() == Some("url") => {
                (!self.url).then(|| serde_json::json!({"elicitation": {"url": {}}}))
            }
            ELICIT => (!self.form).then(|| serde_json::json!({"elicitation": {"form": {}}})),
            ROOTS => (!self.roots).then(|| serde_json::json!({"roots": {}})),
            _ => None,
        }
    }

    /// What is declared to a server when a session is opened on the client's behalf alone: everything but tasks of its
    /// own, which are not passed on.
    pub fn in_session(&self) -> Bytes {
        let Ok(mut object) = Object::parse(&self.raw) else { return Bytes::from_static(b"{}") };
        match object.remove("tasks") {
            Some(_) => object.to_bytes(),
            None => self.raw.clone(),
        }
    }

    /// The object without what only a session can carry, and without what a session cannot.
    fn without_session_parts(&self) -> Bytes {
        let Ok(mut object) = Object::parse(&self.raw) else { return Bytes::from_static(b"{}") };
        object.remove("tasks");
        // A task would be an answer that no session has words for, whatever its client says it knows.
        if let Some(mut extensions) = object.get("extensions").and_then(|raw| Object::parse(raw).ok())
            && extensions.remove(TASKS).is_some()
        {
            object.set("extensions", extensions.to_bytes());
        }
        if self.roots {
            object.set("roots", Bytes::from_static(b"{}"));
        }
        object.to_bytes()
    }
}

/// How much of a server's log somebody wants, from everything to almost nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What happens.
    Info,
    /// What matters among it.
    Notice,
    /// What may go wrong.
    Warning,
    /// What went wrong.
    Error,
    /// What went badly wrong.
    Critical,
    /// What somebody must see to.
    Alert,
    /// The end.
    Emergency,
}

impl LogLevel {
    const ALL: [(&'static str, Self); 8] = [
        ("debug", Self::Debug),
        ("info", Self::Info),
        ("notice", Self::Notice),
        ("warning", Self::Warning),
        ("error", Self::Error),
        ("critical", Self::Critical),
        ("alert", Self::Alert),
        ("emergency", Self::Emergency),
    ];

    /// Reads a level.
    pub fn read(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, level)| *level)
    }

    /// The level as the protocol spells it.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, level)| *level == self).map_or("info", |(name, _)| name)
    }

    /// The level of a log message; one without a level is worth seeing.
    pub fn of_message(params: &Bytes) -> Self {
        let params = Object::parse(params).ok();
        params.and_then(|params| Self::read(&params.string("level")?)).unwrap_or(Self::Emergency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn abilities(text: &'static str) -> Abilities {
        Abilities::read(&Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn a_client_can_be_asked_what_it_says() {
        let url = Bytes::from_static(br#"{"mode":"url"}"#);
        let old = abilities(r#"{"elicitation":{},"sampling":{}}"#);
        assert!(old.lacking(ELICIT, None).is_none() && old.lacking(SAMPLE, None).is_none());
        assert_eq!(old.lacking(ELICIT, Some(&url)).unwrap().to_string(), r#"{"elicitation":{"url":{}}}"#);
        assert_eq!(old.lacking(ROOTS, None).unwrap().to_string(), r#"{"roots":{}}"#);
        let new = abilities(r#"{"elicitation":{"url":{}}}"#);
        assert!(new.lacking(ELICIT, Some(&url)).is_none() && new.lacking(ELICIT, None).is_some());
        assert!(!abilities("{}").any() && !abilities("7").any() && new.any());
    }

    #[test]
    fn a_session_declares_nothing_that_it_cannot_carry() {
        let text = r#"{"tasks":{},"roots":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{},"x":{}}}"#;
        let mut client = Client { abilities: abilities(text), ..Client::silent() };
        assert_eq!(client.declared(), r#"{"roots":{},"extensions":{"x":{}}}"#);
        client.era = Era::Stateless;
        assert_eq!(client.declared(), text);
    }

    #[test]
    fn levels_are_ordered_and_read_from_messages() {
        assert!(LogLevel::Debug < LogLevel::Emergency);
        let message = Bytes::from_static(br#"{"level":"warning","data":1}"#);
        assert_eq!(LogLevel::of_message(&message), LogLevel::Warning);
        assert_eq!(LogLevel::read("loud"), None);
    }
}
