//! Tests of HTTP handling on a paused clock: large and incomplete bodies, and session streams.

mod capabilities;
mod changing_callers;
mod client_limits;
pub(crate) mod delayed_store;
mod idle_connections;
mod issuers;
mod proxies;
mod replicas;
mod session_requests;
mod shared_store;
mod slow_responses;
mod sse;
mod transparency;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::config::{Config, GatewayLimits};
use toolcrib::{
    CallRecord, CallSpans, Crib, NetworkTransport, Observer, SecretError, ServerSpec, Toolbox, TraceContext,
};

use super::{ActiveCallers, Callers, Entrypoint, HttpGateway, McpService, serve_connection};

/// Longer than any step may take. The paused clock advances when all tasks wait.
const TOO_LONG: Duration = Duration::from_secs(600);

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
const PING: &str = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;

/// A gateway without a network.
struct TestGateway {
    state: Arc<HttpGateway>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl TestGateway {
    fn new(body: usize, sessions: usize) -> Self {
        Self::with_crib(Crib::builder().build().unwrap(), body, sessions)
    }

    fn with_crib(crib: Crib, body: usize, sessions: usize) -> Self {
        Self::with_callers(crib, callers(""), body, sessions)
    }

    fn with_callers(crib: Crib, callers: Callers, body: usize, sessions: usize) -> Self {
        let limits = GatewayLimits { body, sessions, ..GatewayLimits::default() };
        let callers = Arc::new(ActiveCallers::new(callers));
        let state = Arc::new(HttpGateway::new(McpService::new(crib), callers, &limits));
        Self { state, tasks: TaskTracker::new(), stop: CancellationToken::new() }
    }

    /// Opens a connection and sends a request; `|` in the head stands for a line break.
    async fn send(&self, head: &str, body: &str) -> Client {
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        let connection = serve_connection(theirs, self.state.clone(), Entrypoint::Tcp, self.stop.clone());
        self.tasks.spawn(async move {
            if let Some(stream) = connection.await {
                stream.await;
            }
        });
        let head = format!("{head}|Host: localhost||").replace('|', "\r\n");
        ours.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        Client(ours)
    }

    /// Sends a POST with this `Content-Length`.
    async fn post(&self, length: usize, headers: &str, body: &str) -> Client {
        let head =
            "POST /mcp HTTP/1.1|Content-Type: application/json|Accept: application/json, text/event-stream";
        self.send(&format!("{head}|Content-Length: {length}{headers}"), body).await
    }

    /// Opens a session and returns its id.
    async fn open_session(&self) -> String {
        session_id(&self.post(INITIALIZE.len(), "", INITIALIZE).await.read_head().await)
    }

    /// Returns the status of a ping in a session.
    async fn ping(&self, session: &str) -> String {
        let headers = format!("|Mcp-Session-Id: {session}");
        status(&self.post(PING.len(), &headers, PING).await.read_head().await)
    }

    /// Sends a GET or DELETE in a session.
    async fn send_bodyless(&self, method: &str, session: &str) -> Client {
        let head = format!("{method} /mcp HTTP/1.1|Accept: text/event-stream|Mcp-Session-Id: {session}");
        self.send(&head, "").await
    }
}

/// Returns the callers of a config.
fn callers(text: &str) -> Callers {
    let config = Config::parse(Path::new("/x/config.toml"), text);
    Callers::resolve(&config.callers, |_| Err(SecretError::NotFound)).unwrap().with_issuers(&config)
}

/// The client end of one connection.
struct Client(DuplexStream);

impl Client {
    /// Reads the head of the next response.
    async fn read_head(&mut self) -> String {
        let mut head = Vec::new();
        let read = async {
            while !head.ends_with(b"\r\n\r\n") {
                head.push(self.0.read_u8().await.unwrap());
            }
        };
        timeout(TOO_LONG, read).await.expect("a response in time");
        String::from_utf8(head).unwrap()
    }

    /// Reads to the end of the connection.
    async fn read_to_end(mut self) -> String {
        let mut rest = String::new();
        timeout(TOO_LONG, self.0.read_to_string(&mut rest)).await.expect("an end in time").unwrap();
        rest
    }
}

/// Returns the id of a session from the head of the response that opened it.
fn session_id(head: &str) -> String {
    let id = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
    id.unwrap_or_else(|| panic!("no session in {head}")).to_owned()
}

fn status(head: &str) -> String {
    head.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn too_large_body_is_refused_before_100_continue() {
    let gateway = TestGateway::new(1000, 10);
    let before = Instant::now();
    let mut client = gateway.post(1001, "|Expect: 100-continue", "").await;
    let head = client.read_head().await;
    assert_eq!((status(&head).as_str(), before.elapsed()), ("413", Duration::ZERO), "{head}");
    assert!(head.contains("connection: close\r\n"), "{head}");
    let body = client.read_to_end().await;
    assert!(body.contains("the request has 1001 bytes, and `limits.body` is 1000B"), "{body}");
}

#[tokio::test(start_paused = true)]
async fn too_large_body_is_refused_immediately_and_not_read_to_the_end() {
    let gateway = TestGateway::new(1000, 10);
    let before = Instant::now();
    let mut client = gateway.post(1 << 40, "", "{").await;
    let head = client.read_head().await;
    assert_eq!((status(&head).as_str(), before.elapsed()), ("413", Duration::ZERO), "{head}");
    let mut sent = 0_u64;
    while client.0.write_all(&[b'x'; 1 << 20]).await.is_ok() {
        sent += 1;
    }
    assert!((256..260).contains(&sent), "{sent} MiB");
}

#[tokio::test(start_paused = true)]
async fn sender_of_a_refused_body_reads_the_error() {
    let gateway = TestGateway::new(1000, 10);
    for (headers, code, reason) in [
        ("", "413", "the request has 60000000 bytes, and `limits.body` is 1000B"),
        ("|Transfer-Encoding: chunked", "413", "the request is larger than `limits.body`, 1000B"),
        ("|Content-Encoding: br", "415", "`Content-Encoding` is not supported"),
    ] {
        let is_chunked = headers.contains("chunked");
        let length = if is_chunked { String::new() } else { "|Content-Length: 60000000".to_owned() };
        let head = format!("POST /mcp HTTP/1.1|Content-Type: application/json{length}{headers}");
        let start = if is_chunked { "3938700\r\n" } else { "" };
        let mut client = gateway.send(&head, start).await;
        for _ in 0..60 {
            client.0.write_all(&[b'x'; 1_000_000]).await.expect(headers);
        }
        let answer = client.read_to_end().await;
        assert_eq!(status(&answer), code, "{answer}");
        assert!(answer.contains(reason), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn client_that_expects_100_continue_gets_it() {
    let gateway = TestGateway::new(1000, 10);
    let mut client = gateway.post(INITIALIZE.len(), "|Expect: 100-continue", "").await;
    let interim = client.read_head().await;
    assert_eq!(status(&interim), "100", "{interim}");
    client.0.write_all(INITIALIZE.as_bytes()).await.unwrap();
    let head = client.read_head().await;
    assert_eq!(status(&head), "200", "{head}");
}

#[tokio::test(start_paused = true)]
async fn request_of_a_caller_that_lost_access_while_sending_is_refused() {
    let gateway = TestGateway::new(1000, 10);
    let mut client = gateway.post(INITIALIZE.len(), "|Expect: 100-continue", "").await;
    assert_eq!(status(&client.read_head().await), "100", "the caller is authenticated");
    let next = callers("[callers.one]\ntoken = 'first'");
    gateway.state.callers.replace(next, || {}).wait().await.unwrap();
    client.0.write_all(INITIALIZE.as_bytes()).await.unwrap();
    assert_eq!(status(&client.read_head().await), "401");
}

#[tokio::test(start_paused = true)]
async fn request_of_a_caller_whose_rights_changed_while_sending_is_served() {
    let gateway = TestGateway::new(1000, 10);
    let declared = "[callers.one]\ntoken = 'first'\n";
    gateway.state.callers.replace(callers(declared), || {}).wait().await.unwrap();
    let headers = "|Authorization: Bearer first|Expect: 100-continue";
    let mut client = gateway.post(INITIALIZE.len(), headers, "").await;
    assert_eq!(status(&client.read_head().await), "100", "the caller is authenticated");
    let changed = callers(&format!("{declared}admin = true\n"));
    gateway.state.callers.replace(changed, || {}).wait().await.unwrap();
    client.0.write_all(INITIALIZE.as_bytes()).await.unwrap();
    assert_eq!(status(&client.read_head().await), "200");
}

#[tokio::test(start_paused = true)]
async fn unknown_server_and_profile_have_one_wording() {
    let gateway = TestGateway::new(1000, 10);
    for (path, message) in
        [("/mcp/s/gti", "no server is called `gti`"), ("/mcp/p/wrok", "no profile is called `wrok`")]
    {
        let response = gateway.send(&format!("GET {path} HTTP/1.1|Connection: close"), "").await;
        let response = response.read_to_end().await;
        assert!(status(&response) == "404" && response.contains(message), "{response}");
    }
}

#[tokio::test(start_paused = true)]
async fn path_with_a_slash_at_its_end_leads_to_the_same_endpoint() {
    let tools = Toolbox::new();
    let house = ServerSpec::in_process("house".parse().unwrap(), tools);
    let gateway = TestGateway::with_crib(Crib::builder().server(house).build().unwrap(), 1000, 10);
    for path in ["/mcp/", "/mcp/s/house/", "/mcp/?key=1"] {
        let length = INITIALIZE.len();
        let head = format!("POST {path} HTTP/1.1|Content-Type: application/json|Content-Length: {length}");
        let head = gateway.send(&head, INITIALIZE).await.read_head().await;
        assert_eq!(status(&head), "200", "{path}: {head}");
        assert_eq!(gateway.ping(&session_id(&head)).await == "200", !path.contains("house"), "{path}");
    }
    for path in ["/mcp/s/gti/", "/mcp//", "/mcp/p/work/"] {
        let head = gateway.send(&format!("GET {path} HTTP/1.1"), "").await.read_head().await;
        assert_eq!(status(&head), "404", "{path}: {head}");
    }
}

#[tokio::test(start_paused = true)]
async fn configured_web_page_may_send_requests_and_read_responses() {
    const PAGE: &str = "http://localhost:6274";
    let gateway = TestGateway::new(1000, 10);
    let state = Arc::into_inner(gateway.state).unwrap().with_hosts(Vec::new(), vec![PAGE.to_owned()]);
    let gateway = TestGateway { state: Arc::new(state), ..gateway };
    let page = format!("|Origin: {PAGE}|Sec-Fetch-Site: same-site");
    let head = format!(
        "OPTIONS /mcp HTTP/1.1{page}|Access-Control-Request-Method: POST|Access-Control-Request-Headers: content-type,mcp-session-id"
    );
    let preflight = gateway.send(&head, "").await.read_head().await;
    assert_eq!(status(&preflight), "204", "{preflight}");
    let allowed = ["allow-headers: content-type,mcp-session-id", "allow-methods: GET, POST, DELETE"];
    for allowed in allowed.into_iter().chain(["allow-origin: http://localhost:6274"]) {
        assert!(preflight.contains(&format!("access-control-{allowed}\r\n")), "{preflight}");
    }
    let head = gateway.post(INITIALIZE.len(), &page, INITIALIZE).await.read_head().await;
    assert_eq!(status(&head), "200", "{head}");
    for header in ["allow-origin: http://localhost:6274", "expose-headers: Mcp-Session-Id"] {
        assert!(head.contains(&format!("access-control-{header}")), "{head}");
    }
    let head = gateway.post(INITIALIZE.len(), "", INITIALIZE).await.read_head().await;
    assert!(status(&head) == "200" && !head.contains("access-control"), "{head}");
    for path in ["/", "/api/v1/status", "/metrics", "/mcpx"] {
        let refused = gateway.send(&format!("GET {path} HTTP/1.1{page}"), "").await.read_head().await;
        assert!(status(&refused) == "403" && !refused.contains("access-control"), "{path}: {refused}");
    }
    let other = "|Origin: http://localhost:6275|Sec-Fetch-Site: same-site";
    assert_eq!(status(&gateway.post(INITIALIZE.len(), other, INITIALIZE).await.read_head().await), "403");
}

#[tokio::test(start_paused = true)]
async fn stateless_notification_needs_no_revision_header() {
    let gateway = TestGateway::new(1000, 10);
    let meta = r#"{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#;
    for (params, expected) in
        [(format!(r#"{{"requestId":7,"_meta":{meta}}}"#), "202"), (r#"{"requestId":7}"#.to_owned(), "400")]
    {
        let body = format!(r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params}}}"#);
        let head = gateway.post(body.len(), "", &body).await.read_head().await;
        assert_eq!(status(&head), expected, "{params}: {head}");
    }
}

#[tokio::test(start_paused = true)]
async fn incomplete_body_times_out() {
    let gateway = TestGateway::new(1000, 10);
    let before = Instant::now();
    let mut client = gateway.post(INITIALIZE.len(), "", &INITIALIZE[..10]).await;
    let head = client.read_head().await;
    assert_eq!((status(&head).as_str(), before.elapsed().as_secs()), ("408", 30), "{head}");
}

#[tokio::test(start_paused = true)]
async fn notification_stream_ends_with_its_session() {
    let gateway = TestGateway::new(1000, 10);
    let deleted = gateway.open_session().await;
    let other = gateway.open_session().await;
    let mut stream = gateway.send_bodyless("GET", &deleted).await;
    let mut other_stream = gateway.send_bodyless("GET", &other).await;
    for stream in [&mut stream, &mut other_stream] {
        assert_eq!(status(&stream.read_head().await), "200");
    }
    assert_eq!(status(&gateway.send_bodyless("DELETE", &deleted).await.read_head().await), "204");
    let ended = timeout(TOO_LONG, stream.0.read_u32()).await.expect("an end of the stream").unwrap();
    assert_eq!(ended, u32::from_be_bytes(*b"0\r\n\r"), "only the last chunk");
    let mut alive = [0; 9];
    timeout(TOO_LONG, other_stream.0.read_exact(&mut alive)).await.expect("a keep-alive comment").unwrap();
    assert_eq!(&alive, b"4\r\n: \n\n\r\n", "the stream of another session continues");
    assert_eq!((gateway.ping(&deleted).await, gateway.ping(&other).await), ("404".into(), "200".into()));
}

#[tokio::test(start_paused = true)]
async fn session_with_an_open_stream_is_not_replaced() {
    let gateway = TestGateway::new(1000, 2);
    let listening = gateway.open_session().await;
    let mut stream = gateway.send_bodyless("GET", &listening).await;
    assert_eq!(status(&stream.read_head().await), "200");
    let mut last = String::new();
    for _ in 0..4 {
        tokio::time::advance(Duration::from_secs(1)).await;
        last = gateway.open_session().await;
    }
    assert_eq!((gateway.ping(&listening).await, gateway.ping(&last).await), ("200".into(), "200".into()));
    let mut second_stream = gateway.send_bodyless("GET", &last).await;
    assert_eq!(status(&second_stream.read_head().await), "200");
    let refused = gateway.post(INITIALIZE.len(), "", INITIALIZE).await.read_head().await;
    assert_eq!(status(&refused), "503", "all sessions have open streams: {refused}");
}

/// An observer that traces every call and keeps its spans.
#[derive(Default)]
struct Tracer(Mutex<Vec<CallSpans>>);

impl Observer for Tracer {
    fn traces_calls(&self) -> bool {
        true
    }

    fn start_spans(&self, parent: Option<TraceContext>) -> Option<CallSpans> {
        Some(CallSpans::new(7, parent, 8))
    }

    fn call_ended(&self, record: &CallRecord) {
        self.0.lock().unwrap().extend(record.spans.as_deref().cloned());
    }
}

#[tokio::test]
async fn spans_of_a_call_have_the_transport_and_session_of_its_client() {
    let schema = serde_json::json!({"type": "object"});
    let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
    let tracer = Arc::new(Tracer::default());
    let house = ServerSpec::in_process("house".parse().unwrap(), tools);
    let crib = Crib::builder().server(house).observer(tracer.clone()).build().unwrap();
    let gateway = TestGateway::with_crib(crib, 1 << 20, 8);
    let session = gateway.open_session().await;
    let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"greet"}}"#;
    let headers = format!("|Mcp-Session-Id: {session}");
    assert_eq!(status(&gateway.post(call.len(), &headers, call).await.read_head().await), "200");
    let spans = tracer.0.lock().unwrap().remove(0);
    assert_eq!(spans.client_transport, Some(NetworkTransport::Tcp));
    assert_eq!(spans.session.as_deref(), Some(&*session));
}
