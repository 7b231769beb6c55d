//! `EventChannel`: a broadcast channel that ends for its receivers when it is closed, although senders remain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

use tokio::sync::broadcast;

use crate::util::locks::IgnorePoison as _;

/// Capacity of the channels. A receiver that falls further behind misses messages.
const CHANNEL_CAPACITY: usize = 1024;

/// Sends values to every receiver. Clones share the channel.
#[derive(Debug)]
pub(crate) struct EventChannel<T> {
    inner: Arc<ChannelInner<T>>,
}

#[derive(Debug)]
struct ChannelInner<T> {
    /// `None` once the channel is closed.
    sender: RwLock<Option<broadcast::Sender<T>>>,
    /// Whether there ever was a receiver, so that a channel without one costs nothing.
    was_subscribed: AtomicBool,
}

impl<T> Clone for EventChannel<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T: Clone> Default for EventChannel<T> {
    fn default() -> Self {
        let sender = RwLock::new(Some(broadcast::channel(CHANNEL_CAPACITY).0));
        Self { inner: Arc::new(ChannelInner { sender, was_subscribed: AtomicBool::new(false) }) }
    }
}

impl<T: Clone> EventChannel<T> {
    fn sender(&self) -> RwLockReadGuard<'_, Option<broadcast::Sender<T>>> {
        self.inner.sender.read().ignore_poison()
    }

    /// Sends a value to the receivers, if there are any.
    pub(crate) fn send(&self, value: T) {
        if self.inner.was_subscribed.load(Ordering::Relaxed)
            && let Some(sender) = &*self.sender()
        {
            // Fails if all receivers were dropped.
            let _ = sender.send(value);
        }
    }

    /// Returns whether there is a receiver.
    pub(crate) fn has_receivers(&self) -> bool {
        self.inner.was_subscribed.load(Ordering::Relaxed)
            && self.sender().as_ref().is_some_and(|sender| sender.receiver_count() > 0)
    }

    /// Returns a receiver of the values from now on; after [`EventChannel::close`], one that has ended.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<T> {
        let sender = self.sender();
        match &*sender {
            Some(sender) => {
                self.inner.was_subscribed.store(true, Ordering::Relaxed);
                sender.subscribe()
            }
            None => broadcast::channel(1).1,
        }
    }

    /// Ends the channel: receivers get what was sent before, and then the end.
    pub(crate) fn close(&self) {
        *self.inner.sender.write().ignore_poison() = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::broadcast::error::TryRecvError;

    use super::*;

    #[test]
    fn receivers_get_the_rest_and_then_the_end() {
        let channel = EventChannel::default();
        channel.send(1);
        assert!(!channel.has_receivers());
        let mut receiver = channel.subscribe();
        assert!(channel.has_receivers());
        channel.send(2);
        channel.close();
        channel.send(3);
        assert!(!channel.has_receivers());
        assert_eq!((receiver.try_recv(), receiver.try_recv()), (Ok(2), Err(TryRecvError::Closed)));
        assert_eq!(channel.subscribe().try_recv(), Err(TryRecvError::Closed));
    }
}
