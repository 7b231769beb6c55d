//! Finds targets for programs that report a failed start instead of waiting for restarts.

use super::CallRouter;
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::protocol::versions::Era;

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
        self.discover(caller, Era::Session, &servers).await;
        self.find_among_known(caller, selector, &servers).map_err(|error| {
            let catalog = self.callable_catalog(caller);
            let error = catalog.add_suggestion(error, selector);
            let failed = servers.iter().find(|entry| catalog.is_undiscovered(&entry.spec().id));
            match failed.filter(|_| error.kind() == ErrorKind::Unknown) {
                Some(entry) => not_searched_error(&error, &self.discovery_error(entry, caller).0),
                None => error,
            }
        })
    }
}

/// Returns the error for an unknown name that a server may have which could not be started.
fn not_searched_error(unknown: &Error, failure: &Error) -> Error {
    let error = Error::new(ErrorKind::Unknown, format!("{unknown}; not searched: {failure}"));
    let error = error.with_hint(unknown.hint());
    failure.class().into_iter().fold(error, Error::with_class)
}
