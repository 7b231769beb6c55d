//! Connections whose clients say nothing for a while, before, within and between requests.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::sleep;
use toolcrib::{ServerSpec, Toolbox};

use super::*;

fn ping(session: &str) -> String {
    let length = PING.len();
    let head = format!(
        "POST /mcp HTTP/1.1|Host: localhost|Content-Type: application/json|Accept: application/json, text/event-stream|\
         Mcp-Session-Id: {session}|Content-Length: {length}||"
    );
    head.replace('|', "\r\n") + PING
}

async fn answered(client: &mut Client) {
    let head = client.head().await;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    client.0.read_exact(&mut body).await.unwrap();
    assert_eq!(status(&head), "200", "{head}");
}

/// A connection on which a session was opened.
async fn connected(house: &House) -> (Client, String) {
    let session = house.session().await;
    let mut client = house.post(PING.len(), &format!("|Mcp-Session-Id: {session}"), PING).await;
    answered(&mut client).await;
    (client, session)
}

/// Seconds until the gateway closes the connection.
async fn closed(client: Client, before: Instant) -> u64 {
    assert_eq!(client.rest().await, "");
    before.elapsed().as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pauses_between_requests_goes_on_as_if_it_had_not() {
    let house = House::new(1000, 10);
    let (mut client, session) = connected(&house).await;
    for pause in [0, 50, 500, 290_000] {
        sleep(Duration::from_millis(pause)).await;
        client.0.write_all(ping(&session).as_bytes()).await.unwrap();
        answered(&mut client).await;
    }
    let twice = ping(&session) + &ping(&session);
    sleep(Duration::from_secs(60)).await;
    client.0.write_all(twice.as_bytes()).await.unwrap();
    answered(&mut client).await;
    answered(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_comes_in_pieces_is_put_together_whenever_they_come() {
    let house = House::new(1000, 10);
    let (mut client, session) = connected(&house).await;
    let thrice = ping(&session).repeat(3);
    for pieces in [3, 7, 11] {
        // A piece may end one request and begin the next.
        for piece in thrice.as_bytes().chunks(thrice.len() / pieces + 1) {
            client.0.write_all(piece).await.unwrap();
            sleep(Duration::from_millis(900)).await;
        }
        for _ in 0..3 {
            answered(&mut client).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_says_nothing_more_is_left_after_five_minutes() {
    let house = House::new(1000, 10);
    let ((client, _), before) = (connected(&house).await, Instant::now());
    assert_eq!(closed(client, before).await, 300);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_half_a_head_is_left_after_ten_seconds_however_long_it_was_silent_before() {
    let house = House::new(1000, 10);
    for pause in [0, 100] {
        let (mut client, _) = connected(&house).await;
        sleep(Duration::from_secs(pause)).await;
        let before = Instant::now();
        client.0.write_all(b"POST /mcp HTTP/1.1\r\nHost: loc").await.unwrap();
        assert_eq!(closed(client, before).await, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_whose_head_trickles_in_is_left_after_ten_seconds() {
    let house = House::new(1000, 10);
    let (client, _) = connected(&house).await;
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
async fn an_answer_that_waits_to_be_taken_is_not_lost() {
    let schema = serde_json::json!({"type": "object"});
    let tools = Toolbox::new().tool("large", "Says much", &schema, |_| async { Ok("x".repeat(4 << 20)) });
    let spec = ServerSpec::in_process("house".parse().unwrap(), tools);
    let house = House::with(Crib::builder().server(spec).build().unwrap(), 10_000, 10);
    let (mut client, session) = connected(&house).await;
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"large","arguments":{}}}"#;
    let asked = ping(&session)
        .replace(&format!("Content-Length: {}", PING.len()), &format!("Content-Length: {}", call.len()));
    client.0.write_all(asked.replace(PING, call).as_bytes()).await.unwrap();
    sleep(Duration::from_secs(20)).await;
    answered(&mut client).await;
    client.0.write_all(ping(&session).as_bytes()).await.unwrap();
    answered(&mut client).await;
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_stops_leaves_a_client_that_says_nothing_at_once() {
    let house = House::new(1000, 10);
    let (client, _) = connected(&house).await;
    sleep(Duration::from_secs(60)).await;
    let before = Instant::now();
    house.stop.cancel();
    assert_eq!(closed(client, before).await, 0);
}

#[tokio::test]
async fn a_connection_takes_little_room_while_its_client_says_nothing() {
    let house = House::new(1000, 10);
    let (_, theirs) = tokio::io::duplex(1);
    let room = size_of_val(&http::serve(theirs, house.desk, Door::Tcp, house.stop));
    assert!(room < 1 << 10, "{room}");
}

/// A connection that knows how much room it was last read into.
struct Watched(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.1.store(buffer.remaining(), Ordering::Relaxed);
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_keeps_its_buffers_from_request_to_request_and_not_through_a_pause() {
    let (house, room) = (House::new(1000, 10), Arc::<AtomicUsize>::default());
    let session = house.session().await;
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let served =
        http::serve(Watched(theirs, room.clone()), house.desk.clone(), Door::Tcp, house.stop.clone());
    house.tasks.spawn(served);
    let mut client = Client(ours);
    for _ in 0..3 {
        client.0.write_all(ping(&session).as_bytes()).await.unwrap();
        answered(&mut client).await;
        sleep(Duration::from_millis(50)).await;
        assert!(room.load(Ordering::Relaxed) >= 4 << 10, "{room:?}");
    }
    sleep(Duration::from_millis(500)).await;
    assert!(room.load(Ordering::Relaxed) <= 1 << 10, "{room:?}");
}
