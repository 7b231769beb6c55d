//! `Told`: what a caller hears while its call runs, and `Ask`, a question of the server among it.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use crate::wire::message::Answer;
use crate::wire::object::Object;

/// What a caller is told while its call runs: in order, and all of it before the outcome.
#[derive(Debug)]
pub enum Told {
    /// Progress: the parameters of the server's notification without its token.
    Progress(Object),
    /// A line of the server's log: the parameters of its notification.
    Log(Bytes),
    /// The server wants something of the client before it goes on.
    Asked(Ask),
    /// The server does not want an answer any more to something that it asked: see [`Ask::is_over`].
    Unasked,
}

/// Hears what comes before a call's outcome, without making anybody wait.
pub trait Hear: std::fmt::Debug + Send + Sync {
    /// Hears it, or misses it; `false` if it is missed.
    fn hear(&self, told: Told) -> bool;
}

impl Hear for mpsc::Sender<Told> {
    /// A listener that cannot keep up misses some.
    fn hear(&self, told: Told) -> bool {
        self.try_send(told).is_ok()
    }
}

/// A question of a server to the client. Dropping it tells the server that there will be no answer.
pub struct Ask {
    /// What is asked: sampling, elicitation or roots.
    pub method: String,
    /// Its raw parameters.
    pub params: Option<Bytes>,
    reply: oneshot::Sender<Answer>,
    over: Option<Box<dyn Fn() -> bool + Send + Sync>>,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("method", &self.method).finish_non_exhaustive()
    }
}

impl Ask {
    /// A question, and where its answer will be.
    pub(crate) fn new(method: String, params: Option<Bytes>) -> (Self, oneshot::Receiver<Answer>) {
        let (reply, answered) = oneshot::channel();
        (Self { method, params, reply, over: None }, answered)
    }

    /// A question that is wanted until `over` says so.
    pub(crate) fn until(self, over: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { over: Some(Box::new(over)), ..self }
    }

    /// Whether nobody waits for the answer any more.
    pub fn is_over(&self) -> bool {
        self.reply.is_closed() || self.over.as_ref().is_some_and(|over| over())
    }

    /// Hands the client's answer over.
    pub fn answer(self, answer: Answer) {
        // A server that is gone needs no answer.
        let _ = self.reply.send(answer);
    }
}
