//! HTTP to the letter, on a paused clock: bodies that are too large or never come, and the streams of sessions.

mod pauses;
mod slow;

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::Crib;
use toolcrib::config::HostLimits;

use super::admin::Admin;
use super::callers::Callers;
use super::{Desk, Door, http};
use crate::advice::Advice;
use crate::audit::Audit;
use crate::place::Place;
use crate::secrets::Keeper;
use crate::sources::Sources;

/// Longer than anything here may take, on a clock that runs ahead when nobody has anything to do.
const TOO_LONG: Duration = Duration::from_secs(600);

const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
const PING: &str = r#"{"jsonrpc":"2.0","id":2,"method":"ping"}"#;

/// A gateway without a network.
struct House {
    desk: Arc<Desk>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl House {
    fn new(body: usize, sessions: usize) -> Self {
        Self::with(Crib::builder().build().unwrap(), body, sessions)
    }

    fn with(crib: Crib, body: usize, sessions: usize) -> Self {
        let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
        let sources = Sources::alone(file.path());
        let (config, stamp) = sources.load_whole();
        let keeper = Keeper::new(&Place::below(std::path::Path::new("/nowhere")), &config.secrets);
        let callers = Callers::of(&config, &keeper).unwrap();
        let audit = Arc::new(Audit::new(None).unwrap());
        let admin = Admin::new(crib.clone(), &config, (sources, stamp), (callers, audit, keeper), false);
        let limits = HostLimits { body, sessions, ..HostLimits::default() };
        let desk = Arc::new(Desk::new(crib, admin, &limits, Vec::new(), Advice::default()));
        Self { desk, tasks: TaskTracker::new(), stop: CancellationToken::new() }
    }

    /// A new connection on which this was sent; `|` ends a line of the head.
    async fn send(&self, head: &str, body: &str) -> Client {
        let (mut ours, theirs) = tokio::io::duplex(1 << 20);
        let served = http::serve(theirs, self.desk.clone(), Door::Tcp, self.stop.clone());
        self.tasks.spawn(async move {
            if let Some(rest) = served.await {
                rest.await;
            }
        });
        let head = format!("{head}|Host: localhost||").replace('|', "\r\n");
        ours.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        Client(ours)
    }

    /// A POST that says that its body has this length.
    async fn post(&self, length: usize, headers: &str, body: &str) -> Client {
        let head =
            "POST /mcp HTTP/1.1|Content-Type: application/json|Accept: application/json, text/event-stream";
        self.send(&format!("{head}|Content-Length: {length}{headers}"), body).await
    }

    /// Opens a session; its id.
    async fn session(&self) -> String {
        let head = self.post(HELLO.len(), "", HELLO).await.head().await;
        let id = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        id.unwrap_or_else(|| panic!("no session in {head}")).to_owned()
    }

    /// The status of a ping in a session.
    async fn ping(&self, session: &str) -> String {
        let headers = format!("|Mcp-Session-Id: {session}");
        status(&self.post(PING.len(), &headers, PING).await.head().await)
    }

    /// A GET or DELETE in a session.
    async fn bare(&self, method: &str, session: &str) -> Client {
        let head = format!("{method} /mcp HTTP/1.1|Accept: text/event-stream|Mcp-Session-Id: {session}");
        self.send(&head, "").await
    }
}

/// The client's end of one connection.
struct Client(DuplexStream);

impl Client {
    /// The next head of an answer.
    async fn head(&mut self) -> String {
        let mut head = Vec::new();
        let read = async {
            while !head.ends_with(b"\r\n\r\n") {
                head.push(self.0.read_u8().await.unwrap());
            }
        };
        timeout(TOO_LONG, read).await.expect("an answer in time");
        String::from_utf8(head).unwrap()
    }

    /// Everything up to the end of the connection.
    async fn rest(mut self) -> String {
        let mut rest = String::new();
        timeout(TOO_LONG, self.0.read_to_string(&mut rest)).await.expect("an end in time").unwrap();
        rest
    }
}

fn status(head: &str) -> String {
    head.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_declared_too_large_is_refused_at_once_if_its_sender_waits_for_our_word() {
    let (house, before) = (House::new(1000, 10), Instant::now());
    let mut client = house.post(1001, "|Expect: 100-continue", "").await;
    let head = client.head().await;
    assert_eq!((status(&head).as_str(), before.elapsed()), ("413", Duration::ZERO), "{head}");
    assert!(head.contains("connection: close\r\n"), "{head}");
    assert!(client.rest().await.contains("a request has at most 1000 bytes"));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_declared_too_large_is_not_waited_for() {
    let (house, before) = (House::new(1000, 10), Instant::now());
    let head = house.post(1 << 40, "", "{").await.head().await;
    assert_eq!((status(&head).as_str(), before.elapsed().as_secs()), ("413", 1), "{head}");
}

#[tokio::test(start_paused = true)]
async fn a_sender_of_a_little_too_much_gets_to_read_why() {
    let (house, before) = (House::new(1000, 10), Instant::now());
    let large = "x".repeat(500_000);
    let answer = house.post(large.len(), "", &large).await.rest().await;
    assert_eq!((status(&answer).as_str(), before.elapsed()), ("413", Duration::ZERO), "{answer}");
    assert!(answer.contains("a request has at most 1000 bytes"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_sender_that_waits_for_our_word_is_told_to_go_on() {
    let house = House::new(1000, 10);
    let mut client = house.post(HELLO.len(), "|Expect: 100-continue", "").await;
    let word = client.head().await;
    assert_eq!(status(&word), "100", "{word}");
    client.0.write_all(HELLO.as_bytes()).await.unwrap();
    let head = client.head().await;
    assert_eq!(status(&head), "200", "{head}");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_arrives_whole_is_given_up() {
    let (house, before) = (House::new(1000, 10), Instant::now());
    let mut client = house.post(HELLO.len(), "", &HELLO[..10]).await;
    let head = client.head().await;
    assert_eq!((status(&head).as_str(), before.elapsed().as_secs()), ("408", 30), "{head}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_news_ends_when_its_session_is_deleted() {
    let house = House::new(1000, 10);
    let (mine, other) = (house.session().await, house.session().await);
    let (mut stream, mut others) = (house.bare("GET", &mine).await, house.bare("GET", &other).await);
    for stream in [&mut stream, &mut others] {
        assert_eq!(status(&stream.head().await), "200");
    }
    assert_eq!(status(&house.bare("DELETE", &mine).await.head().await), "204");
    let ended = timeout(TOO_LONG, stream.0.read_u32()).await.expect("an end of the stream").unwrap();
    assert_eq!(ended, u32::from_be_bytes(*b"0\r\n\r"), "a last chunk and nothing before it");
    let mut alive = [0; 9];
    timeout(TOO_LONG, others.0.read_exact(&mut alive)).await.expect("a sign of life").unwrap();
    assert_eq!(&alive, b"4\r\n: \n\n\r\n", "another session's goes on");
    assert_eq!((house.ping(&mine).await, house.ping(&other).await), ("404".into(), "200".into()));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_listens_is_not_put_out_by_new_ones() {
    let house = House::new(1000, 2);
    let listening = house.session().await;
    let mut stream = house.bare("GET", &listening).await;
    assert_eq!(status(&stream.head().await), "200");
    let mut last = String::new();
    for _ in 0..4 {
        tokio::time::advance(Duration::from_secs(1)).await;
        last = house.session().await;
    }
    assert_eq!((house.ping(&listening).await, house.ping(&last).await), ("200".into(), "200".into()));
    let mut both = house.bare("GET", &last).await;
    assert_eq!(status(&both.head().await), "200");
    let refused = house.post(HELLO.len(), "", HELLO).await.head().await;
    assert_eq!(status(&refused), "503", "everybody listens: {refused}");
}
