//! What a client hears before its answer: progress, lines of log and questions, each a message of its own.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;
use toolcrib::wire::dialect::client::{CANCELLED, LOG, PROGRESS};
use toolcrib::wire::dialect::meta;
use toolcrib::wire::message::{Answer, Id, notification};
use toolcrib::wire::object::{Object, as_string, write_string};
use toolcrib::{Ask, Told};

use super::{Asker, Face};

/// Words that may wait for a slow reader.
pub(crate) const WORDS_WAITING: usize = 64;
/// What our own requests to clients are called: this and a number.
const OURS: &str = "tc-";

/// Where messages to a client go.
pub(crate) trait Outlet {
    /// Says one message, or drops it if nobody listens any more.
    fn say(&self, message: Vec<u8>) -> impl Future<Output = ()> + Send;
}

impl Outlet for mpsc::Sender<Vec<u8>> {
    async fn say(&self, message: Vec<u8>) {
        // A client that hung up hears nothing.
        let _ = self.send(message).await;
    }
}

/// The questions of servers that wait for one client's answer.
#[derive(Debug, Default)]
pub(crate) struct Asks(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    last: u64,
    asks: HashMap<u64, Ask>,
    /// Whether there is nobody left to ask.
    closed: bool,
}

impl Asks {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a question; its number, and the request to send. `None` if there is nobody to ask.
    fn enter(&self, ask: Ask) -> Option<(u64, Vec<u8>)> {
        let mut waiting = self.waiting();
        if waiting.closed {
            return None;
        }
        waiting.last += 1;
        let number = waiting.last;
        let message = request(number, &ask.method, ask.params.as_ref());
        waiting.asks.insert(number, ask);
        Some((number, message))
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

    /// Takes a question back; `false` if it was answered.
    fn withdraw(&self, number: u64) -> bool {
        self.waiting().asks.remove(&number).is_some()
    }
}

fn request(number: u64, method: &str, params: Option<&Bytes>) -> Vec<u8> {
    let mut out = format!(r#"{{"jsonrpc":"2.0","id":"{OURS}{number}","method":"#).into_bytes();
    write_string(&mut out, method);
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params);
    }
    out.push(b'}');
    out
}

/// The questions of one call. Dropping this takes back those that are not answered.
struct Posed<'a> {
    asks: &'a Asks,
    numbers: Vec<u64>,
}

impl Posed<'_> {
    /// Tells the client which of its questions need no answer any more.
    async fn withdraw(&mut self, out: &impl Outlet) {
        for number in std::mem::take(&mut self.numbers) {
            if self.asks.withdraw(number) {
                let params = format!(r#"{{"requestId":"{OURS}{number}","reason":"nobody waits any more"}}"#);
                out.say(notification(CANCELLED, Some(params.as_bytes()))).await;
            }
        }
    }
}

impl Drop for Posed<'_> {
    fn drop(&mut self) {
        for number in &self.numbers {
            self.asks.withdraw(*number);
        }
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
        Told::Asked(_) => None,
    }
}

impl Face {
    /// Answers one request; everything that comes before the answer goes to `out`, and questions wait in `asks`.
    pub(crate) async fn respond_aloud(
        &self,
        asker: Asker,
        method: &str,
        params: Option<Object>,
        (token, asks): (Option<Bytes>, &Asks),
        out: &impl Outlet,
    ) -> Answer {
        let (sink, mut heard) = mpsc::channel(WORDS_WAITING);
        let mut posed = Posed { asks, numbers: Vec::new() };
        let mut message = |told| match told {
            Told::Asked(ask) => {
                let (number, request) = asks.enter(ask)?;
                posed.numbers.push(number);
                Some(request)
            }
            told => told_line(told, token.as_ref()),
        };
        let mut work = std::pin::pin!(self.respond(asker, method, params, Some(sink)));
        let answer = loop {
            tokio::select! {
                biased;
                Some(told) = heard.recv() => if let Some(message) = message(told) { out.say(message).await },
                answer = &mut work => break answer,
            }
        };
        // Everything the server told before it answered was sent to us before the answer was.
        while let Ok(told) = heard.try_recv() {
            if let Some(message) = message(told) {
                out.say(message).await;
            }
        }
        posed.withdraw(out).await;
        answer
    }
}
