//! An agent's pipe that outlives the gateway it is attached to: it finds the next one, opens the session there again and
//! sends what is safe to send.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use toolcrib::wire::frame::{Frame, Frames};
use toolcrib::wire::message::{code, error_object, error_reply, id_in_head};

use super::ledger::{Heard, Ledger};
use super::reach::{Line, Reach};

/// Messages of the agent that may wait for a gateway, and messages that may wait for the agent.
const WAITING: usize = 64;
/// Longer than any line: how much a gateway may say at once is its own affair.
const NO_LIMIT: usize = usize::MAX >> 1;

/// What the agent said.
enum Said {
    Line(Bytes),
    /// More than it may: how it began.
    TooLong(Bytes),
}

/// The agent's side of the pipe.
struct Agent {
    says: mpsc::Receiver<Said>,
    hears: mpsc::Sender<Bytes>,
    ledger: Mutex<Ledger>,
}

/// Serves until stdin ends and everything is answered.
pub(super) async fn run(reach: &mut Reach<'_>, daemon: UnixStream) -> Result<()> {
    let tasks = TaskTracker::new();
    let (tell, says) = mpsc::channel(WAITING);
    let (hears, told) = mpsc::channel(WAITING);
    let _reading = AbortOnDropHandle::new(tasks.spawn(read(tokio::io::stdin(), reach.largest(), tell)));
    let writing = AbortOnDropHandle::new(tasks.spawn(write(tokio::io::stdout(), told)));
    let mut agent = Agent { says, hears, ledger: Mutex::default() };
    let line = reach.upgrade(daemon, 0).await.ok();
    let served = agent.converse(reach, line).await;
    // The last answers are written before the end.
    drop(agent);
    let written = writing.await;
    served?;
    // An agent that does not read any more is gone.
    Ok(written.unwrap_or(Ok(()))?)
}

impl Agent {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the agent hung up, and everything it said was taken.
    fn has_left(&self) -> bool {
        self.says.is_closed() && self.says.is_empty()
    }

    /// Talks to one gateway after the other.
    async fn converse(&mut self, reach: &mut Reach<'_>, mut line: Option<Line>) -> Result<()> {
        loop {
            if let Some(line) = line {
                self.serve(reach, line).await;
            }
            let told = self.ledger().broken();
            self.say_all(told).await;
            let asked = self.ledger().last_question();
            let waits = || !self.says.is_empty() || !self.ledger().is_idle();
            let over = || self.hears.is_closed() || self.has_left() && self.ledger().is_idle();
            line = match reach.again(asked, waits, over).await {
                Ok(None) => return Ok(()),
                Ok(line) => line,
                Err(error) => {
                    self.give_up(&error.to_string()).await;
                    return Err(error);
                }
            };
        }
    }

    /// Tells the agent of everything it said and is owed that there will be no answer.
    async fn give_up(&mut self, why: &str) {
        while let Ok(said) = self.says.try_recv() {
            if let Said::Line(line) = said {
                self.ledger().hear(&line);
            }
        }
        let told = self.ledger().given_up(why);
        self.say_all(told).await;
    }

    async fn say_all(&self, lines: Vec<Vec<u8>>) {
        for line in lines {
            // An agent that does not read any more is noticed where it matters.
            let _ = self.hears.send(line.into()).await;
        }
    }

    /// Passes messages on in both directions until the gateway is gone, or there is one again for a command that went
    /// on without.
    async fn serve(&mut self, reach: &Reach<'_>, line: Line) {
        let Line { from, to, first } = line;
        let (again, news) = {
            let mut ledger = self.ledger();
            (ledger.again(), ledger.news())
        };
        self.say_all(news).await;
        let (ledger, hears) = (&self.ledger, &self.hears);
        let back = reach.back(|| ledger.lock().unwrap_or_else(PoisonError::into_inner).is_idle());
        let upwards = upwards(to, again, (&mut self.says, back), ledger, hears);
        let downwards = downwards(from, first, ledger, hears);
        tokio::pin!(upwards, downwards);
        // The agent's last word is not the last answer, and a gateway that takes no more words may still have some.
        tokio::select! {
            () = &mut downwards => {}
            () = &mut upwards => downwards.await,
        }
    }
}

/// Tells the gateway what waits and then what the agent says, until one of them is gone, or there is a better one `back`.
async fn upwards(
    mut to: Box<dyn AsyncWrite + Unpin>,
    again: Vec<Bytes>,
    (says, back): (&mut mpsc::Receiver<Said>, impl Future<Output = ()>),
    ledger: &Mutex<Ledger>,
    hears: &mpsc::Sender<Bytes>,
) {
    tokio::pin!(back);
    for line in again {
        if write_line(&mut to, &line).await.is_err() {
            return;
        }
    }
    loop {
        let said = tokio::select! {
            biased;
            said = says.recv() => said,
            () = &mut back => None,
        };
        let Some(said) = said else { break };
        let line = match said {
            Said::Line(line) => line,
            Said::TooLong(head) => {
                let error = error_object(code::INVALID_REQUEST, "the message is too large", None);
                let _ = hears.send(error_reply(id_in_head(&head).as_ref(), &error).into()).await;
                continue;
            }
        };
        let heard = ledger.lock().unwrap_or_else(PoisonError::into_inner).hear(&line);
        let Heard::Goes(number) = heard else { continue };
        if let Err(written) = write_line(&mut to, &line).await {
            if let (0, Some(number)) = (written, number) {
                ledger.lock().unwrap_or_else(PoisonError::into_inner).never_sent(number);
            }
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Writes a line; on failure, how much of it was written.
async fn write_line(to: &mut (impl AsyncWrite + Unpin), line: &Bytes) -> Result<(), usize> {
    let mut whole = Vec::with_capacity(line.len() + 1);
    whole.extend_from_slice(line);
    whole.push(b'\n');
    let mut written = 0;
    while written < whole.len() {
        match to.write(&whole[written..]).await {
            Ok(count @ 1..) => written += count,
            _ => return Err(written),
        }
    }
    to.flush().await.map_err(|_| written)
}

/// Tells the agent what the gateway says, until one of them is gone.
async fn downwards(
    mut from: Box<dyn AsyncRead + Unpin>,
    first: Vec<u8>,
    ledger: &Mutex<Ledger>,
    hears: &mpsc::Sender<Bytes>,
) {
    let mut frames = Frames::new(NO_LIMIT);
    frames.push(&first);
    loop {
        while let Some(frame) = frames.next_frame() {
            let Frame::Line(line) = frame else { continue };
            let passes = ledger.lock().unwrap_or_else(PoisonError::into_inner).told(&line);
            if passes && hears.send(line).await.is_err() {
                return;
            }
        }
        if !matches!(from.read_buf(frames.room()).await, Ok(1..)) {
            return;
        }
    }
}

/// Reads what the agent says until it hangs up.
async fn read(mut stdin: impl AsyncRead + Unpin, largest: usize, tell: mpsc::Sender<Said>) {
    let mut frames = Frames::new(largest);
    while matches!(stdin.read_buf(frames.room()).await, Ok(1..)) {
        while let Some(frame) = frames.next_frame() {
            let said = match frame {
                Frame::Line(line) if line.trim_ascii().is_empty() => continue,
                Frame::Line(line) => Said::Line(line),
                Frame::TooLong(head) => Said::TooLong(head),
                Frame::End(_) => continue,
            };
            if tell.send(said).await.is_err() {
                return;
            }
        }
    }
    if let Some(rest) = frames.rest() {
        let _ = tell.send(Said::Line(rest)).await;
    }
}

/// Writes lines to the agent as they come, as many as there are at a time.
async fn write(mut stdout: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Bytes>) -> io::Result<()> {
    let mut batch = Vec::new();
    while lines.recv_many(&mut batch, WAITING).await > 0 {
        for line in batch.drain(..) {
            stdout.write_all(&line).await?;
            stdout.write_all(b"\n").await?;
        }
        stdout.flush().await?;
    }
    Ok(())
}
