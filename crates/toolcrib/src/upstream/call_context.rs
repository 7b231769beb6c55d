//! The facts about a call that in-process servers get in its `_meta`: caller, id and deadline.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::call::Call;
use crate::model::caller::Caller;
use crate::protocol::json::object::{Object, as_integer};

/// The member of a request's `_meta` with the facts.
pub(super) const META_KEY: &str = "toolcrib/call";

/// The member of a log message's `_meta` with the id of the request that it belongs to.
pub(super) const REQUEST_META_KEY: &str = "toolcrib/request";

/// Writes the facts about a call into its parameters, over anything that a client wrote there.
pub(super) fn write(call: &mut Call, timeout_at: Instant, now: Instant) {
    let deadline = call.deadline.map_or(timeout_at, |deadline| deadline.min(timeout_at));
    let timeout = u64::try_from(deadline.saturating_duration_since(now).as_millis()).unwrap_or(u64::MAX);
    let facts = json!({
        "caller": call.caller.as_str(),
        "profile": call.caller.profile(),
        "id": call.get_id(),
        "timeoutMs": timeout,
    });
    let mut meta = call.params.get("_meta").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
    meta.set_unchecked(META_KEY, facts.to_string());
    call.params.set_unchecked("_meta", meta.to_bytes());
}

/// Returns the caller in the facts.
pub(super) fn read_caller(facts: &Value) -> Caller {
    let caller = facts["caller"].as_str().map_or_else(Caller::local, Caller::new);
    match facts["profile"].as_str() {
        Some(profile) => caller.with_profile(profile),
        None => caller,
    }
}

/// Returns the id of the call in the facts.
pub(super) fn read_id(facts: &Value) -> Option<String> {
    facts["id"].as_str().map(str::to_owned)
}

/// Returns the deadline of a call whose facts arrived at `now`.
pub(super) fn read_deadline(facts: &Value, now: Instant) -> Option<Instant> {
    now.checked_add(Duration::from_millis(facts["timeoutMs"].as_u64()?))
}

/// Removes the id of the request that a log message belongs to from its parameters, and returns it.
pub(super) fn take_request(params: &mut Bytes) -> Option<u64> {
    let mut object = Object::parse(params).ok()?;
    let mut meta = Object::parse(object.get("_meta")?).ok()?;
    let request = as_integer(&meta.remove(REQUEST_META_KEY)?);
    match meta.is_empty() {
        true => drop(object.remove("_meta")),
        false => object.set_unchecked("_meta", meta.to_bytes()),
    }
    *params = object.to_bytes();
    request
}
