//! Do we already know? Which calls may be answered with what a server said before, and what several ask at the same time,
//! asked once.
//!
//! Resources are kept as their servers say. A tool may do something, so its results are kept only if the config says so,
//! or if a server that is trusted says that it changes nothing; and then, too, only as the server says.

use bytes::Bytes;

use super::ask;
use crate::cache::{Flight, Found, Keeping, Key, Landed, Subject, What};
use crate::call::{Call, Outcome};
use crate::catalog::{Kind, Target};
use crate::error::Error;
use crate::event::CacheUse;
use crate::registry::Entry;
use crate::sharing::SharingKey;
use crate::spec::{ServerSpec, Trust};
use crate::stock::Stock;
use crate::wire::canonical;

/// What comes of the question whether we already know.
pub(super) enum Look {
    /// We do.
    Known(Outcome),
    /// Not yet.
    Unknown(Wish),
    /// It is nothing that anybody keeps.
    Passing,
}

/// A call that may be answered without its server.
pub(super) struct Wish {
    entry: Entry,
    state: State,
}

enum State {
    /// What is known of it was looked up.
    Found(Found),
    /// More has to be found out first.
    Open {
        subject: Subject,
        /// How the tool is defined; not known yet of a server that nobody has seen.
        definition: Option<Bytes>,
        asked: Vec<u8>,
    },
}

/// Whether a call is one that may be answered without its server; most are not, and that is found out first. What is known
/// is given at once: it costs a small part of what asking does.
pub(super) fn look(stock: &Stock, call: &Call, target: &Target) -> Look {
    let is_tool = match call.method() {
        "tools/call" if stock.around.cache.keeps_tools() => true,
        "resources/read" => false,
        _ => return Look::Passing,
    };
    wish(stock, call, target, is_tool).unwrap_or(Look::Passing)
}

fn wish(stock: &Stock, call: &Call, target: &Target, is_tool: bool) -> Option<Look> {
    let entry = stock.registry.get(&target.server)?.ok()?;
    let spec = entry.spec();
    if spec.limits.cache_entries == 0 {
        return None;
    }
    let said = is_tool && spec.tools.may_keep(&target.name);
    if is_tool && !said && spec.trust != Trust::Trusted {
        return None;
    }
    let what = if is_tool { What::Tool(target.name.clone()) } else { What::Resources };
    let subject = Subject { server: target.server.clone(), what };
    if stock.around.cache.passes(&subject) {
        return None;
    }
    let definition = if is_tool { definition(stock, spec, target, said)? } else { Some(Bytes::new()) };
    let asked = asked(call, target, is_tool)?;
    let state = match (definition, SharingKey::at_once(spec.sharing, call)) {
        (Some(definition), Some(instance)) => {
            let cache = &stock.around.cache;
            let key = Key::new(subject, asked, instance, call.caller.clone(), definition, &cache.hashes);
            match cache.find(key, stock.around.moment()) {
                Found::Known(outcome) => {
                    call.record.note(|met| met.cache = Some(CacheUse::Hit));
                    return Some(Look::Known(outcome));
                }
                found => State::Found(found),
            }
        }
        (definition, _) => State::Open { subject, definition, asked },
    };
    Some(Look::Unknown(Wish { entry, state }))
}

/// How a tool is defined whose results may be kept, because somebody said so or its server may; nothing of the kind while
/// nobody has seen its server.
fn definition(stock: &Stock, spec: &ServerSpec, target: &Target, said: bool) -> Option<Option<Bytes>> {
    let catalog = stock.catalog();
    let Some(tool) = catalog.listed(&target.server, Kind::Tools, &target.name) else {
        return catalog.is_stranger(&target.server).then_some(None);
    };
    let may_keep = said || (spec.trust == Trust::Trusted && tool.changes_nothing);
    may_keep.then(|| Some(tool.definition.clone()))
}

/// What is asked, in the one form that all ways to ask it share. A call that answers questions, begins a task or has
/// parameters that nobody knows has none.
fn asked(call: &Call, target: &Target, is_tool: bool) -> Option<Vec<u8>> {
    let known =
        |name: &str| matches!((name, is_tool), ("_meta", _) | ("name" | "arguments", true) | ("uri", false));
    if !call.params.iter().all(|(name, _)| known(name)) {
        return None;
    }
    match call.params.get("arguments") {
        None if is_tool => Some(Vec::new()),
        Some(arguments) if is_tool => canonical::object(arguments),
        _ => Some(target.name.as_bytes().to_vec()),
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
        let Self { entry, state } = self;
        let (spec, cache) = (entry.spec(), &stock.around.cache);
        let mut found = match state {
            State::Found(found) => found,
            State::Open { subject, definition: mut known, asked } => {
                if known.is_none() {
                    // Whatever is wrong with it, the call itself finds out.
                    let _ = stock.meet(std::slice::from_ref(&entry)).await;
                    let said = spec.tools.may_keep(&target.name);
                    known = definition(stock, spec, target, said).flatten();
                }
                let Some(definition) = known else { return ask(stock, call, target, None).await };
                let instance = SharingKey::of(spec.sharing, call).await;
                let key = Key::new(subject, asked, instance, call.caller.clone(), definition, &cache.hashes);
                cache.find(key, stock.around.moment())
            }
        };
        let flight = loop {
            match found {
                Found::Known(outcome) => {
                    call.record.note(|met| met.cache = Some(CacheUse::Hit));
                    return Ok(outcome);
                }
                Found::Nothing(flight) => break flight,
                Found::Flying(mut landed, key) => {
                    let landed = landed.wait_for(|landed| !matches!(landed, Landed::NotYet)).await;
                    match landed.map_or(Landed::Abandoned, |landed| landed.clone()) {
                        Landed::Shared(outcome) => {
                            cache.count_hit(&target.server);
                            call.record.note(|met| met.cache = Some(CacheUse::Joined));
                            return Ok(outcome);
                        }
                        Landed::Alone => break cache.alone(key),
                        Landed::NotYet | Landed::Abandoned => {
                            found = cache.find(key, stock.around.moment());
                        }
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
