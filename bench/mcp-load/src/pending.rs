//! Pending answers by request id, for transports where all answers arrive on one stream.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use bytes::Bytes;
use tokio::sync::oneshot;

use crate::rpc;

/// A message and when it was complete.
pub(crate) type Arrived = (Bytes, Instant);

/// The requests that wait for an answer. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Pending(Arc<Mutex<HashMap<u64, oneshot::Sender<Arrived>>>>);

impl Pending {
    /// Registers `id`; must be called before its request is sent.
    pub(crate) fn expect(&self, id: u64) -> oneshot::Receiver<Arrived> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().expect("not poisoned").insert(id, sender);
        receiver
    }

    /// Passes `message` to the request it answers. If it is a request of the other side, returns an empty reply to it.
    pub(crate) fn deliver(&self, message: Bytes) -> Option<Vec<u8>> {
        // Matching the answer to its request is not part of the latency.
        let at = Instant::now();
        let response: rpc::Response<'_> = serde_json::from_slice(&message).ok()?;
        if response.method.is_some() {
            return response.empty_reply();
        }
        let waiter = self.0.lock().expect("not poisoned").remove(&response.number()?)?;
        // A request that timed out is already counted as failed.
        let _ = waiter.send((message, at));
        None
    }

    /// Fails all pending requests: the stream has ended.
    pub(crate) fn close(&self) {
        self.0.lock().expect("not poisoned").clear();
    }
}

pub(crate) async fn wait(receiver: oneshot::Receiver<Arrived>, timeout: Duration) -> Result<Arrived> {
    match tokio::time::timeout(timeout, receiver).await {
        Ok(answer) => answer.map_err(|_| anyhow!("the stream ended before the answer")),
        Err(_) => Err(anyhow!("timeout after {} s", timeout.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_reach_their_own_request_only() {
        let pending = Pending::default();
        let mut first = pending.expect(1);
        let mut second = pending.expect(2);
        assert_eq!(pending.deliver(Bytes::from_static(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#)), None);
        assert!(second.try_recv().is_ok());
        assert!(first.try_recv().is_err());
        pending.close();
        assert!(matches!(first.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
    }

    #[test]
    fn requests_of_the_other_side_get_an_empty_reply() {
        let pending = Pending::default();
        let mut waiting = pending.expect(1);
        let reply = pending.deliver(Bytes::from_static(br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#));
        assert_eq!(reply.as_deref(), Some(&br#"{"jsonrpc":"2.0","id":1,"result":{}}"#[..]));
        assert_eq!(pending.deliver(Bytes::from_static(rpc::INITIALIZED)), None);
        assert!(waiting.try_recv().is_err());
    }
}
