//! Tests of what a stream keeps, for how long, and for which reader.

use std::future::poll_fn;

use super::*;

fn id() -> RequestId {
    RequestId::parse(Bytes::from_static(b"1")).unwrap()
}

fn result(text: &'static str) -> ResponsePayload {
    ResponsePayload::Result(Bytes::from_static(text.as_bytes()))
}

async fn next(reader: &mut EventLogReader) -> Option<String> {
    let event = poll_fn(|context| Pin::new(&mut *reader).poll_next(context)).await?;
    Some(String::from_utf8(event).unwrap())
}

#[tokio::test]
async fn response_without_updates_is_complete() {
    let log = ReplayStreams::default().new_log(None);
    log.finish(&id(), result("{}"), Instant::now());
    assert!(matches!(log.wait_for_start(true, |_| ()).await, ResponseStart::Complete(_)));
    let dropped = ReplayStreams::default().new_log(None);
    dropped.close();
    assert!(matches!(dropped.wait_for_start(true, |_| ()).await, ResponseStart::Cancelled));
}

#[tokio::test]
async fn stream_is_resumed_after_an_event() {
    let streams = ReplayStreams::default();
    let log = streams.new_log(None);
    log.try_send(b"a".to_vec());
    assert!(matches!(log.wait_for_start(true, |_| ()).await, ResponseStart::Stream));
    streams.keep(log.clone());
    let mut first = EventLogReader::from_start(log.clone(), true);
    assert_eq!(next(&mut first).await.unwrap(), "id: 1-0\nretry: 1000\ndata: \n\n");
    assert_eq!(next(&mut first).await.unwrap(), "id: 1-1\ndata: a\n\n");
    let mut second = streams.resume_after("1-0").unwrap();
    assert_eq!(next(&mut first).await, None, "a newer reader ends an older one");
    log.finish(&id(), result("{}"), Instant::now());
    assert_eq!(next(&mut second).await.unwrap(), "id: 1-1\ndata: a\n\n");
    assert!(next(&mut second).await.unwrap().starts_with("id: 1-2\ndata: {\"jsonrpc\""));
    assert_eq!(next(&mut second).await, None);
    for unknown in ["2-0", "1", "x-y", ""] {
        assert!(streams.resume_after(unknown).is_none(), "{unknown}");
    }
}

#[tokio::test]
async fn kept_messages_are_bounded() {
    let streams = ReplayStreams::default();
    let log = streams.new_log(None);
    for number in 0..MAX_EVENTS + 10 {
        log.try_send(number.to_string().into_bytes());
    }
    let mut reader = EventLogReader::from_start(log.clone(), false);
    assert_eq!(next(&mut reader).await.unwrap(), "id: 1-11\ndata: 10\n\n");
    log.try_send(vec![b'x'; MAX_BYTES + 1]);
    assert!(next(&mut reader).await.unwrap().len() > MAX_BYTES, "a client that reads gets every message");
    assert_eq!(log.state().bytes, 0, "a large message is not kept");
    drop(reader);
    assert!(!log.try_send(vec![b'x'; MAX_BYTES + 1]), "no client reads it");
    for _ in 0..MAX_STREAMS + 5 {
        streams.keep(streams.new_log(None));
    }
    assert_eq!(streams.kept().len(), MAX_STREAMS);
}

#[tokio::test]
async fn unread_question_is_kept() {
    let streams = ReplayStreams::default();
    let log = streams.new_log(None);
    log.try_send(b"early".to_vec());
    assert!(log.try_send_question(b"question".to_vec()));
    let accepted = (0..2 * MAX_EVENTS).filter(|_| log.try_send(b"progress".to_vec())).count();
    assert_eq!(accepted, MAX_EVENTS - 1, "messages that do not fit beside the question are dropped");
    assert!(!log.try_send(vec![b'x'; MAX_BYTES]));
    log.finish(&id(), result("{}"), Instant::now());
    streams.keep(log.clone());
    let mut reader = EventLogReader::from_start(log, false);
    assert_eq!(next(&mut reader).await.unwrap(), "id: 1-2\ndata: question\n\n");
    let mut last = String::new();
    while let Some(event) = next(&mut reader).await {
        last = event;
    }
    assert!(last.contains("jsonrpc"), "the response always fits: {last}");
}

#[tokio::test]
async fn read_question_is_dropped_for_new_messages() {
    let streams = ReplayStreams::default();
    let log = streams.new_log(None);
    log.try_send_question(b"question".to_vec());
    let mut reader = EventLogReader::from_start(log.clone(), false);
    assert!(next(&mut reader).await.unwrap().ends_with("data: question\n\n"));
    assert!((0..2 * MAX_EVENTS).all(|_| log.try_send(b"progress".to_vec())));
    assert_eq!(log.state().messages.len(), MAX_EVENTS);
}

#[tokio::test]
async fn stream_with_a_gap_is_not_resumed() {
    let streams = ReplayStreams::default();
    let log = streams.new_log(None);
    streams.keep(log.clone());
    (0..MAX_EVENTS + 10).for_each(|_| assert!(log.try_send(b"progress".to_vec())));
    assert!(streams.resume_after("1-0").is_none() && streams.resume_after("1-9").is_none());
    let mut reader = streams.resume_after("1-10").unwrap();
    assert!(next(&mut reader).await.unwrap().starts_with("id: 1-11\n"));
}

#[test]
fn log_may_grow_while_streams_are_kept() {
    let streams = ReplayStreams::default();
    let logs: Vec<_> = (0..2000).map(|_| streams.new_log(None)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| logs.iter().for_each(|log| assert!(log.try_send(b"a".to_vec()))));
        logs.iter().for_each(|log| streams.keep(log.clone()));
    });
    assert_eq!(streams.kept().len(), MAX_STREAMS);
}

#[tokio::test(start_paused = true)]
async fn ended_stream_is_removed_after_its_retention() {
    let streams = ReplayStreams::default();
    let ended = streams.new_log(None);
    ended.close();
    streams.keep(ended);
    streams.keep(streams.new_log(None));
    streams.remove_expired(Instant::now());
    assert_eq!(streams.kept().len(), 2);
    streams.remove_expired(Instant::now() + RETENTION);
    assert!(streams.kept().len() == 1 && !streams.is_empty());
}

/// Returns a response of this size.
fn large_result(size: usize) -> ResponsePayload {
    ResponsePayload::Result(Bytes::from(format!("\"{}\"", "x".repeat(size))))
}

#[tokio::test]
async fn large_response_is_not_kept_for_a_client_that_left() {
    let streams = ReplayStreams::default();
    let log = streams.new_log(None);
    assert!(log.try_send(b"a".to_vec()));
    streams.keep(log.clone());
    drop(EventLogReader::from_start(log.clone(), false));
    log.finish(&id(), large_result(2 * MAX_BYTES), Instant::now());
    assert!(log.state().bytes < 1000);
    let mut reader = streams.resume_after("1-1").unwrap();
    let response = next(&mut reader).await.unwrap();
    assert!(response.starts_with("id: 1-2\n") && response.contains("-31020"), "{response}");
    assert!(response.contains(r#""sent":"maybe""#), "{response}");
    assert_eq!(next(&mut reader).await, None);
}

#[tokio::test]
async fn large_response_is_passed_to_a_client_that_reads_and_not_kept() {
    let streams = ReplayStreams::default();
    let log = streams.new_log(None);
    assert!(log.try_send(b"a".to_vec()));
    streams.keep(log.clone());
    let mut reader = EventLogReader::from_start(log.clone(), false);
    log.finish(&id(), large_result(2 * MAX_BYTES), Instant::now());
    assert_eq!(next(&mut reader).await.unwrap(), "id: 1-1\ndata: a\n\n");
    assert!(next(&mut reader).await.unwrap().len() > 2 * MAX_BYTES);
    assert_eq!(next(&mut reader).await, None);
    drop(reader);
    let mut resumed = streams.resume_after("1-1").unwrap();
    assert!(
        next(&mut resumed).await.unwrap().contains("-31020"),
        "the connection was lost while it was sent"
    );
}

#[tokio::test]
async fn session_is_bounded_when_streams_end() {
    let streams = ReplayStreams::default();
    let logs: Vec<_> = (0..MAX_STREAMS).map(|_| streams.new_log(None)).collect();
    for log in &logs {
        assert!(log.try_send(b"a".to_vec()));
        streams.keep(log.clone());
        drop(EventLogReader::from_start(log.clone(), false));
    }
    for log in &logs {
        log.finish(&id(), large_result(MAX_BYTES - 100), Instant::now());
        streams.remove_excess();
    }
    let bytes: usize = streams.kept().iter().map(|log| log.state().bytes).sum();
    assert!(bytes <= MAX_SESSION_BYTES && bytes > MAX_SESSION_BYTES / 2, "{bytes}");
}

#[tokio::test]
async fn kept_messages_count_towards_the_memory_of_clients() {
    let access = crate::callers::AuthenticatedCaller::trusted(toolcrib::Caller::new("a"), false);
    let total = Arc::new(crate::client_memory::ClientMemory::new(160_000));
    let account = MemoryAccount { total, caller: access.memory };
    let streams = ReplayStreams::new(Some(Arc::new(account.clone())));
    let logs = [(); 3].map(|()| streams.new_log(None));
    assert!(logs[0].try_send(vec![b'x'; 60_000]));
    assert!(!logs[1].try_send(vec![b'x'; 60_000]), "the caller leaves as much as it uses");
    logs[1].finish(&id(), large_result(60_000), Instant::now());
    let mut reader = EventLogReader::from_start(logs[1].clone(), false);
    let response = next(&mut reader).await.unwrap();
    assert!(response.contains("limits.client-memory") && response.contains("-31020"), "{response}");
    drop(reader);
    drop(logs);
    assert!(account.claim(70_000).is_some(), "everything is released");
}
