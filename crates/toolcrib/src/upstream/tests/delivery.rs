//! The contract between a mux and its transport, with a transport that the test plays by hand.

use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use super::*;
use crate::model::exit_report::{ExitReport, ProcessExit};
use crate::model::failure_class::Delivery;
use crate::protocol::framing::Frame;
use crate::upstream::mux::{Mux, PendingReply};
use crate::upstream::pending::RequestEnd;
use crate::upstream::transport::input_pipe::InputPipe;
use crate::upstream::transport::{OutgoingQueue, QueuedMessage, Transport, TransportFuture, TransportLink};

/// A transport whose link and queue go to the test.
struct ScriptedTransport {
    handles: oneshot::Sender<(TransportLink, OutgoingQueue)>,
    report: oneshot::Receiver<ExitReport>,
}

impl Transport for ScriptedTransport {
    fn run(self: Box<Self>, link: TransportLink, outgoing: OutgoingQueue) -> TransportFuture {
        let Self { handles, report } = *self;
        assert!(handles.send((link, outgoing)).is_ok(), "the test waits for the handles");
        Box::pin(async { report.await.unwrap_or_default() })
    }
}

/// The test's side of a scripted transport.
struct Script {
    link: TransportLink,
    outgoing: OutgoingQueue,
    report: oneshot::Sender<ExitReport>,
}

impl Script {
    async fn next_message(&mut self) -> QueuedMessage {
        self.outgoing.recv().await.unwrap()
    }

    fn receive(&self, line: String) {
        assert!(self.link.receive(&Frame::Line(line.into()), None));
    }

    /// Ends the transport with an exit status.
    fn exit(self, status: i32) {
        let report = ExitReport { exit: Some(ProcessExit::Status(status)), ..ExitReport::default() };
        drop(self.outgoing);
        self.report.send(report).unwrap();
    }
}

fn open() -> (Mux, Script) {
    let (handle_sender, mut handles) = oneshot::channel();
    let (report_sender, report) = oneshot::channel();
    let transport = ScriptedTransport { handles: handle_sender, report };
    let mux = Mux::new("fake".parse().unwrap(), mux_context(), transport);
    let (link, outgoing) = handles.try_recv().unwrap();
    (mux, Script { link, outgoing, report: report_sender })
}

fn send_call(mux: &Mux) -> PendingReply {
    mux.send_request("tools/call", None, None, |_, line| line.extend_from_slice(b"{}")).unwrap()
}

async fn delivery(reply: PendingReply) -> Delivery {
    let error = reply.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    error.delivery()
}

#[tokio::test(start_paused = true)]
async fn message_never_taken_is_not_sent() {
    let (mux, script) = open();
    let reply = send_call(&mux);
    script.exit(1);
    assert_eq!(delivery(reply).await, Delivery::NotSent);
}

#[tokio::test]
async fn only_request_in_flight_is_written_past_the_queue() {
    let (mux, mut script) = open();
    let (sender, mut receiver) = pipe::pipe().unwrap();
    sender.writable().await.unwrap();
    let input = InputPipe::new(sender);
    script.link.set_direct_input(Some(input.direct()));
    let first = send_call(&mux);
    let mut line = vec![0; 256];
    let length = receiver.read(&mut line).await.unwrap();
    assert!(line[..length].starts_with(br#"{"jsonrpc":"2.0","id":1,"#) && line[..length].ends_with(b"}\n"));

    let second = send_call(&mux);
    let mut queued = vec![script.next_message().await];
    assert_eq!(queued[0].id, Some(2), "another request is in flight");
    script.receive(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned());
    script.receive(r#"{"jsonrpc":"2.0","id":2,"result":{}}"#.to_owned());
    assert!(first.await.is_ok() && second.await.is_ok());
    let third = send_call(&mux);
    queued.push(script.next_message().await);
    assert_eq!(queued[1].id, Some(3), "the second is not written yet");

    script.receive(r#"{"jsonrpc":"2.0","id":3,"result":{}}"#.to_owned());
    assert!(third.await.is_ok());
    script.link.report_written(&queued, queued.iter().map(|message| message.line.len()).sum());
    drop(receiver);
    let fourth = send_call(&mux);
    script.exit(1);
    assert_eq!(delivery(fourth).await, Delivery::NotSent, "the pipe is broken");
}

#[tokio::test]
async fn first_request_after_many_at_the_same_time_is_queued() {
    let (mux, mut script) = open();
    let (sender, mut receiver) = pipe::pipe().unwrap();
    sender.writable().await.unwrap();
    let input = InputPipe::new(sender);
    script.link.set_direct_input(Some(input.direct()));
    let replies: Vec<_> = (1..=4).map(|_| send_call(&mux)).collect();
    let mut line = vec![0; 256];
    let length = receiver.read(&mut line).await.unwrap();
    assert!(line[..length].starts_with(br#"{"jsonrpc":"2.0","id":1,"#));
    for (id, reply) in (1..).zip(replies) {
        script.receive(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#));
        assert!(reply.await.is_ok());
    }
    for id in 2..=4 {
        let queued = script.next_message().await;
        assert_eq!(queued.id, Some(id));
        script.link.report_written(std::slice::from_ref(&queued), queued.line.len());
    }
    let fifth = send_call(&mux);
    let queued = timeout(Duration::from_secs(20), script.next_message()).await.expect("others may follow it");
    assert_eq!(queued.id, Some(5));
    script.link.report_written(std::slice::from_ref(&queued), queued.line.len());
    script.receive(r#"{"jsonrpc":"2.0","id":5,"result":{}}"#.to_owned());
    assert!(fifth.await.is_ok());

    let _sixth = send_call(&mux);
    let length = receiver.read(&mut line).await.unwrap();
    assert!(line[..length].starts_with(br#"{"jsonrpc":"2.0","id":6,"#), "no other followed");
}

#[tokio::test(start_paused = true)]
async fn message_without_its_line_end_may_be_sent() {
    let (mux, mut script) = open();
    let reply = send_call(&mux);
    let message = script.next_message().await;
    assert!(message.line.ends_with(b"}\n"));
    script.link.report_written(std::slice::from_ref(&message), message.line.len() - 1);
    script.exit(1);
    assert_eq!(delivery(reply).await, Delivery::MaybeSent);
}

#[tokio::test(start_paused = true)]
async fn partly_written_message_is_not_sent() {
    let (mux, mut script) = open();
    let first = send_call(&mux);
    let second = send_call(&mux);
    let batch = [script.next_message().await, script.next_message().await];
    let written = batch[0].line.len() + batch[1].line.len() / 2;
    script.link.report_written(&batch, written);
    script.exit(1);
    assert_eq!(delivery(first).await, Delivery::MaybeSent);
    assert_eq!(delivery(second).await, Delivery::NotSent);
}

#[tokio::test(start_paused = true)]
async fn written_message_may_have_been_sent() {
    let (mux, mut script) = open();
    let written = send_call(&mux);
    let message = script.next_message().await;
    script.link.report_written(std::slice::from_ref(&message), message.line.len());
    let unreported = send_call(&mux);
    script.next_message().await;
    script.exit(1);
    assert_eq!(delivery(written).await, Delivery::MaybeSent);
    assert_eq!(
        delivery(unreported).await,
        Delivery::MaybeSent,
        "a transport that reports nothing is not trusted"
    );
}

#[tokio::test(start_paused = true)]
async fn request_that_fails_alone_keeps_its_delivery() {
    let (mux, mut script) = open();
    for expected in [Delivery::NotSent, Delivery::MaybeSent] {
        let reply = send_call(&mux);
        let id = script.next_message().await.id.unwrap();
        if expected == Delivery::NotSent {
            script.link.mark_not_sent(id);
        }
        script.link.finish_request(id, RequestEnd::Failed(Error::new(ErrorKind::Lost, "broken")));
        assert_eq!(delivery(reply).await, expected);
        assert!(!mux.is_closed());
    }
}

#[tokio::test(start_paused = true)]
async fn pending_requests_fail_with_the_exit_report() {
    let (mux, mut script) = open();
    let replies = [send_call(&mux), send_call(&mux)];
    script.next_message().await;
    script.exit(3);
    mux.closed().await;
    for (reply, message) in
        replies.into_iter().zip(["`fake` died: exit status 3", "`fake` is gone: exit status 3"])
    {
        let error = reply.await.unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(error.exit_report().unwrap().exit, Some(ProcessExit::Status(3)));
    }
    assert_eq!(mux.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn request_after_the_end_is_refused_as_not_sent() {
    let (mux, script) = open();
    script.exit(1);
    mux.closed().await;
    let error =
        mux.send_request("tools/call", None, None, |_, line| line.extend_from_slice(b"{}")).unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::Lost, Delivery::NotSent));
}

#[tokio::test(start_paused = true)]
async fn late_reply_is_ignored() {
    let (mux, mut script) = open();
    let cancelled = send_call(&mux);
    let cancelled_id = cancelled.id();
    drop(cancelled);
    let current = send_call(&mux);
    let current_id = current.id();
    let respond = |id: u64| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
    script.next_message().await;
    script.receive(respond(cancelled_id));
    assert!(script.link.is_pending(current_id));
    script.receive(respond(current_id));
    current.await.unwrap();
    assert_eq!(mux.garbage_lines(), 0);
}

#[tokio::test(start_paused = true)]
async fn stop_asks_the_transport_to_close_its_input() {
    let (mux, script) = open();
    mux.request_stop();
    assert!(script.link.close_requested().is_cancelled());
    assert!(!script.link.disconnected().is_cancelled(), "the server may still respond");
    drop(mux);
    assert!(script.link.disconnected().is_cancelled());
}

/// A transport that panics when it gets a message, in its own future or in a task of its own.
struct PanickingTransport {
    in_task: bool,
}

impl Transport for PanickingTransport {
    fn run(self: Box<Self>, link: TransportLink, mut outgoing: OutgoingQueue) -> TransportFuture {
        let panicking = async move {
            outgoing.recv().await;
            panic!("on purpose");
        };
        if !self.in_task {
            return Box::pin(panicking);
        }
        link.spawn::<ExitReport>(panicking);
        Box::pin(async move {
            link.disconnected().cancelled().await;
            ExitReport::default()
        })
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_transport_fails_its_requests() {
    for in_task in [false, true] {
        let mux = Mux::new("fake".parse().unwrap(), mux_context(), PanickingTransport { in_task });
        let error = timeout(SECOND, send_call(&mux)).await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::Lost, false), "{error}");
        timeout(SECOND, mux.closed()).await.unwrap();
        assert!(mux.is_closed());
    }
}
