//! `Connection`: a live, multiplexed wire to one server.
//!
//! Any number of calls share it. It speaks the server's era, keeps the server's limits, and knows how to stop what is
//! at the other end; when that end is gone, every call in flight hears of it at once.

pub(crate) mod child;
pub(crate) mod deadline;
mod errand;
pub(crate) mod greet;
mod interest;
pub(crate) mod launch;
pub(crate) mod link;
pub(crate) mod listing;
pub(crate) mod memory;
mod pending;
pub(crate) mod stderr;
mod turns;

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use crate::call::{Call, Outcome};
use crate::error::{Error, ErrorKind};
use crate::spec::{InProcessServer, Limits, ServerId, ToolsSpec};
use crate::wire::dialect::client::{DISCOVER, PING};
use crate::wire::dialect::greeting::Welcome;
use crate::wire::dialect::{self, input};
use crate::wire::kind::Kind;
use crate::wire::message::Answer;
use crate::wire::object::Object;
use crate::wire::revision::Era;
use child::Process;
use deadline::Deadline;
use errand::Errands;
use interest::Interest;
use link::{Link, Ticket};
use pending::Listener;
use turns::{Asked, Turn, Turns};

/// How often to look whether a server that was asked if it is there has said anything else.
const LISTEN: Duration = Duration::from_millis(50);

/// A live wire to one server.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) server: ServerId,
    link: Link,
    far_end: FarEnd,
    pub(crate) welcome: Welcome,
    limits: Limits,
    tools: ToolsSpec,
    turns: Turns,
    interest: Interest,
    errands: Errands,
}

/// What is at the other end.
#[derive(Debug)]
pub(crate) enum FarEnd {
    Process(Process),
    Task(AbortOnDropHandle<()>, InProcessServer),
    /// Somebody else's process: whoever carries messages to it says goodbye.
    Remote,
}

impl Connection {
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.far_end {
            FarEnd::Process(process) => Some(process.pid()),
            FarEnd::Task(..) | FarEnd::Remote => None,
        }
    }

    /// Bytes of memory that what is at the other end uses, as far as that can be known.
    pub(crate) fn memory(&self) -> Option<u64> {
        match &self.far_end {
            FarEnd::Process(process) => process.memory(),
            FarEnd::Task(_, server) => server.0.memory(),
            FarEnd::Remote => None,
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

    /// Whether it was closed because the server was told to leave.
    pub(crate) fn was_dismissed(&self) -> bool {
        self.link.was_dismissed()
    }

    /// Whether somebody else runs what is at the other end.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.far_end, FarEnd::Remote)
    }

    /// Gives up a server that says nothing any more: everybody who waits is told at once.
    pub(crate) fn condemn(&self) {
        self.link.condemn();
    }

    /// Has every call in flight hear this when the server is stopped now.
    pub(crate) fn dismiss(&self, why: &Error) {
        self.link.dismiss(why.clone());
    }

    /// Asks the server whether it is still there. Whatever it says within the limit is a yes, busy as it may be; so is
    /// its death, which others tell.
    pub(crate) async fn is_there(&self, limit: Duration) -> bool {
        let (heard, until) = (self.link.heard(), Instant::now() + limit);
        let question = if self.era() == Era::Session { PING } else { DISCOVER };
        let mut answer = match self.ask(question, &mut Object::default(), None) {
            Ok(ticket) => ticket,
            Err(error) => return self.is_closed() || error.kind() == ErrorKind::BadReply,
        };
        loop {
            match timeout_at(until.min(Instant::now() + LISTEN), &mut answer).await {
                Ok(Ok(_)) => return true,
                Ok(Err(error)) => return self.is_closed() || error.kind() == ErrorKind::BadReply,
                Err(_) if self.is_closed() || self.link.heard() != heard => return true,
                Err(_) if Instant::now() >= until => return false,
                Err(_) => {}
            }
        }
    }

    /// Why the other end is gone.
    pub(crate) fn obituary(&self) -> Error {
        self.link.lost(false)
    }

    /// Tells a session something that wants no answer; the stateless era has nothing to tell.
    pub(crate) fn tell(&self, method: &str) {
        if self.era() == Era::Session {
            self.link.tell(method);
        }
    }

    /// Has the server asked again for what it offers, unless it tells by itself when that is something else.
    pub(crate) fn look_again(&self, kind: Kind) {
        if !self.tells_changes(kind.capability()) {
            self.link.look_again();
        }
    }

    /// Waits until the server says that it offers something else now.
    pub(crate) async fn offer_changed(&self) {
        self.link.offer_changed().await;
    }

    /// Closes the server's input, then sees to it that what is at the other end is gone: politely, then firmly.
    pub(crate) async fn stop(&self) {
        self.link.hang_up();
        match &self.far_end {
            FarEnd::Process(process) => process.stop(self.link.is_condemned()).await,
            FarEnd::Task(task, _) => task.abort(),
            FarEnd::Remote => {}
        }
        self.link.closed().await;
    }

    /// Asks the server and waits for the answer. Dropping the future cancels the call at the server.
    pub(crate) async fn call(
        &self,
        call: &mut Call,
        own_name: &str,
        began: Instant,
    ) -> Result<Outcome, Error> {
        if self.era() == Era::Session && call.params.get(input::STATE).is_some() {
            return Ok(self.outcome(Answer::Error(input::bad_state())));
        }
        let deadline = Deadline::of(&self.limits, &self.tools, own_name, began);
        let turn = self.turn(call.client.key, &deadline).await?;
        if let Some(level) = call.client.log {
            Box::pin(self.log_at(level)).await;
        }
        call.rename(own_name);
        let listener = Listener { client: call.client.clone(), told: call.told.clone(), turn: Some(turn) };
        let errand = self.is_errand(call, own_name);
        if errand {
            call.params.set("task", "{}");
        }
        let asked = self.ask(&call.method, &mut call.params, Some(listener));
        if errand {
            call.params.remove("task");
        }
        let ticket = asked?;
        call.left = true;
        let mut answer = self.answered(ticket, &deadline).await?;
        if errand {
            answer = Box::pin(self.finish_errand(call, answer, &deadline)).await?;
        }
        Ok(self.outcome(answer))
    }

    fn era(&self) -> Era {
        self.welcome.revision.era()
    }

    fn outcome(&self, answer: Answer) -> Outcome {
        Outcome { answer, era: self.era(), server: Some(self.server.clone()) }
    }

    /// One of the places for calls that the server works on; waiting for one counts towards the call's time.
    async fn turn(&self, client: u64, deadline: &Deadline<'_>) -> Result<Turn, Error> {
        let (server, places) = (&self.server, self.limits.in_flight);
        let refused = |kind, message| {
            let hint = format!("raise `servers.{server}.limits.in-flight`");
            Error::new(kind, message).at(server).hint(hint).unsent()
        };
        let full = || {
            let message = format!("`{server}` is busy with {places} calls and too many others wait");
            refused(ErrorKind::Overloaded, message)
        };
        let mut waiting = match self.turns.ask(client) {
            Asked::Now(turn) => return Ok(turn),
            Asked::Later(waiting) => waiting,
            Asked::Full => return Err(full()),
        };
        match Box::pin(timeout_at(deadline.first(), waiting.turn())).await {
            Ok(turn) => turn.ok_or_else(full),
            Err(_) => {
                let message = format!("`{server}` was busy with {places} other calls for too long");
                Err(refused(ErrorKind::TimedOut, message))
            }
        }
    }

    /// A request of our own, within the call's time limit.
    pub(crate) async fn request(&self, method: &str, mut params: Object) -> Result<Answer, Error> {
        let deadline = Deadline::of(&self.limits, &self.tools, "", Instant::now());
        let ticket = self.ask(method, &mut params, None)?;
        self.answered(ticket, &deadline).await
    }

    fn ask(&self, method: &str, params: &mut Object, listener: Option<Listener>) -> Result<Ticket, Error> {
        let revision = self.welcome.revision;
        let client = listener.as_ref().map(|listener| listener.client.clone());
        let heard = listener.as_ref().is_some_and(|listener| listener.told.is_some());
        self.link.ask(method, listener, |id, line| {
            dialect::to_server(params, revision, client.as_ref(), heard.then_some(id));
            params.write(line);
        })
    }

    /// Progress extends the time limit, up to the hard maximum; a question to the client has all of it.
    async fn answered(&self, mut ticket: Ticket, deadline: &Deadline<'_>) -> Result<Answer, Error> {
        let mut until = deadline.first();
        loop {
            if let Ok(answer) = timeout_at(until, &mut ticket).await {
                return answer;
            }
            match deadline.later(until, ticket.heard()) {
                Some(later) => until = later,
                None => return Err(deadline.missed(&self.server, until)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
