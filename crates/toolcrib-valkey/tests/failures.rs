//! A store whose server is gone, comes back, or cannot be used.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::time::Duration;

use test_support::store_server::StoreServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};
use toolcrib::store::{Store, StoreKey, StoreKind, StoreNotice, StoreReply};
use toolcrib_valkey::{StateWatch, StoreState, ValkeyOptions, ValkeyStore};

const LIMIT: Duration = Duration::from_secs(20);

fn connect(url: &str) -> ValkeyStore {
    ValkeyStore::connect(url.parse().unwrap(), ValkeyOptions::default()).unwrap()
}

fn session(name: &str) -> StoreKey<'_> {
    StoreKey::new(StoreKind::Session, name)
}

async fn next_state(states: &mut StateWatch) -> StoreState {
    timeout(LIMIT, states.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn store_recovers_when_its_server_comes_back() {
    let Some(mut server) = StoreServer::start(&[]) else { return };
    let store = connect(&format!("redis://{}", server.address()));
    let mut states = store.watch_state();
    assert_eq!(next_state(&mut states).await, StoreState::Up);
    let mut notices = store.watch(StoreKind::Pin);
    server.kill();
    assert!(matches!(next_state(&mut states).await, StoreState::Down(_)));
    let error = store.get(session("a")).wait().await.unwrap_err().to_string();
    assert!(error.contains(&server.address()), "{error}");
    let started = Instant::now();
    store.put(session("a"), "1".into(), None).wait().await.unwrap_err();
    assert!(started.elapsed() < Duration::from_millis(400), "fails without waiting");
    server.restart();
    assert_eq!(next_state(&mut states).await, StoreState::Up);
    assert_eq!(timeout(LIMIT, notices.recv()).await.unwrap().unwrap(), StoreNotice::Missed);
    store.put(session("a"), "1".into(), None).wait().await.unwrap();
    assert_eq!(store.get(session("a")).wait().await.unwrap().as_deref(), Some(&b"1"[..]));
    let status = store.status();
    assert!(status.state == StoreState::Up && status.failures >= 2 && status.operations >= 2, "{status:?}");
}

#[tokio::test]
async fn frozen_server_is_noticed_and_left_when_it_answers_again() {
    let Some(server) = StoreServer::start(&[]) else { return };
    let store = connect(&format!("valkey://{}", server.address()));
    let mut states = store.watch_state();
    assert_eq!(next_state(&mut states).await, StoreState::Up);
    server.pause();
    let started = Instant::now();
    let error = store.get(session("a")).wait().await.unwrap_err().to_string();
    assert!(error.contains("did not answer within 500 ms"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5), "bounded");
    assert!(matches!(next_state(&mut states).await, StoreState::Down(_)));
    server.resume();
    assert_eq!(next_state(&mut states).await, StoreState::Up);
    assert_eq!(store.get(session("a")).wait().await.unwrap(), None);
}

#[tokio::test]
async fn scripts_that_the_server_has_lost_are_loaded_again() {
    let Some(server) = StoreServer::start(&[]) else { return };
    let store = connect(&format!("valkey://{}", server.address()));
    store.put(session("a"), "1".into(), None).wait().await.unwrap();
    let mut notices = store.watch(StoreKind::Session);
    let mut other = TcpStream::connect(server.address()).await.unwrap();
    other.write_all(b"SCRIPT FLUSH\r\n").await.unwrap();
    assert_eq!(other.read_u8().await.unwrap(), b'+');
    let changed = store.put(session("a"), "2".into(), None);
    let published = store.publish(session("a"));
    changed.wait().await.unwrap();
    published.wait().await.unwrap();
    assert_eq!(timeout(LIMIT, notices.recv()).await.unwrap().unwrap(), StoreNotice::Changed("a".into()));
    assert_eq!(store.take(session("a")).wait().await.unwrap().as_deref(), Some(&b"2"[..]));
    let status = store.status();
    assert!(status.state == StoreState::Up && status.failures == 0, "{status:?}");
}

#[tokio::test]
async fn operations_that_wait_are_bounded_in_bytes() {
    let Some(server) = StoreServer::start(&[]) else { return };
    let store = connect(&format!("valkey://{}", server.address()));
    store.get(session("a")).wait().await.unwrap();
    server.pause();
    let large = bytes::Bytes::from(vec![b'x'; 16 << 20]);
    let waiting: Vec<_> = (0..3).map(|_| store.put(session("a"), large.clone(), None)).collect();
    assert!(waiting.iter().all(|reply| matches!(reply, StoreReply::Pending(_))));
    let error = store.put(session("a"), large, None).wait().await.unwrap_err().to_string();
    assert!(error.contains("bytes, wait for the store"), "{error}");
    assert!(matches!(store.get(session("a")), StoreReply::Pending(_)), "small ones are accepted");
    server.resume();
}

#[tokio::test]
async fn server_that_cannot_be_used_is_explained() {
    let Some(server) = StoreServer::start(&["--requirepass", "right"]) else { return };
    let address = server.address();
    let Some(replica) = StoreServer::start(&["--replicaof", "127.0.0.1 1"]) else { return };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let foreign = listener.local_addr().unwrap();
    let reply = async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    };
    let cases = [
        (format!("valkey://:wrong@{address}"), "wrong user or password"),
        (format!("valkey://{address}"), "requires a password"),
        (format!("valkey://:right@{address}/99"), "`SELECT` failed"),
        (format!("valkey://{}", replica.address()), "it is a replica"),
        (format!("valkey://{foreign}"), "not a reply of Valkey or Redis"),
        (format!("valkeys://:right@{address}"), "cannot connect"),
        ("valkey://127.0.0.1:1".to_owned(), "Connection refused"),
    ];
    let check = async {
        for (url, expected) in cases {
            let store = connect(&url);
            let state = next_state(&mut store.watch_state()).await;
            let StoreState::Down(reason) = state else { panic!("{url}: connected") };
            assert!(reason.contains(expected) && !reason.contains("wrong@"), "{url}: {reason}");
        }
    };
    tokio::select! {
        () = check => {}
        () = reply => panic!("the listener failed"),
    }
    let store = connect(&format!("valkey://:right@{address}/3"));
    store.put(session("a"), "1".into(), None).wait().await.unwrap();
}

#[tokio::test]
async fn foreign_keys_and_oversized_values_are_refused() {
    let Some(server) = StoreServer::start(&[]) else { return };
    let store = connect(&format!("valkey://{}", server.address()));
    let large = vec![b'x'; 100 << 20];
    let error = store.put(session("large"), large.into(), None).wait().await.unwrap_err().to_string();
    assert!(error.contains("104857600 bytes is too large"), "{error}");
    // A key that another program has set to something else.
    let mut other = TcpStream::connect(server.address()).await.unwrap();
    other.write_all(b"LPUSH toolcrib:{session}:session:b x\r\n").await.unwrap();
    assert_eq!(other.read_u8().await.unwrap(), b':');
    let error = store.get(session("b")).wait().await.unwrap_err().to_string();
    assert!(error.contains("another `store.prefix`"), "{error}");
    let error = store.take(session("b")).wait().await.unwrap_err().to_string();
    assert!(error.contains("another `store.prefix`"), "{error}");
    assert_eq!(store.status().state, StoreState::Up);
}
