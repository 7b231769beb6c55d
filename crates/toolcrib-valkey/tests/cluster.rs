//! A cluster with a node that accepts connections and never answers.

#![expect(clippy::unwrap_used, reason = "a failed test panics")]

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use toolcrib::store::{Store, StoreKey, StoreKind};
use toolcrib_valkey::{StoreState, ValkeyOptions, ValkeyStore};

/// Reads a command and returns its words.
async fn read_command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|length| *length > 0)?;
    let count: usize = line[1..].trim().parse().unwrap();
    let mut words = Vec::new();
    for _ in 0..count {
        line.clear();
        stream.read_line(&mut line).await.ok()?;
        let mut word = vec![0; line[1..].trim().parse::<usize>().unwrap() + 2];
        stream.read_exact(&mut word).await.ok()?;
        words.push(String::from_utf8_lossy(&word[..word.len() - 2]).into_owned());
    }
    Some(words)
}

/// Answers like a node that has all values but sessions, which another node has.
async fn serve(stream: TcpStream, other: String) {
    let mut stream = BufReader::new(stream);
    while let Some(words) = read_command(&mut stream).await {
        let reply = match words[0].as_str() {
            "hello" => "%1\r\n+role\r\n+master\r\n".to_owned(),
            "SCRIPT" => format!("${}\r\n{}\r\n", 40, "0".repeat(40)),
            "SUBSCRIBE" => ">3\r\n+subscribe\r\n+x\r\n:1\r\n".to_owned(),
            "GET" if words[1].contains("{session}") => format!("-MOVED 1 {other}\r\n"),
            "GET" => "_\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        };
        if stream.get_mut().write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn silent_node_fails_its_own_operations_only() {
    let main = TcpListener::bind("127.0.0.1:0").await.unwrap();
    // The system accepts connections, but nothing reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = main.local_addr().unwrap();
    let other = silent.local_addr().unwrap().to_string();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = main.accept().await {
            connections.spawn(serve(stream, other.clone()));
        }
    });
    let mut options = ValkeyOptions::default();
    options.operation_timeout = Duration::from_secs(1);
    let url = format!("valkey-cluster://{address}").parse().unwrap();
    let store = ValkeyStore::connect(url, options).unwrap();
    let pin = StoreKey::new(StoreKind::Pin, "a");
    store.get(pin).wait().await.unwrap();
    let mut states = store.watch_state();
    assert_eq!(states.next().await, Some(StoreState::Up));
    let session = store.get(StoreKey::new(StoreKind::Session, "a"));
    let together = store.get(pin);
    let error = session.wait().await.unwrap_err().to_string();
    assert!(error.contains("does not answer"), "{error}");
    assert_eq!(together.wait().await.unwrap(), None, "sent together with the one that failed");
    let error = store.get(StoreKey::new(StoreKind::Session, "a")).wait().await.unwrap_err().to_string();
    assert!(error.contains("failed a moment ago"), "{error}");
    assert_eq!(store.get(pin).wait().await.unwrap(), None);
    assert_eq!(store.status().state, StoreState::Up);
}
