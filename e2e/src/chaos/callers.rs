//! Callers: each keeps one connection, calls one server after another, and records how every call ended.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use toolcrib::ErrorKind;
use toolcrib::protocol::sse::SseDecoder;
use toolcrib::util::locks::IgnorePoison as _;

use super::faults::Faults;
use super::random::Random;
use test_support::client::{Era, HttpClient, message};

/// Token of a call that only checks that a server answers.
pub(crate) const PROBE_TOKEN: &str = "probe";

/// Limit on the wait for an answer; far above every limit of the gateway.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// The outcome of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOutcome {
    /// The call has not ended.
    Open,
    /// Answered with its own token.
    Answered,
    /// Answered with the token or the id of another call.
    Misdelivered,
    /// No answer within `ANSWER_TIMEOUT`, or a broken connection.
    Unanswered,
    /// Answered with neither a result nor a gateway error.
    Malformed,
    /// Answered with an error of this kind.
    Failed(ErrorKind),
}

impl CallOutcome {
    fn to_byte(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Answered => 1,
            Self::Misdelivered => 2,
            Self::Unanswered => 3,
            Self::Malformed => 4,
            Self::Failed(kind) => {
                let index = ErrorKind::ALL.iter().position(|each| *each == kind).unwrap_or_default();
                10 + u8::try_from(index).unwrap_or_default()
            }
        }
    }

    fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Open,
            1 => Self::Answered,
            2 => Self::Misdelivered,
            3 => Self::Unanswered,
            4 => Self::Malformed,
            kind => Self::Failed(ErrorKind::ALL[usize::from(kind) - 10]),
        }
    }
}

/// Hands out call tokens and records how each call ended. Shared by all callers.
#[derive(Debug)]
pub struct CallTracker {
    next: AtomicU64,
    end: AtomicU64,
    outcomes: Vec<AtomicU8>,
    /// The first few unexpected outcomes, with the token of the call.
    unexpected: Mutex<Vec<(u64, String)>>,
    /// Time between two calls; `None` for no pause.
    interval: Option<Duration>,
    /// Start of the current phase.
    phase: Mutex<PhaseStart>,
}

/// Start of a phase.
#[derive(Debug, Clone, Copy)]
struct PhaseStart {
    at: Instant,
    first_token: u64,
}

impl CallTracker {
    /// Creates a tracker for `calls` calls, none of them allowed yet.
    pub fn new(calls: u64) -> Arc<Self> {
        let outcomes = (0..calls).map(|_| AtomicU8::new(0)).collect();
        let phase = PhaseStart { at: Instant::now(), first_token: 0 };
        Arc::new(Self {
            next: AtomicU64::new(0),
            end: AtomicU64::new(0),
            outcomes,
            unexpected: Mutex::default(),
            interval: None,
            phase: Mutex::new(phase),
        })
    }

    /// Returns a new tracker of the same size with this time between two calls.
    pub fn with_interval(self: Arc<Self>, interval: Duration) -> Arc<Self> {
        let calls = self.outcomes.len() as u64;
        let mut tracker = Arc::into_inner(Self::new(calls)).expect("a new tracker has one owner");
        tracker.interval = Some(interval);
        Arc::new(tracker)
    }

    /// Allows no further calls.
    pub fn stop(&self) {
        self.allow_until(0);
    }

    /// Allows calls with tokens below `end` and starts a phase.
    pub fn allow_until(&self, end: u64) {
        let first_token = self.next.load(Ordering::Relaxed);
        let phase = PhaseStart { at: Instant::now(), first_token };
        *self.phase.lock().ignore_poison() = phase;
        self.end.store(end, Ordering::Relaxed);
    }

    /// Returns when this call is due.
    fn due(&self, token: u64) -> Option<Instant> {
        let phase = *self.phase.lock().ignore_poison();
        let position = u32::try_from(token.saturating_sub(phase.first_token)).unwrap_or(u32::MAX);
        self.interval.map(|interval| phase.at + interval * position)
    }

    /// Returns the token of the next call, if one is allowed.
    fn next_token(&self) -> Option<u64> {
        let end = self.end.load(Ordering::Relaxed);
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < end).then_some(next + 1))
            .ok()
    }

    /// Returns the outcome of every call that was started.
    pub fn outcomes(&self) -> impl Iterator<Item = CallOutcome> + '_ {
        self.outcomes
            .iter()
            .take(self.started())
            .map(|outcome| CallOutcome::from_byte(outcome.load(Ordering::Relaxed)))
    }

    /// Returns how many calls were started.
    pub fn started(&self) -> usize {
        usize::try_from(self.next.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Returns the first few unexpected outcomes, with the token of the call.
    pub fn unexpected(&self) -> Vec<(u64, String)> {
        self.unexpected.lock().ignore_poison().clone()
    }

    fn record_unexpected(&self, token: u64, description: String) {
        let mut unexpected = self.unexpected.lock().ignore_poison();
        if unexpected.len() < 10 {
            unexpected.push((token, description));
        }
    }
}

/// A client that calls servers at random.
#[derive(Debug)]
pub struct Caller {
    address: SocketAddr,
    era: Era,
    client: HttpClient,
    random: Random,
    servers: usize,
    next: u64,
    sender: Option<SendRequest<Full<Bytes>>>,
    connections: JoinSet<()>,
    /// Latencies of its calls, in microseconds.
    latencies: Vec<u32>,
}

impl Caller {
    /// Creates a caller of this era and opens its session, if the era has sessions.
    pub fn new(address: SocketAddr, era: Era, seed: u64, servers: usize) -> Self {
        let client = HttpClient::new(address, "/mcp", era);
        Self {
            address,
            era,
            client,
            random: Random::new(seed),
            servers,
            next: 10,
            sender: None,
            connections: JoinSet::new(),
            latencies: Vec::new(),
        }
    }

    /// Returns the latencies since the last time.
    pub fn take_latencies(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.latencies)
    }

    /// Makes calls as long as the tracker allows them.
    pub async fn run(&mut self, tracker: &CallTracker, faults: Faults) {
        while let Some(token) = tracker.next_token() {
            if let Some(due) = tracker.due(token) {
                tokio::time::sleep_until(due).await;
            }
            let server = self.random.below(self.servers);
            let fault = faults.draw_call_fault(&mut self.random);
            let started = Instant::now();
            let (end, answer) = self.record(server, &token.to_string(), fault).await;
            self.latencies.push(u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX));
            let rare = [
                CallOutcome::Misdelivered,
                CallOutcome::Unanswered,
                CallOutcome::Malformed,
                CallOutcome::Failed(ErrorKind::CouldNotStart),
            ];
            if rare.contains(&end) || (faults == Faults::NONE && end != CallOutcome::Answered) {
                let elapsed = started.elapsed();
                let description = format!("at s{server}, {fault:?}, {:?}, {elapsed:.1?}: {answer}", self.era);
                tracker.record_unexpected(token, description);
            }
            tracker.outcomes[usize::try_from(token).unwrap_or_default()]
                .store(end.to_byte(), Ordering::Relaxed);
        }
    }

    /// Ends its session, if it has one.
    pub fn close_session(self) {
        if self.client.session.is_some() {
            self.client.send_without_body("DELETE").finish();
        }
    }

    /// Returns whether a server answers.
    pub async fn is_answering(&mut self, server: usize) -> bool {
        self.record(server, PROBE_TOKEN, "").await.0 == CallOutcome::Answered
    }

    /// Calls the tool `record`; returns how the call ended and the answer.
    pub async fn record(&mut self, server: usize, token: &str, fault: &str) -> (CallOutcome, String) {
        self.next += 1;
        let id = self.next;
        let name = format!("s{server}__record");
        let params = json!({"name": name, "arguments": {"token": token, "fault": fault}});
        let body = message(self.era, &id.into(), "tools/call", &params).to_string();
        match timeout(ANSWER_TIMEOUT, self.post(&name, body)).await {
            Err(_) => (CallOutcome::Unanswered, "timed out".to_owned()),
            Ok(Err(error)) => (CallOutcome::Unanswered, error),
            Ok(Ok((stream, body))) => {
                (classify(stream, &body, id, token), String::from_utf8_lossy(&body).into())
            }
        }
    }

    async fn post(&mut self, name: &str, body: String) -> Result<(bool, Bytes), String> {
        let mut request = Request::post("/mcp").header(header::HOST, self.address.to_string());
        for (key, value) in self.client.headers("tools/call", Some(name)) {
            request = request.header(key, value);
        }
        let request = request.body(Full::from(body)).map_err(|error| error.to_string())?;
        let mut sender = match self.sender.take().filter(|sender| !sender.is_closed()) {
            Some(sender) => sender,
            None => self.connect().await.map_err(|error| error.to_string())?,
        };
        sender.ready().await.map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        self.sender = Some(sender);
        Ok((kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")), body))
    }

    async fn connect(
        &mut self,
    ) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        self.connections.spawn(async {
            // A request that latencies on the connection gets its error.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

/// Returns what the answer to the call `id` with this token means.
fn classify(stream: bool, body: &[u8], id: u64, token: &str) -> CallOutcome {
    let mut answers = messages(stream, body);
    answers.retain(|answer| answer["method"].is_null());
    let [answer] = answers.as_slice() else { return CallOutcome::Malformed };
    if answer["id"] != id {
        return CallOutcome::Misdelivered;
    }
    if let Some(text) = answer["result"]["content"][0]["text"].as_str() {
        return if text == token { CallOutcome::Answered } else { CallOutcome::Misdelivered };
    }
    let kind = answer["error"]["data"]["kind"].as_str().unwrap_or_default();
    ErrorKind::ALL
        .into_iter()
        .find(|each| each.facts().name == kind)
        .map_or(CallOutcome::Malformed, CallOutcome::Failed)
}

fn messages(stream: bool, body: &[u8]) -> Vec<Value> {
    if !stream {
        return serde_json::from_slice(body).into_iter().collect();
    }
    let mut events = SseDecoder::new(64 << 20);
    events.push(body);
    let events = std::iter::from_fn(|| events.next_event().unwrap_or_default());
    events.filter_map(|event| serde_json::from_slice(&event.data).ok()).collect()
}
