//! `Schemas`: what tools say of their arguments, read once for each definition.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::call::Call;
use crate::catalog::Target;
use crate::connection::listing::Listed;
use crate::error::{Error, ErrorKind};
use crate::registry::Registry;
use crate::schema::Schema;
use crate::spec::ServerId;

/// Schemas that are kept; with more of them they are read again now and then.
const MOST: usize = 1000;

/// A definition, and the schema in it.
type Known = (Bytes, Option<Arc<Schema>>);

/// The schemas that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Schemas(Mutex<HashMap<(ServerId, Arc<str>), Known>>);

impl Schemas {
    /// Whether arguments fit, if their server wants that to be looked at and has told what its tool wants.
    pub(crate) fn check(&self, registry: &Registry, call: &Call, target: &Target) -> Result<(), Error> {
        let entry = registry.get(&target.server).and_then(Result::ok);
        let listing = entry.filter(|entry| entry.spec().tools.check).and_then(|entry| entry.listing());
        let Some(listing) = listing else { return Ok(()) };
        let listed = listing.tools.iter().find(|listed| listed.name == target.name);
        let Some(schema) = listed.and_then(|listed| self.of(&target.server, listed)) else { return Ok(()) };
        let arguments = call.params.get("arguments").map_or(&b"{}"[..], |raw| raw);
        schema.check(arguments).map_err(|misfits| {
            let misfits: Vec<String> = misfits.iter().map(ToString::to_string).collect();
            let message = format!("the arguments do not fit `{}`: {}", call.name(), misfits.join("; "));
            Error::new(ErrorKind::BadArguments, message).at(&target.server)
        })
    }

    fn of(&self, server: &ServerId, listed: &Listed) -> Option<Arc<Schema>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (server.clone(), listed.name.clone());
        match known.get(&key) {
            Some((definition, schema)) if *definition == listed.definition => schema.clone(),
            _ => {
                if known.len() >= MOST {
                    known.clear();
                }
                let schema = Schema::of(&listed.definition).map(Arc::new);
                // A copy: the definition keeps the whole answer in memory that it was read from.
                known.insert(key, (Bytes::copy_from_slice(&listed.definition), schema.clone()));
                schema
            }
        }
    }
}
