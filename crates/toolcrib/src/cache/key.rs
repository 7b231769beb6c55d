//! `Key`: everything that must be the same for an answer to be given again. It is compared in full.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;

use crate::call::Caller;
use crate::sharing::SharingKey;
use crate::spec::ServerId;

/// What is asked of a server: one of its tools, or its resources, which are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Subject {
    pub(crate) server: ServerId,
    pub(crate) what: What,
}

/// What of a server's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum What {
    /// The tool of this own name.
    Tool(Arc<str>),
    /// Its resources.
    Resources,
}

/// Everything that must be the same. The server's generation is not among it: a new one takes away whatever the one
/// before has said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// Of what is asked, made once: a key is looked for in several places, and with and without its caller. Keys that differ
    /// in nothing else are told apart all the same.
    pub(super) hash: u64,
    pub(crate) subject: Subject,
    /// The tool's arguments in canonical form, or the address of the resource.
    pub(crate) asked: Vec<u8>,
    /// Which instance of the server.
    pub(crate) instance: SharingKey,
    /// Who asks; `None` if the answer is for everybody.
    pub(crate) caller: Option<Caller>,
    /// How the tool is defined.
    pub(crate) definition: Bytes,
}

impl Key {
    /// The key of what a caller asks.
    pub(crate) fn new(
        subject: Subject,
        asked: Vec<u8>,
        instance: SharingKey,
        caller: Caller,
        definition: Bytes,
        hashes: &impl BuildHasher,
    ) -> Self {
        let hash = hashes.hash_one(&asked);
        Self { hash, subject, asked, instance, caller: Some(caller), definition }
    }

    /// The same for everybody.
    pub(super) fn for_everybody(&self) -> Self {
        Self { caller: None, ..self.clone() }
    }

    /// The bytes that keeping it takes, beside those of the definition, which the catalog has anyway.
    pub(super) fn weight(&self) -> usize {
        let name = match &self.subject.what {
            What::Tool(name) => name.len(),
            What::Resources => 0,
        };
        name + self.asked.len()
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Takes the hash that a key has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ready(u64);

/// Makes maps of keys take the hash that those have.
pub(super) type BuildReady = BuildHasherDefault<Ready>;

impl Hasher for Ready {
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
