//! `CacheKey`: everything that must be equal for an answer to be reused. Keys are compared in full.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use super::directive::CacheDirective;
use crate::model::caller::Caller;
use crate::model::instance_key::InstanceKey;
use crate::spec::ServerId;

/// One tool of a server, or all its resources, which share one entry limit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CacheSubject {
    pub(crate) server: ServerId,
    pub(crate) item: CachedItem,
}

/// The item that a server is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum CachedItem {
    /// The tool with this own name.
    Tool(Arc<str>),
    /// Any of the server's resources.
    Resources,
}

/// The key of a cached answer. It has no server generation, because a new generation invalidates all answers of the
/// previous one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheKey {
    /// Hash of the request, computed once because a key is looked up several times, with and without its caller. Keys
    /// with equal hashes are still told apart by comparison.
    pub(super) hash: u64,
    pub(crate) subject: CacheSubject,
    /// The tool's arguments in canonical form, or the URI of the resource.
    pub(crate) request: Vec<u8>,
    /// The instance of the server that answered.
    pub(crate) instance: InstanceKey,
    /// The caller, or `None` for an answer that every caller may have.
    pub(crate) caller: Option<Caller>,
    /// The tool's definition.
    pub(crate) definition: Bytes,
}

impl CacheKey {
    pub(crate) fn new(
        subject: CacheSubject,
        request: Vec<u8>,
        instance: InstanceKey,
        caller: Caller,
        definition: Bytes,
        hash_builder: &impl BuildHasher,
    ) -> Self {
        let hash = hash_builder.hash_one(&request);
        Self { hash, subject, request, instance, caller: Some(caller), definition }
    }

    /// Returns the key under which an answer is stored: without a caller if every caller may have it.
    pub(super) fn for_storage(self: &Arc<Self>, directive: &CacheDirective) -> Arc<Self> {
        match directive.is_public {
            true => Arc::new(Self { caller: None, ..Self::clone(self) }),
            false => self.clone(),
        }
    }

    /// Bytes that storing the key takes. The definition is not counted: the catalog holds it anyway.
    pub(super) fn size(&self) -> usize {
        let name = match &self.subject.item {
            CachedItem::Tool(name) => name.len(),
            CachedItem::Resources => 0,
        };
        name + self.request.len()
    }
}

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A hasher that returns the hash stored in the key.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PrehashedHasher(u64);

pub(super) type BuildPrehashed = BuildHasherDefault<PrehashedHasher>;

impl Hasher for PrehashedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}
