//! Callers: each has a connection that it keeps, calls one server after another, and writes down how every call ended.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
use toolcrib::wire::sse::SseEvents;

use super::mischief::Faults;
use super::random::Random;
use test_support::client::{Era, HttpClient, message};

/// The token of a call that only asks whether a server is well.
pub(crate) const WELL: &str = "well";

/// How long a caller waits before it says that there was no answer; far beyond every limit of the gateway.
const PATIENCE: Duration = Duration::from_secs(90);

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It did not.
    Open,
    /// With its own token.
    Answered,
    /// With somebody else's token, or under somebody else's id.
    Crossed,
    /// With no answer within `PATIENCE`, or a broken connection.
    Unanswered,
    /// With something that is neither a result nor an error of ours.
    Odd,
    /// With an error of this kind.
    Failed(ErrorKind),
}

impl End {
    fn to_byte(self) -> u8 {
        match self {
            Self::Open => 0,
            Self::Answered => 1,
            Self::Crossed => 2,
            Self::Unanswered => 3,
            Self::Odd => 4,
            Self::Failed(kind) => {
                let place = ErrorKind::ALL.iter().position(|known| *known == kind).unwrap_or_default();
                10 + u8::try_from(place).unwrap_or_default()
            }
        }
    }

    fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Open,
            1 => Self::Answered,
            2 => Self::Crossed,
            3 => Self::Unanswered,
            4 => Self::Odd,
            kind => Self::Failed(ErrorKind::ALL[usize::from(kind) - 10]),
        }
    }
}

/// The calls of all callers: how far they may go, and how each ended.
#[derive(Debug)]
pub struct Goal {
    next: AtomicU64,
    end: AtomicU64,
    ends: Vec<AtomicU8>,
    /// What surprised callers, but not more than a few of it.
    surprises: Mutex<Vec<(u64, String)>>,
    /// How long there is between two calls, if not as little as can be.
    pace: Option<Duration>,
    /// When calls were last allowed, and which one came first then.
    since: Mutex<(Instant, u64)>,
}

impl Goal {
    /// Room for so many calls, none of them allowed yet.
    pub fn new(calls: u64) -> Arc<Self> {
        let ends = (0..calls).map(|_| AtomicU8::new(0)).collect();
        let (next, end) = (AtomicU64::new(0), AtomicU64::new(0));
        let since = Mutex::new((Instant::now(), 0));
        Arc::new(Self { next, end, ends, surprises: Mutex::default(), pace: None, since })
    }

    /// The same, with this long between two calls.
    pub fn paced(self: Arc<Self>, pace: Duration) -> Arc<Self> {
        let calls = self.ends.len() as u64;
        let mut goal = Arc::into_inner(Self::new(calls)).expect("nobody else has it yet");
        goal.pace = Some(pace);
        Arc::new(goal)
    }

    /// Allows no more calls.
    pub fn stop(&self) {
        self.raise(0);
    }

    /// Allows calls up to here.
    pub fn raise(&self, end: u64) {
        let next = self.next.load(Ordering::Relaxed);
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = (Instant::now(), next);
        self.end.store(end, Ordering::Relaxed);
    }

    /// When this call is due.
    fn due(&self, token: u64) -> Option<Instant> {
        let (began, first) = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let after = u32::try_from(token.saturating_sub(first)).unwrap_or(u32::MAX);
        self.pace.map(|pace| began + pace * after)
    }

    fn token(&self) -> Option<u64> {
        let end = self.end.load(Ordering::Relaxed);
        self.next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < end).then_some(next + 1))
            .ok()
    }

    /// How every call that was begun ended.
    pub fn ends(&self) -> impl Iterator<Item = End> + '_ {
        self.ends.iter().take(self.ended()).map(|end| End::from_byte(end.load(Ordering::Relaxed)))
    }

    /// How many were begun.
    pub fn ended(&self) -> usize {
        usize::try_from(self.next.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// What surprised callers, and the token of the call.
    pub fn surprises(&self) -> Vec<(u64, String)> {
        self.surprises.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn surprise(&self, token: u64, what: String) {
        let mut surprises = self.surprises.lock().unwrap_or_else(PoisonError::into_inner);
        if surprises.len() < 10 {
            surprises.push((token, what));
        }
    }
}

/// One caller.
#[derive(Debug)]
pub struct Caller {
    address: SocketAddr,
    era: Era,
    client: HttpClient,
    random: Random,
    servers: usize,
    next: u64,
    line: Option<SendRequest<Full<Bytes>>>,
    connections: JoinSet<()>,
    /// How long its calls took, in microseconds.
    waits: Vec<u32>,
}

impl Caller {
    /// A caller of this era, its session opened.
    pub fn new(address: SocketAddr, era: Era, seed: u64, servers: usize) -> Self {
        let client = HttpClient::new(address, "/mcp", era);
        let (random, connections) = (Random::new(seed), JoinSet::new());
        Self { address, era, client, random, servers, next: 10, line: None, connections, waits: Vec::new() }
    }

    /// How long its calls took since this was asked last.
    pub fn take_waits(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.waits)
    }

    /// Calls until the goal is reached.
    pub async fn call_until(&mut self, goal: &Goal, faults: Faults) {
        while let Some(token) = goal.token() {
            if let Some(due) = goal.due(token) {
                tokio::time::sleep_until(due).await;
            }
            let server = self.random.below(self.servers);
            let how = faults.how(&mut self.random);
            let began = Instant::now();
            let (end, said) = self.stamp(server, &token.to_string(), how).await;
            self.waits.push(u32::try_from(began.elapsed().as_micros()).unwrap_or(u32::MAX));
            let rare = [End::Crossed, End::Unanswered, End::Odd, End::Failed(ErrorKind::CouldNotStart)];
            if rare.contains(&end) || (faults == Faults::NONE && end != End::Answered) {
                let after = began.elapsed();
                goal.surprise(token, format!("at s{server}, {how:?}, {:?}, {after:.1?}: {said}", self.era));
            }
            goal.ends[usize::try_from(token).unwrap_or_default()].store(end.to_byte(), Ordering::Relaxed);
        }
    }

    /// Says goodbye, if its era has a word for it.
    pub fn leave(self) {
        if self.client.session.is_some() {
            self.client.bare("DELETE").finish();
        }
    }

    /// Whether a server answers.
    pub async fn is_well(&mut self, server: usize) -> bool {
        self.stamp(server, WELL, "").await.0 == End::Answered
    }

    /// One call: how it ended, and what was said.
    pub async fn stamp(&mut self, server: usize, token: &str, how: &str) -> (End, String) {
        self.next += 1;
        let (id, name) = (self.next, format!("s{server}__stamp"));
        let params = json!({"name": name, "arguments": {"token": token, "how": how}});
        let body = message(self.era, &id.into(), "tools/call", &params).to_string();
        match timeout(PATIENCE, self.post(&name, body)).await {
            Err(_) => (End::Unanswered, "nothing".to_owned()),
            Ok(Err(why)) => (End::Unanswered, why),
            Ok(Ok((stream, body))) => {
                (judge(stream, &body, id, token), String::from_utf8_lossy(&body).into())
            }
        }
    }

    async fn post(&mut self, name: &str, body: String) -> Result<(bool, Bytes), String> {
        let mut request = Request::post("/mcp").header(header::HOST, self.address.to_string());
        for (key, value) in self.client.headers("tools/call", Some(name)) {
            request = request.header(key, value);
        }
        let request = request.body(Full::from(body)).map_err(|error| error.to_string())?;
        let mut line = match self.line.take().filter(|line| !line.is_closed()) {
            Some(line) => line,
            None => self.dial().await.map_err(|error| error.to_string())?,
        };
        line.ready().await.map_err(|error| error.to_string())?;
        let response = line.send_request(request).await.map_err(|error| error.to_string())?;
        let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        self.line = Some(line);
        Ok((kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")), body))
    }

    async fn dial(&mut self) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (line, connection) = handshake(TokioIo::new(stream)).await?;
        self.connections.spawn(async {
            // Whoever waits for an answer on it hears how it ended.
            let _ = connection.await;
        });
        Ok(line)
    }
}

/// What an answer to the call `id` with this token means.
fn judge(stream: bool, body: &[u8], id: u64, token: &str) -> End {
    let mut answers = messages(stream, body);
    answers.retain(|answer| answer["method"].is_null());
    let [answer] = answers.as_slice() else { return End::Odd };
    if answer["id"] != id {
        return End::Crossed;
    }
    if let Some(text) = answer["result"]["content"][0]["text"].as_str() {
        return if text == token { End::Answered } else { End::Crossed };
    }
    let kind = answer["error"]["data"]["kind"].as_str().unwrap_or_default();
    ErrorKind::ALL.into_iter().find(|known| known.facts().name == kind).map_or(End::Odd, End::Failed)
}

fn messages(stream: bool, body: &[u8]) -> Vec<Value> {
    if !stream {
        return serde_json::from_slice(body).into_iter().collect();
    }
    let mut events = SseEvents::new(64 << 20);
    events.push(body);
    let events = std::iter::from_fn(|| events.next_event().unwrap_or_default());
    events.filter_map(|event| serde_json::from_slice(&event.data).ok()).collect()
}
