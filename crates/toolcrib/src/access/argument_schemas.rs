//! Checks call arguments against the tools' input schemas, which are parsed once per definition.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::access::schema::Schema;
use crate::call::Call;
use crate::model::error::{Error, ErrorKind};
use crate::model::listing::{ListedItem, Listing};
use crate::model::target::Target;
use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;

/// Parsed schemas that are kept. The cache is cleared when it is full.
const MAX_CACHED: usize = 1000;

/// A tool definition and the schema parsed from it.
#[derive(Debug)]
struct CachedSchema {
    definition: Bytes,
    schema: Option<Arc<Schema>>,
}

/// Cache of parsed input schemas, by server and tool.
#[derive(Debug, Default)]
pub(crate) struct ArgumentSchemas {
    cached: Mutex<HashMap<(ServerId, Arc<str>), CachedSchema>>,
}

impl ArgumentSchemas {
    /// Checks the arguments of a call against the tool's schema in a listing, if it has one.
    pub(crate) fn check(&self, listing: &Listing, call: &Call, target: &Target) -> Result<(), Error> {
        let listed = listing.tools.iter().find(|listed| listed.name == target.name);
        let Some(schema) = listed.and_then(|listed| self.find_schema(&target.server, listed)) else {
            return Ok(());
        };
        let arguments = call.get_arguments().map_or(&b"{}"[..], |raw| raw);
        schema.check(arguments).map_err(|violations| {
            let violations: Vec<String> = violations.iter().map(ToString::to_string).collect();
            let message = format!("the arguments do not fit `{}`: {}", call.name(), violations.join("; "));
            Error::new(ErrorKind::BadArguments, message).with_server(&target.server)
        })
    }

    fn find_schema(&self, server: &ServerId, listed: &ListedItem) -> Option<Arc<Schema>> {
        let mut cached = self.cached.lock().ignore_poison();
        let key = (server.clone(), listed.name.clone());
        match cached.get(&key) {
            Some(entry) if entry.definition == listed.definition => entry.schema.clone(),
            _ => {
                if cached.len() >= MAX_CACHED {
                    cached.clear();
                }
                let schema = Schema::from_definition(&listed.definition).map(Arc::new);
                // A copy, because a slice would keep the whole response in memory.
                let definition = Bytes::copy_from_slice(&listed.definition);
                cached.insert(key, CachedSchema { definition, schema: schema.clone() });
                schema
            }
        }
    }
}
