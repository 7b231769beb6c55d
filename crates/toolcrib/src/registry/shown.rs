//! What servers offer as it may be shown: under the names that tools have here, and held against what was approved.

use std::sync::Arc;

use super::{Entry, Registry};
use crate::catalog::name::public;
use crate::connection::listing::{Listing, Remarks};
use crate::error::Error;
use crate::pins::{Mark, withheld};
use crate::spec::{Pinning, ServerId, ServerSpec, Sharing};

impl Registry {
    /// A listing as it may be shown: with the names that its tools have here, and what is to be said about them.
    pub(super) fn shown(&self, spec: &ServerSpec, listing: Arc<Listing>) -> Arc<Listing> {
        let pins = self.around.look(spec, &listing, spec.sharing == Sharing::Shared);
        let marks = pins.as_ref().map(|pins| pins.open()).unwrap_or_default();
        if marks.is_empty() && spec.tools.rename.is_empty() {
            return listing;
        }
        let mut shown = Listing::clone(&listing);
        if let Some(pins) = pins.filter(|_| spec.pin == Pinning::Strict) {
            shown.tools.retain(|tool| pins.mark(tool).is_none());
        }
        shown.remarks = Arc::new(Remarks { names: spec.tools.rename.clone(), marks });
        Arc::new(shown)
    }

    /// Tools of a server that are not what was approved.
    pub(crate) fn unapproved(&self, spec: &ServerSpec) -> Vec<(Arc<str>, Mark)> {
        self.around.pins.of(spec).map(|pins| pins.open()).unwrap_or_default()
    }

    /// Why a tool that somebody asks for by its public or bare name is not there: it is withheld.
    pub(crate) fn withheld(&self, name: &str, may: impl Fn(&ServerId, &str) -> bool) -> Option<Error> {
        let servers = self.running();
        let strict = servers.iter().map(Entry::spec).filter(|spec| spec.pin == Pinning::Strict);
        let mut tools =
            strict.flat_map(|spec| self.unapproved(spec).into_iter().map(move |tool| (spec, tool)));
        tools.find_map(|(spec, (tool, mark))| {
            let new = spec.tools.rename.get(&*tool).map_or(&*tool, String::as_str);
            let is_meant = name == new || name == public(&spec.id, new);
            (is_meant && may(&spec.id, &tool)).then(|| withheld(&spec.id, &tool, mark))
        })
    }
}
