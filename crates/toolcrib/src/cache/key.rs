//! `Key`: everything that must be the same for an answer to be given again. It is compared in full.

use std::hash::{Hash, Hasher};
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
    pub(crate) subject: Subject,
    /// Which instance of the server.
    pub(crate) instance: SharingKey,
    /// Who asks; `None` if the answer is for everybody.
    pub(crate) caller: Option<Caller>,
    /// How the tool is defined.
    pub(crate) definition: Bytes,
    /// The tool's arguments in canonical form, or the address of the resource.
    pub(crate) asked: Bytes,
}

impl Key {
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

/// Without the definition, which is long: keys that differ in nothing else are rare, and told apart all the same.
impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.subject, &self.instance, &self.caller, &self.asked).hash(state);
    }
}
