//! `Store`: answers under their keys, bounded in number and in bytes. Pure: it is told what time it is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;

use super::key::{BuildReady, Key, Subject, What};
use super::lasting::Lasting;
use crate::call::Outcome;
use crate::sharing::SharingKey;
use crate::spec::ServerId;
use crate::wire::message::Answer;

/// What an answer takes beside its bytes and its key's, about.
const OVERHEAD: usize = 512;

/// What a server's answers are not good for any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stale<'a> {
    /// Anything.
    All,
    /// The resource at this address, and those that it is a part of.
    Resource(&'a str),
}

impl Stale<'_> {
    fn concerns(self, key: &Key) -> bool {
        match self {
            Self::All => true,
            Self::Resource(uri) => {
                key.subject.what == What::Resources && uri.as_bytes().starts_with(&key.asked)
            }
        }
    }
}

/// One answer.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    outcome: Outcome,
    lasting: Lasting,
    until: Instant,
}

impl Kept {
    /// A copy of an answer: the original is a part of whatever it was read with.
    pub(super) fn new(outcome: &Outcome, lasting: Lasting, until: Instant) -> Self {
        let answer = Answer::Result(Bytes::copy_from_slice(outcome.raw()));
        Self { outcome: Outcome { answer, ..outcome.clone() }, lasting, until }
    }

    /// The answer as it is given at this moment.
    pub(super) fn given(self, now: Instant) -> Outcome {
        let left = self.until.saturating_duration_since(now);
        let answer = Answer::Result(self.lasting.with_left(self.outcome.raw(), left));
        Outcome { answer, ..self.outcome }
    }
}

/// Where an answer stands in the orders below.
#[derive(Debug)]
struct Filed {
    number: u64,
    kept: Kept,
    bytes: usize,
}

/// Answers, by key and in every order in which they leave.
#[derive(Debug)]
pub(super) struct Store {
    filed: HashMap<Arc<Key>, Filed, BuildReady>,
    by_age: BTreeMap<u64, Arc<Key>>,
    by_end: BTreeSet<(Instant, u64)>,
    by_subject: BTreeMap<Subject, BTreeSet<u64>>,
    bytes: usize,
    /// Bytes that there may be.
    most: usize,
    next: u64,
}

impl Store {
    pub(super) fn new(most: usize) -> Self {
        let (filed, by_age, by_end, by_subject) = Default::default();
        Self { filed, by_age, by_end, by_subject, bytes: 0, most, next: 0 }
    }

    /// What is known under a key at this moment.
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<&Kept> {
        self.filed.get(key).map(|filed| &filed.kept).filter(|kept| kept.until > now)
    }

    /// Keeps an answer; of more than `most_of_one` of one subject, and of more bytes than there may be, the oldest go.
    /// One that would take a quarter of all there is room for is not worth it.
    pub(super) fn put(&mut self, key: Arc<Key>, kept: Kept, most_of_one: usize, now: Instant) {
        self.sweep(now);
        let bytes = OVERHEAD + key.weight() + kept.outcome.raw().len();
        self.take(&key);
        if bytes > self.most / 4 || most_of_one == 0 || kept.until <= now {
            return;
        }
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        self.by_age.insert(number, key.clone());
        self.by_end.insert((kept.until, number));
        let of_subject = self.by_subject.entry(key.subject.clone()).or_default();
        of_subject.insert(number);
        let oldest = of_subject.first().copied().filter(|_| of_subject.len() > most_of_one);
        self.filed.insert(key, Filed { number, kept, bytes });
        self.take_number(oldest);
        self.shrink();
    }

    /// Bytes that there may be from now on.
    pub(super) fn resize(&mut self, most: usize) {
        self.most = most;
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.bytes > self.most {
            let oldest = self.by_age.first_key_value().map(|(number, _)| *number);
            self.take_number(oldest);
        }
    }

    /// Takes out what is not good any more.
    pub(super) fn sweep(&mut self, now: Instant) {
        while let Some((_, number)) = self.by_end.first().copied().filter(|(until, _)| *until <= now) {
            self.take_number(Some(number));
        }
    }

    /// Takes out what a server said; of one instance of it, or of all.
    pub(super) fn forget(&mut self, server: &ServerId, instance: Option<&SharingKey>, stale: Stale<'_>) {
        let of_server =
            self.of(server).flat_map(|(_, numbers)| numbers).filter_map(|number| self.by_age.get(number));
        let concerned = |key: &&Arc<Key>| {
            instance.is_none_or(|instance| key.instance == *instance) && stale.concerns(key)
        };
        let gone: Vec<Arc<Key>> = of_server.filter(concerned).cloned().collect();
        gone.iter().for_each(|key| self.take(key));
    }

    /// How many answers of a server are kept.
    pub(super) fn has(&self, subject: &Subject) -> bool {
        self.by_subject.contains_key(subject)
    }

    pub(super) fn count(&self, server: &ServerId) -> usize {
        self.of(server).map(|(_, numbers)| numbers.len()).sum()
    }

    fn of<'a>(&'a self, server: &'a ServerId) -> impl Iterator<Item = (&'a Subject, &'a BTreeSet<u64>)> {
        let first = Subject { server: server.clone(), what: What::Tool("".into()) };
        self.by_subject.range(first..).take_while(move |(subject, _)| subject.server == *server)
    }

    fn take_number(&mut self, number: Option<u64>) {
        if let Some(key) = number.and_then(|number| self.by_age.get(&number).cloned()) {
            self.take(&key);
        }
    }

    fn take(&mut self, key: &Key) {
        let Some(Filed { number, kept, bytes }) = self.filed.remove(key) else { return };
        self.bytes -= bytes;
        self.by_age.remove(&number);
        self.by_end.remove(&(kept.until, number));
        if let Some(numbers) = self.by_subject.get_mut(&key.subject) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_subject.remove(&key.subject);
            }
        }
    }
}

#[cfg(test)]
mod tests;
