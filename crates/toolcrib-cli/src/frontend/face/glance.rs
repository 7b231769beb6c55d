//! `Glance`: what frontends work out about a catalog once, however many clients ask.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use toolcrib::wire::mirror::{Mirrored, mirrored};
use toolcrib::{Catalog, Kind, Wanted};

use super::View;

/// A digest of each list that clients hear of: tools, prompts, resources with their templates.
pub(crate) type Digests = [u64; 3];

/// What was worked out about one catalog.
#[derive(Debug)]
pub(crate) struct Glance {
    catalog: Arc<Catalog>,
    digests: Mutex<HashMap<View, Digests>>,
    mirrored: OnceLock<Marked>,
}

/// The tools that want arguments repeated in headers, by server and own name.
type Marked = HashMap<(String, String), Arc<[Mirrored]>>;

impl Glance {
    pub(super) fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog, digests: Mutex::default(), mirrored: OnceLock::new() }
    }

    pub(super) fn is_of(&self, catalog: &Arc<Catalog>) -> bool {
        Arc::ptr_eq(&self.catalog, catalog)
    }

    pub(super) fn revision(&self) -> u64 {
        self.catalog.revision()
    }

    /// The lists of a view, each as one number: another number, another list.
    pub(crate) fn digests(&self, view: &View) -> Digests {
        let catalog = &self.catalog;
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = digests.get(view) {
            return *known;
        }
        let digest = |kinds: &[Kind]| {
            let mut hasher = DefaultHasher::new();
            kinds.iter().for_each(|kind| catalog.rendered(*kind, view.server()).hash(&mut hasher));
            hasher.finish()
        };
        let fresh =
            [digest(&[Kind::Tools]), digest(&[Kind::Prompts]), digest(&[Kind::Resources, Kind::Templates])];
        digests.insert(view.clone(), fresh);
        fresh
    }

    /// The arguments of a tool that are repeated in headers, if there are any.
    pub(crate) fn mirrored(&self, view: &View, tool: &str) -> Option<Arc<[Mirrored]>> {
        let catalog = &self.catalog;
        let all = self.mirrored.get_or_init(|| {
            let found = catalog.tools().iter().filter_map(|tool| {
                // Clients leave out a tool whose marks break the rules; there is nothing to hold them to.
                let mirrored = mirrored(&tool.definition).ok().filter(|mirrored| !mirrored.is_empty())?;
                Some(((tool.server.to_string(), tool.own_name.to_string()), mirrored.into()))
            });
            found.collect()
        });
        if all.is_empty() {
            return None;
        }
        let wanted = match view {
            View::All => Wanted::Named(tool.to_owned()),
            View::One(server) => Wanted::On(server.clone(), tool.to_owned()),
        };
        let target = catalog.find(&wanted).ok()?;
        all.get(&(target.server.to_string(), target.name.to_string())).cloned()
    }
}
