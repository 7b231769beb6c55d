//! Tests of connections that are idle before, within and between requests.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;
use toolcrib::{ServerSpec, Toolbox};

use super::*;
use crate::http1::MAX_LONG_PHASES;

fn ping_request(session: &str) -> String {
    let length = PING.len();
    let head = format!(
        "POST /mcp HTTP/1.1|Host: localhost|Content-Type: application/json|Accept: application/json, text/event-stream|\
         Mcp-Session-Id: {session}|Content-Length: {length}||"
    );
    head.replace('|', "\r\n") + PING
}

async fn read_response(client: &mut Client) {
    let head = client.read_head().await;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    client.0.read_exact(&mut body).await.unwrap();
    assert_eq!(status(&head), "200", "{head}");
}

/// Opens a session and a connection that has sent a ping in it.
async fn connect(gateway: &TestGateway) -> (Client, String) {
    let session = gateway.open_session().await;
    let mut client = gateway.post(PING.len(), &format!("|Mcp-Session-Id: {session}"), PING).await;
    read_response(&mut client).await;
    (client, session)
}

/// Returns the seconds until the gateway closes the connection.
async fn seconds_until_closed(client: Client, before: Instant) -> u64 {
    assert_eq!(client.read_to_end().await, "");
    before.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn requests_after_an_idle_time_are_served() {
    let gateway = TestGateway::new(1000, 10);
    let (mut client, session) = connect(&gateway).await;
    for pause in [0, 50, 500, 290_000] {
        sleep(Duration::from_millis(pause)).await;
        client.0.write_all(ping_request(&session).as_bytes()).await.unwrap();
        read_response(&mut client).await;
    }
    let twice = ping_request(&session) + &ping_request(&session);
    sleep(Duration::from_secs(60)).await;
    client.0.write_all(twice.as_bytes()).await.unwrap();
    read_response(&mut client).await;
    read_response(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn request_in_delayed_pieces_is_served() {
    let gateway = TestGateway::new(1000, 10);
    let (mut client, session) = connect(&gateway).await;
    let thrice = ping_request(&session).repeat(3);
    for pieces in [3, 7, 11] {
        // A piece may end one request and begin the next.
        for piece in thrice.as_bytes().chunks(thrice.len() / pieces + 1) {
            client.0.write_all(piece).await.unwrap();
            sleep(Duration::from_millis(900)).await;
        }
        for _ in 0..3 {
            read_response(&mut client).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connection_is_closed_after_five_minutes() {
    let gateway = TestGateway::new(1000, 10);
    let (client, _) = connect(&gateway).await;
    let before = Instant::now();
    assert_eq!(seconds_until_closed(client, before).await, 300);
}

#[tokio::test(start_paused = true)]
async fn incomplete_head_times_out_after_ten_seconds() {
    let gateway = TestGateway::new(1000, 10);
    for pause in [0, 100] {
        let (mut client, _) = connect(&gateway).await;
        sleep(Duration::from_secs(pause)).await;
        let before = Instant::now();
        client.0.write_all(b"POST /mcp HTTP/1.1\r\nHost: loc").await.unwrap();
        assert_eq!(seconds_until_closed(client, before).await, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn slow_head_times_out_after_ten_seconds() {
    let gateway = TestGateway::new(1000, 10);
    let (client, _) = connect(&gateway).await;
    let (mut reader, mut writer) = tokio::io::split(client.0);
    let before = Instant::now();
    let trickle = async {
        writer.write_all(b"GET /mcp HTTP/1.1\r\nX-Long: ").await.unwrap();
        while writer.write_all(b"a").await.is_ok() {
            sleep(Duration::from_millis(70)).await;
        }
    };
    let ended = async { reader.read(&mut [0; 10]).await.unwrap() };
    let ((), ended) = timeout(TOO_LONG, async { tokio::join!(trickle, ended) }).await.expect("an end");
    assert_eq!((ended, before.elapsed().as_secs()), (0, 10));
}

#[tokio::test(start_paused = true)]
async fn response_that_waits_for_a_slow_reader_is_not_lost() {
    let schema = serde_json::json!({"type": "object"});
    let tools =
        Toolbox::new().tool("large", "Returns much text", &schema, |_| async { Ok("x".repeat(4 << 20)) });
    let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
    let gateway = TestGateway::with_crib(Crib::builder().server(spec).build().unwrap(), 10_000, 10);
    let (mut client, session) = connect(&gateway).await;
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"large","arguments":{}}}"#;
    let request = ping_request(&session)
        .replace(&format!("Content-Length: {}", PING.len()), &format!("Content-Length: {}", call.len()));
    client.0.write_all(request.replace(PING, call).as_bytes()).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    read_response(&mut client).await;
    client.0.write_all(ping_request(&session).as_bytes()).await.unwrap();
    read_response(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn stopping_gateway_closes_idle_connections_immediately() {
    let gateway = TestGateway::new(1000, 10);
    let (client, _) = connect(&gateway).await;
    sleep(Duration::from_secs(60)).await;
    let before = Instant::now();
    gateway.stop.cancel();
    assert_eq!(seconds_until_closed(client, before).await, 0);
}

#[tokio::test]
async fn connection_future_is_small() {
    let gateway = TestGateway::new(1000, 10);
    let (_, theirs) = tokio::io::duplex(1);
    let size = size_of_val(&serve_connection(theirs, gateway.state, Entrypoint::Tcp, gateway.stop));
    assert!(size < 1 << 10, "{size}");
}

/// A connection that records the size of the last read buffer.
struct BufferProbe {
    io: DuplexStream,
    buffer_size: Arc<AtomicUsize>,
}

impl AsyncRead for BufferProbe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.buffer_size.store(buffer.remaining(), Ordering::Relaxed);
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl AsyncWrite for BufferProbe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// A client whose connection is probed.
struct ProbedClient {
    client: Client,
    session: String,
    buffer_size: Arc<AtomicUsize>,
}

impl ProbedClient {
    async fn connect(gateway: &TestGateway) -> Self {
        let session = gateway.open_session().await;
        let buffer_size = Arc::<AtomicUsize>::default();
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let probe = BufferProbe { io: theirs, buffer_size: buffer_size.clone() };
        let connection =
            serve_connection(probe, gateway.state.clone(), Entrypoint::Tcp, gateway.stop.clone());
        gateway.tasks.spawn(connection);
        Self { client: Client(ours), session, buffer_size }
    }

    async fn ping(&mut self) {
        self.client.0.write_all(ping_request(&self.session).as_bytes()).await.unwrap();
        read_response(&mut self.client).await;
    }

    fn has_buffers(&self) -> bool {
        self.buffer_size.load(Ordering::Relaxed) >= 4 << 10
    }
}

#[tokio::test(start_paused = true)]
async fn buffers_are_kept_between_requests_and_freed_when_idle() {
    let gateway = TestGateway::new(1000, 10);
    let mut client = ProbedClient::connect(&gateway).await;
    for _ in 0..3 {
        client.ping().await;
        sleep(Duration::from_millis(50)).await;
        assert!(client.has_buffers());
    }
    sleep(Duration::from_millis(500)).await;
    assert!(!client.has_buffers());
}

#[tokio::test(start_paused = true)]
async fn buffers_are_freed_sooner_while_many_connections_have_some() {
    let gateway = TestGateway::new(1000, MAX_LONG_PHASES + 100);
    let mut clients = Vec::new();
    for _ in 0..MAX_LONG_PHASES + 1 {
        clients.push(ProbedClient::connect(&gateway).await);
    }
    sleep(Duration::from_secs(1)).await;
    for client in &mut clients {
        client.ping().await;
    }
    sleep(Duration::from_millis(50)).await;
    let kept = clients.iter().filter(|client| client.has_buffers()).count();
    assert_eq!(kept, MAX_LONG_PHASES, "the last one has freed its buffers");
    sleep(Duration::from_millis(500)).await;
    assert!(!clients.iter().any(ProbedClient::has_buffers));
}
