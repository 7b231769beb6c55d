//! `Lot`: calls that wait for a stateless client to come back with answers.
//!
//! What the client holds meanwhile is a name with our signature. It is good for one try, for a limited time, and only
//! for the caller and the very call it was given out for; whoever comes with anything else takes nothing away.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::call::{Call, Caller, Outcome, Wanted};
use crate::error::Error;
use crate::pipeline;
use crate::record::Record;
use crate::stock::Stock;
use crate::told::{Ask, Hear, Told};
use crate::wire::dialect::input::{self, Question};
use crate::wire::message::{Answer, code, error_object};
use crate::wire::object::Object;
use crate::wire::revision::Era;

/// How long a call waits for its client to come back.
const PATIENCE: Duration = Duration::from_secs(600);
/// Calls that may wait, in all and of one caller.
const MOST: usize = 1000;
const MOST_OF_ONE: usize = 200;
/// How long a server that asks one thing has to ask another with it: each comes in a message of its own.
const BREATH: Duration = Duration::from_millis(20);
/// What a call may be told while nobody hears it.
const TOLD: usize = 256;
/// How our names begin.
const MARK: &str = "toolcrib.";

/// The calls that wait.
#[derive(Debug)]
pub(crate) struct Lot {
    places: Mutex<Places>,
    /// What names are signed with; without random numbers there is none, and nothing is parked.
    key: Option<[u8; 32]>,
    tasks: TaskTracker,
}

#[derive(Debug, Default)]
struct Places {
    parked: HashMap<String, Parked>,
    /// Nobody comes back any more.
    closed: bool,
}

/// A call under way.
struct Running {
    work: Pin<Box<dyn Future<Output = Result<Outcome, Error>> + Send>>,
    told: mpsc::Receiver<Told>,
}

/// A call that waits for its client, and what it may be taken up with.
struct Parked {
    running: Running,
    asks: Vec<(String, Ask)>,
    caller: Caller,
    wanted: Wanted,
    method: String,
    params: Object,
    record: Record,
    /// Ends the wait when time is up.
    _patience: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked")
            .field("caller", &self.caller)
            .field("method", &self.method)
            .finish_non_exhaustive()
    }
}

/// What a running call came to.
enum Step {
    Done(Result<Outcome, Error>),
    Asks(Vec<Ask>),
}

impl Running {
    /// Goes on until the call ends or its server asks something; everything else is passed on to `sink`.
    async fn step(&mut self, sink: Option<&Arc<dyn Hear>>) -> Step {
        loop {
            tokio::select! {
                biased;
                Some(told) = self.told.recv() => match told {
                    Told::Asked(ask) => return Step::Asks(self.asks_from(ask, sink).await),
                    told => pass_on(sink, told),
                },
                outcome = &mut self.work => {
                    while let Ok(told) = self.told.try_recv() {
                        pass_on(sink, told);
                    }
                    return Step::Done(outcome);
                }
            }
        }
    }

    /// A server that asks several things at once gets them asked at once; what else it says goes to `sink`.
    async fn asks_from(&mut self, first: Ask, sink: Option<&Arc<dyn Hear>>) -> Vec<Ask> {
        let (mut asks, until) = (vec![first], Instant::now() + BREATH);
        while let Ok(Some(told)) = timeout_at(until, self.told.recv()).await {
            match told {
                Told::Asked(ask) => asks.push(ask),
                told => pass_on(sink, told),
            }
        }
        asks
    }
}

fn pass_on(sink: Option<&Arc<dyn Hear>>, told: Told) {
    if let Some(sink) = sink {
        // A listener that cannot keep up misses some.
        let _ = sink.hear(told);
    }
}

impl Lot {
    /// An empty lot; `tasks` owns the timers.
    pub(crate) fn new(tasks: TaskTracker) -> Self {
        let mut key = [0; 32];
        let key = getrandom::fill(&mut key).ok().map(|()| key);
        Self { places: Mutex::default(), key, tasks }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every call that waits, and lets none wait any more.
    pub(crate) fn close(&self) {
        let all = std::mem::replace(&mut *self.places(), Places { closed: true, ..Places::default() });
        drop(all);
    }

    /// Runs a call of a client that may be asked.
    pub(super) async fn run(self: &Arc<Self>, stock: &Arc<Stock>, mut call: Call) -> Result<Outcome, Error> {
        let (sink, told) = mpsc::channel(TOLD);
        let heard = call.told.replace(Arc::new(sink));
        let asked = call.clone();
        let stock = stock.clone();
        let work = Box::pin(async move { pipeline::run(&stock, &mut call).await });
        self.drive(Running { work, told }, asked, heard).await
    }

    /// Takes a call up again with the client's answers. Those that are missing are asked for again.
    pub(super) async fn resume(self: &Arc<Self>, state: &str, mut call: Call) -> Result<Outcome, Error> {
        let Some(Parked { running, asks, record, .. }) = self.take(state, &call) else {
            return Ok(stateless(Answer::Error(input::bad_state())));
        };
        let responses =
            call.params.get(input::RESPONSES).and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
        let mut missing = Vec::new();
        for (key, ask) in asks {
            match responses.get(&key) {
                Some(response) => ask.answer(Answer::Result(response.clone())),
                None => missing.push(ask),
            }
        }
        let heard = call.told.take();
        if !missing.is_empty() {
            return Ok(self.park(running, missing, call));
        }
        let now = std::mem::replace(&mut call.record, record.clone());
        now.go_on_from(&record);
        let outcome = self.drive(running, call, heard).await;
        now.go_on_from(&record);
        outcome
    }

    async fn drive(
        self: &Arc<Self>,
        mut running: Running,
        asked: Call,
        heard: Option<Arc<dyn Hear>>,
    ) -> Result<Outcome, Error> {
        match running.step(heard.as_ref()).await {
            Step::Done(outcome) => outcome,
            Step::Asks(asks) => Ok(self.park(running, asks, asked)),
        }
    }

    /// Lets a call wait and asks its client; a call there is no room for ends here.
    fn park(self: &Arc<Self>, running: Running, asks: Vec<Ask>, call: Call) -> Outcome {
        let no_room = |why| stateless(Answer::Error(error_object(code::INTERNAL, why, None)));
        let id = random_name();
        let Some((id, state)) = id.and_then(|id| Some((id.clone(), self.signed(&id, &call)?))) else {
            return no_room("a call that needs input cannot wait here: there are no random numbers");
        };
        let asks: Vec<(String, Ask)> =
            asks.into_iter().enumerate().map(|(index, ask)| (format!("ask-{}", index + 1), ask)).collect();
        let question = |(key, ask): &(String, Ask)| Question {
            key: key.clone(),
            method: ask.method.clone(),
            params: ask.params.clone(),
        };
        let questions: Vec<Question> = asks.iter().map(question).collect();
        let mut places = self.places();
        let of_one = places.parked.values().filter(|parked| parked.caller == call.caller).count();
        if places.closed || places.parked.len() >= MOST || of_one >= MOST_OF_ONE {
            return no_room("too many calls wait for input: answer some of them first");
        }
        let Call { caller, wanted, method, params, record, .. } = call;
        let patience = AbortOnDropHandle::new(self.tasks.spawn(expire(Arc::downgrade(self), id.clone())));
        let method = method.into_owned();
        let waiting = Parked { running, asks, caller, wanted, method, params, record, _patience: patience };
        places.parked.insert(id, waiting);
        stateless(Answer::Result(input::result_asking(&questions, Some(&state))))
    }

    /// Whether a state has our signature for this caller and this call, rather than being a server's own: also that of
    /// another crib behind this one.
    pub(super) fn is_ours(&self, state: &str, call: &Call) -> bool {
        let signed = id_in(state).and_then(|id| self.signed(id, call));
        signed.is_some_and(|signed| constant_time_eq(signed.as_bytes(), state.as_bytes()))
    }

    /// The call that `state` was given out for, if this is that call.
    fn take(&self, state: &str, call: &Call) -> Option<Parked> {
        let id = id_in(state)?;
        let mut places = self.places();
        let there = places.parked.get(id)?;
        let same = there.caller == call.caller
            && there.wanted == call.wanted
            && there.method == call.method
            && same_call(&there.params, &call.params);
        if same { places.parked.remove(id) } else { None }
    }

    /// A name with our signature over it, its caller and its call.
    fn signed(&self, id: &str, call: &Call) -> Option<String> {
        let mut state = format!("{MARK}{id}.");
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_ref()?).ok()?;
        for part in [id, call.caller.as_str(), &call.method, call.name()] {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part.as_bytes());
        }
        for byte in mac.finalize().into_bytes() {
            let _ = write!(state, "{byte:02x}");
        }
        Some(state)
    }
}

/// The name in a state that looks like one of ours.
fn id_in(state: &str) -> Option<&str> {
    Some(state.strip_prefix(MARK)?.split_once('.')?.0)
}

/// Thirty-two hexadecimal digits that cannot be guessed.
pub(super) fn random_name() -> Option<String> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).ok()?;
    Some(random.iter().fold(String::with_capacity(32), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    }))
}

async fn expire(lot: Weak<Lot>, id: String) {
    sleep(PATIENCE).await;
    if let Some(lot) = lot.upgrade() {
        let expired = lot.places().parked.remove(&id);
        drop(expired);
    }
}

/// The same call but for what belongs to one try.
fn same_call(first: &Object, second: &Object) -> bool {
    let lasting =
        |(key, _): &(&str, &bytes::Bytes)| !matches!(*key, input::RESPONSES | input::STATE | "_meta");
    let value = |raw: &bytes::Bytes| serde_json::from_slice::<Value>(raw).ok();
    first.iter().filter(lasting).count() == second.iter().filter(lasting).count()
        && first.iter().filter(lasting).all(|(key, raw)| {
            second
                .get(key)
                .is_some_and(|other| raw == other || value(raw).is_some() && value(raw) == value(other))
        })
}

fn constant_time_eq(first: &[u8], second: &[u8]) -> bool {
    first.len() == second.len() && first.iter().zip(second).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

fn stateless(answer: Answer) -> Outcome {
    Outcome { answer, era: Era::Stateless, server: None }
}
