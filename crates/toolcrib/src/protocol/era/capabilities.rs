//! The client behind a call: its era, its capabilities and its log level.

use bytes::Bytes;

use super::extensions::{self, announced_extensions, is_extension_request};
use crate::protocol::json::object::{Object, write_string};
use crate::protocol::versions::Era;

/// Asks the client's model for a completion.
pub const CREATE_MESSAGE: &str = "sampling/createMessage";
/// Asks the client's user for input.
pub const ELICIT: &str = "elicitation/create";
/// Asks the client for its roots.
pub const LIST_ROOTS: &str = "roots/list";

/// Extensions that a server which clients share is told about, in each of the two members.
const MAX_SHARED_EXTENSIONS: usize = 64;
/// Bytes of the name of such an extension.
const MAX_SHARED_KEY: usize = 256;
/// Bytes of the value of such an extension.
const MAX_SHARED_VALUE: usize = 4 << 10;

/// The client that a call comes from. Servers may send it only requests that its capabilities allow.
#[derive(Debug, Clone)]
pub struct Client {
    /// A number that is unique to the client, assigned by the embedder.
    pub key: u64,
    /// Its era. A session client can be asked while a call runs; a stateless client repeats the call with the answers.
    pub era: Era,
    /// Its capabilities.
    pub capabilities: ClientCapabilities,
    /// The lowest log level that it wants. A session that sets none gets what its servers send.
    pub log_level: Option<LogLevel>,
    /// True if it is connected to one server alone. Messages that the protocol does not define are then passed on to it,
    /// whether it announced an extension or not.
    pub has_one_server: bool,
    /// Its name and version, as JSON, if they are known. Stateless servers and instances of this client alone are told.
    pub info: Option<Bytes>,
}

impl Client {
    /// Creates a session client without capabilities.
    pub fn without_capabilities() -> Self {
        Self {
            key: 0,
            era: Era::Session,
            capabilities: ClientCapabilities::default(),
            log_level: None,
            has_one_server: false,
            info: None,
        }
    }

    /// Returns whether messages that the protocol does not define are passed on to it.
    pub fn takes_unknown_messages(&self) -> bool {
        self.has_one_server || self.capabilities.has_extensions()
    }

    /// Returns the capabilities that a request of a server needs and the client lacks, as a capabilities object; `None` if
    /// it lacks none.
    pub(crate) fn missing_for(&self, method: &str, params: Option<&Bytes>) -> Option<serde_json::Value> {
        let is_passed = self.has_one_server && is_extension_request(method);
        if is_passed { None } else { self.capabilities.missing_for(method, params) }
    }

    /// Returns the capabilities that are declared to a stateless server on its behalf.
    pub fn declared_capabilities(&self) -> Bytes {
        match self.era {
            Era::Stateless => self.capabilities.raw.clone(),
            Era::Session => self.capabilities.to_stateless_json(),
        }
    }

    /// Returns whether it wants log messages of a level. A session that sets no level leaves the choice to the server,
    /// unless `is_level_set`: another client has set the level of the server.
    pub fn wants_log(&self, level: LogLevel, is_level_set: bool) -> bool {
        match (self.log_level, self.era) {
            (Some(min_level), _) => level >= min_level,
            (None, Era::Session) => !is_level_set || level >= LogLevel::Info,
            (None, Era::Stateless) => false,
        }
    }

    /// Returns the log level to request from a stateless server, which sends nothing without one. A session that sets
    /// none gets everything, if it can receive updates.
    pub(crate) fn requested_log_level(&self, can_receive: bool) -> Option<LogLevel> {
        let default = (self.era == Era::Session && can_receive).then_some(LogLevel::Debug);
        self.log_level.or(default)
    }
}

/// A client's capabilities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCapabilities {
    raw: Bytes,
    sampling: bool,
    sampling_tools: bool,
    form: bool,
    url: bool,
    roots: bool,
    /// Any extension that the gateway does not translate itself.
    extensions: bool,
}

impl Default for ClientCapabilities {
    /// No capabilities.
    fn default() -> Self {
        let raw = Bytes::from_static(b"{}");
        Self {
            raw,
            sampling: false,
            sampling_tools: false,
            form: false,
            url: false,
            roots: false,
            extensions: false,
        }
    }
}

impl ClientCapabilities {
    /// Parses a capabilities object. Anything else counts as no capabilities.
    pub fn parse(raw: &Bytes) -> Self {
        let Ok(object) = Object::parse(raw) else { return Self::default() };
        if object.is_empty() {
            return Self::default();
        }
        let part = |key: &str| object.get(key).and_then(|raw| Object::parse(raw).ok());
        let elicitation = part("elicitation");
        let mode = |key: &str| elicitation.as_ref().is_some_and(|modes| modes.get(key).is_some());
        Self {
            // A copy, because a slice would keep the whole message in memory.
            raw: Bytes::copy_from_slice(raw),
            sampling: object.get("sampling").is_some(),
            sampling_tools: part("sampling").is_some_and(|sampling| sampling.get("tools").is_some()),
            // Clients that declare no mode support forms, which were the only mode at first.
            form: elicitation.is_some() && (mode("form") || !mode("url")),
            url: mode("url"),
            roots: object.get("roots").is_some(),
            extensions: extensions::MEMBERS.iter().any(|member| object.get(member).is_some())
                && !announced_extensions(raw).is_empty(),
        }
    }

    /// Returns every capability that there is, for clients that are not known yet.
    pub fn all() -> Self {
        Self::parse(&Bytes::from_static(
            br#"{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}"#,
        ))
    }

    /// Returns the capabilities that either side has. Members that toolcrib does not know, such as extensions, are those
    /// of this side.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        if self.includes(other) {
            return self.clone();
        }
        let Some(mut object) = Object::parse(&self.raw).ok().filter(|object| !object.is_empty()) else {
            return other.clone();
        };
        let other_roots = Object::parse(&other.raw).ok().and_then(|other| other.get("roots").cloned());
        if let Some(roots) = other_roots.filter(|_| !self.roots) {
            object.set_unchecked("roots", roots);
        }
        let both = Self {
            raw: Bytes::new(),
            sampling: self.sampling || other.sampling,
            sampling_tools: self.sampling_tools || other.sampling_tools,
            form: self.form || other.form,
            url: self.url || other.url,
            roots: self.roots || other.roots,
            extensions: self.extensions,
        };
        both.write_sampling_and_elicitation(&mut object);
        Self { raw: object.to_bytes(), ..both }
    }

    /// Returns the same capabilities without members that toolcrib does not know.
    #[must_use]
    pub fn without_unknown(&self) -> Self {
        let mut object = Object::default();
        if self.roots {
            object.set_unchecked("roots", Bytes::from_static(b"{}"));
        }
        self.write_sampling_and_elicitation(&mut object);
        Self { raw: object.to_bytes(), extensions: false, ..self.clone() }
    }

    fn write_sampling_and_elicitation(&self, object: &mut Object) {
        let sampling: Option<&'static [u8]> = match (self.sampling, self.sampling_tools) {
            (true, true) => Some(br#"{"tools":{}}"#),
            (true, false) => Some(b"{}"),
            (false, _) => None,
        };
        let elicitation: Option<&'static [u8]> = match (self.form, self.url) {
            (true, true) => Some(br#"{"form":{},"url":{}}"#),
            (true, false) => Some(br#"{"form":{}}"#),
            (false, true) => Some(br#"{"url":{}}"#),
            (false, false) => None,
        };
        for (key, value) in [("sampling", sampling), ("elicitation", elicitation)] {
            if let Some(value) = value {
                object.set_unchecked(key, Bytes::from_static(value));
            }
        }
    }

    /// Returns these capabilities with the extensions of another client, whose values apply; `None` if that changes nothing.
    /// The number and size of the extensions are bounded: those that were added first make room for new ones.
    #[must_use]
    pub fn with_extensions_of(&self, other: &Self) -> Option<Self> {
        let mut object = Object::parse(&self.raw).unwrap_or_default();
        let announced = Object::parse(&other.raw).unwrap_or_default();
        let mut has_changed = false;
        for member in extensions::MEMBERS {
            let part = |object: &Object| object.get(member).and_then(|raw| Object::parse(raw).ok());
            let Some(added) = part(&announced) else { continue };
            let shareable = added.iter().filter(|(key, value)| is_shareable(key, value));
            let added: Vec<(&str, &Bytes)> = shareable.take(MAX_SHARED_EXTENSIONS).collect();
            let mut others = part(&object).unwrap_or_default();
            if added.iter().all(|(key, value)| others.get(key) == Some(*value)) {
                continue;
            }
            others.retain(|key| added.iter().all(|(name, _)| *name != key));
            // Members are in the order in which they were added.
            let excess = (others.iter().count() + added.len()).saturating_sub(MAX_SHARED_EXTENSIONS);
            object.set_unchecked(member, to_json_object(others.iter().skip(excess).chain(added)));
            has_changed = true;
        }
        has_changed.then(|| Self { raw: object.to_bytes(), extensions: true, ..self.clone() })
    }

    /// Returns whether servers can send this client every request that they can send to another.
    pub fn includes(&self, other: &Self) -> bool {
        let needed = [other.sampling, other.sampling_tools, other.form, other.url, other.roots];
        let present = [self.sampling, self.sampling_tools, self.form, self.url, self.roots];
        needed.iter().zip(present).all(|(needed, present)| !needed || present)
    }

    /// Returns the requests that servers can send this client, as a number.
    pub(crate) fn to_bits(&self) -> u8 {
        let kinds = [self.sampling, self.sampling_tools, self.form, self.url, self.roots];
        kinds.into_iter().rev().fold(0, |bits, has| bits << 1 | u8::from(has))
    }

    /// Returns the object as the client sent it.
    pub fn as_json(&self) -> &Bytes {
        &self.raw
    }

    /// Returns whether servers can send this client any request.
    pub fn has_any(&self) -> bool {
        self.sampling || self.form || self.url || self.roots
    }

    /// Returns whether the client announces any extension that the gateway does not translate itself, so that messages
    /// which the protocol does not define are passed on to it.
    pub fn has_extensions(&self) -> bool {
        self.extensions
    }

    /// Returns the capabilities that a server's request needs and the client lacks, as a capabilities object; `None` if
    /// it lacks none.
    pub fn missing_for(&self, method: &str, params: Option<&Bytes>) -> Option<serde_json::Value> {
        let params = || params.and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
        match method {
            CREATE_MESSAGE if !self.sampling => Some(serde_json::json!({"sampling": {}})),
            CREATE_MESSAGE if !self.sampling_tools && params().get("tools").is_some() => {
                Some(serde_json::json!({"sampling": {"tools": {}}}))
            }
            CREATE_MESSAGE => None,
            ELICIT if params().get_string("mode").as_deref() == Some("url") => {
                (!self.url).then(|| serde_json::json!({"elicitation": {"url": {}}}))
            }
            ELICIT => (!self.form).then(|| serde_json::json!({"elicitation": {"form": {}}})),
            LIST_ROOTS => (!self.roots).then(|| serde_json::json!({"roots": {}})),
            _ => (!self.extensions).then(|| serde_json::json!({"extensions": {}})),
        }
    }

    /// Returns whether the client supports a method of servers, if not with all of its parameters.
    pub(crate) fn supports_method(&self, method: &str) -> bool {
        match method {
            CREATE_MESSAGE => self.sampling,
            ELICIT => self.form || self.url,
            LIST_ROOTS => self.roots,
            _ => false,
        }
    }

    /// Returns the object to declare in a session that is opened for this client alone: without `tasks`, which are not
    /// forwarded, and without the extension for them, whose results sessions have no form for.
    pub fn to_session_json(&self) -> Bytes {
        let Ok(mut object) = Object::parse(&self.raw) else { return Bytes::from_static(b"{}") };
        let has_tasks = object.remove("tasks").is_some();
        match remove_task_extension(&mut object) || has_tasks {
            true => object.to_bytes(),
            false => self.raw.clone(),
        }
    }

    /// Returns the object to declare to a stateless server, without what cannot be carried between the eras.
    fn to_stateless_json(&self) -> Bytes {
        let Ok(mut object) = Object::parse(&self.raw) else { return Bytes::from_static(b"{}") };
        object.remove("tasks");
        // Sessions have no form for a task result of the stateless era.
        remove_task_extension(&mut object);
        if self.roots {
            object.set_unchecked("roots", Bytes::from_static(b"{}"));
        }
        object.to_bytes()
    }
}

/// Removes the extension for tasks from a capabilities object, and returns whether it was there.
fn remove_task_extension(capabilities: &mut Object) -> bool {
    let announced = capabilities.get("extensions").and_then(|raw| Object::parse(raw).ok());
    let Some(mut announced) = announced else { return false };
    let is_announced = announced.remove(extensions::TASKS).is_some();
    if is_announced {
        capabilities.set_unchecked("extensions", announced.to_bytes());
    }
    is_announced
}

/// Returns whether servers which clients share are told about an extension.
fn is_shareable(key: &str, value: &Bytes) -> bool {
    key != extensions::TASKS && key.len() <= MAX_SHARED_KEY && value.len() <= MAX_SHARED_VALUE
}

/// Encodes members with raw values as an object.
fn to_json_object<'a>(members: impl Iterator<Item = (&'a str, &'a Bytes)>) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (key, value) in members {
        if out.len() > 1 {
            out.push(b',');
        }
        write_string(&mut out, key);
        out.push(b':');
        out.extend_from_slice(value);
    }
    out.push(b'}');
    out
}

/// The severity of a log message, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LogLevel {
    /// Debugging details.
    Debug,
    /// General information.
    Info,
    /// Normal but significant events.
    Notice,
    /// Warnings.
    Warning,
    /// Errors.
    Error,
    /// Critical conditions.
    Critical,
    /// Conditions that need immediate action.
    Alert,
    /// The system is unusable.
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

    /// Parses a level.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, level)| *level)
    }

    /// Returns the level as the protocol spells it.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, level)| *level == self).map_or("info", |(name, _)| name)
    }

    /// Returns the level of a log message. A message without a level counts as the highest.
    pub fn from_message(params: &Bytes) -> Self {
        let params = Object::parse(params).ok();
        params.and_then(|params| Self::parse(&params.get_string("level")?)).unwrap_or(Self::Emergency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(text: &'static str) -> ClientCapabilities {
        ClientCapabilities::parse(&Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn missing_for_follows_the_declared_capabilities() {
        let url = Bytes::from_static(br#"{"mode":"url"}"#);
        let old = capabilities(r#"{"elicitation":{},"sampling":{}}"#);
        assert!(old.missing_for(ELICIT, None).is_none() && old.missing_for(CREATE_MESSAGE, None).is_none());
        assert_eq!(old.missing_for(ELICIT, Some(&url)).unwrap().to_string(), r#"{"elicitation":{"url":{}}}"#);
        assert_eq!(old.missing_for(LIST_ROOTS, None).unwrap().to_string(), r#"{"roots":{}}"#);
        let new = capabilities(r#"{"elicitation":{"url":{}}}"#);
        assert!(new.missing_for(ELICIT, Some(&url)).is_none() && new.missing_for(ELICIT, None).is_some());
        assert!(!capabilities("{}").has_any() && !capabilities("7").has_any() && new.has_any());
    }

    #[test]
    fn union_has_what_either_side_has() {
        let old = capabilities(r#"{"elicitation":{},"x":1.0}"#);
        let url = capabilities(r#"{"elicitation":{"url":{}},"sampling":{},"roots":{"listChanged":true}}"#);
        let both = old.union(&url);
        assert!(both.includes(&old) && both.includes(&url) && !old.includes(&url));
        assert_eq!(
            both.as_json(),
            r#"{"elicitation":{"form":{},"url":{}},"x":1.0,"roots":{"listChanged":true},"sampling":{}}"#
        );
        let known = both.without_unknown();
        assert_eq!(known.as_json(), r#"{"roots":{},"sampling":{},"elicitation":{"form":{},"url":{}}}"#);
        assert_eq!(ClientCapabilities::default().union(&url), url);
        assert_eq!(url.union(&ClientCapabilities::default()), url);
        assert!(ClientCapabilities::all().includes(&both));
    }

    #[test]
    fn extensions_of_clients_are_merged_within_bounds() {
        let known = capabilities(r#"{"roots":{},"extensions":{"a":{"v":1}}}"#);
        assert!(known.has_extensions() && !capabilities(r#"{"extensions":{}}"#).has_extensions());
        assert!(!capabilities(r#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#).has_extensions());
        let other =
            capabilities(r#"{"sampling":{},"extensions":{"a":{"v":2},"b":{}},"experimental":{"e":{}}}"#);
        let both = known.with_extensions_of(&other).unwrap();
        assert_eq!(
            both.as_json(),
            r#"{"roots":{},"extensions":{"a":{"v":2},"b":{}},"experimental":{"e":{}}}"#
        );
        assert_eq!(both.with_extensions_of(&other), None);
        let many: Vec<String> = (0..100).map(|number| format!(r#""k{number}":{{}}"#)).collect();
        let large = format!(r#"{{"extensions":{{"large":"{}",{}}}}}"#, "x".repeat(5000), many.join(","));
        let bounded = ClientCapabilities::default()
            .with_extensions_of(&ClientCapabilities::parse(&large.into()))
            .unwrap();
        let value: serde_json::Value = serde_json::from_slice(bounded.as_json()).unwrap();
        let announced = value["extensions"].as_object().unwrap();
        assert_eq!((announced.len(), announced.contains_key("large")), (MAX_SHARED_EXTENSIONS, false));
        let long = format!(r#"{{"extensions":{{"{}":{{}}}}}}"#, "k".repeat(MAX_SHARED_KEY + 1));
        assert_eq!(known.with_extensions_of(&ClientCapabilities::parse(&long.into())), None);
        assert_eq!(known.missing_for("chat/pick", None), None);
        assert!(capabilities(r#"{"sampling":{}}"#).missing_for("chat/pick", None).is_some());
    }

    #[test]
    fn oldest_extensions_make_room_for_those_of_another_client() {
        let announce = |keys: &mut dyn Iterator<Item = String>| {
            let members: Vec<String> = keys.map(|key| format!(r#""{key}":{{}}"#)).collect();
            ClientCapabilities::parse(&format!(r#"{{"extensions":{{{}}}}}"#, members.join(",")).into())
        };
        let many = announce(&mut (0..200).map(|number| format!("z{number}")));
        let own = announce(&mut ["a".to_owned(), "z1".to_owned(), "b".to_owned()].into_iter());
        let full = ClientCapabilities::default().with_extensions_of(&many).unwrap();
        assert_eq!(full.with_extensions_of(&many), None, "the rest is ignored, not added in turn");
        let shared = full.with_extensions_of(&own).unwrap();
        let value: serde_json::Value = serde_json::from_slice(shared.as_json()).unwrap();
        let keys: Vec<&String> = value["extensions"].as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), MAX_SHARED_EXTENSIONS);
        for (key, is_kept) in
            [("a", true), ("b", true), ("z1", true), ("z0", false), ("z2", false), ("z3", true)]
        {
            assert_eq!(keys.iter().any(|kept| *kept == key), is_kept, "{key}");
        }
    }

    #[test]
    fn declared_capabilities_fit_the_era() {
        let text = r#"{"tasks":{},"roots":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{},"x":{}}}"#;
        let mut client = Client { capabilities: capabilities(text), ..Client::without_capabilities() };
        assert_eq!(client.declared_capabilities(), r#"{"roots":{},"extensions":{"x":{}}}"#);
        client.era = Era::Stateless;
        assert_eq!(client.declared_capabilities(), text);
    }

    #[test]
    fn session_without_level_leaves_the_choice_to_the_server() {
        let client = |era, log_level| Client { era, log_level, ..Client::without_capabilities() };
        let wants = |client: &Client, is_level_set| {
            [LogLevel::Debug, LogLevel::Info, LogLevel::Error]
                .map(|level| client.wants_log(level, is_level_set))
        };
        let session = client(Era::Session, None);
        assert_eq!(wants(&session, false), [true, true, true]);
        assert_eq!(wants(&session, true), [false, true, true]);
        assert_eq!(wants(&client(Era::Session, Some(LogLevel::Error)), false), [false, false, true]);
        assert_eq!(wants(&client(Era::Stateless, None), false), [false; 3]);
        assert_eq!(session.requested_log_level(true), Some(LogLevel::Debug));
        assert_eq!(session.requested_log_level(false), None);
        assert_eq!(client(Era::Stateless, None).requested_log_level(true), None);
    }

    #[test]
    fn log_levels_are_ordered_and_parsed() {
        assert!(LogLevel::Debug < LogLevel::Emergency);
        let message = Bytes::from_static(br#"{"level":"warning","data":1}"#);
        assert_eq!(LogLevel::from_message(&message), LogLevel::Warning);
        assert_eq!(LogLevel::parse("loud"), None);
    }
}
