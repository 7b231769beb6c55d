//! Starts of a registered server, and their failures.

use super::{RegisteredServer, disabled_error};
use crate::model::caller::Caller;
use crate::model::error::Error;
#[cfg(feature = "http")]
use crate::model::instance_key::InstanceKey;
use crate::protocol::versions::Era;

impl RegisteredServer {
    /// Starts the server to find out what it lists for a caller, in this era if it speaks both. Waits for a restart if that is
    /// worthwhile.
    pub(crate) async fn discover(&self, caller: &Caller, era: Era) -> Result<(), Error> {
        match self {
            Self::Shared(server) => server.discover(era).await,
            Self::PerKey { instances, .. } => instances.discover(caller, era).await,
            Self::Disabled(spec) => Err(disabled_error(&spec.id)),
        }
    }

    /// Lets the next connection ask the server for the card that it publishes.
    pub(crate) fn request_card(&self) {
        match self {
            Self::Shared(server) => server.main().cards().request_published(),
            Self::PerKey { instances, .. } => instances.cards().request_published(),
            Self::Disabled(_) => {}
        }
    }

    /// Starts the server unless it runs, in this era if it speaks both. Fails with the first failed start, and does not wait
    /// for a restart.
    pub(crate) async fn start(&self, caller: &Caller, era: Era) -> Result<(), Error> {
        self.or_first_failure(self.discover(caller, era)).await
    }

    /// Runs `work` until the server fails to start.
    async fn or_first_failure(&self, work: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        let failure = self.failure_after(self.failure_count());
        tokio::select! {
            biased;
            done = work => done,
            error = failure => Err(error),
        }
    }

    /// Returns whether the server has been ready since its spec was applied.
    pub(crate) fn has_been_ready(&self) -> bool {
        self.start_gate().is_some_and(|gate| gate.has_been_ready())
    }

    /// Returns the number of failures so far.
    pub(crate) fn failure_count(&self) -> u64 {
        self.start_gate().map_or(0, |gate| gate.failure_count())
    }

    /// Waits for a failure after the first `count`, and returns it.
    pub(crate) async fn failure_after(&self, count: u64) -> Error {
        match self.start_gate() {
            Some(gate) => gate.failure_after(count).await,
            None => std::future::pending().await,
        }
    }

    /// Stops the server, resets its start gate and waits until it is up again, or its first start has failed.
    pub(crate) async fn restart(&self) -> Result<(), Error> {
        let restart = async {
            match self {
                Self::Shared(server) => server.restart().await,
                Self::PerKey { instances, .. } => instances.restart().await,
                Self::Disabled(spec) => Err(disabled_error(&spec.id)),
            }
        };
        self.or_first_failure(restart).await
    }

    /// Lets the next call of a caller connect again, with new credentials.
    #[cfg(feature = "http")]
    pub(crate) async fn reconnect(&self, caller: &Caller) -> Result<(), Error> {
        match self {
            Self::PerKey { instances, .. } if self.spec().has_login_per_caller() => {
                let key = InstanceKey::Caller(caller.owner());
                instances.drain_matching(|instance| *instance.without_era() == key);
                Ok(())
            }
            _ => self.restart().await,
        }
    }

    pub(crate) async fn stop(&self) -> Result<(), Error> {
        match self {
            Self::Shared(server) => server.stop().await,
            Self::PerKey { instances, .. } => instances.stop().await,
            Self::Disabled(spec) => Err(disabled_error(&spec.id)),
        }
    }
}
