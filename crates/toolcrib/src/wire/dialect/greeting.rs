//! The first words to a server, in either era, and what its answers mean.

use bytes::Bytes;

use super::party::Abilities;
use super::{IMPLEMENTATION, meta};
use crate::wire::message::{Answer, code, readable};
use crate::wire::object::{self, Object, as_string};
use crate::wire::revision::{Era, Revision};

/// A request to make of a server.
#[derive(Debug)]
pub struct Question {
    /// Its method.
    pub method: &'static str,
    /// Its parameters.
    pub params: Object,
}

/// What a session-era server is told that it may ask when its one session is shared by clients of all kinds: all that a
/// client can be asked. A question that the calling client cannot be asked is refused when it comes.
const EVERYTHING: &[u8] = br#"{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}"#;

/// Said once a session is open.
pub const SESSION_OPEN: &str = "notifications/initialized";

/// How much of a refusal is repeated, in bytes.
const LONGEST_REFUSAL: usize = 500;

/// What a server said about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The revision spoken with it from now on.
    pub revision: Revision,
    /// `serverInfo`, as it was sent.
    pub server_info: Option<Bytes>,
    /// `capabilities`, as they were sent.
    pub capabilities: Bytes,
    /// How it wants to be used, if it says so.
    pub instructions: Option<String>,
}

impl Welcome {
    fn read(revision: Revision, server_info: Option<&Bytes>, result: &Object) -> Self {
        // Copies, so that a few words do not keep the whole message.
        let copied = |raw: &Bytes| Bytes::copy_from_slice(raw);
        let capabilities = result.get("capabilities").map_or(Bytes::from_static(b"{}"), copied);
        let instructions = result.string("instructions").map(std::borrow::Cow::into_owned);
        Self { revision, server_info: server_info.map(copied), capabilities, instructions }
    }

    /// For a server that refused to tell about itself: whatever it may have is asked for.
    fn assumed(revision: Revision) -> Self {
        let capabilities = Bytes::from_static(br#"{"tools":{},"prompts":{},"resources":{}}"#);
        Self { revision, server_info: None, capabilities, instructions: None }
    }

    /// Whether it says that it has `capability`; one that says nothing of it is not asked for any.
    pub fn has(&self, capability: &str) -> bool {
        declares(&self.capabilities, capability)
    }
}

/// Whether `capabilities`, as a peer sent them, name this one.
pub fn declares(capabilities: &Bytes, capability: &str) -> bool {
    let capabilities = Object::parse(capabilities).unwrap_or_default();
    capabilities.get(capability).is_some_and(|raw| !matches!(&**raw, b"null" | b"false"))
}

/// Which era answered the probe.
#[derive(Debug, PartialEq, Eq)]
pub enum Probed {
    /// The stateless one.
    Stateless(Welcome),
    /// The other one, or neither: open a session.
    Session,
}

/// Asks whether a server speaks the stateless era.
pub fn probe() -> Question {
    let mut meta = Object::default();
    meta.set(meta::REVISION, object::string(Revision::newest(Era::Stateless).as_str()));
    meta.set(meta::CAPABILITIES, Bytes::from_static(b"{}"));
    meta.set(meta::CLIENT, IMPLEMENTATION);
    let mut params = Object::default();
    params.set("_meta", meta.to_bytes());
    Question { method: "server/discover", params }
}

/// What the answer to `probe` means. Only an answer that lists revisions is one: some servers answer anything.
pub fn read_probe(answer: &Answer) -> Probed {
    let result = match answer {
        Answer::Result(result) => result,
        Answer::Error(error) => return read_refusal(error),
    };
    let Ok(result) = Object::parse(result) else { return Probed::Session };
    match newest_stateless(result.get("supportedVersions")) {
        None => Probed::Session,
        Some(revision) => {
            let info = result.get("_meta").and_then(|raw| Object::parse(raw).ok());
            let server_info = info.as_ref().and_then(|info| info.get(meta::SERVER));
            Probed::Stateless(Welcome::read(revision, server_info, &result))
        }
    }
}

/// Some errors exist in the stateless era only. One that lists revisions counts by what it lists: a server that knows
/// the error may still speak nothing but sessions.
fn read_refusal(error: &Bytes) -> Probed {
    let revision = match code_of(error) {
        Some(code::HEADER_MISMATCH | code::LACKS_ABILITY) => Some(Revision::newest(Era::Stateless)),
        Some(code::UNSUPPORTED_REVISION) => {
            let data = Object::parse(error).ok().and_then(|error| Object::parse(error.get("data")?).ok());
            data.and_then(|data| newest_stateless(data.get("supported")))
        }
        _ => None,
    };
    revision.map_or(Probed::Session, |revision| Probed::Stateless(Welcome::assumed(revision)))
}

/// The newest revision in a raw list of dates, if that is one of the stateless era.
fn newest_stateless(dates: Option<&Bytes>) -> Option<Revision> {
    let dates = dates.and_then(|raw| serde_json::from_slice::<Vec<String>>(raw).ok()).unwrap_or_default();
    let newest: Option<Revision> = dates.iter().filter_map(|date| date.parse().ok()).max();
    newest.filter(|revision| revision.era() == Era::Stateless)
}

/// Asks a server to open a session, for one client or for whoever comes.
pub fn hello(revision: Revision, client: Option<&Abilities>) -> Question {
    let mut params = Object::default();
    params.set("protocolVersion", object::string(revision.as_str()));
    params.set("capabilities", client.map_or(Bytes::from_static(EVERYTHING), Abilities::in_session));
    params.set("clientInfo", IMPLEMENTATION);
    Question { method: "initialize", params }
}

/// What the answer to `hello` means, or why it is no session.
pub fn read_hello(answer: &Answer) -> Result<Welcome, String> {
    let result = match answer {
        Answer::Result(result) => Object::parse(result).map_err(|bad| bad.why)?,
        Answer::Error(error) => return Err(format!("it refused to open a session: {}", refusal(error))),
    };
    let version = result.string("protocolVersion").ok_or("its answer names no `protocolVersion`")?;
    let known = version.parse().ok().filter(|revision: &Revision| revision.era() == Era::Session);
    let revision = known.ok_or_else(|| format!("it speaks revision `{version}`, which is not known here"))?;
    Ok(Welcome::read(revision, result.get("serverInfo"), &result))
}

/// The message of an error object, or all of it, as people may see it.
pub fn refusal(error: &Bytes) -> String {
    let message = Object::parse(error).ok().and_then(|error| error.get("message").cloned());
    match message.as_deref().and_then(as_string) {
        Some(text) => readable(text.as_bytes(), LONGEST_REFUSAL),
        None => readable(error, LONGEST_REFUSAL),
    }
}

/// The code of an error object.
pub fn code_of(error: &Bytes) -> Option<i32> {
    std::str::from_utf8(Object::parse(error).ok()?.get("code")?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &'static str) -> Answer {
        Answer::Result(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn only_an_answer_that_lists_revisions_is_stateless() {
        let modern = read_probe(&result(
            r#"{"supportedVersions":["2025-11-25","2026-07-28"],"capabilities":{"tools":{}}}"#,
        ));
        let Probed::Stateless(welcome) = modern else { panic!("{modern:?}") };
        assert_eq!((welcome.revision, welcome.has("tools")), (Revision::V2026_07_28, true));
        for old in [
            result("{}"),
            result(r#"{"supportedVersions":["2025-11-25"]}"#),
            Answer::Error(Bytes::from_static(br#"{"code":-32022,"data":{"supported":["2025-11-25"]}}"#)),
            Answer::Error(Bytes::from_static(br#"{"code":-32601}"#)),
        ] {
            assert_eq!(read_probe(&old), Probed::Session, "{old:?}");
        }
    }

    #[test]
    fn a_refusal_is_repeated_without_what_commands_a_terminal() {
        let said = |text: &str| refusal(&Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(said(r#"{"code":1,"message":"no \u001b[2Jway\r\n\u009b"}"#), "no  [2Jway   ");
        assert_eq!(said("{\"code\":\u{9b}1}"), "{\"code\": 1}");
        let long = said(&format!(r#"{{"message":"a{}"}}"#, "é".repeat(1000)));
        assert_eq!(long, format!("a{}…", "é".repeat(249)));
    }

    #[test]
    fn an_error_of_the_stateless_era_counts_by_the_revisions_it_lists() {
        for modern in [
            r#"{"code":-32020,"message":"headers"}"#,
            r#"{"code":-32021,"data":{"requiredCapabilities":{"roots":{}}}}"#,
            r#"{"code":-32022,"data":{"supported":["2025-11-25","2026-07-28"]}}"#,
        ] {
            let probed = read_probe(&Answer::Error(Bytes::from_static(modern.as_bytes())));
            let Probed::Stateless(welcome) = probed else { panic!("{modern}") };
            assert!(["tools", "prompts", "resources"].iter().all(|list| welcome.has(list)), "{modern}");
        }
        for old in [r#"{"code":-32022}"#, r#"{"code":-32022,"data":{"supported":["2999-01-01"]}}"#, "{}"] {
            let probed = read_probe(&Answer::Error(Bytes::from_static(old.as_bytes())));
            assert_eq!(probed, Probed::Session, "{old}");
        }
    }

    #[test]
    fn a_server_is_taken_at_its_word() {
        let said = r#"{"protocolVersion":"2025-11-25","capabilities":{"prompts":{ "x":1.0},"tools":null},"instructions":"be kind"}"#;
        let welcome = read_hello(&result(said)).unwrap();
        assert_eq!(&welcome.capabilities[..], br#"{"prompts":{ "x":1.0},"tools":null}"#);
        assert_eq!(welcome.instructions.as_deref(), Some("be kind"));
        assert_eq!((welcome.has("prompts"), welcome.has("tools"), welcome.has("x")), (true, false, false));
    }

    #[test]
    fn a_session_opens_in_a_known_revision_only() {
        let good = read_hello(&result(
            r#"{"protocolVersion":"2024-11-05","capabilities":{},"serverInfo":{"name":"x"}}"#,
        ));
        assert_eq!(good.unwrap().revision, Revision::V2024_11_05);
        for bad in ["{}", r#"{"protocolVersion":"2026-07-28"}"#, r#"{"protocolVersion":"1999-01-01"}"#] {
            assert!(read_hello(&result(bad)).is_err(), "{bad}");
        }
        let refused = read_hello(&Answer::Error(Bytes::from_static(br#"{"code":1,"message":"no"}"#)));
        assert_eq!(refused.unwrap_err(), "it refused to open a session: no");
    }
}
