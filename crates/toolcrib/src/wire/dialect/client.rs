//! Reads which era a client speaks, message by message, and writes the answers only that era has.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{implementation, meta};
use crate::wire::message::{code, error_object};
use crate::wire::object::Object;
use crate::wire::revision::{Era, Revision};

/// Opens a session.
pub const HELLO: &str = "initialize";
/// Asks what we are, in the stateless era.
pub const DISCOVER: &str = "server/discover";
/// Asks whether we are there, in the session era.
pub const PING: &str = "ping";
/// Takes a request back.
pub const CANCELLED: &str = "notifications/cancelled";
/// Tells how far a request has come.
pub const PROGRESS: &str = "notifications/progress";
/// A line of a server's log.
pub const LOG: &str = "notifications/message";
/// Tells that the list of tools is another one now.
pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
/// Tells that the list of prompts is another one now.
pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
/// Tells that the list of resources is another one now.
pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
/// Tells what of the news asked for will be told.
pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
/// Tells that a resource has another content now.
pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";

/// What a message claims about its era.
#[derive(Debug, PartialEq, Eq)]
pub enum Claim {
    /// It says nothing, as session-era messages do.
    None,
    /// It is a well-formed request of the stateless era.
    Stateless(Revision),
    /// It claims the stateless era and breaks its rules: the error to answer with.
    Broken(Bytes),
}

/// Reads the claim in a request's parameters.
pub fn claim(params: Option<&Object>) -> Claim {
    let Some(meta) = params.and_then(|params| params.get("_meta")) else { return Claim::None };
    let meta = match Object::parse(meta) {
        Ok(meta) => meta,
        Err(bad) => return Claim::Broken(invalid(&format!("`_meta`: {bad}"))),
    };
    let (revision, capabilities) = (meta.get(meta::REVISION), meta.get(meta::CAPABILITIES));
    if revision.is_none() && capabilities.is_none() {
        return Claim::None;
    }
    let Some(asked) = meta.string(meta::REVISION) else {
        return Claim::Broken(invalid(&format!("`_meta` must name a revision as `{}`", meta::REVISION)));
    };
    match asked.parse::<Revision>() {
        Ok(revision) if revision.era() == Era::Stateless => match capabilities {
            Some(raw) if raw.first() == Some(&b'{') => Claim::Stateless(revision),
            _ => Claim::Broken(invalid(&format!("`_meta` must hold an object `{}`", meta::CAPABILITIES))),
        },
        _ => Claim::Broken(unsupported(&asked)),
    }
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

/// The revision to open a session in: the one asked for if it has sessions, else the newest that has.
pub fn agreed_revision(params: Option<&Object>) -> Revision {
    let asked = params.and_then(|params| params.string("protocolVersion"));
    let known = asked
        .and_then(|asked| asked.parse().ok())
        .filter(|revision: &Revision| revision.era() == Era::Session);
    known.unwrap_or(Revision::newest(Era::Session))
}

/// Our answer to `HELLO`. `announces` says whether this client will hear of changed lists.
pub fn hello_result(revision: Revision, announces: bool) -> Bytes {
    let result = json!({
        "protocolVersion": revision.as_str(),
        "capabilities": capabilities(announces),
        "serverInfo": implementation(),
    });
    result.to_string().into()
}

/// Our answer to `DISCOVER`.
pub fn discover_result() -> Bytes {
    let result = json!({
        "resultType": "complete",
        "supportedVersions": all_dates(),
        "capabilities": capabilities(false),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {meta::SERVER: implementation()},
    });
    result.to_string().into()
}

fn capabilities(announces: bool) -> Value {
    if announces { json!({"tools": {"listChanged": true}}) } else { json!({"tools": {}}) }
}

/// A list result around tools that are JSON already.
pub fn tools_result(tools: &[u8], era: Era) -> Bytes {
    let mut out = Vec::with_capacity(tools.len() + 80);
    out.extend_from_slice(br#"{"tools":"#);
    out.extend_from_slice(tools);
    if era == Era::Stateless {
        out.extend_from_slice(br#","resultType":"complete","ttlMs":0,"cacheScope":"private""#);
    }
    out.push(b'}');
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claimed(meta: &str) -> Claim {
        let params = Bytes::from(format!(r#"{{"_meta":{meta}}}"#));
        claim(Some(&Object::parse(&params).unwrap()))
    }

    fn broken_code(meta: &str) -> i64 {
        let Claim::Broken(error) = claimed(meta) else { panic!("{meta}") };
        serde_json::from_slice::<Value>(&error).unwrap()["code"].as_i64().unwrap()
    }

    #[test]
    fn the_era_is_read_from_the_message() {
        assert_eq!(claim(None), Claim::None);
        assert_eq!(claimed(r#"{"progressToken":1}"#), Claim::None);
        let good = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}"#;
        assert_eq!(claimed(good), Claim::Stateless(Revision::V2026_07_28));
    }

    #[test]
    fn a_broken_claim_stays_in_its_era() {
        assert_eq!(broken_code(r#"{"io.modelcontextprotocol/clientCapabilities":{}}"#), -32602);
        assert_eq!(broken_code(r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}"#), -32602);
        assert_eq!(broken_code(r#"{"io.modelcontextprotocol/protocolVersion":7}"#), -32602);
        assert_eq!(broken_code(r#"{"io.modelcontextprotocol/protocolVersion":"2025-11-25"}"#), -32022);
        assert_eq!(broken_code("7"), -32602);
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
