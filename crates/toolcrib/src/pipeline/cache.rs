//! The cache step of a call: answers from the response cache, and merges identical calls in flight.
//!
//! Resources are cached as their server allows. A tool result is cached only if the config names the tool, or a trusted
//! server declares it read-only, and also only as the server allows.

use bytes::Bytes;

use super::{KeptLease, send_to_server};
use crate::cache::{
    CacheKey, CacheResult, CacheSettings, CacheSubject, CachedItem, FlightResult, SingleFlight,
};
use crate::call::Call;
use crate::catalog::ListKind;
use crate::model::error::Error;
use crate::model::event::CacheUse;
use crate::model::outcome::Outcome;
use crate::model::target::Target;
use crate::pipeline::router::CallRouter;
use crate::protocol::json::canonical;
use crate::registry::RegisteredServer;
use crate::spec::{ServerSpec, Trust};

/// The result of looking up a call in the cache. Small, because the future of every call contains it.
pub(super) enum CacheLookup {
    /// The answer is cached.
    Hit(Box<Outcome>),
    /// The call is cacheable; its answer may still come from an identical call in flight.
    Cacheable(Box<CacheableCall>),
    /// The call is not cacheable.
    Bypass,
}

/// A call whose answer may come from the cache or from an identical call in flight.
pub(super) struct CacheableCall {
    entry: RegisteredServer,
    state: State,
}

enum State {
    /// The cache was searched.
    Searched(CacheResult),
    /// The cache key is not complete yet.
    KeyIncomplete {
        subject: CacheSubject,
        /// The tool's definition; `None` while the server has no known listing.
        definition: Option<Bytes>,
        request: Vec<u8>,
    },
}

/// Looks a call up in the cache. The cheap check that rules out most calls comes first.
pub(super) fn look_up(router: &CallRouter, call: &Call, target: &Target) -> CacheLookup {
    let is_tool = match call.method() {
        "tools/call" if router.services.cache.caches_tools() => true,
        "resources/read" => false,
        _ => return CacheLookup::Bypass,
    };
    find_cached(router, call, target, is_tool).unwrap_or(CacheLookup::Bypass)
}

fn find_cached(router: &CallRouter, call: &Call, target: &Target, is_tool: bool) -> Option<CacheLookup> {
    let entry = router.registry.get(&target.server)?.ok()?;
    let spec = entry.spec();
    if spec.limits.cache_entries == 0 {
        return None;
    }
    // Each client has state of its own, in an instance that is not known yet.
    if spec.sharing.is_shared() && entry.has_instances_of_clients() {
        return None;
    }
    let is_configured = is_tool && spec.tools.is_cacheable(&target.name);
    if is_tool && !is_configured && spec.trust != Trust::Trusted {
        return None;
    }
    let item = if is_tool { CachedItem::Tool(target.name.clone()) } else { CachedItem::Resources };
    let subject = CacheSubject { server: target.server.clone(), item };
    if router.services.cache.should_bypass(&subject) {
        return None;
    }
    let definition =
        if is_tool { find_definition(router, spec, target, is_configured)? } else { Some(Bytes::new()) };
    let request = canonical_request(call, target, is_tool)?;
    let state = match (definition, call.try_instance_key(spec.sharing)) {
        (Some(definition), Some(instance)) => {
            let cache = &router.services.cache;
            let key = CacheKey::new(
                subject,
                request,
                instance,
                call.caller.owner(),
                definition,
                &cache.hash_builder,
            );
            match cache.lookup(key, router.services.now_including_suspend()) {
                CacheResult::Hit(outcome) => {
                    call.trace.record(|facts| facts.cache = Some(CacheUse::Hit));
                    return Some(CacheLookup::Hit(Box::new(outcome)));
                }
                result => State::Searched(result),
            }
        }
        (definition, _) => State::KeyIncomplete { subject, definition, request },
    };
    Some(CacheLookup::Cacheable(Box::new(CacheableCall { entry, state })))
}

/// Returns the definition of a tool whose results may be cached, or `Some(None)` while its server has no known listing.
fn find_definition(
    router: &CallRouter,
    spec: &ServerSpec,
    target: &Target,
    is_configured: bool,
) -> Option<Option<Bytes>> {
    let catalog = router.catalog();
    let Some(tool) = catalog.find_item(&target.server, ListKind::Tools, &target.name) else {
        return catalog.is_undiscovered(&target.server).then_some(None);
    };
    let may_cache = is_configured || (spec.trust == Trust::Trusted && tool.is_read_only);
    may_cache.then(|| Some(tool.definition.clone()))
}

/// Returns the canonical form of a request, which all equivalent requests share. There is none for a call that answers
/// questions, creates a task or has unknown parameters.
fn canonical_request(call: &Call, target: &Target, is_tool: bool) -> Option<Vec<u8>> {
    let is_known =
        |name: &str| matches!((name, is_tool), ("_meta", _) | ("name" | "arguments", true) | ("uri", false));
    if !call.params.iter().all(|(name, _)| is_known(name)) {
        return None;
    }
    match call.params.get("arguments") {
        None if is_tool => Some(Vec::new()),
        Some(arguments) if is_tool => canonical::canonicalize_object(arguments),
        _ => Some(target.name.as_bytes().to_vec()),
    }
}

impl CacheableCall {
    /// Answers the call from the cache, with the answer of an identical call in flight, or by sending it.
    pub(super) async fn execute(
        self: Box<Self>,
        router: &CallRouter,
        call: &mut Call,
        target: &Target,
        kept: &mut KeptLease,
    ) -> Result<Outcome, Error> {
        let Self { entry, state } = *self;
        let spec = entry.spec();
        let cache = &router.services.cache;
        let result = match state {
            State::Searched(result) => Some(result),
            State::KeyIncomplete { subject, definition, request } => {
                search_later(router, call, target, &entry, subject, definition, request).await
            }
        };
        let Some(mut result) = result else { return send_to_server(router, call, target, None, kept).await };
        let flight = loop {
            match result {
                CacheResult::Hit(outcome) => {
                    call.trace.record(|facts| facts.cache = Some(CacheUse::Hit));
                    return Ok(outcome);
                }
                CacheResult::Miss(mut flight) => {
                    if let Some(outcome) = find_shared(router, spec, &mut flight).await {
                        call.trace.record(|facts| facts.cache = Some(CacheUse::Hit));
                        return Ok(outcome);
                    }
                    break flight;
                }
                CacheResult::InFlight(mut in_flight, key) => {
                    let finished = in_flight.wait_for(|state| !matches!(state, FlightResult::Pending)).await;
                    match finished.map_or(FlightResult::Abandoned, |state| state.clone()) {
                        FlightResult::Shared(outcome) => {
                            cache.record_hit(&target.server);
                            call.trace.record(|facts| facts.cache = Some(CacheUse::Joined));
                            return Ok(outcome);
                        }
                        FlightResult::NotShareable => break cache.start_unmerged(key),
                        FlightResult::Pending | FlightResult::Abandoned => {
                            result = cache.lookup(key, router.services.now_including_suspend());
                        }
                    }
                }
            }
        };
        call.trace.record(|facts| facts.cache = Some(CacheUse::Miss));
        send_merged(router, call, target, &entry, flight, kept).await
    }
}

/// Searches the cache once the tool's definition and the instance are known. Returns `None` if the call is not cacheable.
async fn search_later(
    router: &CallRouter,
    call: &Call,
    target: &Target,
    entry: &RegisteredServer,
    subject: CacheSubject,
    mut definition: Option<Bytes>,
    request: Vec<u8>,
) -> Option<CacheResult> {
    let spec = entry.spec();
    let cache = &router.services.cache;
    if definition.is_none() {
        // If discovery fails, sending the call returns the error.
        let _ = router.discover_server(&target.server, &call.caller, call.client.era).await;
        let is_configured = spec.tools.is_cacheable(&target.name);
        definition = find_definition(router, spec, target, is_configured).flatten();
    }
    let definition = definition?;
    let instance = call.instance_key(spec.sharing).await;
    let key = CacheKey::new(subject, request, instance, call.caller.owner(), definition, &cache.hash_builder);
    Some(cache.lookup(key, router.services.now_including_suspend()))
}

/// Answers all identical calls in flight from the store, if other processes use it.
async fn find_shared(router: &CallRouter, spec: &ServerSpec, flight: &mut SingleFlight) -> Option<Outcome> {
    if !router.services.cache.is_shared() {
        return None;
    }
    let found = flight.find_shared(spec).await?;
    flight.accept_shared(found, &cache_settings(spec), router.services.now_including_suspend())
}

fn cache_settings(spec: &ServerSpec) -> CacheSettings {
    CacheSettings { max_entries: spec.limits.cache_entries, max_ttl: spec.limits.cache_ttl_max }
}

/// Sends the call on behalf of all identical calls in flight, and stores the answer.
async fn send_merged(
    router: &CallRouter,
    call: &mut Call,
    target: &Target,
    entry: &RegisteredServer,
    flight: SingleFlight,
    kept: &mut KeptLease,
) -> Result<Outcome, Error> {
    let sink = call.update_sink.clone();
    call.update_sink = sink.clone().map(|sink| flight.wrap_updates(sink));
    let outcome = send_to_server(router, call, target, Some(&flight), kept).await;
    call.update_sink = sink;
    let settings = cache_settings(entry.spec());
    match &outcome {
        // A server that was replaced may finish its calls; its answers do not belong to its successor.
        Ok(outcome) if !router.registry.is_replaced(entry) => {
            flight.complete(outcome, &settings, router.services.now_including_suspend());
        }
        _ => flight.fail(),
    }
    outcome
}
