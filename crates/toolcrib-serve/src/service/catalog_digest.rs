//! Values derived from a catalog that are computed once and shared by all clients.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, OnceLock};

use toolcrib::protocol::header_mirror::{HeaderParam, header_params};
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{Catalog, ListKind, Selector};

use super::CatalogScope;

/// Digests of the lists whose changes are announced: tools, prompts, and resources with their templates.
pub(crate) type ListDigests = [u64; 3];

/// The digest of a list of the only server of an endpoint that was never read. A client cannot have seen it.
pub(crate) const UNREAD_LIST: u64 = 0;
/// The digest of a list that a client was refused.
pub(crate) const REFUSED_LIST: u64 = 1;

/// List digests and header parameters of one catalog.
#[derive(Debug)]
pub(crate) struct CatalogDigest {
    catalog: Arc<Catalog>,
    digests: Mutex<HashMap<CatalogScope, ListDigests>>,
    header_params: OnceLock<HeaderParamTools>,
}

/// The tools with arguments that are mirrored in headers, by server and own name.
type HeaderParamTools = HashMap<(String, String), Arc<[HeaderParam]>>;

/// Returns the digest of a list.
pub(super) fn hash_list(list: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    list.hash(&mut hasher);
    hasher.finish()
}

impl CatalogDigest {
    pub(super) fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog, digests: Mutex::default(), header_params: OnceLock::new() }
    }

    pub(super) fn is_for(&self, catalog: &Arc<Catalog>) -> bool {
        Arc::ptr_eq(&self.catalog, catalog)
    }

    pub(super) fn revision(&self) -> u64 {
        self.catalog.revision()
    }

    /// Returns the digests of the lists; a list whose digest differs has changed.
    pub(crate) fn list_digests(&self, view: &CatalogScope) -> ListDigests {
        let catalog = &self.catalog;
        let mut digests = self.digests.lock().ignore_poison();
        if let Some(cached) = digests.get(view) {
            return *cached;
        }
        let is_unread = |kinds: &[ListKind]| {
            let is_refused = |server| kinds.iter().any(|kind| catalog.list_error(*kind, server).is_some());
            view.server()
                .is_some_and(|server| catalog.server_capabilities(server).is_none() || is_refused(server))
        };
        let digest = |kinds: &[ListKind]| {
            if is_unread(kinds) {
                return UNREAD_LIST;
            }
            let mut hasher = DefaultHasher::new();
            kinds.iter().for_each(|kind| catalog.list_json(*kind, view.server()).hash(&mut hasher));
            hasher.finish()
        };
        let computed = [
            digest(&[ListKind::Tools]),
            digest(&[ListKind::Prompts]),
            digest(&[ListKind::Resources, ListKind::Templates]),
        ];
        digests.insert(view.clone(), computed);
        computed
    }

    /// Returns the arguments of a tool that are mirrored in headers, if there are any.
    pub(crate) fn header_params(&self, view: &CatalogScope, tool: &str) -> Option<Arc<[HeaderParam]>> {
        let catalog = &self.catalog;
        let all = self.header_params.get_or_init(|| {
            let found = catalog.tools().iter().filter_map(|tool| {
                // Clients ignore tools with invalid annotations, so there is nothing to check.
                let params = header_params(&tool.definition).ok().filter(|params| !params.is_empty())?;
                Some(((tool.server.to_string(), tool.own_name.to_string()), params.into()))
            });
            found.collect()
        });
        if all.is_empty() {
            return None;
        }
        let selector = match view {
            CatalogScope::All => Selector::Tool(tool.to_owned()),
            CatalogScope::One(server) => Selector::OnServer(server.clone(), tool.to_owned()),
        };
        let target = catalog.find(&selector).ok()?;
        all.get(&(target.server.to_string(), target.name.to_string())).cloned()
    }
}
