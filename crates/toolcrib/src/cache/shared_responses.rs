//! `SharedResponses`: cached responses in a store that replicas share, behind those of this process.
//!
//! A response is stored with the epoch of its server, a random text that is also in the store. An invalidation removes the
//! epoch; the next lookup creates another one. A response is valid only while its epoch is in the store, so one that was
//! requested before an invalidation is outdated even if it is stored after it.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::task::TaskTracker;

use super::Invalidation;
use super::directive::CacheDirective;
use super::key::{CacheKey, CachedItem};
use crate::model::caller::Caller;
use crate::model::instance_key::InstanceKey;
use crate::model::outcome::Outcome;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::Era;
use crate::spec::{ServerId, ServerSpec};
use crate::store::{ExpiringValue, Store, StoreError, StoreKey, StoreKind};
use crate::util::encoding;
use crate::util::locks::IgnorePoison as _;

/// The largest response that is stored. Larger ones are cached by each replica alone, so that they do not delay what else is in the store.
const MAX_RESPONSE: usize = 1024 * 1024;

/// Cached responses of all replicas.
#[derive(Debug)]
pub(super) struct SharedResponses {
    store: Arc<dyn Store>,
    tasks: TaskTracker,
    failed: FailedInvalidations,
}

/// Servers whose stale responses other replicas may still use, because the store did not take an invalidation.
#[derive(Debug, Clone, Default)]
pub(super) struct FailedInvalidations(Arc<Mutex<HashSet<ServerId>>>);

impl FailedInvalidations {
    fn lock(&self) -> MutexGuard<'_, HashSet<ServerId>> {
        self.0.lock().ignore_poison()
    }

    pub(super) fn add(&self, server: ServerId) {
        self.lock().insert(server);
    }

    /// Removes all servers, whose invalidations are then made again.
    pub(super) fn take(&self) -> HashSet<ServerId> {
        std::mem::take(&mut *self.lock())
    }
}

/// The place of one response in the store.
#[derive(Debug)]
pub(super) struct SharedSlot {
    /// The name for the caller alone.
    private_name: String,
    /// The name for every caller.
    public_name: String,
    /// The epoch at the time of the lookup. Without one, the response is not stored.
    epoch: Option<String>,
}

/// The result of a lookup.
#[derive(Debug)]
pub(super) struct SharedLookup {
    pub(super) slot: SharedSlot,
    pub(super) found: Option<SharedResponse>,
}

/// A valid response from the store.
#[derive(Debug)]
pub(crate) struct SharedResponse {
    pub(super) outcome: Outcome,
    pub(super) directive: CacheDirective,
    /// The rest of its time to live.
    pub(super) ttl: Duration,
}

impl SharedResponses {
    /// Creates the responses in a store; `tasks` owns the operations that no call waits for.
    pub(super) fn new(store: Arc<dyn Store>, tasks: TaskTracker, failed: FailedInvalidations) -> Self {
        Self { store, tasks, failed }
    }

    /// Looks a response up. Returns `None` for an instance that only this replica knows, and for a server whose stored
    /// responses may be stale. Without an answer of the store, nothing is found.
    pub(super) async fn find(&self, key: &CacheKey, spec: &ServerSpec) -> Option<SharedLookup> {
        if !is_known_everywhere(&key.instance) || self.failed.lock().contains(&key.subject.server) {
            return None;
        }
        let private_name = response_name(key, spec, key.caller.as_ref());
        let public_name = response_name(key, spec, None);
        let server = &key.subject.server;
        let epoch_name = epoch_name(server, &key.subject.item);
        let get = |name: &str| self.store.get_with_ttl(StoreKey::new(StoreKind::CachedResponse, name));
        // All three operations start before the first reply is awaited.
        let epoch = self.store.get(StoreKey::new(StoreKind::CachedResponse, &epoch_name));
        let private = get(&private_name);
        let public = get(&public_name);
        let epoch = or_log(epoch.wait().await.map(Some)).flatten();
        let private = or_log(private.wait().await);
        let public = or_log(public.wait().await);
        let epoch = match epoch {
            Some(epoch) => String::from_utf8(epoch.to_vec()).ok(),
            None => self.create_epoch(&epoch_name).await,
        };
        let parse = |value: &ExpiringValue| parse_response(value, epoch.as_deref()?, server);
        let found = private.as_ref().and_then(parse);
        let found =
            found.or_else(|| public.as_ref().and_then(parse).filter(|found| found.directive.is_public));
        Some(SharedLookup { slot: SharedSlot { private_name, public_name, epoch }, found })
    }

    /// Creates an epoch, unless another replica does so at the same time.
    async fn create_epoch(&self, name: &str) -> Option<String> {
        let epoch = encoding::random_hex()?;
        let key = StoreKey::new(StoreKind::CachedResponse, name);
        let is_created = or_log(self.store.put_if_absent(key, epoch.clone().into(), None).wait().await);
        is_created.then_some(epoch)
    }

    /// Stores a response in the background.
    pub(super) fn save(
        &self,
        slot: &SharedSlot,
        outcome: &Outcome,
        directive: &CacheDirective,
        ttl: Duration,
    ) {
        let Some(epoch) = slot.epoch.as_ref().filter(|_| outcome.raw().len() <= MAX_RESPONSE) else { return };
        let head = json!({"epoch": epoch, "era": outcome.era.as_str()}).to_string();
        let value = [head.as_bytes(), b"\n", outcome.raw()].concat();
        let name = if directive.is_public { &slot.public_name } else { &slot.private_name };
        let key = StoreKey::new(StoreKind::CachedResponse, name);
        let stored = self.store.put(key, value.into(), Some(ttl));
        stored.finish(&self.tasks, or_log);
    }

    /// Outdates the stored responses of a server. If one resource has changed, those of all its resources are outdated.
    pub(super) fn outdate(
        &self,
        server: &ServerId,
        instance: Option<&InstanceKey>,
        invalidation: Invalidation<'_>,
    ) {
        if !instance.is_none_or(is_known_everywhere) {
            return;
        }
        let remove = |item: &CachedItem| {
            let name = epoch_name(server, item);
            let removed = self.store.remove(StoreKey::new(StoreKind::CachedResponse, &name));
            let failed = self.failed.clone();
            let server = server.clone();
            removed.finish(&self.tasks, move |removed| {
                if removed.is_err() {
                    failed.add(server);
                }
                or_log(removed);
            });
        };
        remove(&CachedItem::Resources);
        if invalidation == Invalidation::All {
            remove(&CachedItem::Tool("".into()));
        }
    }
}

fn or_log<T: Default>(reply: Result<T, StoreError>) -> T {
    reply.unwrap_or_else(|error| {
        tracing::warn!("cannot read or save a shared cached response: {error}");
        T::default()
    })
}

/// Returns whether an instance means the same on every replica. Clients are numbered by each replica, and the folders of
/// projects are those of one machine.
fn is_known_everywhere(instance: &InstanceKey) -> bool {
    matches!(instance, InstanceKey::Shared | InstanceKey::Caller(_))
}

/// Returns the name of the epoch of a server's tools or resources. Names of responses contain no slash.
fn epoch_name(server: &ServerId, item: &CachedItem) -> String {
    let part = match item {
        CachedItem::Tool(_) => "tools",
        CachedItem::Resources => "resources",
    };
    format!("epoch/{server}/{part}")
}

/// Returns the digest of everything that decides a response, in hexadecimal digits.
fn response_name(key: &CacheKey, spec: &ServerSpec, caller: Option<&Caller>) -> String {
    let endpoint = spec.digest();
    let instance = key.instance.to_string();
    let tool = match &key.subject.item {
        CachedItem::Tool(name) => Some(name.as_bytes()),
        CachedItem::Resources => None,
    };
    let parts = [
        Some(key.subject.server.as_str().as_bytes()),
        endpoint.as_ref().map(|endpoint| endpoint.as_str().as_bytes()),
        tool,
        Some(&*key.request),
        Some(instance.as_bytes()),
        caller.map(|caller| caller.as_str().as_bytes()),
        Some(&*key.definition),
    ];
    let mut digest = Sha256::new();
    for part in parts {
        // Tells a missing part from an empty one.
        digest.update([u8::from(part.is_some())]);
        let part = part.unwrap_or_default();
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    encoding::to_hex(&digest.finalize())
}

/// Parses a stored response. Returns `None` if it is outdated, or from a replica of another version.
fn parse_response(stored: &ExpiringValue, epoch: &str, server: &ServerId) -> Option<SharedResponse> {
    let end = memchr::memchr(b'\n', &stored.value)?;
    let head: Value = serde_json::from_slice(&stored.value[..end]).ok()?;
    if head["epoch"] != epoch {
        return None;
    }
    let era = [Era::Session, Era::Stateless].into_iter().find(|era| head["era"] == era.as_str())?;
    let result: Bytes = stored.value.slice(end + 1..);
    let server = Some(server.clone());
    let outcome = Outcome { answer: ResponsePayload::Result(result), era, server, server_info: None };
    let directive = CacheDirective::from_outcome(&outcome)?;
    Some(SharedResponse { outcome, directive, ttl: stored.ttl? })
}
