//! `Ledger`: what an agent said and what it is still owed, so that its conversation can go on with another gateway.
//!
//! Bookkeeping only: it reads and writes nothing.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use serde_json::Value;
use toolcrib::wire::dialect::client::{
    CANCELLED, DISCOVER, HELLO, LISTEN, PING, PROMPTS_CHANGED, RESOURCE_UPDATED, RESOURCES_CHANGED,
    SET_LEVEL, SUBSCRIBE, TOOLS_CHANGED, UNSUBSCRIBE,
};
use toolcrib::wire::dialect::greeting::SESSION_OPEN;
use toolcrib::wire::message::{ClientMessage, Id, error_object, error_reply, notification, reply};
use toolcrib::wire::object::{Object, as_string, elements, write_string};
use toolcrib::{Error, ErrorKind, Kind};

use crate::frontend::{batch, listen_ended};

/// What our own requests are called, which the agent never sees: this and a number.
const HIDDEN: &str = "toolcrib-again-";

/// How many gateways get a request that is safe to send again: it may be what ends them.
const MOST_TRIES: u8 = 3;

/// What an agent said that matters for longer than a moment.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    session: Option<Session>,
    /// Requests without an answer, in the order they came.
    flights: BTreeMap<u64, Flight>,
    by_id: HashMap<Id, u64>,
    next: u64,
    /// Questions to the agent that it has not answered.
    questions: Vec<Id>,
    /// The highest number that a question had.
    last_question: u64,
}

/// A session as the agent opened it.
#[derive(Debug, Default)]
struct Session {
    hello: Option<Bytes>,
    confirmed: bool,
    level: Option<Bytes>,
    /// The parameters of every subscription, by address.
    subscriptions: BTreeMap<String, Bytes>,
    /// Which lists it has read: tools, prompts, resources.
    lists: [bool; 3],
}

/// A request without an answer; a batch of them is one.
#[derive(Debug)]
struct Flight {
    ids: Vec<Id>,
    is_batch: bool,
    method: String,
    params: Option<Bytes>,
    line: Bytes,
    /// Whether the gateway may have read it.
    sent: bool,
    /// How many gateways it was sent to.
    tries: u8,
}

/// What to do with a line of the agent's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It goes to the gateway; if it is a request, under this number here.
    Goes(Option<u64>),
    /// It concerns nobody any more.
    Moot,
}

impl Ledger {
    /// Takes a line of the agent's, which counts as sent from now on.
    pub(super) fn hear(&mut self, line: &Bytes) -> Heard {
        if batch::is_batch(line) {
            return Heard::Goes(self.enter_batch(line));
        }
        match ClientMessage::parse(line) {
            Ok(ClientMessage::Request { id, method, params }) => {
                Heard::Goes(Some(self.enter(Flight::new(vec![id], method, params, line))))
            }
            Ok(ClientMessage::Notification { method, params }) => self.notice(&method, params.as_ref()),
            Ok(ClientMessage::Reply { id, .. }) => {
                match self.questions.iter().position(|question| *question == id) {
                    Some(at) => {
                        self.questions.swap_remove(at);
                        Heard::Goes(None)
                    }
                    None => Heard::Moot,
                }
            }
            // The gateway says what is wrong with it.
            Err(_) => Heard::Goes(None),
        }
    }

    fn notice(&mut self, method: &str, params: Option<&Bytes>) -> Heard {
        if let (SESSION_OPEN, Some(session)) = (method, &mut self.session) {
            session.confirmed = true;
        }
        let taken_back = (method == CANCELLED).then(|| request_id(params?)).flatten();
        match taken_back.and_then(|id| self.leave(&id)) {
            Some(flight) if !flight.sent => Heard::Moot,
            _ => Heard::Goes(None),
        }
    }

    fn enter(&mut self, flight: Flight) -> u64 {
        self.next += 1;
        for id in &flight.ids {
            self.by_id.insert(id.clone(), self.next);
        }
        self.flights.insert(self.next, flight);
        self.next
    }

    fn enter_batch(&mut self, line: &Bytes) -> Option<u64> {
        let asked = |part: &Bytes| match ClientMessage::parse(part) {
            Ok(ClientMessage::Request { id, .. }) => Some(id),
            _ => None,
        };
        let ids: Vec<Id> = elements(line).ok()?.iter().filter_map(asked).collect();
        if ids.is_empty() {
            return None;
        }
        let flight = Flight { is_batch: true, ..Flight::new(ids, String::new(), None, line) };
        Some(self.enter(flight))
    }

    fn leave(&mut self, id: &Id) -> Option<Flight> {
        let flight = self.flights.remove(&self.by_id.remove(id)?)?;
        for id in &flight.ids {
            self.by_id.remove(id);
        }
        Some(flight)
    }

    /// Notes that not one byte of a request reached the gateway.
    pub(super) fn never_sent(&mut self, number: u64) {
        if let Some(flight) = self.flights.get_mut(&number) {
            flight.sent = false;
        }
    }

    /// Takes a line of the gateway's; `false` if it is not for the agent.
    pub(super) fn told(&mut self, line: &Bytes) -> bool {
        if batch::is_batch(line) {
            for part in elements(line).unwrap_or_default() {
                self.told_one(&part);
            }
            return true;
        }
        self.told_one(line)
    }

    fn told_one(&mut self, line: &Bytes) -> bool {
        let Ok(message) = Object::parse(line) else { return true };
        let id = message.get("id").cloned().and_then(Id::read);
        let Some(id) = id else {
            self.withdrawn(&message);
            return true;
        };
        if message.get("method").is_some() {
            let number = as_string(id.raw()).and_then(|id| id.rsplit('-').next()?.parse().ok());
            self.last_question = self.last_question.max(number.unwrap_or(0));
            self.questions.push(id);
            return true;
        }
        if as_string(id.raw()).is_some_and(|id| id.starts_with(HIDDEN)) {
            return false;
        }
        let Some(flight) = self.leave(&id) else { return true };
        match message.get("error") {
            None => self.settle(flight),
            // A batch is answered as a whole, whatever became of its parts.
            Some(error) if !flight.is_batch && was_refused_unsent(error) => {
                self.enter(Flight { sent: false, ..flight });
                return false;
            }
            Some(_) => {}
        }
        true
    }

    /// The gateway takes back a question.
    fn withdrawn(&mut self, message: &Object) {
        if message.string("method").as_deref() == Some(CANCELLED)
            && let Some(id) = message.get("params").and_then(request_id)
        {
            self.questions.retain(|question| *question != id);
        }
    }

    /// Remembers what a request did to the session.
    fn settle(&mut self, flight: Flight) {
        let Flight { method, params, .. } = flight;
        if method == HELLO {
            self.session = Some(Session { hello: params, ..Session::default() });
            return;
        }
        let Some(session) = &mut self.session else { return };
        let uri = || Some(Object::parse(params.as_ref()?).ok()?.string("uri")?.into_owned());
        match method.as_str() {
            SET_LEVEL => session.level = params,
            SUBSCRIBE => {
                let uri = uri();
                session.subscriptions.extend(uri.zip(params));
            }
            UNSUBSCRIBE => drop(uri().and_then(|uri| session.subscriptions.remove(&uri))),
            _ => match Kind::of_method(&method) {
                Some(Kind::Tools) => session.lists[0] = true,
                Some(Kind::Prompts) => session.lists[1] = true,
                Some(Kind::Resources | Kind::Templates) => session.lists[2] = true,
                None => {}
            },
        }
    }

    /// The gateway is gone: what the agent is told now. What can be sent to the next one stays.
    pub(super) fn broken(&mut self) -> Vec<Vec<u8>> {
        let mut lines = Vec::new();
        for (number, mut flight) in std::mem::take(&mut self.flights) {
            if !flight.sent || flight.is_safe() && flight.tries < MOST_TRIES {
                flight.sent = false;
                self.flights.insert(number, flight);
                continue;
            }
            for id in &flight.ids {
                self.by_id.remove(id);
            }
            lines.push(flight.lost());
        }
        for question in self.questions.drain(..) {
            let id = String::from_utf8_lossy(question.raw()).into_owned();
            let params = format!(r#"{{"requestId":{id},"reason":"the gateway that asked is gone"}}"#);
            lines.push(notification(CANCELLED, Some(params.as_bytes())));
        }
        lines
    }

    /// There will be no other gateway: what the agent is told of everything that waits for one.
    pub(super) fn given_up(&mut self, why: &str) -> Vec<Vec<u8>> {
        let error = Error::new(ErrorKind::ShuttingDown, format!("there is no gateway any more: {why}"));
        self.by_id.clear();
        std::mem::take(&mut self.flights).into_values().map(|flight| flight.failed(&error)).collect()
    }

    /// Whether nothing waits to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// The highest number that a question had; those of another gateway begin after it.
    pub(super) fn last_question(&self) -> u64 {
        self.last_question
    }

    /// What another gateway is told first: the session as it was, then every request that waits. They count as sent.
    pub(super) fn again(&mut self) -> Vec<Bytes> {
        let mut lines = Vec::new();
        if let Some(session) = &self.session {
            let mut number = 0;
            let mut hidden = |method: &str, params: Option<&Bytes>| {
                number += 1;
                lines.push(request(number, method, params));
            };
            hidden(HELLO, session.hello.as_ref());
            if let Some(level) = &session.level {
                hidden(SET_LEVEL, Some(level));
            }
            session.subscriptions.values().for_each(|params| hidden(SUBSCRIBE, Some(params)));
            if session.confirmed {
                lines.insert(1, notification(SESSION_OPEN, None).into());
            }
        }
        for flight in self.flights.values_mut() {
            flight.sent = true;
            flight.tries += 1;
            lines.push(flight.line.clone());
        }
        lines
    }

    /// What the agent is told once another gateway serves it: whatever it knows may be different there.
    pub(super) fn news(&self) -> Vec<Vec<u8>> {
        let Some(session) = &self.session else { return Vec::new() };
        let lists = [TOOLS_CHANGED, PROMPTS_CHANGED, RESOURCES_CHANGED].into_iter().zip(session.lists);
        let changed = lists.filter(|(_, read)| *read).map(|(method, _)| notification(method, None));
        let updated = session.subscriptions.keys().map(|uri| {
            let mut params = Object::default();
            params.set("uri", toolcrib::wire::object::string(uri));
            notification(RESOURCE_UPDATED, Some(&params.to_bytes()))
        });
        changed.chain(updated).collect()
    }
}

impl Flight {
    fn new(ids: Vec<Id>, method: String, params: Option<Bytes>, line: &Bytes) -> Self {
        Self { ids, is_batch: false, method, params, line: line.clone(), sent: true, tries: 1 }
    }

    /// Whether doing it twice is the same as doing it once.
    fn is_safe(&self) -> bool {
        let reads = [
            "resources/read",
            "prompts/get",
            "completion/complete",
            "tasks/get",
            "tasks/list",
            "tasks/result",
        ];
        let method = self.method.as_str();
        Kind::of_method(method).is_some()
            || matches!(method, HELLO | PING | SET_LEVEL | SUBSCRIBE | UNSUBSCRIBE | DISCOVER)
            || reads.contains(&method)
    }

    /// What the agent is told when this was under way and cannot be sent again.
    fn lost(&self) -> Vec<u8> {
        if let (LISTEN, [id]) = (self.method.as_str(), self.ids.as_slice()) {
            return reply(id, &listen_ended(id));
        }
        let what = if self.is_batch { "this" } else { &self.method };
        let message = format!("the gateway went away while `{what}` was under way: it may have run");
        self.failed(&Error::new(ErrorKind::Lost, message).hint("see whether it ran before you ask again"))
    }

    fn failed(&self, error: &Error) -> Vec<u8> {
        let error = error_object(error.kind().facts().code, &error.to_string(), Some(&error.data()));
        let answers: Vec<Vec<u8>> = self.ids.iter().map(|id| error_reply(Some(id), &error)).collect();
        if self.is_batch { batch::together(&answers) } else { answers.concat() }
    }
}

/// The request that somebody takes back.
fn request_id(params: &Bytes) -> Option<Id> {
    Id::read(Object::parse(params).ok()?.get("requestId")?.clone())
}

/// Whether a gateway that is being shut down says that it never passed the request on.
fn was_refused_unsent(error: &Bytes) -> bool {
    let error: Value = serde_json::from_slice(error).unwrap_or_default();
    error["code"] == ErrorKind::ShuttingDown.facts().code && error["data"]["sent"] == "never"
}

/// A request of our own.
fn request(number: u64, method: &str, params: Option<&Bytes>) -> Bytes {
    let mut out = format!(r#"{{"jsonrpc":"2.0","id":"{HIDDEN}{number}","method":"#).into_bytes();
    write_string(&mut out, method);
    if let Some(params) = params {
        out.extend_from_slice(b",\"params\":");
        out.extend_from_slice(params);
    }
    out.push(b'}');
    out.into()
}

#[cfg(test)]
mod tests;
