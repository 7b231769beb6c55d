//! Leases on the instances that calls go to.

use super::{LeaseOrigin, RegisteredServer, Registry, disabled_error, unknown_server};
use crate::call::Call;
use crate::model::error::{Error, ErrorKind};
use crate::protocol::versions::Era;
use crate::spec::ServerId;
use crate::supervisor::Lease;

impl Registry {
    /// Returns a lease on a shared server if it is ready, and all clients of this era use the same instance.
    pub(crate) fn try_lease(&self, server: &ServerId, era: Era) -> Option<Lease> {
        match self.servers().get(server)? {
            RegisteredServer::Shared(shared) => shared.try_lease(era),
            _ => None,
        }
    }

    /// Returns a lease on the instance that a call goes to, and starts it if needed. If the server is replaced
    /// meanwhile, the lease is on its replacement.
    pub(crate) async fn lease(&self, server: &ServerId, call: &Call) -> Result<Lease, Error> {
        loop {
            let entry = self.get(server).unwrap_or_else(|| Err(unknown_server(server)))?;
            let leased = match &entry {
                RegisteredServer::Shared(shared) => shared.lease(call).await.map(|(lease, _)| lease),
                RegisteredServer::PerKey { instances, .. } => {
                    Box::pin(instances.lease(call)).await.map(|(lease, _)| lease)
                }
                RegisteredServer::Disabled(_) => Err(disabled_error(server)),
            };
            match leased {
                Err(error) if error.kind() == ErrorKind::ShuttingDown && self.is_replaced(&entry) => {}
                leased => return leased,
            }
        }
    }

    /// Like [`lease`](Self::lease), and also returns the instance, for subscriptions that outlive the lease.
    pub(crate) async fn lease_with_origin(
        &self,
        server: &ServerId,
        call: &Call,
    ) -> Result<(Lease, LeaseOrigin), Error> {
        loop {
            let entry = self.get(server).unwrap_or_else(|| Err(unknown_server(server)))?;
            let leased = match &entry {
                RegisteredServer::Shared(shared) => shared.lease(call).await,
                RegisteredServer::PerKey { instances, .. } => instances.lease(call).await,
                RegisteredServer::Disabled(_) => Err(disabled_error(server)),
            };
            match leased {
                Err(error) if error.kind() == ErrorKind::ShuttingDown && self.is_replaced(&entry) => {}
                leased => return leased,
            }
        }
    }

    /// Returns whether the server of a lease was replaced or removed since.
    pub(crate) fn is_origin_replaced(&self, server: &ServerId, origin: &LeaseOrigin) -> bool {
        match self.get(server) {
            Some(Ok(RegisteredServer::Shared(shared))) => !shared.is_origin(origin),
            Some(Ok(RegisteredServer::PerKey { instances, .. })) => !origin.is_of(&instances),
            _ => true,
        }
    }
}
