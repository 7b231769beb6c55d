//! `Leaving`: servers that were replaced, left the roster or lost their client, until they have finished what they work on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Supervisor, Surroundings};

/// How long a call may go on whose server leaves, unless its own limits are longer: as long as one may wait for its
/// client to come back.
const PARTING: Duration = Duration::from_secs(15 * 60);

/// Those on their way out.
#[derive(Debug, Default)]
pub(crate) struct Leaving(Mutex<Vec<Supervisor>>);

impl Leaving {
    fn list(&self) -> MutexGuard<'_, Vec<Supervisor>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> Vec<Supervisor> {
        self.list().clone()
    }
}

impl Supervisor {
    /// Ends the server, once the calls under way have ended within their own limits. Nobody waits for that.
    pub(crate) fn see_out(&self, around: &Surroundings) {
        let (leaving, old) = (around.leaving.clone(), self.clone());
        leaving.list().push(old.clone());
        around.tasks.spawn(async move {
            old.retire(PARTING.max(old.spec().limits.call_timeout_max)).await;
            let same = |other: &mut Supervisor| Arc::ptr_eq(&other.0, &old.0);
            let gone: Vec<_> = leaving.list().extract_if(.., same).collect();
            // A server of the embedder's own may take its time to be dropped: nobody waits for it at the lock.
            drop(gone);
        });
    }

    /// Waits until the server is gone, or only finishes calls.
    pub(super) async fn makes_way(&self) {
        // An actor that is gone has stopped it.
        let _ = self.0.snapshot.clone().wait_for(|snapshot| snapshot.is_draining).await;
    }
}
