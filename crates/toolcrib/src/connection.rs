//! `Connection`: a live, multiplexed wire to one server.
//!
//! Any number of calls share it. It speaks the server's era, keeps the server's limits, and knows how to stop what is
//! at the other end; when that end is gone, every call in flight hears of it at once.

pub(crate) mod child;
pub(crate) mod greet;
pub(crate) mod launch;
pub(crate) mod link;
pub(crate) mod listing;
pub(crate) mod memory;
mod pending;
pub(crate) mod stderr;

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::call::{self, Call, Outcome, Progress};
use crate::error::{Error, ErrorKind};
use crate::spec::{Limits, ServerId};
use crate::wire::dialect;
use crate::wire::dialect::greeting::Welcome;
use crate::wire::message::Answer;
use crate::wire::object::Object;
use child::Process;
use link::{Link, Ticket};

/// How many progress notifications may wait for one call.
const PROGRESS_WAITING: usize = 1024;

/// How long an answer waits for a listener to take the progress that came before it.
const LISTENING: Duration = Duration::from_millis(100);

/// A live wire to one server.
#[derive(Debug)]
pub(crate) struct Connection {
    server: ServerId,
    link: Link,
    far_end: FarEnd,
    pub(crate) welcome: Welcome,
    limits: Limits,
    slots: Semaphore,
}

/// What is at the other end.
#[derive(Debug)]
pub(crate) enum FarEnd {
    Process(Process),
    Task(AbortOnDropHandle<()>),
}

impl Connection {
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.far_end {
            FarEnd::Process(process) => Some(process.pid()),
            FarEnd::Task(_) => None,
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.link.in_flight()
    }

    pub(crate) fn noise(&self) -> u64 {
        self.link.noise()
    }

    /// Waits until the other end is gone and every call in flight has been told.
    pub(crate) async fn closed(&self) {
        self.link.closed().await;
    }

    /// Whether the other end is known to be gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.link.is_closed()
    }

    /// Why the other end is gone.
    pub(crate) fn obituary(&self) -> Error {
        self.link.lost(false)
    }

    /// Waits until the server says that its tools are others now.
    pub(crate) async fn tools_changed(&self) {
        self.link.tools_changed().await;
    }

    /// Closes the server's input, then sees to it that what is at the other end is gone: politely, then firmly.
    pub(crate) async fn stop(&self) {
        self.link.hang_up();
        match &self.far_end {
            FarEnd::Process(process) => process.stop().await,
            FarEnd::Task(task) => task.abort(),
        }
        self.link.closed().await;
    }

    /// Asks the server to run a tool and waits for the answer. Dropping the future cancels the call at the server.
    pub(crate) async fn call(&self, call: &mut Call, tool: &str) -> Result<Outcome, Error> {
        let _slot = self.slot().await?;
        call::rename(&mut call.params, tool);
        let answer = match call.progress.clone() {
            None => {
                let ticket = self.ask("tools/call", &mut call.params, None)?;
                self.answered(ticket).await?
            }
            Some(sink) => {
                let (progress, heard) = mpsc::channel(PROGRESS_WAITING);
                let ticket = self.ask("tools/call", &mut call.params, Some(progress))?;
                self.answered_with_progress(ticket, heard, sink).await?
            }
        };
        Ok(Outcome { answer, era: self.welcome.revision.era(), server: Some(self.server.clone()) })
    }

    /// One of the places for calls that the server works on; waiting for one has the call's own time limit.
    async fn slot(&self) -> Result<SemaphorePermit<'_>, Error> {
        if let Ok(slot) = self.slots.try_acquire() {
            return Ok(slot);
        }
        match timeout(self.limits.call_timeout, self.slots.acquire()).await {
            Ok(slot) => slot.map_err(|_| self.link.lost(true)),
            Err(_) => {
                let (server, slots) = (&self.server, self.limits.in_flight);
                let message = format!("`{server}` was busy with {slots} other calls for too long");
                let hint = format!("raise `servers.{server}.limits.in-flight`");
                Err(Error::new(ErrorKind::TimedOut, message).at(server).hint(hint).unsent())
            }
        }
    }

    /// A request of our own, within the call's time limit.
    pub(crate) async fn request(&self, method: &str, mut params: Object) -> Result<Answer, Error> {
        let ticket = self.ask(method, &mut params, None)?;
        self.answered(ticket).await
    }

    fn ask(
        &self,
        method: &str,
        params: &mut Object,
        progress: Option<mpsc::Sender<Progress>>,
    ) -> Result<Ticket, Error> {
        let revision = self.welcome.revision;
        let wants_progress = progress.is_some();
        self.link.ask(method, progress, |id, line| {
            dialect::to_server(params, revision, wants_progress.then_some(id));
            params.write(line);
        })
    }

    async fn answered(&self, ticket: Ticket) -> Result<Answer, Error> {
        match timeout(self.limits.call_timeout, ticket).await {
            Ok(answer) => answer,
            Err(_) => Err(self.timed_out(self.limits.call_timeout, "call-timeout")),
        }
    }

    /// Progress arrives before the answer and extends the time limit, up to the hard maximum.
    async fn answered_with_progress(
        &self,
        mut ticket: Ticket,
        mut heard: mpsc::Receiver<Progress>,
        sink: mpsc::Sender<Progress>,
    ) -> Result<Answer, Error> {
        let limits = &self.limits;
        let last = Instant::now() + limits.call_timeout_max;
        let mut until = last.min(Instant::now() + limits.call_timeout);
        loop {
            tokio::select! {
                biased;
                Some(progress) = heard.recv() => {
                    until = last.min(Instant::now() + limits.call_timeout);
                    tokio::select! {
                        biased;
                        room = timeout_at(until, sink.reserve()) => if let Ok(Ok(room)) = room { room.send(progress) },
                        answer = &mut ticket => {
                            hand_over(Some(progress), heard, &sink).await;
                            return answer;
                        }
                    }
                }
                answer = &mut ticket => {
                    hand_over(None, heard, &sink).await;
                    return answer;
                }
                () = tokio::time::sleep_until(until) => {
                    let (limit, key) = match until == last {
                        true => (limits.call_timeout_max, "call-timeout-max"),
                        false => (limits.call_timeout, "call-timeout"),
                    };
                    return Err(self.timed_out(limit, key));
                }
            }
        }
    }

    fn timed_out(&self, limit: Duration, key: &str) -> Error {
        let server = &self.server;
        let message = format!("`{server}` did not answer within {limit:?}");
        Error::new(ErrorKind::TimedOut, message)
            .at(server)
            .hint(format!("raise `servers.{server}.limits.{key}`"))
    }
}

/// Gives a listener the progress that came before the answer. One that went away, or does not listen, misses its
/// progress and nothing else.
async fn hand_over(
    first: Option<Progress>,
    mut heard: mpsc::Receiver<Progress>,
    sink: &mpsc::Sender<Progress>,
) {
    let until = Instant::now() + LISTENING;
    let rest = std::iter::from_fn(|| heard.try_recv().ok());
    for progress in first.into_iter().chain(rest) {
        if !matches!(timeout_at(until, sink.send(progress)).await, Ok(Ok(()))) {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
