//! The queue of messages to one pipe client, bounded in messages and bytes.

use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};
use toolcrib::protocol::framing::replace_line_breaks;

use crate::service::updates::MessageSink;

/// Queued messages.
const MAX_MESSAGES: usize = 256;
/// Queued bytes; a single message may be larger.
const MAX_BYTES: u32 = 16 << 20;

/// The sending end of the queue.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    queue: mpsc::Sender<Vec<u8>>,
    free_bytes: Arc<Semaphore>,
}

/// The receiving end of the queue, which writes the messages.
#[derive(Debug)]
pub(crate) struct OutboxReceiver {
    queue: mpsc::Receiver<Vec<u8>>,
    free_bytes: Arc<Semaphore>,
}

/// Creates an empty queue.
pub(crate) fn outbox() -> (Outbox, OutboxReceiver) {
    let (sender, receiver) = mpsc::channel(MAX_MESSAGES);
    let free_bytes = Arc::new(Semaphore::new(MAX_BYTES as usize));
    let outbox = Outbox { queue: sender, free_bytes: free_bytes.clone() };
    (outbox, OutboxReceiver { queue: receiver, free_bytes })
}

fn cost(message: &[u8]) -> u32 {
    u32::try_from(message.len()).unwrap_or(MAX_BYTES).min(MAX_BYTES)
}

impl Outbox {
    /// Sends a message that must not be dropped; waits for room.
    pub(crate) async fn send(&self, message: Vec<u8>) {
        // Fails only when the client has disconnected.
        if let Ok(permit) = self.free_bytes.acquire_many(cost(&message)).await {
            permit.forget();
            let _ = self.queue.send(message).await;
        }
    }

    /// Returns a function that sends messages which may be dropped. It does not keep the queue open.
    pub(crate) fn weak_sender(&self) -> impl Fn(Vec<u8>) -> bool + Send + 'static {
        let queue = self.queue.downgrade();
        let free_bytes = self.free_bytes.clone();
        move |message| {
            let outbox = queue.upgrade().map(|queue| Self { queue, free_bytes: free_bytes.clone() });
            outbox.is_some_and(|outbox| outbox.try_send(message))
        }
    }

    /// Waits until the queue is at most half full, or the client has disconnected.
    pub(crate) async fn wait_for_room(&self) {
        drop(self.free_bytes.acquire_many(MAX_BYTES / 2).await);
    }
}

impl MessageSink for Outbox {
    /// Drops the message if the queue is full.
    fn try_send(&self, message: Vec<u8>) -> bool {
        let Ok(permit) = self.free_bytes.try_acquire_many(cost(&message)) else { return false };
        let sent = self.queue.try_send(message).is_ok();
        if sent {
            permit.forget();
        }
        sent
    }
}

impl OutboxReceiver {
    /// Writes messages in batches until all senders are dropped or a write fails.
    pub(crate) async fn write(mut self, mut writer: impl AsyncWrite + Unpin) {
        let mut batch = Vec::new();
        while self.queue.recv_many(&mut batch, MAX_MESSAGES).await > 0 {
            let mut costs = 0;
            let mut buffer = Vec::with_capacity(batch.iter().map(|line: &Vec<u8>| line.len() + 1).sum());
            for mut line in batch.drain(..) {
                costs += cost(&line) as usize;
                replace_line_breaks(&mut line);
                buffer.append(&mut line);
                buffer.push(b'\n');
            }
            if writer.write_all(&buffer).await.is_err() || writer.flush().await.is_err() {
                return;
            }
            self.free_bytes.add_permits(costs);
        }
    }
}

impl Drop for OutboxReceiver {
    fn drop(&mut self) {
        // Ends all waits for room.
        self.free_bytes.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn queued_bytes_are_bounded_for_a_client_that_does_not_read() {
        let (outbox, receiver) = outbox();
        let large = vec![b'x'; 5 << 20];
        for _ in 0..3 {
            outbox.send(large.clone()).await;
        }
        assert!(timeout(Duration::from_secs(9), outbox.send(large.clone())).await.is_err(), "no room");
        assert!(!outbox.try_send(large.clone()), "an optional message is dropped");
        assert!(timeout(Duration::from_secs(9), outbox.wait_for_room()).await.is_err());
        let tasks = TaskTracker::new();
        let written = tasks.spawn(count_written(receiver));
        outbox.wait_for_room().await;
        outbox.send(vec![b'y'; 40 << 20]).await;
        drop(outbox);
        assert_eq!(written.await.unwrap(), 3 * ((5 << 20) + 1) + (40 << 20) + 1);
    }

    async fn count_written(receiver: OutboxReceiver) -> usize {
        let mut all = Vec::new();
        receiver.write(&mut all).await;
        all.len()
    }

    #[tokio::test]
    async fn disconnected_client_ends_all_waits() {
        let (outbox, receiver) = outbox();
        drop(receiver);
        outbox.send(vec![0; 100]).await;
        outbox.wait_for_room().await;
        assert!(!outbox.try_send(vec![0; 100]));
    }
}
