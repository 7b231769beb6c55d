//! Logins over TCP: which connections have presented a valid token, how many may exist that have not, and failed attempts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolcrib::util::locks::IgnorePoison as _;

/// Delay of the response to a request without a valid token.
pub(crate) const FAILED_LOGIN_DELAY: Duration = Duration::from_millis(100);
/// Failed logins after which a connection that never had a valid token is closed: the request that learns that a token is
/// needed, and one more.
const MAX_FIRST_FAILURES: u32 = 2;
/// Failed logins after which any connection is closed.
const MAX_FAILURES: u32 = 10;
/// Shortest time between two reports of failed logins.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The logins on one connection.
#[derive(Debug)]
pub(crate) struct ConnectionLogin {
    is_authenticated: AtomicBool,
    failures: AtomicU32,
    slot: Mutex<Option<UnauthenticatedSlot>>,
}

impl ConnectionLogin {
    pub(crate) fn new(slot: Option<UnauthenticatedSlot>) -> Self {
        Self { is_authenticated: AtomicBool::new(false), failures: AtomicU32::new(0), slot: Mutex::new(slot) }
    }

    /// Returns whether a request on the connection had a valid token, or needed none.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Records a request with a valid token.
    pub(crate) fn succeed(&self) {
        if !self.is_authenticated() {
            self.is_authenticated.store(true, Ordering::Relaxed);
            drop(self.slot.lock().ignore_poison().take());
        }
    }

    /// Records a request without a valid token.
    pub(crate) fn fail(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the connection has had too many failed logins: no further token is looked at.
    pub(crate) fn is_refused(&self) -> bool {
        let failures = self.failures.load(Ordering::Relaxed);
        failures >= MAX_FIRST_FAILURES && (failures >= MAX_FAILURES || !self.is_authenticated())
    }
}

/// The open connections without a valid token. If there are too many, the oldest is closed, so that they cannot take
/// the place of clients that have a token.
#[derive(Debug)]
pub(crate) struct UnauthenticatedConnections {
    max: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    last_number: u64,
    /// The token that closes each connection, oldest first.
    closers: BTreeMap<u64, CancellationToken>,
}

/// The place of one such connection. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct UnauthenticatedSlot {
    number: u64,
    connections: Arc<UnauthenticatedConnections>,
}

impl UnauthenticatedConnections {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        self.open.lock().ignore_poison()
    }

    /// Adds a connection that `close` closes, and closes the oldest if there are too many.
    pub(crate) fn enter(self: &Arc<Self>, close: &CancellationToken) -> UnauthenticatedSlot {
        let mut open = self.open();
        let oldest = if open.closers.len() >= self.max { open.closers.pop_first() } else { None };
        open.last_number += 1;
        let number = open.last_number;
        open.closers.insert(number, close.clone());
        drop(open);
        if let Some((_, oldest)) = oldest {
            oldest.cancel();
        }
        UnauthenticatedSlot { number, connections: self.clone() }
    }
}

impl Drop for UnauthenticatedSlot {
    fn drop(&mut self) {
        self.connections.open().closers.remove(&self.number);
    }
}

/// Requests without a valid token, reported together if they are frequent.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedLogins {
    /// Number of requests since the last report, at least one.
    pub count: u64,
    /// The address of the last client, if it is known.
    pub address: Option<IpAddr>,
}

impl fmt::Display for FailedLogins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => f.write_str("rejected a request without a valid token")?,
            count => write!(f, "rejected {count} requests without a valid token, the last one")?,
        }
        match self.address {
            Some(address) => write!(f, " from {address}"),
            None => Ok(()),
        }
    }
}

/// A function that receives reports of failed logins.
pub(crate) type LoginReporter = Box<dyn Fn(&FailedLogins) + Send + Sync>;

/// Reports failed logins, at most once per interval.
#[derive(Default)]
pub(crate) struct FailedLoginLog {
    state: Mutex<UnreportedLogins>,
    /// Cancelled when the gateway stops: what is left is reported at once.
    pub(crate) closed: CancellationToken,
    pub(crate) reporter: Option<LoginReporter>,
}

#[derive(Debug, Default)]
struct UnreportedLogins {
    count: u64,
    /// The address of the last client.
    address: Option<IpAddr>,
    last_report: Option<Instant>,
}

impl UnreportedLogins {
    /// Returns the earliest time of the next report; `None` if it can be made at any time.
    fn next_report(&self) -> Option<Instant> {
        self.last_report.map(|last| last + REPORT_INTERVAL)
    }

    /// Takes what has not been reported; `None` if that is nothing.
    fn take(&mut self, now: Instant) -> Option<FailedLogins> {
        if self.count == 0 {
            return None;
        }
        self.last_report = Some(now);
        Some(FailedLogins { count: std::mem::take(&mut self.count), address: self.address })
    }
}

/// What follows from a failed login.
#[derive(Debug, PartialEq, Eq)]
enum CountedLogin {
    /// It is reported now, together with those before it.
    Report(FailedLogins),
    /// It is the first that waits for the next report, at this time.
    ReportAt(Instant),
    /// It is reported together with others that wait.
    Waits,
}

impl fmt::Debug for FailedLoginLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FailedLoginLog").field("state", &self.state).finish_non_exhaustive()
    }
}

impl FailedLoginLog {
    /// Counts a failed login. It is logged and reported with all since the last report if that was long enough ago; if not,
    /// this returns the time at which [`FailedLoginLog::report_rest`] is to be called, once for all that wait.
    pub(crate) fn record(&self, address: Option<IpAddr>, now: Instant) -> Option<Instant> {
        match self.count(address, now) {
            CountedLogin::Report(failed) => self.report(&failed),
            CountedLogin::ReportAt(time) => return Some(time),
            CountedLogin::Waits => {}
        }
        None
    }

    /// Logs and reports the failed logins since the last report, if that was long enough ago or the gateway stops.
    pub(crate) fn report_rest(&self, now: Instant) {
        let mut state = self.state.lock().ignore_poison();
        let is_due = state.next_report().is_none_or(|next| now >= next);
        let rest = if is_due || self.closed.is_cancelled() { state.take(now) } else { None };
        drop(state);
        if let Some(failed) = rest {
            self.report(&failed);
        }
    }

    fn report(&self, failed: &FailedLogins) {
        tracing::warn!("{failed}");
        if let Some(report) = &self.reporter {
            report(failed);
        }
    }

    fn count(&self, address: Option<IpAddr>, now: Instant) -> CountedLogin {
        let mut state = self.state.lock().ignore_poison();
        state.count += 1;
        state.address = address;
        match state.next_report() {
            Some(next) if now < next && state.count == 1 => CountedLogin::ReportAt(next),
            Some(next) if now < next => CountedLogin::Waits,
            _ => state.take(now).map_or(CountedLogin::Waits, CountedLogin::Report),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_unauthenticated_connection_is_closed() {
        let connections = Arc::new(UnauthenticatedConnections::new(2));
        let tokens = [(); 4].map(|()| CancellationToken::new());
        let first = connections.enter(&tokens[0]);
        let second = connections.enter(&tokens[1]);
        ConnectionLogin::new(Some(second)).succeed();
        let third = connections.enter(&tokens[2]);
        let closed = || tokens.each_ref().map(CancellationToken::is_cancelled);
        assert_eq!(closed(), [false; 4], "a client with a token has no place here");
        let fourth = connections.enter(&tokens[3]);
        assert_eq!(closed(), [true, false, false, false]);
        drop((first, third, fourth));
        assert!(connections.open().closers.is_empty());
    }

    #[test]
    fn connection_is_refused_after_repeated_failures() {
        let unknown = ConnectionLogin::new(None);
        unknown.fail();
        assert!(!unknown.is_refused(), "one more request");
        unknown.fail();
        assert!(unknown.is_refused());
        let client = ConnectionLogin::new(None);
        client.succeed();
        (1..MAX_FAILURES).for_each(|_| client.fail());
        assert!(!client.is_refused());
        client.fail();
        assert!(client.is_refused());
    }

    #[test]
    fn failed_logins_are_reported_at_most_once_per_interval() {
        let log = FailedLoginLog::default();
        let now = Instant::now();
        let address = Some(IpAddr::from([192, 0, 2, 7]));
        let report = |counted| match counted {
            CountedLogin::Report(failed) => failed,
            other => panic!("{other:?}"),
        };
        let first = report(log.count(address, now));
        assert_eq!(first.to_string(), "rejected a request without a valid token from 192.0.2.7");
        let soon = now + REPORT_INTERVAL / 2;
        assert_eq!(log.count(address, soon), CountedLogin::ReportAt(now + REPORT_INTERVAL));
        assert!((0..98).all(|_| log.count(address, soon) == CountedLogin::Waits));
        let later = report(log.count(None, now + REPORT_INTERVAL));
        assert_eq!(later.to_string(), "rejected 100 requests without a valid token, the last one");
    }
}
