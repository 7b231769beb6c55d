//! `ClientActivity`: the last call of each client, and the result bytes it got.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use crate::protocol::json::canonical;

/// A client that pauses this long between identical calls is not in a loop.
const LOOP_TIMEOUT: Duration = Duration::from_secs(600);
/// Clients that are remembered before inactive ones are pruned.
const PRUNE_THRESHOLD: usize = 100_000;

/// Recent activity of all clients.
#[derive(Debug, Default)]
pub(super) struct ClientActivity {
    by_client: HashMap<u64, RecentCalls>,
    /// Number of clients at which inactive ones are pruned, if above [`PRUNE_THRESHOLD`].
    prune_at: usize,
}

/// Recent activity of one client.
#[derive(Debug)]
struct RecentCalls {
    /// Digest of the last tool call.
    digest: Option<u64>,
    /// The number of times it was made in a row.
    repeats: u32,
    last_at: Instant,
    result_bytes: u64,
}

impl ClientActivity {
    /// Returns how long a call is refused because it was made `max` times in a row, or `None` if it is not.
    pub(super) fn repeat_wait(
        &self,
        client: u64,
        digest: u64,
        max: NonZeroU32,
        now: Instant,
    ) -> Option<Duration> {
        let recent = self.by_client.get(&client).filter(|recent| recent.digest == Some(digest))?;
        let pause = now.saturating_duration_since(recent.last_at);
        (recent.repeats >= max.get() && pause < LOOP_TIMEOUT).then(|| LOOP_TIMEOUT - pause)
    }

    /// Records a call. Calls without a digest do not count as repeated and do not interrupt a repetition.
    pub(super) fn record_call(&mut self, client: u64, digest: Option<u64>, now: Instant) {
        if self.by_client.len() >= self.prune_at.max(PRUNE_THRESHOLD) && !self.by_client.contains_key(&client)
        {
            self.by_client.retain(|_, recent| now.saturating_duration_since(recent.last_at) < LOOP_TIMEOUT);
            self.prune_at = self.by_client.len() * 2;
        }
        let new = RecentCalls { digest: None, repeats: 0, last_at: now, result_bytes: 0 };
        let recent = self.by_client.entry(client).or_insert(new);
        let is_other_call = digest.is_some() && recent.digest != digest;
        let has_paused = now.saturating_duration_since(recent.last_at) >= LOOP_TIMEOUT;
        if is_other_call || has_paused {
            recent.repeats = 0;
        }
        if digest.is_some() {
            recent.digest = digest;
            recent.repeats += 1;
            recent.last_at = now;
        }
    }

    /// Returns the result bytes that a client got so far.
    pub(super) fn result_bytes(&self, client: u64) -> u64 {
        self.by_client.get(&client).map_or(0, |recent| recent.result_bytes)
    }

    /// Counts the bytes of a result, or returns the bytes that remain if they are fewer.
    pub(super) fn add_result(&mut self, client: u64, bytes: u64, max: u64) -> Result<(), u64> {
        // The client has disconnected.
        let Some(recent) = self.by_client.get_mut(&client) else { return Ok(()) };
        let remaining = max.saturating_sub(recent.result_bytes);
        if bytes > remaining {
            return Err(remaining);
        }
        recent.result_bytes += bytes;
        Ok(())
    }

    /// Drops the record of a client.
    pub(super) fn forget(&mut self, client: u64) {
        self.by_client.remove(&client);
    }
}

/// Returns a hash of a call. Arguments of equal value have equal hashes, however they are written.
pub(super) fn call_digest(server: &str, tool: &str, arguments: Option<&[u8]>) -> u64 {
    let arguments = arguments.unwrap_or(b"{}");
    let canonical = canonical::canonicalize_object(arguments).map_or(Cow::Borrowed(arguments), Cow::Owned);
    let mut hasher = DefaultHasher::new();
    (server, tool, canonical).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: NonZeroU32 = NonZeroU32::new(2).unwrap();

    #[test]
    fn digest_depends_on_the_value_of_the_arguments() {
        let digest = |arguments: &str| call_digest("s", "t", Some(arguments.as_bytes()));
        assert_eq!(
            digest(r#"{"a":1,"b":[1,{"x":null,"y":"é"}]}"#),
            digest(r#" {"b":[1,{"y":"\u00e9","x":null}], "a":1}"#)
        );
        assert_eq!(digest("{}"), call_digest("s", "t", None));
        for other in [r#"{"a":2}"#, r#"{"a":"1"}"#, r#"{"a":[1]}"#, r#"{"b":1}"#, "{}", r#"{"a":1.5}"#] {
            assert_ne!(digest(r#"{"a":1}"#), digest(other), "{other}");
        }
        assert_ne!(call_digest("s", "t", None), call_digest("s", "u", None));
        assert_ne!(call_digest("s", "t", None), call_digest("z", "t", None));
    }

    #[test]
    fn repeated_call_is_refused_until_another_call() {
        let mut clients = ClientActivity::default();
        let now = Instant::now();
        for _ in 0..2 {
            assert_eq!(clients.repeat_wait(1, 7, MAX, now), None);
            clients.record_call(1, Some(7), now);
        }
        assert_eq!(clients.repeat_wait(1, 7, MAX, now), Some(LOOP_TIMEOUT));
        // Other clients and other calls are not affected.
        assert_eq!((clients.repeat_wait(2, 7, MAX, now), clients.repeat_wait(1, 8, MAX, now)), (None, None));
        clients.record_call(1, None, now);
        assert!(clients.repeat_wait(1, 7, MAX, now).is_some());
        clients.record_call(1, Some(8), now);
        assert_eq!(clients.repeat_wait(1, 7, MAX, now), None);
    }

    #[test]
    fn repeated_call_after_a_pause_is_allowed() {
        let mut clients = ClientActivity::default();
        let now = Instant::now();
        (0..2).for_each(|_| clients.record_call(1, Some(7), now));
        let later = now + LOOP_TIMEOUT;
        assert_eq!(
            clients.repeat_wait(1, 7, MAX, later - Duration::from_secs(1)),
            Some(Duration::from_secs(1))
        );
        assert_eq!(clients.repeat_wait(1, 7, MAX, later), None);
        clients.record_call(1, Some(7), later);
        assert_eq!(clients.repeat_wait(1, 7, MAX, later), None);
    }

    #[test]
    fn result_bytes_are_limited_until_the_client_is_forgotten() {
        let mut clients = ClientActivity::default();
        let now = Instant::now();
        clients.record_call(1, None, now);
        assert_eq!(clients.add_result(1, 60, 100), Ok(()));
        assert_eq!(clients.add_result(1, 60, 100), Err(40));
        assert_eq!((clients.add_result(1, 40, 100), clients.result_bytes(1)), (Ok(()), 100));
        clients.forget(1);
        assert_eq!(
            (clients.add_result(1, 1000, 100), clients.result_bytes(1), clients.by_client.len()),
            (Ok(()), 0, 0)
        );
    }
}
