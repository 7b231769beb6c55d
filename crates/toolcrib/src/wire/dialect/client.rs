//! Reads which era a client speaks, message by message, and writes the answers only that era has.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::party::{Abilities, LogLevel};
use super::{IMPLEMENTATION, meta};
use crate::wire::message::{code, error_object};
use crate::wire::object::{Object, as_string, write_string};
use crate::wire::revision::{Era, Revision};

/// Opens a session.
pub const HELLO: &str = "initialize";
/// Asks what we are, in the stateless era.
pub const DISCOVER: &str = "server/discover";
/// Asks whether we are there, in the session era.
pub const PING: &str = "ping";
/// Says how much log a session wants.
pub const SET_LEVEL: &str = "logging/setLevel";
/// Wants to hear when a resource changes, in a session.
pub const SUBSCRIBE: &str = "resources/subscribe";
/// Wants to hear no more of a resource, in a session.
pub const UNSUBSCRIBE: &str = "resources/unsubscribe";
/// Opens a stream of what changes, in the stateless era.
pub const LISTEN: &str = "subscriptions/listen";
/// Takes a request back.
pub const CANCELLED: &str = "notifications/cancelled";
/// Tells how far a request has come.
pub const PROGRESS: &str = "notifications/progress";
/// Tells that a person is done with an address that was to be opened, in a session.
pub const ELICITED: &str = "notifications/elicitation/complete";
/// Tells how a task is doing, in a session.
pub const TASK_STATUS: &str = "notifications/tasks/status";
/// A line of a server's log.
pub const LOG: &str = "notifications/message";
/// A client tells that it works elsewhere now.
pub const ROOTS_CHANGED: &str = "notifications/roots/list_changed";
/// Tells that the list of tools is another one now.
pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
/// Tells that the list of prompts is another one now.
pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
/// Tells that the list of resources is another one now.
pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
/// The first message of such a stream: what of the news asked for will be told on it.
pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
/// Tells that a resource has another content now.
pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";

/// What a message claims about its era.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    /// It says nothing, as session-era messages do.
    None,
    /// It is a well-formed request of the stateless era.
    Stateless(Claimed),
    /// It claims a revision that is not spoken here, or not in this way.
    Unspoken(String),
    /// It claims the stateless era and breaks its rules: the error to answer with.
    Broken(Bytes),
}

/// What a request of the stateless era says about its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// The revision it is written in.
    pub revision: Revision,
    /// What the client can be asked.
    pub abilities: Abilities,
    /// How much log the client wants with the answer.
    pub log: Option<LogLevel>,
    /// The token under which it wants to hear of progress, as JSON.
    pub progress: Option<Bytes>,
}

/// Reads what one client claims, and knows the last claim again: clients repeat it with every request, byte for byte.
#[derive(Debug, Default)]
pub struct Claims(Mutex<Option<(Bytes, Claimed)>>);

impl Claims {
    /// Reads the claim in a request's parameters. What a good one says about this hop alone is taken out of them.
    pub fn read(&self, params: Option<&mut Object>) -> Claim {
        let Some(params) = params else { return Claim::None };
        let Some(written) = params.get("_meta") else { return Claim::None };
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, claimed)) = &*last
            && known == written
        {
            params.remove("_meta");
            return Claim::Stateless(claimed.clone());
        }
        let mut meta = match Object::parse(written) {
            Ok(meta) => meta,
            Err(bad) => return Claim::Broken(invalid(&format!("`_meta`: {bad}"))),
        };
        let claim = claim(&meta);
        if let Claim::Stateless(claimed) = &claim {
            meta.retain(|key| !meta::SAID_BY_CLIENTS.contains(&key));
            if meta.is_empty() {
                // A copy, so that what is kept does not hold on to the whole request.
                *last = Some((Bytes::copy_from_slice(written), claimed.clone()));
                params.remove("_meta");
            } else {
                params.set("_meta", meta.to_bytes());
            }
        }
        claim
    }
}

fn claim(meta: &Object) -> Claim {
    let (revision, capabilities) = (meta.get(meta::REVISION), meta.get(meta::CAPABILITIES));
    if revision.is_none() && capabilities.is_none() {
        return Claim::None;
    }
    let Some(asked) = meta.string(meta::REVISION) else {
        return Claim::Broken(invalid(&format!("`_meta` must name a revision as `{}`", meta::REVISION)));
    };
    let Some(revision) = asked.parse().ok().filter(|revision: &Revision| revision.era() == Era::Stateless)
    else {
        return Claim::Unspoken(asked.into_owned());
    };
    let Some(capabilities) = capabilities.filter(|raw| raw.first() == Some(&b'{')) else {
        return Claim::Broken(invalid(&format!("`_meta` must hold an object `{}`", meta::CAPABILITIES)));
    };
    let log = match meta.get(meta::LOG_LEVEL).map(|raw| as_string(raw).and_then(|text| LogLevel::read(&text)))
    {
        Some(None) => return Claim::Broken(invalid(&format!("`{}` is no level of log", meta::LOG_LEVEL))),
        level => level.flatten(),
    };
    let abilities = Abilities::read(capabilities);
    Claim::Stateless(Claimed { revision, abilities, log, progress: token_in(meta) })
}

/// The token under which a client wants to hear of progress, as JSON.
pub fn progress_token(params: Option<&Object>) -> Option<Bytes> {
    token_in(&Object::parse(params?.get("_meta")?).ok()?)
}

fn token_in(meta: &Object) -> Option<Bytes> {
    let token = meta.get(meta::PROGRESS)?;
    let good = as_string(token).is_some()
        || token.first().is_some_and(|byte| byte.is_ascii_digit() || *byte == b'-');
    good.then(|| token.clone())
}

fn invalid(why: &str) -> Bytes {
    error_object(code::INVALID_PARAMS, why, None)
}

/// The error for a request that needs something the client does not say it can.
pub fn lacks_ability(lacking: &Value) -> Bytes {
    let data = json!({"requiredCapabilities": lacking});
    let why = format!("this needs a client capability that was not declared: {lacking}");
    error_object(code::LACKS_ABILITY, &why, Some(&data))
}

/// The error for a revision that is not spoken here.
pub fn unsupported(asked: &str) -> Bytes {
    let data = json!({"supported": all_dates(), "requested": asked});
    error_object(
        code::UNSUPPORTED_REVISION,
        &format!("the revision `{asked}` is not spoken here"),
        Some(&data),
    )
}

fn all_dates() -> Vec<&'static str> {
    Revision::ALL.iter().rev().map(|revision| revision.as_str()).collect()
}

fn ourselves() -> Value {
    IMPLEMENTATION.parse().unwrap_or_default()
}

/// The revision to open a session in: the one asked for if it has sessions, else the newest that has.
pub fn agreed_revision(params: Option<&Object>) -> Revision {
    let asked = params.and_then(|params| params.string("protocolVersion"));
    let known = asked
        .and_then(|asked| asked.parse().ok())
        .filter(|revision: &Revision| revision.era() == Era::Session);
    known.unwrap_or(Revision::newest(Era::Session))
}

/// Our answer to `HELLO`: the revision of the session, what is on offer in it, and how to use that.
pub fn hello_result(revision: Revision, capabilities: &Value, instructions: Option<&str>) -> Bytes {
    let mut result = json!({
        "protocolVersion": revision.as_str(),
        "capabilities": capabilities,
        "serverInfo": ourselves(),
    });
    if let Some(instructions) = instructions {
        result["instructions"] = instructions.into();
    }
    result.to_string().into()
}

/// Our answer to `DISCOVER`: what is on offer, and how to use it.
pub fn discover_result(capabilities: &Value, instructions: Option<&str>) -> Bytes {
    let mut result = json!({
        "resultType": "complete",
        "supportedVersions": all_dates(),
        "capabilities": capabilities,
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {meta::SERVER: ourselves()},
    });
    if let Some(instructions) = instructions {
        result["instructions"] = instructions.into();
    }
    result.to_string().into()
}

/// The capabilities of everything that can be routed here; `extensions` are those of the servers behind.
pub fn every_capability(era: Era, extensions: &[&str]) -> Value {
    let mut all = json!({
        "tools": {"listChanged": true},
        "prompts": {"listChanged": true},
        "resources": {"subscribe": true, "listChanged": true},
        "completions": {},
        "logging": {},
    });
    if era == Era::Stateless && !extensions.is_empty() {
        let extensions = extensions.iter().map(|name| ((*name).to_owned(), json!({})));
        all["extensions"] = extensions.collect::<serde_json::Map<_, _>>().into();
    }
    all
}

/// What one server declares, as a client of this era sees it through us: we tell of changed lists whoever the server
/// is, and what only the other era can carry is left out.
pub fn passed_capabilities(declared: &Bytes, era: Era) -> Option<Value> {
    let mut declared: Value = serde_json::from_slice(declared).ok()?;
    let members = declared.as_object_mut()?;
    members.remove(match era {
        Era::Session => "extensions",
        Era::Stateless => "tasks",
    });
    for list in ["tools", "prompts", "resources"] {
        if let Some(list) = members.get_mut(list).and_then(Value::as_object_mut) {
            list.insert("listChanged".to_owned(), true.into());
        }
    }
    Some(declared)
}

/// A page of a list around items that are a JSON array already; `good` for that long, and for everybody or not.
pub fn list_result(
    member: &str,
    items: &[u8],
    next: Option<&str>,
    era: Era,
    good: (Duration, bool),
) -> Bytes {
    let mut out = Vec::with_capacity(items.len() + 120);
    out.push(b'{');
    write_string(&mut out, member);
    out.push(b':');
    out.extend_from_slice(items);
    if let Some(next) = next {
        out.extend_from_slice(br#","nextCursor":"#);
        write_string(&mut out, next);
    }
    if era == Era::Stateless {
        let (time, scope) = (good.0.as_millis(), if good.1 { "public" } else { "private" });
        let said = format!(r#","resultType":"complete","ttlMs":{time},"cacheScope":"{scope}""#);
        out.extend_from_slice(said.as_bytes());
    }
    out.push(b'}');
    out.into()
}

/// The result of something that has none, in either era.
pub fn empty_result(era: Era) -> Bytes {
    match era {
        Era::Session => Bytes::from_static(b"{}"),
        Era::Stateless => Bytes::from_static(br#"{"resultType":"complete"}"#),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(meta: &str) -> Claim {
        let params = Bytes::from(format!(r#"{{"_meta":{meta}}}"#));
        Claims::default().read(Some(&mut Object::parse(&params).unwrap()))
    }

    fn broken_code(meta: &str) -> i64 {
        let Claim::Broken(error) = claimed(meta) else { panic!("{meta}") };
        serde_json::from_slice::<Value>(&error).unwrap()["code"].as_i64().unwrap()
    }

    #[test]
    fn the_era_is_read_from_the_message() {
        assert_eq!(Claims::default().read(None), Claim::None);
        assert_eq!(claimed(r#"{"progressToken":1}"#), Claim::None);
        let good = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        let Claim::Stateless(said) = claimed(good) else { panic!("{good}") };
        assert_eq!((said.revision, said.log, said.progress), (Revision::V2026_07_28, None, None));
        let more = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/logLevel":"info","progressToken":"t"}"#;
        let Claim::Stateless(said) = claimed(more) else { panic!("{more}") };
        assert_eq!((said.log, said.progress.as_deref()), (Some(LogLevel::Info), Some(&b"\"t\""[..])));
        assert_eq!(broken_code(&more.replace("info", "loud")), -32602);
    }

    #[test]
    fn what_is_said_to_this_hop_is_taken_out_however_often_it_is_said() {
        let claims = Claims::default();
        let read = |text: &str| {
            let mut params = Object::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap();
            let Claim::Stateless(claimed) = claims.read(Some(&mut params)) else { panic!("{text}") };
            (claimed, String::from_utf8(params.to_bytes().to_vec()).unwrap())
        };
        let first = r#"{"name":"x","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}},"io.modelcontextprotocol/clientInfo":{"name":"c"}}}"#;
        let (claimed, left) = read(first);
        assert_eq!(
            (left.as_str(), claimed.abilities.raw().as_ref()),
            (r#"{"name":"x"}"#, &br#"{"roots":{}}"#[..])
        );
        assert_eq!(read(first), (claimed.clone(), left), "the same again");
        let other = first.replace(r#"{"roots":{}}"#, "{}");
        assert!(!read(&other).0.abilities.any() && read(first).0 == claimed, "another is another");
        let more = first.replace(r#""_meta":{"#, r#""_meta":{"progressToken":1,"traceparent":"00-1","#);
        for _ in 0..2 {
            let (claimed, left) = read(&more);
            assert_eq!(left, r#"{"name":"x","_meta":{"progressToken":1,"traceparent":"00-1"}}"#);
            assert_eq!(claimed.progress.as_deref(), Some(&b"1"[..]));
        }
    }

    #[test]
    fn a_broken_claim_stays_in_its_era() {
        assert_eq!(broken_code(r#"{"io.modelcontextprotocol/clientCapabilities":{}}"#), -32602);
        assert_eq!(broken_code(r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#), -32602);
        assert_eq!(broken_code(r#"{"io.modelcontextprotocol/protocolVersion":7}"#), -32602);
        let old = r#"{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}"#;
        assert_eq!(claimed(old), Claim::Unspoken("2025-11-25".to_owned()));
        assert_eq!(broken_code("7"), -32602);
    }

    #[test]
    fn what_a_server_declares_is_shown_as_it_is_delivered() {
        let declared = Bytes::from_static(
            br#"{"tools":{},"resources":{"subscribe":true},"tasks":{},"extensions":{"x":{}},"experimental":{"e":1}}"#,
        );
        assert_eq!(
            passed_capabilities(&declared, Era::Session).unwrap(),
            json!({"tools": {"listChanged": true}, "resources": {"subscribe": true, "listChanged": true}, "tasks": {}, "experimental": {"e": 1}})
        );
        let stateless = passed_capabilities(&declared, Era::Stateless).unwrap();
        assert!(stateless["tasks"].is_null() && stateless["extensions"] == json!({"x": {}}));
        assert_eq!(passed_capabilities(&Bytes::from_static(b"7"), Era::Session), None);
    }

    #[test]
    fn sessions_are_opened_in_the_revision_asked_for_or_the_newest() {
        let agreed = |date: &str| {
            let params = Bytes::from(format!(r#"{{"protocolVersion":"{date}"}}"#));
            agreed_revision(Some(&Object::parse(&params).unwrap())).as_str()
        };
        assert_eq!(agreed("2024-11-05"), "2024-11-05");
        assert_eq!(agreed("2026-07-28"), "2025-11-25");
        assert_eq!(agreed("1999-01-01"), "2025-11-25");
    }
}
