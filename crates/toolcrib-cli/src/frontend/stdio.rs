//! MCP over a pair of pipes: for agents that start a command, and for that command when it is attached to a daemon.
//!
//! Both eras may be mixed on one pipe. Requests are worked on at the same time; whatever is still under way when the
//! client hangs up gets a moment to finish.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::wire::dialect::client::{self, CANCELLED, Claim, HELLO, PING, TOOLS_CHANGED};
use toolcrib::wire::frame::{Frame, Frames, flatten};
use toolcrib::wire::message::{
    Answer, ClientMessage, Id, code, error_object, error_reply, id_in_head, notification, reply,
};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Era;
use toolcrib::{Catalog, Crib};

use super::face::{self, View, progress_token, told_line};
use super::session::UnderWay;

/// Messages that may wait for a client which does not read.
const WAITING: usize = 256;
/// How long requests may take after the client hung up.
const FAREWELL: Duration = Duration::from_secs(10);

/// One client on a pipe.
struct Pipe {
    crib: Crib,
    out: mpsc::Sender<Vec<u8>>,
    /// Whether a session is open; the stateless era needs none.
    session: watch::Sender<bool>,
    under_way: Arc<UnderWay>,
    tasks: TaskTracker,
}

/// Serves one client until it hangs up or `stop`; messages have at most `largest` bytes.
pub(crate) async fn serve<R, W>(mut reader: R, writer: W, crib: Crib, largest: usize, stop: CancellationToken)
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (out, lines) = mpsc::channel(WAITING);
    let (session, opened) = watch::channel(false);
    let tasks = TaskTracker::new();
    let writing = tasks.spawn(write(writer, lines));
    let news = tasks.spawn(announce(crib.watch_catalog(), opened, out.clone()));
    let pipe = Pipe { crib, out, session, under_way: Arc::default(), tasks: TaskTracker::new() };
    let mut frames = Frames::new(largest);
    loop {
        tokio::select! {
            count = reader.read_buf(frames.room()) => if !matches!(count, Ok(1..)) { break },
            () = stop.cancelled() => break,
        }
        while let Some(frame) = frames.next_frame() {
            match frame {
                Frame::Line(line) if line.trim_ascii().is_empty() => {}
                Frame::Line(line) => pipe.receive(&line).await,
                Frame::End(_) => {}
                Frame::TooLong(head) => {
                    let id = id_in_head(&head);
                    pipe.complain(id.as_ref(), code::INVALID_REQUEST, "the message is too large").await;
                }
            }
        }
    }
    if let Some(rest) = frames.rest() {
        pipe.receive(&rest).await;
    }
    news.abort();
    pipe.tasks.close();
    if timeout(FAREWELL, pipe.tasks.wait()).await.is_err() {
        pipe.under_way.cancel_all();
    }
    drop(pipe);
    // The writer ends with the last line; a client that does not read it is not waited for.
    let _ = timeout(FAREWELL, writing).await;
}

impl Pipe {
    async fn receive(&self, line: &Bytes) {
        match ClientMessage::parse(line) {
            Ok(ClientMessage::Request { id, method, params }) => {
                match params.map(|params| Object::parse(&params)).transpose() {
                    Ok(params) => self.ask(id, method, params).await,
                    Err(bad) => self.complain(Some(&id), code::INVALID_PARAMS, &bad.why).await,
                }
            }
            Ok(ClientMessage::Notification { method, params }) => {
                if method == CANCELLED {
                    self.under_way.cancel(params.and_then(|params| Object::parse(&params).ok()).as_ref());
                }
            }
            Ok(ClientMessage::Reply { .. }) => {}
            Err(bad) => self.complain(bad.id.as_ref(), bad.code, &bad.why).await,
        }
    }

    async fn ask(&self, id: Id, method: String, params: Option<Object>) {
        let era = match client::claim(params.as_ref()) {
            Claim::Stateless(_) => Era::Stateless,
            Claim::Broken(error) => return self.say(error_reply(Some(&id), &error)).await,
            Claim::None if method == HELLO => {
                let revision = client::agreed_revision(params.as_ref());
                self.say(reply(&id, &Answer::Result(client::hello_result(revision, true)))).await;
                self.session.send_replace(true);
                return;
            }
            Claim::None if *self.session.borrow() || method == PING => Era::Session,
            Claim::None => {
                let why = "open a session first, or name a revision in `params._meta`";
                return self.complain(Some(&id), code::INVALID_REQUEST, why).await;
            }
        };
        self.work(id, method, params, era).await;
    }

    async fn work(&self, id: Id, method: String, params: Option<Object>, era: Era) {
        let (crib, out, under_way) = (self.crib.clone(), self.out.clone(), self.under_way.clone());
        let entered = id.clone();
        let fresh = self.under_way.enter(&id, || {
            let work = async move {
                let answer = respond(&crib, era, &method, params, &out).await;
                under_way.leave(&entered);
                // A client that hung up reads no answer.
                let _ = out.send(reply(&entered, &answer)).await;
            };
            self.tasks.spawn(work).abort_handle()
        });
        if !fresh {
            self.complain(Some(&id), code::INVALID_REQUEST, "a request with this id is under way").await;
        }
    }

    async fn complain(&self, id: Option<&Id>, code: i32, why: &str) {
        self.say(error_reply(id, &error_object(code, why, None))).await;
    }

    async fn say(&self, message: Vec<u8>) {
        // A client that hung up hears nothing.
        let _ = self.out.send(message).await;
    }
}

/// Answers one request; its progress is told before the answer.
async fn respond(
    crib: &Crib,
    era: Era,
    method: &str,
    params: Option<Object>,
    out: &mpsc::Sender<Vec<u8>>,
) -> Answer {
    let Some(token) = progress_token(params.as_ref()) else {
        return face::respond(crib, &View::All, era, method, params, None).await;
    };
    let (sink, mut heard) = mpsc::channel(WAITING);
    let mut work = std::pin::pin!(face::respond(crib, &View::All, era, method, params, Some(sink)));
    loop {
        tokio::select! {
            biased;
            Some(progress) = heard.recv() => { let _ = out.send(told_line(progress, &token)).await; }
            answer = &mut work => {
                while let Ok(progress) = heard.try_recv() {
                    let _ = out.send(told_line(progress, &token)).await;
                }
                return answer;
            }
        }
    }
}

/// Writes lines as they come, as many as there are at a time.
async fn write(mut writer: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Vec<u8>>) {
    let mut batch = Vec::new();
    while lines.recv_many(&mut batch, WAITING).await > 0 {
        let mut buffer = Vec::with_capacity(batch.iter().map(|line: &Vec<u8>| line.len() + 1).sum());
        for mut line in batch.drain(..) {
            flatten(&mut line);
            buffer.append(&mut line);
            buffer.push(b'\n');
        }
        if writer.write_all(&buffer).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
}

/// Tells an open session that the tools are others now.
async fn announce(
    mut catalog: watch::Receiver<Arc<Catalog>>,
    mut opened: watch::Receiver<bool>,
    out: mpsc::Sender<Vec<u8>>,
) {
    if opened.wait_for(|opened| *opened).await.is_err() {
        return;
    }
    let mut seen = View::All.tools(&catalog.borrow_and_update());
    while catalog.changed().await.is_ok() {
        let tools = View::All.tools(&catalog.borrow_and_update());
        if tools != seen && out.send(notification(TOOLS_CHANGED, None)).await.is_err() {
            return;
        }
        seen = tools;
    }
}
