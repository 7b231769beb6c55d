//! Calls that end with their connection: whether they were sent, and whether the server was stopped or crashed.

use tokio::io::{AsyncWriteExt as _, DuplexStream};
use tokio::sync::oneshot;

use super::*;
use crate::model::exit_report::{ExitReport, ProcessExit};
use crate::spec::ToolsSpec;
use crate::upstream::deadline::Deadline;
use crate::upstream::mux::{Mux, PendingReply};
use crate::upstream::transport::MessageLimit;
use crate::upstream::transport::stdio::StdioTransport;

/// Opens a mux to an in-process peer. The sender delivers the peer's exit report.
fn open() -> (Mux, DuplexStream, oneshot::Sender<ExitReport>) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (report_sender, report) = oneshot::channel();
    let (reader, writer) = tokio::io::split(ours);
    let transport = StdioTransport {
        reader,
        writer,
        direct_input: None,
        message_limit: MessageLimit::new(1 << 20),
        exited: std::future::pending(),
        exit_report: async move { report.await.unwrap_or_default() },
    };
    (Mux::new("fake".parse().unwrap(), mux_context(), transport), theirs, report_sender)
}

fn send_call(mux: &Mux) -> PendingReply {
    mux.send_request("tools/call", None, None, |_, line| line.extend_from_slice(b"{}")).unwrap()
}

#[tokio::test(start_paused = true)]
async fn call_on_a_dying_connection_is_not_sent() {
    let (mux, theirs, report) = open();
    drop(theirs);
    settle().await;
    assert!(!mux.is_closed(), "the exit report is still outstanding");
    let reply = send_call(&mux);
    report.send(ExitReport::default()).unwrap();
    let error = reply.await.unwrap_err();
    assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, true), "{error}");
    assert_eq!(mux.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn queued_call_is_not_sent_when_the_connection_breaks() {
    let (mux, theirs, report) = open();
    let sent = send_call(&mux);
    settle().await;
    let queued = send_call(&mux);
    drop(theirs);
    settle().await;
    report.send(ExitReport::default()).unwrap();
    assert!(!sent.await.unwrap_err().is_not_sent());
    assert!(queued.await.unwrap_err().is_not_sent());
}

#[tokio::test(start_paused = true)]
async fn endless_line_is_reported_and_is_no_sign_of_life() {
    let (mux, mut theirs, _report) = open();
    theirs.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":{}}\n").await.unwrap();
    let (limits, tools) = (ServerLimits::default(), ToolsSpec::default());
    let deadline = Deadline::new(&limits, &tools, "echo", Instant::now());
    let send = || {
        let write = |_: u64, line: &mut Vec<u8>| line.extend_from_slice(b"{}");
        mux.send_request("tools/call", None, Some(deadline.for_request()), write).unwrap()
    };
    let before = Instant::now();
    let mut reply = send();
    let chunk = [b'x'; 32 << 10];
    for _ in 0..40 {
        theirs.write_all(&chunk).await.unwrap();
    }
    settle().await;
    let received = mux.received_count();
    assert!((&mut reply).await.is_err());
    let error = reply.explain_timeout(deadline.timeout_error(&"fake".parse().unwrap(), Instant::now()));
    assert!(error.to_string().contains("after a line of more than 1048576 bytes"), "{error}");
    assert_eq!((error.kind(), before.elapsed()), (ErrorKind::BadReply, 5 * SECOND));
    let mut later = send();
    theirs.write_all(&chunk).await.unwrap();
    assert!((&mut later).await.is_err());
    let error = later.explain_timeout(deadline.timeout_error(&"fake".parse().unwrap(), Instant::now()));
    assert_eq!((error.kind(), mux.received_count()), (ErrorKind::TimedOut, received));
    assert!(error.to_string().contains("after a line of more than 1048576 bytes"), "{error}");
    assert!(!mux.is_closed());
    theirs.write_all(b"\n").await.unwrap();
    settle().await;
    theirs.write_all(b"{}\n").await.unwrap();
    settle().await;
    assert!(mux.received_count() > received);
}

#[tokio::test(start_paused = true)]
async fn lost_calls_tell_a_stop_from_a_crash() {
    for (stopped, message) in [(true, "`fake` was stopped"), (false, "`fake` died: ")] {
        let fake = FakeServer::new();
        let connection = connect(&spec(&fake)).await;
        let mut calls = JoinSet::new();
        (0..3).for_each(|_| spawn_held_call(&connection, &mut calls));
        settle().await;
        match stopped {
            true => connection.stop().await,
            false => fake.kill(),
        }
        for outcome in calls.join_all().await {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, false));
            assert!(error.to_string().starts_with(message), "{error}");
        }
        assert!(connection.exit_error().to_string().starts_with(message), "{}", connection.exit_error());
    }
}

#[tokio::test(start_paused = true)]
async fn stop_after_a_crash_still_reports_the_crash() {
    let (mux, theirs, report) = open();
    let reply = send_call(&mux);
    settle().await;
    drop(theirs);
    report.send(ExitReport { exit: Some(ProcessExit::Status(3)), ..ExitReport::default() }).unwrap();
    mux.closed().await;
    mux.request_stop();
    assert_eq!(reply.await.unwrap_err().to_string(), "`fake` died: exit status 3");
}
