//! Access to locks whose holder panicked.

use std::sync::{LockResult, PoisonError};

/// Gets the guard from the result of locking a `Mutex` or `RwLock` or of waiting on a `Condvar`, even if the lock is
/// poisoned.
///
/// A lock is poisoned if a thread panicked while it held the lock. The panic has already failed the call it belongs to.
/// Panicking again here would fail every later call as well, so the poison is ignored: code under a lock is short and
/// must leave the value consistent at every point where it can panic.
pub trait IgnorePoison {
    /// The guard of the lock.
    type Guard;

    /// Returns the guard.
    fn ignore_poison(self) -> Self::Guard;
}

impl<G> IgnorePoison for LockResult<G> {
    type Guard = G;

    fn ignore_poison(self) -> G {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Mutex, RwLock};

    use super::*;

    #[test]
    fn poisoned_mutex_keeps_its_value() {
        let mutex = Mutex::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut value = mutex.lock().ignore_poison();
            *value = 2;
            panic!("poisons the mutex");
        }));
        assert!(panicked.is_err() && mutex.is_poisoned());
        assert_eq!(*mutex.lock().ignore_poison(), 2);
    }

    #[test]
    fn poisoned_rwlock_can_be_read_and_written() {
        let lock = RwLock::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = lock.write().ignore_poison();
            panic!("poisons the lock");
        }));
        assert!(panicked.is_err() && lock.is_poisoned());
        *lock.write().ignore_poison() = 2;
        assert_eq!(*lock.read().ignore_poison(), 2);
    }
}
