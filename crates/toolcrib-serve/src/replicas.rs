//! The other replicas of a gateway: sends requests to them, notices which of them are gone, and checks what they forward.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Method, Request, Response, Uri};
use tokio::time::{Instant, sleep, timeout};
use toolcrib::store::Replica;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{ForwardClient, ForwardFailure};

use crate::caller_assertion::{
    AssertionError, CallerAssertion, FORWARDED, ForwardedTarget, MAX_CLOCK_DIFFERENCE, VerifiedAssertion,
    unix_seconds,
};

/// Time limit for connecting to a replica.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time without a sign of life after which a replica that has not responded yet is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which a replica must answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which nothing is sent to a replica that is gone.
const GONE_TIME: Duration = Duration::from_secs(5);
/// Nonces of forwarded requests that are kept. They suffice for 60,000 requests per second and need about 70 MB then.
const MAX_NONCES: usize = 2_000_000;
/// Replicas whose last contact is known.
const MAX_CONTACTS: usize = 10_000;
/// Sessions whose present owner is remembered.
const MAX_MOVED_SESSIONS: usize = 20_000;
/// Addresses from which other replicas have connected.
const MAX_PEERS: usize = 10_000;

/// The path of a probe.
const PROBE_PATH: &str = "/healthz";

/// The other replicas of a gateway.
#[derive(Debug)]
pub(crate) struct Replicas {
    /// This gateway.
    pub(crate) own: Arc<Replica>,
    client: ForwardClient,
    state: Mutex<ReplicasState>,
}

#[derive(Debug, Default)]
struct ReplicasState {
    contacts: HashMap<String, Contact>,
    nonces: SeenNonces,
    /// Addresses from which other replicas have connected.
    peers: HashSet<IpAddr>,
    /// The owners of sessions that another replica has opened, by id.
    moved_sessions: HashMap<String, String>,
}

/// The last contact with a replica.
#[derive(Debug, Clone, Copy)]
enum Contact {
    Response(Instant),
    Gone(Instant),
}

/// A request that a replica did not respond to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoResponse {
    pub(crate) reason: String,
    /// True if the replica is gone: it cannot be connected to, or does not answer a probe.
    pub(crate) is_gone: bool,
    /// True if it may have received the request.
    pub(crate) may_be_sent: bool,
}

impl Replicas {
    /// Creates a client for the replicas of a gateway.
    ///
    /// # Errors
    /// Returns the reason if TLS is needed and not available.
    pub(crate) fn new(own: Arc<Replica>) -> Result<Self, String> {
        let client = ForwardClient::new(own.address(), CONNECT_TIMEOUT)?;
        Ok(Self { own, client, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, ReplicasState> {
        self.state.lock().ignore_poison()
    }

    /// Returns whether a replica was gone a moment ago.
    pub(crate) fn is_gone(&self, address: &str) -> bool {
        match self.state().contacts.get(address) {
            Some(Contact::Gone(time)) => time.elapsed() < GONE_TIME,
            _ => false,
        }
    }

    fn record_response(&self, address: &str) {
        self.record(address, Contact::Response(Instant::now()));
    }

    fn record_gone(&self, address: &str) {
        self.record(address, Contact::Gone(Instant::now()));
    }

    fn record(&self, address: &str, contact: Contact) {
        let mut state = self.state();
        match state.contacts.get_mut(address) {
            Some(known) => *known = contact,
            None => {
                // Replicas that are started again may have other addresses.
                if state.contacts.len() >= MAX_CONTACTS {
                    state.contacts.clear();
                }
                state.contacts.insert(address.to_owned(), contact);
            }
        }
    }

    /// Sends a request to a replica and returns the head of the response. A replica that does not respond is probed.
    pub(crate) async fn send(
        &self,
        address: &str,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, NoResponse> {
        let sent = tokio::select! {
            biased;
            sent = self.client.send(request) => sent,
            reason = self.wait_until_gone(address) => {
                return Err(NoResponse { reason, is_gone: true, may_be_sent: true });
            }
        };
        match sent {
            Ok(response) => {
                self.record_response(address);
                Ok(response)
            }
            Err(failure) => Err(self.examine(address, failure).await),
        }
    }

    /// Finds out whether a replica is gone after a request to it has failed.
    async fn examine(&self, address: &str, failure: ForwardFailure) -> NoResponse {
        let ForwardFailure { reason, may_be_sent } = failure;
        if !may_be_sent {
            self.record_gone(address);
            return NoResponse { reason, is_gone: true, may_be_sent };
        }
        let is_gone = self.probe(address).await.is_err();
        NoResponse { reason, is_gone, may_be_sent }
    }

    /// Waits until a replica does not answer a probe, and returns the reason.
    pub(crate) async fn wait_until_gone(&self, address: &str) -> String {
        loop {
            sleep(PROBE_INTERVAL).await;
            let was_seen = match self.state().contacts.get(address) {
                Some(Contact::Response(time)) => time.elapsed() < PROBE_INTERVAL,
                _ => false,
            };
            if !was_seen && let Err(reason) = self.probe(address).await {
                return reason;
            }
        }
    }

    /// Checks that a replica answers; any status counts.
    async fn probe(&self, address: &str) -> Result<(), String> {
        let mut request = Request::new(Full::default());
        let target = format!("{address}{PROBE_PATH}").parse();
        *request.uri_mut() = target.map_err(|_| "its address is not a URL".to_owned())?;
        let answered = match timeout(PROBE_TIMEOUT, self.client.send(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(failure)) => Err(failure.reason),
            Err(_) => Err("it does not answer".to_owned()),
        };
        match &answered {
            Ok(()) => self.record_response(address),
            Err(_) => self.record_gone(address),
        }
        answered
    }

    /// Checks the statement of another replica about a request, and records its nonce.
    ///
    /// # Errors
    /// Returns why the request is refused.
    pub(crate) fn verify(
        &self,
        method: &Method,
        target: &Uri,
        headers: &HeaderMap,
        now: SystemTime,
    ) -> Result<VerifiedAssertion, &'static str> {
        let mut values = headers.get_all(FORWARDED).iter();
        let header = values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok());
        let header = header.ok_or(AssertionError::Malformed.as_str())?;
        let target = ForwardedTarget::new(self.own.address(), method, target, headers);
        let verified = CallerAssertion::verify(header, &self.own, &target, now);
        let verified = verified.map_err(AssertionError::as_str)?;
        match self.state().nonces.insert(verified.nonce, verified.time, unix_seconds(now)) {
            true => Ok(verified),
            false => Err("it was received before, or too many requests are forwarded"),
        }
    }

    /// Returns the replica that had a session when a request was last forwarded, if that was not the one in its name.
    pub(crate) fn moved_to(&self, session: &str) -> Option<String> {
        self.state().moved_sessions.get(session).cloned()
    }

    /// Remembers the owner of a session, so that its next request needs no store.
    pub(crate) fn record_move(&self, session: &str, owner: &str) {
        let mut state = self.state();
        if state.moved_sessions.get(session).is_some_and(|known| known == owner) {
            return;
        }
        if state.moved_sessions.len() >= MAX_MOVED_SESSIONS {
            state.moved_sessions.clear();
        }
        state.moved_sessions.insert(session.to_owned(), owner.to_owned());
    }

    /// Forgets where a session is.
    pub(crate) fn forget_move(&self, session: &str) {
        self.state().moved_sessions.remove(session);
    }

    /// Records that another replica has connected from an address.
    pub(crate) fn record_peer(&self, address: IpAddr) {
        let mut state = self.state();
        if state.peers.len() < MAX_PEERS {
            state.peers.insert(address);
        }
    }

    /// Returns whether another replica has connected from an address.
    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.state().peers.contains(&address)
    }
}

/// The nonces of requests that were forwarded here, by the time of their statements in seconds since 1970. They are kept for as long as
/// their statements could be accepted.
#[derive(Debug, Default)]
struct SeenNonces {
    by_time: BTreeMap<u64, HashSet<u128>>,
    count: usize,
}

impl SeenNonces {
    /// Adds the nonce of a statement. Returns `false` if it was seen before, or there are too many.
    fn insert(&mut self, nonce: u128, time: u64, now: u64) -> bool {
        while let Some(oldest) = self.by_time.first_entry()
            && now.saturating_sub(*oldest.key()) > MAX_CLOCK_DIFFERENCE.as_secs()
        {
            self.count -= oldest.remove().len();
        }
        let is_new = self.count < MAX_NONCES && self.by_time.entry(time).or_default().insert(nonce);
        self.count += usize::from(is_new);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_is_accepted_once_for_as_long_as_its_statement_is() {
        let mut nonces = SeenNonces::default();
        // The clock of the second sender is 30 seconds ahead.
        assert!(nonces.insert(1, 1000, 1000) && nonces.insert(2, 1030, 1000));
        assert!(
            !nonces.insert(1, 1000, 1030) && nonces.insert(1, 1030, 1030),
            "one statement, not one number"
        );
        assert!(!nonces.insert(2, 1030, 1060));
        assert!(nonces.insert(3, 1061, 1061));
        assert_eq!((nonces.count, nonces.by_time.len()), (1, 1), "expired ones are dropped");
    }
}
