//! Logins to remote servers.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Crib, CribBuilder};
use crate::cache::Invalidation;
use crate::model::caller::Caller;
use crate::model::error::Error;
use crate::oauth::{LoginStarter, LoginSummary};
use crate::pipeline::in_band_login::InBandLogins;
use crate::pipeline::router::CallRouter;
use crate::spec::ServerId;

impl CribBuilder {
    /// Sets what starts the logins that clients are asked for. Without it, a call that lacks a login fails.
    #[must_use]
    pub fn login_starter(mut self, starter: impl LoginStarter + 'static) -> Self {
        self.login_starter = Some(Arc::new(starter));
        self
    }
}

impl Crib {
    /// Returns what is known of the local user's login to a remote server, if there is one. Reads a file.
    pub fn login(&self, server: &ServerId) -> Option<LoginSummary> {
        self.router().services.logins.as_ref()?.summary(server)
    }

    /// Lets the calls of a caller use a login that has changed. If each caller has its own login to the server, the caller's
    /// connection is replaced when its calls have ended; otherwise the server is restarted.
    ///
    /// # Errors
    /// Fails if the server is unknown or disabled, or if it is restarted and does not start.
    ///
    /// # Cancel safety
    /// As [`Crib::restart`].
    pub async fn reconnect(&self, server: &ServerId, caller: &Caller) -> Result<(), Error> {
        let reconnected = self.registered(server)?.reconnect(caller).await;
        self.router().services.cache.invalidate(server, None, Invalidation::All);
        reconnected
    }
}

/// Lets a router ask clients for logins, if there is a place for them.
pub(super) fn with_in_band_logins(
    mut router: CallRouter,
    starter: Option<Arc<dyn LoginStarter>>,
    stop: &CancellationToken,
) -> CallRouter {
    if let (Some(starter), Some(logins)) = (starter, router.services.logins.clone()) {
        router.in_band_logins = Some(InBandLogins::new(starter, logins, stop.clone()));
    }
    router
}
