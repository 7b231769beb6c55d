//! `EventChannel`: a broadcast channel that ends for its receivers when it is closed, although senders remain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

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
    state: RwLock<ChannelState<T>>,
    /// Whether there ever was a receiver, so that a channel without one costs nothing.
    was_subscribed: AtomicBool,
}

#[derive(Debug)]
enum ChannelState<T> {
    /// There was no receiver yet. The buffer, which is large, is allocated for the first one.
    Unused,
    Open(broadcast::Sender<T>),
    Closed,
}

impl<T> Clone for EventChannel<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<T> Default for EventChannel<T> {
    fn default() -> Self {
        let state = RwLock::new(ChannelState::Unused);
        Self { inner: Arc::new(ChannelInner { state, was_subscribed: AtomicBool::new(false) }) }
    }
}

impl<T: Clone> EventChannel<T> {
    fn state(&self) -> RwLockReadGuard<'_, ChannelState<T>> {
        self.inner.state.read().ignore_poison()
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, ChannelState<T>> {
        self.inner.state.write().ignore_poison()
    }

    /// Sends a value to the receivers, if there are any.
    pub(crate) fn send(&self, value: T) {
        if self.inner.was_subscribed.load(Ordering::Relaxed)
            && let ChannelState::Open(sender) = &*self.state()
        {
            // Fails if all receivers were dropped.
            let _ = sender.send(value);
        }
    }

    /// Returns whether there is a receiver.
    pub(crate) fn has_receivers(&self) -> bool {
        self.inner.was_subscribed.load(Ordering::Relaxed)
            && matches!(&*self.state(), ChannelState::Open(sender) if sender.receiver_count() > 0)
    }

    /// Returns a receiver of the values from now on; after [`EventChannel::close`], one that has ended.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<T> {
        let mut state = self.state_mut();
        match &*state {
            ChannelState::Unused => {
                let (sender, receiver) = broadcast::channel(CHANNEL_CAPACITY);
                *state = ChannelState::Open(sender);
                self.inner.was_subscribed.store(true, Ordering::Relaxed);
                receiver
            }
            ChannelState::Open(sender) => sender.subscribe(),
            ChannelState::Closed => broadcast::channel(1).1,
        }
    }

    /// Ends the channel: receivers get what was sent before, and then the end.
    pub(crate) fn close(&self) {
        *self.state_mut() = ChannelState::Closed;
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
