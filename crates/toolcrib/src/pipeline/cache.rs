//! Do we already know? Which calls may be answered with what a server said before, and what several ask at the same time,
//! asked once.
//!
//! Resources are kept as their servers say. A tool may do something, so its results are kept only if the config says so,
//! or if a server that is trusted says that it changes nothing; and then, too, only as the server says.

use bytes::Bytes;

use super::ask;
use crate::cache::{Flight, Found, Keeping, Key, Landed, Subject, What, canonical};
use crate::call::{Call, Outcome};
use crate::catalog::{Kind, Target};
use crate::error::Error;
use crate::event::CacheUse;
use crate::registry::Entry;
use crate::sharing::SharingKey;
use crate::spec::{ServerSpec, Trust};
use crate::stock::Stock;

/// A call that may be answered without its server.
pub(super) struct Wish {
    entry: Entry,
    subject: Subject,
    /// How the tool is defined; not known yet of a server that nobody has seen.
    definition: Option<Bytes>,
    asked: Bytes,
}

/// Whether a call is one that may be answered without its server; most are not, and that is found out first.
pub(super) fn wish(stock: &Stock, call: &Call, target: &Target) -> Option<Wish> {
    let is_tool = match call.method() {
        "tools/call" if stock.around.cache.keeps_tools() => true,
        "resources/read" => false,
        _ => return None,
    };
    let entry = stock.registry.get(&target.server)?.ok()?;
    let spec = entry.spec();
    if spec.limits.cache_entries == 0 {
        return None;
    }
    if is_tool && !spec.tools.may_keep(&target.name) && spec.trust != Trust::Trusted {
        return None;
    }
    let what = if is_tool { What::Tool(target.name.clone()) } else { What::Resources };
    let subject = Subject { server: target.server.clone(), what };
    if stock.around.cache.passes(&subject) {
        return None;
    }
    let definition = match is_tool {
        false => Some(Bytes::new()),
        true if stock.catalog().is_stranger(&target.server) => None,
        true => Some(definition(stock, spec, target)?),
    };
    let asked = asked(call, target, is_tool)?;
    Some(Wish { entry, subject, definition, asked })
}

/// How a tool is defined whose results may be kept.
fn definition(stock: &Stock, spec: &ServerSpec, target: &Target) -> Option<Bytes> {
    let catalog = stock.catalog();
    let tool = catalog.listed(&target.server, Kind::Tools, &target.name)?;
    let may_keep =
        spec.tools.may_keep(&target.name) || (spec.trust == Trust::Trusted && tool.changes_nothing);
    may_keep.then(|| tool.definition.clone())
}

/// What is asked, in the one form that all ways to ask it share. A call that answers questions, begins a task or has
/// parameters that nobody knows has none.
fn asked(call: &Call, target: &Target, is_tool: bool) -> Option<Bytes> {
    let known =
        |name: &str| matches!((name, is_tool), ("_meta", _) | ("name" | "arguments", true) | ("uri", false));
    if !call.params.iter().all(|(name, _)| known(name)) {
        return None;
    }
    match call.params.get("arguments") {
        None if is_tool => Some(Bytes::new()),
        Some(arguments) if is_tool => canonical::object(arguments).map(Bytes::from),
        _ => Some(Bytes::copy_from_slice(target.name.as_bytes())),
    }
}

impl Wish {
    /// Answers the call with what is known, with what another call is about to bring, or by asking.
    pub(super) async fn grant(
        self,
        stock: &Stock,
        call: &mut Call,
        target: &Target,
    ) -> Result<Outcome, Error> {
        let Self { entry, subject, definition: known, asked } = self;
        let (spec, cache) = (entry.spec(), &stock.around.cache);
        if known.is_none() {
            // Whatever is wrong with it, the call itself finds out.
            let _ = stock.meet(std::slice::from_ref(&entry)).await;
        }
        let Some(definition) = known.or_else(|| definition(stock, spec, target)) else {
            return ask(stock, call, target, None).await;
        };
        let key = Key {
            subject,
            instance: SharingKey::of(spec.sharing, call).await,
            caller: Some(call.caller.clone()),
            definition,
            asked,
        };
        let flight = loop {
            match cache.find(&key, stock.around.moment()) {
                Found::Known(outcome) => {
                    call.record.note(|met| met.cache = Some(CacheUse::Hit));
                    return Ok(outcome);
                }
                Found::Nothing(flight) => break flight,
                Found::Flying(mut landed) => {
                    let landed = landed.wait_for(|landed| !matches!(landed, Landed::NotYet)).await;
                    match landed.map_or(Landed::Abandoned, |landed| landed.clone()) {
                        Landed::Shared(outcome) => {
                            cache.count_hit(&target.server);
                            call.record.note(|met| met.cache = Some(CacheUse::Joined));
                            return Ok(outcome);
                        }
                        Landed::Alone => break cache.alone(&key),
                        Landed::NotYet | Landed::Abandoned => {}
                    }
                }
            }
        };
        call.record.note(|met| met.cache = Some(CacheUse::Miss));
        fly(stock, call, target, &entry, flight).await
    }
}

/// Asks the server on behalf of all who want the same.
async fn fly(
    stock: &Stock,
    call: &mut Call,
    target: &Target,
    entry: &Entry,
    flight: Flight,
) -> Result<Outcome, Error> {
    let told = call.told.clone();
    call.told = told.clone().map(|told| flight.listening(told));
    let outcome = ask(stock, call, target, Some(&flight)).await;
    call.told = told;
    let limits = &entry.spec().limits;
    let keeping = Keeping { entries: limits.cache_entries, at_most: limits.cache_ttl_max };
    match &outcome {
        // One that was replaced meanwhile may finish its calls; they are not its successor's.
        Ok(answered) if !stock.registry.has_replaced(entry) => {
            flight.land(answered, &keeping, stock.around.moment());
        }
        _ => flight.fail(),
    }
    outcome
}
