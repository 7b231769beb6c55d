//! `Clients`: what each client asked last, and how much it got. Pure: takes `now`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::time::Instant;

use crate::wire::canonical;

/// A client that has not repeated itself for so long is not in a loop.
const QUIET: Duration = Duration::from_secs(600);
/// Clients that are remembered before those are forgotten that have been quiet.
const MANY: usize = 100_000;

/// What each client did.
#[derive(Debug, Default)]
pub(super) struct Clients {
    by_number: HashMap<u64, Trail>,
    full: usize,
}

/// What one client did.
#[derive(Debug)]
struct Trail {
    /// Its last call, and how often in a row.
    call: Option<u64>,
    times: u32,
    at: Instant,
    /// Bytes it got.
    got: u64,
}

impl Clients {
    /// How long this call is refused because it was made too often in a row; nothing if it is not.
    pub(super) fn repeats(&self, client: u64, call: u64, most: NonZeroU32, now: Instant) -> Option<Duration> {
        let trail = self.by_number.get(&client).filter(|trail| trail.call == Some(call))?;
        let quiet = now.saturating_duration_since(trail.at);
        (trail.times >= most.get() && quiet < QUIET).then(|| QUIET - quiet)
    }

    /// A client has made a call; without a number it is none that can repeat itself.
    pub(super) fn saw(&mut self, client: u64, call: Option<u64>, now: Instant) {
        if self.by_number.len() >= self.full.max(MANY) && !self.by_number.contains_key(&client) {
            self.by_number.retain(|_, trail| now.saturating_duration_since(trail.at) < QUIET);
            self.full = self.by_number.len() * 2;
        }
        let trail = self.by_number.entry(client).or_insert(Trail { call: None, times: 0, at: now, got: 0 });
        let again = call.is_none() || trail.call == call;
        let quiet = now.saturating_duration_since(trail.at) >= QUIET;
        if !again || quiet {
            trail.times = 0;
        }
        if call.is_some() {
            (trail.call, trail.times, trail.at) = (call, trail.times + 1, now);
        }
    }

    /// How many bytes a client got so far.
    pub(super) fn got(&self, client: u64) -> u64 {
        self.by_number.get(&client).map_or(0, |trail| trail.got)
    }

    /// Hands so many bytes to a client, if they do not make it more than it may get; how many it may if they would.
    pub(super) fn hand(&mut self, client: u64, bytes: u64, most: u64) -> Result<(), u64> {
        // One that has left gets nothing that could be too much.
        let Some(trail) = self.by_number.get_mut(&client) else { return Ok(()) };
        let left = most.saturating_sub(trail.got);
        if bytes > left {
            return Err(left);
        }
        trail.got += bytes;
        Ok(())
    }

    /// A client has left.
    pub(super) fn forget(&mut self, client: u64) {
        self.by_number.remove(&client);
    }
}

/// A number that calls have in common whose arguments are the same, however they are written.
pub(super) fn digest(server: &str, tool: &str, arguments: Option<&[u8]>) -> u64 {
    let arguments = arguments.unwrap_or(b"{}");
    let form = canonical::object(arguments).map_or(Cow::Borrowed(arguments), Cow::Owned);
    let mut hasher = DefaultHasher::new();
    (server, tool, form).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: NonZeroU32 = NonZeroU32::new(2).unwrap();

    #[test]
    fn a_call_is_the_same_however_it_is_written() {
        let of = |arguments: &str| digest("s", "t", Some(arguments.as_bytes()));
        assert_eq!(
            of(r#"{"a":1,"b":[1,{"x":null,"y":"é"}]}"#),
            of(r#" {"b":[1,{"y":"\u00e9","x":null}], "a":1}"#)
        );
        assert_eq!(of("{}"), digest("s", "t", None));
        for other in [r#"{"a":2}"#, r#"{"a":"1"}"#, r#"{"a":[1]}"#, r#"{"b":1}"#, "{}", r#"{"a":1.5}"#] {
            assert_ne!(of(r#"{"a":1}"#), of(other), "{other}");
        }
        assert_ne!(digest("s", "t", None), digest("s", "u", None));
        assert_ne!(digest("s", "t", None), digest("z", "t", None));
    }

    #[test]
    fn the_same_call_too_often_in_a_row_is_refused_until_another_one_comes() {
        let (mut clients, now) = (Clients::default(), Instant::now());
        for _ in 0..2 {
            assert_eq!(clients.repeats(1, 7, MOST, now), None);
            clients.saw(1, Some(7), now);
        }
        assert_eq!(clients.repeats(1, 7, MOST, now), Some(QUIET));
        // Others are others, and what cannot repeat itself changes nothing.
        assert_eq!((clients.repeats(2, 7, MOST, now), clients.repeats(1, 8, MOST, now)), (None, None));
        clients.saw(1, None, now);
        assert!(clients.repeats(1, 7, MOST, now).is_some());
        clients.saw(1, Some(8), now);
        assert_eq!(clients.repeats(1, 7, MOST, now), None);
    }

    #[test]
    fn whoever_waits_long_enough_is_in_no_loop() {
        let (mut clients, now) = (Clients::default(), Instant::now());
        (0..2).for_each(|_| clients.saw(1, Some(7), now));
        let later = now + QUIET;
        assert_eq!(clients.repeats(1, 7, MOST, later - Duration::from_secs(1)), Some(Duration::from_secs(1)));
        assert_eq!(clients.repeats(1, 7, MOST, later), None);
        clients.saw(1, Some(7), later);
        assert_eq!(clients.repeats(1, 7, MOST, later), None);
    }

    #[test]
    fn a_client_gets_no_more_than_it_may_and_a_gone_one_is_forgotten() {
        let (mut clients, now) = (Clients::default(), Instant::now());
        clients.saw(1, None, now);
        assert_eq!(clients.hand(1, 60, 100), Ok(()));
        assert_eq!(clients.hand(1, 60, 100), Err(40));
        assert_eq!((clients.hand(1, 40, 100), clients.got(1)), (Ok(()), 100));
        clients.forget(1);
        assert_eq!((clients.hand(1, 1000, 100), clients.got(1), clients.by_number.len()), (Ok(()), 0, 0));
    }
}
