//! `Store`: state that several gateway replicas share, behind one interface.
//!
//! The default is [`MemoryStore`], which serves one process and answers immediately. A store on a server answers later;
//! its calls return [`StoreReply::Pending`].

mod contained;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod contract_stores;
#[cfg(test)]
mod delayed;
mod key;
mod limit;
mod memory;
mod replica;
mod reply;
mod signing_key;

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::model::caller::Caller;
pub(crate) use contained::ContainedStore;
#[cfg(test)]
pub(crate) use delayed::DelayedStore;
pub use key::{StoreKey, StoreKind};
pub use limit::{
    Admission, CounterList, CounterUsage, LimitCounter, LimitKind, LimitRefusal, LimitRequest,
    ReservationToken, UsageRelease,
};
pub use memory::MemoryStore;
pub(crate) use memory::usage_file;
pub use memory::usage_file::UsageFileHold;
pub use replica::{InvalidReplicaAddress, Replica};
#[doc(hidden)]
pub use replica::{OwnedKind, has_name_form};
pub use reply::{StoreFuture, StoreReply};
pub use signing_key::{SigningKey, SigningKeyError};

/// A reply that can fail.
pub type StoreResult<T> = StoreReply<Result<T, StoreError>>;

/// State that replicas share: usage of limits, values with a lifetime, and notices about changes.
///
/// # Contract
/// - **Atomicity.** Every operation takes effect as a whole or not at all. No other operation, on any replica, sees a part
///   of it.
/// - **Ordering.** Operations that one replica starts one after the other take effect in that order, even if it does not
///   wait for the replies. Once a reply has arrived, every replica sees the effect.
/// - **Starting.** An operation starts when its method is called. A pending reply only delivers the result: dropping it
///   does not undo the operation.
/// - **Errors.** After a [`StoreError`] the operation took effect or did not. The caller must be safe in both cases: a
///   failed reservation refuses the call and may stay counted until its period ends.
/// - **Time.** Lifetimes and periods are measured by the store. A store that replicas share uses its own clock and ignores
///   `now`, which is the clock of one replica.
/// - **Waiting.** Every reply arrives or fails within a time that the store bounds. Calls wait for it.
/// - **Lifetime.** A value is never returned after its time to live, and can disappear earlier, when the store is full or
///   was restarted; a missing value therefore must never grant anything. Approved tools have no time to live and are kept
///   until they are removed: a server without any counts as new, and its tools as approved.
///
/// The methods must not block. A store that cannot answer immediately copies what it needs from the arguments.
///
/// # Errors
/// Every method that returns a [`StoreResult`] fails if the store cannot carry out the operation or cannot confirm it.
///
/// # Cancel safety
/// Dropping a pending reply does not undo its operation.
pub trait Store: Debug + Send + Sync + 'static {
    /// Returns whether other processes use the same store. If not, nothing is stored that only they would read: cached
    /// responses, sessions and revocations.
    fn is_shared(&self) -> bool;

    /// Returns a value, or `None` if it is missing or has expired.
    fn get(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>>;

    /// Returns a value and the rest of its time to live, or `None` if it is missing or has expired.
    fn get_with_ttl(&self, key: StoreKey<'_>) -> StoreResult<Option<ExpiringValue>>;

    /// Sets a value and its time to live, and replaces an earlier value.
    fn put(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<()>;

    /// Sets a value unless there is one. Returns whether it was set. Of several replicas that try, one succeeds.
    fn put_if_absent(&self, key: StoreKey<'_>, value: Bytes, ttl: Option<Duration>) -> StoreResult<bool>;

    /// Replaces a value if it is still `expected`. Returns whether it was replaced. Of several replicas that try, one succeeds.
    fn replace(
        &self,
        key: StoreKey<'_>,
        expected: &Bytes,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<bool>;

    /// Removes and returns a value. Of several replicas that try, one gets it.
    fn take(&self, key: StoreKey<'_>) -> StoreResult<Option<Bytes>>;

    /// Removes the value of `taken` and, only if there was one, sets the value of `put`. Returns the removed value. Of
    /// several replicas that try, one gets it.
    fn take_and_put(
        &self,
        taken: StoreKey<'_>,
        put: StoreKey<'_>,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> StoreResult<Option<Bytes>>;

    /// Removes a value. Returns whether there was one.
    fn remove(&self, key: StoreKey<'_>) -> StoreResult<bool>;

    /// Returns the values of a kind whose names start with `prefix`, ordered by name. Values that are added or removed
    /// during the operation may be missing.
    fn list(&self, kind: StoreKind, prefix: &str) -> StoreResult<Vec<StoredValue>>;

    /// Counts one call in every counter of the request, or in none if one of them refuses it.
    ///
    /// A counter refuses a call that would have to wait longer than its limit and the request allow. The reply names the
    /// refusing counter with the longest wait, or the first of several.
    fn reserve(&self, request: &LimitRequest<'_>) -> StoreResult<Admission>;

    /// Releases a reservation. Counters that do not contain it are left unchanged.
    fn release(&self, release: &UsageRelease<'_>) -> StoreResult<()>;

    /// Returns the usage of each counter by a caller, in the order of `counters`.
    fn usage(
        &self,
        caller: &Caller,
        counters: &CounterList<'_>,
        now: Instant,
    ) -> StoreResult<Vec<CounterUsage>>;

    /// Returns the callers that have used any counter recently, in any order.
    fn callers(&self) -> StoreResult<Vec<Caller>>;

    /// Drops the usage of counters whose limits no longer exist.
    fn clear_usage(&self, caller: &Caller, counters: &CounterList<'_>) -> StoreResult<()>;

    /// Notifies the watchers of a kind on every replica, including this one, that a value was changed or removed.
    fn publish(&self, key: StoreKey<'_>) -> StoreResult<()>;

    /// Returns a receiver of the notices of a kind from now on. Notices of one replica arrive in order. A receiver that
    /// lags, or gets [`StoreNotice::Missed`], must assume that every value of the kind has changed.
    fn watch(&self, kind: StoreKind) -> broadcast::Receiver<StoreNotice>;
}

/// A value and its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredValue {
    /// The name, without its kind.
    pub name: String,
    /// The value.
    pub value: Bytes,
}

/// A value and the rest of its time to live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiringValue {
    /// The value.
    pub value: Bytes,
    /// The rest of its time to live, or `None` if it does not expire.
    pub ttl: Option<Duration>,
}

/// A notice to the watchers of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreNotice {
    /// The value with this name was changed or removed.
    Changed(Arc<str>),
    /// Notices may have been lost, for example because the connection to the store was interrupted.
    Missed,
}

/// The reason why a store could not carry out an operation, or could not confirm it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreError {
    message: String,
}

impl StoreError {
    /// Creates an error.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for StoreError {}
