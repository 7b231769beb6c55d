//! The task that owns the connection: sends operations in order, passes notices on and connects again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, sleep_until, timeout};
use toolcrib::store::{StoreError, StoreKind, StoreNotice};

use crate::command::{Keys, StoreCommand};
use crate::connection::StoreConnector;
use crate::health::{Health, StoreState};
use crate::leases::Leases;
use crate::link::{NODE_FAILED, StoreLink};
use crate::operation::{ReplyWaiter, StoreOperation};
use crate::resp::Reply;

/// Operations that are sent together.
const MAX_BATCH: usize = 256;
/// Bytes after which no further operation is sent together with others, so that large values do not use up the time of small ones.
const MAX_BATCH_BYTES: usize = 256 * 1024;
/// Idle time after which the connection is checked.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// Time between two searches for expired leases.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(1);
/// The first and the longest pause between attempts to connect.
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Time after which a connection that fails is replaced without a longer pause.
const STABLE_TIME: Duration = Duration::from_secs(1);
/// Notices that a watcher can lag behind.
const NOTICE_BUFFER: usize = 1024;

/// The watchers of every kind.
#[derive(Debug)]
pub(crate) struct Notices {
    channels: [(Bytes, broadcast::Sender<StoreNotice>); StoreKind::ALL.len()],
}

impl Notices {
    pub(crate) fn new(keys: &Keys) -> Self {
        let channels = StoreKind::ALL.map(|kind| (keys.channel(kind), broadcast::Sender::new(NOTICE_BUFFER)));
        Self { channels }
    }

    pub(crate) fn watch(&self, kind: StoreKind) -> broadcast::Receiver<StoreNotice> {
        let index = StoreKind::ALL.iter().position(|other| *other == kind).unwrap_or_default();
        self.channels[index].1.subscribe()
    }

    /// Tells every watcher that notices may have been lost. Sending fails only without watchers.
    fn announce_missed(&self) {
        for (_, watchers) in &self.channels {
            let _ = watchers.send(StoreNotice::Missed);
        }
    }

    /// Passes on a message that the server pushed.
    fn pass_on(&self, message: &[Reply]) {
        let [Reply::Text(kind), Reply::Text(channel), Reply::Text(name)] = message else { return };
        if **kind != *b"message" {
            return;
        }
        let watchers = self.channels.iter().find(|(known, _)| known == channel);
        if let Some((_, watchers)) = watchers {
            let _ = watchers.send(StoreNotice::Changed(String::from_utf8_lossy(name).into()));
        }
    }
}

/// The end of a connection.
enum LinkEnd {
    /// The store was dropped.
    Closed,
    Failed(StoreError),
}

pub(crate) struct Worker {
    pub(crate) connector: StoreConnector,
    pub(crate) queue: mpsc::Receiver<StoreOperation>,
    pub(crate) notices: Arc<Notices>,
    pub(crate) health: Arc<Health>,
    pub(crate) operation_timeout: Duration,
    pub(crate) prefix: String,
    /// Reserved calls, if they are reserved in advance.
    pub(crate) leases: Option<Arc<Leases>>,
}

impl Worker {
    /// Serves operations until the store is dropped.
    ///
    /// The first attempt to connect, and the first one after a connection was lost, keep operations waiting. After a failed
    /// attempt they fail immediately, so that calls do not wait for a store that is gone.
    pub(crate) async fn run(mut self) {
        let mut failed_attempts = 0u32;
        loop {
            let connector = self.connector.clone();
            let opening = StoreLink::open(&connector, self.operation_timeout / 2, random());
            let opened = match failed_attempts {
                0 => opening.await,
                _ => match self.refuse_during(opening).await {
                    Some(opened) => opened,
                    None => return,
                },
            };
            let error = match opened {
                Ok(link) => {
                    let opened_at = Instant::now();
                    self.health.set(StoreState::Up);
                    self.notices.announce_missed();
                    match self.serve(link).await {
                        LinkEnd::Closed => return,
                        LinkEnd::Failed(error) => {
                            let was_stable = opened_at.elapsed() >= STABLE_TIME;
                            failed_attempts = if was_stable { 0 } else { failed_attempts + 1 };
                            error
                        }
                    }
                }
                Err(error) => {
                    failed_attempts += 1;
                    error
                }
            };
            self.health.set(StoreState::Down(error.to_string()));
            let pause_end = Instant::now() + backoff(failed_attempts);
            let paused = match failed_attempts {
                0 => {
                    sleep_until(pause_end).await;
                    Some(())
                }
                _ => self.refuse_during(sleep_until(pause_end)).await,
            };
            if paused.is_none() {
                return;
            }
        }
    }

    /// Refuses operations while something else is awaited. Returns `None` if the store was dropped.
    async fn refuse_during<T>(&mut self, awaited: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(awaited);
        loop {
            let operation = tokio::select! {
                result = &mut awaited => return Some(result),
                operation = self.queue.recv() => operation?,
            };
            let reason = match self.health.state() {
                StoreState::Down(reason) => reason,
                _ => "the store is not connected".to_owned(),
            };
            self.finish(operation.waiter, Err(StoreError::new(reason)));
        }
    }

    /// Serves operations on a connection until it fails.
    async fn serve(&mut self, mut link: StoreLink) -> LinkEnd {
        let mut batch = Vec::new();
        let mut next_ping = Instant::now() + PING_INTERVAL;
        let mut last_cleanup = Instant::now();
        loop {
            tokio::select! {
                count = self.queue.recv_many(&mut batch, MAX_BATCH) => {
                    if count == 0 {
                        return LinkEnd::Closed;
                    }
                }
                message = link.next_push() => match message {
                    Ok(message) => {
                        self.notices.pass_on(&message);
                        continue;
                    }
                    Err(error) => return LinkEnd::Failed(error),
                },
                () = sleep_until(next_ping) => {}
            }
            if last_cleanup.elapsed() >= CLEANUP_INTERVAL {
                last_cleanup = Instant::now();
                let releases = self.leases.iter().flat_map(|leases| leases.take_expired());
                batch.extend(releases.map(|command| StoreOperation::new(command, drop)));
            }
            if let Err(error) = self.exchange_in_parts(&mut link, &mut batch).await {
                return LinkEnd::Failed(error);
            }
            next_ping = Instant::now() + PING_INTERVAL;
        }
    }

    /// Sends operations and delivers their replies, not too many bytes at a time.
    async fn exchange_in_parts(
        &self,
        link: &mut StoreLink,
        operations: &mut Vec<StoreOperation>,
    ) -> Result<(), StoreError> {
        let mut result = Ok(());
        loop {
            let mut bytes = 0;
            let is_full = |operation: &StoreOperation| {
                let was_full = bytes > MAX_BATCH_BYTES;
                bytes += operation.command.size();
                was_full
            };
            let end = operations.iter().position(is_full).unwrap_or(operations.len());
            let rest = operations.split_off(end);
            let part = std::mem::replace(operations, rest);
            match &result {
                Ok(()) => result = self.exchange(link, part).await,
                Err(error) => drop(self.fail_all(part.into_iter().map(|part| part.waiter), error.clone())),
            }
            if operations.is_empty() {
                return result;
            }
        }
    }

    /// Sends operations and delivers their replies. Without operations it checks the connection.
    async fn exchange(
        &self,
        link: &mut StoreLink,
        operations: Vec<StoreOperation>,
    ) -> Result<(), StoreError> {
        let now = Instant::now();
        let mut commands = Vec::with_capacity(operations.len());
        let mut waiters = Vec::with_capacity(operations.len());
        for StoreOperation { command, waiter } in operations {
            match now.duration_since(waiter.started) >= self.operation_timeout {
                true => self.finish(waiter, Err(timeout_error(self.operation_timeout))),
                false => {
                    commands.push(command);
                    waiters.push(waiter);
                }
            }
        }
        if commands.is_empty() {
            commands.push(StoreCommand::plain("PING", Vec::new()));
        }
        let exchanged = link.exchange(&commands, |message| self.notices.pass_on(&message));
        let replies = match timeout(self.operation_timeout, exchanged).await {
            Ok(Ok(replies)) => replies,
            Ok(Err(error)) => return Err(self.fail_all(waiters, error)),
            Err(_) => return Err(self.fail_all(waiters, timeout_error(self.operation_timeout))),
        };
        let mut unusable = None;
        for (waiter, reply) in waiters.into_iter().zip(replies) {
            let reply = match reply {
                Reply::Error(error) => {
                    let explained = self.explain(&error);
                    if is_unusable(&error) {
                        unusable = Some(explained.clone());
                    }
                    Err(explained)
                }
                reply => Ok(reply),
            };
            self.finish(waiter, reply);
        }
        unusable.map_or(Ok(()), Err)
    }

    fn fail_all(&self, waiters: impl IntoIterator<Item = ReplyWaiter>, error: StoreError) -> StoreError {
        for waiter in waiters {
            self.finish(waiter, Err(error.clone()));
        }
        error
    }

    fn finish(&self, waiter: ReplyWaiter, reply: Result<Reply, StoreError>) {
        match &reply {
            Ok(_) => self.health.record_success(waiter.started.elapsed()),
            Err(_) => self.health.record_failure(),
        }
        (waiter.handler)(reply);
    }

    /// Explains an error that the server returned.
    fn explain(&self, error: &str) -> StoreError {
        let prefix = &self.prefix;
        if let Some(reason) = error.strip_prefix(NODE_FAILED) {
            return StoreError::new(reason);
        }
        StoreError::new(match error {
            error if error.contains("WRONGTYPE") => format!(
                "a key of the store that starts with `{prefix}:` has a value of another program; set another `store.prefix`"
            ),
            error if error.contains("OOM ") => "the store is out of memory".to_owned(),
            error if error.contains("NOPERM") => {
                format!("the user of the store lacks a permission for keys `{prefix}:*`: {error}")
            }
            error => format!("the store refused the operation: {error}"),
        })
    }
}

/// Returns whether the server cannot be used any longer: it became a replica, lost its scripts or lost its data.
fn is_unusable(error: &str) -> bool {
    ["READONLY", "NOSCRIPT", "MASTERDOWN", "LOADING", "NOAUTH"].iter().any(|code| error.contains(code))
}

pub(crate) fn timeout_error(time: Duration) -> StoreError {
    StoreError::new(format!("the store did not answer within {} ms", time.as_millis()))
}

/// Returns the pause after failed attempts: doubled for each, with a random half, so that replicas do not connect together.
fn backoff(failed_attempts: u32) -> Duration {
    let full = MIN_BACKOFF.saturating_mul(1 << failed_attempts.min(10)).min(MAX_BACKOFF);
    full.mul_f64(0.5 + 0.5 * (random() % 1024) as f64 / 1024.0)
}

/// Returns a random number, or zero without a source of them.
fn random() -> usize {
    getrandom::u32().map_or(0, |number| number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_grows_to_its_maximum_with_a_random_half() {
        for (attempts, full) in [(0, MIN_BACKOFF), (1, 2 * MIN_BACKOFF), (20, MAX_BACKOFF)] {
            for _ in 0..100 {
                let pause = backoff(attempts);
                assert!(full / 2 <= pause && pause <= full, "{attempts}: {pause:?}");
            }
        }
    }
}
