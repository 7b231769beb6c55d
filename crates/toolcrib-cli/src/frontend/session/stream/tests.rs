//! What is kept of a stream, for how long, and who reads it.

use std::future::poll_fn;

use super::*;

fn id() -> Id {
    Id::read(Bytes::from_static(b"1")).unwrap()
}

fn result(text: &'static str) -> Answer {
    Answer::Result(Bytes::from_static(text.as_bytes()))
}

async fn next(reader: &mut Reader) -> Option<String> {
    let event = poll_fn(|context| Pin::new(&mut *reader).poll_next(context)).await?;
    Some(String::from_utf8(event).unwrap())
}

#[tokio::test]
async fn an_answer_with_nothing_before_it_is_whole() {
    let log = Streams::default().begin();
    log.finish(&id(), result("{}"));
    assert!(matches!(log.opening(true).await, Opening::Whole(_)));
    let dropped = Streams::default().begin();
    dropped.end();
    assert!(matches!(dropped.opening(true).await, Opening::Gone));
}

#[tokio::test]
async fn a_stream_is_read_again_from_where_it_broke() {
    let streams = Streams::default();
    let log = streams.begin();
    log.say(b"a".to_vec());
    assert!(matches!(log.opening(true).await, Opening::Stream));
    streams.keep(log.clone());
    let mut first = Reader::first(log.clone(), true);
    assert_eq!(next(&mut first).await.unwrap(), "id: 1-0\nretry: 1000\ndata: \n\n");
    assert_eq!(next(&mut first).await.unwrap(), "id: 1-1\ndata: a\n\n");
    let mut second = streams.after("1-0").unwrap();
    assert_eq!(next(&mut first).await, None, "a newer reader ends an older one");
    log.finish(&id(), result("{}"));
    assert_eq!(next(&mut second).await.unwrap(), "id: 1-1\ndata: a\n\n");
    assert!(next(&mut second).await.unwrap().starts_with("id: 1-2\ndata: {\"jsonrpc\""));
    assert_eq!(next(&mut second).await, None);
    for unknown in ["2-0", "1", "x-y", ""] {
        assert!(streams.after(unknown).is_none(), "{unknown}");
    }
}

#[tokio::test]
async fn what_is_kept_is_bounded_and_the_newest_stays() {
    let streams = Streams::default();
    let log = streams.begin();
    for number in 0..MOST_EVENTS + 10 {
        log.say(number.to_string().into_bytes());
    }
    let mut reader = Reader::first(log.clone(), false);
    assert_eq!(next(&mut reader).await.unwrap(), "id: 1-11\ndata: 10\n\n");
    log.say(vec![b'x'; MOST_BYTES + 1]);
    assert!(next(&mut reader).await.unwrap().len() > MOST_BYTES, "the newest stays whatever its size");
    for _ in 0..MOST_STREAMS + 5 {
        streams.keep(streams.begin());
    }
    assert_eq!(streams.kept().len(), MOST_STREAMS);
}

#[tokio::test]
async fn a_question_stays_until_it_is_read() {
    let streams = Streams::default();
    let log = streams.begin();
    log.say(b"early".to_vec());
    assert!(log.ask(b"question".to_vec()));
    let heard = (0..2 * MOST_EVENTS).filter(|_| log.say(b"progress".to_vec())).count();
    assert_eq!(heard, MOST_EVENTS - 1, "what does not fit beside the question is not heard");
    assert!(!log.say(vec![b'x'; MOST_BYTES]));
    log.finish(&id(), result("{}"));
    streams.keep(log.clone());
    let mut reader = Reader::first(log, false);
    assert_eq!(next(&mut reader).await.unwrap(), "id: 1-2\ndata: question\n\n");
    let mut last = String::new();
    while let Some(event) = next(&mut reader).await {
        last = event;
    }
    assert!(last.contains("jsonrpc"), "the answer always fits: {last}");
}

#[tokio::test]
async fn a_question_that_was_read_makes_room() {
    let streams = Streams::default();
    let log = streams.begin();
    log.ask(b"question".to_vec());
    let mut reader = Reader::first(log.clone(), false);
    assert!(next(&mut reader).await.unwrap().ends_with("data: question\n\n"));
    assert!((0..2 * MOST_EVENTS).all(|_| log.say(b"progress".to_vec())));
    assert_eq!(log.state().kept.len(), MOST_EVENTS);
}

#[tokio::test]
async fn a_stream_with_a_gap_is_not_read_again() {
    let streams = Streams::default();
    let log = streams.begin();
    streams.keep(log.clone());
    (0..MOST_EVENTS + 10).for_each(|_| assert!(log.say(b"progress".to_vec())));
    assert!(streams.after("1-0").is_none() && streams.after("1-9").is_none());
    let mut reader = streams.after("1-10").unwrap();
    assert!(next(&mut reader).await.unwrap().starts_with("id: 1-11\n"));
}

#[test]
fn a_log_may_grow_while_streams_are_kept() {
    let streams = Streams::default();
    let logs: Vec<_> = (0..2000).map(|_| streams.begin()).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| logs.iter().for_each(|log| assert!(log.say(b"a".to_vec()))));
        logs.iter().for_each(|log| streams.keep(log.clone()));
    });
    assert_eq!(streams.kept().len(), MOST_STREAMS);
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_forgotten_a_while_after_its_end() {
    let streams = Streams::default();
    let (over, goes_on) = (streams.begin(), streams.begin());
    over.end();
    streams.keep(over);
    streams.keep(goes_on);
    streams.tidy(Instant::now());
    assert_eq!(streams.kept().len(), 2);
    streams.tidy(Instant::now() + KEPT);
    assert!(streams.kept().len() == 1 && streams.any());
}
