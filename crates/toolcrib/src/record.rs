//! What a call met on its way, kept while it runs and told once when it ends, however it ends.
//!
//! It is kept only if somebody watches. It does not decide anything.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::broadcast;
use tokio::time::Instant;

use crate::call::{Call, Outcome};
use crate::catalog::Target;
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::event::{CacheUse, Called, Decision, Ending, Event};
use crate::policy::Denial;
use crate::wire::dialect::input;
use crate::wire::message::Answer;
use crate::wire::revision::Era;

/// What a call met on its way so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Met {
    /// Where it was found to go.
    pub(crate) target: Option<Target>,
    /// What the rules said.
    pub(crate) decision: Decision,
    /// The rule that forbids it, also where whoever asked does not get to know of it.
    pub(crate) denial: Option<Denial>,
    /// What the cache had for it.
    pub(crate) cache: Option<CacheUse>,
}

/// What a call and all its copies met; nothing if nobody watches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Record(Option<Arc<Mutex<Met>>>);

impl Record {
    fn kept() -> Self {
        Self(Some(Arc::default()))
    }

    /// Notes something, if anybody wants to know.
    pub(crate) fn note(&self, note: impl FnOnce(&mut Met)) {
        if let Some(met) = &self.0 {
            note(&mut met.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Goes on with what another record has: the call it belongs to is taken up again by this one.
    pub(crate) fn go_on_from(&self, earlier: &Self) {
        let met = earlier.met();
        self.note(|now| *now = met);
    }

    fn met(&self) -> Met {
        let met = self.0.as_ref().map(|met| met.lock().unwrap_or_else(PoisonError::into_inner).clone());
        met.unwrap_or_default()
    }
}

/// Sees the end of every call, before whoever made it does. It must not wait.
pub trait Witness: Send + Sync {
    /// Whether it wants to see anything now: what a call met is kept only if somebody does.
    fn is_watching(&self) -> bool {
        true
    }

    /// Whether calls may be made while it cannot do its work: asked before each.
    fn is_ready(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether it is told the arguments too.
    fn wants_arguments(&self) -> bool {
        false
    }

    /// A call has ended.
    fn saw(&self, called: &Called);

    /// No more calls come. Only here it may take the time to put away what it saw.
    fn close(&self) {}
}

/// Who hears of the end of calls.
#[derive(Clone)]
pub(crate) struct Watchers {
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) witness: Option<Arc<dyn Witness>>,
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers").field("witness", &self.witness.is_some()).finish_non_exhaustive()
    }
}

impl Watchers {
    /// No more calls come.
    pub(crate) fn close(&self) {
        if let Some(witness) = &self.witness {
            witness.close();
        }
    }

    fn are_there(&self) -> bool {
        self.witness.as_ref().is_some_and(|witness| witness.is_watching()) || self.events.receiver_count() > 0
    }
}

/// A call that its watchers are told about, also if it is dropped before it has ended.
pub(crate) struct Watched<'a> {
    pub(crate) call: Call,
    watchers: &'a Watchers,
    /// Since when it runs, as long as there is something to tell.
    began: Option<Instant>,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(mut call: Call, watchers: &'a Watchers) -> Self {
        let watched = watchers.are_there();
        if watched {
            call.record = Record::kept();
        }
        Self { call, watchers, began: watched.then(Instant::now) }
    }

    /// Whether the witness lets calls be made.
    pub(crate) fn admit(&self) -> Result<(), Error> {
        self.watchers.witness.as_ref().map_or(Ok(()), |witness| witness.is_ready())
    }

    /// Tells how it ended.
    pub(crate) fn end(mut self, outcome: &Result<Outcome, Error>) {
        if let Some(began) = self.began.take() {
            self.tell(began, Some(outcome));
        }
    }

    fn tell(&self, began: Instant, outcome: Option<&Result<Outcome, Error>>) {
        let call = &self.call;
        let witness = self.watchers.witness.as_ref().filter(|witness| witness.is_watching());
        let Met { target, decision, denial, cache } = call.record.met();
        let answer = outcome.and_then(|outcome| outcome.as_ref().ok());
        let failure = outcome.and_then(|outcome| outcome.as_ref().err());
        let decision = match failure {
            Some(error) if error.kind() == ErrorKind::Denied => Decision::Denied,
            _ if denial.is_some() => Decision::Denied,
            _ => decision,
        };
        let (server, name) = match target {
            Some(Target { server, name }) => (Some(server), name),
            None => (failure.and_then(Error::server).cloned(), call.name().into()),
        };
        let mut called = Called {
            at: clock::wall(),
            caller: call.caller.clone(),
            method: call.method.clone(),
            server,
            name,
            decision,
            denial,
            cache,
            asked: call.params.iter().map(|(_, value)| value.len()).sum(),
            answered: answer.map_or(0, |outcome| outcome.raw().len()),
            ending: outcome.map_or(Ending::Cancelled, ending),
            took: began.elapsed(),
            arguments: witness
                .filter(|witness| witness.wants_arguments())
                .and_then(|_| call.params.get("arguments").cloned()),
        };
        if let Some(witness) = witness {
            witness.saw(&called);
        }
        if self.watchers.events.receiver_count() > 0 {
            called.arguments = None;
            // Nobody has to listen.
            let _ = self.watchers.events.send(Event::Called(Arc::new(called)));
        }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if let Some(began) = self.began.take() {
            self.tell(began, None);
        }
    }
}

fn ending(outcome: &Result<Outcome, Error>) -> Ending {
    match outcome {
        Err(error) => Ending::Failed(error.kind()),
        Ok(outcome) if outcome.is_error() => Ending::ToolError,
        Ok(Outcome { answer: Answer::Result(result), era: Era::Stateless, .. })
            if input::needed(result).is_some() =>
        {
            Ending::Asks
        }
        Ok(_) => Ending::Done,
    }
}
