//! Two gateways on one asynchronous store.

use tokio::task::yield_now;
use toolcrib::store::{Store, StoreKey, StoreKind};
use toolcrib::{Caller, Crib, LogLevel};

use super::delayed_store::DelayedStore;
use super::*;
use crate::client_memory::{CallerMemory, MemoryAccount};
use crate::service::EndpointScope;

const CALLERS: &str = "[callers.one]\ntoken = 'first'\n[callers.two]\ntoken = 'second'\n";
const SET_LEVEL: &str =
    r#"{"jsonrpc":"2.0","id":3,"method":"logging/setLevel","params":{"level":"warning"}}"#;

/// Two gateways of two processes, each with a crib of its own.
struct GatewayPair {
    gateways: [TestGateway; 2],
    store: Arc<DelayedStore>,
}

impl GatewayPair {
    fn new(config: &str) -> Self {
        let store = Arc::new(DelayedStore::new());
        let gateway = || {
            let crib = Crib::builder().store(store.clone()).build().unwrap();
            TestGateway::with_callers(crib, callers(config), 100_000, 10)
        };
        Self { gateways: [gateway(), gateway()], store }
    }

    /// Sends a message in a session with a token and returns the status.
    async fn post(&self, gateway: usize, token: &str, session: &str, message: &str) -> String {
        let headers = format!("|Authorization: Bearer {token}|Mcp-Session-Id: {session}");
        status(&self.gateways[gateway].post(message.len(), &headers, message).await.read_head().await)
    }

    /// Opens a session with a token.
    async fn open(&self, gateway: usize, token: &str) -> String {
        let headers = format!("|Authorization: Bearer {token}");
        let gateway = &self.gateways[gateway];
        session_id(&gateway.post(INITIALIZE.len(), &headers, INITIALIZE).await.read_head().await)
    }

    /// Replaces the callers of a gateway, as a reload does.
    async fn reload(&self, gateway: usize, config: &str) {
        let active = &self.gateways[gateway].state.callers;
        let next = callers(config);
        active.replace(next, || {}).wait().await.unwrap();
        settle().await;
    }

    fn open_sessions(&self, gateway: usize) -> usize {
        self.gateways[gateway].state.sessions.ids().len()
    }

    async fn records(&self) -> usize {
        self.store.list(StoreKind::Session, "").wait().await.unwrap().len()
    }

    async fn finish(self) {
        for gateway in &self.gateways {
            gateway.stop.cancel();
            gateway.state.finish().await;
        }
    }
}

/// Lets all tasks run until they wait.
async fn settle() {
    for _ in 0..500 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn session_continues_at_another_gateway_for_the_same_caller() {
    let pair = GatewayPair::new(CALLERS);
    let session = pair.open(0, "first").await;
    assert_eq!(pair.post(1, "second", &session, PING).await, "404", "the session of another caller");
    for method in ["GET", "DELETE"] {
        let head = format!(
            "{method} /mcp HTTP/1.1|Accept: text/event-stream|Mcp-Session-Id: {session}|Authorization: Bearer second"
        );
        assert_eq!(status(&pair.gateways[1].send(&head, "").await.read_head().await), "404", "{method}");
    }
    assert_eq!((pair.open_sessions(1), pair.records().await), (0, 1));
    assert_eq!(pair.post(1, "first", &session, PING).await, "200");
    assert_eq!(pair.post(1, "second", &session, PING).await, "404");
    assert_eq!(pair.post(0, "first", &session, PING).await, "200", "it stays open at the first gateway");
    for unknown in ["0".repeat(32).as_str(), "x", "../a"] {
        assert_eq!(pair.post(1, "first", unknown, PING).await, "404");
    }
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn session_survives_the_end_of_its_gateway() {
    let pair = GatewayPair::new("");
    let session = pair.gateways[0].open_session().await;
    pair.gateways[0].stop.cancel();
    pair.gateways[0].state.finish().await;
    assert_eq!(pair.gateways[1].ping(&session).await, "200");
    let head = pair.gateways[1].send_bodyless("GET", &session).await.read_head().await;
    assert_eq!(status(&head), "200", "its notification stream can be opened");
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn session_is_not_continued_while_there_is_too_little_memory() {
    let pair = GatewayPair::new("");
    let session = pair.gateways[0].open_session().await;
    let caller = Arc::new(CallerMemory::new(&Caller::local()));
    let account = MemoryAccount { total: pair.gateways[1].state.memory.clone(), caller };
    // Only the part for small bodies is free.
    let limit = GatewayLimits::default().client_memory();
    let used = limit - limit / 16;
    account.add(used);
    let headers = format!("|Mcp-Session-Id: {session}");
    let batch = format!("[{PING}]");
    for message in [PING, &batch] {
        let head = pair.gateways[1].post(message.len(), &headers, message).await.read_head().await;
        assert_eq!(status(&head), "503", "{head}");
        assert!(head.contains("retry-after: 1"), "{head}");
    }
    let stream = pair.gateways[1].send_bodyless("GET", &session).await.read_head().await;
    assert_eq!((status(&stream).as_str(), pair.open_sessions(1)), ("503", 0));
    account.release(used);
    assert_eq!(pair.gateways[1].ping(&session).await, "200");
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn session_that_ends_at_one_gateway_ends_at_all() {
    let pair = GatewayPair::new("");
    for ending in [0, 1] {
        let session = pair.gateways[0].open_session().await;
        assert_eq!(pair.gateways[1].ping(&session).await, "200");
        let deleted = pair.gateways[ending].send_bodyless("DELETE", &session).await.read_head().await;
        assert_eq!(status(&deleted), "204");
        settle().await;
        for gateway in &pair.gateways {
            assert_eq!(gateway.ping(&session).await, "404");
        }
        // Unknown at the second gateway.
        let session = pair.gateways[0].open_session().await;
        let deleted = pair.gateways[1].send_bodyless("DELETE", &session).await.read_head().await;
        assert_eq!(status(&deleted), "204");
        settle().await;
        assert_eq!((pair.gateways[0].ping(&session).await.as_str(), pair.records().await), ("404", 0));
    }
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn record_expires_with_an_idle_session_and_not_before() {
    let pair = GatewayPair::new("");
    let session = pair.gateways[0].open_session().await;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(20 * 60)).await;
        assert_eq!(pair.gateways[0].ping(&session).await, "200");
        assert_eq!(pair.records().await, 1);
    }
    tokio::time::sleep(Duration::from_secs(25 * 60)).await;
    assert_eq!(pair.gateways[1].ping(&session).await, "200", "it is not idle long enough");
    tokio::time::sleep(Duration::from_secs(50 * 60)).await;
    assert_eq!(pair.records().await, 0);
    for gateway in &pair.gateways {
        assert_eq!(gateway.ping(&session).await, "404");
    }
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn record_is_renewed_while_a_stream_is_open() {
    let pair = GatewayPair::new("");
    let session = pair.gateways[0].open_session().await;
    let mut stream = pair.gateways[0].send_bodyless("GET", &session).await;
    assert_eq!(status(&stream.read_head().await), "200");
    tokio::time::sleep(Duration::from_secs(3 * 60 * 60)).await;
    assert_eq!(pair.gateways[1].ping(&session).await, "200");
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn log_level_follows_the_session() {
    let pair = GatewayPair::new(CALLERS);
    let session = pair.open(0, "first").await;
    assert_eq!(pair.post(1, "first", &session, PING).await, "200");
    assert_eq!(pair.post(0, "first", &session, SET_LEVEL).await, "200");
    settle().await;
    let record = pair.store.get(StoreKey::new(StoreKind::Session, &session)).wait().await.unwrap().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    assert_eq!((&record["logLevel"], &record["caller"]), (&"warning".into(), &"one".into()));
    assert_eq!(record["params"]["clientInfo"]["name"], "t");
    let scope = EndpointScope::trusted(Caller::new("one"));
    let found = pair.gateways[1].state.sessions.find(&session, &scope).unwrap();
    let level = found.client.log_level().map(LogLevel::as_str);
    assert_eq!(level, Some("warning"), "a gateway that has the session open is notified");
    drop(found);
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn store_that_does_not_answer_is_not_an_unknown_session() {
    let pair = GatewayPair::new("");
    let session = pair.gateways[0].open_session().await;
    pair.store.set_failing(true);
    assert_eq!(pair.gateways[0].ping(&session).await, "200", "an open session does not need the store");
    let headers = format!("|Mcp-Session-Id: {session}|Connection: close");
    let answer = pair.gateways[1].post(PING.len(), &headers, PING).await.read_to_end().await;
    assert_eq!(status(&answer), "503", "{answer}");
    assert!(answer.contains("-31022") && answer.contains("store_unavailable"), "{answer}");
    let refused = pair.gateways[0].post(INITIALIZE.len(), "", INITIALIZE).await.read_head().await;
    assert_eq!((status(&refused).as_str(), pair.open_sessions(0)), ("503", 1));
    pair.store.set_failing(false);
    assert_eq!(pair.gateways[1].ping(&session).await, "200");
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn caller_removed_at_one_gateway_loses_access_to_all() {
    let pair = GatewayPair::new(CALLERS);
    let removed = pair.open(1, "first").await;
    let kept = pair.open(1, "second").await;
    let head = format!(
        "GET /mcp HTTP/1.1|Accept: text/event-stream|Mcp-Session-Id: {removed}|Authorization: Bearer first"
    );
    let mut removed_stream = pair.gateways[1].send(&head, "").await;
    assert_eq!(status(&removed_stream.read_head().await), "200");
    let scope = EndpointScope::trusted(Caller::new("one"));
    let session = pair.gateways[1].state.sessions.find(&removed, &scope).unwrap();
    let caller = session.client.scope.caller().clone();
    drop(session);
    assert!(!caller.is_revoked());
    pair.reload(0, "[callers.two]\ntoken = 'second'\n").await;
    assert!(caller.is_revoked(), "requests that were authenticated before are denied");
    assert_eq!(pair.post(1, "first", &removed, PING).await, "401");
    assert_eq!(pair.post(1, "second", &kept, PING).await, "200");
    let ended = timeout(TOO_LONG, removed_stream.0.read_u32()).await.expect("an end of the stream").unwrap();
    assert_eq!(ended, u32::from_be_bytes(*b"0\r\n\r"), "only the last chunk");
    assert_eq!((pair.open_sessions(1), pair.records().await), (1, 1), "its sessions have ended");
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn changed_caller_cannot_continue_its_sessions() {
    let pair = GatewayPair::new(CALLERS);
    let session = pair.open(0, "first").await;
    let changed = CALLERS.replacen("token", "admin = true\ntoken", 1);
    pair.reload(0, &changed).await;
    assert_eq!(pair.post(0, "first", &session, PING).await, "404");
    assert_eq!(pair.post(1, "first", &session, PING).await, "401", "the old rights are revoked");
    pair.reload(1, &changed).await;
    assert_eq!(pair.post(1, "first", &session, PING).await, "404", "the session ended with the old rights");
    let session = pair.open(1, "first").await;
    assert_eq!(pair.post(0, "first", &session, PING).await, "200");
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn gateway_that_starts_applies_earlier_revocations() {
    let pair = GatewayPair::new(CALLERS);
    let second = "[callers.two]\ntoken = 'second'\n";
    pair.reload(0, second).await;
    let start = || {
        let crib = Crib::builder().store(pair.store.clone()).build().unwrap();
        TestGateway::with_callers(crib, callers(CALLERS), 1000, 10)
    };
    let can_open = async |gateway: &TestGateway| {
        let headers = "|Authorization: Bearer first";
        status(&gateway.post(INITIALIZE.len(), headers, INITIALIZE).await.read_head().await) == "200"
    };
    let late = start();
    settle().await;
    assert!(!can_open(&late).await);
    // Its own config is read again, and still has the caller.
    late.state.callers.replace(callers(CALLERS), || {}).wait().await.unwrap();
    settle().await;
    assert!(can_open(&late).await);
    // The gateway that revoked the caller grants it again.
    pair.reload(0, CALLERS).await;
    let later = start();
    settle().await;
    assert!(can_open(&later).await);
    for gateway in [late, later] {
        gateway.stop.cancel();
        gateway.state.finish().await;
    }
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn revocation_during_an_outage_is_applied_afterwards() {
    let pair = GatewayPair::new(CALLERS);
    settle().await;
    pair.store.set_failing(true);
    let next = callers("[callers.two]\ntoken = 'second'\n");
    let active = &pair.gateways[0].state.callers;
    assert!(active.replace(next, || {}).wait().await.is_err(), "the failure is reported");
    assert_eq!(pair.post(0, "first", "x", PING).await, "401", "it applies here nevertheless");
    pair.store.set_failing(false);
    pair.reload(1, "[callers.two]\ntoken = 'second'\n").await;
    assert_eq!(pair.post(1, "first", "x", PING).await, "401");
    pair.finish().await;
}

#[tokio::test(start_paused = true)]
async fn memory_store_has_no_records_of_sessions() {
    let gateway = TestGateway::new(1000, 10);
    let session = gateway.open_session().await;
    assert_eq!(gateway.ping(&session).await, "200");
    let store = gateway.state.service.crib.store();
    assert!(store.list(StoreKind::Session, "").wait().await.unwrap().is_empty());
    assert!(!gateway.state.sessions.is_shared());
}
