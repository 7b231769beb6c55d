//! Finds targets for programs that report a failed start instead of waiting for restarts.

use super::{CallRouter, not_searched_error};
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::protocol::versions::Era;
use crate::spec::FirstListingWait;

impl CallRouter {
    /// Like [`CallRouter::find_target`], but fails with the first failed start of a server that the name points at.
    pub(crate) async fn find_at_first_failure(
        &self,
        caller: &Caller,
        selector: &Selector,
    ) -> Result<Target, Error> {
        let catalog = self.callable_catalog(caller);
        let named = match selector {
            Selector::OnServer(server, _) => Some(server).filter(|server| catalog.is_undiscovered(server)),
            _ if catalog.is_certain(selector) => None,
            _ => catalog.undiscovered_by_prefix(selector.name()),
        };
        let named = named.filter(|server| self.visible_catalogs.can_see(caller, server));
        if named.is_some_and(|server| self.denies_unlisted(caller, server, selector)) {
            return catalog.find(selector);
        }
        if let Some(Ok(entry)) = named.and_then(|server| self.registry.get(server)) {
            entry.start(caller, Era::Session).await?;
            self.wait_until_listed(&entry.spec().id).await;
        }
        let catalog = self.callable_catalog(caller);
        if named.is_some() || matches!(selector, Selector::OnServer(..)) || catalog.is_certain(selector) {
            return catalog.find(selector);
        }
        let mut servers = self.undiscovered_servers(&catalog);
        servers.retain(|entry| self.visible_catalogs.can_see(caller, &entry.spec().id));
        let found =
            self.find_within(caller, selector, Era::Session, &servers, FirstListingWait::PATIENT).await;
        found.map_err(|error| {
            let catalog = self.callable_catalog(caller);
            let error = catalog.add_suggestion(error, selector);
            let mut missing = servers.iter().filter(|entry| catalog.is_undiscovered(&entry.spec().id));
            let failure = missing.find_map(|entry| {
                Some(self.discovery_error(entry, caller).0).filter(|failure| failure.class().is_some())
            });
            match (failure, catalog.find(selector)) {
                (Some(failure), Err(unknown)) if error.kind() == ErrorKind::Unknown => {
                    let explained =
                        not_searched_error(&unknown, &failure.to_string()).with_hint(error.hint());
                    failure.class().into_iter().fold(explained, Error::with_class)
                }
                _ => error,
            }
        })
    }
}
