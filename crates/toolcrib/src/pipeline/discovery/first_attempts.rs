//! `FirstAttempts`: until when lists wait for servers that were never listed.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::spec::{FirstListingWait, ServerId};

/// The first attempts to list servers, and what has come of them. An attempt is remembered after it has failed, so that no
/// later list waits for that server.
#[derive(Debug, Default)]
pub(super) struct FirstAttempts {
    by_server: BTreeMap<ServerId, FirstAttempt>,
    /// When a server was last listed for the first time.
    last_answer: Option<Instant>,
}

#[derive(Debug, Default)]
struct FirstAttempt {
    /// `None` while it waits for its turn.
    started: Option<Instant>,
    has_failed: bool,
    /// True if failures before it do not count, until it has failed itself.
    is_renewed: bool,
}

impl FirstAttempt {
    fn renew(&mut self, now: Instant) {
        *self = Self { started: self.started.map(|_| now), has_failed: false, is_renewed: true };
    }
}

impl FirstAttempts {
    /// Records that a server is to be listed.
    pub(super) fn request(&mut self, server: &ServerId) {
        self.by_server.entry(server.clone()).or_default();
    }

    /// Records the start of an attempt. Only the first one counts.
    pub(super) fn start(&mut self, server: &ServerId, now: Instant) {
        self.by_server.entry(server.clone()).or_default().started.get_or_insert(now);
    }

    /// Records that an attempt has failed.
    pub(super) fn record_failure(&mut self, server: &ServerId) {
        let attempt = self.by_server.entry(server.clone()).or_default();
        attempt.has_failed = true;
        attempt.is_renewed = false;
    }

    /// Records that a server is listed.
    pub(super) fn record_answer(&mut self, server: &ServerId, now: Instant) {
        self.by_server.remove(server);
        self.last_answer = Some(now);
    }

    /// Lets lists wait for a server again, as if its attempt had just begun.
    pub(super) fn renew(&mut self, server: &ServerId, now: Instant) {
        self.by_server.get_mut(server).into_iter().for_each(|attempt| attempt.renew(now));
    }

    /// Lets lists wait for all servers again.
    pub(super) fn renew_all(&mut self, now: Instant) {
        self.by_server.values_mut().for_each(|attempt| attempt.renew(now));
    }

    /// Returns whether lists wait for a server again, although it has failed.
    pub(super) fn is_renewed(&self, server: &ServerId) -> bool {
        self.by_server.get(server).is_some_and(|attempt| attempt.is_renewed)
    }

    /// Forgets a server that was removed.
    pub(super) fn forget(&mut self, server: &ServerId) {
        self.by_server.remove(server);
    }

    /// Returns how much longer lists wait for a server, as things are now.
    pub(super) fn time_left(&self, server: &ServerId, wait: FirstListingWait, now: Instant) -> Duration {
        let attempt = self.by_server.get(server).filter(|attempt| !attempt.has_failed);
        let Some(attempt) = attempt else { return Duration::ZERO };
        let started = attempt.started.unwrap_or(now);
        let answer = self.last_answer.filter(|answer| *answer >= started);
        let among_others = |answer: Instant| (answer + wait.quiet).max(started + wait.server_among_others);
        let until = started + wait.server;
        let until = answer.map_or(until, |answer| among_others(answer).min(until));
        until.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::FirstListingSettings;

    const SECOND: Duration = Duration::from_secs(1);

    fn server(name: &str) -> ServerId {
        name.parse().unwrap()
    }

    #[test]
    fn hung_server_is_awaited_less_long_once_others_have_answered() {
        let started = Instant::now();
        let mut attempts = FirstAttempts::default();
        let hung = server("hung");
        let wait = FirstListingSettings::default().for_client(None);
        let left = |attempts: &FirstAttempts, now| attempts.time_left(&hung, wait, now);
        assert_eq!(left(&attempts, started), Duration::ZERO, "its listing is not wanted");
        attempts.request(&hung);
        assert_eq!(left(&attempts, started + SECOND), 8 * SECOND, "it has not had its turn");
        attempts.start(&hung, started);
        attempts.start(&hung, started + 5 * SECOND);
        assert_eq!(left(&attempts, started + SECOND), 7 * SECOND, "the first start counts");
        attempts.record_answer(&server("quick"), started + SECOND);
        assert_eq!(left(&attempts, started + SECOND), 11 * SECOND / 2);
        attempts.record_answer(&server("slow"), started + 6 * SECOND);
        assert_eq!(left(&attempts, started + 6 * SECOND), 3 * SECOND / 2);
        attempts.record_answer(&server("slower"), started + 7 * SECOND);
        assert_eq!(left(&attempts, started + 7 * SECOND), SECOND);
        assert_eq!(left(&attempts, started + 9 * SECOND), Duration::ZERO);
    }

    #[test]
    fn server_that_failed_is_awaited_again_only_after_it_is_renewed() {
        let now = Instant::now();
        let mut attempts = FirstAttempts::default();
        let broken = server("broken");
        let wait = FirstListingWait::at_most(SECOND);
        attempts.start(&broken, now);
        attempts.record_failure(&broken);
        attempts.request(&broken);
        attempts.start(&broken, now);
        assert_eq!(attempts.time_left(&broken, wait, now), Duration::ZERO);
        attempts.renew(&broken, now + SECOND);
        assert_eq!(attempts.time_left(&broken, wait, now), 2 * SECOND);
        attempts.forget(&broken);
        assert_eq!(attempts.time_left(&broken, wait, now), Duration::ZERO);
    }
}
