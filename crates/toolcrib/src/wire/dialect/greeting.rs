//! The first words to a server, in either era, and what its answers mean.

use bytes::Bytes;

use super::{implementation, meta};
use crate::wire::message::Answer;
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

/// Said once a session is open.
pub const SESSION_OPEN: &str = "notifications/initialized";

/// What a server said about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The revision spoken with it from now on.
    pub revision: Revision,
    /// `serverInfo`, as it was sent.
    pub server_info: Option<Bytes>,
    /// Whether it says that it has tools; one that says nothing of them is not asked for any.
    pub has_tools: bool,
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
    meta.set(meta::CLIENT, implementation().to_string());
    let mut params = Object::default();
    params.set("_meta", meta.to_bytes());
    Question { method: "server/discover", params }
}

/// What the answer to `probe` means. Only an answer that lists revisions is one: some servers answer anything.
pub fn read_probe(answer: &Answer) -> Probed {
    let Answer::Result(result) = answer else { return Probed::Session };
    let Ok(result) = Object::parse(result) else { return Probed::Session };
    let versions =
        result.get("supportedVersions").and_then(|raw| serde_json::from_slice::<Vec<String>>(raw).ok());
    let newest = versions.unwrap_or_default().iter().filter_map(|date| date.parse().ok()).max();
    match newest.filter(|revision: &Revision| revision.era() == Era::Stateless) {
        None => Probed::Session,
        Some(revision) => {
            let info = result.get("_meta").and_then(|raw| Object::parse(raw).ok());
            let server_info = info.and_then(|info| info.get(meta::SERVER).cloned());
            Probed::Stateless(Welcome { revision, server_info, has_tools: has_tools(&result) })
        }
    }
}

/// Asks a server to open a session.
pub fn hello(revision: Revision) -> Question {
    let mut params = Object::default();
    params.set("protocolVersion", object::string(revision.as_str()));
    params.set("capabilities", Bytes::from_static(b"{}"));
    params.set("clientInfo", implementation().to_string());
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
    let server_info = result.get("serverInfo").cloned();
    Ok(Welcome { revision, server_info, has_tools: has_tools(&result) })
}

/// The message of an error object, or all of it.
pub fn refusal(error: &Bytes) -> String {
    let message = Object::parse(error).ok().and_then(|error| error.get("message").cloned());
    match message.as_deref().and_then(as_string) {
        Some(text) => text.into_owned(),
        None => crate::wire::message::shortened(error),
    }
}

fn has_tools(result: &Object) -> bool {
    let capabilities = result.get("capabilities").and_then(|raw| Object::parse(raw).ok());
    capabilities.is_some_and(|capabilities| capabilities.get("tools").is_some())
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
        assert!(matches!(
            modern,
            Probed::Stateless(Welcome { revision: Revision::V2026_07_28, has_tools: true, .. })
        ));
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
