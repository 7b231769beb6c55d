//! `StoreReply`: the reply of a store, now or later.

use std::future::Future;
use std::pin::Pin;

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

/// The future of a pending reply.
pub type StoreFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The reply of a store. A store in memory replies immediately and without an allocation.
#[must_use = "a pending reply can report an error"]
#[non_exhaustive]
pub enum StoreReply<T> {
    /// The reply.
    Ready(T),
    /// The reply will arrive. The operation has started and does not depend on this future.
    Pending(StoreFuture<T>),
}

impl<T> StoreReply<T> {
    /// Waits for the reply. Does not suspend the task if it is ready.
    ///
    /// # Cancel safety
    /// Dropping the future drops the reply; the operation takes effect nevertheless.
    pub async fn wait(self) -> T {
        match self {
            Self::Ready(reply) => reply,
            Self::Pending(reply) => reply.await,
        }
    }
}

impl<T: Send + 'static> StoreReply<T> {
    /// Converts the reply when it arrives.
    pub(crate) fn map<U>(self, convert: impl FnOnce(T) -> U + Send + 'static) -> StoreReply<U> {
        match self {
            Self::Ready(reply) => StoreReply::Ready(convert(reply)),
            Self::Pending(reply) => StoreReply::Pending(Box::pin(async move { convert(reply.await) })),
        }
    }

    /// Passes a reply to `done`, from a background task if it is pending. Outside of a runtime a pending reply is dropped.
    pub(crate) fn finish(self, tasks: &TaskTracker, done: impl FnOnce(T) + Send + 'static) {
        match self {
            Self::Ready(reply) => done(reply),
            Self::Pending(reply) => {
                if let Ok(runtime) = Handle::try_current() {
                    tasks.spawn_on(async move { done(reply.await) }, &runtime);
                }
            }
        }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for StoreReply<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Ready(reply) => f.debug_tuple("Ready").field(reply).finish(),
            Self::Pending(_) => f.write_str("Pending"),
        }
    }
}
