//! `Outbox`: messages on their way to one client, bounded in number and in bytes, so that one that does not read costs
//! what it holds and no more.

use std::sync::Arc;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};
use toolcrib::wire::frame::flatten;

use super::face::told::Outlet;

/// Messages that may wait.
const MOST_MESSAGES: usize = 256;
/// Bytes that may wait; a single message may have more.
const MOST_BYTES: u32 = 16 << 20;

/// Where messages to one client go.
#[derive(Debug, Clone)]
pub(super) struct Outbox {
    queue: mpsc::Sender<Vec<u8>>,
    room: Arc<Semaphore>,
}

/// The other end: what is to be written.
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: mpsc::Receiver<Vec<u8>>,
    room: Arc<Semaphore>,
}

/// An empty one.
pub(super) fn outbox() -> (Outbox, Outgoing) {
    let (sender, receiver) = mpsc::channel(MOST_MESSAGES);
    let room = Arc::new(Semaphore::new(MOST_BYTES as usize));
    (Outbox { queue: sender, room: room.clone() }, Outgoing { queue: receiver, room })
}

fn cost(message: &[u8]) -> u32 {
    u32::try_from(message.len()).unwrap_or(MOST_BYTES).min(MOST_BYTES)
}

impl Outbox {
    /// Says what must not be missed, as soon as there is room.
    pub(super) async fn say(&self, message: Vec<u8>) {
        // A client that hung up hears nothing.
        if let Ok(taken) = self.room.acquire_many(cost(&message)).await {
            taken.forget();
            let _ = self.queue.send(message).await;
        }
    }

    /// Says what may be missed, as long as somebody else keeps this open.
    pub(super) fn aside(&self) -> impl Fn(Vec<u8>) -> bool + Send + 'static {
        let (queue, room) = (self.queue.downgrade(), self.room.clone());
        move |message| {
            let whole = queue.upgrade().map(|queue| Self { queue, room: room.clone() });
            whole.is_some_and(|out| Outlet::say(&out, message))
        }
    }

    /// Waits until at most half of the room is taken, or the client is gone.
    pub(super) async fn has_room(&self) {
        drop(self.room.acquire_many(MOST_BYTES / 2).await);
    }
}

impl Outlet for Outbox {
    /// A client that does not read misses what comes before its answer.
    fn say(&self, message: Vec<u8>) -> bool {
        let Ok(taken) = self.room.try_acquire_many(cost(&message)) else { return false };
        let said = self.queue.try_send(message).is_ok();
        if said {
            taken.forget();
        }
        said
    }
}

impl Outgoing {
    /// Writes messages as they come, as many as there are at a time, until nobody has any or nobody takes them.
    pub(super) async fn write(mut self, mut writer: impl AsyncWrite + Unpin) {
        let mut batch = Vec::new();
        while self.queue.recv_many(&mut batch, MOST_MESSAGES).await > 0 {
            let mut costs = 0;
            let mut buffer = Vec::with_capacity(batch.iter().map(|line: &Vec<u8>| line.len() + 1).sum());
            for mut line in batch.drain(..) {
                costs += cost(&line) as usize;
                flatten(&mut line);
                buffer.append(&mut line);
                buffer.push(b'\n');
            }
            if writer.write_all(&buffer).await.is_err() || writer.flush().await.is_err() {
                return;
            }
            self.room.add_permits(costs);
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        // Nobody waits for room that will never be.
        self.room.close();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;
    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_owed_a_bounded_number_of_bytes() {
        let (out, outgoing) = outbox();
        let large = vec![b'x'; 5 << 20];
        for _ in 0..3 {
            out.say(large.clone()).await;
        }
        assert!(timeout(Duration::from_secs(9), out.say(large.clone())).await.is_err(), "no room");
        assert!(!Outlet::say(&out, large.clone()), "what may be missed is");
        assert!(timeout(Duration::from_secs(9), out.has_room()).await.is_err());
        let (tasks, written) = (TaskTracker::new(), tasks_written(outgoing));
        let written = tasks.spawn(written);
        out.has_room().await;
        out.say(vec![b'y'; 40 << 20]).await;
        drop(out);
        assert_eq!(written.await.unwrap(), 3 * ((5 << 20) + 1) + (40 << 20) + 1);
    }

    async fn tasks_written(outgoing: Outgoing) -> usize {
        let mut all = Vec::new();
        outgoing.write(&mut all).await;
        all.len()
    }

    #[tokio::test]
    async fn nobody_waits_for_a_client_that_is_gone() {
        let (out, outgoing) = outbox();
        drop(outgoing);
        out.say(vec![0; 100]).await;
        out.has_room().await;
        assert!(!Outlet::say(&out, vec![0; 100]));
    }
}
