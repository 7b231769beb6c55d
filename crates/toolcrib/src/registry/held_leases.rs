//! The leases that embedders hold, so that calls made through them need not ask the supervisor for another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use crate::call::Call;
use crate::model::instance_key::InstanceKey;
use crate::spec::{ServerId, Sharing};
use crate::supervisor::Lease;
use crate::util::locks::IgnorePoison as _;

/// All held leases of one crib, by number.
#[derive(Debug, Default)]
pub(crate) struct HeldLeases {
    last_number: AtomicU64,
    table: RwLock<HashMap<u64, Arc<HeldLease>>>,
}

/// A lease on a server that outlives the calls made through it. It is empty while the server is down.
#[derive(Debug)]
pub(crate) struct HeldLease {
    pub(crate) number: u64,
    pub(crate) server: ServerId,
    instance: Mutex<Option<LeasedInstance>>,
}

/// The instance that a held lease is on.
#[derive(Debug)]
struct LeasedInstance {
    key: InstanceKey,
    lease: Arc<Lease>,
}

impl HeldLeases {
    /// Adds an empty lease.
    pub(crate) fn add(&self, server: &ServerId) -> Arc<HeldLease> {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let held = Arc::new(HeldLease { number, server: server.clone(), instance: Mutex::default() });
        self.table.write().ignore_poison().insert(number, held.clone());
        held
    }

    /// Removes a lease. Calls in flight keep the server until they end.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self.table.write().ignore_poison().remove(&number);
        if let Some(held) = removed {
            held.release();
        }
    }

    /// Returns a lease for one call that goes to the instance of a held lease. `None` if the lease is on another instance,
    /// or the supervisor has to decide about this call.
    pub(super) fn reuse(&self, number: u64, server: &ServerId, call: &Call) -> Option<Lease> {
        let table = self.table.read().ignore_poison();
        let held = table.get(&number).filter(|held| held.server == *server)?;
        let instance = held.instance.lock().ignore_poison();
        let LeasedInstance { key, lease } = instance.as_ref()?;
        let is_for_call = match key {
            InstanceKey::Shared => true,
            InstanceKey::Client { .. } => call.try_instance_key(Sharing::PerClient).as_ref() == Some(key),
            InstanceKey::Caller(_) => call.try_instance_key(Sharing::PerCaller).as_ref() == Some(key),
            // The project of a client may have to be asked for.
            _ => false,
        };
        if is_for_call { lease.for_call() } else { None }
    }
}

impl HeldLease {
    /// Sets the lease on a running instance.
    pub(crate) fn hold(&self, key: InstanceKey, lease: Lease) {
        *self.instance.lock().ignore_poison() = Some(LeasedInstance { key, lease: Arc::new(lease) });
    }

    /// Releases the instance. Calls in flight keep it until they end.
    pub(crate) fn release(&self) {
        let released = self.instance.lock().ignore_poison().take();
        drop(released);
    }
}
