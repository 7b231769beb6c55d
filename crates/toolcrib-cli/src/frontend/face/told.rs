//! What a client hears before its answer: progress, lines of log and questions, each a message of its own.

use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use toolcrib::wire::dialect::client::{CANCELLED, LOG, PROGRESS};
use toolcrib::wire::dialect::party::ELICIT;
use toolcrib::wire::dialect::{input, meta};
use toolcrib::wire::message::{Answer, Id, notification, request};
use toolcrib::wire::object::{Object, as_string};
use toolcrib::{Ask, Hear, Told};

use super::{Asker, Face};

/// Words that may wait for a slow reader.
pub(crate) const WORDS_WAITING: usize = 1024;
/// Questions that one client may have before it while nothing of its own runs.
const MOST_WAITING: usize = 64;
/// What our own requests to clients are called: this and a number.
const OURS: &str = "tc-";

/// Where messages to a client go.
pub(crate) trait Outlet: std::fmt::Debug + Clone + Send + Sync + 'static {
    /// Says one message at once; `false` if nobody hears it.
    fn say(&self, message: Vec<u8>) -> bool;

    /// Puts a question, which must not be lost before it is read; `false` if nobody hears it.
    fn ask(&self, question: Vec<u8>) -> bool {
        self.say(question)
    }
}

/// Tasks and opened addresses that one client is remembered to know.
const MOST_KNOWN: usize = 256;

/// The questions of servers that wait for one client's answer.
#[derive(Debug, Default)]
pub(crate) struct Asks(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    asks: HashMap<u64, Ask>,
    /// The names of what it began or was asked to open, of which it may want to hear after its call.
    known: VecDeque<String>,
    /// Whether there is nobody left to ask.
    closed: bool,
}

impl Asks {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Numbers questions after this one.
    pub(crate) fn begin_after(&self, last: u64) {
        self.waiting().last = last;
    }

    /// Keeps a question; its number, and the request to send. `None` if there is nobody to ask.
    fn enter(&self, ask: Ask) -> Option<(u64, Vec<u8>)> {
        let mut waiting = self.waiting();
        if waiting.closed {
            return None;
        }
        waiting.last += 1;
        let number = waiting.last;
        let message = request(&format!("{OURS}{number}"), &ask.method, ask.params.as_deref());
        let opens = ask.params.as_ref().filter(|_| ask.method == ELICIT).and_then(elicitation);
        waiting.know(opens);
        waiting.asks.insert(number, ask);
        Some((number, message))
    }

    /// Notes what an answer gives the client to wait for: addresses to open, and the task that it `made`.
    pub(crate) fn learn(&self, answer: &Answer, made: bool) {
        match answer {
            Answer::Error(error) => {
                let questions = input::addresses_to_open(error).unwrap_or_default();
                let opened = questions.iter().filter_map(|question| elicitation(question.params.as_ref()?));
                self.waiting().know(opened);
            }
            Answer::Result(result) if made => {
                let task =
                    Object::parse(result).ok().and_then(|result| Object::parse(result.get("task")?).ok());
                self.waiting().know(task.and_then(|task| task.string("taskId").map(Cow::into_owned)));
            }
            Answer::Result(_) => {}
        }
    }

    /// Whether the client knows a task or an opened address by this name.
    pub(crate) fn knows(&self, name: &str) -> bool {
        self.waiting().known.iter().any(|known| known == name)
    }

    /// Hands over what the client answered; an answer to nothing is nothing.
    pub(crate) fn answer(&self, id: &Id, answer: Answer) {
        let number = as_string(id.raw()).and_then(|id| id.strip_prefix(OURS)?.parse().ok());
        let ask = number.and_then(|number: u64| self.waiting().asks.remove(&number));
        if let Some(ask) = ask {
            ask.answer(answer);
        }
    }

    /// Takes every question back, now and from now on.
    pub(crate) fn close(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        waiting.asks.clear();
    }

    /// Takes back the questions that nobody wants answered any more; their numbers.
    fn withdraw(&self) -> Vec<u64> {
        let asks = &mut self.waiting().asks;
        asks.extract_if(|_, ask| ask.is_over()).map(|(number, _)| number).collect()
    }
}

impl Waiting {
    fn know(&mut self, names: impl IntoIterator<Item = String>) {
        self.known.extend(names);
        let over = self.known.len().saturating_sub(MOST_KNOWN);
        self.known.drain(..over);
    }
}

/// What a session calls the opening of an address.
fn elicitation(params: &Bytes) -> Option<String> {
    Object::parse(params).ok()?.string("elicitationId").map(Cow::into_owned)
}

/// Tells a client that a question needs no answer any more.
fn withdrawal(number: u64) -> Vec<u8> {
    let params = format!(r#"{{"requestId":"{OURS}{number}","reason":"nobody waits any more"}}"#);
    notification(CANCELLED, Some(params.as_bytes()))
}

/// Hears for a client while none of its calls runs, as long as there is a stream that is not one call's.
pub(crate) struct Line {
    asks: Arc<Asks>,
    out: Mutex<Option<Aside>>,
}

/// Says something where nobody may be left to hear it, which does not keep the stream open.
type Aside = Box<dyn Fn(Vec<u8>) -> bool + Send>;

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("asks", &self.asks).finish_non_exhaustive()
    }
}

impl Line {
    /// To a client whose questions wait in `asks`; nobody hears it yet.
    pub(crate) fn to(asks: Arc<Asks>) -> Self {
        Self { asks, out: Mutex::default() }
    }

    /// From now on, this is where it is heard.
    pub(crate) fn over(&self, say: impl Fn(Vec<u8>) -> bool + Send + 'static) {
        *self.out() = Some(Box::new(say));
    }

    fn out(&self) -> MutexGuard<'_, Option<Aside>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hear for Line {
    fn hear(&self, told: Told) -> bool {
        let ask = match told {
            Told::Asked(ask) => ask,
            Told::Unasked => {
                let over = self.asks.withdraw();
                return self.out().as_ref().is_some_and(|say| over.into_iter().map(withdrawal).all(say));
            }
            _ => return false,
        };
        if self.asks.waiting().asks.len() >= MOST_WAITING {
            return false;
        }
        let Some((number, request)) = self.asks.enter(ask) else { return false };
        let posed = self.out().as_ref().is_some_and(|say| say(request));
        if !posed {
            self.asks.waiting().asks.remove(&number);
        }
        posed
    }
}

/// Hears for one call of a client. With the call go the questions that no other call of this client waits for.
#[derive(Debug)]
struct Ear<O> {
    token: Option<Bytes>,
    asks: Arc<Asks>,
    out: O,
}

impl<O: Outlet> Hear for Ear<O> {
    fn hear(&self, told: Told) -> bool {
        let ask = match told {
            Told::Asked(ask) => ask,
            Told::Unasked => {
                self.withdraw();
                return true;
            }
            told => return told_line(told, self.token.as_ref()).is_some_and(|line| self.out.say(line)),
        };
        let Some((number, request)) = self.asks.enter(ask) else { return false };
        let posed = self.out.ask(request);
        if !posed {
            // Nobody will answer what nobody hears.
            self.asks.waiting().asks.remove(&number);
        }
        posed
    }
}

impl<O: Outlet> Ear<O> {
    /// Tells the client which of its questions need no answer any more.
    fn withdraw(&self) {
        for number in self.asks.withdraw() {
            self.out.say(withdrawal(number));
        }
    }
}

impl<O> Drop for Ear<O> {
    fn drop(&mut self) {
        self.asks.withdraw();
    }
}

/// What a client that cannot be asked is told, as a message; progress goes under the client's own token.
pub(crate) fn told_line(told: Told, token: Option<&Bytes>) -> Option<Vec<u8>> {
    match told {
        Told::Progress(mut progress) => {
            progress.set(meta::PROGRESS, token?.clone());
            Some(notification(PROGRESS, Some(&progress.to_bytes())))
        }
        Told::Log(params) => Some(notification(LOG, Some(&params))),
        Told::Asked(_) | Told::Unasked => None,
    }
}

impl Face {
    /// Answers one request; everything that comes before the answer goes to `out`, and questions wait in `asks`.
    pub(crate) async fn respond_aloud(
        &self,
        asker: Asker,
        method: &str,
        params: Option<Object>,
        (token, asks): (Option<Bytes>, &Arc<Asks>),
        out: &impl Outlet,
    ) -> Answer {
        let ear = Arc::new(Ear { token, asks: asks.clone(), out: out.clone() });
        let answer = self.respond(asker, method, params, Some(ear.clone())).await;
        ear.withdraw();
        answer
    }
}
