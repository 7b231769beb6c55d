//! The other replicas of a gateway: sends requests to them, notices which of them are gone, and checks what they forward.

use std::collections::{HashMap, HashSet};
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
    AssertionError, CallerAssertion, FORWARDED, ForwardedTarget, MAX_CLOCK_DIFFERENCE,
};

/// Time limit for connecting to a replica.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time without a sign of life after which a replica that has not responded yet is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Time in which a replica must answer a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which nothing is sent to a replica that is gone.
const GONE_TIME: Duration = Duration::from_secs(5);
/// Time for which the nonce of a forwarded request is kept: as long as its statement could be accepted.
const NONCE_TIME: Duration = Duration::from_secs(2 * MAX_CLOCK_DIFFERENCE.as_secs());
/// Nonces that are kept in each of two sets.
const MAX_NONCES: usize = 1_000_000;
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
            None => drop(state.contacts.insert(address.to_owned(), contact)),
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
    ) -> Result<CallerAssertion, &'static str> {
        let mut values = headers.get_all(FORWARDED).iter();
        let header = values.next().filter(|_| values.next().is_none()).and_then(|value| value.to_str().ok());
        let header = header.ok_or(AssertionError::Malformed.as_str())?;
        let target = ForwardedTarget::new(self.own.address(), method, target, headers);
        let verified = CallerAssertion::verify(header, &self.own, &target, now);
        let verified = verified.map_err(AssertionError::as_str)?;
        match self.state().nonces.insert(verified.nonce, Instant::now()) {
            true => Ok(verified.caller),
            false => Err("it was received before, or too many requests are forwarded"),
        }
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

/// The nonces of requests that were forwarded here, each for at least [`NONCE_TIME`].
#[derive(Debug, Default)]
struct SeenNonces {
    current: HashSet<String>,
    previous: HashSet<String>,
    /// When the current set was started.
    started: Option<Instant>,
}

impl SeenNonces {
    /// Adds a nonce. Returns `false` if it was seen before, or there are too many.
    fn insert(&mut self, nonce: String, now: Instant) -> bool {
        let started = *self.started.get_or_insert(now);
        if now.saturating_duration_since(started) >= NONCE_TIME {
            self.previous = std::mem::take(&mut self.current);
            self.started = Some(now);
        }
        !self.previous.contains(&nonce) && self.current.len() < MAX_NONCES && self.current.insert(nonce)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_is_accepted_once_for_as_long_as_its_statement_is() {
        let mut nonces = SeenNonces::default();
        let start = Instant::now();
        let mut insert =
            |nonce: &str, seconds: u64| nonces.insert(nonce.to_owned(), start + Duration::from_secs(seconds));
        assert!(insert("a", 0) && !insert("a", 1) && insert("b", 59));
        assert!(!insert("b", 60) && !insert("b", 119));
        assert!(insert("c", 120) && !insert("c", 179));
        assert!(insert("a", 180), "its statement has expired long ago");
    }
}
