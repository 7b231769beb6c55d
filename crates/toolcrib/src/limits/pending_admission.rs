//! `PendingAdmission`: a reservation that the store has not confirmed yet.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::model::caller::Caller;
use crate::store::{Admission, LimitCounter, LimitRequest, Store, StoreError, StoreFuture, UsageRelease};
use crate::util::tasks::SpawnBoxed as _;

/// A reservation that the store is making. If its call is dropped, the reservation is released as soon as it is made.
pub(super) struct PendingAdmission {
    reply: StoreFuture<Result<Admission, StoreError>>,
    owner: UsageOwner,
}

/// A caller and the counters that are reserved for its call.
struct UsageOwner {
    caller: Caller,
    counters: Vec<LimitCounter>,
    store: Arc<dyn Store>,
    tasks: TaskTracker,
}

/// A reply of the store that releases the reservation unless it is taken out.
struct UnclaimedAdmission {
    reply: Option<Result<Admission, StoreError>>,
    owner: UsageOwner,
}

impl PendingAdmission {
    /// Keeps what is needed to release the reservation of a request.
    pub(super) fn new(
        reply: StoreFuture<Result<Admission, StoreError>>,
        request: &LimitRequest<'_>,
        store: Arc<dyn Store>,
        tasks: TaskTracker,
    ) -> Self {
        let counters = request.counters.iter().cloned().collect();
        let owner = UsageOwner { caller: request.caller.clone(), counters, store, tasks };
        Self { reply, owner }
    }

    /// Waits for the store.
    ///
    /// # Cancel safety
    /// A dropped future releases the reservation.
    pub(super) async fn wait(self) -> Result<Admission, StoreError> {
        let Self { reply, owner } = self;
        let (sender, receiver) = oneshot::channel();
        let tasks = owner.tasks.clone();
        tasks.spawn_boxed(async move {
            let unclaimed = UnclaimedAdmission { reply: Some(reply.await), owner };
            // If the call was dropped, the value comes back and releases the reservation.
            drop(sender.send(unclaimed));
        });
        let claimed = receiver.await.ok().and_then(|mut unclaimed| unclaimed.reply.take());
        claimed.unwrap_or_else(|| Err(StoreError::new("the store did not reply")))
    }
}

impl Drop for UnclaimedAdmission {
    fn drop(&mut self) {
        if let Some(Ok(Admission::Admitted { token, .. })) = self.reply {
            let UsageOwner { caller, counters, store, tasks } = &self.owner;
            let release = UsageRelease { caller, counters: counters.iter().collect(), token };
            store.release(&release).finish(tasks, drop);
        }
    }
}
